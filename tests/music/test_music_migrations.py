"""The migrations turn an empty database into what retake/music/tables.py declares."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection

from retake.music.tables import SCHEMA
from retake.runs.database import Database, open_database
from retake.runs.schema import bring_up_to_date, version

TABLES = sorted(SCHEMA.metadata.tables)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Yield a database with the newest tables, made by the migrations."""
    url = f"sqlite:{tmp_path}/music.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("database_url")
    opened = open_database(url, read_only=False)
    bring_up_to_date(opened, SCHEMA)
    yield opened
    opened.close()


def test_the_migrations_make_what_the_tables_say(database: Database) -> None:
    assert version(database, SCHEMA) == SCHEMA.newest
    with database.engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "version_table": SCHEMA.version_table}
        )
        assert compare_metadata(context, SCHEMA.metadata) == []


def test_the_very_text_of_the_schema_is_the_same(database: Database) -> None:
    """The text contains defaults and the rules of tables and indexes, which Alembic does not compare."""
    with database.engine.connect() as connection:
        migrated = rules(connection)
        SCHEMA.metadata.drop_all(connection)
        SCHEMA.metadata.create_all(connection)
        assert rules(connection) == migrated
    assert len(migrated) > 60


def rules(connection: Connection) -> set[str]:
    """Return every table, constraint and index, in the database's own words."""
    if connection.dialect.name == "sqlite":
        found = connection.exec_driver_sql("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
        made = [sql for (sql,) in found if SCHEMA.version_table not in sql]
        return {f"{sql.split()[2]} {line.strip(chr(9) + ' ,')}" for sql in made for line in sql.splitlines()}
    named = ", ".join(f"'{table}'" for table in TABLES)
    found = connection.exec_driver_sql(f"""
        SELECT conname || ': ' || pg_get_constraintdef(oid) FROM pg_constraint
        WHERE conrelid::regclass::text IN ({named})
        UNION ALL SELECT indexdef FROM pg_indexes WHERE tablename IN ({named})
        UNION ALL SELECT concat_ws(' ', table_name, column_name, data_type, is_nullable, column_default)
        FROM information_schema.columns WHERE table_name IN ({named})""")  # noqa: S608  our own names
    return {rule for (rule,) in found}
