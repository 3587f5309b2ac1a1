"""The ledger in a database: SQLite for one machine, PostgreSQL for several. The same statements on both.

Of two who move the same run, one is refused: its version is part of the condition of the change. Who takes an attempt
that somebody else takes in the same moment takes the next one. Claims lock the one row they take, and pass by rows
that are locked already (SKIP LOCKED); SQLite has one writer at a time anyway.
"""

import weakref
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from retake.clock import Clock
from retake.errors import RunError, StorageError
from retake.runs.checked import CheckedLedger
from retake.runs.database import AttemptTaken, Database, open_database
from retake.runs.run import Event, Note, Run, StaleRun, UnknownRun, moved, new_run, noted
from retake.runs.schema import bring_up_to_date, for_reading
from retake.runs.statements import MOVED, Statements
from retake.runs.states import TAKEN_UP, RunStatus, Trigger

TRIES = 1000
"""How often somebody else may be quicker. Each time somebody got what they wanted."""


def open_sql_ledger(url: str, clock: Clock, *, read_only: bool = False) -> "SqlLedger":
    """The ledger at «sqlite:PATH» or «postgresql://USER@HOST:PORT/DATABASE», its tables up to date.

    With `read_only` nothing is made or changed, and what is not there yet is empty. Raises SettingsError for a URL that
    cannot be used, StateError for tables of a newer version, StorageError.
    """
    database = open_database(url, read_only=read_only)
    try:
        if read_only:
            return SqlLedger(for_reading(database), clock)
        bring_up_to_date(database)
        return SqlLedger(database, clock)
    except BaseException:
        database.close()
        raise


