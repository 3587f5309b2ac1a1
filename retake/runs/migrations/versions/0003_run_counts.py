"""The number of runs in each state, kept by triggers, so that the writes of every program are counted.

Released migrations are not changed: every change of the tables is a new migration.
"""

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

FILL = """
INSERT INTO run_counts (scope, pipeline, run_status, slot, runs)
SELECT 'pipeline', pipeline, run_status, 0, COUNT(*) FROM task_runs GROUP BY pipeline, run_status
UNION ALL SELECT 'all', '', run_status, 0, COUNT(*) FROM task_runs GROUP BY run_status
"""

READERS = """
DO $$ DECLARE reader text; BEGIN
    FOR reader IN SELECT DISTINCT grantee FROM information_schema.table_privileges
        WHERE table_schema = current_schema() AND table_name = 'task_runs' AND privilege_type = 'SELECT'
    LOOP
        EXECUTE 'GRANT SELECT ON run_counts TO ' || CASE reader WHEN 'PUBLIC' THEN reader ELSE quote_ident(reader) END;
    END LOOP;
END $$
"""
"""Grants everybody who may read the runs the right to read their counts."""


def upgrade() -> None:
    connection = op.get_bind()
    on_server = connection.dialect.name == "postgresql"
    if on_server:  # on SQLite nobody else writes during a migration
        op.execute("LOCK TABLE task_runs IN SHARE ROW EXCLUSIVE MODE")
    op.create_table(
        "run_counts",
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("pipeline", sa.Text, nullable=False),
        sa.Column("run_status", sa.Text, nullable=False),
        sa.Column("slot", sa.Integer, nullable=False),
        sa.Column("runs", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("scope", "pipeline", "run_status", "slot", name="pk_run_counts"),
        sa.CheckConstraint("scope IN ('all', 'pipeline', 'replaced')", name="ck_run_counts_scope"),
        sqlite_with_rowid=False,
    )
    triggers = Path(__file__).with_name(f"0003_triggers_{connection.dialect.name}.sql").read_text("utf-8")
    for statement in triggers.split("\n\n"):
        connection.exec_driver_sql(statement)
    op.execute(FILL)
    if on_server:
        connection.exec_driver_sql(READERS)


def downgrade() -> None:
    on_server = op.get_bind().dialect.name == "postgresql"
    more = ("emptied",) if on_server else ("adding", "replaced", "changing", "changed")
    for name in ("added", "moved", "gone", *more):
        op.execute(f"DROP TRIGGER task_runs_{name}{' ON task_runs' if on_server else ''}")
    if on_server:
        op.execute("DROP FUNCTION count_task_runs()")
    op.drop_table("run_counts")
