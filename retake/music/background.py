"""The threads of the service: workers, upkeep, Telegram."""

from collections.abc import Callable
from logging import getLogger
from threading import Event, Thread
from typing import Protocol

from retake.errors import RetakeError, VendorError
from retake.music.alerts import EVERY_S, MusicWatch
from retake.music.leases import take_lease
from retake.music.outbox import TelegramOutbox
from retake.music.telegram import TelegramInbox
from retake.music.upkeep import Upkeep
from retake.runs.worker import Worker
from retake.vendors.telegram import TelegramBot

UPKEEP_S = 1.0
"""Seconds between two looks for runs without a worker."""

IDLE_S = 1.0
"""Seconds between two looks of a worker for work, unless it is woken."""

POLLER = "telegram updates"

_log = getLogger(__name__)


class Background(Protocol):
    """Something that the service does beside answering requests."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def join(self, timeout: float) -> None: ...


class Loop:
    """Calls `turn` in a thread until it is stopped; `turn` returns how many seconds to pause. Errors are logged."""

    def __init__(self, name: str, turn: Callable[[], float], *, error_pause_s: float = 5.0) -> None:
        self.name, self._turn, self._error_pause_s = name, turn, error_pause_s
        self._stopping, self._woken = Event(), Event()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._woken.set()

    def wake(self) -> None:
        """End the present pause."""
        self._woken.set()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                pause = self._turn()
            except RetakeError as error:
                _log.warning("%s: %s; it is tried again", self.name, error)
                pause = self._error_pause_s
            except Exception:  # noqa: BLE001  a bug in one turn must not end the service
                _log.exception("%s: this is a bug in Retake; it goes on", self.name)
                pause = self._error_pause_s
            self._woken.wait(pause)
            self._woken.clear()


def worker_loop(number: int, worker: Worker) -> Loop:
    """Return what works on one run after another."""

    def turn() -> float:
        return 0.0 if worker.work_once() else IDLE_S

    return Loop(f"worker {number}", turn, error_pause_s=IDLE_S)


def upkeep_loop(upkeep: Upkeep, wake: Callable[[], None]) -> Loop:
    """Return what looks for runs without a worker, and wakes the workers where it has mended something."""

    def turn() -> float:
        if upkeep.look():
            wake()
        return UPKEEP_S

    return Loop("upkeep", turn)


def alerts_loop(watch: MusicWatch) -> Loop:
    """Return what raises, closes and sends alerts."""

    def turn() -> float:
        watch.look()
        return EVERY_S

    return Loop("alerts", turn)


def outbox_loop(outbox: TelegramOutbox, poll_s: float, lease_s: float, stopping: Callable[[], bool]) -> Loop:
    """Return what sends messages."""

    def turn() -> float:
        return max(outbox.send(lease_s, stopping) or 0.0, poll_s)

    return Loop("telegram messages", turn)


def poll_loop(bot: TelegramBot, inbox: TelegramInbox, holder: str, poll_s: float) -> Loop:
    """Return what asks Telegram for updates; one process at a time, or Telegram refuses both."""
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
            _log.warning("Telegram's updates are not there yet: %s", error)
            return max(1.0, error.retry_after_s or 5.0)
        for update in found:
            inbox.take(update)
        # Telegram offers at once what cannot be read and so is not confirmed.
        stuck = bool(found) and inbox.offset == offset
        return 0.0 if poll_s and not stuck else 1.0

    return Loop("telegram updates", turn)


def webhook_loop(bot: TelegramBot, inbox: TelegramInbox, url: str, secret: str) -> Loop:
    """Return what tells Telegram where to send updates, once, and answers taps that were left unanswered."""
    begun = [False]

    def turn() -> float:
        if not begun[0]:
            bot.set_webhook(f"{url}/telegram/webhook", secret)
            begun[0] = True
        inbox.answer()
        return 5.0

    return Loop("telegram webhook", turn)
