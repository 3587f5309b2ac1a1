"""The tables of the music pipelines, beside those of the ledger (`retake.runs.tables`) in the same database.

docs/music.md describes their columns. Outside programs insert rows of their own, so every column has a default.
"""

from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement

from retake.runs.schema import TableSchema
from retake.runs.tables import UtcDateTime


class Now(FunctionElement[Any]):
    """The database's own time, in the format in which times are stored."""

    inherit_cache = True
    type = UtcDateTime()


@compiles(Now, "sqlite")
def _now_in_sqlite(element: Any, compiler: Any, **options: Any) -> str:
    return "(strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))"


@compiles(Now, "postgresql")
def _now_in_postgresql(element: Any, compiler: Any, **options: Any) -> str:
    return "now()"


class _Checked(TypeDecorator[Any]):
    """A value whose type is checked on SQLite, where columns accept any type."""

    cache_ok = True
    kinds: tuple[type, ...] = ()
    wanted = ""

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        return self._checked if dialect.name == "sqlite" else None

    def _checked(self, value: Any) -> Any:
        if value is None or type(value) in self.kinds:
            return value
        raise ValueError(f"it is not {self.wanted}")


class PlainText(_Checked):
    """A text."""

    impl, kinds, wanted = Text, (str,), "text"


class Whole(_Checked):
    """A whole number."""

    impl, kinds, wanted = Integer, (int,), "a whole number"


class Usd(_Checked):
    """US dollars, as the driver's own float: SQLAlchemy's conversion requires its own cursor."""

    impl, kinds, wanted = Float, (float, int), "a number"


metadata = MetaData()


def _text(name: str, default: str | None = "") -> Column[Any]:
    """Return a text column: with a default, or one that may be null."""
    if default is None:
        return Column(name, PlainText)
    return Column(name, PlainText, nullable=False, server_default=text(f"'{default}'"))


def _number(name: str, default: int = 0) -> Column[Any]:
    return Column(name, Whole, nullable=False, server_default=text(str(default)))


def _moment(name: str) -> Column[Any]:
    return Column(name, UtcDateTime, nullable=False, server_default=Now())


def _key() -> Column[Any]:
    return Column("id", Integer, primary_key=True, autoincrement=True)


def _of_pipeline() -> Column[Any]:
    return Column("pipeline_id", Whole, ForeignKey("pipelines.id"), nullable=False)


pipelines = Table(
    "pipelines",
    metadata,
    _key(),
    _text("track_title"),
    _text("audio"),
    _text("style", None),
    _text("state", "cover_running"),
    _text("cover_url", None),
    _text("video_url", None),
    _text("thumbnail_url", None),
    _text("metadata_json", None),
    _text("review_json", None),
    _text("youtube_video_id", None),
    _text("failed_reason", None),
    _text("warning", None),
    _text("upload_session", None),
    _moment("created_at"),
    _moment("updated_at"),
    # Read only by the service:
    _text("idempotency_key", None),
    _number("run_number"),  # fencing token, rises with each start of a step: a run with another number is stale
    _number("take"),  # rises with each start of a step except plain retries; paid calls and file names belong to it
    _text("note", None),  # a person's note for the take
    Column("current_job", Whole),  # the attempt that may write; 0 or null: none
    _text("nonce", None),  # the last line of the video's description
    Column("last_chunk_begun", Boolean, nullable=False, server_default=text("false")),
    UniqueConstraint("idempotency_key", name="uq_pipelines_idempotency_key"),
    sqlite_autoincrement=True,
)

pipeline_jobs = Table(
    "pipeline_jobs",
    metadata,
    _key(),
    _of_pipeline(),
    _text("step"),
    _number("attempt", 1),  # from 1 in each run of a step
    _text("status", "running"),
    _text("error", None),
    _text("error_code", None),
    _text("feedback", None),
    _moment("started_at"),
    Column("finished_at", UtcDateTime),
    _number("run_number"),
    CheckConstraint(
        "status IN ('running', 'succeeded', 'failed', 'interrupted', 'cancelled')", name="ck_pipeline_jobs_status"
    ),
    sqlite_autoincrement=True,
)

paid_calls = Table(
    "paid_calls",
    metadata,
    _key(),
    _of_pipeline(),
    _text("step"),
    _number("take"),
    _number("job_id"),
    _text("facts", "{}"),  # JSON: by which the vendor can find the call
    Column("price_usd", Usd, nullable=False, server_default=text("0")),
    _text("day"),  # the UTC day on which it counts against the cap
    _moment("requested_at"),
    _text("outcome", "pending"),  # then accepted, refused, wasted, lost or held; see retake.paid.guard
    _text("answer", None),  # JSON
    _text("error", None),
    _text("error_code", None),
    Column("settled_at", UtcDateTime),
    CheckConstraint(
        "outcome IN ('pending', 'accepted', 'refused', 'wasted', 'lost', 'held')", name="ck_paid_calls_outcome"
    ),
    sqlite_autoincrement=True,
)

messages = Table(
    "pipeline_messages",
    metadata,
    _key(),
    _of_pipeline(),
    _text("event"),  # "failed", "pending", "published", "awaiting_manual"
    _number("run_number"),
    _number("job_id"),
    _text("text"),
    _text("buttons", "[]"),  # JSON: [[label, callback data], …]
    _moment("created_at"),
    Column("sent_at", UtcDateTime),
    Column("message_id", BigInteger),  # Telegram's, to which people reply
    _text("error", None),  # why it was refused for good
    UniqueConstraint("pipeline_id", "event", "run_number", name="uq_pipeline_messages_event"),
    sqlite_autoincrement=True,
)

updates = Table(
    "telegram_updates",
    metadata,
    Column("update_id", BigInteger, primary_key=True, autoincrement=False),
    _text("callback_id", None),
    _text("answer", None),
    _moment("received_at"),
    Column("answered_at", UtcDateTime),
)

leases = Table(
    "service_leases",
    metadata,
    Column("name", Text, primary_key=True),
    _text("holder"),
    Column("until", UtcDateTime, nullable=False, server_default=Now()),
)

Index("ix_pipelines_state", pipelines.c.state, pipelines.c.id)
Index("ix_pipeline_jobs_pipeline", pipeline_jobs.c.pipeline_id, pipeline_jobs.c.id)
Index("ix_pipeline_jobs_started", pipeline_jobs.c.step, pipeline_jobs.c.started_at)
Index("ix_paid_calls_pipeline", paid_calls.c.pipeline_id, paid_calls.c.step, paid_calls.c.take, paid_calls.c.id)
Index("ix_paid_calls_day", paid_calls.c.day)
_UNSENT = text("sent_at IS NULL AND error IS NULL")
Index("ix_pipeline_messages_unsent", messages.c.id, sqlite_where=_UNSENT, postgresql_where=_UNSENT)
Index("ix_pipeline_messages_message", messages.c.message_id)

MAX_ID = 2**31 - 1

SCHEMA = TableSchema(
    ("0001",), "retake_music_schema", Path(__file__).parent / "migrations", metadata, "the music database"
)

__all__ = ["MAX_ID", "SCHEMA", "leases", "messages", "paid_calls", "pipeline_jobs", "pipelines", "updates"]
