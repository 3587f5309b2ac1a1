"""Telegram's Bot API, for one bot: messages with buttons, taps on them, and replies.

python-telegram-bot's `Bot` makes the requests, but the exchange itself is that of all vendors (see http.py): it is
bounded, uses the same proxies and certificates, and logs no URL, since the token is part of it. Updates are returned
raw and read by `parsed`, since the library would raise for a whole batch if it cannot read one of its updates.
"""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, NamedTuple

from retake.errors import Code, PollFailed, SettingsError, VendorError, hide, written_forms
from retake.extras import require
from retake.foreign_text import utf16_cut
from retake.vendors import Health
from retake.vendors.answers import (
    COMMON_CODES,
    SECRET_LENGTH,
    NoReply,
    Reply,
    as_dict,
    count,
    parse,
    quote,
    retry_after_s,
    wait_asked_s,
)
from retake.vendors.http import JSON_LIMIT, check_route, exchange

NAME = "Telegram"
KEY_NAME = "TELEGRAM_BOT_TOKEN"
ENDPOINT = "https://api.telegram.org"
TEXT_LIMIT = 4096  # UTF-16 code units
ANSWER_LIMIT = 200  # characters
DATA_LIMIT = 64  # bytes of a button's callback data
UPDATES = ("callback_query", "message")

_NOT_IN_A_TOKEN = frozenset("/?#%\\@")
_CHAT = re.compile(
    r"chat not found|upgraded to a supergroup|\brights\b|group is deactivated|user not found|chat_id is empty"
    r"|chat_(write_forbidden|restricted|admin_required)|peer_id_invalid|topic_(closed|deleted)",
    re.IGNORECASE,
)
"""What Telegram says if the chat accepts no message from the bot, whatever the message."""

_TOO_LATE = ("query is too old", "query id is invalid")
_MAX_ID = 2**63 - 1
_MAX_TEXT = 16_384  # maximum characters kept of a text in an update
_CODES = COMMON_CODES | {404: Code.UNAUTHORIZED}
_ADVICE = {
    Code.UNAUTHORIZED: f"Check {KEY_NAME}, and that the bot may write to MUSIC.telegram_chat_id.",
    Code.CONFLICT: "Only one process can ask for a bot's updates, and none while it has a webhook.",
    Code.RATE_LIMIT: "It asks to wait.",
    Code.INVALID_INPUT: "The same request will be refused again.",
    Code.CONFIGURATION: "Check MUSIC.telegram_chat_id and API_KEYS.telegram.endpoint in the settings.",
}
_LATER = "Check the network and API_KEYS.telegram.endpoint if this persists."

_importing = Lock()  # if two threads import the library at once, its circular import fails


class Tap(NamedTuple):
    """A tap on a button."""

    id: str  # for `answer_tap`
    data: str  # the button's callback data


class TextReply(NamedTuple):
    """A text in reply to a message."""

    text: str
    to_message_id: int
    chat_id: int


class TelegramUpdate(NamedTuple):
    """The parts of an update that are used: a tap, a text in reply to a message, or neither."""

    update_id: int
    user_id: int | None
    tap: Tap | None = None
    reply: TextReply | None = None


