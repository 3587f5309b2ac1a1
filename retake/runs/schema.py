"""Finds out the version of the tables, and migrates them to the newest one (retake/runs/migrations).

An up-to-date database is recognised with one query. Alembic is imported only for a migration.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from logging import WARNING, getLogger
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, MetaData

from retake.errors import StateError, StorageError
from retake.runs.database import Database, driver_errors, nowhere, open_database
from retake.runs.ledger import LEDGER_SETTING, OldTables
from retake.runs.tables import metadata


class TableSchema(NamedTuple):
    """The tables of one part of the package, and their migrations."""

    revisions: tuple[str, ...]  # the versions of the tables in order, one for each file in migrations/versions
    version_table: str  # not Alembic's default name, which other programs may use in the same database
    migrations: Path
    metadata: MetaData
    whose: str = "the ledger"  # for messages

    @property
    def newest(self) -> str:
        return self.revisions[-1]


REVISIONS = ("0001", "0002", "0003")
VERSION_TABLE = "retake_schema"
MIGRATIONS = Path(__file__).parent / "migrations"


def ledger_schema() -> TableSchema:
    """Return the tables of a ledger."""
    return TableSchema(REVISIONS, VERSION_TABLE, MIGRATIONS, metadata)


MIGRATION_LOCK = 0x52657461
"""The key ("Reta") of PostgreSQL's advisory lock for migrations."""

_MIGRATION_S = 3600
"""Seconds that PostgreSQL may be silent during a migration, which counts every run."""

_TABLE_EXISTS = {
    "sqlite": "SELECT 1 FROM sqlite_master WHERE name = '{}'",
    "postgresql": "SELECT 1 WHERE to_regclass('{}') IS NOT NULL",
}


def bring_up_to_date(database: Database, schema: TableSchema | None = None) -> None:
    """Create the tables, or migrate them to the newest version. Several processes may call this at once.

    `schema` defaults to that of a ledger, here and in the functions below. Raises StorageError, and StateError for an
    unknown version.
    """
    schema = schema or ledger_schema()
    if version(database, schema) != schema.newest:
        with _migrating(database) as connection:
            _upgrade(connection, schema)
    if database.dialect.name == "sqlite":
        _turn_on_wal(database)


def for_reading(database: Database, schema: TableSchema | None = None) -> Database:
    """Return `database`, or an empty one in memory if it has no tables.

    Raises StorageError, OldTables, and StateError for tables of an unknown version.
    """
    schema = schema or ledger_schema()
    found = version(database, schema)
    if found is None:
        database.close()
        empty = nowhere()
        schema.metadata.create_all(empty.engine)
        with empty.cursor() as cursor:
            cursor.execute("PRAGMA query_only = ON")
        return empty
    if found != schema.newest:
        raise OldTables(
            f"{schema.whose} at {database.name}: its tables are of version {found}, older than {schema.newest}: the "
            "next tick that works on a generation migrates them, a service when it starts, `check --repair` at once"
        )
    return database


def opened(url: str, *, read_only: bool, setting: str = LEDGER_SETTING) -> Database:
    """Return the ledger's database at `url`, with its tables up to date.

    With `read_only` the tables are not changed: see `for_reading`. Raises what these functions raise, and
    SettingsError.
    """
    database = open_database(url, read_only=read_only, setting=setting)
    try:
        if read_only:
            return for_reading(database)
        bring_up_to_date(database)
    except BaseException:
        database.close()
        raise
    return database


def version(database: Database, schema: TableSchema | None = None) -> str | None:
    """Return the version of the tables, or None if there are none. Raises StorageError, and StateError for an unknown
    version."""
    schema = schema or ledger_schema()
    with database.cursor() as cursor:
        cursor.execute(_TABLE_EXISTS[database.dialect.name].format(schema.version_table))
        if cursor.fetchone() is None:
            return None
        cursor.execute(f"SELECT version_num FROM {schema.version_table}")  # noqa: S608  # a constant
        row = cursor.fetchone()
    if row and row[0] not in schema.revisions:
        raise StateError(
            f"{schema.whose} at {database.name}: its tables are of version {row[0]}, and this Retake knows versions up "
            f"to {schema.newest}: a newer Retake created them. Use it here too; nothing was changed"
        )
    return str(row[0]) if row else None


@contextmanager
def _migrating(database: Database) -> Iterator[Connection]:
    """Yield a SQLAlchemy connection in a transaction that excludes other migrations."""
    with driver_errors(database), database.engine.connect() as connection:
        if database.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.connection.driver_connection.silence_s = _MIGRATION_S  # type: ignore[union-attr]
            connection.exec_driver_sql("BEGIN ISOLATION LEVEL READ COMMITTED")  # to see what others commit meanwhile
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
        yield connection
        connection.commit()


def _upgrade(connection: Connection, schema: TableSchema) -> None:
    getLogger("alembic").setLevel(WARNING)  # INFO is its progress
    from alembic.command import upgrade
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(schema.migrations).replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["version_table"] = schema.version_table
    config.attributes["metadata"] = schema.metadata
    upgrade(config, schema.newest)


def _turn_on_wal(database: Database) -> None:
    """Turn on SQLite's write-ahead log, which the file remembers. If the database is locked, leave it for next time:
    everything works without it, only slower."""
    with database.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode")
        if cursor.fetchone() == ("wal",):
            return
    with suppress(StorageError), database.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode = WAL")
