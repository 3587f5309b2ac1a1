"""The interface of a ledger of runs, what a store has to implement, and opening one.

`Ledger` validates its arguments, so that all stores refuse the same values. A store derives from it and implements the
methods of `LedgerStore`, whose arguments are already validated.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from retake.clock import SystemClock
from retake.errors import SettingsError, StateError, redact
from retake.runs import validation
from retake.runs.run import Event, Note, Run, RunRequest, StaleRun, Transition, UnknownRun, is_run_id
from retake.runs.states import RunStatus, Trigger

if TYPE_CHECKING:
    from retake.bucket import Bucket, Lease
    from retake.clock import Clock

LEDGER_SETTING = "STORAGE.ledger"

MAX_LISTED = 2**31 - 1
"""Maximum number of runs in one list: the largest LIMIT that every database accepts."""


class OldTables(StateError):
    """The tables of a database are of an older version. The next program that writes to it migrates them; until then
    they cannot be read, which is not a fault."""


class LedgerStore(ABC):
    """The methods that a store implements. `Ledger` documents each under the same name without the underscore."""

    @abstractmethod
    def _create(self, request: RunRequest) -> Run: ...

    @abstractmethod
    def _move(self, run: Run, transition: Transition) -> Run: ...

    @abstractmethod
    def _note(self, run: Run, note: Note, *, actor: str, trace_id: str | None) -> Event: ...

    @abstractmethod
    def _claim(self, worker: str, *, actor: str, pipeline: str | None) -> Run | None: ...

    @abstractmethod
    def _heartbeat(self, run: Run) -> Run: ...

    @abstractmethod
    def _get(self, run_id: str) -> Run: ...

    @abstractmethod
    def _find(self, key: str) -> Run | None: ...

    @abstractmethod
    def _of_task(self, task_id: str) -> list[Run]: ...

    @abstractmethod
    def _silent(self, since: datetime) -> list[Run]: ...

    @abstractmethod
    def _runs(self, statuses: frozenset[RunStatus], pipeline: str | None, limit: int) -> list[Run]: ...

    @abstractmethod
    def _counts(self, pipeline: str | None) -> Mapping[RunStatus, int]: ...

    @abstractmethod
    def _events(self, run_id: str) -> list[Event]: ...


class Ledger(LedgerStore):
    """A ledger of runs.

    Every method may raise StorageError if the store is unavailable, full, or read-only. Then either nothing was changed
    or the whole change was made. `actor` says who acts: "cron", "operator", "recovery", "worker". Times are
    timezone-aware, in UTC.

    Methods that change something raise `validation.InvalidField`, a RunError and a ValueError, for a value that some
    store could not keep: an empty or overlong name, a lone surrogate, a payload that is not JSON. Nothing is changed
    then. Looking up such a value is not an error: nothing is found.
    """

    unreadable: Collection[str] = ()
    """A sentence for each run that lists have left out as unreadable: what is wrong with it, and what to do. Always
    empty for a database, which logs them."""

    # --- changes ------------------------------------------------------------------------------------------------

    def create_for_task(
        self,
        task_id: str,
        idempotency_key: str,
        *,
        actor: str,
        pipeline: str = "",
        trace_id: str | None = None,
        worker: str | None = None,
    ) -> Run:
        """Create a queued run with the task's next attempt, or return the run that already has this key, whatever its
        task.

        With a `worker`, who begins at once, a queued run is claimed for that worker, a new run in the same write. If
        the `worker` of the returned run is another one, that one was quicker.

        >>> ledger = open_ledger("sqlite:posters.db")
        >>> run = ledger.create_for_task("aurora", "posters/aurora", actor="shop", pipeline="posters")
        >>> run.status.value, run == ledger.create_for_task("aurora", "posters/aurora", actor="shop")
        ('queued', True)
        """
        run = self._create(
            RunRequest(
                validation.name("task_id", task_id),
                validation.name("idempotency_key", idempotency_key),
                validation.name("actor", actor),
                validation.column("pipeline", pipeline),
                validation.optional_name("trace_id", trace_id or None),
                validation.optional_name("worker", worker),
            )
        )
        if worker is None or run.status is not RunStatus.QUEUED:
            return run
        try:
            return self.move(run, Trigger.WORKER_CLAIM, actor=actor, worker=worker, trace_id=trace_id)
        except StaleRun:  # somebody else was quicker, as with a run that was claimed before it was asked for
            return self.get(run.run_id)

    def move(
        self,
        run: Run,
        trigger: Trigger,
        *,
        actor: str,
        worker: str | None = None,
        next_retry_at: datetime | None = None,
        error: Mapping[str, Any] | None = None,
        error_code: str | None = None,
        notes: Sequence[Note] = (),
        trace_id: str | None = None,
    ) -> Run:
        """Change the run's state and return the run as saved, with its events and `notes`, in one write.

        See `retake.runs.run.Transition` for the parameters. Raises StaleRun if `run` is not the current version, which
        is checked first, IllegalTransition if its state does not allow `trigger`, and UnknownRun.
        """
        transition = Transition(
            trigger,
            validation.name("actor", actor),
            None if worker is None else validation.name("worker", worker),
            None if next_retry_at is None else validation.moment("next_retry_at", next_retry_at),
            validation.record(error, needs_code=not error_code) if error else None,
            validation.name("error_code", error_code) if error_code else None,
            [Note(kind, payload) for kind, payload in validation.notes(notes)] if notes else (),
            validation.name("trace_id", trace_id) if trace_id else None,
        )
        return self._move(_known(run), transition)

    def note(
        self, run: Run, kind: str, payload: Mapping[str, Any], *, actor: str, trace_id: str | None = None
    ) -> Event:
        """Record an event that changes no state; `actor` is added to its payload. `run` may be an older version.
        Raises UnknownRun."""
        return self._note(
            _known(run),
            Note(validation.name("kind", kind), validation.payload("payload", payload)),
            actor=validation.name("actor", actor),
            trace_id=validation.optional_name("trace_id", trace_id or None),
        )

    def claim(self, worker: str, *, actor: str = "worker", pipeline: str | None = None) -> Run | None:
        """Claim the next run that waits for a worker, and return it, or None if none waits.

        Interrupted runs come first, then those whose retry is due (from the exact moment of `next_retry_at`), then
        queued ones. Within each kind the one that has waited longest (since `updated_at`, or since the retry was due)
        comes first, then the lowest run_id. However many workers claim at once, each run goes to one of them.

        A retry that was scheduled by a clock ahead of ours by more than `retake.clock.CLOCKS_DIFFER` is claimed after
        those that are due: its time may be years away.
        """
        worker, actor = validation.name("worker", worker), validation.name("actor", actor)
        return self._claim(worker, actor=actor, pipeline=pipeline) if _may_have_runs(pipeline) else None

    def heartbeat(self, run: Run) -> Run:
        """Record that the run's worker is alive: only `heartbeat_at` changes.

        Raises StaleRun if the run was taken away or is not running: the worker must stop and save nothing. Raises
        UnknownRun if there is no such run.
        """
        return self._heartbeat(_known(run))

    beat = heartbeat  # its former name

    # --- queries ------------------------------------------------------------------------------------------------

    def get(self, run_id: str) -> Run:
        """Return the run. Raises UnknownRun.

        >>> ledger = open_ledger("sqlite:posters.db")
        >>> run = ledger.create_for_task("aurora", "posters/aurora", actor="shop", pipeline="posters")
        >>> ledger.get(run.run_id).ended
        False
        """
        return self._get(_known_id(run_id))

    def find(self, idempotency_key: str) -> Run | None:
        """Return the run that has this key, or None."""
        return self._find(idempotency_key) if validation.is_column(idempotency_key) else None

    def of_task(self, task_id: str) -> list[Run]:
        """Return every run of the task, by attempt."""
        return self._of_task(task_id) if validation.is_column(task_id) else []

    def silent(self, since: datetime) -> list[Run]:
        """Return the running runs whose last heartbeat is older than `since`, by that heartbeat, then by run_id."""
        return self._silent(validation.moment("since", since))

    def runs(self, *, status: Collection[RunStatus] = (), pipeline: str | None = None, limit: int = 50) -> list[Run]:
        """Return at most `limit` runs in one of these states (default: any), the last changed first: by `updated_at`,
        then run_id, both descending. `counts` says how many there are.

        >>> ledger = open_ledger("sqlite:posters.db")
        >>> _ = ledger.create_for_task("aurora", "posters/aurora", actor="shop", pipeline="posters")
        >>> [run.task_id for run in ledger.runs(status=[RunStatus.QUEUED])]
        ['aurora']
        """
        if limit <= 0 or not _may_have_runs(pipeline):
            return []
        return self._runs(frozenset(map(RunStatus, status or RunStatus)), pipeline, min(limit, MAX_LISTED))

    def counts(self, *, pipeline: str | None = None) -> dict[RunStatus, int]:
        """Return how many runs are in each state, including states with none.

        >>> ledger = open_ledger("sqlite:posters.db")
        >>> _ = ledger.create_for_task("aurora", "posters/aurora", actor="shop", pipeline="posters")
        >>> ledger.counts(pipeline="posters")[RunStatus.QUEUED]
        1
        """
        found = self._counts(pipeline) if _may_have_runs(pipeline) else {}
        return {status: found.get(status, 0) for status in RunStatus}

    def events(self, run_id: str) -> list[Event]:
        """Return all events of the run, in order. Raises UnknownRun.

        In a bucket, a run with tens of thousands of events loses plain notes. An event `run.events.dropped` says how
        many.
        """
        return self._events(_known_id(run_id))

    def close(self) -> None:
        """Close the connections to a database; a bucket has none. Happens at the latest when the ledger is garbage
        collected."""


def _known_id(run_id: str) -> str:
    if not is_run_id(run_id):
        raise UnknownRun(f"there is no run {ascii(run_id)[1:-1]:.100}")
    return run_id


def _known(run: Run) -> Run:
    _known_id(run.run_id)
    validation.name("task_id", run.task_id)
    return run


def _may_have_runs(pipeline: str | None) -> bool:
    return pipeline is None or validation.is_column(pipeline)


def open_ledger(
    url: str | None,
    bucket: "Bucket | None" = None,
    clock: "Clock | None" = None,
    *,
    lease: "Lease | None" = None,
    read_only: bool = False,
    setting: str = LEDGER_SETTING,
) -> Ledger:
    """Open the ledger that `url` names. None means the one in `bucket`, under "runs/".

    "sqlite:PATH" is a file on this machine. "postgresql://USER@HOST:PORT/DATABASE" is a server, whose password libpq
    finds in PGPASSWORD or ~/.pgpass. Tables are created and migrated when the ledger is opened. With `read_only`
    nothing is created or changed.

    A ledger in a bucket makes its changes under `lease`; without one it takes a lease of its own for each change.
    `clock` defaults to the machine's own. Messages name `setting` as the place of the URL.

    Raises SettingsError for a URL that names no ledger, StateError for tables of a newer version, StorageError, and
    ValueError without a URL and a bucket.

    >>> ledger = open_ledger("sqlite:posters.db")
    >>> ledger.runs()
    []
    """
    clock = clock or SystemClock()
    if url is None:
        if bucket is None:
            raise ValueError("a ledger is in a bucket or at a URL; found neither")
        from retake.runs.bucket_ledger import BucketLedger

        return BucketLedger(bucket, clock, lease=lease)
    if url.startswith(("sqlite:", "postgresql:")):
        from retake.runs.sql_ledger import open_sql_ledger

        return open_sql_ledger(url, clock, read_only=read_only, setting=setting)
    named = redact(url)
    raise SettingsError(f"{setting}: {named!r} names no ledger; use sqlite:PATH or postgresql://USER@HOST/DATABASE")
