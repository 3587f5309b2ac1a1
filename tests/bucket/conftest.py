import os
from pathlib import Path

import pytest

from retake.bucket.directory import DirectoryBucket

pytest.register_assert_rewrite("contract", "file_contract")


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The effect of fsync shows only after a power cut, and thousands of calls are slow on a busy disk."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


@pytest.fixture
def bucket(root: Path) -> DirectoryBucket:
    return DirectoryBucket(str(root))
