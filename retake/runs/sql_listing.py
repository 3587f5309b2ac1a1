"""The list of the runs in SQLite or PostgreSQL (see `retake.runs.listing`)."""

from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import ColumnElement, Select, Text, bindparam, func, or_, select

from retake.runs.database import Database
from retake.runs.listing import RunPlace, RunsWanted
from retake.runs.run import Run
from retake.runs.statements import (
    RUN,
    Prepared,
    batches,
    last_runs,
    of_the_pipeline,
    of_these_runs,
    prepared,
    statements,
)
from retake.runs.tables import task_runs
from retake.runs.validation import is_column

BATCH_SIZE = 50
"""Number of runs read with one statement."""

_PLACE = task_runs.c.updated_at, task_runs.c.run_id
_POSITION = {"sqlite": func.instr, "postgresql": func.strpos}


class SqlListing:
    """The listing of the ledger in `database`."""

    searchable = True
    unreadable = ()

    def __init__(self, database: Database) -> None:
        self._database = database
        self._prepared: dict[tuple[str, RunsWanted], Prepared] = {}
        self._read = prepared(_read, database.dialect)
        self._queries, _ = statements(database.dialect)
        self.close = database.close
        """Close the connections. Happens at the latest when the listing is garbage collected."""

    def listed(self, wanted: RunsWanted) -> "ListedRows":
        if wanted.pipeline is not None and not is_column(wanted.pipeline):
            wanted = RunsWanted(frozenset())
        return ListedRows(self, wanted)

    def runs(self, run_ids: Iterable[str]) -> list[Run]:
        wanted, found = [*run_ids], dict[str, Run]()
        for asked in batches(wanted, BATCH_SIZE):
            with self._database.cursor() as cursor:
                found |= {row[0]: Run(*row) for row in self._read.run(cursor, asked, self._database.unreadable)}
        return [found[it] for it in wanted if it in found]

    def named(self, wanted: RunsWanted, text: str, limit: int) -> list[str]:
        if not is_column(text):
            return []
        return [it.run_id for it in self.places(wanted, limit, text=text)]

    def places(self, wanted: RunsWanted, limit: int, offset: int = 0, text: str = "") -> list[RunPlace]:
        """Return at most `limit` places, from `offset` on, of wanted runs with `text` in their id or their task's."""
        asked = {"number": limit, "reach": offset + limit, "passed": offset, "text": text}
        return [RunPlace(*row) for row in self._run("search" if text else "places", wanted, asked)]

    def total(self, wanted: RunsWanted) -> int:
        """Return how many wanted runs there are, from the counts that database triggers keep."""
        with self._database.cursor() as cursor:
            counts = self._queries.count(cursor, wanted.pipeline)
        return sum(counts[status] for status in wanted.statuses)

    def _run(self, what: str, wanted: RunsWanted, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        if not wanted.statuses:
            return []
        key = what, wanted._replace(pipeline=wanted.pipeline and "")  # the statement is the same for every pipeline
        if key not in self._prepared:
            conditions = [] if wanted.pipeline is None else [of_the_pipeline()]
            conditions += [self._contains_text()] if what == "search" else []
            query = last_runs(_PLACE, wanted.statuses, conditions, "reach").offset(bindparam("passed"))
            self._prepared[key] = Prepared(query, self._database.dialect)
        with self._database.cursor() as cursor:
            values = {**values, "pipeline": wanted.pipeline}
            return self._prepared[key].run(cursor, values, self._database.unreadable)

    def _contains_text(self) -> ColumnElement[bool]:
        """Return the condition that the run's id, or its task's, contains the text."""
        has = _POSITION[self._database.dialect.name]
        return or_(*(has(it, bindparam("text", type_=Text)) > 0 for it in (task_runs.c.run_id, task_runs.c.task_id)))


class ListedRows:
    """A list of the runs in a database."""

    def __init__(self, listing: SqlListing, wanted: RunsWanted) -> None:
        self._listing, self._wanted = listing, wanted
        self.total = listing.total(wanted)

    def places(self, limit: int, offset: int = 0) -> Iterator[RunPlace]:
        return iter(self._listing.places(self._wanted, limit, offset))


def _read(_dialect: str) -> Select[Any]:
    return select(*RUN).where(of_these_runs(BATCH_SIZE))
