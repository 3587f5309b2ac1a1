"""The keys of a ledger in a bucket, some of which are the index of its runs.

    runs/RUN_ID.json                            a run and its last events: the source of truth
    runs/events/RUN_ID/SEGMENT.json             its older events; the run's document names its segments
    runs/index/open/PIPELINE.RUN_ID             the run has not ended; empty
    runs/index/tasks/DIGEST/RUN_ID              a run of the task with this digest; empty
    runs/index/ended/SEGMENT/TIME.STATUS.PIPELINE.RUN_ID   how it ended, and when; empty
    runs/index/ended.json                       how many ended, by segment: the tally

The index (everything below index/) can be rebuilt from the documents.

Ended runs are listed in segments, which are counted when they are closed. The first run that ends on another day opens
a new segment, and so does the first one after the open segment is full. The names in the old segment are then counted
into the tally, and nothing more is added to that segment. So the runs that the tally does not count are in the open
segment, whatever the clocks say, and a lost tally is rebuilt from the names. While the first segment is open, there is
no tally.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from logging import getLogger
from typing import Any, NamedTuple

from retake import strict_json
from retake.bucket import ANY, Bucket, Entry, NotFound
from retake.bucket.contract import Marks, make_folders, mark, write_and_delete
from retake.clock import Clock
from retake.errors import LeaseLost, StateError, StorageError
from retake.runs.run import Run, is_run_id, sha256_hex
from retake.runs.run_document import RunDocument
from retake.runs.states import RunStatus

_log = getLogger(__name__)


OPEN = "runs/index/open/"
TASKS = "runs/index/tasks/"
ENDED = "runs/index/ended/"
TALLY = "runs/index/ended.json"


class OpenMarker(NamedTuple):
    """The key of an open marker, parsed."""

    pipeline: str  # its tag
    run_id: str
    modified: float  # seconds since the epoch, by the store's clock

    @property
    def key(self) -> str:
        return f"{OPEN}{self.pipeline}.{self.run_id}"


class EndedRun(NamedTuple):
    """The key of an ended run in the index, parsed."""

    time: str  # sorts by time
    status: RunStatus
    pipeline: str  # its tag
    run_id: str

    @property
    def name(self) -> str:
        return f"{self.time}.{self.status.value}.{self.pipeline}.{self.run_id}"


def open_key(run: Run) -> str:
    return f"{OPEN}{tag_of(run.pipeline)}.{run.run_id}"


def task_prefix(task_id: str) -> str:
    return f"{TASKS}{_digest(task_id)}/"


def task_key(run: Run) -> str:
    return f"{task_prefix(run.task_id)}{run.run_id}"


def time_of(run: Run) -> str:
    """Return the time of the run's last change, as text that sorts by time."""
    return run.updated_at.astimezone(UTC).strftime("%Y%m%dT%H%M%S%f")


def ended_key(run: Run, segment: str) -> str:
    return f"{ENDED}{segment}/{EndedRun(time_of(run), run.status, tag_of(run.pipeline), run.run_id).name}"


def segment_of(moment: datetime, number: int = 0) -> str:
    """Return the name of a segment opened at `moment`. `number` distinguishes those of one day."""
    day = moment.astimezone(UTC).strftime("%Y-%m-%d")
    return f"{day}.{number:06d}" if number else day


def tag_of(pipeline: str) -> str:
    """Return the pipeline's tag, which can stand between dots in a key: "story/en" becomes "story+en"."""
    plain = pipeline.replace("/", "+")
    bare = plain.replace("-", "").replace("_", "").replace("+", "")
    if "+" not in pipeline and bare.isascii() and bare.isalnum() and len(plain) <= 60:
        return plain
    return f"~{_digest(pipeline)}" if pipeline else "~"


def opened(entries: Iterable[Entry]) -> list[OpenMarker]:
    """Return the keys below OPEN, parsed, without those of other programs."""
    parted = ((entry.key.removeprefix(OPEN).rpartition("."), entry.modified) for entry in entries)
    return [OpenMarker(tag, run_id, modified) for (tag, _, run_id), modified in parted if is_run_id(run_id)]


def ended(entries: Iterable[Entry]) -> list[tuple[str, EndedRun]]:
    """Return the keys below ENDED, parsed as (segment, run), without those of other programs."""
    found = []
    for entry in entries:
        segment, _, name = entry.key.removeprefix(ENDED).rpartition("/")
        parts = name.split(".")
        if len(parts) == 4 and parts[1] in _STATUSES and is_run_id(parts[3]):
            found.append((segment, EndedRun(parts[0], _STATUSES[parts[1]], parts[2], parts[3])))
    return found


