"""How many runs are in each state, kept by triggers, so that whoever writes is counted; filled with what is there.

Released migrations are not changed: every change of the tables is a new migration.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

SQLITE = (
    """
CREATE TRIGGER task_runs_added AFTER INSERT ON task_runs
BEGIN
    INSERT INTO run_counts (scope, pipeline, run_status, slot, runs)
    VALUES ('all', '', NEW.run_status, 0, 1), ('pipeline', NEW.pipeline, NEW.run_status, 0, 1)
    ON CONFLICT (scope, pipeline, run_status, slot) DO UPDATE SET runs = runs + 1;
END
""",
    """
CREATE TRIGGER task_runs_moved AFTER UPDATE OF run_status, pipeline ON task_runs
WHEN OLD.run_status <> NEW.run_status OR OLD.pipeline <> NEW.pipeline
BEGIN
    UPDATE run_counts SET runs = runs - 1
    WHERE scope = 'all' AND pipeline = '' AND run_status = OLD.run_status AND slot = 0;
    UPDATE run_counts SET runs = runs - 1
    WHERE scope = 'pipeline' AND pipeline = OLD.pipeline AND run_status = OLD.run_status AND slot = 0;
    INSERT INTO run_counts (scope, pipeline, run_status, slot, runs)
    VALUES ('all', '', NEW.run_status, 0, 1), ('pipeline', NEW.pipeline, NEW.run_status, 0, 1)
    ON CONFLICT (scope, pipeline, run_status, slot) DO UPDATE SET runs = runs + 1;
END
""",
    """
CREATE TRIGGER task_runs_gone AFTER DELETE ON task_runs
BEGIN
    UPDATE run_counts SET runs = runs - 1
    WHERE scope = 'all' AND pipeline = '' AND run_status = OLD.run_status AND slot = 0;
    UPDATE run_counts SET runs = runs - 1
    WHERE scope = 'pipeline' AND pipeline = OLD.pipeline AND run_status = OLD.run_status AND slot = 0;
    UPDATE run_counts SET runs = runs - 1
    WHERE scope = 'replaced' AND pipeline = OLD.pipeline AND run_status = OLD.run_status AND slot = 0;
END
""",
    # INSERT OR REPLACE and UPDATE OR REPLACE delete rows without the trigger of DELETE, unless recursive_triggers is
    # on. So the rows in the way are noted before, and taken off after it, which is not reached if the row is refused.
    """
CREATE TRIGGER task_runs_adding BEFORE INSERT ON task_runs
BEGIN
    DELETE FROM run_counts WHERE scope = 'replaced';
    INSERT INTO run_counts (scope, pipeline, run_status, slot, runs)
    SELECT 'replaced', pipeline, run_status, 0, COUNT(*) FROM task_runs
    WHERE run_id = NEW.run_id OR idempotency_key = NEW.idempotency_key
    OR (task_id = NEW.task_id AND attempt = NEW.attempt) GROUP BY pipeline, run_status;
END
""",
    """
CREATE TRIGGER task_runs_replaced AFTER INSERT ON task_runs
WHEN EXISTS (SELECT 1 FROM run_counts WHERE scope = 'replaced')
BEGIN
    UPDATE run_counts SET runs = runs - (
        SELECT SUM(it.runs) FROM run_counts it
        WHERE it.scope = 'replaced' AND it.run_status = run_counts.run_status
    )
    WHERE scope = 'all' AND run_status IN (SELECT run_status FROM run_counts WHERE scope = 'replaced');
    UPDATE run_counts SET runs = runs - (
        SELECT it.runs FROM run_counts it
        WHERE it.scope = 'replaced' AND it.pipeline = run_counts.pipeline AND it.run_status = run_counts.run_status
    )
    WHERE scope = 'pipeline'
    AND (pipeline, run_status) IN (SELECT pipeline, run_status FROM run_counts WHERE scope = 'replaced');
    DELETE FROM run_counts WHERE scope = 'replaced';
END
""",
    """
CREATE TRIGGER task_runs_changing BEFORE UPDATE OF run_id, idempotency_key, task_id, attempt ON task_runs
WHEN (OLD.run_id, OLD.idempotency_key, OLD.task_id, OLD.attempt)
<> (NEW.run_id, NEW.idempotency_key, NEW.task_id, NEW.attempt)
BEGIN
    DELETE FROM run_counts WHERE scope = 'replaced';
    INSERT INTO run_counts (scope, pipeline, run_status, slot, runs)
    SELECT 'replaced', pipeline, run_status, 0, COUNT(*) FROM task_runs
    WHERE run_id <> OLD.run_id AND (run_id = NEW.run_id OR idempotency_key = NEW.idempotency_key
    OR (task_id = NEW.task_id AND attempt = NEW.attempt)) GROUP BY pipeline, run_status;
