"""python-telegram-bot, as far as it is used: its `Bot`, over our own requests."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from telegram import Bot, InlineKeyboardButton, InlineKeyboardMarkup
from telegram.error import TelegramError
from telegram.request import BaseRequest, RequestData

from retake.vendors.answers import parse

__all__ = ["RawBot", "TelegramError", "keyboard"]

Send = Callable[[str, Mapping[str, str], float], bytes]
"""POSTs a form to a URL within so many seconds and returns the body of a success."""


class RawBot(Bot):
    """A bot whose methods return what Telegram answers: a message that was sent is sent, even if the library cannot
    read the answer."""

    def __init__(self, token: str, base_url: str, send: Send) -> None:
        super().__init__(token, base_url=base_url, request=_Requests(send), get_updates_request=_Requests(send))

    async def call(self, method: str, asked: dict[str, Any], timeout_s: float) -> Any:
        """Return the result of a method of the Bot API. Raises TelegramError, by what the requests raised."""
        return await self._post(method, asked, read_timeout=timeout_s)


def keyboard(buttons: Sequence[tuple[str, str]]) -> InlineKeyboardMarkup:
    """Return one row of buttons (label, data)."""
    return InlineKeyboardMarkup([[InlineKeyboardButton(label, callback_data=data) for label, data in buttons]])


class _Requests(BaseRequest):
    """The library's way to the network. It blocks: each call runs in an event loop of its own."""

    def __init__(self, send: Send) -> None:
        self._send = send

    @property
    def read_timeout(self) -> float | None:
        return None  # every call gives its own

    async def initialize(self) -> None:
        """Do nothing: no connection is kept."""

    async def shutdown(self) -> None:
        """Do nothing: no connection is kept."""

    async def do_request(
        self, url: str, method: str, request_data: RequestData | None = None, *args: Any, **timeouts: Any
    ) -> tuple[int, bytes]:
        """POST a form. An answer is a success here: failures are raised, and the library passes them on as the cause
        of its own error."""
        form = request_data.json_parameters if request_data else {}
        return 200, self._send(url, form, float(timeouts["read_timeout"]))

    @staticmethod
    def parse_json_payload(payload: bytes) -> Any:
        """Return the answer as JSON; the library's own would log what it cannot read."""
        return parse(payload)
