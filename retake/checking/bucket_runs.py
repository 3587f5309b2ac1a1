"""The runs of a ledger in a bucket: the history of each run, and their index (see `retake.runs.bucket_index`)."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from retake.bucket import ANY, Bucket
from retake.bucket.wrappers import LeasedBucket
from retake.checking import ended_runs
from retake.checking.ended_runs import read_run
from retake.checking.examination import CheckFinding, Examination, found
from retake.checking.run_book import RunBook
from retake.checking.run_rules import (
    COUNTS_WRONG,
    EVENTS_MISSING,
    UNREADABLE_RUN,
    RunFacts,
    derived,
    facts_of,
    history_faults,
    slim,
    task_faults,
    what_is_wrong,
)
from retake.checking.view import CheckView, Unparsable
from retake.errors import StateError
from retake.plural import count
from retake.runs.bucket_index import (
    DANGLING_S,
    ENDED,
    OPEN,
    TALLY,
    TASKS,
    ended,
    ended_key,
    open_key,
    opened,
    task_key,
)
from retake.runs.run import CHANGED, Event, Run, is_run_id
from retake.runs.run_document import RunDocument, parse_segment, run_key, segment_key

EVENTS = "runs/events/"
NOT_INDEXED = "run-not-indexed"
DANGLING = "index-entry-dangling"
ENTRY_WRONG = "index-entry-wrong"
LEFTOVER = "events-leftover"
WITHOUT_RUN = "events-without-run"

_RUN = re.compile(r"runs/(run-[0-9a-f]{16})\.json")
_TASK = re.compile(rf"{TASKS}([0-9a-f]{{24}})/(run-[0-9a-f]{{16}})")
_SEGMENT = re.compile(rf"{EVENTS}(run-[0-9a-f]{{16}})/[0-9]{{4,9}}-[0-9a-f]{{12}}\.json")


class BucketRuns(Examination):
    """The runs in the part of the bucket below `prefix`, which is "" or ends in "/".

    `title` is for people: "runs of story/en". `leasable` opens the part for a process that takes leases; `leases` are
    the names of the leases under which its runs are changed, and `owner` is their owner ("host:pid"). `mirrored` are
    the pipelines whose runs mirror documents of items.
    """

    def __init__(
        self,
        title: str,
        prefix: str,
        *,
        leasable: Callable[[], Bucket],
        leases: Sequence[str],
        mirrored: Sequence[str] = (),
        owner: str,
    ) -> None:
        self.title = title
        self._prefix, self._leasable, self._leases = prefix, leasable, leases
        self._mirrored, self._owner = mirrored, owner
        self._book: RunBook | None = None  # during the first look

    def subjects(self, view: CheckView) -> Iterator[str]:
        """Yield each run's document, then the inconsistencies in the index and between runs that these show."""
        part = view.below(self._prefix)
        self._book = book = RunBook(self._mirrored)
        try:
            for entry in part.entries("runs/run-"):
                if _RUN.fullmatch(entry.key):
                    yield part.where(entry.key)
            yield from map(part.where, _without_run(part))
            self._index(part, book)
            for key in (*book.strange("open"), *book.strange("task"), *book.strange("ended")):
                yield part.where(key)
            for run_id in book.unnamed("ended"):
                yield part.where(f"{ENDED}{run_id}")
            for task in book.tasks():
                yield part.where(f"{TASKS}{task}/")
        finally:
            self._book = None
            book.close()
        if part.entry(TALLY) or any(True for _ in part.entries(ENDED)):
            yield part.where(TALLY)

    def examine(self, view: CheckView, subject: str) -> Iterator[CheckFinding]:
        part, key = view.below(self._prefix), subject.removeprefix(self._prefix)
        if it := _RUN.fullmatch(key):
            return self._run(part, it[1])
        if it := _TASK.fullmatch(key):
            return self._marker(part, key, it[2])
        if key.startswith(OPEN):
            return self._marker(part, key, key.rpartition(".")[2])
        if key.startswith(TASKS):
            return self._task(part, key)
        if key.startswith(EVENTS):
            return self._orphaned_events(part, key)
        return ended_runs.examine(part, key)

    def busy(self, view: CheckView) -> bool:
        """Return whether a tick or an operator holds one of the leases."""
        bucket = view.below(self._prefix).bucket
        return any(bucket.holder(name) for name in self._leases)

    def repair(self, view: CheckView, subject: str) -> Sequence[str]:
        part, key = view.below(self._prefix), subject.removeprefix(self._prefix)
        with self._exclusive() as bucket:
            findings = [*self.examine(view, subject)]
            if not any(it.repairable for it in findings):
                return []
            if it := _RUN.fullmatch(key):
                return self._repair_run(part, bucket, it[1], {finding.code for finding in findings})
            if key.startswith((OPEN, TASKS)):
                bucket.delete(key)
                return [f"{subject} was removed"]
            return ended_runs.repair(part, bucket, key)

    def knows(self, key: str) -> bool:
        if not key.startswith(f"{self._prefix}runs/"):
            return False
        own = key.removeprefix(self._prefix)
        if own == TALLY or any(it.fullmatch(own) for it in (_RUN, _TASK, _SEGMENT)):
            return True
        run_id = own.rpartition(".")[2]
        return own.startswith((OPEN, ENDED)) and is_run_id(run_id)

    # --- one run --------------------------------------------------------------------------------------------------

    def _run(self, part: CheckView, run_id: str) -> Iterator[CheckFinding]:
        key = run_key(run_id)
        part.looked_at["runs"] += 1
        try:
            doc = read_run(part, run_id)
        except (StateError, Unparsable) as error:
            if self._book:
                self._book.add_unreadable(run_id)
            yield found(UNREADABLE_RUN, part.where(key), what_is_wrong(error, key))
            return
        if doc is None:
            return
        findings: list[CheckFinding] = []
        events = _events(part, doc, findings)
        part.looked_at["events"] += len(events)
        if not findings:
            counted = "retries" in doc.raw and "crashes" in doc.raw
            faults = history_faults(doc.run, events, counted=counted)
            findings = [found(it.code, part.where(key), it.what) for it in faults]
        yield from findings
        if self._book:
            self._book.add(facts_of(doc.run, events), task_key(doc.run).split("/")[-2], _names(doc.run))
        yield from _unindexed(part, doc.run)
        if left := _leftovers(part, doc):
            what = f"{count(len(left), 'document')} with events of {run_id} that its own document does not name"
            yield found(LEFTOVER, part.where(left[0]), what)

    def _repair_run(self, part: CheckView, bucket: Bucket, run_id: str, codes: set[str]) -> list[str]:
        doc = read_run(part, run_id)
        if doc is None:
            return []
        run, done = doc.run, []
        if NOT_INDEXED in codes:
            for key in _missing(part, run):
                bucket.write(key, b"", ANY)
            done.append(f"{run_id} was entered into the index")
        if COUNTS_WRONG in codes:
            told = derived([it for it in _events(part, doc, []) if it.kind == CHANGED])
            counts = told.counters
            run = run._replace(resumes=counts["resumes"], retries=counts["retries"], crashes=counts["crashes"])
            bucket.write(run_key(run_id), doc.after(run).encode(), ANY)
            done.append(f"the retries, crashes and resumes of {run_id} were counted again")
        if LEFTOVER in codes:
            for key in (left := _leftovers(part, doc)):
                bucket.delete(key)
            done.append(f"removed {count(len(left), 'document')} with events that a crash left")
        return done

    # --- the index ------------------------------------------------------------------------------------------------

    def _index(self, part: CheckView, book: RunBook) -> None:
        entries = ((it.run_id, f"{it.pipeline}.{it.run_id}", it.key) for e in part.entries(OPEN) for it in opened((e,)))
        book.add_names("open", entries)
        tasks = (it for entry in part.entries(TASKS) if (it := _TASK.fullmatch(entry.key)))
        book.add_names("task", ((it[2], it[1], it[0]) for it in tasks))
        names = ((e.key, it) for e in part.entries(ENDED) for _, it in ended((e,)))
        book.add_names("ended", ((it.run_id, it.name, key) for key, it in names))

    def _marker(self, part: CheckView, key: str, run_id: str) -> Iterator[CheckFinding]:
        """Check that a marker refers to its run. The ledger itself removes the marker of a run that has ended."""
        entry = part.entry(key)
        if entry is None:
            return
        try:
            doc = read_run(part, run_id)
        except (StateError, Unparsable):
            return  # found by examining the run's document
        if doc is None:
            if part.scope.clock.now().timestamp() - entry.modified > DANGLING_S:
                yield found(DANGLING, part.where(key), f"there is no run {run_id}")
        elif key not in (open_key(doc.run), task_key(doc.run)):
            yield found(ENTRY_WRONG, part.where(key), f"{run_id} is another pipeline's or another task's run")

    def _task(self, part: CheckView, prefix: str) -> Iterator[CheckFinding]:
        """Check the runs of one task against each other, unless one of them is unreadable."""
        runs: list[RunFacts] = []
        for entry in part.entries(prefix):
            try:
                doc = read_run(part, entry.key.rpartition("/")[2])
            except (StateError, Unparsable):
                return
            if doc:
                faults: list[CheckFinding] = []
                events = _events(part, doc, faults)
                if faults:
                    return
                runs.append(facts_of(doc.run, events))
        if runs:
            last = max(runs, key=lambda it: it.run.attempt).run
            for fault in task_faults(runs, mirrored=last.pipeline in self._mirrored):
                yield found(fault.code, part.where(run_key(last.run_id)), f"task {last.task_id:.80}: {fault.what}")

    def _orphaned_events(self, part: CheckView, prefix: str) -> Iterator[CheckFinding]:
        run_id = prefix.removeprefix(EVENTS).rstrip("/")
        number = sum(1 for _ in part.entries(prefix))
        if number and not part.entry(run_key(run_id)):
            yield found(WITHOUT_RUN, part.where(prefix), f"{number} documents with events, and {run_id} itself is gone")

    @contextmanager
    def _exclusive(self) -> Iterator[Bucket]:
        """Provide the part of the bucket for writing, under the leases that guard its runs. Raises LeaseHeld."""
        bucket = self._leasable()
        with ExitStack() as held:
            for name in self._leases:
                bucket = held.enter_context(LeasedBucket(bucket, bucket.lease(name, self._owner)))
            yield bucket


