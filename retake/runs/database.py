"""Connections and transactions of a SQL ledger, and its errors with advice."""

import json
import os
import sqlite3
import stat
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from logging import getLogger
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Engine, NullPool, PoolProxiedConnection, StaticPool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from retake.errors import (
    LedgerUnavailable,
    RetakeError,
    SettingsError,
    StateError,
    StorageError,
    StorageKeyRefused,
    redact,
)
from retake.extras import require
from retake.foreign_text import plain
from retake.runs.ledger import LEDGER_SETTING
from retake.runs.tables import TAKEN_ATTEMPT

BUSY_S = 30
"""Seconds that a writer in SQLite waits for another."""

CONNECT_S = 10
"""Seconds to connect to a server, unless `connect_timeout` in the URL or PGCONNECT_TIMEOUT is set."""

SILENCE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 60_000}
"""When a connection to a host that has vanished is given up, unless the URL says otherwise: after a minute. These are
parameters of libpq, the last in milliseconds. By the system's defaults it would take 15 minutes for a statement that
was not acknowledged, and two hours for an answer that is waited for, all that time under the lease of a tick."""

ANSWER_S = 120
"""Seconds that a server may be silent while a statement waits for it: a frozen server keeps its connections."""

_MAX_UNREADABLE_LOGGED = 1000
"""Maximum number of unreadable rows that a process logs for a database."""

_log = getLogger(__name__)

JSON = json.JSONEncoder().encode
"""The same as `json.dumps`, without its check for options in each call."""

_parent_connections: list[PoolProxiedConnection] = []
"""Connections of the parent process of a fork, kept here so that garbage collection does not close them."""


class AttemptTaken(Exception):
    """Another run has taken this attempt of the task. The ledger then takes the next one."""


class Database:
    """The connections to one database. `name` is for messages and contains no password. Thread safe.

    Idle connections are kept in a list: SQLAlchemy's pools take as long as a statement of SQLite.
    """

    def __init__(self, engine: Engine, name: str, setting: str = LEDGER_SETTING) -> None:
        self.engine = engine
        self.name = name
        self.setting = setting
        self.dialect = engine.dialect
        self._idle: list[PoolProxiedConnection] = []
        self._logged = set[str]()
        driver = engine.dialect.loaded_dbapi
        self._errors: type[Exception] = driver.Error
        self._integrity: type[Exception] = driver.IntegrityError
        self._in_transactions = self.dialect.name == "sqlite"
        self._begin = "BEGIN IMMEDIATE" if self._in_transactions else "BEGIN"
        weakref.finalize(self, _close, self._idle, engine)
        _databases.add(self)

    def close(self) -> None:
        """Close the idle connections. Happens at the latest when the database is garbage collected."""
        _close(self._idle, self.engine)

    def forked(self) -> None:
        """Leave the idle connections to the parent of a forked process: two processes on one connection would read
        each other's answers."""
        _parent_connections.extend(self._idle)
        self._idle.clear()

    def cursor(self) -> AbstractContextManager[Any]:
        """Return a context manager for a driver's cursor that commits each statement. The block raises StorageError
        and AttemptTaken."""
        return BorrowedCursor(self)

    def transaction(self) -> AbstractContextManager[Any]:
        """Return a context manager for a cursor whose statements are committed together, or rolled back. On SQLite it
        takes the write lock first."""
        return CursorTransaction(self.cursor(), self._begin, self._errors)

    def write(self) -> AbstractContextManager[Any]:
        """Return a context manager for a cursor for one `Write`, in a transaction if that takes several statements."""
        return self.transaction() if self._in_transactions else self.cursor()

    def unreadable(self, error: StateError) -> None:
        """Log once that a row cannot be read, for queries that leave such rows out (`Prepared.run`)."""
        if str(error) not in self._logged and len(self._logged) < _MAX_UNREADABLE_LOGGED:
            self._logged.add(str(error))
            _log.warning("%s: %s", self.name, error)

    def lend(self) -> PoolProxiedConnection:
        """Return a connection, to be given to `take_back` afterwards. Raises StorageError."""
        if self._idle:
            with suppress(IndexError):  # another thread was faster
                return self._idle.pop()
        try:
            return self.engine.raw_connection()
        except (self._errors, DBAPIError) as error:
            raise self._in_words(error) from error

    def take_back(self, connection: PoolProxiedConnection, error: BaseException | None) -> None:
        """Keep a connection for the next caller. Raise the error that the driver's `error` stands for."""
        if error is None:
            self._idle.append(connection)
            return
        ours = isinstance(error, self._errors)
        if ours and self.dialect.is_disconnect(error, connection.dbapi_connection, None):  # type: ignore[arg-type]
            connection.invalidate(error)
            self.close()  # the idle connections are broken, too
        if connection.is_valid:
            self._idle.append(connection)
        else:
            connection.close()
        if ours:
            raise self._in_words(error) from error  # type: ignore[arg-type]

    def _in_words(self, error: Exception) -> Exception:
        cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
        if isinstance(cause, self._integrity) and self._names_the_attempt(cause):
            return AttemptTaken()
        return in_words(cause, self.name, self.setting)

    def _names_the_attempt(self, error: BaseException) -> bool:
        diagnosis = getattr(error, "diag", None)
        if diagnosis is not None:
            return bool(diagnosis.constraint_name == TAKEN_ATTEMPT)
        return "task_runs.attempt" in str(error)


