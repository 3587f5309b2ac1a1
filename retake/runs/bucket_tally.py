"""How many runs ended, without a look at each of them: names of ended runs lie in segments, and closed segments are
counted once.

A new segment is opened by the first run that ends on another day, or when the open one is full. Before that the names
in the open one are counted into the tally, and nothing is added to it any more. So what is not in the tally is in the
open segment, whatever the clocks say; and if the tally is gone, it is counted anew from the names.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from logging import getLogger
from typing import Any, NamedTuple

from retake.bucket import ANY, Bucket, NotFound
from retake.runs.bucket_names import ENDED, TALLY, Ended, ended, segment_of
from retake.runs.states import RunStatus

FULL = 1000
"""So many names one ledger puts into a segment before it opens another."""

_log = getLogger(__name__)

Counts = Mapping[str, Mapping[str, int]]
"""How many of a segment's runs ended, by the pipeline's tag and the status."""

Wanted = Callable[[RunStatus, str], bool]
"""Whether runs with that status and pipeline's tag are asked for."""


class Tally(NamedTuple):
    """What is counted, and which segment is not."""

    open_segment: str
    closed: Mapping[str, Counts]

    def encode(self) -> bytes:
        raw = {"open_segment": self.open_segment, "closed_segments": self.closed}
        return json.dumps(raw, indent=2).encode() + b"\n"


def read_tally(bucket: Bucket) -> Tally | None:
    """None if there is none, or none that makes sense."""
    try:
        raw = json.loads(bucket.read(TALLY)[0])
        return Tally(_segment(raw["open_segment"]), {_segment(it): _counts(by) for it, by in _items(raw)})
    except NotFound:
        return None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        _log.warning("%s makes no sense; it is counted anew from the names below %s", TALLY, ENDED)
        return None


def open_segment(bucket: Bucket, tally: Tally | None, moment: datetime) -> str:
    """A segment for who ends at `moment`; the one that was open before is counted. Only the lease's holder may."""
    names = ended(bucket.list(f"{ENDED}{tally.open_segment}/" if tally else ENDED))
    closed = {**(tally.closed if tally else {}), **_counted(names)}
    taken = {*closed, tally.open_segment if tally else None}
    number = 0
    while segment_of(moment, number) in taken:
        number += 1
    bucket.write(TALLY, Tally(segment_of(moment, number), closed).encode(), ANY)
    return segment_of(moment, number)


def is_open(tally: Tally, moment: datetime) -> bool:
    """Whether the open segment is of the day of `moment`."""
    return tally.open_segment.partition(".")[0] == segment_of(moment)


def closed_counts(tally: Tally | None, tag: str | None) -> Counter[RunStatus]:
    """How many of the pipeline (None: of all) are counted, by how they ended."""
    counts: Counter[RunStatus] = Counter()
    for segment in tally.closed.values() if tally else ():
        for pipeline, by_status in segment.items():
            if tag in (None, pipeline):
                counts.update({RunStatus(status): number for status, number in by_status.items()})
    return counts


def uncounted(bucket: Bucket, tally: Tally | None) -> list[Ended]:
    """Those whose names are not in the tally."""
    return [it for _, it in ended(bucket.list(f"{ENDED}{tally.open_segment}/" if tally else ENDED))]


def newest(bucket: Bucket, tally: Tally | None, wanted: Wanted, limit: int) -> list[Ended]:
    """Of the ended runs that are wanted the last ones: so many, and any others of the same moment."""
    found: list[Ended] = []
    for it in _by_segment(bucket, tally, wanted):
        if len(found) >= limit and (not found or it.time != found[-1].time):
            break
        found.append(it)
    return found


def _by_segment(bucket: Bucket, tally: Tally | None, wanted: Wanted) -> Iterator[Ended]:
    """The last one first. Segments that have none of those that are wanted are not listed."""
    yield from _backwards(uncounted(bucket, tally), wanted)
    for segment in sorted(tally.closed, reverse=True) if tally else ():
        assert tally
        statuses = [(RunStatus(it), tag) for tag, counts in tally.closed[segment].items() for it in counts]
        if any(wanted(*it) for it in statuses):
            yield from _backwards([it for _, it in ended(bucket.list(f"{ENDED}{segment}/"))], wanted)


def _backwards(found: list[Ended], wanted: Wanted) -> Iterator[Ended]:
    those = (it for it in found if wanted(it.status, it.pipeline))
    return iter(sorted(those, key=lambda it: (it.time, it.run_id), reverse=True))


def _counted(names: list[tuple[str, Ended]]) -> dict[str, dict[str, dict[str, int]]]:
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for (segment, tag, status), number in Counter((segment, it.pipeline, it.status) for segment, it in names).items():
        counts.setdefault(segment, {}).setdefault(tag, {})[status.value] = number
    return counts


def _items(raw: dict[str, Any]) -> list[tuple[str, Any]]:
    return list(raw["closed_segments"].items())


def _segment(value: Any) -> str:
    if not isinstance(value, str) or "/" in value or not value[:4].isdecimal():
        raise ValueError(value)
    return value


def _counts(value: Any) -> dict[str, dict[str, int]]:
    return {tag: {RunStatus(status).value: int(n) for status, n in by.items()} for tag, by in value.items()}
