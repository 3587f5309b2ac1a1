import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "runs"))  # the server of the ledger's tests

from postgres import FAST, new_database, or_skipped, server


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A server for these tests: the URL of its databases, without a name. Where there is none the tests are skipped."""
    with or_skipped(), server(*FAST) as base:
        yield base


@pytest.fixture
def postgres_url(postgres: str) -> str:
    """A database of the test's own, without tables."""
    return new_database(postgres)
