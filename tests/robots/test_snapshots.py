"""Snapshots: every five minutes, in several places; the newest intact one counts."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retake.bucket import ANY, Bucket
from retake.bucket.b2.bucket import open_b2
from retake.bucket.directory import DirectoryBucket
from retake.bucket.failing import FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.clock import FakeClock
from retake.errors import StorageError
from retake.robots.snapshots import KEEP, Snapshots
from retake.sandbox.b2 import B2Sandbox


@pytest.fixture(params=["memory", "directory", "b2"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    if request.param == "directory":
        return DirectoryBucket(str(tmp_path / "bucket"))
    if request.param == "b2":
        sandbox: B2Sandbox = request.getfixturevalue("b2")
        url = sandbox.storage_url(f"snapshots-{tmp_path.name.replace('_', '-')}")
        return open_b2(url, environ=sandbox.environment())
    return MemoryBucket()


def keys(bucket: Bucket) -> list[str]:
    return [entry.key for entry in bucket.list("kpi/")]


def damaged(bucket: Bucket, how: Any) -> None:
    """Damage the newest snapshot."""
    key = keys(bucket)[-1]
    bucket.write(key, how(bucket.read(key)[0]), ANY)


def test_one_is_taken_every_five_minutes(bucket: Bucket, clock: FakeClock) -> None:
    """A snapshot is taken every 5 minutes (docs/protocol.md, NR.NSI.9)."""
    assert Snapshots(bucket, "kpi/", clock).restore() is None
    taken = []
    for second in range(0, 901, 60):
        snapshots = Snapshots(bucket, "kpi/", clock)  # another process each time
        if snapshots.take({"second": second}):
            taken.append(second)
        assert snapshots.restore() == {"second": taken[-1]}
        clock.sleep(60)
    assert taken == [0, 300, 600, 900]
    assert keys(bucket) == [f"kpi/20260101T00{minute:02}00.000000Z.json" for minute in (0, 5, 10, 15)]


def test_one_process_asks_the_bucket_only_when_one_is_due(clock: FakeClock) -> None:
    bucket = FailingBucket(MemoryBucket())
    snapshots = Snapshots(bucket, "kpi", clock, every_s=60)
    assert snapshots.take(1)
    before = len(bucket.operations)
    clock.sleep(59.999)
    assert not snapshots.take(2)
    assert len(bucket.operations) == before
    clock.sleep(0.001)
    assert snapshots.take(3)
    assert snapshots.restore() == 3


@pytest.mark.parametrize(
    "how",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b"2", b"3"),
        lambda data: b"[]",
        lambda data: b"\xff" + data,
        lambda data: b"[" * 10_000,
        lambda data: json.dumps({**json.loads(data), "sha256": None}).encode(),
        lambda data: json.dumps({**json.loads(data), "taken_at": "noon"}).encode(),
    ],
)
def test_a_damaged_one_is_passed_over_and_the_next_is_taken_at_once(clock: FakeClock, how: Any) -> None:
    """The last valid snapshot is restored (docs/protocol.md, NR.NSI.9)."""
    bucket = MemoryBucket()
    for number in (1, 2):
        assert Snapshots(bucket, "kpi/", clock).take({"made": number})
        clock.sleep(299.5)
        clock.sleep(0.5 * (2 - number))  # it is not due yet
    damaged(bucket, how)
    snapshots = Snapshots(bucket, "kpi/", clock)
    assert snapshots.restore() == {"made": 1}
    assert snapshots.take({"made": 4})
    assert snapshots.restore() == {"made": 4}


def test_each_replica_has_it_and_any_of_them_is_enough(bucket: Bucket, clock: FakeClock) -> None:
    """Snapshots are copied to another data centre (docs/protocol.md, NR.NSI.9)."""
    first, second, third = (MemoryBucket() for _ in range(3))
    assert Snapshots(first, "kpi/", clock, replicas=[second, third]).take({"made": 1})
    for one in (first, second, third):
        assert Snapshots(one, "kpi/", clock).restore() == {"made": 1}
    damaged(first, lambda data: data[:-9])
    assert Snapshots(first, "kpi/", clock).restore() is None
    assert Snapshots(first, "kpi/", clock, replicas=[second, third]).restore() == {"made": 1}
    assert Snapshots(MemoryBucket(), "kpi/", clock, replicas=[bucket, third]).restore() == {"made": 1}


def test_the_newest_counts_wherever_it_is(clock: FakeClock) -> None:
    first, second = MemoryBucket(), MemoryBucket()
    Snapshots(first, "kpi/", clock, replicas=[second]).take("both")
    clock.sleep(300)
    Snapshots(second, "kpi/", clock).take("second")
    assert Snapshots(first, "kpi/", clock, replicas=[second]).restore() == "second"
    assert not Snapshots(first, "kpi/", clock, replicas=[second]).take("too early")
    clock.sleep(300)
    Snapshots(first, "kpi/", clock).take("first")
    assert Snapshots(first, "kpi/", clock, replicas=[second]).restore() == "first"


@pytest.mark.parametrize("away", [0, 1])
def test_a_bucket_that_is_away_keeps_the_others_from_nothing(clock: FakeClock, away: int, logged: list[str]) -> None:
    stores = [MemoryStore(), MemoryStore()]
    there: list[Bucket] = [MemoryBucket(store) for store in stores]
    broken = [FailingBucket(it, Fault(times=999)) if number == away else it for number, it in enumerate(there)]
    assert Snapshots(broken[0], "kpi/", clock, replicas=broken[1:]).take(1)
    assert Snapshots(broken[0], "kpi/", clock, replicas=broken[1:]).restore() == 1
    assert [len(keys(it)) for it in there] == [int(number != away) for number in range(2)]
    assert any("failed on demand" in line for line in logged)
    clock.sleep(300)
    Snapshots(there[0], "kpi/", clock, replicas=there[1:]).take(2)
    assert [Snapshots(it, "kpi/", clock).restore() for it in there] == [2, 2]


@pytest.mark.parametrize("operation", ["list", "read"])
def test_an_unreachable_bucket_is_not_reported_as_empty(clock: FakeClock, operation: str) -> None:
    bucket = MemoryBucket()
    Snapshots(bucket, "kpi/", clock).take(1)
    away = FailingBucket(bucket, Fault(operation=operation, times=999))
    with pytest.raises(StorageError, match="failed on demand"):
        Snapshots(away, "kpi/", clock, replicas=[MemoryBucket()]).restore()


def test_that_no_bucket_takes_it_is_reported_and_it_is_due_at_once(clock: FakeClock) -> None:
    bucket = MemoryBucket()
    away = FailingBucket(bucket, Fault(operation="write", times=2))
    snapshots = Snapshots(away, "kpi/", clock, replicas=[away])
    with pytest.raises(StorageError, match="failed on demand"):
        snapshots.take(1)
    assert snapshots.take(2)
    assert snapshots.restore() == 2


def test_one_of_two_at_the_same_instant_is_taken(clock: FakeClock) -> None:
    store = MemoryStore()
    other = Snapshots(MemoryBucket(store), "kpi/", clock)

    def meanwhile(step: str, key: str) -> None:
        if step == "write":
            other.take("theirs")

    assert not Snapshots(MemoryBucket(store, meanwhile=meanwhile), "kpi/", clock).take("ours")
    assert other.restore() == "theirs"


def test_only_the_newest_are_kept_and_other_files_are_left_alone(bucket: Bucket, clock: FakeClock) -> None:
    replica = MemoryBucket()
    bucket.write("kpi/notes.txt", b"mine", ANY)
    bucket.write("kpi/old/20250101T000000.000000Z.json", b"{}", ANY)
    snapshots = Snapshots(bucket, "kpi/", clock, replicas=[replica])
    for number in range(KEEP + 3):
        assert snapshots.take(number)
        clock.sleep(300)
    assert len(keys(bucket)) == KEEP + 2
    assert len(keys(replica)) == KEEP
    assert keys(replica)[0] == "kpi/20260101T001500.000000Z.json"
    assert snapshots.restore() == KEEP + 2


def test_what_cannot_be_removed_stays_and_stands_in_nobodys_way(clock: FakeClock) -> None:
    bucket = FailingBucket(MemoryBucket(), Fault(operation="delete", times=999))
    snapshots = Snapshots(bucket, "kpi/", clock)
    for number in range(KEEP + 3):
        assert snapshots.take(number)
        clock.sleep(300)
    assert len(keys(bucket)) == KEEP + 3


def test_a_clock_that_was_set_back_loses_none(bucket: Bucket, clock: FakeClock) -> None:
    clock.sleep(24 * 3600)
    Snapshots(bucket, "kpi/", clock).take("tomorrow")
    clock.moment = FakeClock().now()
    taken = []
    for second in range(0, 601, 100):
        if Snapshots(bucket, "kpi/", clock).take(second):
            taken.append(second)
        assert Snapshots(bucket, "kpi/", clock).restore() == taken[-1]
        clock.sleep(100)
    assert taken == [0, 300, 600]


def test_a_state_that_is_not_json_is_refused(bucket: Bucket, clock: FakeClock) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        Snapshots(bucket, "kpi/", clock).take({"a": object()})
    assert keys(bucket) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(state=JSON, cut=st.integers(0, 10**6), byte=st.integers(0, 255))
def test_whatever_the_state_it_comes_back_and_a_changed_byte_never_changes_it(state: Any, cut: int, byte: int) -> None:
    bucket, clock = MemoryBucket(), FakeClock()
    snapshots = Snapshots(bucket, "kpi/", clock)
    snapshots.take(state)
    assert snapshots.restore() == state
    (key,) = keys(bucket)
    data = bytearray(bucket.read(key)[0])
    data[cut % len(data)] = byte
    bucket.write(key, bytes(data), ANY)
    assert snapshots.restore() in (state, None)
