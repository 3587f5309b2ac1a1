"""The parts of python-telegram-bot that are used: its `Bot`, over our own requests."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from telegram import Bot, InlineKeyboardButton, InlineKeyboardMarkup
from telegram.error import TelegramError
from telegram.request import BaseRequest, RequestData

from retake.vendors.answers import parse

__all__ = ["RawBot", "TelegramError", "keyboard"]

Send = Callable[[str, Mapping[str, str], float], bytes]
"""POSTs a form to a URL within a number of seconds and returns the body of a success."""


class RawBot(Bot):
    """A bot whose methods return Telegram's raw answer: a message was sent even if the library cannot read the
    answer."""

    def __init__(self, token: str, base_url: str, send: Send) -> None:
        super().__init__(token, base_url=base_url, request=_Requests(send), get_updates_request=_Requests(send))

    async def call(self, method: str, asked: dict[str, Any], timeout_s: float) -> Any:
        """Return the result of a method of the Bot API. Raises TelegramError, caused by the error of the request."""
        return await self._post(method, asked, read_timeout=timeout_s)


def keyboard(buttons: Sequence[tuple[str, str]]) -> InlineKeyboardMarkup:
    """Return one row of buttons (label, data)."""
    return InlineKeyboardMarkup([[InlineKeyboardButton(label, callback_data=data) for label, data in buttons]])


class _Requests(BaseRequest):
    """The library's network interface. It blocks: each call runs in its own event loop."""

    def __init__(self, send: Send) -> None:
        self._send = send

    @property
    def read_timeout(self) -> float | None:
        return None  # every call passes its own

    async def initialize(self) -> None:
        """Do nothing: no connection is kept."""

    async def shutdown(self) -> None:
        """Do nothing: no connection is kept."""

    async def do_request(
        self, url: str, method: str, request_data: RequestData | None = None, *args: Any, **timeouts: Any
    ) -> tuple[int, bytes]:
        """POST a form. Every answer is a success here: failures are raised, and become the cause of the library's own
        error."""
        form = request_data.json_parameters if request_data else {}
        return 200, self._send(url, form, float(timeouts["read_timeout"]))

    @staticmethod
    def parse_json_payload(payload: bytes) -> Any:
        """Return the answer as JSON; the library's own method would log an answer that it cannot read."""
        return parse(payload)
