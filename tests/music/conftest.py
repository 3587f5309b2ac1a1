from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from api_world import ApiWorld, served
from desk import Desk
from postgres import new_database
from rig import START, Rig
from rows_world import Rows

from retake.clock import FakeClock
from retake.sandbox import Pace, Sandbox


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
    """Return the API on SQLite, with an empty database."""
    sqlite_world.begin_anew()
    return sqlite_world


@pytest.fixture(params=["sqlite", "postgres"])
def each_api(request: pytest.FixtureRequest) -> ApiWorld:
    """Return the API on either database, which is empty."""
    world: ApiWorld = request.getfixturevalue(f"{request.param}_world")
    world.begin_anew()
    return world


@pytest.fixture(scope="module")
def vendors() -> Iterator[tuple[Sandbox, FakeClock]]:
    """Yield the vendors of a module's tests, and the clock they share."""
    clock = FakeClock(START)
    with Sandbox(pace=Pace(0, 0, 0), quick=True, seed=7, clock=clock) as sandbox:
        yield sandbox, clock


@pytest.fixture
def rigs(vendors: tuple[Sandbox, FakeClock], tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Yield a function that creates a rig, on a new database unless `url` is given. Each test has a day of its own."""
    sandbox, clock = vendors
    clock.moment = (clock.moment + timedelta(days=1)).replace(hour=12, minute=0, second=0, microsecond=0)
    made: list[Rig] = []

    def make(url: str = "", **chosen: Any) -> Rig:
        url = url or f"sqlite:{tmp_path}/music.sqlite3"
        rig = Rig(url, tmp_path, **{"sandbox": sandbox, "clock": clock, **chosen})
        made.append(rig)
        return rig

    yield make
    for rig in made:
        rig.close()
    sandbox.withdraw_orders()


@pytest.fixture
def rig(rigs: Callable[..., Rig]) -> Rig:
    """Return a rig with the default settings."""
    return rigs()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a database of each kind, without tables."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/music.sqlite3"
    return str(request.getfixturevalue("database_url"))


@pytest.fixture
def rows(url: str) -> Iterator[Rows]:
    world = Rows(url, daily_cap_usd=5.0)
    yield world
    world.database.close()


@pytest.fixture
def desks(tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    """Yield a function that creates the processes of a test, which share their vendors and clock."""
    made: list[Desk] = []

    def make(url: str = "", **chosen: Any) -> Desk:
        if made:
            chosen |= {"sandbox": made[0].rig.sandbox, "clock": made[0].rig.clock, "bucket": made[0].rig.bucket}
        desk = Desk(url or f"sqlite:{tmp_path}/music.sqlite3", tmp_path, **chosen)
        made.append(desk)
        return desk

    yield make
    for desk in made:
        desk.rig.close()
    for desk in made[:1]:
        desk.rig.sandbox.close()


@pytest.fixture
def desk(desks: Callable[..., Desk]) -> Desk:
    return desks()
