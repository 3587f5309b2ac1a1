"""An operator's view of the degraded mode, and setting it."""

from datetime import timedelta
from typing import Any

from retake.clock import stamp
from retake.degraded.mode import FULL, Hand, Mode, ModeState, mode_at, robots, with_end
from retake.degraded.store import ModeStore
from retake.operations.pipelines import Operations
from retake.operations.port import OrderDone

SET_BY = {
    "default": "nobody: it is the default",
    "operator": "an operator",
    "schedule": "the schedule",
    "auto": "the share of failed tries",
}
"""Who or what set a mode, in words."""


def mode_notes(operations: Operations) -> list[str]:
    """Return a note about the mode, unless everything runs. Raises StateError, StorageError."""
    panel = ModePanel(operations)
    mode = panel.mode(panel.state())
    if mode.mode == FULL:
        return []
    until = f", until {mode.until}" if mode.until else ""
    why = f": {mode.why}" if mode.why else ""
    return [f"{mode.title}, by {SET_BY[mode.by]}{until}{why}"]


class ModePanel:
    """The mode of a bucket. Every method may raise StateError and StorageError."""

    def __init__(self, operations: Operations) -> None:
        self._store = ModeStore(operations.bucket, operations.clock)
        self._clock, self._terms = operations.clock, operations.terms

    def state(self) -> ModeState:
        return self._store.read()

    def mode(self, state: ModeState) -> Mode:
        """Return the mode in force now, and until when."""
        given = (self._terms.modes, self._terms.alerts.timezone, self._clock.now())
        return with_end(mode_at(state, *given), *given)

    def set(self, mode: int, length_s: float | None, why: str) -> ModeState:
        """Set the mode by hand for `length_s` seconds, or until it is set again."""
        now = self._clock.now()
        until = stamp(now + timedelta(seconds=length_s)) if length_s is not None else None
        hand = Hand(mode, why, stamp(now), until)
        return self._store.change(lambda state: state._replace(hand=hand))

    def auto(self) -> ModeState:
        """Leave the mode to the schedule and to the share of failed tries."""
        return self._store.change(lambda state: state._replace(hand=None))

    def changed(self, verb: str, state: ModeState) -> OrderDone:
        """Return what was done. `verb` is "set" or "auto", `state` its result."""
        mode = self.mode(state)
        until = f", until {mode.until}" if mode.until else ""
        what = f"mode {mode.mode} is in force{until}: {mode.words}"
        return OrderDone({**self.document(state), "done": verb, "what": what}, what, "it applies from the next tick")

    def document(self, state: ModeState) -> dict[str, Any]:
        """Return the JSON document."""
        mode = self.mode(state)
        auto = state.auto
        return {
            "mode": mode.mode,
            "by": mode.by,
            "why": mode.why,
            "since": mode.since,
            "until": mode.until,
            "auto": {"mode": auto.mode, "error_share": auto.error_share, "tries": auto.tries},
            "robots": [f"NR.NSI.{number}" for number in robots(mode.mode)],
        }
