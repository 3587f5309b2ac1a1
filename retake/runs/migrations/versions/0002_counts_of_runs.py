"""Adds columns for how often a run was retried, and how often its worker died.

Both used to be counted from the events, as this does for existing runs.

Released migrations are not changed: every change of the tables is a new migration.
"""

import json
from collections import Counter

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

LARGEST = 2147483647
COUNTERS = ("retries", "crashes")

CHANGES = """
    SELECT run_id, CAST(payload AS TEXT) FROM events WHERE kind = 'run.status.changed'
    AND (CAST(payload AS TEXT) LIKE '%retry_scheduled%' OR CAST(payload AS TEXT) LIKE '%interrupted%')"""


def upgrade() -> None:
    for name in COUNTERS:
        rule = f"CONSTRAINT ck_task_runs_{name} CHECK ({name} BETWEEN 0 AND {LARGEST})"
        op.execute(f"ALTER TABLE task_runs ADD COLUMN {name} INTEGER DEFAULT 0 NOT NULL {rule}")
    counts: dict[str, Counter[str]] = {}
    connection = op.get_bind()
    for run_id, text in connection.execute(sa.text(CHANGES)):
        payload = json.loads(text)
        if payload.get("status") == "retry_scheduled":
            counts.setdefault(run_id, Counter())["retries"] += 1
        elif payload.get("status") == "interrupted" and payload.get("actor") != "worker":
            counts.setdefault(run_id, Counter())["crashes"] += 1
    update = sa.text("UPDATE task_runs SET retries = :retries, crashes = :crashes WHERE run_id = :run_id")
    for run_id, count in counts.items():
        connection.execute(update, {"run_id": run_id, **{name: count[name] for name in COUNTERS}})


def downgrade() -> None:
    for name in COUNTERS:
        op.drop_column("task_runs", name)
