"""The ledger in a bucket: one document a run, with its last events, and names that say where to look.

Changes are made under a lease, one at a time. Of a change's several writes, the document's is the one that counts; the
order of the others is chosen for a crash in between:

    a new run       its markers, then its document: a marker without a document is ignored
    older events    their segment, then the document, which names the segment and no longer has these events: a segment
                    that no document names is ignored
    a run that ends its document, then the marker of its end, then the open marker is removed: until then the run is
                    still read among the open ones, and its document says that it has ended

Looking for work reads every open run, so a queue of thousands belongs in SQLite or PostgreSQL. So do workers that may
be frozen: on a directory, one that is stopped in the middle of a change keeps the lock until it continues or is killed
(on B2 and S3, until the lease expires).
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime

from retake.attempts import attempts, countdown, repeating
from retake.bucket import ABSENT, ANY, Bucket, Conflict, Lease
from retake.bucket.leased import LeasedBucket
from retake.clock import Clock
from retake.errors import LeaseHeld
from retake.runs import Ledger
from retake.runs.bucket_documents import RunDocuments, claimable
from retake.runs.bucket_names import open_key, tag_of, task_key, time_of
from retake.runs.bucket_tally import EndedIndex, closed_counts, newest, read_tally, uncounted
from retake.runs.run import (
    Event,
    Note,
    Run,
    RunRequest,
    StaleRun,
    Transition,
    UnknownRun,
    moved,
    new_run,
    noted,
    run_id_of,
)
from retake.runs.run_document import MOST_EVENTS, RunDocument, new_document
from retake.runs.states import TAKEN_UP, RunStatus, Trigger

LEASE = "runs"
"""The lease for changes where the caller gives none."""

PATIENCE_S = 30.0
"""Seconds a change waits for the lease: others have it for a moment each."""

_PAUSE_S = 0.02


class BucketLedger(Ledger):
    """A ledger in `bucket`. Changes raise LeaseHeld if the lease is not free within `patience_s`, or LeaseLost.

    With a `lease`, documents are kept in memory between changes, since nobody else writes them. Without one, each
    change takes the lease `lease_name`. Everybody who changes the runs of a bucket must use the same lease.
    `most_events` is how many events a run's document has before the older ones move to a segment.
    """

    def __init__(
        self,
        bucket: Bucket,
        clock: Clock,
        *,
        lease: Lease | None = None,
        lease_name: str = LEASE,
        patience_s: float = PATIENCE_S,
        most_events: int = MOST_EVENTS,
    ) -> None:
        self._bucket, self._clock = bucket, clock
        self._lease, self._lease_name, self._patience_s = lease, lease_name, patience_s
        self._documents = RunDocuments(bucket, most_events=most_events, cached=lease is not None)
        self._ended = EndedIndex(bucket, clock, self._documents.look)
        self._here = threading.RLock()  # threads of one process wait for each other here

    # --- changes ------------------------------------------------------------------------------------------------

    def _create(self, request: RunRequest) -> Run:
        if self._lease is None and (found := self._find(request.idempotency_key)):
            return found  # no lease was needed for that
        with self._exclusive() as bucket:
            if found := self._find(request.idempotency_key):
                return found
            attempt = self._documents.next_attempt(request.task_id)
            run, event = new_run(request, attempt, at=self._clock.now())
            bucket.write(task_key(run), b"", ANY)
            bucket.write(open_key(run), b"", ANY)
            self._documents.save(bucket, new_document(run, [event]), ABSENT)
        return run

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
            with suppress(StaleRun, UnknownRun):  # another worker was faster
                return self._move(run, Transition(TAKEN_UP[run.status], actor, worker))
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
        """See `Ledger.runs`. Reads all open runs, and `limit` of those that have ended."""

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
        """See `Ledger.counts`. Reads all open runs; those that have ended are counted by their names."""
        tag = None if pipeline is None else tag_of(pipeline)
        unfinished = self._documents.open_ids(pipeline)  # first: a run that ends meanwhile is found among the ended
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
        """Yield the bucket to write to, while nobody else changes a run. Raises LeaseHeld."""
        with self._here:
            if self._lease:
                yield LeasedBucket(self._bucket, self._lease)
                return
            lease = _lease(self._bucket, self._lease_name, self._clock, self._patience_s)
            try:
                yield LeasedBucket(self._bucket, lease)
            finally:
                lease.release()

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


def _lease(bucket: Bucket, name: str, clock: Clock, patience_s: float) -> Lease:
    owner = f"{os.uname().nodename}:{os.getpid()}"
    # The last attempt is made once `patience_s` is over, not a pause before that.
    for attempt in attempts(repeating(_PAUSE_S), clock.sleep, left=countdown(patience_s + _PAUSE_S, clock)):
        try:
            return bucket.lease(name, owner)
        except LeaseHeld:
            if attempt.last:
                raise
    raise AssertionError
