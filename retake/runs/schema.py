"""Which version the tables have, and how they come to the newest: by the migrations in retake/runs/migrations.

Opening a database that is up to date asks it one question; Alembic is loaded only where there is something to do.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from logging import WARNING, getLogger
from pathlib import Path

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from retake.errors import StateError, StorageError
from retake.runs.database import Database, in_words, nowhere
from retake.runs.tables import metadata

REVISIONS = ("0001", "0002")
"""The versions of the tables, from the first to the newest: one for each file in migrations/versions."""

VERSION_TABLE = "retake_schema"
"""Where a database says which version it has. A name of our own: others' tables may lie beside ours."""

MIGRATIONS = Path(__file__).parent / "migrations"

DOOR = 0x52657461  # «Reta»: the number of the lock under which a server's tables are changed

_IS_THERE = {
    "sqlite": f"SELECT 1 FROM sqlite_master WHERE name = '{VERSION_TABLE}'",  # noqa: S608  # a name of our own
    "postgresql": f"SELECT 1 WHERE to_regclass('{VERSION_TABLE}') IS NOT NULL",
}


def bring_up_to_date(database: Database) -> None:
    """Make the tables, or change them to the newest version. Rows stay. Of several who do it at once one does.

    Raises StateError for tables of a version that is not known here, StorageError.
    """
    if version(database) != REVISIONS[-1]:
        with _changing(database) as connection:
            _upgrade(connection)
    if database.dialect.name == "sqlite":
        _read_while_others_write(database)


def for_reading(database: Database) -> Database:
    """`database` as it stands, or an empty one if there are no tables in it. Raises StateError for tables of another
    version, StorageError."""
    found = version(database)
    if found is None:
        database.close()
        empty = nowhere()
        metadata.create_all(empty.engine)
        with empty.cursor() as cursor:
            cursor.execute("PRAGMA query_only = ON")
        return empty
    if found != REVISIONS[-1]:
        raise StateError(
            f"the ledger at {database.name} has tables of version {found}, older than {REVISIONS[-1]}: "
            "a tick of the manager brings them up to date, and so does every command that changes something"
        )
    return database


def version(database: Database) -> str | None:
    """Of its tables; None if it has none. Raises StateError for a version that is not known here, StorageError."""
    with database.cursor() as cursor:
        cursor.execute(_IS_THERE[database.dialect.name])
        if cursor.fetchone() is None:
            return None
        cursor.execute(f"SELECT version_num FROM {VERSION_TABLE}")  # noqa: S608  # a name of our own
        row = cursor.fetchone()
    if row and row[0] not in REVISIONS:
        raise StateError(
            f"the ledger at {database.name} has tables of version {row[0]}, and this Retake knows {REVISIONS[-1]} at "
            "most: a newer one made them. Use that one here too; nothing was changed"
        )
    return str(row[0]) if row else None


@contextmanager
def _changing(database: Database) -> Iterator[Connection]:
    """A connection of the toolkit's, in a transaction that waits for others who change the tables."""
    try:
        with database.engine.connect() as connection:
            if database.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                connection.exec_driver_sql("BEGIN")
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({DOOR})")
            yield connection
            connection.commit()
    except DBAPIError as error:
        raise in_words(error.orig or error, database.name) from error


def _upgrade(connection: Connection) -> None:
    getLogger("alembic").setLevel(WARNING)  # what it loads and assumes is nobody's business
    from alembic.command import upgrade
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["version_table"] = VERSION_TABLE
    upgrade(config, REVISIONS[-1])


def _read_while_others_write(database: Database) -> None:
    """SQLite's write-ahead log. The file remembers it. Whoever is disturbed leaves it to the next one: everything is
    right without it, only slower."""
    with database.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode")
        if cursor.fetchone() == ("wal",):
            return
    with suppress(StorageError), database.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode = WAL")
