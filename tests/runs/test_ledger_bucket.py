"""The contract of ledgers, on buckets; and what is a bucket's own: names, documents, the lease, and crashes."""

from pathlib import Path

import pytest
from ledger_contract import Connect, LedgerContract

from retake.bucket.directory import DirectoryBucket
from retake.bucket.memory import MemoryBucket, MemoryStore
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

    @pytest.fixture
    def connect(self, clock: FakeClock, tmp_path: Path) -> Connect:
        return lambda: BucketLedger(DirectoryBucket(str(tmp_path / "bucket")), clock)
