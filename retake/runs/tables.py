"""The tables of a SQL ledger: `task_runs` and `events` with their constraints, and `run_counts`, in which triggers keep
how many runs are in each state.

The columns are those of docs/protocol.md, sections "Fields of a run" and "Events". retake/runs/migrations creates the
tables, and a test compares the two. Every index serves a query in retake/runs/statements.py.
"""

from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    event,
    text,
)
from sqlalchemy.types import TypeEngine

from retake.runs.states import RunStatus

TAKEN_ATTEMPT = "uq_task_runs_task_id_attempt"
"""The unique constraint that no two runs of a task have the same attempt."""

MAX_INTEGER = 2**31 - 1
"""The largest INTEGER of PostgreSQL. An upper bound also excludes text, which in SQLite is greater than any number."""

STATUSES = ", ".join(f"'{status.value}'" for status in RunStatus)


class UtcDateTime(TypeDecorator[datetime]):
    """An aware time in UTC, to the microsecond.

    SQLite has no such type and stores text that sorts by time: "2026-02-07T12:00:00.000000Z". Times without a zone,
    as SQLite's own functions write them, are taken as UTC.
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Text() if dialect.name == "sqlite" else DateTime(timezone=True))

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        moment = datetime.fromisoformat(value) if dialect.name == "sqlite" else value
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return moment if moment.tzinfo is UTC else moment.astimezone(UTC)

    # Not process_bind_param: SQLAlchemy wraps that, which is slow, and this is called for each value of each statement.

    def bind_processor(self, dialect: Dialect) -> Any:
        return _as_text if dialect.name == "sqlite" else None


def _as_text(value: datetime | None) -> str | None:
    return None if value is None else _text_of(value)


@lru_cache(maxsize=64)  # the same time goes into several columns and rows
def _text_of(value: datetime) -> str:
    return f"{value.astimezone(UTC).isoformat(timespec='microseconds')[:-6]}Z"


class RunStatusText(TypeDecorator[RunStatus]):
    """A state, stored as its name."""

    impl = Text
    cache_ok = True

    def process_result_value(self, value: str | None, dialect: Dialect) -> RunStatus | None:
        return RunStatus(value) if value else None

    def bind_processor(self, dialect: Dialect) -> Any:
        return _name


def _name(value: RunStatus | None) -> str | None:
    return str(value) if value else None


def required(name: str, kind: type[TypeEngine[Any]]) -> Column[Any]:
    """Return a column that is NOT NULL."""
    return Column(name, kind, nullable=False)


def counter(name: str) -> Column[Any]:
    """Return the column of a counter that starts at 0. Its constraint is part of the column, so that SQLite can add it
    to an existing table."""
    rule = CheckConstraint(f"{name} BETWEEN 0 AND {MAX_INTEGER}", name=f"ck_task_runs_{name}")
    return Column(name, Integer, rule, server_default=text("0"), nullable=False)


metadata = MetaData()

task_runs = Table(
    "task_runs",
    metadata,
    # The columns of a Run come first, in the order of its fields.
    required("run_id", Text),
    required("task_id", Text),
    required("attempt", Integer),
    required("idempotency_key", Text),
    required("run_status", RunStatusText),
    required("created_at", UtcDateTime),
    required("updated_at", UtcDateTime),
    required("version", Integer),
    required("pipeline", Text),
    Column("next_retry_at", UtcDateTime),
    Column("error_code", Text),
    Column("worker", Text),
    Column("heartbeat_at", UtcDateTime),
    required("resumes", Integer),
    counter("retries"),
    counter("crashes"),
    required("last_seq", Integer),  # number of the run's last event
    PrimaryKeyConstraint("run_id", name="pk_task_runs"),
    UniqueConstraint("idempotency_key", name="uq_task_runs_idempotency_key"),
    UniqueConstraint("task_id", "attempt", name=TAKEN_ATTEMPT),
    CheckConstraint("task_id <> ''", name="ck_task_runs_task_id"),
    CheckConstraint("idempotency_key <> ''", name="ck_task_runs_idempotency_key"),
    CheckConstraint(f"attempt BETWEEN 1 AND {MAX_INTEGER}", name="ck_task_runs_attempt"),
    CheckConstraint(f"run_status IN ({STATUSES})", name="ck_task_runs_run_status"),
    CheckConstraint(
        "(run_status = 'retry_scheduled') = (next_retry_at IS NOT NULL)", name="ck_task_runs_next_retry_at"
    ),
    CheckConstraint("(run_status = 'running') = (heartbeat_at IS NOT NULL)", name="ck_task_runs_heartbeat_at"),
    CheckConstraint(f"version BETWEEN 1 AND {MAX_INTEGER}", name="ck_task_runs_version"),
    CheckConstraint(f"resumes BETWEEN 0 AND {MAX_INTEGER}", name="ck_task_runs_resumes"),
    CheckConstraint(f"last_seq BETWEEN 1 AND {MAX_INTEGER}", name="ck_task_runs_last_seq"),
)

events = Table(
    "events",
    metadata,
    Column("run_id", Text, ForeignKey("task_runs.run_id", name="fk_events_run_id"), nullable=False),
    required("seq", Integer),
    required("kind", Text),
    required("at", UtcDateTime),
    required("trace_id", Text),
    required("payload", JSON),
    PrimaryKeyConstraint("run_id", "seq", name="pk_events"),
    CheckConstraint(f"seq BETWEEN 1 AND {MAX_INTEGER}", name="ck_events_seq"),
    CheckConstraint("kind <> ''", name="ck_events_kind"),
)


run_counts = Table(
    "run_counts",
    metadata,
    required("scope", Text),  # "all"; "pipeline" for the runs of one; "replaced": see the triggers of SQLite
    required("pipeline", Text),  # "" for all
    required("run_status", RunStatusText),
    required("slot", Integer),  # a count is the sum over its slots: see `create_triggers`
    required("runs", BigInteger),
    PrimaryKeyConstraint("scope", "pipeline", "run_status", "slot", name="pk_run_counts"),
    CheckConstraint("scope IN ('all', 'pipeline', 'replaced')", name="ck_run_counts_scope"),
    sqlite_with_rowid=False,
)


@event.listens_for(task_runs, "after_create")
def create_triggers(_table: Table, connection: Connection, **_more: object) -> None:
    """Create the triggers that keep `run_counts`, as the last migration that changed them does.

    Every write to `task_runs` is counted, in the same transaction. On PostgreSQL a count is the sum of one row per
    slot. A transaction takes a slot that no other open transaction has, so it neither waits for another's commit nor
    can deadlock. There are as many slots as there were ever concurrent writers. Above READ COMMITTED a transaction must
    not change rows that another has changed since it began, so each backend has a slot of its own. The triggers are per
    statement: a statement for a million rows changes each count once. On SQLite, which has one writer at a time, the
    slot is 0.
    """
    triggers = Path(__file__).parent / f"migrations/versions/0003_triggers_{connection.dialect.name}.sql"
    for statement in triggers.read_text("utf-8").split("\n\n"):
        connection.exec_driver_sql(statement)


def only_where_set(name: str, column: str, *columns: str) -> Index:
    """Return a partial index of the runs whose `column` is set. It stays small however many runs there are."""
    only = text(f"{column} IS NOT NULL")
    return Index(name, *(task_runs.c[it] for it in columns), sqlite_where=only, postgresql_where=only)


# For lists, totals, and claims of interrupted and queued runs: of all pipelines, and of one.
Index("ix_task_runs_status", *(task_runs.c[it] for it in ("run_status", "updated_at", "run_id")))
Index("ix_task_runs_pipeline", *(task_runs.c[it] for it in ("pipeline", "run_status", "updated_at", "run_id")))
# For claims of retries that are due, and for silent runs.
only_where_set("ix_task_runs_due", "next_retry_at", "next_retry_at", "run_id")
only_where_set("ix_task_runs_pipeline_due", "next_retry_at", "pipeline", "next_retry_at", "run_id")
only_where_set("ix_task_runs_heartbeat", "heartbeat_at", "heartbeat_at", "run_id")
