"""The history of all runs of a ledger, for figures: read in bulk, and later only where something has changed.

A history groups its runs into segments. Each run has a mark, which changes with each of its events, and each segment
has a fingerprint of its runs' marks. A reader that caches what it computed from a run reads the run again only when its
mark has changed, and skips segments whose fingerprint is the same. This works however late an event arrives, and
whatever the clocks say.

A run's history ends with the run: later notes on it are left out.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol
from zlib import crc32

from retake.bucket import Bucket
from retake.errors import StateError
from retake.runs.bucket_index import ENDED, ended, read_tally
from retake.runs.bucket_ledger import RunDocuments
from retake.runs.ledger import LEDGER_SETTING
from retake.runs.run import CHANGED, ERROR, STEP_DONE, Event
from retake.runs.run_document import RunDocument, events_in, run_key
from retake.runs.states import FINAL, RunStatus

HISTORY_KINDS = (STEP_DONE, ERROR, CHANGED)
"""The kinds of events in a history."""

UNFINISHED = "open"
"""The segment of a bucket's unfinished runs. In a database every run is in the segment of a day."""


class Fingerprint(NamedTuple):
    """A summary of a segment, which differs if any of its runs has changed."""

    runs: int
    marks: int | None  # their sum; None for a closed segment, whose runs never change

    def agrees(self, other: "Fingerprint") -> bool:
        """Return whether both fingerprints may be of the same, unchanged runs."""
        return self.runs == other.runs and (self.marks == other.marks or None in (self.marks, other.marks))


class RunRecord(NamedTuple):
    """A run with its history."""

    run_id: str
    mark: int
    segment: str
    pipeline: str
    status: RunStatus
    created_at: datetime
    updated_at: datetime  # of the last transition; for an ended run, when it ended
    events: Sequence[Event] = ()  # results of steps and errors, in order, up to the run's end


class RunHistory(Protocol):
    """The runs of one ledger. Every method may raise StorageError."""

    @property
    def unreadable(self) -> Collection[str]:
        """See `Ledger.unreadable`."""
        ...

    def segments(self) -> Mapping[str, Fingerprint]:
        """Return the current fingerprints of the segments, by name. Call this before the other methods."""
        ...

    def marks(self, segment: str) -> Mapping[str, int]:
        """Return the marks of the segment's runs, by run id."""
        ...

    def unfinished(self) -> Collection[str]:
        """Return the ids of the unfinished runs. Call this after `segments`, and `read` them with the segment
        UNFINISHED."""
        ...

    def read(self, segment: str, run_ids: Iterable[str]) -> Iterator[RunRecord]:
        """Yield these runs of the segment in their current state. Runs that are gone or unreadable are left out.

        A run that has changed meanwhile may have moved to another segment, which its record names.
        """
        ...


def open_history(url: str | None, bucket: Bucket, setting: str = LEDGER_SETTING) -> RunHistory:
    """Return the history of the ledger that `url` names (`retake.runs.open_ledger`), read-only.

    Raises SettingsError, StorageError, and StateError for tables of another version.
    """
    if url is None:
        return BucketHistory(bucket)
    from retake.runs.schema import opened
    from retake.runs.sql_history import SqlHistory

    return SqlHistory(opened(url, read_only=True, setting=setting))


def fingerprint(marks: Iterable[int]) -> Fingerprint:
    """Return the fingerprint of a segment whose runs have these marks."""
    found = [*marks]
    return Fingerprint(len(found), sum(found))


def together(fingerprints: Iterable[Fingerprint]) -> Fingerprint:
    """Return the fingerprint of several segments as one."""
    each = [*fingerprints]
    marks = [it.marks for it in each if it.marks is not None]
    return Fingerprint(sum(it.runs for it in each), sum(marks) if len(marks) == len(each) else None)


def up_to_the_end(events: Iterable[Event], status: RunStatus) -> list[Event]:
    """Return the step results and errors among `events`, whose kinds are HISTORY_KINDS; for an ended run, only those up
    to its last transition, and the error that led to it, which follows it in the same write."""
    found = [*events]
    changes = [number for number, event in enumerate(found) if event.kind == CHANGED]
    if status in FINAL and changes:
        end, *behind = found[changes[-1] : changes[-1] + 2]
        of_the_end = [it for it in behind if it.kind == ERROR and (it.seq, it.trace_id) == (end.seq + 1, end.trace_id)]
        found = [*found[: changes[-1]], *of_the_end]
    return [event for event in found if event.kind != CHANGED]


class BucketHistory:
    """The history of the ledger in `bucket`. Its segments are those of the index of ended runs (see
    `retake.runs.bucket_index`). Unfinished runs are read each time, as every query of such a ledger does."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._documents = RunDocuments(bucket)
        self.unreadable = self._documents.unreadable.values()
        self._listed: dict[str, dict[str, int]] = {}
        self._unfinished: dict[str, RunRecord] = {}  # not yet returned by `read`

    def segments(self) -> Mapping[str, Fingerprint]:
        unfinished = self._documents.open_ids(None)  # first, so that a run that ends meanwhile is among the ended
        tally = read_tally(self._bucket)
        closed = {
            name: Fingerprint(sum(number for by_status in counts.values() for number in by_status.values()), None)
            for name, counts in (tally.closed.items() if tally else ())
        }
        self._listed = {}
        self._list(f"{ENDED}{tally.open_segment}/" if tally else ENDED)
        there = {run_id for marks in self._listed.values() for run_id in marks}
        self._unfinished = {}
        marks: dict[str, int] = {}
        for run_id in unfinished:
            if run_id not in there and (doc := self._documents.seen(run_id)):
                marks[run_id] = crc32(f"{run_id} {doc.next_seq}".encode())
                if not doc.segments:
                    # The record, not the document, which takes ten times the memory: there may be 10,000 ledgers.
                    self._unfinished[run_id] = self._record(doc, marks[run_id], UNFINISHED)
        if marks:
            self._listed[UNFINISHED] = marks
        return {**closed, **{name: fingerprint(marks.values()) for name, marks in self._listed.items()}}

    def marks(self, segment: str) -> Mapping[str, int]:
        if segment not in self._listed:
            self._list(f"{ENDED}{segment}/")
        return self._listed.get(segment, {})

    def unfinished(self) -> Collection[str]:
        return self._listed.get(UNFINISHED, {})

    def read(self, segment: str, run_ids: Iterable[str]) -> Iterator[RunRecord]:
        for run_id in run_ids:
            record = self._unfinished.pop(run_id, None)
            if record is None and (doc := self._documents.seen(run_id)):
                try:
                    record = self._record(doc, self._listed[segment][run_id], segment)
                except StateError as error:
                    self._documents.pass_over(run_id, error)
            if record:
                yield record

    def _list(self, prefix: str) -> None:
        for segment, it in ended(self._bucket.list(prefix)):
            self._listed.setdefault(segment, {})[it.run_id] = crc32(it.name.encode())

    def _record(self, doc: RunDocument, mark: int, segment: str) -> RunRecord:
        run = doc.run
        told = up_to_the_end(self._events(doc), run.status)
        return RunRecord(run.run_id, mark, segment, run.pipeline, run.status, run.created_at, run.updated_at, told)

    def _events(self, doc: RunDocument) -> list[Event]:
        run_id = doc.run.run_id
        if doc.segments:
            return [event for event in self._documents.events(run_id) if event.kind in HISTORY_KINDS]
        return events_in(run_key(run_id), run_id, [it for it in doc.raw["events"] if it["kind"] in HISTORY_KINDS])
