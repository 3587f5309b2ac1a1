"""The documents of a ledger in a bucket: finding, reading and saving them."""

from collections.abc import Iterable
from datetime import datetime
from logging import getLogger

from retake.bucket import ANY, Bucket, Expect, NotFound
from retake.errors import StateError
from retake.runs.bucket_names import OPEN, opened, run_key, segment_key, tag_of, task_prefix
from retake.runs.run import Event, Run, StaleRun, UnknownRun, is_run_id
from retake.runs.run_document import LARGEST_DOCUMENT, RunDocument, parse_run, parse_segment, shortened
from retake.runs.states import TAKEN_UP

_log = getLogger(__name__)


class RunDocuments:
    """The documents of the runs in `bucket`.

    `most_events` is how many events a document has before the older ones move to a segment. With `cached`, documents
    of unfinished runs are kept in memory: only for a caller that nobody else writes beside.
    """

    def __init__(self, bucket: Bucket, *, most_events: int, cached: bool) -> None:
        self._bucket, self._most_events, self._cached = bucket, most_events, cached
        self._known: dict[str, tuple[RunDocument, str]] = {}  # with the bucket's version of it

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
            data, version = self._bucket.read(run_key(run_id))
        except NotFound:
            self.forget(run_id)
            return None
        doc = parse_run(run_key(run_id), data)
        self._keep(doc, version)
        return doc, version

    def present(self, run: Run, *, any_version: bool = False) -> tuple[RunDocument, str]:
        """Return the document for a change, from memory if it is there. Raises StaleRun if the run's version is not
        that of `run`, unless `any_version`; UnknownRun, StateError."""
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

    def save(self, bucket: Bucket, doc: RunDocument, expect: str | Expect) -> None:
        """Write `doc` to `bucket`, after a segment of its older events where it has grown too large. Raises
        Conflict."""
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

    def forget(self, run_id: str) -> None:
        """Drop the document from memory."""
        self._known.pop(run_id, None)

    def events(self, run_id: str) -> list[Event]:
        """Return all events of the run. Raises UnknownRun, and StateError also for a missing segment."""
        doc, _ = self.read(run_id)
        older = (self._segment(run_id, name) for name in doc.segments)
        return [event for events in (*older, doc.events(run_key(run_id))) for event in events]

    def of_task(self, task_id: str, *, besides: str | None = None) -> list[Run]:
        """Return the runs of the task, in no order, without the one with the id `besides`. Raises StateError."""
        names = [entry.key.rpartition("/")[2] for entry in self._bucket.list(task_prefix(task_id))]
        found = (self.look(name) for name in names if name != besides)
        return [it[0].run for it in found if it and it[0].run.task_id == task_id]

    def next_attempt(self, task_id: str, known: Run | None = None) -> int:
        """Return the task's next attempt. `known` is one of its runs, which need not be read."""
        others = self.of_task(task_id, besides=known.run_id if known else None)
        return 1 + max((run.attempt for run in (known, *others) if run), default=0)

    def open_ids(self, pipeline: str | None) -> list[str]:
        """Return the ids that have an open marker; None means those of all pipelines."""
        tag = None if pipeline is None else tag_of(pipeline)
        return [it.run_id for it in opened(self._bucket.list(OPEN)) if tag in (None, it.pipeline)]

    def readable(self, run_ids: Iterable[str]) -> list[Run]:
        """Return those of the runs that can be read; an invalid document is logged and does not hide the others."""
        found = []
        for run_id in run_ids:
            try:
                seen = self.look(run_id)
            except StateError as error:
                _log.warning("%s", error)
            else:
                found += [seen[0].run] if seen else []
        return found

    def _segment(self, run_id: str, name: str) -> list[Event]:
        key = segment_key(run_id, name)
        try:
            data, _ = self._bucket.read(key)
        except NotFound:
            raise StateError(f"{key}: is missing, and with it some events of {run_id}; restore it") from None
        return parse_segment(key, run_id, data)

    def _keep(self, doc: RunDocument, version: str) -> None:
        if self._cached and not doc.run.ended:
            self._known[doc.run.run_id] = doc, version
        else:
            self.forget(doc.run.run_id)


def claimable(runs: Iterable[Run], now: datetime) -> list[Run]:
    """Return those of `runs` that wait for work now, in the order in which workers claim them."""
    order = list(TAKEN_UP)
    waiting = (run for run in runs if run.status in order)
    due = [run for run in waiting if run.next_retry_at is None or run.next_retry_at <= now]
    return sorted(due, key=lambda it: (order.index(it.status), it.next_retry_at or it.updated_at, it.run_id))
