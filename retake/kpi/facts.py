"""What a run contributes to the figures: amounts, each at the time of its event.

("done", pipeline, step)                  a result of the step
("failed", pipeline, step, class, code)   a failed try
("given_up", pipeline, step)              the run failed at this step
("ended", pipeline, status)               the run has ended
("took_us", pipeline)                     how long it took, in microseconds
("open", pipeline, status)                the run has not ended, and is in this state
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

from retake.errors import ErrorRecord
from retake.foreign_text import one_line
from retake.runs.history import Fingerprint, RunHistory, RunRecord
from retake.runs.run import STEP_DONE
from retake.runs.states import FINAL, RunStatus

ROBOT = "robot/"
"""The prefix of a robot's pipeline: "robot/NR.NSI.1". Such a pipeline has one step, named after the robot."""

MAX_NAME_LENGTH = 200
"""Maximum characters of the name of a pipeline, step or error code. Longer names are cut."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

Cell = tuple[str, ...]
"""The name of what is counted: one of the tuples above, or ("spent", pipeline), in millionths of a US dollar."""

PARTS = {"done": 3, "failed": 5, "given_up": 3, "ended": 3, "took_us": 2, "open": 3, "spent": 2}
"""The length of a cell, by its first part."""


class Fact(NamedTuple):
    """One amount."""

    at: int  # microseconds since the epoch
    cell: Cell
    amount: int = 1


class CountedItem(NamedTuple):
    """A run, or another item that contributes facts."""

    id: str
    mark: int
    segment: str
    facts: list[Fact]


class Source(Protocol):
    """A source of facts. See `retake.runs.history.RunHistory` for segments, fingerprints and marks."""

    def segments(self) -> Mapping[str, Fingerprint]: ...

    def marks(self, segment: str) -> Mapping[str, int]: ...

    def read(self, segment: str, ids: Iterable[str]) -> Iterator[CountedItem]: ...


class RunSource:
    """The facts of the runs in `history`. `progress` is called with 0 at the beginning, and with 1 for each run that is
    read."""

    def __init__(self, history: RunHistory, progress: Callable[[int], None] | None = None) -> None:
        self._history = history
        self._progress = progress or (lambda runs: None)

    def segments(self) -> Mapping[str, Fingerprint]:
        self._progress(0)
        return self._history.segments()

    def marks(self, segment: str) -> Mapping[str, int]:
        return self._history.marks(segment)

    def read(self, segment: str, ids: Iterable[str]) -> Iterator[CountedItem]:
        for run in self._history.read(segment, ids):
            self._progress(1)
            yield CountedItem(run.run_id, run.mark, run.segment, facts_of(run))


def micros(moment: datetime) -> int:
    """Return `moment` in microseconds since the epoch."""
    return (moment - _EPOCH) // _MICROSECOND


def added_up(counts: Iterable[Mapping[Cell, int]]) -> Counter[Cell]:
    """Return the sum of several counts, cell by cell."""
    total: Counter[Cell] = Counter()
    for each in counts:
        total.update(each)
    return total


def facts_of(run: RunRecord) -> list[Fact]:
    """Return the facts of a run, according to its record."""
    pipeline, facts, failing = _name(run.pipeline), list[Fact](), ""
    for event in run.events:
        at = micros(event.at)
        if event.kind == STEP_DONE:
            facts.append(Fact(at, ("done", pipeline, _robot(run) or _name(event.payload.get("step")))))
        else:
            failing = _failed_step(run, event.payload)
            facts.append(Fact(at, ("failed", pipeline, failing, *_class_and_code(event.payload))))
    if run.status not in FINAL:
        return [*facts, Fact(micros(run.created_at), ("open", pipeline, run.status.value))]
    ended_at = micros(run.updated_at)
    facts.append(Fact(ended_at, ("ended", pipeline, run.status.value)))
    facts.append(Fact(ended_at, ("took_us", pipeline), max(0, ended_at - micros(run.created_at))))
    if run.status is RunStatus.FAILED and failing:
        facts.append(Fact(ended_at, ("given_up", pipeline, failing)))
    return facts


def _failed_step(run: RunRecord, record: Mapping[str, object]) -> str:
    """Return the step in an error record: the last part of `robot_id` ("story.upscale"), or "" if that is not a step (a
    worker, the recovery). In a robot's run, the step is the robot."""
    robot_id = record.get("robot_id")
    if robot := _robot(run):
        return robot
    if not isinstance(robot_id, str) or "." not in robot_id or "/" in robot_id:
        return ""
    return _name(robot_id.rpartition(".")[2])


def _robot(run: RunRecord) -> str:
    return _name(run.pipeline.removeprefix(ROBOT)) if run.pipeline.startswith(ROBOT) else ""


def _class_and_code(payload: Mapping[str, object]) -> tuple[str, str]:
    record = ErrorRecord(payload)
    return record.error_class.value if record.error_class else "", _name(record.code)


def _name(value: object) -> str:
    return one_line(value)[:MAX_NAME_LENGTH] if isinstance(value, str) else ""
