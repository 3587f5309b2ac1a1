"""The contract, on the buckets that need nothing but this machine, and on their wrappers."""

from pathlib import Path

import pytest
from contract import BucketContract, Connect

from retake.bucket import ABSENT
from retake.bucket.directory import DirectoryBucket
from retake.bucket.failing import FailingBucket
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.bucket.wrappers import CountingBucket, PrefixedBucket


@pytest.mark.usefixtures("no_fsync")
class TestDirectory(BucketContract):
    key_may_be_folder = False
    lease_breaks = False

    @pytest.fixture
    def connect(self, tmp_path: Path) -> Connect:
        return lambda: DirectoryBucket(str(tmp_path / "bucket"))


class TestDirectoryWithoutExchange(TestDirectory):
    @pytest.fixture(autouse=True)
    def _other_system(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.platform", "other")


class TestMemory(BucketContract):
    @pytest.fixture
    def connect(self) -> Connect:
        store = MemoryStore()
        return lambda: MemoryBucket(store)


class TestPrefixed(BucketContract):
    @pytest.fixture
    def connect(self) -> Connect:
        store = MemoryStore()
        MemoryBucket(store).write("elsewhere/444/a.json", b"not ours", ABSENT)
        return lambda: PrefixedBucket(MemoryBucket(store), "channel/")


class TestCounting(BucketContract):
    @pytest.fixture
    def connect(self) -> Connect:
        store = MemoryStore()
        return lambda: CountingBucket(MemoryBucket(store))


@pytest.mark.usefixtures("no_fsync")
class TestFailing(BucketContract):
    key_may_be_folder = False
    lease_breaks = False

    @pytest.fixture
    def connect(self, tmp_path: Path) -> Connect:
        return lambda: FailingBucket(DirectoryBucket(str(tmp_path / "bucket")))
