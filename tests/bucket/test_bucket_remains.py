"""What crashes leave beside the objects of a bucket, on each backend: it is found, and removed once nobody uses it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from late_b2 import LateB2
from s3_server import new_bucket

from retake.bucket import ABSENT, ANY, Bucket, Conflict, LeaseTerms
from retake.bucket.b2.bucket import B2Bucket
from retake.bucket.claims.lease import ClaimLease, LeaseClock
from retake.bucket.claims.protocol import take
from retake.bucket.directory import DirectoryBucket
from retake.bucket.memory import MemoryBucket
from retake.bucket.s3 import S3Bucket, leases
from retake.bucket.s3.leases import S3ClaimStore
from retake.bucket.scanning import CLAIM, DRAFT, SCRATCH, STRANGER, Remnant, clear, remains
from retake.bucket.wrappers import CountingBucket
from retake.errors import LeaseHeld, LeaseLost

DAY_S = 24 * 3600.0


def kinds(found: Iterator[Remnant]) -> list[tuple[str, bool]]:
    return [(it.kind, it.removable) for it in found]


# --- a directory ---


def drafts(root: Path, name: str, age_s: float) -> Path:
    draft = root / ".retake" / "tmp" / name
    draft.parent.mkdir(parents=True, exist_ok=True)
    draft.write_bytes(b"half")
    os.utime(draft, (draft.stat().st_mtime - age_s,) * 2)
    return draft


def test_a_draft_is_left_behind_after_a_day(root: Path, bucket: DirectoryBucket) -> None:
    bucket.write("a", b"1", ANY)
    old, young = drafts(root, "1-old", 2 * DAY_S), drafts(root, "1-young", 60)
    [found] = remains(bucket)
    assert (found.name, found.kind, found.size, found.removable) == (".retake/tmp/1-old", DRAFT, 4, True)
    clear(bucket, found)
    clear(bucket, found)  # already gone
    assert (old.exists(), young.exists(), bucket.read("a")[0]) == (False, True, b"1")


def test_nothing_but_old_drafts_is_ever_removed(root: Path, bucket: DirectoryBucket) -> None:
    bucket.write("a", b"1", ANY)
    young = drafts(root, "1-young", 60)
    for name in (".retake/tmp/1-young", "a", ".retake/writes.lock", ".retake/tmp/../../a", ".retake/tmp/"):
        clear(bucket, Remnant(name, DRAFT, 0, 0.0, removable=True))
    assert young.exists()
    assert bucket.read("a")[0] == b"1"
    with pytest.raises(ValueError, match="not removed by a program"):
        clear(bucket, Remnant("x", STRANGER, 0, 0.0, removable=False))


def test_a_linked_folder_has_drafts_of_its_own(root: Path, tmp_path: Path) -> None:
    bucket, disk = DirectoryBucket(str(root), follow_links=True), tmp_path / "disk"
    disk.mkdir()
    bucket.write("a", b"1", ANY)
    (root / "666").symlink_to(disk)
    draft = drafts(disk, "1-old", 2 * DAY_S)
    [found] = remains(bucket)
    assert found.name == "666/.retake/tmp/1-old"
    clear(bucket, found)
    assert not draft.exists()
    drafts(disk, "1-old", 2 * DAY_S)
    assert [*remains(DirectoryBucket(str(root)))] == []  # it follows no links


def test_a_folder_that_was_never_written_to_has_nothing(bucket: DirectoryBucket) -> None:
    assert [*remains(bucket)] == []


# --- wrappers and memory ---


def test_memory_has_nothing_of_its_own() -> None:
    assert [*remains(MemoryBucket())] == []
    with pytest.raises(ValueError, match="not removed by a program"):
        clear(MemoryBucket(), Remnant("x", DRAFT, 0, 0.0, removable=True))


def test_a_wrapper_passes_it_on_and_a_part_has_nothing(root: Path, bucket: DirectoryBucket) -> None:
    draft, counting = drafts(root, "1-old", 2 * DAY_S), CountingBucket(bucket)
    assert [*remains(counting.part("en/"))] == []
    [found] = remains(counting)
    clear(counting, found)
    assert not draft.exists()
    assert counting.counts == {"list": 1, "delete": 1}


# --- in progress ---


def assert_nothing_left(bucket: Bucket, other: Bucket) -> None:
    room, lease = bucket.set_aside("666/a.json", 100), bucket.lease("story", "me")
    assert [*remains(other)] == []
    room.write(b"{}", ABSENT)
    lease.release()
    with pytest.raises(Conflict):
        other.write("666/a.json", b"{}", ABSENT)
    assert [*remains(other)] == []


def test_nothing_is_left_in_a_directory_of_what_is_under_way_or_has_ended(root: Path) -> None:
    assert_nothing_left(DirectoryBucket(str(root)), DirectoryBucket(str(root)))


def test_nothing_is_left_on_b2_of_what_is_under_way_or_has_ended(b2: LateB2) -> None:
    assert_nothing_left(b2.bucket(), b2.bucket())


def test_nothing_is_left_on_s3_of_what_is_under_way_or_has_ended(s3: str) -> None:
    assert_nothing_left(S3Bucket(s3), S3Bucket(s3))


# --- B2 ---


@pytest.fixture
def b2() -> Iterator[LateB2]:
    place = LateB2()
    with place.sandbox:
        yield place


def died(bucket: Bucket) -> ClaimLease:
    """Return the lease of a holder that has died: nobody renews it."""
    assert isinstance(bucket, B2Bucket)
    return take(bucket._connect(""), "story", "gone:1", clock=LeaseClock())


def test_a_lease_on_b2_that_ran_out_is_found_and_freed(b2: LateB2) -> None:
    bucket, part = b2.bucket(), b2.bucket().part("en/")
    holder = died(bucket)
    assert [*remains(b2.bucket())] == []
    b2.late_s += 181
    [found] = remains(b2.bucket())
    assert (found.kind, found.removable) == (CLAIM, True)
    assert found.name.startswith(".retake/leases/story/")
    assert "gone%3A1" in found.name
    assert [*remains(part)] == []
    clear(b2.bucket(), found)
    assert [*remains(b2.bucket())] == []
    again = b2.bucket().lease("story", "me")
    assert again.token > holder.token
    assert kinds(remains(b2.bucket())) == []
    with pytest.raises(LeaseHeld):
        clear(b2.bucket(), found)  # somebody has taken it since
    again.check()
    again.release()


def test_a_part_on_b2_has_claims_of_its_own(b2: LateB2) -> None:
    died(b2.bucket().part("en/"))
    b2.late_s += 181
    assert [*remains(b2.bucket())] == []
    assert kinds(remains(b2.bucket().part("en/"))) == [(CLAIM, True)]


def test_probes_of_b2_and_foreign_objects(b2: LateB2, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retake.bucket.claims.remains._LEFTOVER_S", 100.0)  # b2sdk wants clocks to agree within a day
    bucket = b2.bucket()
    store = bucket._connect("")
    store.claim("scratch/0011223344556677")
    store.claim("leases/story/readme.txt")
    bucket._connect("writes/").claim("leases/writes/000000000001.0011223344556677~gone.0000")
    assert kinds(remains(bucket)) == [(STRANGER, False)]
    b2.late_s += 181
    left = [*remains(b2.bucket())]
    assert sorted(kinds(iter(left))) == [(CLAIM, True), (SCRATCH, True), (STRANGER, False)]
    for it in left:
        if it.removable:
            clear(b2.bucket(), it)
    assert kinds(remains(b2.bucket())) == [(STRANGER, False)]


# --- S3 ---


@pytest.fixture
def s3(s3_endpoint: str, s3_keys: None) -> str:
    return new_bucket(s3_endpoint)


def claims(bucket: S3Bucket) -> S3ClaimStore:
    return bucket._connect("")


def test_a_lease_on_s3_that_ran_out_is_found_and_what_may_be_held_is_left(
    s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = S3Bucket(s3)
    lease = bucket.part("en/").lease("story", "me")
    assert [*remains(bucket)] == []
    at_once = LeaseTerms(ttl_s=60, skew_s=-1000, margin_s=5)  # every claim is dead as soon as it is made
    monkeypatch.setattr(leases, "_SHORT", at_once)
    [found] = remains(S3Bucket(s3, lease_terms=at_once))
    assert (found.kind, found.removable, found.name.startswith(".retake/leases/en%2Fstory/")) == (CLAIM, True, True)
    with pytest.raises(LeaseHeld):
        clear(bucket, found)
    lease.check()
    lease.release()
    with pytest.raises(LeaseLost):
        lease.check()
    clear(bucket, found)
    assert [*remains(bucket)] == []


def test_foreign_objects_on_s3(s3: str) -> None:
    bucket = S3Bucket(s3)
    claims(bucket).claim("leases/story/readme.txt")
    claims(bucket).claim("scratch/0011223344556677")
    assert kinds(remains(bucket)) == [(STRANGER, False)]
