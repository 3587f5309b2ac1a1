"""The version of the tables, and migrating them to the newest one (retake/runs/migrations).

An up-to-date database is recognised with one query; Alembic is imported only for a migration.
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
"""The versions of the tables in order, one for each file in migrations/versions."""

VERSION_TABLE = "retake_schema"
"""The table with the version. Not Alembic's default name: the database may have tables of other programs."""

MIGRATIONS = Path(__file__).parent / "migrations"

MIGRATION_LOCK = 0x52657461  # "Reta": the advisory lock for changes of a server's tables

_IS_THERE = {
    "sqlite": f"SELECT 1 FROM sqlite_master WHERE name = '{VERSION_TABLE}'",  # noqa: S608  # a constant
    "postgresql": f"SELECT 1 WHERE to_regclass('{VERSION_TABLE}') IS NOT NULL",
}


def bring_up_to_date(database: Database) -> None:
    """Create the tables, or migrate them to the newest version. Safe to call from several processes at once.

    Raises StateError for an unknown version, StorageError.
    """
    if version(database) != REVISIONS[-1]:
        with _changing(database) as connection:
            _upgrade(connection)
    if database.dialect.name == "sqlite":
        _read_while_others_write(database)


def for_reading(database: Database) -> Database:
    """Return `database`, or an empty one if it has no tables.

    Raises StateError for tables of another version, StorageError.
    """
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
            "a tick migrates them, and so does every command that changes something"
        )
    return database


def version(database: Database) -> str | None:
    """Return the version of the tables, or None without tables. Raises StateError for an unknown one, StorageError."""
    with database.cursor() as cursor:
        cursor.execute(_IS_THERE[database.dialect.name])
        if cursor.fetchone() is None:
            return None
        cursor.execute(f"SELECT version_num FROM {VERSION_TABLE}")  # noqa: S608  # a constant
        row = cursor.fetchone()
    if row and row[0] not in REVISIONS:
        raise StateError(
            f"the ledger at {database.name} has tables of version {row[0]}, and this Retake knows versions up to "
            f"{REVISIONS[-1]}: a newer Retake created them. Use it here too; nothing was changed"
        )
    return str(row[0]) if row else None


@contextmanager
def _changing(database: Database) -> Iterator[Connection]:
    """Yield a connection of SQLAlchemy's in a transaction that excludes other migrations."""
    try:
        with database.engine.connect() as connection:
            if database.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                connection.exec_driver_sql("BEGIN")
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
            yield connection
            connection.commit()
    except DBAPIError as error:
        raise in_words(error.orig or error, database.name) from error


def _upgrade(connection: Connection) -> None:
    getLogger("alembic").setLevel(WARNING)  # its progress is of no interest
    from alembic.command import upgrade
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["version_table"] = VERSION_TABLE
    upgrade(config, REVISIONS[-1])


def _read_while_others_write(database: Database) -> None:
    """Turn on SQLite's write-ahead log, which the file remembers. If another process is in the way, leave it for later:
    without it everything works, only slower."""
    with database.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode")
        if cursor.fetchone() == ("wal",):
            return
    with suppress(StorageError), database.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode = WAL")
