"""Buckets that count, fail or die on demand, and the one in memory."""

from contextlib import suppress
from types import SimpleNamespace
from typing import cast

import pytest

from retake.bucket import ABSENT, ANY, Bucket, Conflict, NotFound
from retake.bucket.contract import shared_writes
from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.bucket.ranged_reads import read_range
from retake.bucket.wrappers import CountingBucket, LeasedBucket
from retake.errors import LeaseLost, StorageError


def everything(bucket: Bucket) -> None:
    """Call every operation once; "read" twice."""
    lease = bucket.lease("story", "me")
    version = bucket.write("a", b"1", ABSENT)
    bucket.replace("a", b"2", version, "aside")
    bucket.copy("a", "b")
    bucket.read("a")
    with suppress(NotFound):
        bucket.read("nothing")
    bucket.list("")
    bucket.find("", ["a"])
    bucket.delete("a")
    bucket.join("story", lease.handover().text).release()
    lease.release()


def test_operations_are_counted_by_kind_failed_ones_too() -> None:
    bucket = CountingBucket(MemoryBucket())
    everything(bucket)
    once = dict.fromkeys(("lease", "write", "replace", "copy", "list", "find", "delete", "join"), 1)
    assert bucket.counts == once | {"read": 2}
    assert bucket.url == "memory:"


def test_under_a_lost_lease_everything_may_be_looked_at_and_nothing_is_changed() -> None:
    inner = MemoryBucket()
    lease = inner.lease("story", "me")
    bucket = LeasedBucket(inner, lease)
    version = bucket.write("a", b"1", ABSENT)
    inner.break_lease("story", "operator")
    assert bucket.read("a") == (b"1", version)
    assert [it.key for it in bucket.list("")] == ["a"]
    assert bucket.holder("story") == inner.holder("story")
    for change in (lambda: bucket.write("a", b"2", ANY), lambda: bucket.delete("a"), lambda: bucket.copy("a", "b")):
        with pytest.raises(LeaseLost):
            change()


@pytest.mark.parametrize("after", [False, True])
def test_the_kth_operation_fails_and_the_others_do_not(after: bool) -> None:
    bucket = FailingBucket(MemoryBucket(), Fault(number=2, operation="write", after=after))
    bucket.write("a", b"1", ABSENT)
    with pytest.raises(StorageError, match="failed on demand"):
        bucket.write("a", b"2", ANY)
    assert bucket.read("a")[0] == (b"2" if after else b"1")
    bucket.write("a", b"3", ANY)


def test_a_fault_may_be_of_one_key_several_times_and_of_any_error() -> None:
    bucket = FailingBucket(MemoryBucket(), Fault(lambda: Conflict("ordered"), key="a", times=2))
    for _ in range(2):
        bucket.write("b", b"1", ANY)
        with pytest.raises(Conflict, match="ordered"):
            bucket.write("a", b"1", ANY)
    bucket.write("a", b"1", ANY)
    assert bucket.operations == [("write", "b"), ("write", "a")] * 2 + [("write", "a")]


def test_the_dead_do_nothing_more_and_lose_their_leases() -> None:
    store = MemoryStore()
    bucket = FailingBucket(MemoryBucket(store), Fault(Crash, operation="write"))
    lease = bucket.lease("story", "dead")
    with pytest.raises(Crash):
        bucket.write("a", b"1", ANY)
    with pytest.raises(Crash):
        bucket.delete("b")
    bucket.end_leases()
    with pytest.raises(LeaseLost):
        lease.check()
    MemoryBucket(store).lease("story", "next").release()


def test_every_point_of_a_program_can_be_tried() -> None:
    counted = FailingBucket(MemoryBucket())
    everything(counted)
    assert len(counted.operations) == 10
    for number in range(1, 11):
        for after in (False, True):
            store = MemoryStore()
            dying = FailingBucket(MemoryBucket(store), Fault(Crash, number=number, after=after))
            with pytest.raises(Crash):
                everything(dying)
            assert dying.operations == counted.operations[:number]
            dying.end_leases()
            MemoryBucket(store).lease("story", "next").release()


def test_a_store_in_memory_can_lose_all_its_clients() -> None:
    bucket = MemoryBucket()
    lease = bucket.lease("story", "me")
    bucket.store.end_leases()
    with pytest.raises(LeaseLost):
        lease.check()
    lease.release()
    assert bucket.lease("story", "next").token > lease.token


def test_another_program_can_write_between_any_two_steps() -> None:
    store = MemoryStore()
    foreign = MemoryBucket(store)
    coming = {"exchange": b"one", "put back": b"two"}

    def meanwhile(step: str, key: str) -> None:
        if step in coming:
            foreign.write(key, coming[step], ANY)

    bucket = MemoryBucket(store, meanwhile=meanwhile)
    version = bucket.write("doc", b"old", ABSENT)
    with pytest.raises(Conflict):
        bucket.replace("doc", b"new", version, "aside")
    found = {entry.key: foreign.read(entry.key)[0] for entry in foreign.list("")}
    assert (found.pop("doc"), found.pop("aside")) == (b"one", b"one")
    assert list(found.values()) == [b"two"]


def test_a_bucket_that_cannot_replace_shared_objects_is_refused() -> None:
    bucket = MemoryBucket()
    assert shared_writes(bucket) is bucket
    assert shared_writes(bucket.part("a/"))
    with pytest.raises(TypeError, match="s3://b: SimpleNamespace cannot replace"):
        shared_writes(cast(Bucket, SimpleNamespace(url="s3://b")))


def test_a_part_of_an_object_is_read_through_every_wrapper_and_by_its_own_key() -> None:
    bucket = CountingBucket(MemoryBucket())
    bucket.write("a/x", b"0123456789", ABSENT)
    assert read_range(bucket.part("a/"), "x", 2, 4) == b"234"
    assert bucket.counts["read"] == 1
    with pytest.raises(NotFound) as caught:
        read_range(bucket.part("a/"), "y", 0, 9)
    assert caught.value.args == ("y",)


def test_a_bucket_that_offers_no_parts_is_read_whole() -> None:
    whole = SimpleNamespace(url="s3://b", read=lambda key: (b"0123456789", "1"))
    assert read_range(cast(Bucket, whole), "a", 8, 20) == b"89"
