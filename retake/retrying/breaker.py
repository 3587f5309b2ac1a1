"""Circuit breakers: a service that keeps failing is left alone for a while, and then probed by a single call.

    closed ── 10 failures within 5 minutes ──▶ open ── 60 s later ──▶ half-open ── the probe succeeds ──▶ closed
                                                ▲                         └──────── the probe fails ──▶ open
                                                └── one probe at a time; an operator may order one while it is open

The numbers are those of docs/protocol.md, section "NR.NSI.2". While a breaker is open no call is made, so nothing
counts as an attempt.

State and transitions are pure. `Breaker` keeps the state in a StateStore (state_store.py), so that it outlives the
process and is shared. A breaker is a hint, and nothing is unsafe without it: if its state cannot be read, calls are let
through, and the result of a call is never lost because it could not be recorded. The exception is the probe, which is
let through only once the store has recorded it.
"""

import os
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from logging import getLogger
from typing import Any, NamedTuple, TypeVar

from retake.bucket import Bucket
from retake.clock import Clock, exact_stamp, is_ahead, parse_stamp
from retake.errors import Code, CodedError, RetakeError, StorageError
from retake.retrying.policy import LONGEST_S, RetryIf
from retake.retrying.state_store import BucketStateStore, Raw, StateCell, StateStore

BREAKERS = "breakers/"
"""The folder of a bucket that holds the states of its breakers, as NAME.json."""

LOOK_AGAIN_S = 5.0
"""Maximum seconds before a caller asks again while another one probes."""

_log = getLogger(__name__)
T = TypeVar("T")


class Permit(NamedTuple):
    """Permission to make one call."""

    who: str  # "host:pid#9f3c…", different for each call
    probing: bool  # this call is the probe


class BreakerOpen(CodedError):
    """The call was not made because too many like it have failed. Ask again in `retry_after_s` seconds."""

    retry_after_s: float

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__("ERR_TEMPORARY_BREAKER_OPEN", message, retry_after_s=retry_after_s)


class BreakerPolicy(NamedTuple):
    """When a breaker opens, and for how long.

    >>> BreakerPolicy(failures=3).open_s
    60.0
    """

    failures: int = 10  # this many …
    window_s: float = 300.0  # … within this time open it
    open_s: float = 60.0
    probe_s: float = 900.0  # a probe without a result after this time counts as dead, and another may follow
    counts: RetryIf = RetryIf(except_codes=frozenset({Code.SCRIPT_DIED, Code.MEDIA}))
    """Which errors count. By default those of class A, except those that arise on this machine.

    Class B does not count: a rejected prompt says nothing about the vendor's health. Nor does class C: a wrong key or
    an empty account is the answer of a healthy vendor, and does not go away within a minute. An operator needs to see
    it, and an open breaker would hide it.
    """


class Phase(StrEnum):
    """What a breaker does with calls."""

    CLOSED = "closed"  # lets them through
    OPEN = "open"  # refuses them
    HALF_OPEN = "half-open"  # lets one through as a probe


class Probe(NamedTuple):
    """The call that was let through to test the service."""

    who: str  # of the permit
    since: datetime


class BreakerState(NamedTuple):
    """The state of a breaker. It is closed if `open_until` is None."""

    failures: tuple[datetime, ...] = ()  # while closed, the oldest first; those outside the window no longer count
    open_until: datetime | None = None
    opened_at: datetime | None = None  # when it first opened since it was last closed
    code: str | None = None  # of the last error that counted
    probe: Probe | None = None
    probe_ordered: bool = False  # an operator has ordered a probe, and no call has been made since

    def phase(self, now: datetime) -> Phase:
        if self.open_until is None:
            return Phase.CLOSED
        return Phase.OPEN if now < self.open_until else Phase.HALF_OPEN


class BreakerRefusal(NamedTuple):
    """Why a call may not be made now."""

    why: str
    wait_s: float  # seconds before asking again


# --- transitions: pure ---


def allow(
    state: BreakerState, policy: BreakerPolicy, now: datetime, who: str
) -> tuple[BreakerState, BreakerRefusal | None]:
    """Return the new state, and why `who` may not call now, or None if it may.

    A call that becomes the probe is recorded in the new state, and may be made only once that state is saved.
    """
    phase = state.phase(now)
    if phase is Phase.CLOSED:
        return state, None
    began = now - _span(policy.probe_s)  # a probe that began earlier counts as dead
    if state.probe and is_ahead(state.probe.since, began, longest_s=policy.probe_s):
        why = f"{state.probe.who} has been trying since {exact_stamp(state.probe.since)}"
        return state, BreakerRefusal(why, min(LOOK_AGAIN_S, (state.probe.since - began).total_seconds()))
    assert state.open_until is not None
    if is_ahead(state.open_until, now, longest_s=policy.open_s) and not state.probe_ordered:
        return state, BreakerRefusal(
            f"open until {exact_stamp(state.open_until)}", (state.open_until - now).total_seconds()
        )
    return state._replace(probe=Probe(who, now), probe_ordered=False), None


