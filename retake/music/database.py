"""The database of the music pipelines: connections, and statements that are compiled once."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import ClauseElement, ColumnElement, Table, text
from sqlalchemy.dialects import postgresql, sqlite

from retake.clock import Clock
from retake.music.tables import SCHEMA
from retake.runs.database import Database, nowhere, open_database
from retake.runs.schema import bring_up_to_date, for_reading, ledger_schema, version
from retake.runs.sql_ledger import SqlLedger
from retake.runs.statements import Prepared, Row

SETTING = "MUSIC.database"


class MusicDatabase:
    """The rows of music pipelines and the ledger of their runs, in one database. Thread-safe.

    A `transaction` is saved as a whole or not at all, and isolated from other changes: on SQLite by its single write
    lock, on PostgreSQL for rows that are read `for_update`.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self.database, self.clock = database, clock
        self.ledger = SqlLedger(database, clock)
        self._prepared: dict[str, Prepared] = {}
        self.close = database.close
        """Close the connections."""

    @property
    def name(self) -> str:
        """Its location for people, without a password."""
        return self.database.name

    @contextmanager
    def transaction(self) -> Iterator["Cursor"]:
        """Yield a cursor whose statements are committed together. Raises StorageError."""
        with self.database.transaction() as cursor:
            yield Cursor(self, cursor)

    @contextmanager
    def reading(self) -> Iterator["Cursor"]:
        """Yield a cursor for queries, each of which sees committed data. Raises StorageError."""
        with self.database.cursor() as cursor:
            yield Cursor(self, cursor)

    def prepared(self, statement: ClauseElement, name: str) -> Prepared:
        """Return the compiled statement. With a `name` it is cached, and must be the same each time."""
        if not name:
            return Prepared(statement, self.database.dialect)
        if name not in self._prepared:
            self._prepared[name] = Prepared(statement, self.database.dialect)
        return self._prepared[name]


class Cursor:
    """Runs statements on one connection."""

    def __init__(self, database: MusicDatabase, cursor: Any) -> None:
        self._database, self._cursor = database, cursor

    def rows(self, statement: ClauseElement, values: Mapping[str, Any] | None = None, *, name: str = "") -> list[Row]:
        """Execute the statement and return its rows. `values` are for its `bindparam`s; for `name` see `prepared`."""
        return self._database.prepared(statement, name).run(self._cursor, values or {})

    def readable(
        self, statement: ClauseElement, values: Mapping[str, Any] | None = None, *, name: str = ""
    ) -> list[Row]:
        """Execute like `rows`, but leave out each row that cannot be read, and log it once.

        What another program wrote into one row must not hold up the other rows.
        """
        unreadable = self._database.database.unreadable
        return self._database.prepared(statement, name).run(self._cursor, values or {}, unreadable)

    def row(self, statement: ClauseElement, values: Mapping[str, Any] | None = None, *, name: str = "") -> Row | None:
        """Return the first row, or None."""
        found = self.rows(statement, values, name=name)
        return found[0] if found else None

    def add(self, table: Table, values: Mapping[str, Any], *returned: ColumnElement[Any]) -> Row | None:
        """Insert a row and return these columns of it, or None if one with the same key exists.

        Waits for a concurrent transaction that inserts the same key.
        """
        dialect = sqlite if self._database.database.dialect.name == "sqlite" else postgresql
        statement = dialect.insert(table).values(values).on_conflict_do_nothing()
        return self.row(statement.returning(*(returned or table.primary_key.columns)))

    def lock(self, number: int) -> None:
        """Take an advisory lock until the end of the transaction. SQLite needs none: it has only one writer."""
        if self._database.database.dialect.name == "postgresql":
            self.rows(text(f"SELECT pg_advisory_xact_lock({number})"))

    def change(self, statement: ClauseElement) -> int:
        """Execute a change that returns no rows, and return the number of rows changed."""
        self.rows(statement)
        return int(self._cursor.rowcount)


def open_music_database(url: str, clock: Clock, *, read_only: bool = False) -> MusicDatabase:
    """Open the database in MUSIC.database, with its tables up to date.

    With `read_only` nothing is created or changed, and a database that does not exist is empty. Raises SettingsError
    for a URL that cannot be used, StateError for tables of another version, StorageError.
    """
    database = open_database(url, read_only=read_only, setting=SETTING)
    try:
        if not read_only:
            bring_up_to_date(database)
            bring_up_to_date(database, SCHEMA)
        else:
            database = _for_reading(database)
        return MusicDatabase(database, clock)
    except BaseException:
        database.close()
        raise


def _for_reading(database: Database) -> Database:
    found = version(database, SCHEMA)
    if found == SCHEMA.newest:
        return for_reading(database)
    if found is not None:
        return for_reading(database, SCHEMA)  # raises StateError
    database.close()
    empty = nowhere()
    for schema in (ledger_schema(), SCHEMA):
        schema.metadata.create_all(empty.engine)
    return empty
