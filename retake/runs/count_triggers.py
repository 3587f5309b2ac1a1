"""The triggers that keep `run_counts`: how many runs are in each state, of all pipelines and of each one.

Whoever writes to `task_runs` is counted, in the same transaction. retake/runs/migrations creates the same triggers.

On PostgreSQL a count has several rows, one for each slot, and the number is their sum. A transaction takes a slot that
no other open transaction has, so that no one waits for another's commit and no deadlock is possible: there are as many
slots as there were ever writers at the same moment. Above READ COMMITTED a transaction must not change what another one
has changed since it began: there each backend has a slot of its own. The triggers are of statements, so that a
statement for a million rows changes each count once. On SQLite, with one writer at a time, the slot is 0.
"""

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

TRIGGERS = {"sqlite": SQLITE, "postgresql": POSTGRESQL}
"""The statements that create them, by database."""
