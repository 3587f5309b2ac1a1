"""Check the tables of a ledger's database: that they are intact and complete, and that their counts are right."""

from collections import Counter
from collections.abc import Iterator

from sqlalchemy import Connection, inspect

from retake.checking.examination import CheckFinding, found
from retake.runs.database import Database
from retake.runs.tables import metadata, task_runs

DAMAGED = "database-damaged"
CONSTRAINT_MISSING = "database-constraint-missing"
VERSION = "database-version"
OLD = "database-old"
KEPT_WRONG = "kept-counts-wrong"

MAX_FAULTS = 20

COUNTS = "run_counts"
"""The table of counts by status, and by pipeline and status. Earlier versions of the tables lack it."""

COUNTING = frozenset({"task_runs_added", "task_runs_moved", "task_runs_gone"})
"""The triggers that keep the counts. A database may have more."""

_TRIGGERS = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger'",
    "postgresql": "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgenabled <> 'D'",
}
_LOCK = {
    "sqlite": ("BEGIN IMMEDIATE",),
    "postgresql": ("BEGIN", "LOCK TABLE task_runs IN SHARE ROW EXCLUSIVE MODE"),
}
_KEPT = "SELECT scope, pipeline, run_status, sum(runs) FROM run_counts WHERE scope <> 'replaced' GROUP BY 1, 2, 3"
_ACTUAL = """
    SELECT 'all' AS scope, '' AS pipeline, run_status, count(*) AS runs FROM task_runs GROUP BY run_status
    UNION ALL SELECT 'pipeline', pipeline, run_status, count(*) FROM task_runs GROUP BY pipeline, run_status"""
_RECOUNT = f"""
    INSERT INTO run_counts (scope, pipeline, run_status, slot, runs)
    SELECT it.scope, it.pipeline, it.run_status, 0, it.runs FROM ({_ACTUAL}) it"""  # noqa: S608  # constants


def table_faults(connection: Connection, where: str) -> Iterator[CheckFinding]:
    """Yield damage to the file (SQLite only), and missing constraints, indexes and triggers."""
    if connection.dialect.name == "sqlite":
        rows = connection.exec_driver_sql(f"PRAGMA integrity_check({MAX_FAULTS})")
        faults = [str(it) for (it,) in rows if it != "ok"]
        for it in faults[:MAX_FAULTS]:
            yield found(DAMAGED, where, " ".join(it.split())[:300])
        if faults:
            return
    there = _named(connection)
    for table in metadata.sorted_tables:
        rules = [*table.constraints, *(rule for column in table.columns for rule in column.constraints)]
        names = {*(it.name for it in rules), *(it.name for it in table.indexes)}
        for item in sorted(str(it) for it in names if it):
            if item not in there:
                yield found(CONSTRAINT_MISSING, table.name, f"it lacks {item}")
    if inspect(connection).has_table(COUNTS):
        triggers = {str(it) for (it,) in connection.exec_driver_sql(_TRIGGERS[connection.dialect.name])}
        for item in sorted(COUNTING - triggers):
            yield found(CONSTRAINT_MISSING, task_runs.name, f"it lacks the trigger {item}, which keeps {COUNTS}")


def _named(connection: Connection) -> set[str]:
    """Return the names of the constraints and indexes of all tables."""
    if connection.dialect.name == "postgresql":
        query = "SELECT conname FROM pg_constraint UNION SELECT indexname FROM pg_indexes"
        return {str(it) for (it,) in connection.exec_driver_sql(query)}
    rows = [*connection.exec_driver_sql("SELECT name, coalesce(sql, '') FROM sqlite_master")]
    words = {word.strip('"`[],()') for _, sql in rows for word in sql.split()}
    return {str(name) for name, _ in rows} | words


# --- counts that the database keeps -----------------------------------------------------------------------------------


def count_faults(connection: Connection) -> Iterator[CheckFinding]:
    """Yield the kept counts that are wrong."""
    if not inspect(connection).has_table(COUNTS):
        return
    said, there = _groups(connection, _KEPT), _groups(connection, _ACTUAL)
    for group in sorted({*said, *there}, key=str):
        if said[group] != there[group]:
            _, pipeline, status = map(str, group)
            named = f"{status} in {pipeline}" if pipeline else status
            what = f"it counts {said[group]} runs that are {named:.100}, but there are {there[group]}"
            yield found(KEPT_WRONG, COUNTS, what)


def count_again(database: Database) -> list[str]:
    """Rebuild the kept counts while writers are locked out. Raises the driver's errors."""
    with database.engine.connect() as connection:
        for statement in (*_LOCK[connection.dialect.name], "DELETE FROM run_counts", _RECOUNT):
            connection.exec_driver_sql(statement)
        connection.commit()
    return [f"{COUNTS} was counted again"]


def _groups(connection: Connection, query: str) -> Counter[tuple[str, ...]]:
    return Counter({tuple(it): int(number) for *it, number in connection.exec_driver_sql(query) if number})
