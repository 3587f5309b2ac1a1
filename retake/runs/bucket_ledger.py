"""The ledger in a bucket: one document a run, with its last events; names say where to look (retake.runs.bucket_names).

Changes are made under a lease, one at a time. Of the writes that a change takes the document's is the one that counts;
the order of the others is chosen for the crash in between:

    a new run       its markers, then its document: a marker without a document is passed over
    older events    their segment, then the document, which names it and has them no more: a segment that no document
                    names is passed over
    a run that ends its document, then the marker of its end, then the open marker is removed: until then it is still
                    looked at, and its document says that it has ended

Every open run is read when somebody asks for work, so a queue of thousands belongs into SQLite or PostgreSQL. So do
workers that may be frozen: on a directory one that is stopped in the middle of a change keeps the lock, until it goes
on or is killed (B2 and S3: until the lease runs out).
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from logging import getLogger
from typing import Any

from retake.bucket import ABSENT, ANY, Bucket, Conflict, Expect, Lease, NotFound
from retake.bucket.leased import LeasedBucket
from retake.clock import Clock
from retake.errors import LeaseHeld, LeaseLost, StateError, StorageError
from retake.runs.bucket_names import (
    OPEN,
    ended_key,
    open_key,
    opened,
    run_key,
    segment_key,
    segment_of,
    tag_of,
    task_key,
    task_prefix,
    time_of,
)
from retake.runs.bucket_tally import FULL, Tally, closed_counts, is_open, newest, open_segment, read_tally, uncounted
from retake.runs.checked import CheckedLedger
from retake.runs.run import Event, Note, Run, StaleRun, UnknownRun, is_run_id, moved, new_run, noted, run_id_of
from retake.runs.run_document import (
    LARGEST_DOCUMENT,
    MOST_EVENTS,
    RunDocument,
    new_document,
    parse_run,
    parse_segment,
    shortened,
)
from retake.runs.states import TAKEN_UP, RunStatus, Trigger

LEASE = "runs"
"""The lease that changes are made under where nobody gives another one."""

PATIENCE_S = 30.0
"""So long a change waits for who has the lease: others have it for a moment each."""

_PAUSE_S = 0.02
_DANGLING_S = 24 * 3600.0  # a marker without a document that is as old as this: its writer died
_log = getLogger(__name__)


class BucketLedger(CheckedLedger):
    """See `retake.runs.Ledger`. Changes raise LeaseHeld if somebody else has the lease for `patience_s`, or LeaseLost.

    Under a `lease` that is given, a document that was read or written once is not read again for a change: nobody else
    writes it. Otherwise each change takes the lease `lease_name` for itself. All who change the runs of a bucket must
    go by the same lease.
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
        """`most_events` is how many events a run's document has before the older ones go into a segment."""
        self._bucket, self._clock, self._most_events = bucket, clock, most_events
        self._lease, self._lease_name, self._patience_s = lease, lease_name, patience_s
        self._known: dict[str, tuple[RunDocument, str]] = {}  # with the version that the bucket gave it
        self._here = threading.RLock()  # threads of one process wait for each other here
        self._ends = 0  # how many runs ended through this object since it opened a segment

    # --- changes ------------------------------------------------------------------------------------------------

    def _create(self, task_id: str, key: str, *, actor: str, pipeline: str, trace_id: str | None) -> Run:
        if self._lease is None and (found := self._find(key)):
            return found  # no lease was needed for that
        with self._alone() as bucket:
            if found := self._find(key):
                return found
            now, attempt = self._clock.now(), self._next_attempt(task_id)
            run, event = new_run(task_id, key, attempt, at=now, actor=actor, pipeline=pipeline, trace_id=trace_id)
            bucket.write(task_key(run), b"", ANY)
            bucket.write(open_key(run), b"", ANY)
            self._save(bucket, new_document(run, [event]), ABSENT)
        return run

    def _move(self, run: Run, trigger: Trigger, what: Mapping[str, Any]) -> Run:
        def change(doc: RunDocument) -> RunDocument:
            after, events = moved(doc.run, trigger, doc.next_seq, at=self._clock.now(), attempt=attempt, **what)
            return doc.after(after, events)

        with self._alone() as bucket:
            attempt = self._next_attempt(run.task_id, run) if trigger is Trigger.RETRY_DUE else None
            return self._change(bucket, run, change)

    def _note(self, run: Run, note: Note, *, actor: str, trace_id: str | None) -> Event:
        event = noted(run.run_id, 0, note, at=self._clock.now(), actor=actor, trace_id=trace_id)

        def change(doc: RunDocument) -> RunDocument:
            nonlocal event
            event = event._replace(seq=doc.next_seq)
            return doc.after(doc.run, [event])

        with self._alone() as bucket:
            self._change(bucket, run, change, any_version=True)
        return event

    def _claim(self, worker: str, *, actor: str, pipeline: str | None) -> Run | None:
        for run in self._waiting(pipeline):  # read without the lease: an idle worker takes none
            with suppress(StaleRun, UnknownRun):  # somebody else was faster
                return self._move(run, TAKEN_UP[run.status], {"actor": actor, "worker": worker})
        return None

    def _heartbeat(self, run: Run) -> Run:
        def change(doc: RunDocument) -> RunDocument:
            if doc.run.status is not RunStatus.RUNNING:
                raise StaleRun(f"{run.run_id} is {doc.run.status}: nobody works on it")
            return doc.after(doc.run._replace(heartbeat_at=self._clock.now()))

        with self._alone() as bucket:
            return self._change(bucket, run, change)

    # --- questions ----------------------------------------------------------------------------------------------

    def _get(self, run_id: str) -> Run:
        return self._read(run_id)[0].run

    def _find(self, key: str) -> Run | None:
        found = self._look(run_id_of(key))
        return found[0].run if found else None

    def _of_task(self, task_id: str) -> list[Run]:
        """See `Ledger.of_task`. Raises StateError if one of them cannot be read."""
        return sorted(self._runs_of(task_id), key=lambda run: run.attempt)

    def _silent(self, since: datetime) -> list[Run]:
        running = (run for run in self._open(None) if run.status is RunStatus.RUNNING)
        found = sorted((run.heartbeat_at or run.updated_at, run.run_id, run) for run in running)
        return [run for heard, _, run in found if heard < since]

    def _runs(self, statuses: frozenset[RunStatus], pipeline: str | None, limit: int) -> list[Run]:
        """See `Ledger.runs`. Reads the open ones, and `limit` of those that have ended."""

        def wanted(of: RunStatus, tag: str) -> bool:
            return of in statuses and (pipeline is None or tag == tag_of(pipeline))

        unfinished = [run for run in self._open(pipeline) if run.status in statuses]
        names = newest(self._bucket, read_tally(self._bucket), wanted, limit)
        times = {(it.time, it.run_id) for it in names} | {(time_of(run), run.run_id) for run in unfinished}
        read = {run.run_id: run for run in unfinished}
        found = (read.get(run_id) or self._readable(run_id) for _, run_id in sorted(times, reverse=True)[:limit])
        return [run for run in found if run]

    def _counts(self, pipeline: str | None) -> Mapping[RunStatus, int]:
        """See `Ledger.counts`. Reads the open ones; those that have ended are counted by their names."""
        tag = None if pipeline is None else tag_of(pipeline)
        unfinished = self._markers(pipeline)  # before the others: what ends meanwhile is found there
        tally = read_tally(self._bucket)
        ended = {it.run_id: it.status for it in uncounted(self._bucket, tally) if tag in (None, it.pipeline)}
        counts = closed_counts(tally, tag)
        counts.update(ended.values())
        counts.update(run.status for it in unfinished if it not in ended and (run := self._readable(it)))
        return counts

    def _events(self, run_id: str) -> list[Event]:
        """See `Ledger.events`. Raises StateError also for a segment that is gone."""
        doc, _ = self._read(run_id)
        older = (self._segment_of(run_id, name) for name in doc.segments)
        return [event for events in (*older, doc.events(run_key(run_id))) for event in events]

    # --- under the lease ----------------------------------------------------------------------------------------

    @contextmanager
    def _alone(self) -> Iterator[Bucket]:
        """The bucket to write to while nobody else changes a run."""
        with self._here:
            if self._lease:
                yield LeasedBucket(self._bucket, self._lease)
                return
            lease = self._take()
            try:
                yield LeasedBucket(self._bucket, lease)
            finally:
                lease.release()

    def _take(self) -> Lease:
        owner, until = f"{os.uname().nodename}:{os.getpid()}", self._clock.now().timestamp() + self._patience_s
        while True:
            try:
                return self._bucket.lease(self._lease_name, owner)
            except LeaseHeld:
                if self._clock.now().timestamp() >= until:
                    raise
                self._clock.sleep(_PAUSE_S)

    def _change(
        self, bucket: Bucket, run: Run, change: Callable[[RunDocument], RunDocument], *, any_version: bool = False
    ) -> Run:
        """The run after `change`, saved. Raises StaleRun, UnknownRun, and what `change` raises."""
        for last in (False, True):
            before, version = self._present(run, any_version)
            after = change(before)
            ends = after.run.ended and not before.run.ended
            segment = self._segment(bucket) if ends else ""
            try:
                self._save(bucket, after, version)
            except Conflict:  # what we knew of it was old after all
                self._known.pop(run.run_id, None)
                if last:
                    raise
                continue
            if ends:
                self._file(bucket, after.run, segment)
            return after.run
        raise AssertionError

    def _present(self, run: Run, any_version: bool) -> tuple[RunDocument, str]:
        known = self._known.get(run.run_id)
        if known and (any_version or known[0].run.version == run.version):
            return known
        present, version = self._read(run.run_id)
        if not any_version and present.run.version != run.version:
            raise StaleRun(
                f"{run.run_id} was moved on by somebody else: it is {present.run.status} (version "
                f"{present.run.version}, not {run.version}); read it again"
            )
        return present, version

    def _save(self, bucket: Bucket, doc: RunDocument, expect: str | Expect) -> None:
        data = doc.encode()
        while (number := len(doc.raw["events"])) > 1:
            too_large = number <= self._most_events
            if too_large and len(data) <= LARGEST_DOCUMENT:
                break
            doc, segment = shortened(doc, self._most_events, too_large=too_large)
            if segment:
                bucket.write(segment.key, segment.data, ANY)
            data = doc.encode()
        self._keep(doc, bucket.write(run_key(doc.run.run_id), data, expect))

    def _next_attempt(self, task_id: str, known: Run | None = None) -> int:
        """Of the task's runs all but `known`, which is one of them, are read."""
        others = self._runs_of(task_id, known.run_id if known else None)
        return 1 + max((run.attempt for run in (known, *others) if run), default=0)

    # --- names of what has ended --------------------------------------------------------------------------------

    def _segment(self, bucket: Bucket) -> str:
        """Where the name of a run belongs that ends now. When it returns, that segment is open."""
        tally, now = read_tally(bucket), self._clock.now()
        if tally and is_open(tally, now) and self._ends < FULL:
            return tally.open_segment
        self._heal(bucket, tally)
        self._ends = 0
        return open_segment(bucket, tally, now)

    def _file(self, bucket: Bucket, run: Run, segment: str) -> None:
        """The run has ended and its document says so; what fails here is made good when the next segment is opened."""
        self._ends += 1
        try:
            bucket.write(ended_key(run, segment), b"", ANY)
            bucket.delete(open_key(run))
        except (StorageError, LeaseLost) as error:
            _log.warning(
                "%s has ended, which is saved; its name is not yet among those that have: %s", run.run_id, error
            )

    def _heal(self, bucket: Bucket, tally: Tally | None) -> None:
        """Bring the names in line with the documents, where a crash left them behind.

        A run that ended and is still named among the open ones did so while the present segment was open.
        """
        filed = {it.run_id for it in uncounted(bucket, tally)}
        for it in opened(bucket.list(OPEN)):
            try:
                found = self._look(it.run_id)
            except StateError as error:
                _log.warning("%s", error)
                continue
            if found is None and self._clock.now().timestamp() - it.modified > _DANGLING_S:
                bucket.delete(it.key)
            if found and (run := found[0].run).ended:
                if run.run_id not in filed:
                    bucket.write(ended_key(run, tally.open_segment if tally else segment_of(run.updated_at)), b"", ANY)
                bucket.delete(it.key)

    # --- reading ------------------------------------------------------------------------------------------------

    def _read(self, run_id: str) -> tuple[RunDocument, str]:
        found = self._look(run_id)
        if found is None:
            raise UnknownRun(f"there is no run {run_id}")
        return found

    def _look(self, run_id: str) -> tuple[RunDocument, str] | None:
        """The document as it is now, with its version. Raises StateError."""
        if not is_run_id(run_id):
            return None
        try:
            data, version = self._bucket.read(run_key(run_id))
        except NotFound:
            self._known.pop(run_id, None)
            return None
        doc = parse_run(run_key(run_id), data)
        self._keep(doc, version)
        return doc, version

    def _segment_of(self, run_id: str, name: str) -> list[Event]:
        key = segment_key(run_id, name)
        try:
            data, _ = self._bucket.read(key)
        except NotFound:
            raise StateError(f"{key}: is gone, and with it some of the events of {run_id}; bring it back") from None
        return parse_segment(key, run_id, data)

    def _keep(self, doc: RunDocument, version: str) -> None:
        """Only under a lease that lasts, and while there is more to come."""
        if self._lease and not doc.run.ended:
            self._known[doc.run.run_id] = doc, version
        else:
            self._known.pop(doc.run.run_id, None)

    def _readable(self, run_id: str) -> Run | None:
        """None for a document that makes no sense: one of them does not keep all others from being seen."""
        try:
            found = self._look(run_id)
        except StateError as error:
            _log.warning("%s", error)
            return None
        return found[0].run if found else None

    def _runs_of(self, task_id: str, besides: str | None = None) -> list[Run]:
        names = [entry.key.rpartition("/")[2] for entry in self._bucket.list(task_prefix(task_id))]
        found = (self._look(name) for name in names if name != besides)
        return [it[0].run for it in found if it and it[0].run.task_id == task_id]

    def _markers(self, pipeline: str | None) -> list[str]:
        tag = None if pipeline is None else tag_of(pipeline)
        return [it.run_id for it in opened(self._bucket.list(OPEN)) if tag in (None, it.pipeline)]

    def _open(self, pipeline: str | None) -> list[Run]:
        """Those that are named among the open ones, with any that have just ended."""
        return [run for run_id in self._markers(pipeline) if (run := self._readable(run_id))]

    def _waiting(self, pipeline: str | None) -> list[Run]:
        """What can be taken up now, in the order in which it is."""
        order, now = list(TAKEN_UP), self._clock.now()
        found = [run for run in self._open(pipeline) if run.status in order]
        due = [run for run in found if run.next_retry_at is None or run.next_retry_at <= now]
        return sorted(due, key=lambda it: (order.index(it.status), it.next_retry_at or it.updated_at, it.run_id))
