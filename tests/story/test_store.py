"""The store of the documents: an unreadable one is kept and named, and nobody's change is overwritten or lost."""

import json
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from story_world import Heard

from retake.bucket import ABSENT, ANY, Bucket, Conflict, Lease, NotFound
from retake.bucket.directory import DirectoryBucket
from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.clock import FakeClock, SystemClock
from retake.errors import LeaseLost, StateError, StorageError
from retake.story.documents import PublicDocument, Status
from retake.story.settings import FilePaths
from retake.story.store import DocumentStore

PATHS = FilePaths()
PUBLIC, GEN, MIDJOURNEY = PATHS.config_public, PATHS.config_gen, PATHS.config_midjourney


def opened(bucket: Bucket) -> DocumentStore:
    """Return a store under a lease, with its documents read."""
    store = DocumentStore(bucket, PATHS, bucket.lease("story", "test"), FakeClock())
    store.read()
    return store


def put(bucket: Bucket, key: str, value: object) -> None:
    bucket.write(key, value if isinstance(value, bytes) else json.dumps(value).encode(), ANY)


def got(bucket: Bucket, key: str) -> dict[str, object]:
    return dict(json.loads(bucket.read(key)[0]))


def everything(bucket: Bucket) -> dict[str, bytes]:
    return {entry.key: bucket.read(entry.key)[0] for entry in bucket.list("")}


# --- reading ----------------------------------------------------------------------------------------------------------


def test_an_empty_bucket_reads_as_nothing_under_way() -> None:
    documents = opened(MemoryBucket()).documents
    assert (documents.public.raw, documents.gen.raw, documents.midjourney.raw, documents.files) == ({}, {}, {}, set())


def test_the_files_of_the_generation_under_way_are_reported_by_suffix() -> None:
    bucket = MemoryBucket()
    put(bucket, GEN, {"generation_id": "a"})
    for name in ("666/a.json", "666/a.png", "666/a.txt", "666/ab.mp4", "666/a.b.mp4", "555/a.mp4"):
        put(bucket, name, {})
    store = opened(bucket)
    assert store.documents.files == {"json", "png"}
    assert store.files(None) == frozenset()
    assert store.file_key("a", "png") == "666/a.png"


def test_another_object_is_read_or_is_not_there() -> None:
    bucket = MemoryBucket()
    put(bucket, "666/a.json", {"topic": "t"})
    store = opened(bucket)
    assert store.read_object("666/a.json") == {"topic": "t"}
    assert store.read_object("666/b.json") is None


# --- invalid documents ----------------------------------------------------------------------------------------------


UNREADABLE = [
    (PUBLIC, b'{"processing_lock": "yes"}', "processing_lock"),
    (PUBLIC, b'{"generation_id": ["a"', "the whole document"),
    (GEN, b'{"generation_id": 7}', "generation_id"),
    (GEN, b"", "the whole document"),
    (PUBLIC, b"", "the whole document"),
    (MIDJOURNEY, b"", "the whole document"),
    (MIDJOURNEY, b'{"status": "asleep"}', "status"),
    (MIDJOURNEY, b"\xff\xff", "the whole document"),
]


@pytest.mark.parametrize(("key", "data", "field"), UNREADABLE, ids=str)
def test_an_unreadable_document_is_named_left_alone_and_copied_once(key: str, data: bytes, field: str) -> None:
    bucket = MemoryBucket()
    put(bucket, key, data)
    copy = f"unreadable/{key.rpartition('/')[2]}.{sha256(data).hexdigest()[:16]}"
    for _ in range(3):
        lease = bucket.lease("story", "test")
        with pytest.raises(StateError) as caught:
            DocumentStore(bucket, PATHS, lease, FakeClock()).read()
        lease.release()
        assert caught.value.exit_code == 65
        assert all(part in str(caught.value) for part in (key, field, copy))
        assert everything(bucket) == {key: data, copy: data}


