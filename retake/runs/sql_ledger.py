"""The ledger in a database: SQLite for one machine, PostgreSQL for several, with the same statements on both.

If two callers move the same run, one is refused, because the update is conditional on the run's version. If two take
the same attempt of a task, the later one takes the next attempt. A claim locks the one row that it takes and skips
locked rows (SKIP LOCKED). SQLite has only one writer at a time.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from retake.clock import CLOCKS_DIFFER, Clock
from retake.errors import RunError, StorageError
from retake.runs import Ledger
from retake.runs.database import AttemptTaken, Database
from retake.runs.ledger import LEDGER_SETTING
from retake.runs.run import Event, Note, Run, RunRequest, StaleRun, Transition, UnknownRun, begun_run, moved, noted
from retake.runs.schema import opened
from retake.runs.statements import statements
from retake.runs.states import TAKEN_UP, RunStatus, Trigger

TRIES = 1000
"""Maximum tries of a change when others are faster. There are no pauses, since one of the others succeeds each time."""


def open_sql_ledger(url: str, clock: Clock, *, read_only: bool = False, setting: str = LEDGER_SETTING) -> "SqlLedger":
    """Open the ledger at "sqlite:PATH" or "postgresql://USER@HOST:PORT/DATABASE", with its tables up to date.

    With `read_only` nothing is created or changed, and a ledger that does not exist is empty. Raises SettingsError for
    an unusable URL, StateError for tables of a newer version, and StorageError.
    """
    return SqlLedger(opened(url, read_only=read_only, setting=setting), clock)


class SqlLedger(Ledger):
    """A ledger in `database`. Thread safe."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._queries, self._updates = statements(database.dialect)
        self.close = database.close  # type: ignore[method-assign]

    # --- queries ------------------------------------------------------------------------------------------------------

    def _get(self, run_id: str) -> Run:
        with self._database.cursor() as cursor:
            rows = self._queries.get.run(cursor, {"of_run": run_id})
        if not rows:
            raise UnknownRun(f"there is no run {run_id} in {self._database.name}")
        return Run(*rows[0])

    def _find(self, key: str) -> Run | None:
        with self._database.cursor() as cursor:
            rows = self._queries.find.run(cursor, {"key": key})
        return Run(*rows[0]) if rows else None

    def _of_task(self, task_id: str) -> list[Run]:
        with self._database.cursor() as cursor:
            return [Run(*row) for row in self._queries.of_task.run(cursor, {"task": task_id})]

    def _silent(self, since: datetime) -> list[Run]:
        with self._database.cursor() as cursor:
            rows = self._queries.silent.run(cursor, {"since": since}, self._database.unreadable)
            return [Run(*row) for row in rows]

    def _runs(self, statuses: frozenset[RunStatus], pipeline: str | None, limit: int) -> list[Run]:
        statement = self._queries.listing(statuses, of_pipeline=pipeline is not None)
        with self._database.cursor() as cursor:
            rows = statement.run(cursor, {"number": limit, "pipeline": pipeline}, self._database.unreadable)
            return [Run(*row) for row in rows]

    def _counts(self, pipeline: str | None) -> Mapping[RunStatus, int]:
        with self._database.cursor() as cursor:
            return self._queries.count(cursor, pipeline)

    def _events(self, run_id: str) -> list[Event]:
        with self._database.cursor() as cursor:
            rows = self._queries.events.run(cursor, {"of_run": run_id})
        if not rows:
            self._get(run_id)
        return [Event(*row) for row in rows]

    # --- changes ------------------------------------------------------------------------------------------------------

    def _create(self, request: RunRequest) -> Run:
        asked = {"task": request.task_id, "key": request.idempotency_key}
        for _ in range(TRIES):
            with self._database.cursor() as cursor:
                rows = self._queries.known_or_next.run(cursor, asked)
            attempt, *known = rows[0]
            run, events = begun_run(request, attempt, at=self._clock.now())
            if known[0] is not None:
                return Run(*known)
            with self._database.write() as cursor:
                if self._updates.create.run(cursor, _columns(run) | {"new_events": len(events)}, events):
                    return run
        raise _contended(self._database, f"an attempt of {request.task_id}")

    def _move(self, run: Run, transition: Transition) -> Run:
        for _ in range(TRIES):
            attempt = None
            if transition.trigger is Trigger.RETRY_DUE:
                with self._database.cursor() as cursor:
                    ((attempt,),) = self._queries.next_attempt.run(cursor, {"task": run.task_id})
            try:
                after, new = moved(run, transition, 1, at=self._clock.now(), attempt=attempt)
            except RunError:
                if self._get(run.run_id).version != run.version:
                    raise self._stale(run) from None
                raise
            try:
                with self._database.write() as cursor:
                    if self._save(cursor, run, after, new):
                        return after
            except AttemptTaken:
                continue
            raise self._stale(run)
        raise _contended(self._database, f"an attempt of {run.task_id}")

    def _note(self, run: Run, note: Note, *, actor: str, trace_id: str | None) -> Event:
        event = noted(run.run_id, 1, note, at=self._clock.now(), actor=actor, trace_id=trace_id)
        with self._database.write() as cursor:
            seq = self._updates.note.run(cursor, {"of_run": run.run_id}, [event])
        if seq is None:
            raise UnknownRun(f"there is no run {run.run_id} in {self._database.name}")
        return event._replace(seq=seq)

    def _claim(self, worker: str, *, actor: str, pipeline: str | None) -> Run | None:
        for _ in range(TRIES):
            now = self._clock.now()
            try:
                with self._database.transaction() as cursor:
                    asked = {"now": now, "ahead": now + CLOCKS_DIFFER, "pipeline": pipeline}
                    rows = self._updates.next_to_claim(cursor, asked, self._database.unreadable)
                    if not rows:
                        return None
                    *fields, attempt = rows[0]
                    run = Run(*fields)
                    transition = Transition(TAKEN_UP[run.status], actor, worker)
                    after, new = moved(run, transition, 1, at=now, attempt=attempt)
                    self._save(cursor, run, after, new)
                    return after
            except AttemptTaken:
                continue
        raise _contended(self._database, "a run")

    def _heartbeat(self, run: Run) -> Run:
        values = {"of_run": run.run_id, "of_version": run.version, "heartbeat_at": self._clock.now()}
        with self._database.write() as cursor:
            rows = self._updates.heartbeat.run(cursor, values)
        if not rows:
            raise self._stale(run)
        return Run(*rows[0])

    # --- shared -------------------------------------------------------------------------------------------------------

    def _save(self, cursor: Any, run: Run, after: Run, new: list[Event]) -> int | None:
        values = _columns(after)
        values["of_run"], values["of_version"], values["new_events"] = run.run_id, run.version, len(new)
        return self._updates.move.run(cursor, values, new)

    def _stale(self, run: Run) -> StaleRun:
        found = self._get(run.run_id)
        return StaleRun(
            f"{run.run_id} is {found.status} at version {found.version} (since {found.updated_at:%Y-%m-%d %H:%M:%S}Z); "
            f"this was about version {run.version}, {run.status}: read it again"
        )


def _contended(database: Database, what: str) -> StorageError:
    return StorageError(f"the ledger at {database.name}: {TRIES} times somebody else was quicker to {what}; try again")


def _columns(run: Run) -> dict[str, Any]:
    fields = run._asdict()
    fields["run_status"] = fields.pop("status")
    return fields
