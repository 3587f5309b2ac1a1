"""The rules for a run's history, which hold in every ledger. Pure.

A run is compared with its events, from which it can be derived completely, and the runs of a task with each other.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import islice, pairwise
from typing import Any, NamedTuple

from retake.clock import parse_stamp, stamp
from retake.errors import redact
from retake.foreign_text import one_line, plain
from retake.runs.run import BY_WORKER, CHANGED, ERROR, Event, Run
from retake.runs.run_document import DROPPED
from retake.runs.states import START, TRANSITIONS, RunStatus, Trigger

UNREADABLE_RUN = "run-unreadable"
EVENTS_MISSING = "run-events-missing"
HISTORY_ILLEGAL = "run-history-illegal"
DIFFERS = "run-differs"
COUNTS_WRONG = "run-counts-wrong"
CLOCK_BACKWARDS = "run-clock-backwards"
ATTEMPTS_WRONG = "attempts-wrong"
OPEN_TWICE = "runs-open-twice"
NUMBERS_WRONG = "run-numbers-wrong"

SKEW = timedelta(minutes=5)
"""How far the clocks of two machines may differ without a note."""

COUNTERS = ("resumes", "retries", "crashes")
"""The fields of a run that count its events."""

_MAX_NUMBERS = 10  # listed in a finding

_TRIGGERS = {(before, after): trigger for (before, trigger), after in TRANSITIONS.items()}


class BrokenRule(NamedTuple):
    """A broken rule."""

    code: str
    what: str


class RunFacts(NamedTuple):
    """The facts of a run that are compared with those of the task's other runs."""

    run: Run
    attempts: tuple[int, ...]  # its attempts at the task, in the order in which it made them


class Derived(NamedTuple):
    """The fields of a run that are derived from its events."""

    status: RunStatus
    version: int
    attempts: tuple[int, ...]
    error_code: str | None
    next_retry_at: str | None
    counters: Mapping[str, int]


def history_faults(run: Run, events: Sequence[Event], *, counted: bool = True) -> Iterator[BrokenRule]:
    """Yield the rules that a run and all its events break, the worst first.

    `counted` is whether `retries` and `crashes` are on record: documents of early versions lack them.
    """
    changes = [event for event in events if event.kind == CHANGED]
    broken = [*_numbering(events)] or [*_transitions(run, changes), *_actors(events)]
    yield from broken
    if not broken:
        told = derived(changes)
        yield from [*_differences(run, changes, told)] or _miscounts(run, told, counted=counted)
    yield from _times(events)


def facts_of(run: Run, events: Iterable[Event]) -> RunFacts:
    """Return the facts that are compared with those of the task's other runs."""
    attempts = [event.payload.get("attempt") for event in events if event.kind == CHANGED]
    return RunFacts(run, tuple(dict.fromkeys(it for it in attempts if type(it) is int and it > 0)) or (run.attempt,))


def slim(event: Event) -> Event:
    """Return the event with only the fields that the rules need, because notes may be large."""
    if event.kind == CHANGED:
        return event
    return event._replace(payload={name: event.payload.get(name) for name in ("actor", "count")})


def what_is_wrong(error: Exception, key: str) -> str:
    """Return the error in the object `key` as text for a finding."""
    return _word(str(error).removeprefix(f"{key}: ").partition(". It is left")[0])


def derived(changes: Sequence[Event]) -> Derived:
    """Derive the fields of a run from its transitions, which must be a legal history."""
    payloads = [event.payload for event in changes]
    triggers = Counter(_TRIGGERS[RunStatus(it["previous_status"]), RunStatus(it["status"])] for it in payloads[1:])
    crashes = [it for it in payloads if it["status"] == RunStatus.INTERRUPTED and it.get("actor") != BY_WORKER]
    counters = {
        "resumes": triggers[Trigger.RECOVERY_RESUME],
        "retries": triggers[Trigger.RETRYABLE_ERROR],
        "crashes": len(crashes),
    }
    error_code = None
    for it in payloads:
        error_code = None if it["status"] == RunStatus.SUCCEEDED else it.get("error_code") or error_code
    last, attempts = payloads[-1], dict.fromkeys(int(it["attempt"]) for it in payloads)
    status = RunStatus(last["status"])
    return Derived(status, len(payloads), tuple(attempts), error_code, last.get("next_retry_at"), counters)


def task_faults(runs: Sequence[RunFacts], *, mirrored: bool) -> Iterator[BrokenRule]:
    """Yield the rules that the runs of one task break together.

    If the runs mirror documents of items (`mirrored`), at most one is open, and their keys are TASK#NUMBER.
    """
    made = Counter(attempt for it in runs for attempt in it.attempts)
    if doubles := sorted(attempt for attempt, number in made.items() if number > 1):
        yield BrokenRule(ATTEMPTS_WRONG, f"several runs of the task made attempt {_numbers(doubles)}")
    missing = (number for number in range(1, max(made, default=0) + 1) if number not in made)
    if gaps := [*islice(missing, _MAX_NUMBERS + 1)]:
        yield BrokenRule(ATTEMPTS_WRONG, f"no run of the task made attempt {_numbers(gaps)}, and one made {max(made)}")
    if not mirrored:
        return
    opened = sorted((it.run for it in runs if not it.run.ended), key=lambda run: (run.attempt, run.run_id))
    if len(opened) > 1:
        names = ", ".join(run.run_id for run in opened)
        yield BrokenRule(OPEN_TWICE, f"{len(opened)} runs of the task are open, the oldest first: {names}")
    found = sorted(number_of(it.run) or 0 for it in runs)
    if found != [*range(1, len(found) + 1)]:
        yield BrokenRule(
            NUMBERS_WRONG, f"the keys of the task's runs end in {_numbers(found)}, not in 1 to {len(found)}"
        )


