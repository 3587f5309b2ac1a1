import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres import FAST, new_database, or_skipped, server

from retake.runs.sql_ledger import SqlLedger

sys.path.append(str(Path(__file__).parents[1] / "bucket"))  # the stand-ins of the stores
pytest.register_assert_rewrite("ledger_contract", "ledger_values")


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A server for these tests (of each process that runs some): the URL of its databases, without a name.

    Where there is none the tests are skipped, and say what to install; on a build machine they fail.
    """
    with or_skipped(), server(*FAST) as base:
        yield base


@pytest.fixture(scope="session")
def shared_database(postgres: str) -> str:
    """One database for many tests: who uses it empties it first."""
    return new_database(postgres)


@pytest.fixture
def database(postgres: str) -> str:
    """A database of the test's own, without tables."""
    return new_database(postgres)


@pytest.fixture
def opened() -> Iterator[list[SqlLedger]]:
    """What a test opens, closed when it is over."""
    ledgers: list[SqlLedger] = []
    yield ledgers
    for ledger in ledgers:
        ledger.close()
