"""The timeline of a run, built from its events. Pure."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from retake.clock import stamp
from retake.errors import ErrorRecord
from retake.operations.attempts import of_failure
from retake.operations.events import BY_HAND, REMARK, STEP_DONE
from retake.operations.words import code_of, one_line, read_moment
from retake.runs.run import BY_WORKER, CHANGED, ERROR, Event
from retake.runs.states import RunStatus


class TimelineEntry(NamedTuple):
    """One entry of a timeline."""

    at: datetime
    run_id: str
    what: str
    actor: str  # "cron", "operator", "web", "recovery", "worker"
    attempt: int | None  # for a transition: how often the run was taken up
    kind: str  # of the event
    status: str | None = None  # for a transition: the new status
    step: str | None = None  # the step that was done or failed
    error: ErrorRecord = ErrorRecord()  # for a failure
    next_retry_at: datetime | None = None

    @property
    def description(self) -> str:
        """What happened, in words."""
        return f"{self.step} {self.what}" if self.step and self.error else self.what

    @property
    def put_off(self) -> bool:
        """Whether a worker put the run off, though nothing had failed."""
        return self.kind == CHANGED and not self.error and self.what.startswith(_PUT_OFF)

    @property
    def step_attempt(self) -> int | None:
        """The attempt at the step that failed, or None if nothing failed or the record does not say."""
        return of_failure(self.error)

    @property
    def failure(self) -> str:
        """The error in one line."""
        return f"{code_of(self.error.code)}: {one_line(self.error.message, 400)}" if self.error else ""


def timeline(events: Iterable[Event]) -> list[TimelineEntry]:
    """Return the entries of a run, or of several runs of one task, by time.

    The record of a failure is an event of its own, and is merged into the transition that it led to. Each time a worker
    puts a run off there is one entry, which includes the resumption before it and the note of the reason. An event that
    was recorded later than it was seen has the time at which it was seen.
    """
    entries: list[TimelineEntry] = []
    changed: datetime | None = None  # the last transition so far
    for event in events:
        before = entries[-1] if entries else None
        if event.kind == ERROR:
            if before and _led_to(event, before):
                entries[-1] = before._replace(error=ErrorRecord(event.payload), step=step_of(event.payload))
            else:
                entries.append(_of_error(event))
        elif event.kind == CHANGED:
            entries.append(_folded(_of_change(event), entries))
            changed = max(changed or event.at, event.at)
        else:
            entries.append(_of_note(event, changed))
    return sorted(entries, key=lambda it: it.at)


def _folded(change: TimelineEntry, before: list[TimelineEntry]) -> TimelineEntry:
    """Return the entry of a transition. If a worker puts the run off again, remove two of the entries so far from
    `before`: the reason, which was saved with the transition, and the resumption that it ends."""
    own = [it for it in before[-3:] if it.run_id == change.run_id]
    if change.what == _AGAIN and own and own[-1].put_off:
        return change._replace(what=_RESUMED)  # nothing had failed
    if change.what != POSTPONED:
        return change
    if own and (own[-1].kind, own[-1].at) == (REMARK, change.at):
        change = change._replace(what=f"{_PUT_OFF} ({before.pop().what}){_LATER}")
        own.pop()
    if len(own) > 1 and own[-1].what == _RESUMED and own[-2].put_off:
        before.pop()
    return change


def _led_to(event: Event, change: TimelineEntry) -> bool:
    """Return whether the failure caused `change`: then both were saved together."""
    together = (change.run_id, change.at) == (event.run_id, event.at)
    return together and change.kind == CHANGED and not change.error


def step_of(record: Mapping[str, Any]) -> str | None:
    """Return the step that failed, from its record's robot: "story.upscale" is the step "upscale" of the story."""
    robot = str(record.get("robot_id") or "")
    pipeline, _, step = robot.partition(".")
    return (step if pipeline in ("story", "music") else robot) or None


