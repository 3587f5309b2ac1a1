"""The tables [retry] and [item_retry] of a policy file: strategy, numbers and conditions of the retries.

A file states the strategy with its numbers and also the resulting list of intervals. They are checked against each
other, so that a wrong number in either is noticed.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import isclose
from typing import Any, NamedTuple

from retake.errors import class_of
from retake.retrying.backoff import Backoff, Exponential, Fibonacci, Fixed, Intervals, Linear, TwoPhase
from retake.retrying.policy import RetryIf, RetryPolicy
from retake.robots.follow_ups import CLASSES, CODES
from retake.settings.schema import (
    PATIENCE,
    SECONDS,
    TEXT,
    Field,
    Rule,
    Schema,
    SchemaChoice,
    above_zero,
    from_zero,
    none_or,
    whole,
)

UNBOUNDED = "unbounded"

UNKNOWN = "unknown"
"""The value of `timeout_code` for a call whose outcome is unknown after a timeout."""

_FAR = 1_000_000
"""The number of a retry that stands for all later ones: by then, delays that shrink are 0."""


class Repeats(NamedTuple):
    """The retries of one kind of work."""

    strategy: str
    policy: RetryPolicy
    intervals_s: tuple[float, ...]  # seconds before each retry; of unlimited retries, before the first ones
    validate_before_repeat: int | None  # the retry before which the data are validated
    timeout_code: str | None  # as in the file; None: not given


def _read_max_retries(value: Any) -> int | None:
    return None if value == UNBOUNDED else whole(0, 100).read(value)


def _read_intervals(value: Any) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise ValueError  # noqa: TRY004  what rules raise
    return tuple(PATIENCE.read(seconds) for seconds in value)


_TIMEOUT_CODE = Rule(f'an error code of [errors], or "{UNKNOWN}"', TEXT.read)
_FIELDS = {
    "max_retries": Field(
        Rule(f'{whole(0, 100).allowed}, or "{UNBOUNDED}"', _read_max_retries), "retries after the first call"
    ),
    "intervals_s": Field(
        Rule(f"list, each: {PATIENCE.allowed}", _read_intervals),
        "seconds before each retry: what strategy and numbers amount to, without jitter",
    ),
    "jitter_percent": Field(from_zero(100), "by how much a delay may be shorter or longer"),
    "ceiling_s": Field(none_or(SECONDS), "seconds; no delay is longer"),
    "timeout_s": Field(none_or(SECONDS), "seconds after which a call is abandoned"),
    "timeout_code": Field(
        _TIMEOUT_CODE,
        f'required with timeout_s: the error that an abandoned call counts as; "{UNKNOWN}": it is not retried',
        default=None,
    ),
    "classes": Field(CLASSES, "errors of these classes are retried"),
    "codes": Field(CODES, "and errors with these codes"),
    "except_codes": Field(CODES, "but never errors with these codes"),
}
_BACKOFFS: Mapping[str, tuple[Callable[..., Backoff], dict[str, Field]]] = {
    "fixed": (Fixed, {"interval_s": Field(PATIENCE, "seconds before each retry")}),
    "linear": (
        Linear,
        {
            "first_s": Field(PATIENCE, "seconds before the first retry"),
            "step_s": Field(PATIENCE, "seconds by which each delay is longer than the one before"),
        },
    ),
    "exponential": (
        Exponential,
        {
            "first_s": Field(PATIENCE, "seconds before the first retry"),
            "factor": Field(above_zero(100), "by which each delay is multiplied to get the next"),
        },
    ),
    "fibonacci": (Fibonacci, {"unit_s": Field(PATIENCE, "seconds before the first retry")}),
    "intervals": (Intervals, {}),
    "two_phase": (
        TwoPhase,
        {
            "then_s": Field(PATIENCE, "seconds before each retry but the first, which follows immediately"),
            "validate_before_repeat": Field(none_or(whole(1, 100)), "the retry before which the data are validated"),
        },
    ),
}


def _repeats(strategy: str, **given: Any) -> Repeats:
    classes, codes, excepted = (given.pop(key) for key in ("classes", "codes", "except_codes"))
    intervals = given.pop("intervals_s")
    validate_before_repeat = given.pop("validate_before_repeat", None)
    numbers = {key: given.pop(key) for key in _BACKOFFS[strategy][1] if key in given}
    backoff = Intervals(intervals) if strategy == "intervals" else _BACKOFFS[strategy][0](**numbers)
    retry_if = RetryIf(frozenset(classes), frozenset(codes), frozenset(excepted))
    timeout_code = given.pop("timeout_code")
    code = None if timeout_code == UNKNOWN else timeout_code
    policy = RetryPolicy(backoff=backoff, retry_if=retry_if, timeout_code=code, **given)
    return Repeats(strategy, policy, intervals, validate_before_repeat, timeout_code)


REPEATS = SchemaChoice(
    "strategy", {name: Schema(partial(_repeats, name), own | _FIELDS) for name, (_, own) in _BACKOFFS.items()}
)


def contradictions(repeats: Repeats) -> Iterator[tuple[str, str]]:
    """Yield each contradiction in the table: its field, and what is wrong with it."""
    policy, intervals = repeats.policy, repeats.intervals_s
    counted = len(intervals) if policy.max_retries is None else policy.max_retries
    if counted != len(intervals) or (policy.max_retries is None and not intervals):
        yield "max_retries", f"found {policy.max_retries}, allowed: as many as intervals_s has, {len(intervals)}"
    elif not all(isclose(policy.backoff.delay_s(n), it) for n, it in enumerate(intervals, 1)):
        due = [round(policy.backoff.delay_s(n), 3) for n in range(1, len(intervals) + 1)]
        yield "intervals_s", f"found {list(intervals)}, allowed: what {repeats.strategy} comes to: {due}"
    elif policy.max_retries is None and not policy.backoff.delay_s(_FAR):
        yield "intervals_s", f"found delays that end at 0, allowed: delays above 0, for retries that are {UNBOUNDED}"
    if policy.ceiling_s is None and policy.max_retries is None:
        yield "ceiling_s", f"found none, allowed: a number of seconds, for retries that are {UNBOUNDED}"
    if policy.ceiling_s is not None and max(intervals, default=0) > policy.ceiling_s:
        yield (
            "ceiling_s",
            f"found {policy.ceiling_s}, allowed: no less than the longest of intervals_s, {max(intervals)}",
        )
    if repeats.validate_before_repeat is not None and repeats.validate_before_repeat > counted:
        yield "validate_before_repeat", f"found {repeats.validate_before_repeat}, allowed: 1 to max_retries, {counted}"
    if repeats.timeout_code is None and policy.timeout_s is not None:
        yield "timeout_code", f"missing, allowed: {_TIMEOUT_CODE.allowed}"
    elif repeats.timeout_code is not None and policy.timeout_s is None:
        yield "timeout_code", f"found {repeats.timeout_code}, allowed: only with a number of seconds in timeout_s"
    yield from _conditions(policy)


def _conditions(policy: RetryPolicy) -> Iterator[tuple[str, str]]:
    retry_if = policy.retry_if
    if policy.max_retries != 0 and not retry_if.classes and not retry_if.codes:
        yield "classes", "found nothing, and nothing in codes; allowed: an error after which there is a retry"
    for code in sorted(retry_if.codes & retry_if.except_codes):
        yield "except_codes", f"found {code}, which is in codes too; allowed: one of the two"
    for code in sorted(retry_if.except_codes - retry_if.codes):
        if class_of(code) not in retry_if.classes:
            yield (
                "except_codes",
                f"found {code}, which is not retried anyway; allowed: codes of {set(retry_if.classes)}",
            )
