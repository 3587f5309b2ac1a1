"""A robot's protocol in words, for people: what it retries, what follows a failure, and in which modes it runs."""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from retake.degraded.mode import ROBOTS
from retake.errors import ErrorClass
from retake.plural import count
from retake.retrying.policy import RetryPolicy
from retake.robots.degraded import may_run
from retake.robots.follow_ups import Do, FollowUp, When
from retake.robots.recovery import RecoveryStep, StepName
from retake.robots.sections import NamedBreaker

_MAX_WAITS = 10
"""Maximum number of waits shown for unlimited retries."""


def length(seconds: float) -> str:
    """Return a duration in words, without rounding: "45 s", "5 min", "24 h", "90 s"."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def waits_of(retry: RetryPolicy) -> list[float]:
    """Return the seconds before each retry, without jitter; of unlimited retries, those before the first ones."""
    count = _MAX_WAITS if retry.max_retries is None else retry.max_retries
    found = (retry.backoff.delay_s(number) for number in range(1, count + 1))
    return [it if retry.ceiling_s is None else min(it, retry.ceiling_s) for it in found]


def repeats_in_brief(retry: RetryPolicy) -> str:
    """Return "2, 8, 32 s ± 25 %", "none", or "1, 2, … 600 s, no end"."""
    waits = [f"{it:g}" for it in waits_of(retry)]
    if not waits:
        return "none"
    jitter = f" ± {retry.jitter_percent:g} %" if retry.jitter_percent else ""
    if retry.max_retries is None:
        return f"{', '.join(islice(waits, 2))}, … {retry.ceiling_s or 0:g} s, no end{jitter}"
    return f"{', '.join(waits)} s{jitter}"


def repeats_in_words(retry: RetryPolicy) -> str:
    """Return how often a call is retried, and when: "3 times, after 2, 8, 32 s, each ± 25 %"."""
    waits = ", ".join(f"{it:g}" for it in waits_of(retry))
    if not waits:
        return "never"
    jitter = f", each ± {retry.jitter_percent:g} %" if retry.jitter_percent else ", without jitter"
    if retry.max_retries is None:
        return f"without end, after {waits} s, then every {length(retry.ceiling_s or 0)}{jitter}"
    times = "once" if retry.max_retries == 1 else f"{retry.max_retries} times"
    return f"{times}, after {waits} s{jitter}"


def repeated_errors(retry: RetryPolicy) -> str:
    """Return which errors are retried: "class A, class B; never ERR_BUSINESS_X"."""
    rules = retry.retry_if
    found = [f"class {it.value}" for it in sorted(rules.classes)] + sorted(rules.codes)
    never = f"; never {', '.join(sorted(rules.except_codes))}" if rules.except_codes else ""
    return (", ".join(found) or "none") + never


def errors_of(when: When) -> str:
    """Return the errors after which something follows, in words, or "" for every error."""
    found = [f"class {it.value}" for it in sorted(when.classes)] + sorted(when.codes)
    parts = [f"after {' or '.join(found)}"] if found else []
    parts += [f"not after {' or '.join(sorted(when.except_codes))}"] if when.except_codes else []
    return ", ".join(parts)


def breaker_in_words(breaker: NamedBreaker) -> str:
    """Return when a breaker opens, and for how long."""
    policy = breaker.policy
    opens = f"{count(policy.failures, 'failure')} of class {ErrorClass.TEMPORARY} within {length(policy.window_s)}"
    return f"{opens} open it for {length(policy.open_s)}; then one call is let through as a probe"


def modes_of(robot_id: str) -> list[int]:
    """Return the degraded modes, 0 to 3, in which the robot runs."""
    return [mode for mode in range(len(ROBOTS)) if may_run(robot_id, mode)]


def action_in_words(action: FollowUp) -> str:
    """Return what an action does: "escalates to human if nobody has answered after 5 min: see to the dead letter"."""
    given = {name: str(value) for name, value in action._asdict().items() if value}
    if action.after_s:
        given["after_s"] = length(action.after_s)
    return _ACTIONS[action.do](given)


def steps_in_words(steps: Iterable[RecoveryStep]) -> list[str]:
    """Return the steps of a recovery in words, in order."""
    return [f"{_STEPS[it.step]}{'' if it.allowed else ' (only a person may)'}" for it in steps]


Words = Callable[[Mapping[str, Any]], str]


def _escalates(given: Mapping[str, Any]) -> str:
    unanswered = f" if nobody has answered after {given['after_s']}" if "after_s" in given else ""
    return f"escalates to {given['recipient']}{unanswered}: {given['what']}"


def _defers(given: Mapping[str, Any]) -> str:
    when = f"after {given['after_s']}" if "after_s" in given else "when deferred work is next taken up"
    return f"defers the work: all of it again {when}"


def _rolls_back(given: Mapping[str, Any]) -> str:
    unless = f" unless {given['unless']}" if "unless" in given else ""
    return f"rolls back what was done{' after ' + given['after_s'] if 'after_s' in given else ''}{unless}"


def _opens(thing: str) -> Words:
    def words(given: Mapping[str, Any]) -> str:
        system = f" in {given['system']}" if "system" in given else ""
        priority = f", priority {given['priority']}" if "priority" in given else ""
        return f"opens {thing}{system}{priority}{': ' + given['what'] if 'what' in given else ''}"

    return words


def _does(text: str) -> Words:
    return lambda given: text.format(**given)


_ACTIONS: Mapping[Do, Words] = {
    Do.DEAD_LETTER: _does("keeps the work as a dead letter"),
    Do.NOTIFY: _does("sends a notice by {channel} ({level})"),
    Do.TELL: _does("tells {recipient} ({level})"),
    Do.ESCALATE: _escalates,
    Do.DEFERRED_RETRY: _defers,
    Do.JOURNAL: _does("writes into the journal: {what}"),
    Do.INCIDENT: _opens("an incident"),
    Do.TICKET: _opens("a ticket"),
    Do.FAIL_FAST: _does("stops the chain: no robot after this one runs"),
    Do.RETURN_EXISTING: _does("returns the existing item"),
    Do.READ_ONLY: _does("creates nothing more after {failures_in_a_row} failures in a row"),
    Do.CONTINUE_WITH_REST: _does("continues with the rest of the batch"),
    Do.SPLIT_BATCH: _does("retries the batch in two halves"),
    Do.MANUAL_MODE: _does("leaves this to a person from now on: {what}"),
    Do.MANUAL_QUEUE: _does("puts it into a queue for a person: {what}"),
    Do.BUFFER: _does("keeps for the time being: {what}"),
    Do.FLUSH_TO_DISK: _does("writes to disk: {what}"),
    Do.REJECT: _does("refuses the data"),
    Do.SUGGEST_NEAREST: _does("suggests the nearest allowed value"),
    Do.AUTO_CORRECT: _does("uses the nearest allowed value, if auto_correct is set"),
    Do.STOP_LINE: _does("stops the production line"),
    Do.BACKUP: _does("keeps a copy: {what}"),
    Do.DEGRADE: _does("continues with reduced work: {what}"),
    Do.MARK: _does("marks what was created: {what}"),
    Do.ROLL_BACK: _rolls_back,
    Do.CORRECT: _does("runs the script that corrects the error"),
    Do.BACKUP_SYSTEM: _does("switches over to the backup system"),
}
_STEPS: Mapping[StepName, str] = {
    StepName.WAIT_FOR_HEALTH_CHECK: "wait until the other system is healthy",
    StepName.RETRY_WITH_CIRCUIT_BREAKER: "retry while the breaker allows it",
    StepName.ESCALATE_TO_HUMAN: "a person decides",
    StepName.CHECK_DEPENDENCIES: "check the dependencies",
    StepName.RUN_SETUP_SCRIPTS: "run the setup scripts",
    StepName.MEND_BY_HAND: "a person fixes it",
    StepName.RESTORE_SNAPSHOT: "restore the last snapshot",
    StepName.REBUILD_INDEXES: "rebuild the indexes",
    StepName.VALIDATE_INTEGRITY: "validate the integrity",
}
