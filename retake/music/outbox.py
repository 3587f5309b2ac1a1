"""Sends messages to people on Telegram: in order and, except after a crash, once per event.

A message is sent twice if the machine dies between sending and recording it: Telegram has no idempotency key.
"""

from collections.abc import Callable
from logging import getLogger

from sqlalchemy import select, update

from retake.errors import VendorError
from retake.music.attempts import shown_reason
from retake.music.database import MusicDatabase
from retake.music.leases import take_lease
from retake.music.tables import messages
from retake.music.telegram import is_fatal
from retake.runs.statements import Row
from retake.strict_json import parse
from retake.vendors.telegram import TelegramBot

LEASE = "telegram messages"

_log = getLogger(__name__)

_NEXT = (
    select(messages.c.id, messages.c.text, messages.c.buttons)
    .where(messages.c.sent_at.is_(None), messages.c.error.is_(None))
    .order_by(messages.c.id)
    .limit(50)  # the first that can be read
)


class TelegramOutbox:
    """The messages that wait to be sent. One process at a time sends; `holder` names it."""

    def __init__(self, database: MusicDatabase, bot: TelegramBot, chat_id: int | str, holder: str) -> None:
        self._database, self._bot, self._chat_id, self._holder = database, bot, chat_id, holder

    def send(self, lease_s: float, stopping: Callable[[], bool] = lambda: False) -> float | None:
        """Send the waiting messages in order. Return the seconds to wait, or None.

        It has to wait if Telegram does not answer; None means that no message is left or that another process sends.
        One call takes less than `lease_s` seconds. Raises StorageError.
        """
        while not stopping():
            if self._next() is None or not take_lease(self._database, LEASE, self._holder, lease_s):
                return None
            if (row := self._next()) is None:  # another process sent it before we got the lease
                return None
            number, text, buttons = row
            try:
                pairs = _pairs(buttons)
            except ValueError as error:
                _log.error("the buttons of message %s are invalid (%s), and it is not sent", number, error)
                self._save(number, error=f"its buttons are invalid: {shown_reason(str(error))}")
                continue
            try:
                message_id = self._bot.send(self._chat_id, text, pairs)
            except VendorError as error:
                if not is_fatal(error):
                    _log.warning("messages to Telegram are delayed: %s", error)
                    return error.retry_after_s or 0.0
                _log.error("Telegram refuses message %s, which is not sent again: %s", number, error)
                self._save(number, error=shown_reason(str(error)))
            else:
                self._save(number, sent_at=self._database.clock.now(), message_id=message_id)
        return None

    def _next(self) -> Row | None:
        with self._database.reading() as cursor:
            return next(iter(cursor.readable(_NEXT, name="next-message")), None)

    def _save(self, number: int, **values: object) -> None:
        with self._database.transaction() as cursor:
            cursor.change(update(messages).where(messages.c.id == number).values(values))


def _pairs(buttons: str) -> list[tuple[str, str]]:
    """Return the buttons of a row as pairs of label and callback data. Raises ValueError for what another program
    wrote."""
    found = parse(buttons)
    if not isinstance(found, list) or not all(isinstance(it, list) and len(it) == 2 for it in found):
        raise ValueError("not a list of pairs")
    if not all(isinstance(text, str) for it in found for text in it):
        raise ValueError("not a list of pairs of texts")
    return [(label, data) for label, data in found]
