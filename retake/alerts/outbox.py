"""The queues of the channels: who sends, what is due, and what follows from the result. Pure.

Messages are delivered at least once, and in order within a channel. A sender claims a channel before it sends, and
releases it with the result. A claim expires, so a sender that died blocks its channel for at most the time of one
delivery. A claim counts as a failed try until it has a result. A tick that ends before its channels have answered
records that (`abandoned`), so that a channel that hangs is tried as rarely as one that fails.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from math import ceil
from typing import NamedTuple

from retake.alerts.board import Board, ChannelQueue, QueuedMessage
from retake.alerts.message import MAX_WAIT_S, Ending, Sent
from retake.alerts.settings import AlertSettings
from retake.clock import is_ahead, parse_stamp, stamp

_MAX_PAUSE_S = 600.0
_MAX_MESSAGE_AGE = timedelta(days=7)
_NO_ANSWER = "the sender ended before there was an answer"


class SendClaim(NamedTuple):
    """The messages of one channel that only the claiming sender may send, in order, `until` the claim expires."""

    channel: str
    deliveries: tuple[QueuedMessage, ...]
    until: str


class SendClaims(NamedTuple):
    """The claims that were made."""

    board: Board
    claims: tuple[SendClaim, ...]
    dropped: tuple[QueuedMessage, ...]  # too old to be useful


def has_waiting(outbox: ChannelQueue, now: datetime) -> bool:
    """Return whether a message waits that is not too old to be useful."""
    return any(_is_young(it, now) for it in outbox.queue)


def _is_young(message: QueuedMessage, now: datetime) -> bool:
    return now - parse_stamp(message.at) < _MAX_MESSAGE_AGE


def due(outbox: ChannelQueue, settings: AlertSettings, now: datetime) -> bool:
    """Return whether a channel has a message that may be sent now."""
    return bool(outbox.queue) and not any(_is_ahead(it, settings, now) for it in (outbox.sending_until, outbox.next_at))


def being_sent(board: Board, settings: AlertSettings, now: datetime) -> list[str]:
    """Return the channels that a sender has claimed, and whose claim has not expired."""
    return [name for name, it in board.channels.items() if _is_ahead(it.sending_until, settings, now)]


def _is_ahead(time: str | None, settings: AlertSettings, now: datetime) -> bool:
    longest_s = max(MAX_WAIT_S, settings.retry_seconds, settings.timeout_seconds)
    return bool(time and is_ahead(parse_stamp(time), now, longest_s=longest_s))


def claimed(board: Board, settings: AlertSettings, now: datetime, *, only: str | None = None) -> SendClaims:
    """Claim the channels that are due, or `only` the one of this name."""
    names = {it.name for it in settings.channels if only in (None, it.name)}
    channels, claims, dropped = dict(board.channels), [], []
    for name, outbox in board.channels.items():
        if name not in names:
            continue
        young = tuple(it for it in outbox.queue if _is_young(it, now))
        dropped += [it for it in outbox.queue if it not in young]
        outbox = channels[name] = outbox._replace(queue=young)
        if due(outbox, settings, now):
            if outbox.sending_until:  # its sender died or was abandoned: the first message may have been sent
                young = (young[0]._replace(again=True), *young[1:])
                outbox = outbox._replace(queue=young)
            until = _stamp_after(now, settings.timeout_seconds)
            claims.append(SendClaim(name, young, until))
            channels[name] = _claimed(outbox, until)
    return SendClaims(board._replace(channels=channels), tuple(claims), tuple(dropped))


def released(
    board: Board, claim: SendClaim, results: Mapping[str, Sent], settings: AlertSettings, now: datetime
) -> Board:
    """Return the board with a channel released and the results of its claim, by message id. If the claim has expired
    and another sender has claimed the channel, the other claim stays."""
    outbox = board.channels.get(claim.channel)
    if outbox is None:
        return board
    after = outbox._replace(sending_until=None, next_at=None, failures=max(0, outbox.failures - 1))
    for delivery in outbox.queue:
        outcome = results.get(delivery.id)
        if outcome:
            after = _ended(after, delivery, outcome, settings, now)
    if outbox.sending_until not in (None, claim.until):
        after = _claimed(after, outbox.sending_until)._replace(failures=outbox.failures)
    return board._replace(channels={**board.channels, claim.channel: after})


def progressed(
    board: Board, claim: SendClaim, delivery: str, outcome: Sent, settings: AlertSettings, now: datetime
) -> Board:
    """Return the board after a try of the message with the id `delivery`, which is not the last of its claim. It leaves
    the queue, and the claim stays, even if nobody waits for the answer any more (`abandoned`).

    A tick waits for its channels only for a short time. Without this, a queue that takes longer would start over in
    each tick and never be finished.
    """
    after = released(board, claim, {delivery: outcome}, settings, now)
    outbox = after.channels.get(claim.channel)
    if outbox is None or outbox.sending_until:
        return after
    return after._replace(channels={**after.channels, claim.channel: _claimed(outbox, claim.until)})


def abandoned(board: Board, channel: str, settings: AlertSettings, now: datetime) -> Board:
    """Return the board after the sender of a channel stopped waiting for an answer, which counts as a failed try. If
    an answer arrives after all, `released` corrects that."""
    outbox = board.channels.get(channel)
    if outbox is None or outbox.sending_until is None:
        return board
    before = outbox._replace(failures=max(0, outbox.failures - 1))
    return board._replace(channels={**board.channels, channel: _failed(before, settings, now, _NO_ANSWER)})


def tested(board: Board, outcomes: Mapping[str, Sent], now: datetime) -> Board:
    """Return the board after a test message was sent to channels, by name. A delivery shows that a channel works."""
    channels = dict(board.channels)
    for name, outcome in outcomes.items():
        outbox = channels.get(name, ChannelQueue())
        if outcome.how is Ending.DELIVERED:
            outbox = ChannelQueue(outbox.queue, outbox.sending_until, last_delivered_at=stamp(now))
        elif outcome.how is Ending.REFUSED:
            outbox = outbox._replace(last_error=outcome.why, refused_at=stamp(now))
        channels[name] = outbox
    return board._replace(channels=channels)


def _ended(
    outbox: ChannelQueue, delivery: QueuedMessage, outcome: Sent, settings: AlertSettings, now: datetime
) -> ChannelQueue:
    rest = tuple(it for it in outbox.queue if it.id != delivery.id)
    match outcome.how:
        case Ending.DELIVERED:
            return ChannelQueue(rest, last_error=outcome.why or None, last_delivered_at=stamp(now))
        case Ending.REFUSED:
            return outbox._replace(queue=rest, failures=0, last_error=outcome.why, refused_at=stamp(now))
        case Ending.FAILED:
            told = delivery.again or outcome.maybe or bool(outcome.done)
            tried = delivery._replace(done=outcome.done, again=told)
            queue = tuple(tried if it.id == delivery.id else it for it in outbox.queue)
            return _failed(outbox._replace(queue=queue), settings, now, outcome.why, outcome.retry_after_s)


def _claimed(outbox: ChannelQueue, until: str) -> ChannelQueue:
    return outbox._replace(sending_until=until, next_at=None, failures=outbox.failures + 1, last_error=_NO_ANSWER)


def _failed(
    outbox: ChannelQueue, settings: AlertSettings, now: datetime, why: str, retry_after_s: float | None = None
) -> ChannelQueue:
    pause_s = min(settings.retry_seconds * 2.0 ** min(outbox.failures, 30), max(_MAX_PAUSE_S, settings.retry_seconds))
    next_at = _stamp_after(now, pause_s if retry_after_s is None else retry_after_s)
    return outbox._replace(next_at=next_at, failures=outbox.failures + 1, last_error=why)


def _stamp_after(now: datetime, seconds: float) -> str:
    """Return a stamp that is not earlier than `seconds` after `now`, although stamps have whole seconds."""
    return stamp(now + timedelta(seconds=ceil(seconds + now.microsecond / 1e6)))
