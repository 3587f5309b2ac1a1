"""The verbs of /actions, carried out for one id by the same functions as the console's commands."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from retake.bucket import this_process
from retake.errors import LeaseHeld
from retake.operations.alerts import AlertPanel, change_alert
from retake.operations.breakers import BreakerPanel
from retake.operations.events import WEB
from retake.operations.letters import find_letter
from retake.operations.modes import ModePanel
from retake.operations.orders import Target, carry_out, loss, plan_order, target
from retake.operations.pipelines import Operations
from retake.operations.port import OperatedPipeline, OrderDone, Refusal, Verb
from retake.operations.several import Item
from retake.operations.unlocking import plan_unlock, unlock
from retake.retrying.breaker import BreakerPolicy

ON_RUNS = ("retry", "skip", "cancel")
ON_LETTERS = ("requeue", "drop")
ON_ALERTS = {"acknowledge": "ack", "close": "close"}  # as the console calls them
ON_BREAKERS = ("probe", "reset")
VERBS = (*ON_RUNS, *ON_LETTERS, *ON_ALERTS, "mode", *ON_BREAKERS, "unlock")

NO_CHANNEL = ("", "-")
MODES = ("0", "1", "2", "3", "auto")

_WAIT_S = 30.0
"""Seconds that an order waits for another order in this process about the same pipeline."""


class PreparedOrder(NamedTuple):
    """An order for one id that has not been carried out yet."""

    about: str  # orders about the same thing are carried out one at a time
    do: Callable[[], OrderDone]
    lost: str = ""  # a sentence that says what would be lost, and must be agreed to; "" for nothing
    bound: str = ""  # the part of the sentence that the agreement is bound to, if not all of it

    @property
    def agreement(self) -> str:
        """The text that an agreement is bound to. If it changes, agreement must be asked for again."""
        return self.bound or self.lost


class Verbs:
    """Prepares and carries out orders. `policies` has the policy of each breaker that is not a vendor's, by name;
    `environ` has the secrets of the alerts' channels."""

    def __init__(
        self, operations: Operations, environ: Mapping[str, str], policies: Mapping[str, BreakerPolicy]
    ) -> None:
        self._operations = operations
        self._environ, self._policies = environ, policies
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}

    def items(self, verb: str, ids: list[str], channel: str) -> list[Item]:
        """Return the items that `ids` name. The id of a dead letter may be CHANNEL/ID."""
        named = None if channel in NO_CHANNEL else channel
        if verb == "unlock":
            return [Item("" if it in NO_CHANNEL else it, named) for it in ids or [""]]
        known = {*filter(None, map(self._operations.named_as, self._operations.pipelines))}
        found = []
        for text in ids:
            before, slash, name = text.partition("/")
            split = verb in ON_LETTERS and slash and before in known and named in (None, before)
            found.append(Item(name, before) if split else Item(text, named))
        return found

    def prepare(self, verb: str, item: Item) -> PreparedOrder:
        """Prepare an order for one item. Raises Refusal, RunError, StateError, StorageError."""
        if verb in ON_ALERTS:
            alerts = AlertPanel(self._operations, self._environ)
            return PreparedOrder("alerts", lambda: change_alert(alerts, ON_ALERTS[verb], item.name, WEB))
        if verb in ON_BREAKERS:
            breakers = BreakerPanel(self._operations, self._policies, this_process())
            return PreparedOrder("breakers", lambda: breakers.change(verb, item.name))
        if verb == "mode":
            return PreparedOrder("mode", lambda: self._set_mode(item.name))
        operations = narrow(self._operations, item.channel)
        if verb == "unlock":
            return _unlocking(operations, item.name)
        if verb not in ON_LETTERS:
            return _order(operations, target(operations, item.name), Verb(verb))
        letter = find_letter(operations, item.name)
        if verb == "requeue":
            return _order(operations, Target(letter.pipeline, letter.letter.id, None), Verb.REQUEUE)

        def drop() -> OrderDone:
            document = letter.drop()
            return OrderDone(document, document["what"])

        return PreparedOrder(letter.pipeline.name, drop, letter.loss)

    def carry_out(self, prepared: PreparedOrder) -> OrderDone:
        """Carry out an order, after any other about the same thing. Raises what the order raises, and LeaseHeld."""
        with self._exclusive(prepared.about):
            return prepared.do()

    def _set_mode(self, text: str) -> OrderDone:
        """Set the mode unless it is set already, so that a double tap does not change when it began."""
        panel = ModePanel(self._operations)
        state, wanted = panel.state(), int(text) if text != "auto" else None
        if wanted is None:
            return panel.changed("auto", panel.auto() if state.hand else state)
        hand = state.hand
        same = hand is not None and (hand.mode, hand.until) == (wanted, None)
        return panel.changed("set", state if same else panel.set(wanted, None, "set on the dashboard"))

    @contextmanager
    def _exclusive(self, about: str) -> Iterator[None]:
        with self._lock:
            lock = self._locks.setdefault(about, threading.Lock())  # bounded: one per pipeline, and three more
        if not lock.acquire(timeout=_WAIT_S):
            raise LeaseHeld(f"{about} is being changed by another request: try again in a moment")
        try:
            yield
        finally:
            lock.release()


def narrow(operations: Operations, channel: str | None) -> Operations:
    """Return the operations on one of the CHANNELS or PIPELINES, on music or the only story, or all of them for None.
    Raises Refusal."""
    if channel is None:
        return operations
    found = [it for it in operations.pipelines if channel == (operations.named_as(it) or it.name)]
    if found:
        return operations.of(found[:1], named=True)
    own = operations.terms.own_pipelines
    named = ", ".join((*(it.channel for it in operations.pipelines if it.channel), *own))
    if own:
        raise Refusal(f"{channel!r} is none of the CHANNELS and PIPELINES ({named})")
    if not named:
        raise Refusal(f"{channel!r} is named as the channel, but the settings have no CHANNELS: leave it out")
    raise Refusal(f"{channel!r} is not one of the CHANNELS ({named})")


def _order(operations: Operations, meant: Target, verb: Verb) -> PreparedOrder:
    plan = plan_order(meant, verb)
    return PreparedOrder(meant.pipeline.name, lambda: carry_out(operations, meant, plan), loss(meant, plan))


def _unlocking(operations: Operations, name: str) -> PreparedOrder:
    plan = plan_unlock(_find_pipeline(operations, name), operations.clock, operations.actor)

    def free() -> OrderDone:
        done = unlock(plan)
        return OrderDone(done.document, done.document["what"], done.then)

    bound = f"{plan.pipeline.name} {plan.holder.owner}" if plan.lost and plan.holder else ""
    return PreparedOrder(plan.pipeline.name, free, plan.lost, bound)


def _find_pipeline(operations: Operations, name: str) -> OperatedPipeline:
    """Return the pipeline with that name or channel, or the only one if `name` is empty. Raises Refusal."""
    found = [it for it in operations.pipelines if name in ("", it.name, it.channel)]
    if len(found) == 1 or (found and not name and found[0].channel is None):
        return found[0]
    named = ", ".join(it.channel or it.name for it in operations.pipelines)
    if name:
        raise Refusal(f"there is no pipeline {name!r}; there are: {named}")
    raise Refusal(f"this is about one of the CHANNELS ({named}): name it as the channel")