def test_each_content_is_copied_once() -> None:
    bucket = MemoryBucket()
    for data in (b"1", b"2", b"1"):
        put(bucket, GEN, data)
        lease = bucket.lease("story", "test")
        with pytest.raises(StateError):
            DocumentStore(bucket, PATHS, lease, FakeClock()).read()
        lease.release()
    assert sorted(data for key, data in everything(bucket).items() if key.startswith("unreadable/")) == [b"1", b"2"]


def test_a_copy_that_cannot_be_kept_does_not_hide_what_is_wrong() -> None:
    bucket = FailingBucket(MemoryBucket(), Fault(operation="write", times=99))
    put(bucket.bucket, GEN, b"nonsense")
    with pytest.raises(StateError, match="no copy could be kept"):
        opened(bucket)


def test_a_store_without_a_lease_names_what_is_wrong_and_writes_nothing() -> None:
    bucket = MemoryBucket()
    put(bucket, GEN, b"nonsense")
    with pytest.raises(StateError, match="the whole document"):
        DocumentStore(bucket, PATHS, None, FakeClock()).read()
    assert everything(bucket) == {GEN: b"nonsense"}


@pytest.mark.parametrize("data", [b"", b"[1]", b"{", b"[" * 9999])
def test_another_object_that_makes_no_sense_is_kept_and_named_too(data: bytes) -> None:
    bucket = MemoryBucket()
    put(bucket, "config/topics.json", data)
    store = opened(bucket)
    with pytest.raises(StateError, match=r"config/topics\.json: the whole document"):
        store.read_object("config/topics.json")
    assert len([key for key in everything(bucket) if key.startswith("unreadable/topics.json.")]) == 1


