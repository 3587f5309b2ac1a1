"""The contract, on SQLite and on PostgreSQL."""

from pathlib import Path

import pytest
from ledger_contract import Connect, LedgerContract
from postgres import empty

from retake.clock import FakeClock
from retake.runs import open_ledger
from retake.runs.sql_ledger import SqlLedger, open_sql_ledger


def connecting(url: str, clock: FakeClock, opened: list[SqlLedger]) -> Connect:
    """Return a function that connects a client with connections of its own, as another process would have."""

    def connect() -> SqlLedger:
        opened.append(open_sql_ledger(url, clock))
        return opened[-1]

    return connect


class TestSqlite(LedgerContract):
    @pytest.fixture
    def connect(self, clock: FakeClock, tmp_path: Path, opened: list[SqlLedger]) -> Connect:
        return connecting(f"sqlite:{tmp_path}/runs.db", clock, opened)


class TestPostgres(LedgerContract):
    rounds = 20

    @pytest.fixture
    def connect(self, clock: FakeClock, shared_database: str, opened: list[SqlLedger]) -> Connect:
        open_sql_ledger(shared_database, clock).close()
        empty(shared_database)
        return connecting(shared_database, clock, opened)


def test_a_ledger_in_a_database_needs_no_bucket_and_one_without_a_url_does(tmp_path: Path) -> None:
    ledger = open_ledger(f"sqlite:{tmp_path}/runs.db")
    assert isinstance(ledger, SqlLedger)
    assert ledger.create_for_task("t", "t#1", actor="shop").attempt == 1
    ledger.close()
    with pytest.raises(ValueError, match="found neither"):
        open_ledger(None)
