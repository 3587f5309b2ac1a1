"""What follows ticks that did something: a look at what all pipelines share."""

from collections.abc import Sequence

from retake.alerts.conditions import Findings, breaker_open
from retake.degraded.mode import Mode
from retake.operations.breakers import breaker_states, open_breakers
from retake.operations.pipelines import Operations


def after_work(operations: Operations, mode: Mode) -> Sequence[Findings]:
    """Return what is wrong with what all pipelines share. Raises StorageError."""
    return [_breakers(operations)]


def _breakers(operations: Operations) -> Findings:
    found = [
        breaker_open(it["name"], it["opened_at"] or "", str(it["code"] or ""))
        for it in open_breakers(breaker_states(operations), operations.clock.now())
    ]
    return Findings("", frozenset({"breaker_open"}), tuple(found))
