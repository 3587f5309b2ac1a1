"""Failures on demand, for testing code that makes calls: docs/protocol.md, section "Failure injection".

    NAME[#CALLS]=MODE[-after]       NAME identifies the call; CALLS counts from 1; MODE is one of MODES

    pay#2=timeout                   the second call gets no answer in time; nothing was done
    pay#2=timeout-after             it was carried out, but its answer was lost
    job=transient_error             every call is refused: the server is unavailable
    job#1-3=process_restart_interrupt          the process dies before the work of the first three calls
    job#1=process_restart_interrupt-after      the work is done, but the process dies before it is reported

A call that fails before its work raises Refused. One that fails after it raises OutcomeUnknown, since the caller cannot
know that the work was done. `timeout_as=PollFailed` sets another error for timeouts.

The death of the process is simulated by `retake.bucket.failing.Crash`, which no `except Exception` catches.

>>> from retake.errors import Refused
>>> ask = inject(lambda question: f"{question} yes", "ask#2=transient_error", name="ask")
>>> ask("ready?")
'ready? yes'
>>> try:
...     ask("ready?")
... except Refused as error:
...     print(error.code, error.error_class.value)
ERR_TEMPORARY_UNAVAILABLE A
>>> ask("ready?")
'ready? yes'
"""

from collections.abc import Callable
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar

from retake.bucket.failing import Crash
from retake.calls import CallCounter, Parts, Span, meets, parse_parts
from retake.errors import Code, OutcomeUnknown, Refused, VendorError

P = ParamSpec("P")
R = TypeVar("R")

TIMEOUT = "timeout"
TRANSIENT_ERROR = "transient_error"
PROCESS_RESTART_INTERRUPT = "process_restart_interrupt"

MODES = {
    TIMEOUT: "no answer in time: class A, ERR_TEMPORARY_TIMEOUT",
    TRANSIENT_ERROR: "the server says that it is unavailable: class A, ERR_TEMPORARY_UNAVAILABLE",
    PROCESS_RESTART_INTERRUPT: "the process dies",
}
"""The failure modes, with explanations."""

AFTER = "-after"
_DONE_ALREADY = (TIMEOUT, PROCESS_RESTART_INTERRUPT)  # a server that is unavailable has not done the work


class Injection(NamedTuple):
    """Calls of `name` within `spans` fail in `mode`; no spans means every call."""

    name: str
    mode: str  # one of MODES
    after: bool = False  # after the work instead of before it
    spans: tuple[Span, ...] = ()

    def meets(self, name: str, n: int) -> bool:
        """Return whether call number `n` (from 1) of `name` is to fail."""
        return name == self.name and meets(self.spans, n)

    def __str__(self) -> str:
        return str(Parts(self.name, self.spans, f"{self.mode}{AFTER if self.after else ''}"))


def parse_injection(text: str) -> Injection:
    """Return the failure that `text` orders. Raises ValueError, whose message names the fault and the choices."""
    parts = parse_parts(text)
    if not parts:
        raise ValueError(f"{text!r} orders no failure: write NAME[#CALLS]=MODE, such as job#2=timeout. {_possible()}")
    mode = parts.fault.removesuffix(AFTER)
    after = parts.fault.endswith(AFTER)
    if mode not in MODES or (after and mode not in _DONE_ALREADY):
        raise ValueError(f"{parts.fault!r} is not a mode of failing. {_possible()}")
    return Injection(parts.kind, mode, after, parts.spans)


class FailureInjection:
    """Failures for several callables. Each is wrapped under a name, and calls are counted by name.

    The first order that matches a call applies. `timeout_as` is what a timeout raises. The default is Refused before
    the work and OutcomeUnknown after it. Thread safe.
    """

    def __init__(self, *orders: str, timeout_as: type[VendorError] | None = None) -> None:
        self.orders = tuple(parse_injection(order) for order in orders)
        self._timeout_as = timeout_as
        self._counter = CallCounter()

    def around(self, name: str, call: Callable[P, R]) -> Callable[P, R]:
        """Return `call` with the failures that are ordered for `name`."""

        @wraps(call)
        def failing(*args: P.args, **kwargs: P.kwargs) -> R:
            number = self._counter.next(name)
            met = next((it for it in self.orders if it.meets(name, number)), None)
            if met is None:
                return call(*args, **kwargs)
            if met.after:
                call(*args, **kwargs)  # may raise an error of its own
            raise self._error(met, f"call {number} of {name} failed as ordered ({met})")

        return failing

    def _error(self, met: Injection, text: str) -> BaseException:
        if met.mode == PROCESS_RESTART_INTERRUPT:
            return Crash(text)
        if met.mode == TRANSIENT_ERROR:
            return Refused(Code.UNAVAILABLE, text)
        kind = self._timeout_as or (OutcomeUnknown if met.after else Refused)
        return kind(Code.TIMEOUT, text)


def inject(
    call: Callable[P, R], *orders: str, name: str = "job", timeout_as: type[VendorError] | None = None
) -> Callable[P, R]:
    """Return `call`, known as `name`, with the failures that `orders` name; see FailureInjection.

    Raises ValueError for an invalid order, and for one with another name, which would never apply.
    """
    injection = FailureInjection(*orders, timeout_as=timeout_as)
    if strangers := sorted({it.name for it in injection.orders} - {name}):
        raise ValueError(f"{', '.join(strangers)}: no call has that name here, only {name}")
    return injection.around(name, call)


def _possible() -> str:
    after = ", ".join(f"{mode}{AFTER}" for mode in _DONE_ALREADY)
    return f"Modes: {', '.join(MODES)}; once the work is done: {after}."
