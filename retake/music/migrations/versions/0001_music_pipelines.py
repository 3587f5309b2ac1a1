"""The tables of the music pipelines: docs/music.md, section "Tables".

Released migrations are not changed: every change of the tables is a new migration.
"""

import sqlalchemy as sa
from alembic import op

from retake.runs.tables import UtcDateTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_NOW = {"sqlite": "(strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))", "postgresql": "now()"}


def upgrade() -> None:
    pipelines()
    pipeline_jobs()
    paid_calls()
    pipeline_messages()
    op.create_table(
        "telegram_updates",
        sa.Column("update_id", sa.BigInteger, primary_key=True, autoincrement=False),
        words("callback_id", None),
        words("answer", None),
        moment("received_at"),
        sa.Column("answered_at", UtcDateTime),
    )
    op.create_table("service_leases", sa.Column("name", sa.Text, primary_key=True), words("holder"), moment("until"))


def downgrade() -> None:
    for table in (
        "service_leases", "telegram_updates", "pipeline_messages", "paid_calls", "pipeline_jobs", "pipelines"
    ):  # fmt: skip
        op.drop_table(table)


def pipelines() -> None:
    op.create_table(
        "pipelines",
        key(),
        words("track_title"),
        words("audio"),
        words("style", None),
        words("state", "cover_running"),
        words("cover_url", None),
        words("video_url", None),
        words("thumbnail_url", None),
        words("metadata_json", None),
        words("review_json", None),
        words("youtube_video_id", None),
        words("failed_reason", None),
        words("warning", None),
        words("upload_session", None),
        moment("created_at"),
        moment("updated_at"),
        words("idempotency_key", None),
        number("run_number"),
        number("take"),
        words("note", None),
        sa.Column("current_job", sa.Integer),
        words("nonce", None),
        sa.Column("last_chunk_begun", sa.Boolean, nullable=False, server_default=sa.text("false")),
        sa.UniqueConstraint("idempotency_key", name="uq_pipelines_idempotency_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_pipelines_state", "pipelines", ["state", "id"])


def pipeline_jobs() -> None:
    op.create_table(
        "pipeline_jobs",
        key(),
        of_pipeline(),
        words("step"),
        number("attempt", 1),
        words("status", "running"),
        words("error", None),
        words("error_code", None),
        words("feedback", None),
        moment("started_at"),
        sa.Column("finished_at", UtcDateTime),
        number("run_number"),
        sa.CheckConstraint(
            "status IN ('running', 'succeeded', 'failed', 'interrupted', 'cancelled')", name="ck_pipeline_jobs_status"
        ),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_pipeline_jobs_pipeline", "pipeline_jobs", ["pipeline_id", "id"])
    op.create_index("ix_pipeline_jobs_started", "pipeline_jobs", ["step", "started_at"])


def paid_calls() -> None:
    op.create_table(
        "paid_calls",
        key(),
        of_pipeline(),
        words("step"),
        number("take"),
        number("job_id"),
        words("facts", "{}"),
        sa.Column("price_usd", sa.Float, nullable=False, server_default=sa.text("0")),
        words("day"),
        moment("requested_at"),
        words("outcome", "pending"),
        words("answer", None),
        words("error", None),
        words("error_code", None),
        sa.Column("settled_at", UtcDateTime),
        sa.CheckConstraint(
            "outcome IN ('pending', 'accepted', 'refused', 'wasted', 'lost', 'held')", name="ck_paid_calls_outcome"
        ),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_paid_calls_pipeline", "paid_calls", ["pipeline_id", "step", "take", "id"])
    op.create_index("ix_paid_calls_day", "paid_calls", ["day"])


def pipeline_messages() -> None:
    op.create_table(
        "pipeline_messages",
        key(),
        of_pipeline(),
        words("event"),
        number("run_number"),
        number("job_id"),
        words("text"),
        words("buttons", "[]"),
        moment("created_at"),
        sa.Column("sent_at", UtcDateTime),
        sa.Column("message_id", sa.BigInteger),
        words("error", None),
        sa.UniqueConstraint("pipeline_id", "event", "run_number", name="uq_pipeline_messages_event"),
        sqlite_autoincrement=True,
    )
    unsent = sa.text("sent_at IS NULL AND error IS NULL")
    op.create_index(
        "ix_pipeline_messages_unsent", "pipeline_messages", ["id"], sqlite_where=unsent, postgresql_where=unsent
    )
    op.create_index("ix_pipeline_messages_message", "pipeline_messages", ["message_id"])


def key() -> sa.Column[int]:
    return sa.Column("id", sa.Integer, primary_key=True, autoincrement=True)


def of_pipeline() -> sa.Column[int]:
    return sa.Column("pipeline_id", sa.Integer, sa.ForeignKey("pipelines.id"), nullable=False)


def words(name: str, default: str | None = "") -> sa.Column[str]:
    if default is None:
        return sa.Column(name, sa.Text)
    return sa.Column(name, sa.Text, nullable=False, server_default=sa.text(f"'{default}'"))


def number(name: str, default: int = 0) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, nullable=False, server_default=sa.text(str(default)))


def moment(name: str) -> sa.Column[object]:
    now = sa.text(_NOW[op.get_bind().dialect.name])
    return sa.Column(name, UtcDateTime, nullable=False, server_default=now)
