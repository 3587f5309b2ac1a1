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

-- Its owner's rights, in this schema: other programs need none on run_counts, whatever their search_path is.
DO $$ BEGIN
    EXECUTE 'ALTER FUNCTION count_task_runs() SET search_path = ' || quote_ident(current_schema()) || ', pg_temp';
END $$

CREATE TRIGGER task_runs_added AFTER INSERT ON task_runs
REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION count_task_runs()

CREATE TRIGGER task_runs_moved AFTER UPDATE ON task_runs
REFERENCING OLD TABLE AS gone NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION count_task_runs()

CREATE TRIGGER task_runs_gone AFTER DELETE ON task_runs
REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION count_task_runs()

CREATE TRIGGER task_runs_emptied AFTER TRUNCATE ON task_runs FOR EACH STATEMENT EXECUTE FUNCTION count_task_runs()
