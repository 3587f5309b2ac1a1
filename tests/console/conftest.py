"""Makes the test helpers of other rooms available."""

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
folders = [str(TESTS), *(str(TESTS / room) for room in ("story", "cron", "runs"))]
sys.path += [folder for folder in folders if folder not in sys.path]


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
