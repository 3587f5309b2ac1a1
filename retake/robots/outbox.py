"""An outbox: messages that are delivered at least once, in order (docs/protocol.md, section "NR.NSI.8").

    outbox = Outbox(store, clock)
    outbox.put("link-7", {"stock": 1, "scrap": 2})    # together with the change that it announces
    outbox.deliver(post)                              # periodically, from any process

`put` a message before the change that it announces is finished, and repeat both after a crash: the id makes them one
message. There are no timers: a program that runs periodically delivers.
"""

import os
from collections.abc import Callable
from datetime import datetime, timedelta
from logging import getLogger
from typing import Any, NamedTuple

from retake.bucket import this_process
from retake.bucket.claims.lease import LeaseClock
from retake.clock import Clock, exact_stamp, is_ahead, parse_stamp
from retake.errors import RetakeError
from retake.retrying.state_store import Raw, StateCell, StateStore
from retake.robots.backlog import Backlog, BacklogItem

CLAIM_S = 60.0
"""Seconds for which a delivery keeps others from delivering, renewed between messages.

If the deliverer dies, another process on its machine notices at once, one on another machine only after this time.
"""

_log = getLogger(__name__)
_delivering: set[str] = set()
"""The deliveries in progress in this process."""


class OutboxClaim(NamedTuple):
    """The right to deliver."""

    by: str  # "host:pid#9f3c…", different for each delivery
    until: datetime


class Outbox:
    """The messages in `store`. Every method may raise StateError, StorageError."""

    def __init__(self, store: StateStore, clock: Clock) -> None:
        self._backlog = Backlog(store, "outbox", clock)
        self._claim = StateCell(store, "outbox-claim", _decoded, _encoded)
        self._clock, self._term = clock, LeaseClock(clock)

    def put(self, id: str, message: Any) -> bool:  # noqa: A002  the name that callers use
        """Keep `message` until it is delivered and return True; return False for a known id.

        An id stays known for ever, even after its message is delivered. Raises ValueError for a message that is not
        JSON.
        """
        return self._backlog.put(id, message, replace=False)

    def deliver(self, send: Callable[[Any], object]) -> int:
        """Call `send(message)` for each waiting message, in the order of `put`, and return how many were delivered.

        The first failure is logged and stops the delivery; that message and the ones after it wait for the next call. A
        message is sent a second time if this process dies, or its claim expires, before its delivery is recorded. While
        another delivery is in progress nothing is sent, and 0 is returned. Raises Stopped and LeaseLost of `send`.
        """
        if not self._backlog.keys():
            return 0
        me = f"{this_process()}#{os.urandom(4).hex()}"
        _delivering.add(me)
        try:
            return self._delivered(me, send) if self._claimed(me) else 0
        finally:
            _delivering.discard(me)

    def _delivered(self, me: str, send: Callable[[Any], object]) -> int:
        claimed_at = self._term.mark()

        def hand_over(item: BacklogItem) -> None:
            nonlocal claimed_at
            if self._term.at_most(claimed_at) >= CLAIM_S / 2:
                claimed_at = self._term.mark()
                if not self._renewed(me):
                    raise RetakeError("another process has taken over the delivery")
            send(item.value)

        try:
            return self._backlog.drain(hand_over)
        finally:
            self._release(me)

    def _claimed(self, me: str) -> bool:
        """Take the claim; return False if another delivery is in progress."""
        now = self._clock.now()

        def step(claim: OutboxClaim | None) -> tuple[OutboxClaim | None, bool]:
            held = claim is not None and claim.by != me and is_ahead(claim.until, now, longest_s=CLAIM_S)
            if claim and held and _is_under_way(claim.by):
                return claim, False
            return OutboxClaim(me, now + timedelta(seconds=CLAIM_S)), True

        return self._claim.change(step)

    def _renewed(self, me: str) -> bool:
        """Renew the claim, even if it has expired; return False if another delivery has taken it."""
        until = self._clock.now() + timedelta(seconds=CLAIM_S)

        def step(claim: OutboxClaim | None) -> tuple[OutboxClaim | None, bool]:
            return (OutboxClaim(me, until), True) if claim and claim.by == me else (claim, False)

        return self._claim.change(step)

    def _release(self, me: str) -> None:
        try:
            self._claim.update(lambda claim: None if claim and claim.by == me else claim)
        except RetakeError as error:  # it expires
            _log.warning("the claim of a delivery could not be released: %s", error)


def _is_under_way(who: str) -> bool:
    """Return False if the delivery has certainly ended. Nothing is known about other machines."""
    host, _, process = who.partition("#")[0].rpartition(":")
    if host != os.uname().nodename or not process.isdecimal():
        return True
    if int(process) == os.getpid():
        return who in _delivering
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _encoded(claim: OutboxClaim | None) -> Raw:
    return {"by": claim.by, "until": exact_stamp(claim.until)} if claim else {}


def _decoded(raw: Raw | None) -> OutboxClaim | None:
    if not raw:
        return None
    try:
        return OutboxClaim(str(raw["by"]), parse_stamp(raw["until"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"is not a claim ({error})") from error