_databases: "weakref.WeakSet[Database]" = weakref.WeakSet()


def _leave_to_parent() -> None:
    for database in _databases:
        database.forked()


os.register_at_fork(after_in_child=_leave_to_parent)


def _close(idle: list[PoolProxiedConnection], engine: Engine) -> None:
    while idle:
        idle.pop().close()
    engine.dispose()


class BorrowedCursor:
    """A context manager for a driver's cursor on one of the idle connections.

    A class, like `CursorTransaction`, because a generator takes several times as long, which is noticeable next to a
    statement of SQLite.
    """

    __slots__ = ("_connection", "_cursor", "_database")

    def __init__(self, database: Database) -> None:
        self._database = database
        self._cursor: Any = None

    def __enter__(self) -> Any:
        connection = self._connection = self._database.lend()
        try:
            self._cursor = connection.dbapi_connection.cursor()  # type: ignore[union-attr]
        except BaseException as error:
            self._database.take_back(connection, error)
            raise
        return self._cursor

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._cursor.close()
        self._database.take_back(self._connection, error)


class CursorTransaction:
    """A context manager for a transaction on a borrowed cursor."""

    __slots__ = ("_begin", "_borrowed", "_cursor", "_errors")

    def __init__(self, borrowed: AbstractContextManager[Any], begin: str, errors: type[Exception]) -> None:
        self._borrowed, self._begin, self._errors = borrowed, begin, errors
        self._cursor: Any = None

    def __enter__(self) -> Any:
        cursor = self._cursor = self._borrowed.__enter__()
        try:
            cursor.execute(self._begin)
        except BaseException as error:
            self._borrowed.__exit__(type(error), error, error.__traceback__)
            raise
        return cursor

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            try:
                self._cursor.execute("COMMIT")
            except BaseException as failed:
                self._undo(failed)
                raise
            self._borrowed.__exit__(None, None, None)
        else:
            self._undo(error)

    def _undo(self, error: BaseException) -> None:
        with suppress(self._errors):  # the connection was lost, or SQLite has rolled back already
            self._cursor.execute("ROLLBACK")
        self._borrowed.__exit__(type(error), error, error.__traceback__)


@contextmanager
def driver_errors(database: Database) -> Iterator[None]:
    """Raise StorageError in place of a driver's error that SQLAlchemy has wrapped."""
    try:
        yield
    except DBAPIError as error:
        raise in_words(error.orig or error, database.name, database.setting) from error.orig


def in_words(error: BaseException, name: str, setting: str = LEDGER_SETTING) -> RetakeError:
    """Return the Retake error for a driver's error, with advice for the reader. `setting` is the setting that names the
    database."""
    what = f"the {'ledger' if setting == LEDGER_SETTING else 'database'} at {name}"
    message = redact(" ".join(str(error).split()))
    said = message if message.endswith((".", "?", "!")) else f"{message}."  # libpq's hints may be questions
    for part, advice in ADVICE.items():
        if part in message:
            return (StorageKeyRefused if advice is LOGIN_ADVICE else _unavailable(setting))(
                f"{what}: {said} {advice.replace(LEDGER_SETTING, setting)}"
            )
    return _unavailable(setting)(f"{what}: {said} Either nothing was changed or everything; try again")


def _unavailable(setting: str) -> type[StorageError]:
    return LedgerUnavailable if setting == LEDGER_SETTING else StorageError


_NO_TABLE_ADVICE = "Somebody has removed a table: restore a backup, or name an empty database in STORAGE.ledger"
LOGIN_ADVICE = "Give the password in PGPASSWORD or ~/.pgpass, and check the user in STORAGE.ledger"
ADVICE = {
    "locked": f"Another process has been writing for {BUSY_S} s; try again, and see what it does",
    "readonly": "Check the permissions of the file and its folder, or do not open it read-only",
    "read-only": "Check the privileges of the user, or do not open it read-only",
    "unable to open": "Check the path in STORAGE.ledger and the permissions of the folder",
    "disk is full": "Free some space; nothing was changed",
    "disk I/O error": "Free some space on its disk, which may be full, or check the disk",  # -shm cannot be extended
    "not a database": "The file is something else and was not changed. Name another one in STORAGE.ledger",
    "malformed": "The file is damaged: move it away, and restore a backup or start with a new one",
    "password": LOGIN_ADVICE,
    "authentication failed": LOGIN_ADVICE,
    'relation "': _NO_TABLE_ADVICE,
    "no such table": _NO_TABLE_ADVICE,
    "does not exist": "Create it (createdb, createuser), or correct STORAGE.ledger",
    "invalid connection option": "Correct or leave out what stands after the ? in STORAGE.ledger",
    "permission denied": "Let the user create tables there: GRANT CREATE, USAGE ON SCHEMA public TO …",
    "connection": "Check that the server is running and reachable (pg_isready), then try again",
}
"""Advice, by a part of the driver's message. The first match counts."""


