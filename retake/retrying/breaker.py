"""A circuit breaker: what has failed again and again is left alone for a while, and then tried by one call alone.

    closed ── 10 failures within 5 minutes ──▶ open ── 60 s later ──▶ half-open ── the probe succeeds ──▶ closed
                                                ▲                         └──────── the probe fails ──▶ open
                                                └── one probe at a time; an operator may order one while it is open

The numbers are those of seed 003, «NR.NSI.2 … Circuit Breaker» («Half-Open после 10 неудач за 5 минут, Timeout: 60
секунд в состоянии Open»). While it is open no call is made, so nothing counts as an attempt.

State and transitions are pure; `Breaker` keeps the state in a states (state_store.py), so that it outlives the process
and is shared with others. A breaker is a hint: nothing is unsafe without it. Where its state cannot be had, calls are
let through; what a call led to is never lost because it could not be noted. One thing is not done on a guess: the call
that probes is let through only once the states has taken note of it.
"""

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from logging import getLogger
from typing import Any, NamedTuple, TypeVar

from retake.bucket import Bucket
from retake.clock import Clock, parse_stamp
from retake.errors import Code, CodedError, RetakeError, StorageError
from retake.retrying.policy import RetryIf
from retake.retrying.state_store import BucketStateStore, Raw, StateCell, StateStore

BREAKERS = "breakers/"
"""The folder of a bucket that holds the breakers' states, NAME.json each."""

LOOK_AGAIN_S = 5.0
"""How soon to ask again while somebody else's probe is under way."""

_log = getLogger(__name__)
T = TypeVar("T")


class Permit(NamedTuple):
    """Leave to make one call."""

    who: str  # «host:pid#9f3c…», different for each
    probing: bool  # it is the one call that is let through


class BreakerOpen(CodedError):
    """The call was not made, for calls like it have failed too often. `retry_after_s` says when to ask again."""

    retry_after_s: float

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__("ERR_TEMPORARY_BREAKER_OPEN", message, retry_after_s=retry_after_s)


class BreakerPolicy(NamedTuple):
    """When a breaker opens and for how long."""

    failures: int = 10  # so many …
    window_s: float = 300.0  # … within so long open it
    open_s: float = 60.0
    probe_s: float = 900.0  # a probe of which nothing was heard for so long has died: another may be made
    counts: RetryIf = RetryIf(except_codes=frozenset({Code.SCRIPT_DIED, Code.MEDIA}))
    """Which errors count. By default those of class A, but for those that arise on this machine.

    Not class B: a rejected prompt says nothing about the vendor's health. Not class C: a wrong key or an empty account
    is the vendor's answer, in good health, and does not pass within a minute; it goes to a person at once, and an open
    breaker would hide it.
    """


class Phase(StrEnum):
    """What a breaker does with calls."""

    CLOSED = "closed"  # lets them through
    OPEN = "open"  # refuses them
    HALF_OPEN = "half-open"  # lets one through, to see


class Probe(NamedTuple):
    """The one call that was let through."""

    who: str  # of the permit
    since: datetime


class BreakerState(NamedTuple):
    """How a breaker stands. Without `open_until` it is closed."""

    failures: tuple[datetime, ...] = ()  # while it is closed, the oldest first; those out of the window count no more
    open_until: datetime | None = None
    opened_at: datetime | None = None  # the first time since it was closed
    code: str | None = None  # of the last error that counted
    probe: Probe | None = None
    probe_ordered: bool = False  # an operator has ordered a probe, and no call has come since

    def phase(self, now: datetime) -> Phase:
        if self.open_until is None:
            return Phase.CLOSED
        return Phase.OPEN if now < self.open_until else Phase.HALF_OPEN


class BreakerRefusal(NamedTuple):
    """Why a call is not to be made now."""

    why: str
    wait_s: float  # how soon to ask again


# --- transitions: pure ---


def allow(
    state: BreakerState, policy: BreakerPolicy, now: datetime, who: str
) -> tuple[BreakerState, BreakerRefusal | None]:
    """Whether `who` may call now. If it is the probe, that is noted in the state, and the call may be made only once
    the state is kept."""
    phase = state.phase(now)
    if phase is Phase.CLOSED:
        return state, None
    if state.probe and now < (ends := state.probe.since + timedelta(seconds=policy.probe_s)):
        why = f"{state.probe.who} has been trying since {_text(state.probe.since)}"
        return state, BreakerRefusal(why, min(LOOK_AGAIN_S, (ends - now).total_seconds()))
    if phase is Phase.OPEN and not state.probe_ordered:
        assert state.open_until is not None
        return state, BreakerRefusal(f"open until {_text(state.open_until)}", (state.open_until - now).total_seconds())
    return state._replace(probe=Probe(who, now), probe_ordered=False), None


def failed(state: BreakerState, policy: BreakerPolicy, error: CodedError, now: datetime, who: str) -> BreakerState:
    """After the call of `who` failed. While it is open or half-open only the probe's failure changes anything: other
    calls that end now were begun before it opened."""
    if isinstance(error, BreakerOpen) or not policy.counts.holds_for(error):
        return released(state, who)
    if state.open_until is None:
        recent = (*within(state, policy, now), now)
        if len(recent) < policy.failures:
            return state._replace(failures=recent, code=str(error.code))
    elif not _is_probe(state, who):
        return state
    until = now + timedelta(seconds=policy.open_s)
    return BreakerState(open_until=until, opened_at=state.opened_at or now, code=str(error.code))


def succeeded(state: BreakerState, who: str) -> BreakerState:
    """After the call of `who` succeeded: the probe's success closes it. While it is closed nothing changes, for
    failures count within a window and not in a row."""
    return BreakerState() if _is_probe(state, who) else state


