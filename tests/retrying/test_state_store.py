"""Registers: small states shared by threads and processes, in memory, in a bucket in memory, and in a directory."""

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from together import said_at_once

from retake.bucket import ANY, Conflict
from retake.bucket.directory import DirectoryBucket
from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.clock import FakeClock, SystemClock
from retake.errors import StateError, StorageError
from retake.retrying.state_store import BucketStateStore, MemoryStateStore, Raw, StateCell, StateStore, state_name

Open = Callable[[], StateStore]


@pytest.fixture(params=["memory", "bucket in memory", "directory"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Return a function that opens one states object, each time as another client."""
    if request.param == "memory":
        one = MemoryStateStore()
        return lambda: one
    if request.param == "directory":
        return lambda: BucketStateStore(DirectoryBucket(str(tmp_path / "bucket")), "states/", SystemClock())
    store = MemoryStore()
    return lambda: BucketStateStore(MemoryBucket(store), "states/", SystemClock())


def add_one(raw: Raw | None) -> tuple[Raw, int]:
    count = (raw or {}).get("count", 0) + 1
    return {"count": count}, count


def leave(raw: Raw | None) -> tuple[None, Raw | None]:
    return None, raw


def insistently(states: StateStore, change: Callable[[Raw | None], tuple[Raw, int]]) -> int:
    """Change the state, retrying after each Conflict, which means that nothing was changed."""
    while True:
        with suppress(Conflict):
            return states.change("a", change)


# --- the contract -----------------------------------------------------------------------------------------------------


def test_what_one_client_puts_there_another_reads(opened: Open) -> None:
    assert opened().read("a") is None
    assert opened().change("a", add_one) == 1
    assert opened().change("a", add_one) == 2
    assert opened().read("a") == {"count": 2}
    assert opened().names() == ["a"]


def test_names_are_sorted_and_of_any_letters(opened: Open) -> None:
    states = opened()
    for name in ("runway", "АППИУС", "midjourney"):
        states.change(name, add_one)
    assert states.names() == ["midjourney", "runway", "АППИУС"]


def test_what_a_change_leaves_alone_is_not_made(opened: Open) -> None:
    assert opened().change("a", leave) is None
    assert opened().names() == []


def test_none_of_many_threads_loses_its_change_of_a_state(opened: Open) -> None:
    states, results = opened(), list[int]()
    threads = [
        threading.Thread(target=lambda: results.extend(insistently(opened(), add_one) for _ in range(25)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(1, 101))
    assert states.read("a") == {"count": 100}


def test_in_memory_nobody_comes_between_reading_and_writing() -> None:
    states = MemoryStateStore()
    rival = threading.Thread(target=lambda: states.change("a", add_one))

    def disturbed(raw: Raw | None) -> tuple[Raw, int]:
        rival.start()
        rival.join(0.05)
        return add_one(raw)

    assert states.change("a", disturbed) == 1
    rival.join()
    assert states.read("a") == {"count": 2}


# --- in a bucket ------------------------------------------------------------------------------------------------------


def test_a_state_is_a_document_that_a_person_can_read() -> None:
    bucket = MemoryBucket()
    BucketStateStore(bucket, "states/", FakeClock()).change("АППИУС", lambda raw: ({"code": "нет ответа"}, None))
    assert bucket.read("states/АППИУС.json")[0].decode() == '{\n  "code": "нет ответа"\n}\n'


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'"x"', b"[" * 5000, b"\xff"])
def test_a_document_that_is_not_an_object_is_reported_and_never_overwritten(data: bytes) -> None:
    bucket = MemoryBucket()
    bucket.write("states/a.json", data, ANY)
    states = BucketStateStore(bucket, "states/", FakeClock())
    for work in (lambda: states.read("a"), lambda: states.change("a", add_one)):
        with pytest.raises(StateError, match=r"^states/a.json: .*left as it is; fix it or remove it$"):
            work()
    assert bucket.read("states/a.json")[0] == data


def test_an_invalid_field_is_reported_and_nothing_overwritten() -> None:
    bucket = MemoryBucket()
    bucket.write("states/a.json", b'{"count": "many"}', ANY)
    cell = StateCell(BucketStateStore(bucket, "states/", FakeClock()), "a", counted, lambda count: {"count": count})
    for work in (cell.get, lambda: cell.change(lambda count: (count + 1, None))):
        with pytest.raises(StateError, match=r"states/a\.json: count: 'many' is not a number\. It is left as it is"):
            work()
    assert bucket.read("states/a.json")[0] == b'{"count": "many"}'


def counted(raw: Raw | None) -> int:
    count = (raw or {}).get("count", 0)
    if type(count) is not int:
        raise ValueError(f"count: {count!r} is not a number")
    return count


@pytest.mark.parametrize("name", ["", "../x", "a/b", "..", ".retake", "a\\b", "a\nb", "x" * 300])
def test_a_name_leads_nowhere_else(name: str) -> None:
    bucket = MemoryBucket()
    states = BucketStateStore(bucket, "states/", FakeClock())
    for work in (lambda: states.read(name), lambda: states.change(name, add_one)):
        with pytest.raises(ValueError):
            work()
    assert bucket.list("") == []


@pytest.mark.parametrize("text", ["length", "АППИУС", "document 7", "a.b", "A", "x" * 200])
def test_the_name_of_a_state_shows_what_it_is_about(text: str) -> None:
    assert state_name("lock", text) == f"lock.{text}"


def test_what_is_not_text_has_no_name() -> None:
    number: Any = 7
    with pytest.raises(ValueError, match="lock: 7 is not text"):
        state_name("lock", number)


def test_any_text_leads_to_a_name_of_its_own(opened: Open) -> None:
    states, texts = opened(), ["a/b", "a", "b", "~", "~a", "..", "", "a\\b", "\0", "\ud800", "x" * 300, "x" * 301]
    texts.append(state_name("lock", "a/b").removeprefix("lock."))
    names = [state_name("lock", text) for text in texts]
    for name in names:
        states.change(name, add_one)
    assert set(states.names()) == set(names)
    assert len(set(names)) == len(texts)


def test_a_cell_that_does_not_change_is_not_written() -> None:
    bucket = FailingBucket(MemoryBucket())
    cell = StateCell(BucketStateStore(bucket, "states/", FakeClock()), "a", counted, lambda count: {"count": count})
    assert cell.change(lambda count: (count, "as it was")) == "as it was"
    assert bucket.operations == [("read", "states/a.json")]


def test_others_who_are_always_faster_are_given_way_to_after_two_seconds_and_a_half() -> None:
    store, clock = MemoryStore(), FakeClock()
    rival = BucketStateStore(MemoryBucket(store), "states/", clock)

    def meanwhile(step: str, key: str) -> None:
        if step == "write":
            rival.change("a", add_one)

    began = clock.now()
    with pytest.raises(Conflict):
        BucketStateStore(MemoryBucket(store, meanwhile=meanwhile), "states/", clock).change("a", add_one)
    assert 2 < (clock.now() - began).total_seconds() < 3
    assert rival.read("a") == {"count": 12}


def test_a_store_that_is_away_is_reported() -> None:
    bucket = FailingBucket(MemoryBucket(), Fault(times=99))
    with pytest.raises(StorageError, match="failed on demand"):
        BucketStateStore(bucket, "states/", FakeClock()).change("a", add_one)


def test_a_death_at_any_point_leaves_the_state_whole() -> None:
    counted_bucket = FailingBucket(MemoryBucket())
    BucketStateStore(counted_bucket, "states/", FakeClock()).change("a", add_one)
    for number in range(1, len(counted_bucket.operations) + 1):
        for after in (False, True):
            store = MemoryStore()
            dying = FailingBucket(MemoryBucket(store), Fault(Crash, number=number, after=after))
            with pytest.raises(Crash):
                BucketStateStore(dying, "states/", FakeClock()).change("a", add_one)
            again = BucketStateStore(MemoryBucket(store), "states/", FakeClock())
            assert again.read("a") in (None, {"count": 1})
            assert again.change("a", add_one) in (1, 2)


# --- processes --------------------------------------------------------------------------------------------------------

CHILD = """
import sys
from retake.bucket import Conflict
from retake.bucket.directory import DirectoryBucket
from retake.clock import SystemClock
from retake.retrying.state_store import BucketStateStore
states = BucketStateStore(DirectoryBucket(sys.argv[1]), "states/", SystemClock())
print("ready", flush=True)
sys.stdin.readline()
done = 0
while done < int(sys.argv[2]):
    try:
        states.change("a", lambda raw: ({"count": (raw or {}).get("count", 0) + 1}, None))
        done += 1
    except Conflict:
        pass
"""


def test_none_of_several_processes_loses_its_change_of_a_state(tmp_path: Path) -> None:
    said_at_once(CHILD, str(tmp_path / "bucket"), "25", number=3)
    assert json.loads((tmp_path / "bucket/states/a.json").read_bytes()) == {"count": 75}


def test_a_state_of_one_name_is_not_anothers(opened: Open) -> None:
    states = opened()
    states.change("a", add_one)
    states.change("b", add_one)
    states.change("b", add_one)
    kept: Mapping[str, Any] = {name: states.read(name) for name in states.names()}
    assert kept == {"a": {"count": 1}, "b": {"count": 2}}


def test_a_lone_surrogate_is_kept(opened: Open) -> None:
    opened().change("a", lambda _: ({"text": "\ud800 é"}, None))
    assert opened().read("a") == {"text": "\ud800 é"}
