"""Runs: what was begun, how it stands, and everything that happened to it. One contract, a store a file.

A ledger keeps runs and their events. The promises below hold on every store (a bucket, SQLite, PostgreSQL); one suite
(tests/runs/ledger_contract.py) runs against all of them. What a transition is and may be stands in states.py and
run.py; a store only sees to it that a transition and its events are there together or not at all, and that of two who
move the same run one is refused.

states.py, run.py        the diagram of the seed as data, and the pure rules by which one run makes the next
validation.py            what no store takes in; checked.py: the front that all stores share, which refuses it
bucket_ledger.py         the ledger in a bucket; run_document.py, bucket_names.py, bucket_tally.py: what lies there
sql_ledger.py            the ledger in SQLite or PostgreSQL; database.py, tables.py, statements.py, schema.py: how
worker.py, hold.py       who does the work, a run at a time, and gives signs of life meanwhile
recovery.py              what becomes of runs whose worker died
failure_injection.py     failures to order, for tests
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from retake.errors import SettingsError, redact
from retake.runs.run import Event, Note, Run
from retake.runs.states import RunStatus, Trigger

if TYPE_CHECKING:
    from retake.bucket import Bucket, Lease
    from retake.clock import Clock


class Ledger(Protocol):
    """Every method may raise StorageError (the store is away, full, or forbids it); nothing was changed then, or all
    of it. `actor` says who does it: «cron», «operator», «recovery», «worker». Times are aware, in UTC.

    Every change raises `retake.runs.validation.InvalidField`, a RunError that is a ValueError too, for a value that
    some store could not keep: a name that is empty or too long, half a surrogate pair, a payload that is no JSON. It
    comes before the store is asked anything.
    """

    def create_for_task(
        self, task_id: str, idempotency_key: str, *, actor: str, pipeline: str = "", trace_id: str | None = None
    ) -> Run:
        """A queued run of the task, with the task's next attempt; the one that is there if its key is known, whatever
        its task."""
        ...

    def get(self, run_id: str) -> Run:
        """Raises UnknownRun."""
        ...

    def find(self, idempotency_key: str) -> Run | None:
        """The run that has this key."""
        ...

    def of_task(self, task_id: str) -> list[Run]:
        """Every run of the task, by attempt."""
        ...

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
        """The run after `trigger`, saved with its events and `notes` in one write. See `retake.runs.run.moved`.

        Raises StaleRun if `run` is not how it stands any more (its version is another; that comes before anything else
        that is wrong), IllegalTransition for what its state does not know, UnknownRun.
        """
        ...

    def note(
        self, run: Run, kind: str, payload: Mapping[str, Any], *, actor: str, trace_id: str | None = None
    ) -> Event:
        """Add an event that changes no state; `actor` goes into its payload. An older copy of the run will do. Raises
        UnknownRun."""
        ...

    def claim(self, worker: str, *, actor: str = "worker", pipeline: str | None = None) -> Run | None:
        """Take up one run that waits for work: interrupted ones first, then those whose retry is due, then queued ones;
        of each kind the one that waits longest (since `updated_at`; a retry since it is due, which begins at the very
        moment of `next_retry_at`), then by run_id. However many ask at once, one gets it. None if nothing waits."""
        ...

    def heartbeat(self, run: Run) -> Run:
        """A sign of life of who has the run: only `heartbeat_at` changes. Raises StaleRun if somebody took it away, or
        nobody has it (it is not running): then stop, save nothing. Raises UnknownRun."""
        ...

    def silent(self, since: datetime) -> list[Run]:
        """The running runs whose last sign of life is older than `since`, the longest silent first, then by run_id."""
        ...

    def runs(self, *, status: Collection[RunStatus] = (), pipeline: str | None = None, limit: int = 50) -> list[Run]:
        """The runs in one of these states (none given: in any), the last changed first (`updated_at`, then run_id, both
        falling)."""
        ...

    def counts(self, *, pipeline: str | None = None) -> dict[RunStatus, int]:
        """How many runs are in each state; states without any are 0."""
        ...

    def events(self, run_id: str) -> list[Event]:
        """All that happened to the run, in its order. In a bucket, a run that has tens of thousands of events keeps no
        more plain notes: an event `run.events.dropped` says how many are gone. Raises UnknownRun."""
        ...


def open_ledger(
    url: str | None, bucket: "Bucket", clock: "Clock", *, lease: "Lease | None" = None, read_only: bool = False
) -> Ledger:
    """The ledger that `url` names. None is the bucket itself, under «runs/».

    «sqlite:PATH» is a file of one machine; «postgresql://USER@HOST:PORT/DATABASE» is a server, its password where libpq
    looks for it (PGPASSWORD, ~/.pgpass). Tables are made, and brought up to date, when it is opened.
    In the bucket, changes are made under `lease` where one is given, else under a lease of the ledger's own for each.
    Raises SettingsError for a URL that names none.
    """
    if url is None:
        from retake.runs.bucket_ledger import BucketLedger

        return BucketLedger(bucket, clock, lease=lease)
    if url.startswith(("sqlite:", "postgresql:")):
        from retake.runs.sql_ledger import open_sql_ledger

        return open_sql_ledger(url, clock, read_only=read_only)
    named = redact(url)
    raise SettingsError(
        f"STORAGE.ledger: {named!r} names no ledger; use sqlite:PATH or postgresql://USER@HOST/DATABASE"
    )
