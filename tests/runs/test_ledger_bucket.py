"""The ledger contract, on buckets that need nothing but this machine."""

import os
from pathlib import Path

import pytest
from ledger_contract import Connect, LedgerContract

from retake.bucket.directory import DirectoryBucket
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.bucket.wrappers import PrefixedBucket
from retake.clock import FakeClock
from retake.errors import LeaseHeld
from retake.runs.bucket_ledger import BucketLedger


class TestInMemory(LedgerContract):
    busy = (LeaseHeld,)

    @pytest.fixture
    def connect(self, clock: FakeClock) -> Connect:
        store = MemoryStore()
        return lambda: BucketLedger(MemoryBucket(store), clock)


class TestInADirectory(LedgerContract):
    busy = (LeaseHeld,)

    @pytest.fixture(autouse=True)
    def _no_fsync(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Turn fsync off: its effect shows only after a power cut."""
        monkeypatch.setattr(os, "fsync", lambda file: None)

    @pytest.fixture
    def connect(self, clock: FakeClock, tmp_path: Path) -> Connect:
        return lambda: BucketLedger(DirectoryBucket(str(tmp_path / "bucket")), clock)


class TestUnderOneLease(LedgerContract):
    """As in the story: a manager and its scripts, one at a time, remember what they have read."""

    @pytest.fixture
    def connect(self, clock: FakeClock) -> Connect:
        bucket = PrefixedBucket(MemoryBucket(MemoryStore()), "channel/")
        lease = bucket.lease("story", "a tick")
        return lambda: BucketLedger(bucket, clock, lease=lease)


for name in dir(TestUnderOneLease):
    if name.startswith("test_") and ("_many_" in name or "_at_once_" in name):
        setattr(TestUnderOneLease, name, None)  # pytest must not collect what cannot be called
