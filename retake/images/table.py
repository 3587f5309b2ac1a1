"""The PostgreSQL table jobs2: jobs that must not be lost even while Redis is unreachable (docs/images.md, "State").

A row is pending until its job is ready or failed, and completed once the job was cleaned up. Rows are kept; clients are
answered from Redis.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from retake.clock import Clock
from retake.errors import StorageError
from retake.foreign_text import storable
from retake.images.jobs import ImageJob, TextRequest, iso, job_of
from retake.images.rows import AHEAD_S, TableAway, TableRow
from retake.images.store import IDEMPOTENCY_S, key_hash
from retake.runs.database import Database, open_database
from retake.runs.schema import TableSchema, bring_up_to_date, version
from retake.strict_json import parse

ANSWER_S = 3
"""Seconds within which PostgreSQL must connect, and within which it must answer a statement."""

_CREATE_S = 10.0  # seconds that creating a job in Redis may take while its row is locked

T = TypeVar("T")


metadata = sa.MetaData()


def _moment(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False, server_default=sa.text("now()"))


jobs2 = sa.Table(
    "jobs2",
    metadata,
    sa.Column("id", sa.Uuid, primary_key=True),
    sa.Column("user_id", sa.Text, nullable=False),
    sa.Column("prompt", sa.Text, nullable=False),
    sa.Column("parameters", JSONB, nullable=False, server_default=sa.text("'{}'::jsonb")),
    sa.Column("status", sa.Text, nullable=False, server_default=sa.text("'pending'")),
    sa.Column("error", sa.Text),
    sa.Column("output_r2_key", sa.Text),
    sa.Column("executed_by_comfyui_server", sa.Text),
    _moment("created_at"),
    _moment("updated_at"),
    sa.CheckConstraint("status IN ('pending', 'ready', 'completed', 'failed')", name="ck_jobs2_status"),
)
keys = sa.Table(
    "jobs2_keys",
    metadata,
    sa.Column("user_id", sa.Text, primary_key=True),
    sa.Column("key_hash", sa.Text, primary_key=True),
    sa.Column("job_id", sa.Uuid, nullable=False),
    _moment("created_at"),
)
sa.Index("ix_jobs2_open", jobs2.c.id, postgresql_where=sa.text("status IN ('pending', 'ready')"))
sa.Index("ix_jobs2_keys_created", keys.c.created_at)

SCHEMA = TableSchema(
    ("0001",), "retake_images_schema", Path(__file__).parent / "migrations", metadata, "the image-job service"
)

_ROW = "id, user_id, status, error, output_r2_key, executed_by_comfyui_server"

# A key that is a day ahead, even of PostgreSQL's own clock, was written by a wrong clock.
_TAKE_KEY = """
INSERT INTO jobs2_keys (user_id, key_hash, job_id, created_at) VALUES (%(user_id)s, %(key)s, %(id)s, %(now)s)
ON CONFLICT (user_id, key_hash) DO UPDATE SET job_id = excluded.job_id, created_at = excluded.created_at
WHERE jobs2_keys.created_at <= %(before)s OR jobs2_keys.created_at > greatest(now(), %(now)s) + interval '1 day'
RETURNING job_id
"""
_KEY = "SELECT job_id FROM jobs2_keys WHERE user_id = %(user_id)s AND key_hash = %(key)s"
_ADD = """
INSERT INTO jobs2 (id, user_id, prompt, parameters, created_at, updated_at)
VALUES (%(id)s, %(user_id)s, %(prompt)s, %(parameters)s, %(now)s, %(now)s) ON CONFLICT (id) DO NOTHING
"""
_READY = """
UPDATE jobs2 SET status = 'ready', output_r2_key = %(key)s, executed_by_comfyui_server = %(by)s, updated_at = %(now)s
WHERE id = %(id)s AND status = 'pending'
"""
_COMPLETED = """
UPDATE jobs2 SET status = 'completed', output_r2_key = coalesce(%(key)s, output_r2_key),
executed_by_comfyui_server = coalesce(%(by)s, executed_by_comfyui_server), updated_at = %(now)s
WHERE id = %(id)s AND status IN ('pending', 'ready')
"""
_FAILED = """
UPDATE jobs2 SET status = 'failed', error = %(error)s, updated_at = %(now)s
WHERE id = %(id)s AND status IN ('pending', 'ready')
"""
_REOPEN = """
UPDATE jobs2 SET status = 'pending', error = NULL, updated_at = %(now)s WHERE id = %(id)s AND status = 'failed'
"""
_GET = f"SELECT {_ROW} FROM jobs2 WHERE id = %(id)s"  # noqa: S608  constants
_OPEN = f"""
SELECT {_ROW}, updated_at < %(before)s OR updated_at > %(ahead)s FROM jobs2 WHERE status IN ('pending', 'ready')
AND (%(after)s::uuid IS NULL OR id > %(after)s::uuid) ORDER BY id LIMIT %(limit)s
"""  # noqa: S608  constants
# Python lacks some times, nesting depths and numbers that PostgreSQL has.
_LOCK = """
SELECT user_id, prompt, parameters::text, least(greatest(created_at, 'epoch'), now())
FROM jobs2 WHERE id = %(id)s AND status = 'pending'
FOR UPDATE SKIP LOCKED
"""
_KEY_OF = "SELECT key_hash FROM jobs2_keys WHERE job_id = %(id)s AND user_id = %(user_id)s AND created_at > %(before)s"
_TOUCH = "UPDATE jobs2 SET updated_at = %(now)s WHERE id = %(id)s"
_FORGET = """
DELETE FROM jobs2_keys WHERE ctid = ANY (ARRAY(
SELECT ctid FROM jobs2_keys WHERE created_at <= %(before)s OR created_at > greatest(now(), %(now)s) + interval '1 day'
LIMIT 1000 FOR UPDATE SKIP LOCKED))
"""


class JobTable:
    """The rows of jobs2. Thread-safe.

    Every method may raise TableAway, within six seconds, and can then be repeated. A completed or failed status no
    longer changes, except by `reopen`.
    """

    def __init__(self, url: str, clock: Clock) -> None:
        """Connect on first use. `clock` is the jobs' clock: their times are compared with those of rows. Raises
        SettingsError for a URL that cannot be used."""
        self._clock = clock
        self._database = open_database(
            url, read_only=False, setting="DATABASE_URL", connect_s=ANSWER_S, answer_s=ANSWER_S
        )

        @sa.event.listens_for(self._database.engine, "connect")
        def bound(connection: Any, _record: Any) -> None:
            connection.execute(f"SET statement_timeout = {ANSWER_S * 1000}")
            connection.execute(f"SET idle_in_transaction_session_timeout = {round(2000 * _CREATE_S)}")

    def close(self) -> None:
        """Close the idle connections."""
        self._database.close()

    def prepare(self, *, look_only: bool = False) -> None:
        """Create the tables or migrate them to the newest version; with `look_only` change nothing.

        Raises StateError for tables of a newer Retake.
        """
        with _table_errors():
            if look_only:
                version(self._database, SCHEMA)
            else:
                bring_up_to_date(self._database, SCHEMA)

    def ping(self) -> None:
        """Return if PostgreSQL answers, else raise TableAway."""
        self._do(lambda cursor: cursor.execute("SELECT 1"))

    def add(self, job: ImageJob, idempotency_key: str = "") -> str:
        """Add a pending row for a new job and return its id.

        If the same user made an older job with the same key within a day, return the id of that one: nothing was added,
        and nothing is to be created in Redis. Raises ValueError for text that PostgreSQL cannot store (a NUL, half a
        surrogate pair).
        """
        given = self._given(job.job_id, user_id=job.user_id, prompt=job.text.prompt, key=key_hash(idempotency_key))
        parameters = {name: it for name, it in job.text._asdict().items() if name != "prompt"}
        for it in (job.text.prompt, job.text.negative_prompt, *job.text.styles):
            storable(it)

        def add(cursor: Any) -> str:
            from psycopg.types.json import Jsonb

            if idempotency_key and not cursor.execute(_TAKE_KEY, given).fetchone():
                return str(cursor.execute(_KEY, given).fetchone()[0])  # this very job if an answer was lost
            cursor.execute(_ADD, {**given, "parameters": Jsonb(parameters)})
            return job.job_id

        return self._do(add)

    def get(self, job_id: str) -> TableRow | None:
        """Return the row of a job, or None."""
        row = self._do(lambda cursor: cursor.execute(_GET, {"id": job_id}).fetchone())
        return _row(row) if row else None

    def ready(self, job_id: str, output_r2_key: str, executed_by: str) -> None:
        """Record that the job of a pending row is ready."""
        given = self._given(job_id, key=_kept(output_r2_key), by=_kept(executed_by))
        self._do(lambda cursor: cursor.execute(_READY, given))

    def completed(self, job_id: str, output_r2_key: str = "", executed_by: str = "") -> None:
        """Record that a job which was ready is about to be cleaned up."""
        given = self._given(job_id, key=_kept(output_r2_key) or None, by=_kept(executed_by) or None)
        self._do(lambda cursor: cursor.execute(_COMPLETED, given))

    def failed(self, job_id: str, error: str) -> None:
        """Record that the job of a pending or ready row has failed, and why."""
        given = self._given(job_id, error=_kept(error))
        self._do(lambda cursor: cursor.execute(_FAILED, given))

    def reopen(self, job_id: str) -> None:
        """Make a failed row pending again, by order of an operator: the only change of a row that has ended."""
        self._do(lambda cursor: cursor.execute(_REOPEN, self._given(job_id)))

    def open_rows(self, before: str, after: str = "", limit: int = 500) -> list[TableRow]:
        """Return the pending and ready rows whose id is greater than `after`, ordered by id.

        `before` is a time as stored in hashes: rows last changed before it, or by a wrong clock, are `old`.
        """
        ahead = self._clock.now() + timedelta(seconds=AHEAD_S)
        given = {"before": before, "ahead": ahead, "after": after or None, "limit": limit}
        return [_row(it) for it in self._do(lambda cursor: cursor.execute(_OPEN, given).fetchall())]

    def bring_in(self, job_id: str, create: Callable[[ImageJob, str], bool]) -> bool:
        """Call `create` with the job of a pending row and the hash of its idempotency key, or "", while the row is
        locked.

        Return what `create` returns, or False if it was not called, because somebody else does it or the row is no
        longer pending: clean-up ends the row before it removes the job from Redis, so what was cleaned up is not
        created a second time. Raises what `create` raises.
        """

        def bring(cursor: Any) -> bool:
            given = self._given(job_id)
            row = cursor.execute(_LOCK, given).fetchone()
            if not row:
                return False
            key = cursor.execute(_KEY_OF, {**given, "user_id": row[0]}).fetchone()
            created = create(_job(job_id, row), str(key[0]) if key else "")
            cursor.execute(_TOUCH, given)
            return created

        return self._do(bring, _CREATE_S)

    def forget_keys(self) -> None:
        """Delete expired idempotency keys, a thousand at most."""
        self._do(lambda cursor: cursor.execute(_FORGET, self._given("")))

    def _given(self, job_id: str, **more: Any) -> dict[str, Any]:
        now = self._clock.now()
        return {"id": job_id, "now": now, "before": now - timedelta(seconds=IDEMPOTENCY_S), **more}

    def _do(self, work: Callable[[Any], T], more_s: float = 0.0) -> T:
        """Run `work` with a cursor in a transaction and return its result. A lost connection is replaced once."""
        ends = monotonic() + ANSWER_S + more_s
        with _table_errors():
            try:
                return _once(self._database, work, ends)
            except StorageError:
                if monotonic() >= ends:
                    raise
            return _once(self._database, work, ends)


def _once(database: Database, work: Callable[[Any], T], ends: float) -> T:
    with database.cursor() as cursor, cursor.connection.until(ends), cursor.connection.transaction():
        return work(cursor)


@contextmanager
def _table_errors() -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        away = TableAway(str(error))
        away.exit_code = error.exit_code  # CONFIG if the user or the password is refused
        raise away from None


def _row(row: Any) -> TableRow:
    job_id, user_id, status, error, output, executed_by, *old = row
    return TableRow(str(job_id), user_id, status, error or "", output or "", executed_by or "", bool(old and old[0]))


def _job(job_id: str, row: Any) -> ImageJob:
    user_id, prompt, parameters, created_at = row
    try:
        known = parse(parameters)
    except ValueError:
        known = {}
    given = known.items() if isinstance(known, dict) else ()
    fields = {name: json.dumps(it) if isinstance(it, list) else str(it) for name, it in given if it is not None}
    job = job_of(job_id, {name: fields[name] for name in TextRequest._fields if name in fields} | {"prompt": prompt})
    return job._replace(user_id=user_id, created_at=iso(created_at), in_table=True)


def _kept(words: str) -> str:
    """Return a text from Redis in a form that PostgreSQL can store."""
    return words.replace("\0", "").encode("utf-8", "replace").decode()