_STATUSES = {status.value: status for status in RunStatus}


def _digest(text: str) -> str:
    return sha256_hex(text.encode(errors="surrogatepass"))[:24]


SEGMENT_SIZE = 1000
"""Number of names that one ledger adds to a segment before it opens another."""

DANGLING_S = 24 * 3600.0
"""Age in seconds at which the writer of a marker without a document must have died."""


Counts = Mapping[str, Mapping[str, int]]
"""The number of runs in a segment, by pipeline tag and status."""

Wanted = Callable[[RunStatus, str], bool]
"""Returns whether runs with that status and pipeline tag are wanted."""

Look = Callable[[str], tuple[RunDocument, str] | None]
"""Returns the document of a run, by id. Raises StateError."""


class Tally(NamedTuple):
    """The counts of closed segments, and the name of the open one."""

    open_segment: str
    closed: Mapping[str, Counts]

    def encode(self) -> bytes:
        """Return the tally as stored."""
        return strict_json.encode({"open_segment": self.open_segment, "closed_segments": self.closed})


def mark_open(bucket: Bucket, run: Run, *, durably: bool) -> None:
    """Write the index markers of a new run.

    They must be written `durably` for a run that waits for a worker, which finds it only by its marker. The holder of
    a lease finds its run by its key, and restores lost markers (`restore_marks`).
    """
    make_folders(bucket, (OPEN, TASKS, ENDED))
    for key in (task_key(run), open_key(run)):
        if durably:
            bucket.write(key, b"", ANY)
        else:
            mark(bucket, key)


def restore_marks(bucket: Bucket, run: Run) -> None:
    """Write the index markers of an open run again if a power cut has lost them."""
    if not (isinstance(bucket, Marks) and bucket.may_forget_marks):
        return
    for key in (task_key(run), open_key(run)):
        if not bucket.find(key, [""]):
            _log.warning("%s of an open run was missing, as after a power cut; it is there again", key)
            mark(bucket, key)


class EndedIndex:
    """The index of the ended runs. Only the holder of the ledger's lease may change it.

    With `marks`, replacing a run's open marker by its ended one does not wait for the disk: after a power cut the open
    marker is still there, and is repaired when the next segment is opened.
    """

    def __init__(self, bucket: Bucket, clock: Clock, look: Look, *, marks: bool) -> None:
        self._bucket, self._clock, self._look, self._marks = bucket, clock, look, marks
        self._added = 0  # since this object opened a segment

    def open_segment(self, bucket: Bucket) -> str:
        """Return the segment for a run that ends now, opening a new one if needed."""
        tally, now = read_tally(self._bucket), self._clock.now()
        if tally and is_open(tally, now) and self._added < SEGMENT_SIZE:
            return tally.open_segment
        if tally is None and not bucket.find(TALLY, [""]) and _is_first(names := bucket.list(ENDED), segment_of(now)):
            if not names:
                self._heal(bucket, None)
            return segment_of(now)
        self._heal(bucket, tally)
        self._added = 0
        return open_segment(bucket, tally, now)

    def add(self, bucket: Bucket, run: Run, segment: str) -> None:
        """Add a run that has ended according to its document. Never raises StorageError or LeaseLost: a failure is
        repaired when the next segment is opened."""
        self._added += 1
        rename = mark if self._marks else write_and_delete
        try:
            rename(bucket, ended_key(run, segment), open_key(run))
        except (StorageError, LeaseLost) as error:
            _log.warning("%s has ended and is saved, but is not yet indexed as ended: %s", run.run_id, error)

    def _heal(self, bucket: Bucket, tally: Tally | None) -> None:
        """Bring the index in line with the documents after a crash.

        A run that has ended and still has an open marker ended while the current segment was open. If there is no
        segment yet, it goes into today's, whenever it ended: a segment of another day would require a tally.
        """
        segment = tally.open_segment if tally else segment_of(self._clock.now())
        filed = {it.run_id for it in uncounted(bucket, tally)}
        for it in opened(bucket.list(OPEN)):
            try:
                found = self._look(it.run_id)
            except StateError as error:
                _log.warning("%s", error)
                continue
            if found is None and self._clock.now().timestamp() - it.modified > DANGLING_S:
                bucket.delete(it.key)
            if found and (run := found[0].run).ended:
                if run.run_id not in filed:
                    bucket.write(ended_key(run, segment), b"", ANY)
                bucket.delete(it.key)


