"""The ledger in a bucket: one document per run, with its last events, and an index of markers (`bucket_index`).

Changes are made under a lease, one at a time. A change takes several writes, of which the document's is the commit. The
others are ordered so that a crash in between does no harm:

    a new run       its markers, then its document: a marker without a document is ignored
    older events    their segment, then the document, which names the segment and no longer has these events: a segment
                    that no document names is ignored
    a run that ends its document, then its ended marker, then the open marker is removed: until then the run is still
                    read as an open one, and its document says that it has ended

Claiming reads every open run, so a queue of thousands belongs in SQLite or PostgreSQL. So do workers that may be
frozen: on a directory, one that is stopped in the middle of a change keeps the lock until it continues or is killed (on
B2 and S3, until the lease expires).
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from logging import getLogger

from retake.attempts import attempts, countdown, repeating
from retake.bucket import ABSENT, ANY, Bucket, Conflict, Expect, Lease, NotFound, this_process
from retake.bucket.contract import Unreadable, write_unsynced
from retake.bucket.wrappers import LeasedBucket
from retake.clock import CLOCKS_DIFFER, Clock
from retake.errors import LeaseHeld, StateError
from retake.runs import Ledger
from retake.runs.bucket_index import (
    OPEN,
    EndedIndex,
    closed_counts,
    mark_open,
    newest,
    opened,
    read_tally,
    restore_marks,
    tag_of,
    task_prefix,
    time_of,
    uncounted,
)
from retake.runs.run import (
    Event,
    Note,
    Run,
    RunRequest,
    StaleRun,
    Transition,
    UnknownRun,
    begun_run,
    is_run_id,
    moved,
    noted,
    run_id_of,
)
from retake.runs.run_document import (
    MAX_DOCUMENT_BYTES,
    MAX_EVENTS,
    RunDocument,
    new_document,
    parse_run,
    parse_segment,
    run_key,
    segment_key,
    shortened,
)
from retake.runs.states import TAKEN_UP, RunStatus, Trigger

_log = getLogger(__name__)


class RunDocuments:
    """The documents of the runs in `bucket`.

    `max_events` is how many events a document has before the older ones move to a segment. With `cached`, documents
    of unfinished runs are kept in memory, which only the sole writer may do.
    """

    def __init__(self, bucket: Bucket, *, max_events: int = MAX_EVENTS, cached: bool = False) -> None:
        self._bucket, self._max_events, self._cached = bucket, max_events, cached
        self._known: dict[str, tuple[RunDocument, str]] = {}  # with the bucket's version of it
        self.unreadable: dict[str, str] = {}
        """What is wrong with each skipped run, by id."""

    def read(self, run_id: str) -> tuple[RunDocument, str]:
        """Return the document and the bucket's version of it. Raises UnknownRun, StateError."""
        found = self.look(run_id)
        if found is None:
            raise UnknownRun(f"there is no run {run_id}")
        return found

    def look(self, run_id: str) -> tuple[RunDocument, str] | None:
        """Return the document and the bucket's version of it, or None. Raises StateError."""
        if not is_run_id(run_id):
            return None
        try:
            data, version = _read(self._bucket, run_key(run_id))
        except NotFound:
            self.forget(run_id)
            return None
        doc = parse_run(run_key(run_id), data)
        self._keep(doc, version)
        return doc, version

    def seen(self, run_id: str) -> RunDocument | None:
        """Return the document, or None if there is none or it is invalid, which is logged."""
        try:
            found = self.look(run_id)
        except StateError as error:
            self.pass_over(run_id, error)
            return None
        self.unreadable.pop(run_id, None)
        return found[0] if found else None

    def pass_over(self, run_id: str, error: StateError) -> None:
        """Note that the run cannot be read, and log it once."""
        text = f"{error} (in {self._bucket.url})"  # which may be a channel's part
        if self.unreadable.get(run_id) != text:
            self.unreadable[run_id] = text
            _log.warning("%s", text)

    def present(self, run: Run, *, any_version: bool = False) -> tuple[RunDocument, str]:
        """Return the document to change and the bucket's version of it, from memory if possible.

        Raises UnknownRun, StateError, and, unless `any_version`, StaleRun if the document's run has another version
        than `run`.
        """
        known = self._known.get(run.run_id)
        if known and (any_version or known[0].run.version == run.version):
            return known
        present, version = self.read(run.run_id)
        if not any_version and present.run.version != run.version:
            raise StaleRun(
                f"{run.run_id} was moved on by somebody else: it is {present.run.status} (version "
                f"{present.run.version}, not {run.version}); read it again"
            )
        return present, version

    def save(self, bucket: Bucket, doc: RunDocument, expect: str | Expect, *, synced: bool = True) -> None:
        """Write `doc` to `bucket`, moving its older events to a segment first if it has grown too large.

        Unless `synced`, the write may be lost in a power cut. Raises Conflict.
        """
        data = doc.encode()
        while (number := len(doc.raw["events"])) > 1:
            too_many = number > self._max_events
            if not too_many and len(data) <= MAX_DOCUMENT_BYTES:
                break
            doc, segment = shortened(doc, self._max_events, too_large=not too_many)
            if segment:
                bucket.write(segment.key, segment.data, ANY)
            data = doc.encode()
        key = run_key(doc.run.run_id)
        self._keep(doc, bucket.write(key, data, expect) if synced else write_unsynced(bucket, key, data, expect))

    def forget(self, run_id: str) -> None:
        """Drop the document from memory."""
        self._known.pop(run_id, None)

    def events(self, run_id: str) -> list[Event]:
        """Return all events of the run, using the document in memory if there is one. Raises UnknownRun, and StateError
        (also for a missing segment)."""
        doc, _ = self._known.get(run_id) or self.read(run_id)
        older = (self._segment(run_id, name) for name in doc.segments)
        return [event for events in (*older, doc.events(run_key(run_id))) for event in events]

    def of_task(self, task_id: str, *, excluding: str | None = None) -> list[Run]:
        """Return the runs of the task, in no particular order, except the one with the id `excluding`. Raises
        StateError."""
        names = [entry.key.rpartition("/")[2] for entry in self._bucket.list(task_prefix(task_id))]
        found = (self.look(name) for name in names if name != excluding)
        return [it[0].run for it in found if it and it[0].run.task_id == task_id]

    def next_attempt(self, task_id: str, known: Run | None = None) -> int:
        """Return the task's next attempt. `known` is one of its runs, which need not be read."""
        others = self.of_task(task_id, excluding=known.run_id if known else None)
        return 1 + max((run.attempt for run in (known, *others) if run), default=0)

    def open_ids(self, pipeline: str | None) -> list[str]:
        """Return the ids of the pipeline's runs that have an open marker; None means all pipelines."""
        tag = None if pipeline is None else tag_of(pipeline)
        return [it.run_id for it in opened(self._bucket.list(OPEN)) if tag in (None, it.pipeline)]

    def readable(self, run_ids: Iterable[str]) -> list[Run]:
        """Return the runs that exist and can be read."""
        return [doc.run for doc in map(self.seen, run_ids) if doc]

    def _segment(self, run_id: str, name: str) -> list[Event]:
        key = segment_key(run_id, name)
        try:
            data, _ = _read(self._bucket, key)
        except NotFound:
            raise StateError(f"{key}: is missing, and with it some events of {run_id}; restore it") from None
        return parse_segment(key, run_id, data)

    def _keep(self, doc: RunDocument, version: str) -> None:
        if self._cached and not doc.run.ended:
            self._known[doc.run.run_id] = doc, version
        else:
            self.forget(doc.run.run_id)


