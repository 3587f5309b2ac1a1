"""Sends queued messages, each channel in a thread of its own, so that one that hangs delays no other."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from logging import getLogger
from threading import Thread
from threading import enumerate as enumerate_threads
from typing import TypeVar

from retake.alerts.board import Board, QueuedMessage
from retake.alerts.message import Ending, Message, Sent
from retake.alerts.outbox import SendClaim, SendClaims, abandoned, claimed, progressed, released
from retake.alerts.settings import AlertChannel, AlertSettings
from retake.alerts.store import BoardStore
from retake.clock import Clock
from retake.errors import RetakeError

_log = getLogger(__name__)

T = TypeVar("T")

Send = Callable[[AlertChannel, str, Message, float, tuple[str, ...]], Sent]
"""Sends one message: (channel, secret, message, maximum seconds, recipients that already have it)."""


_THREAD = "alerts-"
"""The prefix of the names of sending threads."""


def is_sending() -> bool:
    """Return whether this process is sending a message to a channel."""
    return any(it.name.startswith(_THREAD) for it in enumerate_threads())


class Sender:
    """Sends the messages that are due. `environ` holds the channels' secrets."""

    def __init__(
        self,
        store: BoardStore,
        settings: AlertSettings,
        environ: Mapping[str, str],
        clock: Clock,
        send: Send | None = None,
    ) -> None:
        self._store, self._settings, self._environ, self._clock = store, settings, environ, clock
        self._send = send
        self._threads: dict[str, Thread] = {}  # by channel

    def start(self) -> list[str]:
        """Claim the channels that are due, start sending, and return their names. Raises StateError, StorageError.

        The threads die with the process: a channel that hangs does not delay its exit.
        """
        now = self._clock.now()

        def claim(board: Board) -> tuple[Board, SendClaims]:
            made = claimed(board, self._settings, now)
            return made.board, made

        made = self._store.change(claim)
        for it in _logged(made).claims:
            thread = Thread(target=self._work, args=(it,), name=f"{_THREAD}{it.channel}", daemon=True)
            thread.start()
            self._threads[it.channel] = thread
        return [it.channel for it in made.claims]

    def wait(self, seconds: float) -> bool:
        """Wait until all messages are sent, for at most `seconds`, and return whether they are."""
        deadline = time.monotonic() + seconds
        for thread in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))
        self._threads = {name: it for name, it in self._threads.items() if it.is_alive()}
        now = self._clock.now()
        for name in self._threads:
            self._save(name, lambda board, name=name: abandoned(board, name, self._settings, now))  # type: ignore[misc]
        return not self._threads

    def _work(self, claim: SendClaim) -> None:
        """Send the messages of the claim, and then those that have been queued meanwhile."""
        claims: tuple[SendClaim, ...] = (claim,)
        while claims:
            ends = time.monotonic() + self._settings.timeout_seconds
            results = self._send_claimed(claims[0])
            claims = self._release(claims[0], results, again=time.monotonic() < ends)

    def _release(self, claim: SendClaim, results: Mapping[str, Sent], *, again: bool) -> tuple[SendClaim, ...]:
        """Release a channel and, with `again`, claim it again if there is more to send. `again` is only for a claim
        that has not expired: another sender may have claimed the channel since."""

        def step(board: Board) -> tuple[Board, SendClaims]:
            now = self._clock.now()
            free = released(board, claim, results, self._settings, now)
            made = claimed(free, self._settings, now, only=claim.channel) if again else SendClaims(free, (), ())
            return made.board, made

        made = self._change_board(claim.channel, step)
        return _logged(made).claims if made else ()

    def _save(self, channel: str, step: Callable[[Board], Board]) -> None:
        self._change_board(channel, lambda board: (step(board), None))

    def _change_board(self, channel: str, step: Callable[[Board], tuple[Board, T]]) -> T | None:
        try:
            return self._store.change(step)
        except RetakeError as error:
            _log.warning("what the channel %s was sent could not be saved; it may be sent again: %s", channel, error)
            return None

    def _send_claimed(self, claim: SendClaim) -> dict[str, Sent]:
        """Send the messages of a claim in order, until one fails or the time of the claim is over. Return the result
        that is not saved yet, by message id."""
        channel = next(it for it in self._settings.channels if it.name == claim.channel)
        ends = time.monotonic() + self._settings.timeout_seconds
        for delivery in claim.deliveries:
            left = ends - time.monotonic()
            if left <= 0:
                break
            outcome = self.send(channel, message_of(delivery), left, delivery.done)
            if outcome.how is not Ending.DELIVERED:
                _log.warning(
                    "the channel %s did not accept an alert (%s): %s", channel.name, delivery.title, outcome.why
                )
            if outcome.how is Ending.FAILED or delivery is claim.deliveries[-1]:
                return {delivery.id: outcome}
            self._save(claim.channel, partial(self._progressed, claim, delivery.id, outcome))
        return {}

    def _progressed(self, claim: SendClaim, delivery: str, outcome: Sent, board: Board) -> Board:
        return progressed(board, claim, delivery, outcome, self._settings, self._clock.now())

    def send(self, channel: AlertChannel, message: Message, seconds: float, done: tuple[str, ...] = ()) -> Sent:
        """Send one message now, within `seconds`. Never raises."""
        secret = self._environ.get(channel.env, "").strip()
        if not secret and channel.needs_secret:
            return Sent(Ending.FAILED, f"{channel.env} is not set", done=done)
        try:
            return self._sending()(channel, secret, message, seconds, done)
        except Exception as error:  # noqa: BLE001  a bug in one kind of channel must not affect the others
            return Sent(Ending.FAILED, f"a bug in Retake: {type(error).__name__}", done=done)

    def _sending(self) -> Send:
        if self._send is None:
            from retake.alerts.channels.sending import send

            self._send = send
        return self._send


def _logged(made: SendClaims) -> SendClaims:
    for delivery in made.dropped:
        _log.error("an alert could not be delivered for 7 days and was dropped: %s", delivery.title)
    return made


def message_of(delivery: QueuedMessage) -> Message:
    """Return the message that the channel has to send."""
    it = delivery
    return Message(it.event, it.at, it.subject_id, it.id, it.level, it.title, it.text, it.fields, it.link)