class TelegramBot:
    """One bot. Thread-safe, but not for use within an event loop: each call blocks until its answer.

    `endpoint` is what precedes /bot<TOKEN>; None is Telegram's own. `timeout_s` limits a call; a long poll adds its own
    timeout. Every call raises PollFailed. Raises SettingsError for an impossible token, a proxy or certificates in the
    environment that cannot be used, and if python-telegram-bot is not installed.
    """

    def __init__(self, token: str, endpoint: str | None, timeout_s: float) -> None:
        if not (token and token.isascii() and token.isprintable()) or " " in token or _NOT_IN_A_TOKEN & set(token):
            raise SettingsError(f"{KEY_NAME}: the token for {NAME} has characters that no token has")
        require("music", "The Telegram bot")
        check_route(endpoint or ENDPOINT)
        self._token, self._timeout_s = token, timeout_s
        hide(written_forms(token) if len(token) >= SECRET_LENGTH else [])  # it is in every URL
        with _importing:
            from retake.vendors import telegram_library
        base = f"{(endpoint or ENDPOINT).rstrip('/')}/bot"
        self._library = telegram_library
        self._bot: telegram_library.RawBot | None = telegram_library.RawBot(token, base, self._exchange)

    def send(self, chat_id: int | str, text: str, buttons: Sequence[tuple[str, str]] = ()) -> int:
        """Send a message with a row of buttons (label, data) and return its message_id.

        A text that is too long is cut. A message whose answer is lost may have been sent.
        """
        asked: dict[str, Any] = {
            "chat_id": chat_id,
            "text": utf16_cut(text, TEXT_LIMIT),
            "link_preview_options": {"is_disabled": True},  # Telegram would fetch the links in the text
            "reply_markup": self._library.keyboard(buttons) if buttons else None,
        }
        message_id = count(as_dict(self._call("sendMessage", asked)).get("message_id"))
        if message_id is None:
            raise self._unusable("sendMessage", "it names no message")
        return message_id

    def answer_tap(self, callback_query_id: str, text: str) -> None:
        """Show `text` (cut at ANSWER_LIMIT) to the user who tapped. An answer that comes too late is not an error."""
        asked = {"callback_query_id": callback_query_id, "text": utf16_cut(text, ANSWER_LIMIT)}
        try:
            self._call("answerCallbackQuery", asked)
        except PollFailed as error:
            if not any(words in str(error).lower() for words in _TOO_LATE):
                raise

    def updates(self, offset: int | None, timeout_s: float) -> list[Mapping[str, Any]]:
        """Wait up to `timeout_s` seconds for updates from `offset` on, which confirms all earlier ones, and return them
        raw.

        See `parsed`. Only taps and messages are requested.
        """
        asked = {"offset": offset, "timeout": int(timeout_s), "allowed_updates": list(UPDATES)}
        found = self._call("getUpdates", asked, more_s=timeout_s)
        if not isinstance(found, list):
            raise self._unusable("getUpdates", "it is not a list")
        return [update for update in found if isinstance(update, dict)]

    def health(self) -> Health:
        """See `Healthy.health`."""
        name = as_dict(self._call("getMe", {})).get("username")
        return Health(f"it accepts the token of @{name!s:.60}" if name else "it accepts the token")

    def test_request(self) -> str:
        """See `Healthy.test_request`. There is no task to ask about, so this is `health`."""
        return self.health().says

    def set_webhook(self, url: str, secret: str) -> None:
        """Have updates POSTed to `url`, with `secret` in the header X-Telegram-Bot-Api-Secret-Token."""
        self._call("setWebhook", {"url": url, "secret_token": secret, "allowed_updates": list(UPDATES)})

    def delete_webhook(self) -> None:
        """Delete the webhook, so that updates are kept for `updates`. None is dropped."""
        self._call("deleteWebhook", {})

    def close(self) -> None:
        """Refuse further calls. A long poll in progress is not interrupted: run it in a daemon thread."""
        self._bot = None

    def _call(self, method: str, asked: Mapping[str, Any], more_s: float = 0.0) -> Any:
        """Return the raw result of a method."""
        bot = self._bot
        if bot is None:
            raise PollFailed(Code.NETWORK, f"{NAME} was not asked ({method}): the bot is closed.")
        try:
            return asyncio.run(bot.call(method, dict(asked), self._timeout_s + more_s))
        except self._library.TelegramError as error:
            own = error.__cause__
            if isinstance(own, VendorError):
                raise own from None
            raise self._unusable(method, type(error).__name__) from None

    def _exchange(self, url: str, form: Mapping[str, str], timeout_s: float) -> bytes:
        """POST a form and return the body of a success. Raises PollFailed."""
        method = url.rpartition("/")[2]
        try:
            reply = exchange(None, "POST", url, timeout_s=timeout_s, limit=JSON_LIMIT, data=dict(form))
        except NoReply as trouble:
            why, advice = str(trouble).replace(self._token, "…"), _ADVICE.get(trouble.code, _LATER)
            raise PollFailed(trouble.code, f"{NAME} was asked to {method}: {why}. {advice}") from None
        body = as_dict(parse(reply.body))
        if not reply.ok or body.get("ok") is False:
            raise self._failure(method, reply, body)
        if "result" not in body:
            raise self._unusable(method, "it has no result")
        return json.dumps(body).encode()

    def _failure(self, method: str, reply: Reply, body: Mapping[str, Any]) -> PollFailed:
        parameters = as_dict(body.get("parameters"))
        status = (count(body.get("error_code")) or 400) if reply.ok else reply.status
        unlisted = Code.UNAVAILABLE if status >= 500 else Code.INVALID_INPUT if status >= 400 else Code.BAD_ANSWER
        description = body.get("description")
        code = _CODES.get(status, unlisted)
        moved_to = count(parameters.get("migrate_to_chat_id"))
        of_chat = moved_to is not None or (isinstance(description, str) and _CHAT.search(description))
        if code is Code.INVALID_INPUT and of_chat:
            code = Code.CONFIGURATION
        words = quote(
            description if isinstance(description, str) else reply.body.decode("utf-8", "replace"), self._token
        )
        moved = "" if moved_to is None else f" The chat's id is now {moved_to}."
        text = f'{NAME} was asked to {method} and answered {status}: "{words}".{moved} {_ADVICE.get(code, _LATER)}'
        wait_s = wait_asked_s(parameters.get("retry_after"))
        return PollFailed(code, text, retry_after_s=retry_after_s(reply.headers) if wait_s is None else wait_s)

    def _unusable(self, method: str, why: str) -> PollFailed:
        return PollFailed(Code.BAD_ANSWER, f"{NAME} was asked to {method}; its answer cannot be used: {why}. {_LATER}")


def parsed(update: object) -> TelegramUpdate | None:
    """Return the content of an update, or None if it is not one. Never raises, whatever the update holds."""
    fields = as_dict(update)
    update_id = _id(fields.get("update_id"))
    if update_id is None:
        return None
    query, message = as_dict(fields.get("callback_query")), as_dict(fields.get("message"))
    user_id = _id(as_dict((query or message).get("from")).get("id"))
    if query:
        return TelegramUpdate(update_id, user_id, tap=_tap(query))
    return TelegramUpdate(update_id, user_id, reply=_reply(message))


def _tap(query: Mapping[str, Any]) -> Tap | None:
    query_id, data = query.get("id"), query.get("data")
    if not isinstance(query_id, str) or not isinstance(data, str) or len(query_id) > 256:
        return None
    if not (query_id.isascii() and query_id.isprintable()):  # a database might not store it
        return None
    return Tap(query_id, data) if len(data) <= DATA_LIMIT else None


def _reply(message: Mapping[str, Any]) -> TextReply | None:
    text, chat_id = message.get("text"), _id(as_dict(message.get("chat")).get("id"))
    to_message_id = _id(as_dict(message.get("reply_to_message")).get("message_id"))
    if not isinstance(text, str) or chat_id is None or to_message_id is None:
        return None
    return TextReply(text[:_MAX_TEXT].encode("utf-8", "replace").decode(), to_message_id, chat_id)


def _id(value: object) -> int | None:
    """Return `value` if it is a whole number that a database can hold."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MAX_ID else None