def _names(run: Run) -> list[tuple[str, str]]:
    """Return the index entries that a run may have. The open marker stays for a while after the run has ended."""
    names = [("open", open_key(run).removeprefix(OPEN)), ("task", task_key(run).split("/")[-2])]
    return [*names, ("ended", ended_key(run, "").rpartition("/")[2])] if run.ended else names


def _missing(part: CheckView, run: Run) -> list[str]:
    wanted = [task_key(run)] if run.ended else [task_key(run), open_key(run)]
    return [key for key in wanted if not part.entry(key)]


def _unindexed(part: CheckView, run: Run) -> Iterator[CheckFinding]:
    for key in _missing(part, run):
        misses = "no worker finds it" if key.startswith(OPEN) else "nobody who looks for its task finds it"
        what = f"{run.run_id} has the status {run.status}, and {part.where(key)} is missing: {misses}"
        yield found(NOT_INDEXED, part.where(run_key(run.run_id)), what)


def _events(part: CheckView, doc: RunDocument, findings: list[CheckFinding]) -> list[Event]:
    """Return all events of the run, slimmed. Missing and unreadable ones are added to `findings`."""
    run_id, events = doc.run.run_id, list[Event]()
    for name in doc.segments:
        key = segment_key(run_id, name)
        try:
            data = part.read(key)
            if data is None:
                what = f"its document {part.where(key)} is missing, and with it some of its events"
                findings.append(found(EVENTS_MISSING, part.where(run_key(run_id)), what))
            else:
                events += map(slim, parse_segment(key, run_id, data))
        except (StateError, Unparsable) as error:
            findings.append(found(UNREADABLE_RUN, part.where(key), what_is_wrong(error, key)))
    return [*events, *map(slim, doc.events(run_key(run_id)))]


def _leftovers(part: CheckView, doc: RunDocument) -> list[str]:
    """Return the keys of event documents that the run's document does not name and whose writer must have died."""
    since = part.scope.clock.now().timestamp() - DANGLING_S
    named = {segment_key(doc.run.run_id, name) for name in doc.segments}
    entries = part.entries(f"{EVENTS}{doc.run.run_id}/")
    return [it.key for it in entries if it.key not in named and it.modified < since and _SEGMENT.fullmatch(it.key)]


def _without_run(part: CheckView) -> Iterator[str]:
    """Yield the prefixes of events whose run does not exist."""
    last = ""
    for entry in part.entries(EVENTS):
        it = _SEGMENT.fullmatch(entry.key)
        if it and it[1] != last:
            last = it[1]
            if not part.entry(run_key(last)):
                yield f"{EVENTS}{last}/"