def number_of(run: Run) -> int | None:
    """Return the number in an idempotency key TASK#NUMBER, or None for another key."""
    number = run.idempotency_key.removeprefix(f"{run.task_id}#")
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else None


def _numbering(events: Sequence[Event]) -> Iterator[BrokenRule]:
    """Check that events are numbered from 1. One event may stand for several notes that were dropped."""
    following, dropped = 1, 0
    for event in events:
        if event.seq < following:
            yield BrokenRule(EVENTS_MISSING, f"event {event.seq} is duplicated, or comes after event {following - 1}")
            return
        if missing := event.seq - following:
            if missing > dropped:
                gone = str(following) if missing == 1 else f"{following} to {event.seq - 1}"
                yield BrokenRule(EVENTS_MISSING, f"missing: event {gone}")
                return
            dropped -= missing
        if event.kind == DROPPED:
            count = event.payload.get("count")
            dropped += count - 1 if type(count) is int else 0
        following = event.seq + 1


def _transitions(run: Run, changes: Sequence[Event]) -> Iterator[BrokenRule]:
    """Check that each transition starts where the last one led, and is in the state diagram."""
    if not changes:
        yield BrokenRule(EVENTS_MISSING, "no event records its creation")
    before: str | None = None
    for event in changes:
        it, place = event.payload, f"event {event.seq}"
        status = it.get("status")
        if it.get("previous_status") != before:
            yield BrokenRule(
                HISTORY_ILLEGAL, f"{place} says that it was {_word(it.get('previous_status'))}, not {before}"
            )
            return
        if not _allowed(before, status):
            yield BrokenRule(
                HISTORY_ILLEGAL, f"{place} leads from {before} to {_word(status)}, which is not a transition"
            )
            return
        if (it.get("next_retry_at") is not None) != (status == RunStatus.RETRY_SCHEDULED):
            yield BrokenRule(HISTORY_ILLEGAL, f"{place} has next_retry_at where it does not belong, or lacks it")
            return
        before = str(status)
    yield from _identities(run, changes)


def _identities(run: Run, changes: Sequence[Event]) -> Iterator[BrokenRule]:
    """Check that each transition names the run, and that only a due retry makes a new attempt."""
    last: Any = None
    for event in changes:
        it = event.payload
        for name in ("run_id", "task_id", "idempotency_key"):
            if it.get(name) != getattr(run, name):
                yield BrokenRule(HISTORY_ILLEGAL, f"event {event.seq} is about another {name}: {_word(it.get(name))}")
                return
        attempt, due = it.get("attempt"), it.get("previous_status") == RunStatus.RETRY_SCHEDULED
        again = due and it.get("status") == RunStatus.RUNNING
        if type(attempt) is not int or attempt < 1:
            yield BrokenRule(HISTORY_ILLEGAL, f"event {event.seq} has the attempt {_word(attempt)}")
            return
        if last is not None and (attempt <= last if again else attempt != last):
            yield BrokenRule(HISTORY_ILLEGAL, f"event {event.seq} has attempt {attempt} after attempt {last}")
            return
        last = attempt


def _allowed(before: str | None, status: Any) -> bool:
    try:
        after = RunStatus(status)
    except ValueError:
        return False
    return after is START if before is None else (RunStatus(before), after) in _TRIGGERS


def _actors(events: Sequence[Event]) -> Iterator[BrokenRule]:
    for event in events:
        if event.kind not in (ERROR, DROPPED) and not event.payload.get("actor"):
            yield BrokenRule(HISTORY_ILLEGAL, f"event {event.seq} ({_word(event.kind)}) names no actor")
            return


def _differences(run: Run, changes: Sequence[Event], told: Derived) -> Iterator[BrokenRule]:
    """Compare the run with the fields derived from its transitions."""
    wanted: list[tuple[str, Any, Any]] = [
        ("status", run.status.value, told.status.value),
        ("version", run.version, told.version),
        ("attempt", run.attempt, told.attempts[-1]),
        ("error_code", run.error_code, told.error_code),
        ("next_retry_at", run.next_retry_at and stamp(run.next_retry_at), _second(told.next_retry_at)),
        ("created_at", stamp(run.created_at), stamp(changes[0].at)),
        ("updated_at", stamp(run.updated_at), stamp(changes[-1].at)),
    ]
    for name, found, right in wanted:
        if found != right:
            yield BrokenRule(DIFFERS, f"its {name} is {_word(found)}, but its events say {_word(right)}")
    if run.status is not RunStatus.RUNNING and (run.worker or run.heartbeat_at):
        yield BrokenRule(DIFFERS, f"it is {run.status}, but a worker still has it")


def _miscounts(run: Run, told: Derived, *, counted: bool) -> Iterator[BrokenRule]:
    for name in COUNTERS:
        if (counted or name == "resumes") and getattr(run, name) != told.counters[name]:
            what = f"its {name} are {getattr(run, name)}, but its events say {told.counters[name]}"
            yield BrokenRule(COUNTS_WRONG, what)


def _second(text: str | None) -> str | None:
    try:
        return text and stamp(parse_stamp(text))
    except (ValueError, TypeError):
        return text


def _times(events: Sequence[Event]) -> Iterator[BrokenRule]:
    for before, event in pairwise(events):
        if before.at - event.at > SKEW:
            seconds = round((before.at - event.at).total_seconds())
            what = f"event {event.seq} of {stamp(event.at)} is {seconds} s older than event {before.seq}"
            yield BrokenRule(CLOCK_BACKWARDS, what)
            return


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:_MAX_NUMBERS])) + (" …" if len(numbers) > _MAX_NUMBERS else "")


def _word(value: Any) -> str:
    return "nothing" if value is None else plain(one_line(redact(str(value))))
