"""The machinery of other rooms' tests is used here too."""

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
sys.path += [str(TESTS / room) for room in ("story", "cron", "runs") if str(TESTS / room) not in sys.path]


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