def failed(state: BreakerState, policy: BreakerPolicy, error: CodedError, now: datetime, who: str) -> BreakerState:
    """Return the state after the call of `who` failed.

    While the breaker is open or half-open, only a failed probe changes it: other calls that end now began before then.
    """
    if isinstance(error, BreakerOpen) or not policy.counts.holds_for(error):
        return released(state, who)
    if state.open_until is None:
        recent = (*within(state, policy, now), now)
        if len(recent) < policy.failures:
            return state._replace(failures=recent, code=str(error.code))
    elif not _is_probe(state, who):
        return state
    until = now + _span(policy.open_s)
    return BreakerState(open_until=until, opened_at=state.opened_at or now, code=str(error.code))


def succeeded(state: BreakerState, who: str) -> BreakerState:
    """Return the state after the call of `who` succeeded. A successful probe closes the breaker.

    While it is closed nothing changes, since failures are counted within a window, not in a row.
    """
    return BreakerState() if _is_probe(state, who) else state


def released(state: BreakerState, who: str) -> BreakerState:
    """Return the state after the call of `who` ended without saying anything about the service. Another call may
    probe."""
    return state._replace(probe=None) if _is_probe(state, who) else state


def probe_ordered(state: BreakerState) -> BreakerState:
    """Return the state after an operator ordered a probe. A closed breaker does not change.

    The next call is let through, even before `open_until`.
    """
    return state if state.open_until is None else state._replace(probe_ordered=True)


def within(state: BreakerState, policy: BreakerPolicy, now: datetime) -> tuple[datetime, ...]:
    """Return the failures that still count."""
    window = _span(policy.window_s)
    return tuple(moment for moment in state.failures if now - window < moment <= now + window)


def _span(seconds: float) -> timedelta:
    return timedelta(seconds=min(seconds, LONGEST_S))  # a policy's times may be infinite


def _is_probe(state: BreakerState, who: str) -> bool:
    return state.probe is not None and state.probe.who == who


# --- stored form ---


def encoded(state: BreakerState) -> Raw:
    probe = {"who": state.probe.who, "since": exact_stamp(state.probe.since)} if state.probe else None
    return {
        "failures": [exact_stamp(moment) for moment in state.failures],
        "open_until": exact_stamp(state.open_until) if state.open_until else None,
        "opened_at": exact_stamp(state.opened_at) if state.opened_at else None,
        "code": state.code,
        "probe": probe,
        "probe_ordered": state.probe_ordered,
    }


def decoded(raw: Raw | None) -> BreakerState:
    """Decode a stored state. Raises ValueError, naming the field."""
    if raw is None:
        return BreakerState()
    failures, probe = raw.get("failures") or [], raw.get("probe")
    if not isinstance(failures, list):
        raise ValueError("failures: is not a list")  # noqa: TRY004  a document's fault, not a caller's
    if not (probe is None or (isinstance(probe, Mapping) and isinstance(probe.get("who"), str))):
        raise ValueError('probe: is not {"who", "since"}')
    if not isinstance(code := raw.get("code"), str | None):
        raise ValueError("code: is not text")  # noqa: TRY004
    if not isinstance(ordered := raw.get("probe_ordered", False), bool):
        raise ValueError("probe_ordered: is neither true nor false")  # noqa: TRY004
    return BreakerState(
        failures=tuple(_moment("failures", it) for it in failures),
        open_until=_moment_or_none("open_until", raw.get("open_until")),
        opened_at=_moment_or_none("opened_at", raw.get("opened_at")),
        code=code,
        probe=Probe(probe["who"], _moment("probe.since", probe.get("since"))) if probe else None,
        probe_ordered=ordered,
    )


