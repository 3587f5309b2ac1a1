"""What was read is shared, joined while it is being read, and read anew once something has changed."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from retake.errors import StorageError
from retake.web import shelf as module
from retake.web.shelf import BucketSilent, Shelf


@pytest.fixture
def seconds() -> list[float]:
    return [0.0]


@pytest.fixture
def shelf(seconds: list[float]) -> Iterator[Shelf]:
    made = Shelf(10.0, lambda: seconds[0])
    yield made
    made.close()


def test_twenty_viewers_read_once(shelf: Shelf) -> None:
    reads: list[int] = []
    release = threading.Event()

    def read() -> int:
        reads.append(1)
        assert release.wait(30)
        return 7

    with ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(shelf.get, "a", read) for _ in range(20)]
        release.set()
        assert {it.result(30) for it in asked} == {7}
    assert reads == [1]


def test_it_is_read_anew_after_a_change_or_with_time(shelf: Shelf, seconds: list[float]) -> None:
    reads: list[int] = []

    def get() -> int:
        return int(shelf.get("a", lambda: reads.append(1) or len(reads)))

    assert [get(), get()] == [1, 1]
    shelf.forget()
    assert [get(), get()] == [2, 2]
    seconds[0] = 9.9
    assert get() == 2
    seconds[0] = 10.1
    assert get() == 3
    assert shelf.get("b", lambda: "another") == "another"


def test_an_error_is_raised_and_not_kept(shelf: Shelf) -> None:
    answers: list[object] = [StorageError("away"), "there"]

    def read() -> object:
        found = answers.pop(0)
        if isinstance(found, StorageError):
            raise found
        return found

    with pytest.raises(StorageError, match="away"):
        shelf.get("a", read)
    assert shelf.get("a", read) == "there"


def test_a_read_that_hangs_is_reported_and_its_result_is_found_later(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_S", 0.05)
    release = threading.Event()
    with pytest.raises(BucketSilent):
        shelf.get("a", lambda: release.wait(30) and "late")
    release.set()
    monkeypatch.setattr(module, "READ_S", 30.0)
    assert shelf.get("a", lambda: pytest.fail("it was already read")) == "late"


def test_what_was_read_is_bounded(shelf: Shelf) -> None:
    for number in range(module.MAX_KEPT + 50):
        shelf.get(number, lambda: "x" * 10)
    assert len(shelf._kept) == module.MAX_KEPT


def test_a_slow_read_shows_what_was_read_before_while_it_is_made_again() -> None:
    seconds, found, gate = [0.0], iter(("first", "second", "third")), threading.Event()
    shelf = Shelf(2.0, lambda: seconds[0])

    def read() -> str:
        value = next(found)
        seconds[0] += 1.0
        if value == "second":
            assert gate.wait(30)
        return value

    assert shelf.get("key", read) == "first"
    seconds[0] = 5.0
    assert [shelf.get("key", read) for _ in range(3)] == ["first"] * 3, "the second is being read"
    gate.set()
    while shelf.get("key", read) == "first":
        pass
    assert shelf.get("key", read) == "second"
    shelf.forget()
    assert shelf.get("key", read) == "third", "something has changed, so nothing old is shown"
    shelf.close()


def test_what_is_renewed_is_shown_to_all_and_survives_the_change_that_it_was_read_for(shelf: Shelf) -> None:
    assert shelf.get("a", lambda: "first") == "first"
    assert shelf.renew("a", lambda: "second") == "second"
    shelf.forget(keep=["a"])
    assert shelf.get("a", lambda: pytest.fail("it has just been read")) == "second"
    assert shelf.get_inline("a", lambda: pytest.fail("it has just been read")) == "second"
    shelf.forget()
    shelf.forget(keep=["a"])
    assert shelf.get_inline("a", lambda: "third") == "third", "it was read before another change"


def test_what_cannot_be_renewed_is_read_again(shelf: Shelf) -> None:
    def away() -> str:
        raise StorageError("away")

    with pytest.raises(StorageError, match="away"):
        shelf.renew("a", away)
    assert shelf.get("a", lambda: "there") == "there"


def test_what_nobody_asked_for_lately_is_not_wanted(shelf: Shelf, seconds: list[float]) -> None:
    shelf.renew("a", lambda: 1)
    assert not shelf.is_wanted("a", 60.0)
    shelf.get("a", lambda: 1)
    seconds[0] = 59.0
    assert shelf.is_wanted("a", 60.0)
    seconds[0] = 61.0
    assert not shelf.is_wanted("a", 60.0)


def test_what_takes_long_is_made_again_less_often(seconds: list[float]) -> None:
    shelf, reads = Shelf(2.0, lambda: seconds[0]), 0

    def read() -> int:
        nonlocal reads
        reads, seconds[0] = reads + 1, seconds[0] + 1.0
        return reads

    assert shelf.get("a", read) == 1
    seconds[0] = 4.9
    assert shelf.get("a", read) == 1, "it took a second"
    shelf.close()


def test_a_shelf_beside_has_a_reader_of_its_own_and_ends_with_the_first(shelf: Shelf) -> None:
    beside, release = shelf.child(), threading.Event()
    with pytest.raises(BucketSilent):
        beside.get("a", lambda: release.wait(30), wait_s=0.01)
    assert shelf.get("a", lambda: "read meanwhile") == "read meanwhile"
    shelf.close()
    assert beside.closed
    release.set()
