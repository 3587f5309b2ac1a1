import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "runs"))  # the server of the ledger's tests

from api_world import ApiWorld, served
from postgres import FAST, new_database, or_skipped, server


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A server for these tests: the URL of its databases, without a name. Where there is none the tests are skipped."""
    with or_skipped(), server(*FAST) as base:
        yield base


@pytest.fixture
def postgres_url(postgres: str) -> str:
    """A database of the test's own, without tables."""
    return new_database(postgres)


@pytest.fixture(scope="session")
def sqlite_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    with served(f"sqlite:{tmp_path_factory.mktemp('api') / 'music.sqlite3'}") as world:
        yield world


@pytest.fixture(scope="session")
def postgres_world(postgres: str) -> Iterator[ApiWorld]:
    with served(new_database(postgres)) as world:
        yield world


@pytest.fixture
def api(sqlite_world: ApiWorld) -> ApiWorld:
    """The API on SQLite, its database empty."""
    sqlite_world.begin_anew()
    return sqlite_world


@pytest.fixture(params=["sqlite", "postgres"])
def each_api(request: pytest.FixtureRequest) -> ApiWorld:
    """The API on either database, which is empty."""
    world: ApiWorld = request.getfixturevalue(f"{request.param}_world")
    world.begin_anew()
    return world