def as_document(entry: TimelineEntry, start: datetime) -> dict[str, Any]:
    """Return the JSON document of an entry."""
    return {
        **entry._asdict(),
        "at": stamp(entry.at),
        "what": entry.description,
        "error": entry.error.raw or None,
        "step_attempt": entry.step_attempt,
        "next_retry_at": stamp(entry.next_retry_at) if entry.next_retry_at else None,
        "since_start_s": round((entry.at - start).total_seconds(), 3),
    }


HANDED_OVER, TAKEN_BY_HAND = "waits for the next tick", "made due at once"

_PUT_OFF, _LATER = "postponed", ", to be resumed later"
POSTPONED = _PUT_OFF + _LATER

_AGAIN, _RESUMED = "tried again", "resumed"

_CHANGES: Mapping[tuple[str | None, str], str] = {
    (None, RunStatus.QUEUED): "created",
    (RunStatus.QUEUED, RunStatus.RUNNING): "work began",
    (RunStatus.RUNNING, RunStatus.RETRY_SCHEDULED): "failed, to be tried again",
    (RunStatus.RETRY_SCHEDULED, RunStatus.RUNNING): _AGAIN,
    (RunStatus.RUNNING, RunStatus.INTERRUPTED): "interrupted: its worker was gone",
    (RunStatus.INTERRUPTED, RunStatus.RUNNING): _RESUMED,
}

_HANDLED: Mapping[tuple[str | None, str], str] = {
    (RunStatus.RUNNING, RunStatus.RETRY_SCHEDULED): HANDED_OVER,
    (RunStatus.RETRY_SCHEDULED, RunStatus.RUNNING): TAKEN_BY_HAND,
}
"""Transitions by an operator: nothing failed, and no work has begun yet."""

_BY_WORKERS: Mapping[tuple[str | None, str], str] = {(RunStatus.RUNNING, RunStatus.RETRY_SCHEDULED): POSTPONED}
"""Transitions by a worker without an error: the cap holds the run back."""

_ENDS: Mapping[str, str] = {
    RunStatus.SUCCEEDED: "done",
    RunStatus.FAILED: "failed for good",
    RunStatus.CANCELLED: "cancelled",
}


def _of_change(event: Event) -> TimelineEntry:
    before, status = event.payload.get("previous_status"), str(event.payload.get("status"))
    previous = None if before is None else str(before)
    actor = str(event.payload.get("actor") or "")
    unfailed = _HANDLED if actor in BY_HAND else _BY_WORKERS if actor == BY_WORKER else {}
    what = None if event.payload.get("error_code") else unfailed.get((previous, status))
    what = what or _CHANGES.get((previous, status))
    what = what or _ENDS.get(status) or f"{previous} → {status}"
    attempt = event.payload.get("attempt")
    return TimelineEntry(
        event.at,
        event.run_id,
        what,
        actor,
        attempt if isinstance(attempt, int) else None,
        event.kind,
        status,
        next_retry_at=read_moment(event.payload.get("next_retry_at")),
    )


def _of_error(event: Event) -> TimelineEntry:
    step = step_of(event.payload)
    actor = str(event.payload.get("actor") or "")
    return TimelineEntry(
        event.at, event.run_id, "failed", actor, None, event.kind, step=step, error=ErrorRecord(event.payload)
    )


def _of_note(event: Event, after: datetime | None) -> TimelineEntry:
    """Return the entry of a remark. `after` is the time of the previous transition: the time of a remark is in whole
    seconds, so it may appear to be earlier than that."""
    payload = event.payload
    seen = read_moment(payload.get("seen_at_utc"))
    at = min(event.at, max(seen, after or seen)) if seen else event.at
    step = payload.get("step")
    told = payload.get("text") or ", ".join(f"{key} {it}" for key, it in payload.items() if key != "actor")
    what = str(told) if payload.get("text") else f"{event.kind.removeprefix('run.')}: {told}"
    done = event.kind == STEP_DONE and isinstance(step, str)
    return TimelineEntry(
        at,
        event.run_id,
        one_line(what),
        str(payload.get("actor") or ""),
        None,
        event.kind,
        step=str(step) if done else None,
    )