@pytest.mark.parametrize("torn", [b"", b'{"generation_id": ["a'])
def test_a_publisher_that_writes_in_place_may_show_a_torn_document_for_a_moment(torn: bytes) -> None:
    bucket = MemoryBucket()
    put(bucket, PUBLIC, torn)

    class Finishing(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            put(bucket, PUBLIC, {"generation_id": ["a"]})

    store = DocumentStore(bucket, PATHS, bucket.lease("story", "test"), Finishing())
    assert store.read().public.published == ["a"]
    assert [key for key in everything(bucket) if key.startswith("unreadable/")] == []


# --- saving -----------------------------------------------------------------------------------------------------------


def test_what_is_saved_is_read_back_and_the_same_is_not_saved_again() -> None:
    bucket = FailingBucket(MemoryBucket())
    store = opened(bucket)
    store.save_gen(store.documents.gen.updated(generation_id="a", note=1))
    store.save_midjourney(store.documents.midjourney.updated(status="content_failed"))
    again = DocumentStore(bucket, PATHS, None, FakeClock()).read()
    assert (again.gen.raw, again.midjourney.status) == ({"generation_id": "a", "note": 1}, Status.CONTENT_FAILED)
    writes = len(bucket.operations)
    store.save_gen(store.documents.gen)
    store.save_midjourney(store.documents.midjourney.updated(status="content_failed"))
    assert len(bucket.operations) == writes


@pytest.mark.parametrize("there_before", [True, False])
def test_a_document_that_somebody_else_wrote_meanwhile_is_not_overwritten(there_before: bool) -> None:
    bucket = MemoryBucket()
    if there_before:
        put(bucket, GEN, {})
        put(bucket, MIDJOURNEY, {})
    store = opened(bucket)
    put(bucket, GEN, {"generation_id": "theirs"})
    put(bucket, MIDJOURNEY, {"note": "theirs"})
    with pytest.raises(Conflict):
        store.save_gen(store.documents.gen.updated(generation_id="ours"))
    with pytest.raises(Conflict):
        store.save_midjourney(store.documents.midjourney.updated(note="ours"))
    assert got(bucket, GEN) == {"generation_id": "theirs"}
    assert got(bucket, MIDJOURNEY) == {"note": "theirs"}


def test_one_save_after_another_is_not_a_conflict() -> None:
    bucket = MemoryBucket()
    store = opened(bucket)
    for number in range(3):
        store.save_gen(store.documents.gen.updated(note=number))
        store.save_object("config/topics.json", {"n": number})
    assert got(bucket, GEN) == {"note": 2}


def test_a_document_is_saved_only_under_the_lease() -> None:
    bucket = MemoryBucket()
    store = opened(bucket)
    before = everything(bucket)
    bucket.store.end_leases()
    for save in (
        lambda: store.save_gen(store.documents.gen.updated(a=1)),
        lambda: store.save_midjourney(store.documents.midjourney.updated(a=1)),
        lambda: store.save_file("666/a.json", b"{}"),
        lambda: store.save_object("config/topics.json", {}),
        lambda: store.public.publish(lambda doc: doc.updated(processing_lock=True)),
    ):
        with pytest.raises(LeaseLost):
            save()
    assert everything(bucket) == before


def test_a_store_opened_for_reading_refuses_to_write() -> None:
    store = DocumentStore(MemoryBucket(), PATHS, None, FakeClock())
    store.read()
    with pytest.raises(RuntimeError):
        store.save_gen(store.documents.gen.updated(a=1))


# --- the document that the publisher writes too -----------------------------------------------------------------------


def lock_raised(doc: PublicDocument) -> PublicDocument:
    return doc.updated(processing_lock=True)


class Publisher:
    """Appends ids to the list as programs do: reads the file, adds to it, writes it back, without a lock."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.read_before: dict[str, object] | None = None
        self.appended: list[str] = []

    def read(self) -> None:
        try:
            self.read_before = got(self.bucket, PUBLIC)
        except NotFound:
            self.read_before = {}

    def write(self, name: str) -> None:
        assert self.read_before is not None
        self.bucket.write(
            PUBLIC,
            json.dumps(
                {**self.read_before, "generation_id": [*self.read_before.get("generation_id", []), name]}
            ).encode(),
            ANY,
        )
        self.appended.append(name)

    def append(self, name: str) -> None:
        self.read()
        self.write(name)


class Timeline:
    """Lets something happen just before the n-th operation of another program on the same bucket."""

    def __init__(self, store: MemoryStore) -> None:
        self.bucket = MemoryBucket(store, meanwhile=self._step)
        self.events: dict[int, Callable[[], None]] = {}
        self.steps = 0

    def _step(self, step: str, key: str) -> None:
        self.steps += 1
        event = self.events.pop(self.steps, None)
        if event:
            event()


def prepared() -> tuple[MemoryStore, Publisher]:
    store = MemoryStore()
    put(MemoryBucket(store), PUBLIC, {"processing_lock": False, "generation_id": ["a"], "theirs": 1})
    return store, Publisher(MemoryBucket(store))


def steps_of_publishing() -> int:
    store, _ = prepared()
    timeline = Timeline(store)
    opened(timeline.bucket).public.publish(lock_raised)
    return timeline.steps


def test_publishing_changes_what_it_is_to_change_and_keeps_the_rest() -> None:
    store, _ = prepared()
    bucket = MemoryBucket(store)
    opened(bucket).public.publish(lock_raised)
    assert everything(bucket) == {
        PUBLIC: PublicDocument({"processing_lock": True, "generation_id": ["a"], "theirs": 1}).encode()
    }


def test_publishing_no_change_writes_nothing() -> None:
    store, _ = prepared()
    before = everything(MemoryBucket(store))
    bucket = FailingBucket(MemoryBucket(store), Fault(operation="replace"), Fault(operation="write"))
    opened(bucket).public.publish(lambda doc: doc.updated(processing_lock=False))
    assert everything(MemoryBucket(store)) == before


def test_a_missing_public_document_is_made() -> None:
    bucket = MemoryBucket()
    opened(bucket).public.publish(lock_raised)
    assert got(bucket, PUBLIC) == {"processing_lock": True}


@pytest.mark.parametrize("step", range(1, steps_of_publishing() + 1))
def test_an_append_between_any_two_steps_is_kept_and_so_is_our_change(step: int) -> None:
    store, publisher = prepared()
    timeline = Timeline(store)
    timeline.events[step] = lambda: publisher.append("b")
    ours = opened(timeline.bucket)
    ours.public.publish(lock_raised)
    found = got(publisher.bucket, PUBLIC)
    assert publisher.appended == ["b"]
    assert found == {"processing_lock": True, "generation_id": ["a", "b"], "theirs": 1}
    assert ours.documents.public.raw == found
    assert [key for key in everything(publisher.bucket) if "displaced" in key] == []


def test_an_append_at_every_step_is_kept() -> None:
    store, publisher = prepared()
    timeline = Timeline(store)
    timeline.events = {step: lambda step=step: publisher.append(f"n{step}") for step in range(1, 60)}
    ours = opened(timeline.bucket)
    ours.public.publish(lock_raised)
    found = got(publisher.bucket, PUBLIC)
    assert found["processing_lock"] is True
    assert set(found["generation_id"]) == {"a", *publisher.appended}
    assert len(publisher.appended) > 10


def pairs_of_steps() -> list[tuple[int, int]]:
    last = steps_of_publishing() + 8
    return [(first, then) for first in range(1, last) for then in range(first, last)]


def test_a_slow_publisher_that_writes_back_the_list_as_it_read_it_loses_no_append() -> None:
    """The publisher appends b before some step; at some step it reads the list, at a later one it writes that back with
    c. Whatever it read, both end up on the list, at the latest with the next publishing."""
    for reads, writes in pairs_of_steps():
        for appends in range(1, reads + 1):
            store, publisher = prepared()
            timeline = Timeline(store)

            def at(number: int, event: Callable[[], None], timeline: Timeline = timeline) -> None:
                before = timeline.events.get(number)
                timeline.events[number] = (lambda: (before(), event())) if before else event  # type: ignore[func-returns-value]

            at(appends, lambda publisher=publisher: publisher.append("b"))
            at(reads, publisher.read)
            at(writes, lambda publisher=publisher: publisher.write("c"))
            ours = opened(timeline.bucket)
            ours.public.publish(lock_raised)
            for event in (timeline.events[number] for number in sorted(timeline.events)):
                event()
            timeline.events.clear()
            ours.read()
            assert set(ours.public.ids) >= {"a", "b", "c"}, (appends, reads, writes)
            ours.public.publish(lambda doc: doc.updated(processing_lock=False))
            found = got(publisher.bucket, PUBLIC)
            assert set(found["generation_id"]) == {"a", "b", "c"}, (appends, reads, writes)
            assert found["processing_lock"] is False
            assert ours.public.whole


@pytest.mark.parametrize("appends", [None, *range(1, steps_of_publishing() + 1)])
def test_a_crash_anywhere_in_a_disturbed_publishing_loses_no_append(appends: int | None) -> None:
    def run(fault: Fault | None) -> tuple[Publisher, FailingBucket]:
        store, publisher = prepared()
        timeline = Timeline(store)
        if appends:
            timeline.events[appends] = lambda: publisher.append("b")
        dying = FailingBucket(timeline.bucket, *([fault] if fault else []))
        try:
            opened(dying).public.publish(lock_raised)
        except Crash:
            dying.end_leases()
        return publisher, dying

    _, counted = run(None)
    for number in range(1, len(counted.operations) + 1):
        for after in (False, True):
            publisher, _ = run(Fault(Crash, number=number, after=after))
            publisher.bucket.store.end_leases()
            next_one = opened(publisher.bucket)
            next_one.public.publish(lambda doc: doc.updated(processing_lock=False))
            found = got(publisher.bucket, PUBLIC)
            assert set(found["generation_id"]) == {"a", *publisher.appended}
            assert found["processing_lock"] is False
            assert [key for key in everything(publisher.bucket) if "displaced" in key] == []


def test_what_was_displaced_is_remembered_before_it_is_thrown_away() -> None:
    """A slow publisher may have read the list while it lacked b, so b must be remembered until it is archived."""
    store, publisher = prepared()
    timeline = Timeline(store)
    exchange = []
    timeline.bucket = MemoryBucket(
        store,
        meanwhile=lambda step, key: exchange or (step == "exchange" and (exchange.append(1), publisher.append("b"))),
    )
    dying = FailingBucket(timeline.bucket, Fault(Crash, operation="delete", after=True))
    with pytest.raises(Crash):
        opened(dying).public.publish(lock_raised)
    dying.end_leases()
    assert got(publisher.bucket, GEN)["remembered"] == ["a", "b"]


def test_the_ids_that_a_disturbed_write_saw_come_back_until_they_are_archived() -> None:
    bucket = MemoryBucket()
    put(bucket, GEN, {"remembered": ["a", "b"]})
    put(bucket, PUBLIC, {"generation_id": ["b", "c"]})
    store = opened(bucket)
    assert store.public.ids == ["b", "c", "a"]
    assert not store.public.whole
    store.public.publish(lambda doc: doc)
    assert got(bucket, PUBLIC)["generation_id"] == ["b", "c", "a"]
    assert store.public.whole
    store.public.publish(lambda doc: doc.updated(generation_id=[name for name in doc.published if name != "a"]))
    assert got(bucket, PUBLIC)["generation_id"] == ["b", "c"]
    assert got(bucket, GEN) == {"remembered": ["b"]}
    store.public.publish(lambda doc: doc.updated(generation_id=[]))
    assert got(bucket, GEN) == {}


def test_what_was_displaced_and_makes_no_sense_is_kept_among_the_unreadable() -> None:
    store, publisher = prepared()
    put(publisher.bucket, f"{PUBLIC}.displaced-0", b"{torn")
    ours = opened(MemoryBucket(store))
    assert not ours.public.whole
    with Heard() as log:
        ours.public.publish(lock_raised)
    assert any("displaced-0" in warning for warning in log.warnings)
    assert b"{torn" in everything(publisher.bucket).values()
    assert ours.public.whole


@pytest.mark.slow
def test_a_publisher_that_never_stops_writing_does_not_keep_us_for_ever() -> None:
    store, publisher = prepared()
    busy = MemoryBucket(store, meanwhile=lambda step, key: step == "exchange" and publisher.append("b"))
    with pytest.raises(StorageError, match="never stops"):
        opened(busy).public.publish(lock_raised)


def test_a_publisher_in_a_thread_of_its_own_loses_none_of_its_appends(tmp_path: Path) -> None:
    """On a real directory, with real races: an atomic publisher (temporary file, rename) that knows no locks."""
    number = 150  # below the number of tries of a publishing: each append can disturb one
    folder = tmp_path / "bucket"
    bucket = DirectoryBucket(str(folder))
    put(bucket, PUBLIC, {"generation_id": [], "theirs": 1})
    file = folder / PUBLIC
    done = threading.Event()
    at_work = threading.Event()

    def append_all() -> None:
        at_work.wait()
        for index in range(number):
            found = json.loads(file.read_bytes())
            found["generation_id"].append(f"id-{index}")
            draft = file.with_name("publisher.tmp")
            draft.write_bytes(json.dumps(found).encode())
            draft.replace(file)
        done.set()

    thread = threading.Thread(target=append_all)
    thread.start()
    try:
        lease = bucket.lease("story", "test")
        store = DocumentStore(bucket, PATHS, lease, SystemClock())
        store.read()
        rounds = 0
        while not done.is_set() or rounds < 2:
            at_work.set()
            rounds += 1
            store.public.publish(lambda doc, lock=bool(rounds % 2): doc.updated(processing_lock=lock))
        store.read()
        store.public.publish(lambda doc: doc.updated(processing_lock=False))
        lease.release()
    finally:
        thread.join()
    found = json.loads(file.read_bytes())
    assert set(found["generation_id"]) == {f"id-{index}" for index in range(number)}
    assert (found["processing_lock"], found["theirs"]) == (False, 1)
    assert [entry.key for entry in bucket.list("") if "displaced" in entry.key] == []


def test_a_lease_is_asked_before_each_write(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = MemoryBucket()
    store = opened(bucket)
    lease: Lease = store._lease  # type: ignore[assignment]
    bucket.write("666/a.json", b"{}", ABSENT)
    asked: list[int] = []
    monkeypatch.setattr(lease, "check", lambda: asked.append(1))
    store.save_gen(store.documents.gen.updated(a=1))
    store.save_midjourney(store.documents.midjourney.updated(a=1))
    store.save_file("666/a.json", b"{}")
    store.public.publish(lock_raised)
    assert len(asked) == 4