def _moment(field: str, value: Any) -> datetime:
    try:
        return parse_stamp(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{field}: {value!r} is not a time") from error


def _moment_or_none(field: str, value: Any) -> datetime | None:
    return None if value is None else _moment(field, value)


# --- the breaker itself ---


def breakers_of(bucket: Bucket, clock: Clock) -> BucketStateStore:
    """Return the store of the breakers' states in `bucket`, which must be the root, since channels share breakers.

    >>> from retake.bucket.memory import MemoryBucket
    >>> from retake.clock import SystemClock
    >>> breakers_of(MemoryBucket(), SystemClock()).names()
    []
    """
    return BucketStateStore(bucket, BREAKERS, clock)


class Breaker:
    """The breaker called `name`. `owner` identifies the caller for people ("host:pid"). As thread safe as `states`.

    >>> from retake.bucket.memory import MemoryBucket
    >>> from retake.clock import FakeClock
    >>> clock = FakeClock()
    >>> breaker = Breaker("studio", breakers_of(MemoryBucket(), clock), clock=clock, owner="host:1")
    >>> breaker.state().phase(clock.now()).value
    'closed'
    """

    def __init__(
        self,
        name: str,
        states: StateStore,
        policy: BreakerPolicy = BreakerPolicy(),  # noqa: B008  immutable
        *,
        clock: Clock,
        owner: str,
    ) -> None:
        self.name = name
        self.policy = policy
        self._cell = StateCell(states, name, decoded, encoded)
        self._clock = clock
        self._owner = owner

    def call(self, work: Callable[[], T]) -> T:
        """Return what `work()` returns, or raise what it raises, and record whether the service failed.

        Raises BreakerOpen without calling `work` while the breaker is open, and StateError if its document is invalid.

        >>> from retake.clock import FakeClock
        >>> from retake.retrying.state_store import MemoryStateStore
        >>> def fail() -> None:
        ...     raise CodedError(Code.UNAVAILABLE, "HTTP 503")
        >>> policy = BreakerPolicy(failures=1)
        >>> breaker = Breaker("studio", MemoryStateStore(), policy, clock=FakeClock(), owner="host:1")
        >>> breaker.call(fail)
        Traceback (most recent call last):
        retake.errors.CodedError: HTTP 503
        >>> breaker.call(lambda: "never called")
        Traceback (most recent call last):
        retake.retrying.breaker.BreakerOpen: studio has failed too often: open until 2026-01-01T00:01:00Z
        """
        permit = self.allow()
        try:
            result = work()
        except CodedError as error:
            self.failed(permit, error)
            raise
        except BaseException:
            self.release(permit)
            raise
        self.succeeded(permit)
        return result

    def allow(self) -> Permit:
        """Return permission for one call. The caller reports how it ends by `failed`, `succeeded` or `release`.

        Costs one read while the breaker is closed. Raises BreakerOpen, StateError.
        """
        who, now = f"{self._owner}#{os.urandom(4).hex()}", self._clock.now()
        try:
            state = self._cell.get()
        except StorageError as error:
            _log.warning("the breaker %s cannot be asked, the call is made: %s", self.name, error)
            return Permit(who, probing=False)
        new, refusal = allow(state, self.policy, now, who)
        if new != state:
            refusal = self._claim_probe(who, now)
        if refusal:
            raise BreakerOpen(f"{self.name} has failed too often: {refusal.why}", refusal.wait_s)
        return Permit(who, probing=new != state)

    def failed(self, permit: Permit, error: CodedError) -> None:
        """Record that the call ended with `error`. Never raises."""
        now = self._clock.now()
        self._record(lambda state: failed(state, self.policy, error, now, permit.who))

    def succeeded(self, permit: Permit) -> None:
        """Record that the call succeeded. Never raises. Costs nothing unless it was the probe."""
        if permit.probing:
            self._record(lambda state: succeeded(state, permit.who))

    def release(self, permit: Permit) -> None:
        """Record that the call says nothing about the service. Never raises."""
        if permit.probing:
            self._record(lambda state: released(state, permit.who))

    def state(self) -> BreakerState:
        """Return the current state. Raises StateError, StorageError."""
        return self._cell.get()

    def probe(self) -> BreakerState:
        """Let one call through, by order of an operator, and return the new state. A closed breaker does not change.

        Raises StateError, StorageError.
        """
        return self._cell.update(probe_ordered)

    def reset(self) -> BreakerState:
        """Close the breaker, by order of an operator. Raises StateError, StorageError."""
        return self._cell.update(lambda state: BreakerState())

    def _claim_probe(self, who: str, now: datetime) -> BreakerRefusal | None:
        """Record that this call is the probe, without which it must not be made."""
        try:
            return self._cell.change(lambda state: allow(state, self.policy, now, who))
        except StorageError as error:
            _log.warning("the probe of the breaker %s could not be noted, it is not made: %s", self.name, error)
            self._record(lambda state: released(state, who))  # the write may have succeeded, and would keep others away
            return BreakerRefusal("a probe could not be noted", LOOK_AGAIN_S)

    def _record(self, step: Callable[[BreakerState], BreakerState]) -> None:
        """Save a change. A failure is only logged: the result of the call must not be lost."""
        try:
            old, new = self._cell.change(lambda state: ((new := step(state)), (state, new)))
        except RetakeError as error:
            _log.warning("the breaker %s was not told how a call ended: %s", self.name, error)
            return
        if new.open_until != old.open_until:
            how = f"open until {exact_stamp(new.open_until)} ({new.code})" if new.open_until else "closed again"
            _log.warning("the breaker %s is %s", self.name, how)