def _read(bucket: Bucket, key: str) -> tuple[bytes, str]:
    """Return an object and its version. Raises NotFound, StateError if only this object is unreadable, StorageError."""
    try:
        return bucket.read(key)
    except Unreadable as error:
        raise StateError(str(error)) from error


def claimable(runs: Iterable[Run], now: datetime) -> list[Run]:
    """Return the `runs` that wait for a worker now, in the order in which workers claim them."""
    order = list(TAKEN_UP)
    waiting = (run for run in runs if run.status in order)
    found = []
    for run in waiting:
        due = run.next_retry_at
        if due is None or due <= now or run.updated_at > now + CLOCKS_DIFFER:
            since = due if due and due <= now else run.updated_at
            found.append((order.index(run.status), since, run.run_id, run))
    return [run for *_, run in sorted(found)]


LEASE = "runs"
"""The lease that changes take if the caller gives none."""

PATIENCE_S = 30.0
"""Seconds that a change waits for the lease, which others hold only for moments."""

_PAUSE_S = 0.02


class BucketLedger(Ledger):
    """A ledger in `bucket`. Changes raise LeaseHeld if the lease is not free within PATIENCE_S, or LeaseLost.

    With a `lease`, documents are kept in memory between changes, since nobody else writes them. Without one, each
    change takes the lease `lease_name`. All programs that change the runs of a bucket must use the same lease.
    `max_events` is how many events a run's document has before the older ones move to a segment.
    """

    def __init__(
        self,
        bucket: Bucket,
        clock: Clock,
        *,
        lease: Lease | None = None,
        lease_name: str = LEASE,
        max_events: int = MAX_EVENTS,
    ) -> None:
        self._bucket, self._clock = bucket, clock
        self._lease, self._lease_name = lease, lease_name
        self._documents = RunDocuments(bucket, max_events=max_events, cached=lease is not None)
        self.unreadable = self._documents.unreadable.values()
        self._ended = EndedIndex(bucket, clock, self._documents.look, marks=lease is not None)
        self._here = threading.RLock()  # between threads of this process

    # --- changes ------------------------------------------------------------------------------------------------

    def _create(self, request: RunRequest) -> Run:
        if self._lease is None and (found := self._find(request.idempotency_key)):
            return found  # without taking a lease
        with self._exclusive() as bucket:
            if found := self._find(request.idempotency_key):
                return found
            attempt = self._documents.next_attempt(request.task_id)
            run, events = begun_run(request, attempt, at=self._clock.now())
            doc = new_document(run, events)
            durably = self._lease is None or request.worker is None
            mark_open(bucket, run, durably=durably)
            self._documents.save(bucket, doc, ABSENT, synced=durably)
        return doc.run

    def _move(self, run: Run, transition: Transition) -> Run:
        def change(doc: RunDocument) -> RunDocument:
            after, events = moved(doc.run, transition, doc.next_seq, at=self._clock.now(), attempt=attempt)
            return doc.after(after, events)

        with self._exclusive() as bucket:
            retried = transition.trigger is Trigger.RETRY_DUE
            attempt = self._documents.next_attempt(run.task_id, run) if retried else None
            return self._change(bucket, run, change)

    def _note(self, run: Run, note: Note, *, actor: str, trace_id: str | None) -> Event:
        event = noted(run.run_id, 0, note, at=self._clock.now(), actor=actor, trace_id=trace_id)

        def change(doc: RunDocument) -> RunDocument:
            nonlocal event
            event = event._replace(seq=doc.next_seq)
            return doc.after(doc.run, [event])

        with self._exclusive() as bucket:
            self._change(bucket, run, change, any_version=True)
        return event

    def _claim(self, worker: str, *, actor: str, pipeline: str | None) -> Run | None:
        runs = self._documents.readable(self._documents.open_ids(pipeline))  # an idle worker takes no lease
        for run in claimable(runs, self._clock.now()):
            try:
                return self._move(run, Transition(TAKEN_UP[run.status], actor, worker))
            except (StaleRun, UnknownRun):  # another worker was faster
                continue
            except StateError as error:  # another run of its task is unreadable; other tasks must not suffer
                _log.warning("%s is not claimed: %s", run.run_id, error)
        return None

    def _heartbeat(self, run: Run) -> Run:
        def change(doc: RunDocument) -> RunDocument:
            if doc.run.status is not RunStatus.RUNNING:
                raise StaleRun(f"{run.run_id} is {doc.run.status}: nobody works on it")
            return doc.after(doc.run._replace(heartbeat_at=self._clock.now()))

        with self._exclusive() as bucket:
            return self._change(bucket, run, change)

    # --- queries ------------------------------------------------------------------------------------------------

    def _get(self, run_id: str) -> Run:
        return self._documents.read(run_id)[0].run

    def _find(self, key: str) -> Run | None:
        found = self._documents.look(run_id_of(key))
        if found and self._lease and not found[0].run.ended:
            restore_marks(LeasedBucket(self._bucket, self._lease), found[0].run)
        return found[0].run if found else None

    def _of_task(self, task_id: str) -> list[Run]:
        """See `Ledger.of_task`. Raises StateError if one of them cannot be read."""
        return sorted(self._documents.of_task(task_id), key=lambda run: run.attempt)

    def _silent(self, since: datetime) -> list[Run]:
        runs = self._documents.readable(self._documents.open_ids(None))
        running = (run for run in runs if run.status is RunStatus.RUNNING)
        found = sorted((run.heartbeat_at or run.updated_at, run.run_id, run) for run in running)
        return [run for heard, _, run in found if heard < since]

    def _runs(self, statuses: frozenset[RunStatus], pipeline: str | None, limit: int) -> list[Run]:
        """See `Ledger.runs`. Reads all open runs, and at most `limit` ended ones."""

        def wanted(of: RunStatus, tag: str) -> bool:
            return of in statuses and (pipeline is None or tag == tag_of(pipeline))

        opened = self._documents.readable(self._documents.open_ids(pipeline))
        unfinished = {run.run_id: run for run in opened if run.status in statuses}
        names = newest(self._bucket, read_tally(self._bucket), wanted, limit)
        times = {(it.time, it.run_id) for it in names} | {(time_of(run), run.run_id) for run in unfinished.values()}
        last = [run_id for _, run_id in sorted(times, reverse=True)[:limit]]
        read = {run.run_id: run for run in self._documents.readable(it for it in last if it not in unfinished)}
        return [run for run_id in last if (run := unfinished.get(run_id) or read.get(run_id))]

    def _counts(self, pipeline: str | None) -> Mapping[RunStatus, int]:
        """See `Ledger.counts`. Reads all open runs; ended ones are counted by their names in the index."""
        tag = None if pipeline is None else tag_of(pipeline)
        unfinished = self._documents.open_ids(pipeline)  # first, so that a run that ends meanwhile is among the ended
        tally = read_tally(self._bucket)
        ended = {it.run_id: it.status for it in uncounted(self._bucket, tally) if tag in (None, it.pipeline)}
        counts = closed_counts(tally, tag)
        counts.update(ended.values())
        counts.update(run.status for run in self._documents.readable(it for it in unfinished if it not in ended))
        return counts

    def _events(self, run_id: str) -> list[Event]:
        """See `Ledger.events`. Raises StateError also for a missing segment."""
        return self._documents.events(run_id)

    # --- under the lease ----------------------------------------------------------------------------------------

    @contextmanager
    def _exclusive(self) -> Iterator[Bucket]:
        """Yield the bucket to write to, with nobody else changing runs inside the block. Raises LeaseHeld."""
        with self._here:
            if self._lease:
                yield LeasedBucket(self._bucket, self._lease)
                return
            with LeasedBucket(self._bucket, _lease(self._bucket, self._lease_name, self._clock)) as bucket:
                yield bucket

    def _change(
        self, bucket: Bucket, run: Run, change: Callable[[RunDocument], RunDocument], *, any_version: bool = False
    ) -> Run:
        """Save the run after `change` and return it. Raises StaleRun, UnknownRun, and what `change` raises."""
        for attempt in attempts((0,), self._clock.sleep):
            before, version = self._documents.present(run, any_version=any_version)
            after = change(before)
            ends = after.run.ended and not before.run.ended
            segment = self._ended.open_segment(bucket) if ends else ""
            try:
                self._documents.save(bucket, after, version)
            except Conflict:  # the document in memory was out of date
                self._documents.forget(run.run_id)
                if attempt.last:
                    raise
                continue
            if ends:
                self._ended.add(bucket, after.run, segment)
            return after.run
        raise AssertionError


def _lease(bucket: Bucket, name: str, clock: Clock) -> Lease:
    owner = this_process()
    # The last attempt is made when PATIENCE_S is over, not one pause earlier.
    for attempt in attempts(repeating(_PAUSE_S), clock.sleep, left=countdown(PATIENCE_S + _PAUSE_S, clock)):
        try:
            return bucket.lease(name, owner)
        except LeaseHeld:
            if attempt.last:
                raise
    raise AssertionError
