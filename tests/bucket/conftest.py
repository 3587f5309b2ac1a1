import os

import pytest

pytest.register_assert_rewrite("contract")


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fsync does cannot be seen without a power cut, and thousands of them take long on a busy disk."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
