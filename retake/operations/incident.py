"""Analyse what went wrong with a run from its timeline: which step, when, for how long, and what was done. Pure.

The parts are those of docs/protocol.md, section "Incident analysis": timeline, root cause, time to recovery, actions
taken, recommendations.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from retake.clock import stamp
from retake.operations.events import BY_HAND, STEP_DONE
from retake.operations.timeline import HANDED_OVER, POSTPONED, TAKEN_BY_HAND, TimelineEntry
from retake.runs.run import CHANGED, Run
from retake.runs.states import RunStatus

TARGET_S = 30 * 60.0
"""The target time to recovery in seconds (docs/protocol.md, section "Incident analysis")."""

_NO_STEP = "the run"


class Outage(NamedTuple):
    """The time from a step's first failure until it works again."""

    step: str
    began: datetime
    ended: datetime | None  # None: it did not recover
    failures: int

    @property
    def seconds(self) -> float | None:
        return (self.ended - self.began).total_seconds() if self.ended else None

    def lasted_s(self, until: datetime) -> float:
        """Return its length in seconds, up to `until` if it did not recover."""
        return max(0.0, ((self.ended or until) - self.began).total_seconds())


class Incident(NamedTuple):
    """The analysis of an incident."""

    run: Run  # the last one
    began: datetime  # when the run began
    failures: tuple[TimelineEntry, ...]
    interruptions: tuple[TimelineEntry, ...]
    step: str | None  # the step that failed
    cause: TimelineEntry | None  # that step's first failure of the kind that ended the run or was most frequent
    outages: tuple[Outage, ...]
    actions: tuple[tuple[str, str, int], ...]  # (who, what, how often)
    until: datetime  # the end of the run, or the last known moment

    @property
    def happened(self) -> bool:
        """Whether anything went wrong at all."""
        return bool(self.failures or self.interruptions) or self.run.status in (RunStatus.FAILED, RunStatus.CANCELLED)

    @property
    def first_trouble(self) -> datetime | None:
        return min((it.at for it in (*self.failures, *self.interruptions)), default=None)

    @property
    def recovered(self) -> bool:
        """Whether the run has its result: everything that failed worked again or was not needed."""
        return self.run.status is RunStatus.SUCCEEDED

    @property
    def mttr_s(self) -> float | None:
        """The mean time to recovery in seconds, or None if nothing recovered. A step that did not recover counts with
        the time it has been failing so far: leaving it out would make the worst incidents look best."""
        if all(outage.ended is None for outage in self.outages):
            return None
        return sum(outage.lasted_s(self.until) for outage in self.outages) / len(self.outages)

    @property
    def mttr_at_least(self) -> bool:
        """Whether the mean is a lower bound because something did not recover."""
        return self.mttr_s is not None and any(outage.ended is None for outage in self.outages)

    @property
    def codes(self) -> Counter[str]:
        """How often each error code occurred."""
        return Counter(it.error.code or "" for it in self.failures)


def incident(
    runs: Sequence[Run],
    entries: Sequence[TimelineEntry],
    recovered_by: Mapping[str, frozenset[str]],
    now: datetime | None = None,
) -> Incident:
    """Analyse one or more runs of one task. A run that is still under way counts up to `now`.

    `recovered_by` maps a step to the steps whose result shows that it works again: itself, or steps that need it.
    """
    failures = tuple(it for it in entries if it.error)
    main = _main_failure(runs[-1], failures)
    step = main.step if main else None
    cause = next((it for it in failures if main and _kind(it) == _kind(main)), None)
    began, last = (entries[0].at, entries[-1].at) if entries else (runs[0].created_at, runs[-1].updated_at)
    until = max(last, runs[-1].updated_at) if runs[-1].ended else max(last, now or last)
    return Incident(
        runs[-1],
        began,
        failures,
        tuple(it for it in entries if it.status == RunStatus.INTERRUPTED),
        step,
        cause,
        outages(entries, recovered_by),
        actions(entries),
        until,
    )


def outages(entries: Sequence[TimelineEntry], recovered_by: Mapping[str, frozenset[str]]) -> tuple[Outage, ...]:
    """Return each outage: from the first failure of a step to its next success."""
    under_way: dict[str, Outage] = {}
    over: list[Outage] = []
    for it in entries:
        if it.error:
            step = it.step or _NO_STEP
            known = under_way.get(step) or Outage(step, it.at, None, 0)
            under_way[step] = known._replace(failures=known.failures + 1)
        working = [step for step in under_way if _works_again(step, it, recovered_by)]
        over += [under_way.pop(step)._replace(ended=it.at) for step in working]
    return tuple(sorted((*over, *under_way.values()), key=lambda outage: outage.began))


def actions(entries: Sequence[TimelineEntry]) -> tuple[tuple[str, str, int], ...]:
    """Return the actions taken (who, what, how often), in the order of their first occurrence."""
    done: Counter[tuple[str, str]] = Counter()
    for it in entries:
        if what := _action(it):
            done[it.actor or "somebody", what] += 1
    return tuple((who, what, number) for (who, what), number in done.items())


def _main_failure(run: Run, failures: Sequence[TimelineEntry]) -> TimelineEntry | None:
    """Return the failure that ended the run or, if the run did not fail, one with the most frequent step and code."""
    if not failures:
        return None
    if run.status is RunStatus.FAILED:
        own = [it for it in failures if it.run_id == run.run_id]
        ending = [it for it in own if it.error.code == run.error_code]
        return (ending or own or [*failures])[-1]
    steps = Counter(it.step for it in failures)
    step = steps.most_common(1)[0][0]
    kinds = Counter(_kind(it) for it in failures if it.step == step)
    kind = kinds.most_common(1)[0][0]
    return next(it for it in failures if _kind(it) == kind)


def _kind(failure: TimelineEntry) -> tuple[str | None, str]:
    """Return what identifies a recurring failure: the step and the code."""
    return failure.step, failure.error.code or ""


def _works_again(step: str, entry: TimelineEntry, recovered_by: Mapping[str, frozenset[str]]) -> bool:
    if entry.error:
        return False
    if entry.kind == STEP_DONE:
        return entry.step in recovered_by.get(step, {step})
    return entry.kind == CHANGED and entry.status == RunStatus.SUCCEEDED and step not in recovered_by


_BY_STATUS: Mapping[tuple[str, bool], str] = {
    (RunStatus.RETRY_SCHEDULED, True): "scheduled a retry",
    (RunStatus.INTERRUPTED, False): "found that its worker was gone",
    (RunStatus.CANCELLED, False): "cancelled it",
    (RunStatus.FAILED, True): "gave up: no retry could help, or none was left",
    (RunStatus.FAILED, False): "gave up: no retry could help, or none was left",
}

_PLAIN = frozenset({"created", "work began", "done", "failed", HANDED_OVER, TAKEN_BY_HAND})


def _action(entry: TimelineEntry) -> str:
    """Return the action that an entry records, or ""."""
    if entry.put_off:
        return POSTPONED  # whatever the reason was
    if entry.kind == CHANGED and entry.status:
        told = _BY_STATUS.get((entry.status, bool(entry.error)), "")
        return told or ("" if entry.what in _PLAIN else entry.what)
    return entry.what if entry.actor in BY_HAND else ""


def as_document(outage: Outage, until: datetime) -> dict[str, Any]:
    """Return the JSON document of an outage."""
    return {
        "step": outage.step,
        "began": stamp(outage.began),
        "recovered": stamp(outage.ended) if outage.ended else None,
        "seconds": outage.seconds,
        "failures": outage.failures,
        "lasted_s": outage.lasted_s(until),
    }
