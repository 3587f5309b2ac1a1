"""Dead letters: kept complete, listed, shown, requeued, dropped; and deaths in between."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from retake.bucket import ANY, Bucket
from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.bucket.wrappers import CountingBucket
from retake.clock import FakeClock
from retake.errors import LeaseLost, RobotError, StateError, error_record
from retake.retrying.dead_letters import DeadLetter, DeadLetters, NoSuchLetter
from retake.story.generation import dead_letter, requeue
from retake.story.settings import FilePaths
from retake.story.store import DocumentStore

NOW = datetime(2026, 1, 1, 9, 30, tzinfo=UTC)
ITEM = {"event": "scrap", "weight": 12.5}
FILES = {"payload.xml": b"<scrap/>", "log.txt": b"..."}
GENERATION = "20260101-0900"


class Scene:
    """A queue in memory with one letter in it."""

    def __init__(self) -> None:
        self.clock = FakeClock(NOW)
        self.store = MemoryStore(self.clock)
        self.put()

    @property
    def bucket(self) -> MemoryBucket:
        return MemoryBucket(self.store)

    def letters(self, bucket: Bucket | None = None) -> DeadLetters:
        return DeadLetters(bucket or self.bucket, self.clock)

    def put(self, letter_id: str = "event-1", bucket: Bucket | None = None) -> None:
        self.letters(bucket).put(letter_id, "event", ITEM, self.record(), FILES)

    def record(self) -> dict[str, Any]:
        error = RobotError("ERR_TEMPORARY_APPIUS_UNAVAILABLE", "АППИУС does not answer")
        return error_record(error, now=NOW, robot_id="NR.NSI.1", correlation_id="event-1", retry_count=3)

    @property
    def keys(self) -> list[str]:
        return [entry.key.removeprefix("dead_letters/") for entry in self.bucket.list("")]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def ignore(letter: DeadLetter) -> None:
    """Accept the letter and do nothing."""


# --- list and show ----------------------------------------------------------------------------------------------------


def test_a_letter_holds_what_failed_why_and_its_files(scene: Scene) -> None:
    letter = scene.letters().show("event-1")
    assert (letter.id, letter.kind, letter.item, letter.failed_at) == ("event-1", "event", ITEM, NOW)
    assert (letter.error_code, letter.error["details"]["retry_count"]) == ("ERR_TEMPORARY_APPIUS_UNAVAILABLE", 3)
    assert (letter.files, letter.fault, letter.ended) == (("log.txt", "payload.xml"), "", "")
    assert scene.letters().read("event-1", "payload.xml") == b"<scrap/>"


def test_letters_are_listed_the_newest_first_and_no_more_read_than_are_asked_for(scene: Scene) -> None:
    for number in range(2, 31):
        scene.clock.sleep(60)
        scene.put(f"event-{number}")
    counting = CountingBucket(scene.bucket)
    letters = scene.letters(counting)
    assert [letter.id for letter in letters.list(3)] == ["event-30", "event-29", "event-28"]
    assert dict(counting.counts) == {"list": 1, "read": 3}
    assert letters.count() == 30
    assert len(letters.list(None)) == 30


def test_an_empty_queue_has_no_letters() -> None:
    letters = DeadLetters(MemoryBucket(), FakeClock())
    assert (letters.list(), letters.count()) == ([], 0)


def test_a_letter_put_twice_is_one_the_later(scene: Scene) -> None:
    scene.clock.sleep(60)
    scene.letters().put("event-1", "event", {"event": "another"}, scene.record())
    letter = scene.letters().show("event-1")
    assert (scene.letters().count(), letter.item, letter.files) == (1, {"event": "another"}, ("log.txt", "payload.xml"))


def test_a_letter_put_where_the_remains_of_another_lie_has_none_of_their_files(scene: Scene) -> None:
    report = {"ended": "dropped", "item": "old"}
    scene.bucket.write("dead_letters/event-1/report.json", json.dumps(report).encode(), ANY)
    scene.letters().put("event-1", "event", "new", scene.record(), {"new.txt": b"new"})
    letter = scene.letters().show("event-1")
    assert (letter.item, letter.ended, letter.files) == ("new", "", ("new.txt",))


@pytest.mark.parametrize("letter_id", ["", ".", "..", "../config", "a/b", "a\\b", "a\n", ".retake", "x" * 251])
def test_an_id_leads_nowhere_else(scene: Scene, letter_id: str) -> None:
    scene.bucket.write("config/report.json", b"{}", ANY)
    before = scene.keys
    letters = scene.letters()
    for work in (
        lambda: letters.show(letter_id),
        lambda: letters.requeue(letter_id, ignore),
        lambda: letters.drop(letter_id),
        lambda: letters.read(letter_id, "report.json"),
    ):
        with pytest.raises(NoSuchLetter):
            work()
    with pytest.raises(ValueError):
        letters.put(letter_id, "event", ITEM, {})
    assert scene.keys == before


@pytest.mark.parametrize("name", ["report.json", "../x", "", ".retake-x"])
def test_the_name_of_a_file_leads_nowhere_else(scene: Scene, name: str) -> None:
    before = scene.keys
    with pytest.raises(ValueError):
        scene.letters().put("event-2", "event", ITEM, {}, {"good": b"", name: b""})
    assert scene.keys == before


def test_a_missing_letter_is_reported(scene: Scene) -> None:
    with pytest.raises(NoSuchLetter, match=r"there is no dead letter dead_letters/event\. Nothing was changed"):
        scene.letters().show("event")
    with pytest.raises(NoSuchLetter, match="no file x"):
        scene.letters().read("event-1", "x")


@pytest.mark.parametrize(
    ("report", "fault"),
    [
        (None, "it has no report.json"),
        (b"{", "report.json is not JSON"),
        (b"\xff", "report.json is not JSON"),
        (b"[1]", "report.json is not an object"),
    ],
)
def test_a_letter_with_an_invalid_report_is_shown_not_requeued_and_can_be_dropped(
    scene: Scene, report: bytes | None, fault: str
) -> None:
    scene.bucket.write("dead_letters/odd/file", b"x", ANY)
    if report is not None:
        scene.bucket.write("dead_letters/odd/report.json", report, ANY)
    odd = next(letter for letter in scene.letters().list() if letter.id == "odd")
    assert odd.fault.startswith(fault)
    assert (odd.files, odd.failed_at, odd.error_code, odd.kind, odd.item) == (("file",), None, None, "", None)
    with pytest.raises(StateError, match=f"odd cannot be taken up again: {fault}"):
        scene.letters().requeue("odd", ignore)
    scene.letters().drop("odd")
    assert [letter.id for letter in scene.letters().list()] == ["event-1"]


@pytest.mark.parametrize(
    "report",
    [
        {},
        {"last_error": "x", "failed_at_utc": 5},
        {"last_error": None, "failed_at_utc": "soon"},
        {"last_error": {"error_code": None, "timestamp": []}},
    ],
)
def test_a_report_of_another_program_is_read_for_what_it_says(scene: Scene, report: dict[str, Any]) -> None:
    scene.bucket.write("dead_letters/odd/report.json", json.dumps(report).encode(), ANY)
    letter = scene.letters().show("odd")
    assert (letter.failed_at, letter.error_code, letter.fault) == (None, None, "")


def test_the_error_tells_when_it_failed_where_the_report_does_not(scene: Scene) -> None:
    report = {"last_error": {"error_code": "ERR_TEMPORARY_NETWORK", "timestamp": "2026-01-01T09:30:00Z"}}
    scene.bucket.write("dead_letters/odd/report.json", json.dumps(report).encode(), ANY)
    assert scene.letters().show("odd").failed_at == NOW


# --- requeue and drop -------------------------------------------------------------------------------------------------


def test_a_letter_goes_once_it_was_requeued(scene: Scene) -> None:
    taken: list[Any] = []

    def take(letter: DeadLetter) -> None:
        assert len(scene.keys) == 3, "it is still there"
        taken.append(letter.item)

    scene.letters().requeue("event-1", take)
    assert (taken, scene.keys) == ([ITEM], [])


def test_a_letter_that_could_not_be_requeued_stays(scene: Scene) -> None:
    before = scene.keys

    def refuse(letter: DeadLetter) -> None:
        raise StateError("another generation is under way")

    with pytest.raises(StateError, match="under way"):
        scene.letters().requeue("event-1", refuse)
    assert scene.keys == before
    assert scene.letters().show("event-1").ended == ""


def test_a_dropped_letter_is_gone_and_others_stay(scene: Scene) -> None:
    scene.put("event-11")
    scene.letters().drop("event-1")
    assert [letter.id for letter in scene.letters().list()] == ["event-11"]
    with pytest.raises(NoSuchLetter):
        scene.letters().drop("event-1")


def test_nothing_is_changed_once_the_lease_is_lost(scene: Scene) -> None:
    scene.bucket.write("dead_letters/odd/file", b"x", ANY)
    lease = scene.bucket.lease("queue", "me")
    letters = DeadLetters(scene.bucket, scene.clock, lease=lease)
    lease.release()
    before = {key: scene.bucket.read(f"dead_letters/{key}") for key in scene.keys}
    works: list[Callable[[], object]] = [
        lambda: letters.drop("event-1"),
        lambda: letters.drop("odd"),
        lambda: letters.requeue("event-1", ignore),
        lambda: letters.put("event-2", "event", ITEM, {}),
        lambda: letters.add_files("event-2", {"copy": "dead_letters/odd/file"}, {}),
    ]
    for work in works:
        with pytest.raises(LeaseLost):
            work()
    assert {key: scene.bucket.read(f"dead_letters/{key}") for key in scene.keys} == before


# --- deaths -----------------------------------------------------------------------------------------------------------


def each_death(work: Callable[[Scene, Bucket], object]) -> Any:
    """Yield the scene after `work` died before or after each of its accesses to the bucket."""
    scene = Scene()
    counted = FailingBucket(scene.bucket)
    work(scene, counted)
    for number, operation in enumerate(counted.operations, 1):
        for after in (False, True):
            scene = Scene()
            with pytest.raises(Crash):
                work(scene, FailingBucket(scene.bucket, Fault(Crash, number=number, after=after)))
            yield scene, f"{'after' if after else 'before'} {operation}"


def test_a_letter_is_put_again_after_a_death() -> None:
    for scene, where in each_death(lambda scene, bucket: scene.put("event-2", bucket)):
        half = [letter for letter in scene.letters().list() if letter.id == "event-2"]
        assert all(letter.fault or letter.files == ("log.txt", "payload.xml") for letter in half), where
        scene.put("event-2")
        letter = scene.letters().show("event-2")
        assert (letter.item, letter.files, letter.fault) == (ITEM, ("log.txt", "payload.xml"), ""), where


def test_a_death_while_dropping_leaves_a_letter_whole_or_remains_that_can_be_dropped() -> None:
    seen = set[str]()
    for scene, where in each_death(lambda scene, bucket: scene.letters(bucket).drop("event-1")):
        seen.add(whole_or_gone(scene, where, "dropped"))
        if scene.letters().list():
            scene.letters().drop("event-1")
        assert scene.keys == [], where
    assert seen == {"whole", "remains", "gone"}


def test_a_death_while_requeueing_resumes_a_letter_at_least_once_and_never_from_its_remains() -> None:
    queue: list[Any] = []

    def requeue(scene: Scene, bucket: Bucket) -> None:
        queue.clear()
        scene.letters(bucket).requeue("event-1", lambda letter: queue.append(letter.item))

    seen = set[str]()
    for scene, where in each_death(requeue):
        how = whole_or_gone(scene, where, "requeued")
        seen.add(how)
        assert queue == [ITEM] or how == "whole", where
        if how == "remains":
            with pytest.raises(StateError, match="event-1 was requeued before, these are the remains: drop them"):
                scene.letters().requeue("event-1", ignore)
    assert seen == {"whole", "remains", "gone"}


def whole_or_gone(scene: Scene, where: str, how: str) -> str:
    letters = scene.letters().list()
    if not letters:
        assert scene.keys == [], where
        return "gone"
    letter = letters[0]
    assert not letter.fault, where
    if letter.ended:
        assert letter.ended == how, where
        return "remains"
    assert (letter.item, letter.files) == (ITEM, ("log.txt", "payload.xml")), where
    return "whole"


# --- the story's ------------------------------------------------------------------------------------------------------


def failed_generation() -> MemoryBucket:
    """Return a bucket with one failed generation among its dead letters."""
    bucket = MemoryBucket()
    doc = {"status": "task_failed_max_retries", "failed_step": "upscale", "last_error": {"error_code": "ERR_X"}}
    for key, value in {
        "config/config_gen.json": {"generation_id": GENERATION},
        "config/config_midjourney.json": doc,
        f"666/{GENERATION}.json": {},
    }.items():
        bucket.write(key, json.dumps(value).encode(), ANY)
    with_store(bucket, lambda store: dead_letter(store, NOW))
    return bucket


def with_store(bucket: Bucket, work: Callable[[DocumentStore], object]) -> None:
    lease = bucket.lease("story", "test")
    store = DocumentStore(bucket, FilePaths(), lease, FakeClock(NOW))
    store.read()
    work(store)
    lease.release()


def test_a_failed_generation_is_listed_shown_and_dropped_like_any_letter() -> None:
    bucket = failed_generation()
    letters = DeadLetters(bucket, FakeClock())
    assert [letter.id for letter in letters.list()] == [GENERATION]
    letter = letters.show(GENERATION)
    assert (letter.kind, letter.failed_at, letter.error_code) == ("generation", NOW, "ERR_X")
    assert (letter.files, letter.report["failed_step"]) == ((f"{GENERATION}.json", "config_midjourney.json"), "upscale")
    letters.drop(GENERATION)
    assert bucket.list("dead_letters/") == []


def test_a_failed_generation_is_resumed_by_the_story_itself() -> None:
    bucket = failed_generation()

    def again(letter: DeadLetter) -> None:
        with_store(bucket, lambda store: requeue(store, letter.id))

    DeadLetters(bucket, FakeClock()).requeue(GENERATION, again)
    assert bucket.list("dead_letters/") == []
    assert json.loads(bucket.read("config/config_gen.json")[0])["generation_id"] == GENERATION
    assert bucket.read(f"666/{GENERATION}.json")[0] == b"{}"


def test_what_a_generation_found_and_kept_can_be_seen_and_dropped_though_it_has_no_report() -> None:
    bucket = MemoryBucket()
    bucket.write("dead_letters/before-20260101-0900/config_midjourney.json", b"{}", ANY)
    letters = DeadLetters(bucket, FakeClock())
    assert [(letter.id, letter.fault) for letter in letters.list()] == [
        ("before-20260101-0900", "it has no report.json")
    ]
    letters.drop("before-20260101-0900")
    assert letters.count() == 0


def test_a_letter_with_files_of_the_bucket_is_complete_with_its_report(scene: Scene) -> None:
    bucket, letters = scene.bucket, scene.letters()
    bucket.write("666/a.png", b"picture", ANY)
    assert sorted(letters.add_files("a", {"a.png": "666/a.png"}, {"state.json": b"{}"})) == ["a.png", "state.json"]
    assert letters.show("a").fault == "it has no report.json"
    letters.write_report("a", {"generation_id": "a", "files": ["a.png"]})
    assert bucket.read("dead_letters/a/report.json")[0] == (
        b'{\n  "generation_id": "a",\n  "files": [\n    "a.png"\n  ]\n}\n'
    )
    assert letters.show("a").kind == "generation"
    assert letters.read("a", "a.png") == b"picture" == bucket.read("666/a.png")[0]
    with pytest.raises(ValueError, match="is the report itself"):
        letters.add_files("a", {"report.json": "666/a.png"}, {})
