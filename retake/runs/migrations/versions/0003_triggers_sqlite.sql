CREATE TRIGGER task_runs_added AFTER INSERT ON task_runs
BEGIN
    INSERT INTO run_counts (scope, pipeline, run_status, slot, runs)
    VALUES ('all', '', NEW.run_status, 0, 1), ('pipeline', NEW.pipeline, NEW.run_status, 0, 1)
    ON CONFLICT (scope, pipeline, run_status, slot) DO UPDATE SET runs = runs + 1;
END

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

CREATE TRIGGER task_runs_gone AFTER DELETE ON task_runs
BEGIN
    UPDATE run_counts SET runs = runs - 1
    WHERE scope = 'all' AND pipeline = '' AND run_status = OLD.run_status AND slot = 0;
    UPDATE run_counts SET runs = runs - 1
    WHERE scope = 'pipeline' AND pipeline = OLD.pipeline AND run_status = OLD.run_status AND slot = 0;
    UPDATE run_counts SET runs = runs - 1
    WHERE scope = 'replaced' AND pipeline = OLD.pipeline AND run_status = OLD.run_status AND slot = 0;
END

-- INSERT OR REPLACE and UPDATE OR REPLACE delete rows without the trigger of DELETE, unless recursive_triggers is
-- on. So the rows in the way are noted before, and taken off after it, which is not reached if the row is refused.
CREATE TRIGGER task_runs_adding BEFORE INSERT ON task_runs
BEGIN
    DELETE FROM run_counts WHERE scope = 'replaced';
    INSERT INTO run_counts (scope, pipeline, run_status, slot, runs)
    SELECT 'replaced', pipeline, run_status, 0, COUNT(*) FROM task_runs
    WHERE run_id = NEW.run_id OR idempotency_key = NEW.idempotency_key
    OR (task_id = NEW.task_id AND attempt = NEW.attempt) GROUP BY pipeline, run_status;
END

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
