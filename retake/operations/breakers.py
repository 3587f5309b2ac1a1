"""The circuit breakers, which all pipelines share: their states, and an operator's probe and reset."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from retake.clock import Clock, stamp
from retake.errors import RetakeError, StateError
from retake.operations.pipelines import Operations, Terms
from retake.operations.port import OrderDone, Refusal
from retake.operations.words import span
from retake.plural import count
from retake.retrying.breaker import Breaker, BreakerPolicy, BreakerState, Phase, breakers_of, decoded, within
from retake.ticking.vendor_breakers import refusal, vendor_policy

BreakerStates = Mapping[str, BreakerState | str]
"""The breakers on record by name: the state of each, or the fault in its document."""


def breaker_states(operations: Operations) -> BreakerStates:
    """Return all breakers on record. Raises StorageError."""
    store, found = breakers_of(operations.bucket, operations.clock), dict[str, BreakerState | str]()
    for name in store.names():
        try:
            found[name] = decoded(store.read(name))
        except (RetakeError, ValueError) as error:
            found[name] = str(error)
    return found


def open_breakers(states: BreakerStates, now: datetime) -> list[dict[str, Any]]:
    """Return the JSON documents of the breakers that are not closed."""
    found = []
    for name, state in states.items():
        if isinstance(state, str):
            found.append({"name": name, "phase": "unreadable", "opened_at": None, "open_until": None, "code": state})
        elif (phase := state.phase(now)) is not Phase.CLOSED:
            opened, until = (stamp(it) if it else None for it in (state.opened_at, state.open_until))
            found.append({"name": name, "phase": phase, "opened_at": opened, "open_until": until, "code": state.code})
    return found


def vendor_off(operations: Operations, states: BreakerStates) -> Callable[[str], str]:
    """Return a function that maps a vendor's name to the reason why no call is made to it now, or to ""."""

    def off(vendor: str) -> str:
        state, terms = states.get(vendor), operations.terms
        if state is None or terms.breaker.failures is None:
            return ""
        if isinstance(state, str):
            return f"the document of the breaker {vendor} is invalid: {state}"
        return refusal(terms.breaker, state, vendor, operations.clock.now(), terms.script_timeout_s)

    return off


class BreakerView(NamedTuple):
    """A breaker at one moment."""

    breaker: Breaker
    state: BreakerState
    now: datetime
    fault: str = ""  # what is wrong with its document; the state is then that of a new breaker

    @property
    def phase(self) -> Phase:
        return self.state.phase(self.now)

    @property
    def policy(self) -> BreakerPolicy:
        return self.breaker.policy

    @property
    def recent(self) -> tuple[datetime, ...]:
        """The times of the failures within the window."""
        return within(self.state, self.policy, self.now)

    @property
    def prober(self) -> str | None:
        """The owner of the probe under way, or None if there is none or its result is overdue."""
        probe = self.state.probe
        if probe is None or self.now >= probe.since + timedelta(seconds=self.policy.probe_s):
            return None
        return probe.who.partition("#")[0]

    @property
    def words(self) -> str:
        match self.phase:
            case _ if self.fault:
                return f"unreadable, and no call is made: {self.fault}"
            case Phase.CLOSED:
                return "closed: calls are let through"
            case Phase.OPEN if self.state.probe_ordered:
                return "open, and the next call is let through: the operator ordered a probe"
            case Phase.OPEN:
                return "open: no call is made"
            case _ if self.prober is not None:
                return f"half-open: {self.prober} is trying, other calls wait for the outcome"
            case _:
                return "half-open: the next call is let through, alone"

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        state = self.state
        return {
            "name": self.breaker.name,
            "state": "unreadable" if self.fault else self.phase,
            "in_words": self.words,
            "failures": len(self.recent),
            "opens_at_failures": self.policy.failures,
            "window_s": self.policy.window_s,
            "open_until": stamp(state.open_until) if state.open_until else None,
            "opened_at": stamp(state.opened_at) if state.opened_at else None,
            "last_error_code": state.code,
            "probing": self.prober,
            "probe_ordered": state.probe_ordered,
        }


class BreakerPanel:
    """Shows and operates breakers. `policies` has the policy of each breaker that is not a vendor's, by name."""

    def __init__(self, operations: Operations, policies: Mapping[str, BreakerPolicy], owner: str) -> None:
        self._store = breakers_of(operations.bucket, operations.clock)
        self._clock: Clock = operations.clock
        self._default_policy = _vendor_policy(operations.terms)
        self._policies = policies
        self._owner = owner

    def names(self) -> list[str]:
        return [*self._store.names()]

    def views(self) -> list[BreakerView]:
        """Return all breakers, including those with an invalid document. Raises StorageError."""
        return [self._view_or_fault(name) for name in self.names()]

    def view(self, name: str) -> BreakerView:
        """Return one breaker. Raises Refusal if it is not on record, StateError if its document is invalid."""
        if name not in (names := self.names()):
            there = f"there are: {', '.join(names)}" if names else "none has counted a failure yet"
            raise Refusal(f"there is no breaker {name!r} on record; {there}")
        breaker = self._breaker(name)
        return BreakerView(breaker, breaker.state(), self._clock.now())

    def _view_or_fault(self, name: str) -> BreakerView:
        breaker = self._breaker(name)
        try:
            return BreakerView(breaker, breaker.state(), self._clock.now())
        except StateError as error:
            return BreakerView(breaker, BreakerState(), self._clock.now(), str(error))

    def _breaker(self, name: str) -> Breaker:
        policy = self._policies.get(name, self._default_policy)
        return Breaker(name, self._store, policy, clock=self._clock, owner=self._owner)

    def change(self, verb: str, name: str) -> OrderDone:
        """Carry out `verb`, "probe" or "reset", and return what was done. Raises Refusal."""
        if verb == "probe":
            it, what = self.probe(name), f"one call is let through the breaker {name}"
            then = "the next call, at the next tick, is the one; its result decides"
        else:
            it, what = self.reset(name), f"the breaker {name} is closed"
            then = f"it opens again after {count(it.policy.failures, 'failure')} within {span(it.policy.window_s)}"
        return OrderDone({"done": verb, "what": what, "next": then, "breaker": it.document()}, what, then)

    def probe(self, name: str) -> BreakerView:
        """Let one call through an open breaker. Raises Refusal."""
        it = self.view(name)
        if it.phase is Phase.CLOSED:
            raise Refusal(f"the breaker {name} is closed: every call is let through, there is nothing to probe")
        if it.prober is not None:
            raise Refusal(f"{it.prober} is already trying; wait for the outcome, or reset {name}")
        if it.phase is Phase.HALF_OPEN or it.state.probe_ordered:
            why = "it is due" if it.phase is Phase.HALF_OPEN else "a probe is ordered"
            raise Refusal(f"the next call is let through the breaker {name} anyway: {why}")
        state = it.breaker.probe()
        if state.open_until is None:
            raise Refusal(f"the breaker {name} has closed meanwhile: every call is let through")
        return it._replace(state=state)

    def reset(self, name: str) -> BreakerView:
        """Close a breaker. Raises Refusal."""
        it = self.view(name)
        if it.phase is Phase.CLOSED and not it.recent:
            raise Refusal(f"the breaker {name} is closed and nothing failed recently: there is nothing to reset")
        return it._replace(state=it.breaker.reset())


def _vendor_policy(terms: Terms) -> BreakerPolicy:
    if terms.breaker.failures is None:
        return BreakerPolicy()
    return vendor_policy(terms.breaker, terms.script_timeout_s)
