"""The threads of the service: workers, upkeep, Telegram."""

from collections.abc import Callable
from logging import getLogger

from retake.errors import VendorError
from retake.music.alerts import EVERY_S, MusicWatch
from retake.music.leases import take_lease
from retake.music.outbox import TelegramOutbox
from retake.music.telegram import TelegramInbox
from retake.music.upkeep import Upkeep
from retake.runs.worker import Worker
from retake.serving.loop import Loop
from retake.vendors.telegram import TelegramBot

UPKEEP_S = 1.0
"""Seconds between two passes of upkeep."""

IDLE_S = 1.0
"""Seconds between two checks of a worker for work, unless it is woken."""

POLLER = "telegram updates"

_log = getLogger(__name__)


def worker_loop(number: int, worker: Worker) -> Loop:
    """Return the loop that works on one run after another."""

    def turn() -> float:
        return 0.0 if worker.work_once() else IDLE_S

    return Loop(f"worker {number}", turn, error_pause_s=IDLE_S)


def upkeep_loop(upkeep: Upkeep, wake: Callable[[], None]) -> Loop:
    """Return the loop that brings rows and runs in line, and wakes the workers after a repair."""

    def turn() -> float:
        if upkeep.look():
            wake()
        return UPKEEP_S

    return Loop("upkeep", turn)


def alerts_loop(watch: MusicWatch) -> Loop:
    """Return the loop that raises, closes and sends alerts."""

    def turn() -> float:
        watch.look()
        return EVERY_S

    return Loop("alerts", turn)


def outbox_loop(outbox: TelegramOutbox, poll_s: float, lease_s: float, stopping: Callable[[], bool]) -> Loop:
    """Return the loop that sends messages."""

    def turn() -> float:
        return max(outbox.send(lease_s, stopping) or 0.0, poll_s)

    return Loop("telegram messages", turn)


def poll_loop(bot: TelegramBot, inbox: TelegramInbox, holder: str, poll_s: float) -> Loop:
    """Return the loop that polls Telegram for updates; one process at a time, since Telegram refuses concurrent
    polls."""
    begun = [False]

    def turn() -> float:
        if not take_lease(inbox.database, POLLER, holder, 2 * poll_s + 60):
            return 5.0
        if not begun[0]:
            bot.delete_webhook()
            begun[0] = True
        inbox.answer()
        try:
            offset = inbox.offset
            found = bot.updates(offset, poll_s)
        except VendorError as error:
            _log.warning("Telegram's updates could not be fetched: %s", error)
            return max(1.0, error.retry_after_s or 5.0)
        for update in found:
            inbox.take(update)
        # No pause only if the offset has moved: Telegram repeats at once an update that cannot be read and so is never
        # confirmed, and a proxy in between may answer at once that there is none.
        return 0.0 if poll_s and inbox.offset != offset else 1.0

    return Loop("telegram updates", turn)


def webhook_loop(bot: TelegramBot, inbox: TelegramInbox, url: str, secret: str) -> Loop:
    """Return the loop that sets Telegram's webhook once, and answers taps that were left unanswered."""
    begun = [False]

    def turn() -> float:
        if not begun[0]:
            bot.set_webhook(f"{url}/telegram/webhook", secret)
            begun[0] = True
        inbox.answer()
        return 5.0

    return Loop("telegram webhook", turn)
