"""A database as SQL ledgers use it: its connections, its transactions, and its errors in words a person can act on."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Engine, NullPool, PoolProxiedConnection, StaticPool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from retake.errors import RetakeError, SettingsError, StorageError, StorageKeyRefused, redact
from retake.extras import require
from retake.runs.tables import TAKEN_ATTEMPT

BUSY_S = 30
"""How long a writer of SQLite waits for the one before it."""

CONNECT_S = 10
"""How long a server may take to answer the first time; `connect_timeout` in the URL or PGCONNECT_TIMEOUT say other."""


class AttemptTaken(Exception):
    """Another run of the task got this attempt first. A fact for the ledger, which takes the next one."""


class Database:
    """The connections to one database. `name` is what messages call it: never with a password.

    A connection that is not in use is kept in a list: taking it from one of the toolkit's pools, and giving it back,
    would take as long as a statement of SQLite's. May be used from several threads; each has a connection meanwhile.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine = engine
        self.name = name
        self.dialect = engine.dialect
        self._idle: list[PoolProxiedConnection] = []
        driver = engine.dialect.loaded_dbapi
        self._errors: type[Exception] = driver.Error
        self._integrity: type[Exception] = driver.IntegrityError
        self._begin = "BEGIN IMMEDIATE" if self.dialect.name == "sqlite" else "BEGIN"

    def close(self) -> None:
        """Give back the connections that are not in use."""
        while self._idle:
            self._idle.pop().close()
        self.engine.dispose()

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        """The driver's cursor, of a connection that commits each statement. Raises StorageError, AttemptTaken."""
        connection = self._connection()
        cursor = None
        try:
            cursor = connection.cursor()
            yield cursor
        except self._errors as error:
            if self.dialect.is_disconnect(error, connection.dbapi_connection, None):  # type: ignore[arg-type]
                connection.invalidate(error)
                self.close()  # the others will not be better
            raise self._in_words(error) from error
        finally:
            if cursor:
                cursor.close()
            if connection.is_valid:
                self._idle.append(connection)
            else:
                connection.close()

    def _connection(self) -> PoolProxiedConnection:
        with suppress(IndexError):
            return self._idle.pop()
        try:
            return self.engine.raw_connection()
        except (self._errors, DBAPIError) as error:
            raise self._in_words(error) from error

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A cursor whose statements are done together at the end, or not at all. SQLite has one writer at a time: this
        one, from the start."""
        with self.cursor() as cursor:
            cursor.execute(self._begin)
            try:
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:
                with suppress(self._errors):  # it was lost, or SQLite has rolled back by itself
                    cursor.execute("ROLLBACK")
                raise

    def write(self) -> Any:
        """A cursor for one `Write`: a transaction where that needs several statements."""
        return self.transaction() if self.dialect.name == "sqlite" else self.cursor()

    def _in_words(self, error: Exception) -> Exception:
        driven = error.orig if isinstance(error, DBAPIError) and error.orig else error
        if isinstance(driven, self._integrity) and self._names_the_attempt(driven):
            return AttemptTaken()
        return in_words(driven, self.name)

    def _names_the_attempt(self, error: BaseException) -> bool:
        diagnosis = getattr(error, "diag", None)
        if diagnosis is not None:
            return bool(diagnosis.constraint_name == TAKEN_ATTEMPT)
        return "task_runs.attempt" in str(error)


def in_words(error: BaseException, name: str) -> RetakeError:
    """What a driver's error means for whoever reads it."""
    said = redact(" ".join(str(error).split()))
    for part, advice in ADVICE.items():
        if part in said:
            return (StorageKeyRefused if advice is NO_ENTRY else StorageError)(
                f"the ledger at {name}: {said}. {advice}"
            )
    return StorageError(f"the ledger at {name}: {said}. Nothing was changed, or all of it; try again")


NO_ENTRY = "Give the password in PGPASSWORD or ~/.pgpass, and look at the user in STORAGE.ledger"
ADVICE = {
    "locked": f"Another process has been writing for {BUSY_S} s; try again, and see what it does",
    "readonly": "Look at the rights of the file and of its folder, or do not open it for reading only",
    "read-only": "Look at the rights of the user, or do not open it for reading only",
    "unable to open": "Look at the path in STORAGE.ledger, and at the rights of the folder",
    "disk is full": "Make room; nothing was changed",
    "not a database": "The file is something else: it is left alone. Name another one in STORAGE.ledger",
    "malformed": "The file is damaged: put it aside, and take one of its copies, or begin a new one",
    "password": NO_ENTRY,
    "authentication failed": NO_ENTRY,
    "does not exist": "Make it (createdb, createuser), or correct STORAGE.ledger",
    "permission denied": "Let the user make tables there: GRANT CREATE, USAGE ON SCHEMA public TO …",
    "connection": "See that the server runs and can be reached (pg_isready), then try again",
}
"""What to do, by what the driver's message says."""


def open_database(url: str, *, read_only: bool) -> Database:
    """Connects when it is first used. Raises SettingsError for a URL that cannot be one."""
    kind, _, rest = url.partition(":")
    return sqlite_file(rest, read_only=read_only) if kind == "sqlite" else server(url, read_only=read_only)


def sqlite_file(path: str, *, read_only: bool) -> Database:
    if not path or path.startswith(":") or "\0" in path:
        raise SettingsError(f"STORAGE.ledger: «sqlite:{path}» names no file; use sqlite:PATH")
    if read_only and not Path(path).exists():
        return nowhere()
    if not read_only:
        _make_folder(path)
    uri = f"file:{quote(path)}?mode={'ro' if read_only else 'rwc'}"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")  # what is committed is there after a power cut
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool, paramstyle="named")
    return Database(engine, f"sqlite:{path}")


def _make_folder(path: str) -> None:
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"the ledger at sqlite:{path}: its folder cannot be made ({error.strerror}). Correct STORAGE.ledger"
        ) from error


def nowhere() -> Database:
    """An empty database that is gone when it is closed: what is read where there is none yet."""

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)

    engine = create_engine("sqlite://", creator=connect, poolclass=StaticPool, paramstyle="named")
    return Database(engine, "an empty ledger")


def server(url: str, *, read_only: bool) -> Database:
    require("postgres", "STORAGE.ledger: a ledger in PostgreSQL")
    import psycopg

    try:
        parsed = make_url(url).set(drivername="postgresql+psycopg")
        named = parsed.set(drivername="postgresql").render_as_string(hide_password=True)
        engine = create_engine(parsed, module=psycopg, use_native_hstore=False, poolclass=NullPool, **_timeout(parsed))
    except (ArgumentError, ValueError, TypeError) as error:
        raise SettingsError(
            f"STORAGE.ledger: «{redact(url)}» is no address of a database; use postgresql://USER@HOST:PORT/DATABASE"
        ) from error

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        connection.autocommit = True
        connection.execute("SET TIME ZONE 'UTC'")
        if read_only:
            connection.execute("SET default_transaction_read_only = on")

    return Database(engine, named)


def _timeout(url: URL) -> dict[str, Any]:
    import os

    if "connect_timeout" in url.query or "PGCONNECT_TIMEOUT" in os.environ:
        return {}
    return {"connect_args": {"connect_timeout": CONNECT_S}}
