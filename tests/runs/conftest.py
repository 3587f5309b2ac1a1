import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres import new_database

from retake.runs.sql_ledger import SqlLedger

sys.path.append(str(Path(__file__).parents[1] / "bucket"))  # the stand-ins for the stores
pytest.register_assert_rewrite("ledger_contract", "ledger_values")


@pytest.fixture(scope="session")
def shared_database(postgres: str) -> str:
    """Return one database for many tests, each of which empties it first."""
    return new_database(postgres)


@pytest.fixture
def opened() -> Iterator[list[SqlLedger]]:
    """Yield a list of the ledgers that a test opens, and close them afterwards."""
    ledgers: list[SqlLedger] = []
    yield ledgers
    for ledger in ledgers:
        ledger.close()
