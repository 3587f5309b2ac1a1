"""Rates, levels and missed targets of steps and pipelines: docs/protocol.md, section "Alert levels". Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from retake.clock import stamp
from retake.errors import ErrorClass
from retake.kpi.facts import ROBOT, Cell
from retake.runs.states import RunStatus

MIN_RUNS = 10
"""Minimum number of ended runs of a pipeline before its rates count."""

POLLS = frozenset({"fetch", "runway_poll"})
"""Steps that only poll a task. A result may take any number of polls, so they have no rates."""

SUCCESS_TARGET, RETRY_TARGET, ROBOT_MEAN_TARGET_S = 0.995, 0.05, 30.0
"""The targets: a success rate above this, a retry rate of at most this, a robot's mean duration below this."""


class KpiLevel(StrEnum):
    """A level of severity, the worst last."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        return list(KpiLevel).index(self)


class StepFigures(NamedTuple):
    """The figures of one step of a pipeline."""

    step: str
    done: int = 0
    failed_tries: int = 0
    given_up: int = 0  # runs that failed at this step

    @property
    def tries(self) -> int:
        return self.done + self.failed_tries

    @property
    def retried(self) -> int:
        """The number of failed tries after which the run went on."""
        return max(0, self.failed_tries - self.given_up)

    @property
    def success_rate(self) -> float | None:
        return None if self.step in POLLS else ratio(self.done, self.done + self.given_up)

    @property
    def retry_rate(self) -> float | None:
        return None if self.step in POLLS else ratio(self.retried, self.tries)

    def document(self) -> dict[str, Any]:
        """Return the figures as JSON types."""
        return {
            "step": self.step,
            "done": self.done,
            "failed_tries": self.failed_tries,
            "tries": self.tries,
            "given_up": self.given_up,
            "success_rate": self.success_rate,
            "retry_rate": self.retry_rate,
        }


class PipelineFigures(NamedTuple):
    """The figures of one pipeline. Its rates count only once `min_runs` runs have ended."""

    pipeline: str
    runs: Mapping[RunStatus, int]  # runs that have ended
    seconds: float  # their total duration
    errors: Mapping[ErrorClass, int]
    steps: tuple[StepFigures, ...]
    stopped: bool = False  # whether it begins nothing until a person acts
    min_runs: int = MIN_RUNS

    @property
    def ended(self) -> int:
        return sum(self.runs.values())

    @property
    def success_rate(self) -> float | None:
        succeeded = self.runs[RunStatus.SUCCEEDED]
        return ratio(succeeded, succeeded + self.runs[RunStatus.FAILED])

    @property
    def retry_rate(self) -> float | None:
        return retry_rate_of(self.steps)

    @property
    def silent(self) -> bool:
        """Whether there is nothing to tell: no run ended, nothing was tried, and it has not stopped."""
        return not (self.ended or self.steps or any(self.errors.values()) or self.stopped)

    @property
    def errors_in_words(self) -> str:
        """The errors by class, as "3 A, 1 C"; "" if there are none."""
        return ", ".join(f"{number} {name}" for name, number in self.errors.items() if number)

    @property
    def mean_seconds(self) -> float | None:
        return ratio(self.seconds, self.ended)

    @property
    def level(self) -> KpiLevel:
        """The level by the rates, by class C errors, and by whether the pipeline has stopped."""
        if self.stopped:
            return KpiLevel.CRITICAL
        critical_errors = KpiLevel.ERROR if self.errors[ErrorClass.CRITICAL] else KpiLevel.OK
        return worst([self.rate_level, critical_errors])

    @property
    def rate_level(self) -> KpiLevel:
        """The level by the rates alone."""
        success, retries = self.success_rate, self.retry_rate
        if self.ended < self.min_runs:
            return KpiLevel.OK
        if success is not None and success < 0.8:
            return KpiLevel.CRITICAL
        if success is not None and success < 0.95:
            return KpiLevel.ERROR
        if (success is not None and success < 0.99) or (retries is not None and retries > 0.1):
            return KpiLevel.WARNING
        return KpiLevel.OK

    @property
    def targets_missed(self) -> list[str]:
        """The names of the figures that miss their targets; none before `min_runs` runs have ended."""
        success, retries, mean = self.success_rate, self.retry_rate, self.mean_seconds
        missed = {
            "success_rate": success is not None and success <= SUCCESS_TARGET,
            "retry_rate": retries is not None and retries > RETRY_TARGET,
            "mean_seconds": self.pipeline.startswith(ROBOT) and mean is not None and mean >= ROBOT_MEAN_TARGET_S,
        }
        return [name for name, is_missed in missed.items() if is_missed and self.ended >= self.min_runs]

    def document(self) -> dict[str, Any]:
        """Return the figures as JSON types."""
        return {
            "pipeline": self.pipeline,
            "runs": {status.value: number for status, number in self.runs.items()},
            "success_rate": self.success_rate,
            "retry_rate": self.retry_rate,
            "mean_seconds": self.mean_seconds,
            "errors": {error_class.value: number for error_class, number in self.errors.items()},
            "level": self.level.value,
            "targets_missed": self.targets_missed,
            "steps": [step.document() for step in self.steps],
        }


class Figures(NamedTuple):
    """The figures of all pipelines in the `window_seconds` before `at`."""

    at: datetime
    window_seconds: float
    pipelines: tuple[PipelineFigures, ...]

    @property
    def level(self) -> KpiLevel:
        return worst(it.level for it in self.pipelines)

    def document(self) -> dict[str, Any]:
        """Return the figures as JSON types."""
        return {
            "at": stamp(self.at),
            "window_seconds": int(seconds) if (seconds := self.window_seconds) == int(seconds) else seconds,
            "level": self.level.value,
            "pipelines": [it.document() for it in self.pipelines],
        }


def worst(levels: Iterable[KpiLevel]) -> KpiLevel:
    """Return the worst of the levels, or OK if there are none."""
    return max(levels, key=lambda level: level.rank, default=KpiLevel.OK)


def retry_rate_of(steps: Iterable[StepFigures]) -> float | None:
    """Return the retry rate of several steps together, without polls; None if nothing was tried."""
    counted = [step for step in steps if step.step not in POLLS]
    return ratio(sum(step.retried for step in counted), sum(step.tries for step in counted))


def ratio(part: float, whole: float) -> float | None:
    """Return `part` / `whole`, or None if `whole` is 0."""
    return part / whole if whole else None


def pipeline_figures(
    counts: Mapping[Cell, int],
    *,
    listed: Collection[str] = (),
    stopped: Collection[str] = (),
    min_runs: int = MIN_RUNS,
) -> tuple[PipelineFigures, ...]:
    """Return the figures of all pipelines in `counts` and in `listed`, sorted by name.

    `stopped` are the pipelines that begin nothing until a person acts.
    """
    return (*each_pipeline(counts, listed=listed, stopped=stopped, min_runs=min_runs),)


def each_pipeline(
    counts: Mapping[Cell, int],
    *,
    listed: Collection[str] = (),
    stopped: Collection[str] = (),
    min_runs: int = MIN_RUNS,
) -> Iterator[PipelineFigures]:
    """Yield what `pipeline_figures` returns, one at a time."""
    stopped = frozenset(stopped)
    by_pipeline: dict[str, list[Cell]] = {name: [] for name in (*listed, *stopped)}
    for cell in counts:
        if cell[0] != "open":
            by_pipeline.setdefault(cell[1], []).append(cell)
    for pipeline in sorted(by_pipeline):
        found = {(kind, *rest): counts[kind, pipeline, *rest] for kind, _, *rest in by_pipeline[pipeline]}
        yield _figures(pipeline, found, stopped=pipeline in stopped, min_runs=min_runs)


def _figures(pipeline: str, counts: Mapping[Cell, int], *, stopped: bool, min_runs: int) -> PipelineFigures:
    ended = {status.value: 0 for status in (RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED)}
    errors = {error_class.value: 0 for error_class in ErrorClass}
    steps: dict[str, Counter[str]] = {}
    for (kind, *rest), amount in counts.items():
        if kind == "ended" and rest[0] in ended:
            ended[rest[0]] += amount
        if kind == "failed" and rest[1] in errors:
            errors[rest[1]] += amount
        if kind in ("done", "failed", "given_up") and rest[0]:
            steps.setdefault(rest[0], Counter())[kind] += amount
    return PipelineFigures(
        pipeline,
        {RunStatus(status): number for status, number in ended.items()},
        counts.get(("took_us",), 0) / 1e6,
        {ErrorClass(name): number for name, number in errors.items()},
        tuple(StepFigures(step, it["done"], it["failed"], it["given_up"]) for step, it in sorted(steps.items())),
        stopped,
        min_runs,
    )