def released(state: BreakerState, who: str) -> BreakerState:
    """After the call of `who` ended in a way that says nothing: somebody else may probe."""
    return state._replace(probe=None) if _is_probe(state, who) else state


def probe_ordered(state: BreakerState) -> BreakerState:
    """After an operator ordered a probe: the next call is let through although it is open, that one alone. A breaker
    that is closed stays as it is."""
    return state if state.open_until is None else state._replace(probe_ordered=True)


def within(state: BreakerState, policy: BreakerPolicy, now: datetime) -> tuple[datetime, ...]:
    """The failures that still count."""
    since = now - timedelta(seconds=policy.window_s)
    return tuple(moment for moment in state.failures if moment > since)


def _is_probe(state: BreakerState, who: str) -> bool:
    return state.probe is not None and state.probe.who == who


# --- as it lies in a states ---


def encoded(state: BreakerState) -> Raw:
    probe = {"who": state.probe.who, "since": _text(state.probe.since)} if state.probe else None
    return {
        "failures": [_text(moment) for moment in state.failures],
        "open_until": _text(state.open_until) if state.open_until else None,
        "opened_at": _text(state.opened_at) if state.opened_at else None,
        "code": state.code,
        "probe": probe,
        "probe_ordered": state.probe_ordered,
    }


def decoded(raw: Raw | None) -> BreakerState:
    """Raises ValueError, naming the field."""
    if raw is None:
        return BreakerState()
    failures, probe = raw.get("failures") or [], raw.get("probe")
    if not isinstance(failures, list):
        raise ValueError("failures: is no list")  # noqa: TRY004  a document's fault, not a caller's
    if not (probe is None or (isinstance(probe, Mapping) and isinstance(probe.get("who"), str))):
        raise ValueError('probe: is no {"who", "since"}')
    if not isinstance(code := raw.get("code"), str | None):
        raise ValueError("code: is no text")  # noqa: TRY004
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


def _text(moment: datetime) -> str:
    """ISO 8601 in UTC, to the microsecond where there are some: a breaker may be open for less than a second."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _moment(field: str, value: Any) -> datetime:
    try:
        return parse_stamp(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{field}: {value!r} is no time") from error


def _moment_or_none(field: str, value: Any) -> datetime | None:
    return None if value is None else _moment(field, value)


# --- carried out ---


def breakers_of(bucket: Bucket, clock: Clock) -> BucketStateStore:
    """The states of the breakers in `bucket`: its root, for channels share them."""
    return BucketStateStore(bucket, BREAKERS, clock)


class Breaker:
    """The breaker called `name`. `owner` says who calls, for people («host:pid»). Thread safe, as its states is."""

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
        """What `work()` returns or raises, and note what it says about the other side's health.

        Raises BreakerOpen, with nothing called; StateError if the breaker's document makes no sense.
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
        """Leave to make one call, whose end is to be told by `failed`, `succeeded` or `release`. One read while it is
        closed. Raises BreakerOpen, StateError."""
        who, now = f"{self._owner}#{os.urandom(4).hex()}", self._clock.now()
        try:
            state = self._cell.get()
        except StorageError as error:
            _log.warning("the breaker %s cannot be asked, the call is made: %s", self.name, error)
            return Permit(who, probing=False)
        new, refusal = allow(state, self.policy, now, who)
        if new != state:
            refusal = self._claimed(who, now)
        if refusal:
            raise BreakerOpen(f"{self.name} has failed too often: {refusal.why}", refusal.wait_s)
        return Permit(who, probing=new != state)

    def failed(self, permit: Permit, error: CodedError) -> None:
        """The call ended with `error`. Never raises."""
        now = self._clock.now()
        self._noted(lambda state: failed(state, self.policy, error, now, permit.who))

    def succeeded(self, permit: Permit) -> None:
        """The call had its result. Never raises. Costs nothing, unless it was the probe."""
        if permit.probing:
            self._noted(lambda state: succeeded(state, permit.who))

    def release(self, permit: Permit) -> None:
        """The call says nothing about the other side. Never raises."""
        if permit.probing:
            self._noted(lambda state: released(state, permit.who))

    def state(self) -> BreakerState:
        """Raises StateError, StorageError."""
        return self._cell.get()

    def probe(self) -> BreakerState:
        """Let one call through, by an operator's order. The state then; closed: nothing was to be done.

        Raises StateError, StorageError.
        """
        return self._cell.change(lambda state: _both(probe_ordered(state)))

    def reset(self) -> BreakerState:
        """Close it, by an operator's order. Raises StateError, StorageError."""
        return self._cell.change(lambda state: _both(BreakerState()))

    def _claimed(self, who: str, now: datetime) -> BreakerRefusal | None:
        """Have the states take note that this call is the probe; without that it is none."""
        try:
            return self._cell.change(lambda state: allow(state, self.policy, now, who))
        except StorageError as error:
            _log.warning("the probe of the breaker %s could not be noted, it is not made: %s", self.name, error)
            return BreakerRefusal("a probe could not be noted", LOOK_AGAIN_S)

    def _noted(self, step: Callable[[BreakerState], BreakerState]) -> None:
        """Whatever goes wrong here, the call has had its result, which must not get lost."""
        try:
            old, new = self._cell.change(lambda state: ((new := step(state)), (state, new)))
        except RetakeError as error:
            _log.warning("the breaker %s was not told how a call ended: %s", self.name, error)
            return
        if new.open_until != old.open_until:
            how = f"open until {_text(new.open_until)} ({new.code})" if new.open_until else "closed again"
            _log.warning("the breaker %s is %s", self.name, how)


def _both(state: BreakerState) -> tuple[BreakerState, BreakerState]:
    return state, state