class SqlLedger(CheckedLedger):
    """Keeps the promises of `retake.runs.Ledger`. May be used from several threads."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._statements = Statements(database.dialect)
        self.close = weakref.finalize(self, database.close)
        """Give its connections back to the system; at the latest this is done when nobody has it any more."""

    # --- reading ------------------------------------------------------------------------------------------------

    def _get(self, run_id: str) -> Run:
        with self._database.cursor() as cursor:
            rows = self._statements.get.run(cursor, {"of_run": run_id})
        if not rows:
            raise UnknownRun(f"there is no run {run_id} in {self._database.name}")
        return Run(*rows[0])

    def _find(self, key: str) -> Run | None:
        with self._database.cursor() as cursor:
            rows = self._statements.find.run(cursor, {"key": key})
        return Run(*rows[0]) if rows else None

    def _of_task(self, task_id: str) -> list[Run]:
        with self._database.cursor() as cursor:
            return [Run(*row) for row in self._statements.of_task.run(cursor, {"task": task_id})]

    def _silent(self, since: datetime) -> list[Run]:
        with self._database.cursor() as cursor:
            return [Run(*row) for row in self._statements.silent.run(cursor, {"since": since})]

    def _runs(self, statuses: frozenset[RunStatus], pipeline: str | None, limit: int) -> list[Run]:
        statement = self._statements.listing(statuses, of_pipeline=pipeline is not None)
        with self._database.cursor() as cursor:
            return [Run(*row) for row in statement.run(cursor, {"number": limit, "pipeline": pipeline})]

    def _counts(self, pipeline: str | None) -> Mapping[RunStatus, int]:
        statement = self._statements.counts if pipeline is None else self._statements.pipeline_counts
        with self._database.cursor() as cursor:
            return dict(row[:2] for row in statement.run(cursor, {"pipeline": pipeline}))

    def _events(self, run_id: str) -> list[Event]:
        with self._database.cursor() as cursor:
            rows = self._statements.events.run(cursor, {"of_run": run_id})
        if not rows:
            self._get(run_id)
        return [Event(*row) for row in rows]

    # --- writing ------------------------------------------------------------------------------------------------

    def _create(self, task_id: str, key: str, *, actor: str, pipeline: str, trace_id: str | None) -> Run:
        for _ in range(TRIES):
            with self._database.cursor() as cursor:
                rows = self._statements.known_or_next.run(cursor, {"task": task_id, "key": key})
            attempt, *known = rows[0]
            now = self._clock.now()
            run, event = new_run(task_id, key, attempt, at=now, actor=actor, pipeline=pipeline, trace_id=trace_id)
            if known[0] is not None:
                return Run(*known)
            with self._database.write() as cursor:
                if self._statements.create.run(cursor, _columns(run), [event]):
                    return run
        raise self._never_first(f"an attempt of {task_id}")

    def _move(self, run: Run, trigger: Trigger, what: Mapping[str, Any]) -> Run:
        for _ in range(TRIES):
            attempt = self._next_attempt(run.task_id) if trigger is Trigger.RETRY_DUE else None
            try:
                after, new = moved(run, trigger, 1, at=self._clock.now(), attempt=attempt, **what)
            except RunError:
                self._check(run)
                raise
            try:
                with self._database.write() as cursor:
                    if self._save(cursor, run, after, new):
                        return after
            except AttemptTaken:
                continue
            raise self._stale(run)
        raise self._never_first(f"an attempt of {run.task_id}")

    def _note(self, run: Run, note: Note, *, actor: str, trace_id: str | None) -> Event:
        event = noted(run.run_id, 1, note, at=self._clock.now(), actor=actor, trace_id=trace_id)
        with self._database.write() as cursor:
            seq = self._statements.note.run(cursor, {"of_run": run.run_id}, [event])
        if seq is None:
            raise UnknownRun(f"there is no run {run.run_id} in {self._database.name}")
        return event._replace(seq=seq)

    def _claim(self, worker: str, *, actor: str, pipeline: str | None) -> Run | None:
        statement = self._statements.claim if pipeline is None else self._statements.pipeline_claim
        for _ in range(TRIES):
            now = self._clock.now()
            try:
                with self._database.transaction() as cursor:
                    rows = statement.run(cursor, {"now": now, "pipeline": pipeline})
                    if not rows:
                        return None
                    *fields, attempt = rows[0]
                    run = Run(*fields)
                    after, new = moved(
                        run, TAKEN_UP[run.status], 1, at=now, actor=actor, attempt=attempt, worker=worker
                    )
                    self._save(cursor, run, after, new)
                    return after
            except AttemptTaken:
                continue
        raise self._never_first("a run")

    def _heartbeat(self, run: Run) -> Run:
        values = {"of_run": run.run_id, "of_version": run.version, "heartbeat_at": self._clock.now()}
        with self._database.write() as cursor:
            rows = self._statements.heartbeat.run(cursor, values)
        if not rows:
            raise self._stale(run)
        return Run(*rows[0])

    # --- what they share ----------------------------------------------------------------------------------------

    def _save(self, cursor: Any, run: Run, after: Run, new: list[Event]) -> int | None:
        values = {"of_run": run.run_id, "of_version": run.version, "new_events": len(new)}
        columns = _columns(after)
        return self._statements.move.run(cursor, values | {name: columns[name] for name in MOVED}, new)

    def _next_attempt(self, task_id: str) -> int:
        with self._database.cursor() as cursor:
            ((attempt,),) = self._statements.next_attempt.run(cursor, {"task": task_id})
        return int(attempt)

    def _check(self, run: Run) -> None:
        if self._get(run.run_id).version != run.version:
            raise self._stale(run)

    def _stale(self, run: Run) -> StaleRun:
        found = self._get(run.run_id)
        return StaleRun(
            f"{run.run_id} is {found.status} at version {found.version} (since {found.updated_at:%Y-%m-%d %H:%M:%S}Z); "
            f"this was about version {run.version}, {run.status}: read it again"
        )

    def _never_first(self, what: str) -> StorageError:
        return StorageError(
            f"the ledger at {self._database.name}: {TRIES} times somebody else was quicker to {what}; try again"
        )


def _columns(run: Run) -> dict[str, Any]:
    fields = run._asdict()
    fields["run_status"] = fields.pop("status")
    return fields