def open_database(
    url: str,
    *,
    read_only: bool,
    setting: str = LEDGER_SETTING,
    connect_s: int = CONNECT_S,
    answer_s: float = ANSWER_S,
) -> Database:
    """Return the database at `url`, which connects on first use.

    `setting` is where the URL was given, for messages. A server has `connect_s` seconds to accept a connection, see
    CONNECT_S, and may be silent for `answer_s` seconds of a statement. Raises SettingsError for an invalid URL.
    """
    kind, _, rest = url.partition(":")
    if kind == "sqlite":
        return sqlite_file(rest, read_only=read_only, setting=setting)
    return server(url, read_only=read_only, setting=setting, connect_s=connect_s, answer_s=answer_s)


def sqlite_file(path: str, *, read_only: bool, setting: str = LEDGER_SETTING) -> Database:
    """Return the SQLite database in a file. Raises SettingsError, StorageError."""
    try:
        octets = os.fsencode(path)
    except UnicodeEncodeError:  # a lone surrogate
        octets = b""
    if not octets or octets.startswith(b":") or b"\0" in octets:
        raise SettingsError(f'{setting}: "sqlite:{plain(path)}" names no file; use sqlite:PATH')
    try:
        if stat.S_ISDIR(os.stat(octets).st_mode):
            raise _unavailable(setting)(f"the database at sqlite:{path}: that is a folder. Name a file in {setting}")
    except (FileNotFoundError, NotADirectoryError):
        if read_only:
            return nowhere()
        _make_folder(path, setting)
    except OSError as error:  # the path is too long, or in a folder that may not be entered
        advice = ADVICE["unable to open"].replace(LEDGER_SETTING, setting)
        raise _unavailable(setting)(f"the database at sqlite:{path}: {error.strerror}. {advice}") from error
    uri = f"file:{quote(octets)}?mode={'ro' if read_only else 'rwc'}"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA synchronous = FULL")  # a commit survives a power cut
        except BaseException:
            connection.close()
            raise
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool, paramstyle="qmark", json_serializer=JSON)
    return Database(engine, f"sqlite:{path}", setting)


def _make_folder(path: str, setting: str) -> None:
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unavailable(setting)(
            f"the database at sqlite:{path}: its folder cannot be created ({error.strerror}). Correct {setting}"
        ) from error


def nowhere() -> Database:
    """Return an empty database in memory, for reading a ledger that does not exist yet."""

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)

    engine = create_engine("sqlite://", creator=connect, poolclass=StaticPool, paramstyle="qmark", json_serializer=JSON)
    return Database(engine, "an empty ledger")


def server(url: str, *, read_only: bool, setting: str, connect_s: int, answer_s: float) -> Database:
    """Return the PostgreSQL database at `url`. Raises SettingsError."""
    require("postgres", f"{setting}: a ledger in PostgreSQL")
    import psycopg

    from retake.runs.postgres_connection import PostgresConnection

    try:
        parsed = make_url(url).set(drivername="postgresql+psycopg")
        public = parsed.set(drivername="postgresql").difference_update_query(["password", "sslpassword"])
        named = public.render_as_string(hide_password=True)
        engine = create_engine(
            parsed,
            module=psycopg,
            use_native_hstore=False,
            poolclass=NullPool,
            paramstyle="format",
            connect_args=_time_limits(parsed, connect_s),
        )
    except (ArgumentError, ValueError, TypeError) as error:
        raise SettingsError(
            f'{setting}: "{redact(url)}" is not the URL of a database; use postgresql://USER@HOST:PORT/DATABASE'
        ) from error

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: object, _record: object, args: Any, parameters: Any) -> PostgresConnection:
        connection = PostgresConnection.connect(*args, **parameters)
        connection.silence_s = answer_s
        return connection

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        connection.autocommit = True
        connection.execute("SET TIME ZONE 'UTC'")
        if read_only:
            connection.execute("SET default_transaction_read_only = on")

    return Database(engine, named, setting)


def _time_limits(url: URL, connect_s: int) -> dict[str, int]:
    """Return the limits that neither the URL nor the environment sets: they would override those."""
    limits = SILENCE if "PGCONNECT_TIMEOUT" in os.environ else {**SILENCE, "connect_timeout": connect_s}
    return {name: it for name, it in limits.items() if name not in url.query}
