import os

import pytest

pytest.register_assert_rewrite("contract")


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The effect of fsync shows only after a power cut, and thousands of calls are slow on a busy disk."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
