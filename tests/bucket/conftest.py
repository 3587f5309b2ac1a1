from collections.abc import Iterator
from pathlib import Path

import pytest

from retake.bucket.directory import DirectoryBucket
from retake.sandbox.b2 import B2Sandbox

pytest.register_assert_rewrite("contract", "file_contract")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


@pytest.fixture
def bucket(root: Path) -> DirectoryBucket:
    return DirectoryBucket(str(root))


@pytest.fixture
def sandbox() -> Iterator[B2Sandbox]:
    with B2Sandbox() as running:
        yield running
