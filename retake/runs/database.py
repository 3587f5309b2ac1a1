"""The connections and transactions of a SQL ledger, and database errors with advice."""

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
"""Seconds that a writer of SQLite waits for another."""

CONNECT_S = 10
"""Seconds to connect to a server, unless `connect_timeout` in the URL or PGCONNECT_TIMEOUT is set."""


LEDGER_SETTING = "STORAGE.ledger"


class AttemptTaken(Exception):
    """Another run of the task took this attempt first: the ledger takes the next one."""


class Database:
    """The connections to one database. `name` is for messages and has no password. Thread safe.

    Idle connections are kept in a list: a pool of SQLAlchemy's would take as long as a statement of SQLite.
    """

    def __init__(self, engine: Engine, name: str, setting: str = LEDGER_SETTING) -> None:
        self.engine = engine
        self.name = name
        self.setting = setting
        self.dialect = engine.dialect
        self._idle: list[PoolProxiedConnection] = []
        driver = engine.dialect.loaded_dbapi
        self._errors: type[Exception] = driver.Error
        self._integrity: type[Exception] = driver.IntegrityError
        self._begin = "BEGIN IMMEDIATE" if self.dialect.name == "sqlite" else "BEGIN"

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()
        self.engine.dispose()

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        """Yield a cursor of the driver that commits each statement. Raises StorageError, AttemptTaken."""
        connection = self._connection()
        cursor = None
        try:
            cursor = connection.cursor()
            yield cursor
        except self._errors as error:
            if self.dialect.is_disconnect(error, connection.dbapi_connection, None):  # type: ignore[arg-type]
                connection.invalidate(error)
                self.close()  # the idle ones are lost too
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
        """Yield a cursor whose statements are committed together, or rolled back. On SQLite it takes the write lock at
        the start."""
        with self.cursor() as cursor:
            cursor.execute(self._begin)
            try:
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:
                with suppress(self._errors):  # the connection was lost, or SQLite has rolled back already
                    cursor.execute("ROLLBACK")
                raise

    def write(self) -> Any:
        """Return a cursor for one `Write`, in a transaction where that takes several statements."""
        return self.transaction() if self.dialect.name == "sqlite" else self.cursor()

    def _in_words(self, error: Exception) -> Exception:
        driven = error.orig if isinstance(error, DBAPIError) and error.orig else error
        if isinstance(driven, self._integrity) and self._names_the_attempt(driven):
            return AttemptTaken()
        return in_words(driven, self.name, self.setting)

    def _names_the_attempt(self, error: BaseException) -> bool:
        diagnosis = getattr(error, "diag", None)
        if diagnosis is not None:
            return bool(diagnosis.constraint_name == TAKEN_ATTEMPT)
        return "task_runs.attempt" in str(error)


def in_words(error: BaseException, name: str, setting: str = LEDGER_SETTING) -> RetakeError:
    """Return the error for a driver's error, with advice for the reader. `setting` names the database."""
    what = f"the {'ledger' if setting == LEDGER_SETTING else 'database'} at {name}"
    message = redact(" ".join(str(error).split()))
    for part, advice in ADVICE.items():
        if part in message:
            return (StorageKeyRefused if advice is LOGIN_ADVICE else StorageError)(
                f"{what}: {message}. {advice.replace(LEDGER_SETTING, setting)}"
            )
    return StorageError(f"{what}: {message}. Either nothing was changed or everything; try again")


LOGIN_ADVICE = "Give the password in PGPASSWORD or ~/.pgpass, and check the user in STORAGE.ledger"
ADVICE = {
    "locked": f"Another process has been writing for {BUSY_S} s; try again, and see what it does",
    "readonly": "Check the permissions of the file and its folder, or do not open it read-only",
    "read-only": "Check the privileges of the user, or do not open it read-only",
    "unable to open": "Check the path in STORAGE.ledger and the permissions of the folder",
    "disk is full": "Free some space; nothing was changed",
    "not a database": "The file is something else and was not changed. Name another one in STORAGE.ledger",
    "malformed": "The file is damaged: move it away, and restore a backup or start with a new one",
    "password": LOGIN_ADVICE,
    "authentication failed": LOGIN_ADVICE,
    "does not exist": "Create it (createdb, createuser), or correct STORAGE.ledger",
    "permission denied": "Let the user create tables there: GRANT CREATE, USAGE ON SCHEMA public TO …",
    "connection": "Check that the server is running and reachable (pg_isready), then try again",
}
"""Advice, by a part of the driver's message."""


def open_database(url: str, *, read_only: bool, setting: str = LEDGER_SETTING) -> Database:
    """Return the database at `url`, which connects when first used; `setting` is where the URL stands.

    Raises SettingsError for an invalid URL.
    """
    kind, _, rest = url.partition(":")
    if kind == "sqlite":
        return sqlite_file(rest, read_only=read_only, setting=setting)
    return server(url, read_only=read_only, setting=setting)


def sqlite_file(path: str, *, read_only: bool, setting: str = LEDGER_SETTING) -> Database:
    """Return the SQLite database in a file. Raises SettingsError, StorageError."""
    if not path or path.startswith(":") or "\0" in path:
        raise SettingsError(f'{setting}: "sqlite:{path}" names no file; use sqlite:PATH')
    if read_only and not Path(path).exists():
        return nowhere()
    if not read_only:
        _make_folder(path, setting)
    uri = f"file:{quote(path)}?mode={'ro' if read_only else 'rwc'}"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")  # a commit survives a power cut
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool, paramstyle="named")
    return Database(engine, f"sqlite:{path}", setting)


def _make_folder(path: str, setting: str) -> None:
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"the database at sqlite:{path}: its folder cannot be created ({error.strerror}). Correct {setting}"
        ) from error


def nowhere() -> Database:
    """Return an empty database in memory, to read where there is no ledger yet."""

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)

    engine = create_engine("sqlite://", creator=connect, poolclass=StaticPool, paramstyle="named")
    return Database(engine, "an empty ledger")


def server(url: str, *, read_only: bool, setting: str = LEDGER_SETTING) -> Database:
    """Return the PostgreSQL database at `url`. Raises SettingsError."""
    require("postgres", f"{setting}: a ledger in PostgreSQL")
    import psycopg

    try:
        parsed = make_url(url).set(drivername="postgresql+psycopg")
        named = parsed.set(drivername="postgresql").render_as_string(hide_password=True)
        engine = create_engine(parsed, module=psycopg, use_native_hstore=False, poolclass=NullPool, **_timeout(parsed))
    except (ArgumentError, ValueError, TypeError) as error:
        raise SettingsError(
            f'{setting}: "{redact(url)}" is not the URL of a database; use postgresql://USER@HOST:PORT/DATABASE'
        ) from error

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        connection.autocommit = True
        connection.execute("SET TIME ZONE 'UTC'")
        if read_only:
            connection.execute("SET default_transaction_read_only = on")

    return Database(engine, named, setting)


def _timeout(url: URL) -> dict[str, Any]:
    import os

    if "connect_timeout" in url.query or "PGCONNECT_TIMEOUT" in os.environ:
        return {}
    return {"connect_args": {"connect_timeout": CONNECT_S}}
