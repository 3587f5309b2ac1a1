"""A row with a value of another type, which SQLite accepts in any column, fails alone."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from rows_world import Rows
from sqlalchemy import insert

from retake.bucket.memory import MemoryBucket
from retake.errors import StateError
from retake.music.leases import take_lease
from retake.music.operations import MusicOperations
from retake.music.survey import survey
from retake.music.tables import messages, paid_calls, pipeline_jobs, pipelines
from retake.music.upkeep import Upkeep
from retake.runs.history import open_history
from retake.runs.recovery import Recovery
from retake.testing.logs import CapturedLogs

ODD = (b"\xff", "yesterday", 1.5, -1, "\0")
"""What another program may write into any column that does not refuse it."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a database with a pipeline at work, whose call is pending, and one inserted by another program."""
    path = tmp_path_factory.mktemp("odd") / "music.db"
    world = World(path)
    world.create("odd")
    world.pay(world.begin(), "pending")
    with world.database.transaction() as cursor:
        cursor.change(insert(messages).values(pipeline_id=1, event="failed", text="odd"))
        cursor.change(insert(pipelines).values(track_title="good", audio="a.wav"))
    world.database.close()
    return path


@pytest.fixture
def worlds(made: Path, tmp_path: Path) -> Iterator[Callable[[], "World"]]:
    """Yield a function that replaces the current copy of the database with a fresh one."""
    path, opened = tmp_path / "music.db", list[World]()

    def new() -> World:
        while opened:
            opened.pop().database.close()
        shutil.copy(made, path)
        opened.append(World(path))
        return opened[-1]

    yield new
    while opened:
        opened.pop().database.close()


class World(Rows):
    """A copy of the database, and ways to write into it."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"sqlite:{path}")
        self.path = path

    def write(self, table: str, column: str, value: object) -> bool:
        """Write into the first row; return whether the column accepts it."""
        connection = sqlite3.connect(self.path)
        try:
            with connection:
                of = f"UPDATE {table} SET {column} = ? WHERE rowid = (SELECT min(rowid) FROM {table})"  # noqa: S608
                return connection.execute(of, (value,)).rowcount == 1
        except sqlite3.IntegrityError:
            return False
        finally:
            connection.close()

    def look(self) -> None:
        """Do what the service and the console do to list all pipelines."""
        Upkeep(self.actions, Recovery(self.database.ledger, self.clock, pipeline="music")).look()
        with self.database.reading() as cursor:
            survey(cursor)
        operations: MusicOperations = self.operations
        operations.state(None, lambda vendor: "")
        operations.present()
        operations.paid_since("2026-01-01")


@pytest.mark.parametrize("table", [pipelines, pipeline_jobs, paid_calls, messages], ids=lambda it: it.name)
def test_an_odd_value_holds_up_no_other_pipeline(table: Any, worlds: Callable[[], World]) -> None:
    tried = 0
    for column, value in product([it.name for it in table.columns if it.name != "id"], ODD):
        world = worlds()
        if world.write(table.name, column, value):
            tried += 1
            world.look()
            assert world.database.ledger.find("music/2/0"), (column, value)
            assert "good" in {row.track_title for row in world.actions.listing()}, (column, value)
    assert tried > 3 * len(table.columns)


def test_the_row_is_named_once_in_the_log_and_to_whoever_asks_for_it(
    worlds: Callable[[], World],
) -> None:
    world = worlds()
    world.write("pipelines", "created_at", "yesterday")
    with CapturedLogs() as log:
        for _ in range(2):
            assert [row.id for row in world.actions.listing()] == [2]
    assert len(log.warnings) == 1
    assert "Fix the row" in log.warnings[0]
    with pytest.raises(StateError, match=r"pipelines\.created_at.*'yesterday'.*Fix the row"):
        world.actions.get(1)


def test_a_run_whose_last_number_is_invalid_is_named(worlds: Callable[[], World]) -> None:
    world = worlds()
    run = world.database.ledger.find("music/1/1")
    assert run
    assert world.write("task_runs", "last_seq", 1.5)
    with pytest.raises(StateError, match=f"last_seq of {run.run_id} is not a whole number. Fix the row"):
        world.database.ledger.note(run, "step_done", {}, actor="me")


@pytest.mark.parametrize("column", ["created_at", "updated_at"])
def test_a_run_at_an_invalid_time_is_left_out_of_the_figures(worlds: Callable[[], World], column: str) -> None:
    world = worlds()
    other = world.database.ledger.create_for_task("shop", "shop/1", actor="me")
    assert world.write("task_runs", column, "yesterday")
    history = open_history(f"sqlite:{world.path}", MemoryBucket())
    found = [it.run_id for day in history.segments() for it in history.read(day, history.marks(day))]
    assert found == [other.run_id]
    history.close()


@pytest.mark.parametrize("until", ["yesterday", "2027-01-01T00:00:00.000000Z"])
def test_an_invalid_lease_is_taken_over(worlds: Callable[[], World], until: str) -> None:
    """The clock of the machine that wrote it was ahead, or somebody has edited it."""
    world = worlds()
    assert take_lease(world.database, "telegram messages", "another", 60)
    assert not take_lease(world.database, "telegram messages", "me", 60)
    assert world.write("service_leases", "until", until)
    assert take_lease(world.database, "telegram messages", "me", 60)
    assert not take_lease(world.database, "telegram messages", "another", 60)
