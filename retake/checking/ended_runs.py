"""The index of ended runs in a bucket's ledger, one name for each run, and the tally of these names."""

from collections import Counter
from collections.abc import Iterator

from retake.bucket import ANY, Bucket
from retake.checking.examination import CheckFinding, found
from retake.checking.view import CheckView, Unparsable
from retake.errors import StateError
from retake.runs.bucket_index import (
    ENDED,
    TALLY,
    Tally,
    ended,
    ended_key,
    open_key,
    read_tally,
    recount,
    segment_of,
)
from retake.runs.run_document import RunDocument, parse_run, run_key

NAME_WRONG = "ended-name-wrong"
NAME_MISSING = "ended-name-missing"
TALLY_WRONG = "tally-wrong"


def read_run(part: CheckView, run_id: str) -> RunDocument | None:
    """Return the document of a run, or None. Raises StateError, Unparsable."""
    data = part.read(run_key(run_id))
    return None if data is None else parse_run(run_key(run_id), data)


def examine(part: CheckView, key: str) -> Iterator[CheckFinding]:
    """Examine the tally, a name below ENDED, or a run without a name (ENDED + its id), and yield the findings."""
    if key == TALLY:
        yield from _tally(part)
    elif "/" in (name := key.removeprefix(ENDED)):
        yield from _name(part, *name.split("/", 1))
    else:
        yield from _unnamed(part, name)


def repair(part: CheckView, bucket: Bucket, key: str) -> list[str]:
    """Repair what `examine` has found; `bucket` is written to under the ledger's lease."""
    done = "the tally was counted again"
    if key != TALLY and "/" in key.removeprefix(ENDED):
        bucket.delete(key)
        done = f"{part.where(key)} was removed, and {done}"
    elif key != TALLY and (doc := read_run(part, key.removeprefix(ENDED))):
        tally = read_tally(bucket)
        segment = tally.open_segment if tally else segment_of(doc.run.updated_at)
        bucket.write(ended_key(doc.run, segment), b"", ANY)
        done = f"the end of {doc.run.run_id} was entered into the index, and {done}"
    recount(bucket, part.scope.clock.now())
    return [done]


def _name(part: CheckView, segment: str, name: str) -> Iterator[CheckFinding]:
    key = f"{ENDED}{segment}/{name}"
    if not part.entry(key):
        return
    run_id = name.rpartition(".")[2]
    try:
        doc = read_run(part, run_id)
    except (StateError, Unparsable):
        return  # found by examining the run's document
    if doc is None:
        yield found(NAME_WRONG, part.where(key), f"there is no run {run_id}")
    elif not doc.run.ended or ended_key(doc.run, segment) != key:
        what = f"{run_id} has the status {doc.run.status} since {doc.run.updated_at}"
        yield found(NAME_WRONG, part.where(key), what)
    elif others := [it for it in _places(part, name) if it != key]:
        yield found(NAME_WRONG, part.where(key), f"{run_id} is entered twice, also as {part.where(others[0])}")


def _unnamed(part: CheckView, run_id: str) -> Iterator[CheckFinding]:
    try:
        doc = read_run(part, run_id)
    except (StateError, Unparsable):
        return
    if doc is None or not doc.run.ended or part.entry(open_key(doc.run)):
        return  # the ledger finds it by the open marker, and will enter its end
    if not _places(part, ended_key(doc.run, "").rpartition("/")[2]):
        what = f"{run_id} has the status {doc.run.status}, and no list of runs has it"
        yield found(NAME_MISSING, part.where(run_key(run_id)), what)


def _places(part: CheckView, name: str) -> list[str]:
    """Return the keys of a name in all segments that the ledger reads."""
    tally = read_tally(part.bucket)
    if tally is None:
        return [entry.key for entry in part.entries(ENDED) if entry.key.endswith(f"/{name}")]
    segments = (*tally.closed, tally.open_segment)
    return [entry.key for it in segments for entry in part.find(f"{ENDED}{it}/{name}", [""])]


def _tally(part: CheckView) -> Iterator[CheckFinding]:
    tally, where = read_tally(part.bucket), part.where(TALLY)
    counts: dict[str, Counter[tuple[str, str]]] = {}
    for entry in part.entries(ENDED):
        for segment, it in ended((entry,)):
            counts.setdefault(segment, Counter())[it.pipeline, it.status.value] += 1
    number = sum(map(Counter.total, counts.values()))
    if tally is None:
        invalid = part.entry(TALLY)
        if len(counts) > 1 or invalid:  # there is no tally before the second segment
            what = (
                f"it is {'invalid' if invalid else 'missing'}: all {number} runs that have ended are listed each time"
            )
            yield found(TALLY_WRONG, where, what)
        return
    if tally.open_segment in tally.closed:
        yield found(TALLY_WRONG, where, f"the segment {tally.open_segment} is open, but was counted")
    counts.pop(tally.open_segment, None)
    for segment in sorted({*counts, *tally.closed} - {tally.open_segment}):
        there, said = counts.get(segment, Counter()), _said(tally, segment)
        if there != said:
            what = f"it counts {said.total()} runs in the segment {segment}, but there are {there.total()}"
            yield found(TALLY_WRONG, where, what if said.total() != there.total() else f"{what}, of other kinds")


def _said(tally: Tally, segment: str) -> Counter[tuple[str, str]]:
    counts = tally.closed.get(segment, {})
    return Counter({(tag, status): n for tag, by in counts.items() for status, n in by.items() if n})