def _is_first(entries: Sequence[Entry], segment: str) -> bool:
    """Return whether all names are in this segment, which is then the first one, and has room for another name."""
    return len(entries) < SEGMENT_SIZE and all(it == segment for it, _ in ended(entries))


def read_tally(bucket: Bucket) -> Tally | None:
    """Return the tally, or None if it is missing or invalid."""
    try:
        raw = json.loads(bucket.read(TALLY)[0])
        closed = {_segment(it): _counts(by) for it, by in raw["closed_segments"].items()}
        return Tally(_segment(raw["open_segment"]), closed)
    except NotFound:
        return None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        _log.warning("%s is invalid; it is made again from the names below %s", TALLY, ENDED)
        return None


def open_segment(bucket: Bucket, tally: Tally | None, moment: datetime) -> str:
    """Close the open segment, adding its counts to the tally. Return the name of a new one, opened at `moment`."""
    names = ended(bucket.list(f"{ENDED}{tally.open_segment}/" if tally else ENDED))
    closed = {**(tally.closed if tally else {}), **_counted(names)}
    taken = {*closed, tally.open_segment if tally else None}
    number = 0
    while segment_of(moment, number) in taken:
        number += 1
    bucket.write(TALLY, Tally(segment_of(moment, number), closed).encode(), ANY)
    return segment_of(moment, number)


def recount(bucket: Bucket, moment: datetime) -> None:
    """Rebuild the tally from the names, under the ledger's lease. If there is no tally, open a new segment."""
    tally = read_tally(bucket)
    if tally is None:
        open_segment(bucket, None, moment)
        return
    names = [it for it in ended(bucket.list(ENDED)) if it[0] != tally.open_segment]
    bucket.write(TALLY, Tally(tally.open_segment, _counted(names)).encode(), ANY)


def is_open(tally: Tally, moment: datetime) -> bool:
    """Return whether the open segment was opened on the day of `moment`."""
    return tally.open_segment.partition(".")[0] == segment_of(moment)


def closed_counts(tally: Tally | None, tag: str | None) -> Counter[RunStatus]:
    """Return the tally's number of runs by status, of the pipeline with this tag, or of all if it is None."""
    counts: Counter[RunStatus] = Counter()
    for segment in tally.closed.values() if tally else ():
        for pipeline, by_status in segment.items():
            if tag in (None, pipeline):
                counts.update({RunStatus(status): number for status, number in by_status.items()})
    return counts


def uncounted(bucket: Bucket, tally: Tally | None) -> list[EndedRun]:
    """Return the ended runs that the tally does not count."""
    return [it for _, it in ended(bucket.list(f"{ENDED}{tally.open_segment}/" if tally else ENDED))]


def newest(bucket: Bucket, tally: Tally | None, wanted: Wanted, limit: int) -> list[EndedRun]:
    """Return the last `limit` wanted runs that have ended, and any others that ended at the same moment as the earliest
    of them."""
    found: list[EndedRun] = []
    for it in _by_segment(bucket, tally, wanted):
        if len(found) >= limit and (not found or it.time != found[-1].time):
            break
        found.append(it)
    return found


def _by_segment(bucket: Bucket, tally: Tally | None, wanted: Wanted) -> Iterator[EndedRun]:
    """Yield the wanted runs, the last one first. Segments without any are not read."""
    yield from _backwards(uncounted(bucket, tally), wanted)
    for segment in sorted(tally.closed, reverse=True) if tally else ():
        assert tally
        statuses = [(RunStatus(it), tag) for tag, counts in tally.closed[segment].items() for it in counts]
        if any(wanted(*it) for it in statuses):
            yield from _backwards([it for _, it in ended(bucket.list(f"{ENDED}{segment}/"))], wanted)


def _backwards(found: list[EndedRun], wanted: Wanted) -> Iterator[EndedRun]:
    those = (it for it in found if wanted(it.status, it.pipeline))
    return iter(sorted(those, key=lambda it: (it.time, it.run_id), reverse=True))


def _counted(names: list[tuple[str, EndedRun]]) -> dict[str, dict[str, dict[str, int]]]:
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for (segment, tag, status), number in Counter((segment, it.pipeline, it.status) for segment, it in names).items():
        counts.setdefault(segment, {}).setdefault(tag, {})[status.value] = number
    return counts


def _segment(value: Any) -> str:
    if not isinstance(value, str) or "/" in value or not value[:4].isdecimal():
        raise ValueError(value)
    return value


def _counts(value: Any) -> dict[str, dict[str, int]]:
    return {tag: {RunStatus(status).value: int(n) for status, n in by.items()} for tag, by in value.items()}