END
""",
    """
CREATE TRIGGER task_runs_changed AFTER UPDATE OF run_id, idempotency_key, task_id, attempt ON task_runs
WHEN (OLD.run_id, OLD.idempotency_key, OLD.task_id, OLD.attempt)
<> (NEW.run_id, NEW.idempotency_key, NEW.task_id, NEW.attempt)
AND EXISTS (SELECT 1 FROM run_counts WHERE scope = 'replaced')
BEGIN
    UPDATE run_counts SET runs = runs - (
        SELECT SUM(it.runs) FROM run_counts it
        WHERE it.scope = 'replaced' AND it.run_status = run_counts.run_status
    )
    WHERE scope = 'all' AND run_status IN (SELECT run_status FROM run_counts WHERE scope = 'replaced');
    UPDATE run_counts SET runs = runs - (
        SELECT it.runs FROM run_counts it
        WHERE it.scope = 'replaced' AND it.pipeline = run_counts.pipeline AND it.run_status = run_counts.run_status
    )
    WHERE scope = 'pipeline'
    AND (pipeline, run_status) IN (SELECT pipeline, run_status FROM run_counts WHERE scope = 'replaced');
    DELETE FROM run_counts WHERE scope = 'replaced';
END
""",
)

POSTGRESQL = (
    """
CREATE OR REPLACE FUNCTION count_task_runs() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    free integer := 0;
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        DELETE FROM run_counts;
        RETURN NULL;
    END IF;
    IF TG_OP = 'UPDATE' THEN
        IF NOT EXISTS (SELECT pipeline, run_status FROM added EXCEPT ALL SELECT pipeline, run_status FROM gone) THEN
            RETURN NULL;
        END IF;
    END IF;
    IF current_setting('transaction_isolation') = 'read committed' THEN
        WHILE NOT pg_try_advisory_xact_lock(TG_RELID::integer, free) LOOP
            free := free + 1;
        END LOOP;
    ELSE
        free := -pg_backend_pid();
    END IF;
    IF TG_OP = 'INSERT' THEN
        INSERT INTO run_counts AS counted (scope, pipeline, run_status, slot, runs)
        SELECT CASE GROUPING(pipeline) WHEN 1 THEN 'all' ELSE 'pipeline' END, COALESCE(pipeline, ''), run_status, free,
            COUNT(*)
        FROM added GROUP BY GROUPING SETS ((run_status), (pipeline, run_status))
        ON CONFLICT (scope, pipeline, run_status, slot) DO UPDATE SET runs = counted.runs + excluded.runs;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO run_counts AS counted (scope, pipeline, run_status, slot, runs)
        SELECT CASE GROUPING(pipeline) WHEN 1 THEN 'all' ELSE 'pipeline' END, COALESCE(pipeline, ''), run_status, free,
            -COUNT(*)
        FROM gone GROUP BY GROUPING SETS ((run_status), (pipeline, run_status))
        ON CONFLICT (scope, pipeline, run_status, slot) DO UPDATE SET runs = counted.runs + excluded.runs;
    ELSE
        INSERT INTO run_counts AS counted (scope, pipeline, run_status, slot, runs)
        SELECT CASE GROUPING(pipeline) WHEN 1 THEN 'all' ELSE 'pipeline' END, COALESCE(pipeline, ''), run_status, free,
            SUM(change)
        FROM (
            SELECT pipeline, run_status, 1 AS change FROM added
            UNION ALL SELECT pipeline, run_status, -1 FROM gone
        ) changes
        GROUP BY GROUPING SETS ((run_status), (pipeline, run_status)) HAVING SUM(change) <> 0
        ON CONFLICT (scope, pipeline, run_status, slot) DO UPDATE SET runs = counted.runs + excluded.runs;
    END IF;
    RETURN NULL;
END
$$
""",
    # Its owner's rights, in this schema: other programs need none on run_counts, whatever their search_path is.
    """
DO $$ BEGIN
    EXECUTE 'ALTER FUNCTION count_task_runs() SET search_path = ' || quote_ident(current_schema()) || ', pg_temp';
END $$
""",
    """
CREATE TRIGGER task_runs_added AFTER INSERT ON task_runs
REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION count_task_runs()
""",
    """
CREATE TRIGGER task_runs_moved AFTER UPDATE ON task_runs
REFERENCING OLD TABLE AS gone NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION count_task_runs()
""",
    """
CREATE TRIGGER task_runs_gone AFTER DELETE ON task_runs
REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION count_task_runs()
""",
    """
CREATE TRIGGER task_runs_emptied AFTER TRUNCATE ON task_runs FOR EACH STATEMENT EXECUTE FUNCTION count_task_runs()
""",
)

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
"""Who may read the runs may read how many there are."""


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
    for statement in POSTGRESQL if on_server else SQLITE:
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
