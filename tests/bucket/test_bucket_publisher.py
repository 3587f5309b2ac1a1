"""A program without our locks reads, changes and replaces a document that Retake writes too: it loses nothing."""

import json
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import ASIDE, PUBLIC, go, mark, started

from retake.bucket import ABSENT, ANY, Bucket, Conflict
from retake.bucket.directory import DirectoryBucket, rename_exchange
from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryStore

EMPTY = json.dumps({"published": [], "marks": []}).encode()


def test_no_append_is_lost_while_we_write_too(tmp_path: Path) -> None:
    root, count = str(tmp_path / "bucket"), 400
    bucket = DirectoryBucket(root)
    bucket.write(PUBLIC, EMPTY, ABSENT)
    with ExitStack() as running:
        actors = [running.enter_context(started(actor, root, count)) for actor in ("publisher", "manager")]
        go(*actors)
        assert [actor.wait(300) for actor in actors] == [0, 0]
    mark(bucket, count)
    document = json.loads(bucket.read(PUBLIC)[0])
    assert document["published"] == list(range(count))
    assert bucket.list(ASIDE) == []


class Publisher:
    """The same program, in steps: it reads in one step, and writes its file in the next."""

    def __init__(self, bucket: Bucket) -> None:
        self.published: list[int] = []
        self._bucket = bucket
        self._read: bytes | None = None

    def step(self) -> None:
        if self._read is None:
            self._read = self._bucket.read(PUBLIC)[0]
            return
        document = json.loads(self._read)
        self._read = None
        document["published"].append(len(self.published))
        self._bucket.write(PUBLIC, json.dumps(document).encode(), ANY)
        self.published.append(len(self.published))


@settings(max_examples=300, deadline=None)
@given(
    pace=st.lists(st.integers(0, 3), max_size=30),
    crashes=st.lists(st.tuples(st.integers(1, 25), st.booleans()), max_size=3),
    deaths_inside=st.sets(st.integers(0, 40), max_size=2),
)
def test_no_append_is_lost_however_the_steps_fall(
    pace: list[int], crashes: list[tuple[int, bool]], deaths_inside: set[int]
) -> None:
    store = MemoryStore()
    MemoryBucket(store).write(PUBLIC, EMPTY, ABSENT)
    publisher = Publisher(MemoryBucket(store))
    steps = iter(range(10**6))
    paces = iter(pace)

    def meanwhile(step: str, key: str) -> None:
        for _ in range(next(paces, 0)):
            publisher.step()
        if next(steps) in deaths_inside:
            raise Crash

    for number, after in crashes:
        with suppress(Crash):
            dying = FailingBucket(MemoryBucket(store, meanwhile=meanwhile), Fault(Crash, number=number, after=after))
            mark(dying, number)
            mark(dying, number + 1)
    for number in range(100, 103 + len(deaths_inside)):
        with suppress(Crash):
            mark(MemoryBucket(store, meanwhile=meanwhile), number)
    mark(MemoryBucket(store), 200)
    document = json.loads(MemoryBucket(store).read(PUBLIC)[0])
    assert sorted(document["published"]) == publisher.published


@pytest.fixture
def bucket(tmp_path: Path) -> DirectoryBucket:
    return DirectoryBucket(str(tmp_path / "bucket"))


def disturb(monkeypatch: pytest.MonkeyPatch, *contents: bytes | None) -> None:
    """Put the next of `contents` there before each exchange, as another program; None removes the file."""
    real, coming = rename_exchange.exchange, list(contents)

    def exchange_late(one: str, other: str) -> None:
        if coming:
            data = coming.pop(0)
            if data is None:
                Path(other).unlink()
            else:
                Path(f"{other}.tmp").write_bytes(data)
                Path(f"{other}.tmp").replace(other)
        real(one, other)

    monkeypatch.setattr(rename_exchange, "exchange", exchange_late)


def contents(bucket: Bucket) -> dict[str, bytes]:
    return {entry.key: bucket.read(entry.key)[0] for entry in bucket.list("")}


def test_what_was_displaced_is_put_back_and_kept(bucket: DirectoryBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    version = bucket.write("doc", b"old", ABSENT)
    disturb(monkeypatch, b"foreign")
    with pytest.raises(Conflict):
        bucket.replace("doc", b"new", version, "aside")
    assert contents(bucket) == {"doc": b"foreign", "aside": b"foreign"}


def test_what_came_between_the_two_exchanges_is_kept_too(
    bucket: DirectoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = bucket.write("doc", b"old", ABSENT)
    disturb(monkeypatch, b"one", b"two")
    with pytest.raises(Conflict):
        bucket.replace("doc", b"new", version, "aside")
    found = contents(bucket)
    assert (found.pop("doc"), found.pop("aside")) == (b"one", b"one")
    ((second, data),) = found.items()
    assert (second.startswith("aside-"), data) == (True, b"two")


def test_what_was_removed_meanwhile_stays_removed(bucket: DirectoryBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    version = bucket.write("doc", b"old", ABSENT)
    disturb(monkeypatch, None)
    with pytest.raises(Conflict):
        bucket.replace("doc", b"new", version, "aside")
    assert contents(bucket) == {}


def test_what_was_removed_after_the_exchange_is_still_kept_aside(
    bucket: DirectoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = bucket.write("doc", b"old", ABSENT)
    disturb(monkeypatch, b"foreign", None)
    with pytest.raises(Conflict):
        bucket.replace("doc", b"new", version, "aside")
    assert contents(bucket) == {"aside": b"foreign"}


def test_names_are_really_exchanged_on_linux(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"1")
    other.write_bytes(b"2")
    try:
        rename_exchange.exchange(str(one), str(other))
    except OSError as error:
        pytest.skip(f"this system cannot: {error}")
    assert (one.read_bytes(), other.read_bytes()) == (b"2", b"1")
    with pytest.raises(FileNotFoundError):
        rename_exchange.exchange(str(one), str(tmp_path / "nothing"))
    assert one.read_bytes() == b"2"


def test_without_an_exchange_what_came_before_the_last_look_is_seen(
    bucket: DirectoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = bucket.write("doc", b"old", ABSENT)

    def unavailable(one: str, other: str) -> None:
        Path(f"{other}.tmp").write_bytes(b"foreign")
        Path(f"{other}.tmp").replace(other)
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(rename_exchange, "exchange", unavailable)
    with pytest.raises(Conflict):
        bucket.replace("doc", b"new", version, "aside")
    assert contents(bucket) == {"doc": b"foreign"}
    monkeypatch.undo()
    bucket.replace("doc", b"new", bucket.read("doc")[1], "aside")
    assert contents(bucket) == {"doc": b"new"}
