"""Fills a ledger with runs in bulk, as after years of work; ninety per cent of them have succeeded."""

from retake.runs.database import Database

COLUMNS = (
    "run_id, task_id, attempt, idempotency_key, run_status, created_at, updated_at, version, pipeline, "
    "next_retry_at, heartbeat_at, resumes, last_seq"
)

RUN = """
    {id}, 'task ' || (n / 2), 1 + n % 2, 'task ' || (n / 2) || '#' || (n % 2), status,
    {moment}, {moment}, 2, 'story/channel ' || (n % 20),
    CASE status WHEN 'retry_scheduled' THEN {moment} END, CASE status WHEN 'running' THEN {moment} END, 0, 1
"""

STATUS = """
    CASE WHEN n % 100 < 90 THEN 'succeeded' WHEN n % 100 < 94 THEN 'failed' WHEN n % 100 < 95 THEN 'cancelled'
    WHEN n % 100 < 97 THEN 'queued' WHEN n % 100 < 98 THEN 'retry_scheduled' WHEN n % 100 < 99 THEN 'running'
    ELSE 'interrupted' END AS status
"""

EVENT = """
    {id}, 1, 'run.status.changed', {moment}, 'trace-' || n,
    ('{{"task_id": "task ' || n || '", "previous_status": "running", "status": "' || status || '"}}'){json}
"""

SQLITE = {
    "numbers": "WITH RECURSIVE numbers(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM numbers WHERE n < {last})",
    "id": "'run-' || printf('%016x', n * 2654435761 % 4294967296)",  # scattered, as hashes are
    "moment": "strftime('%Y-%m-%dT%H:%M:%S.000000Z', 1700000000 + n * 40, 'unixepoch')",
    "json": "",
    "after": "PRAGMA wal_checkpoint(TRUNCATE)",
}
POSTGRES = {
    "numbers": "WITH numbers AS (SELECT n FROM generate_series({first}, {last}) n)",
    "id": "'run-' || lpad(to_hex(n * 2654435761 % 4294967296), 16, '0')",
    "moment": "to_timestamp(1700000000 + n * 40)",
    "json": "::json",
    "after": "VACUUM ANALYZE",  # as autovacuum would, sooner or later
}


def grow(database: Database, size: int) -> None:
    """Add runs to `database` until it has `size`, and one event for each new run."""
    words = SQLITE if database.dialect.name == "sqlite" else POSTGRES
    with database.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM task_runs")
        (existing,) = cursor.fetchone()
        if database.dialect.name == "sqlite":
            cursor.execute("PRAGMA synchronous = OFF")
            cursor.execute("PRAGMA cache_size = -500000")
        numbers = words["numbers"].format(first=existing, last=size - 1)
        for table, row in ((f"task_runs ({COLUMNS})", RUN), ("events", EVENT)):
            rows = f"{numbers} SELECT {row.format(**words)} FROM (SELECT n, {STATUS} FROM numbers) it"  # noqa: S608
            cursor.execute(f"INSERT INTO {table} {rows}")
        cursor.execute(words["after"])
