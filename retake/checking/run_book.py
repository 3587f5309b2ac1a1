"""Facts about all runs of a ledger, to find inconsistencies between runs, and between runs and the index.

They are kept in a temporary database, so that memory does not grow with the number of runs. The results are only
suspects: the caller looks at each of them again.
"""

import sqlite3
from collections.abc import Iterable, Sequence

from retake.checking.run_rules import RunFacts, number_of

MAX_SUSPECTS = 10_000
_MAX_INTEGER = 2**63 - 1  # that SQLite can hold

_TABLES = """
    CREATE TABLE runs (run_id TEXT PRIMARY KEY, task TEXT, ended INTEGER, mirrored INTEGER, number INTEGER, names TEXT);
    CREATE TABLE attempts (task TEXT, attempt INTEGER, run_id TEXT);
    CREATE TABLE names (kind TEXT, run_id TEXT, name TEXT, key TEXT);
    CREATE INDEX by_task ON attempts (task, attempt);
    CREATE INDEX by_run ON names (kind, run_id)
"""

_TASKS = """
    SELECT task FROM attempts GROUP BY task HAVING count(*) > count(DISTINCT attempt)
        OR max(attempt) > count(DISTINCT attempt)
    UNION
    SELECT task FROM runs WHERE mirrored GROUP BY task HAVING sum(NOT ended) > 1
        OR count(DISTINCT number) < count(*) OR max(number) > count(*)
    LIMIT ?
"""

_STRANGE = """
    SELECT names.key FROM names LEFT JOIN runs USING (run_id)
    WHERE names.kind = ? AND (runs.run_id IS NULL OR (runs.names IS NOT NULL
        AND instr(runs.names, '|' || names.kind || ' ' || names.name || '|') = 0))
    UNION
    SELECT max(key) FROM names WHERE kind = ? GROUP BY run_id, name HAVING count(*) > 1
    LIMIT ?
"""

_UNNAMED = """
    SELECT run_id FROM runs WHERE ended AND names IS NOT NULL AND NOT EXISTS
        (SELECT 1 FROM names WHERE kind = ? AND names.run_id = runs.run_id
         AND instr(runs.names, '|' || names.kind || ' ' || names.name || '|'))
    LIMIT ?
"""


class RunBook:
    """The facts of the runs of one ledger. `mirrored` are the pipelines whose runs mirror documents of items."""

    def __init__(self, mirrored: Iterable[str] = ()) -> None:
        self._mirrored = frozenset(mirrored)
        self._db = sqlite3.connect("", check_same_thread=False)
        self._db.executescript(_TABLES)

    def close(self) -> None:
        self._db.close()

    def add(self, facts: RunFacts, task: str, names: Sequence[tuple[str, str]] = ()) -> None:
        """Add a run. `task` identifies its task; `names` are the index entries, (kind, name), that it should have."""
        run = facts.run
        written = "".join(f"|{kind} {name}|" for kind, name in names)
        row = (run.run_id, task, run.ended, run.pipeline in self._mirrored, number_of(run), written)
        self._db.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?)", row)
        attempts = ((task, min(attempt, _MAX_INTEGER), run.run_id) for attempt in facts.attempts)
        self._db.executemany("INSERT INTO attempts VALUES (?, ?, ?)", attempts)

    def add_unreadable(self, run_id: str) -> None:
        """Add a run of which only the existence is known."""
        self._db.execute("INSERT OR REPLACE INTO runs VALUES (?, NULL, 0, 0, NULL, NULL)", (run_id,))

    def add_names(self, kind: str, found: Iterable[tuple[str, str, str]]) -> None:
        """Add the entries of an index: (run id, name, key)."""
        self._db.executemany(f"INSERT INTO names VALUES ('{kind}', ?, ?, ?)", found)  # noqa: S608  # a constant

    def tasks(self) -> list[str]:
        """Return the tasks whose runs may be inconsistent."""
        return self._found(_TASKS, ())

    def strange(self, kind: str) -> list[str]:
        """Return the keys of index entries without a matching run, and of duplicates."""
        return self._found(_STRANGE, (kind, kind))

    def unnamed(self, kind: str) -> list[str]:
        """Return the ended runs without an index entry of this kind."""
        return self._found(_UNNAMED, (kind,))

    def _found(self, query: str, values: tuple[str, ...]) -> list[str]:
        return [it for (it,) in self._db.execute(query, (*values, MAX_SUSPECTS))]
