"""Runs and their events: docs/protocol.md, section "Fields of a run".

Released migrations are not changed: every change of the tables is a new migration.
"""

import sqlalchemy as sa
from alembic import op

from retake.runs.tables import UtcDateTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

STATUSES = "'queued', 'running', 'retry_scheduled', 'interrupted', 'succeeded', 'failed', 'cancelled'"
LARGEST = 2147483647


def upgrade() -> None:
    op.create_table(
        "task_runs",
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("task_id", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("idempotency_key", sa.Text, nullable=False),
        sa.Column("run_status", sa.Text, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("pipeline", sa.Text, nullable=False),
        sa.Column("next_retry_at", UtcDateTime),
        sa.Column("error_code", sa.Text),
        sa.Column("worker", sa.Text),
        sa.Column("heartbeat_at", UtcDateTime),
        sa.Column("resumes", sa.Integer, nullable=False),
        sa.Column("last_seq", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("run_id", name="pk_task_runs"),
        sa.UniqueConstraint("idempotency_key", name="uq_task_runs_idempotency_key"),
        sa.UniqueConstraint("task_id", "attempt", name="uq_task_runs_task_id_attempt"),
        *[sa.CheckConstraint(rule, name=f"ck_task_runs_{name}") for name, rule in RULES.items()],
    )
    op.create_table(
        "events",
        sa.Column("run_id", sa.Text, sa.ForeignKey("task_runs.run_id", name="fk_events_run_id"), nullable=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("at", UtcDateTime, nullable=False),
        sa.Column("trace_id", sa.Text, nullable=False),
        sa.Column("payload", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "seq", name="pk_events"),
        sa.CheckConstraint(f"seq BETWEEN 1 AND {LARGEST}", name="ck_events_seq"),
        sa.CheckConstraint("kind <> ''", name="ck_events_kind"),
    )
    op.create_index("ix_task_runs_status", "task_runs", ["run_status", "updated_at", "run_id"])
    op.create_index("ix_task_runs_pipeline", "task_runs", ["pipeline", "run_status", "updated_at", "run_id"])
    only_where_set("ix_task_runs_due", "next_retry_at", ["next_retry_at", "run_id"])
    only_where_set("ix_task_runs_pipeline_due", "next_retry_at", ["pipeline", "next_retry_at", "run_id"])
    only_where_set("ix_task_runs_heartbeat", "heartbeat_at", ["heartbeat_at", "run_id"])


def downgrade() -> None:
    op.drop_table("events")
    op.drop_table("task_runs")


RULES = {
    "task_id": "task_id <> ''",
    "idempotency_key": "idempotency_key <> ''",
    "attempt": f"attempt BETWEEN 1 AND {LARGEST}",
    "run_status": f"run_status IN ({STATUSES})",
    "next_retry_at": "(run_status = 'retry_scheduled') = (next_retry_at IS NOT NULL)",
    "heartbeat_at": "(run_status = 'running') = (heartbeat_at IS NOT NULL)",
    "version": f"version BETWEEN 1 AND {LARGEST}",
    "resumes": f"resumes BETWEEN 0 AND {LARGEST}",
    "last_seq": f"last_seq BETWEEN 1 AND {LARGEST}",
}


def only_where_set(name: str, column: str, columns: list[str]) -> None:
    only = sa.text(f"{column} IS NOT NULL")
    op.create_index(name, "task_runs", columns, sqlite_where=only, postgresql_where=only)
