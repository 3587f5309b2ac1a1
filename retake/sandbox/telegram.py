"""Stand-in for Telegram's Bot API for one bot, whatever its token: messages, updates by long poll or webhook, and taps.

Formats from core.telegram.org/bots/api. An update is delivered again until it is confirmed, by a higher offset or by a
webhook's 2xx. A user's actions arrive at /sandbox/telegram/… (see `TelegramPhone` in people.py). Assumed, because
undocumented: the wording of some errors.
"""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from retake.sandbox.http_messages import Request, Response, error_response
from retake.sandbox.task_service import ApiCall, Control, TaskService

TEXT_LIMIT, ANSWER_LIMIT, DATA_LIMIT = 4096, 200, 64
MAX_UPDATES = 100
USER = 1  # who taps and replies by default
_WEBHOOK_TIMEOUT_S = 10.0
_MESSAGES, _UPDATES, _ANSWERS, _QUERIES = "telegram.message", "telegram.update", "telegram.answer", "telegram.query"
_TOO_OLD = "Bad Request: query is too old and response timeout expired or query ID is invalid"
_ERRORS = {401: "Unauthorized", 403: "Forbidden: bot was blocked by the user", 404: "Not Found"}


def error(status: int, description: str = "") -> Response:
    text = description or _ERRORS.get(status) or f"Error {status}"
    body = {"ok": False, "error_code": status, "description": text}
    return error_response(status, body | ({"parameters": {"retry_after": 1}} if status == 429 else {}))


def send_message(call: ApiCall) -> Response:
    """POST sendMessage."""
    fields = _fields(call.request)
    text, chat_id = str(fields.get("text") or ""), fields.get("chat_id")
    if not chat_id or not text.strip() or len(text) > TEXT_LIMIT:
        what = "is too long" if len(text) > TEXT_LIMIT else "or chat is empty"
        return error(400, f"Bad Request: message {what}")
    markup = fields.get("reply_markup")
    if any(len(str(button.get("callback_data", "")).encode()) > DATA_LIMIT for button in _buttons(markup)):
        return error(400, "Bad Request: BUTTON_DATA_INVALID")
    message = {"message_id": call.n, "date": int(call.service.now()), "chat": {"id": chat_id, "type": "private"}}
    message |= {"text": text} | ({"reply_markup": markup} if markup else {})
    call.service.database.keep(_MESSAGES, str(call.n), message)
    return _result(message)


def answer_callback_query(call: ApiCall) -> Response:
    """POST answerCallbackQuery. A query can be answered once."""
    fields, database = _fields(call.request), call.service.database
    query_id, text = str(fields.get("callback_query_id", "")), str(fields.get("text") or "")
    if len(text) > ANSWER_LIMIT:
        return error(400, "Bad Request: MESSAGE_TOO_LONG")
    with call.service.guard:
        if database.thing(_QUERIES, query_id) is None:
            return error(400, _TOO_OLD)
        database.drop(_QUERIES, query_id)
        database.keep(_ANSWERS, query_id, {"callback_query_id": query_id, "text": text})
    return _result(True)


def get_me(_: ApiCall) -> Response:
    """POST getMe."""
    return _result({"id": 7, "is_bot": True, "first_name": "Sandbox", "username": "sandbox_bot"})


def get_updates(call: ApiCall) -> Response:
    """POST getUpdates. A second call ends, with 409, one that is still waiting."""
    service, fields = call.service, _fields(call.request)
    if service.database.get("facts", "telegram.webhook"):
        return error(409, "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook first")
    offset, limit, timeout = (_number(fields.get(name)) for name in ("offset", "limit", "timeout"))
    service.database.put("facts", "telegram.poll", str(call.n))
    until = time.monotonic() + timeout
    while True:
        found = _pending(service, offset)[: limit or MAX_UPDATES]
        if found or time.monotonic() >= until or service.closing.wait(0.02):
            return _result(found)
        if service.database.get("facts", "telegram.poll") != str(call.n):
            return error(409, "Conflict: terminated by other getUpdates request")


def set_webhook(call: ApiCall) -> Response:
    """POST setWebhook."""
    fields = _fields(call.request)
    hook = {"url": str(fields.get("url") or ""), "secret": str(fields.get("secret_token") or "")}
    call.service.database.put("facts", "telegram.webhook", json.dumps(hook) if hook["url"] else "")
    _deliver(call.service)
    return _result(True)


def delete_webhook(call: ApiCall) -> Response:
    """POST deleteWebhook."""
    call.service.database.put("facts", "telegram.webhook", "")
    return _result(True)


def _tap(service: TaskService, request: Request) -> Response:
    """POST /sandbox/telegram/tap {data, from_id?, message_id?}: somebody taps a button."""
    fields = request.fields
    message_id = fields.get("message_id")
    message = service.database.thing(_MESSAGES, str(message_id)) or {"message_id": message_id or 0, "date": 0}
    with service.guard:
        update_id = _next_update(service)
        query_id = f"{update_id}000"
        query = {"id": query_id, "from": _user(fields), "message": message, "data": str(fields.get("data", ""))}
        service.database.keep(_QUERIES, query_id, {})
        update = {"update_id": update_id, "callback_query": query | {"chat_instance": "1"}}
        service.database.keep(_UPDATES, str(update_id), update)
    return _push(service, {"update_id": update_id, "callback_query_id": query_id})


def _reply(service: TaskService, request: Request) -> Response:
    """POST /sandbox/telegram/reply {text, reply_to_message_id, from_id?, chat_id?}: somebody replies to a message."""
    fields = request.fields
    answered = service.database.thing(_MESSAGES, str(fields.get("reply_to_message_id")))
    chat = (answered or {}).get("chat") or {"id": fields.get("chat_id") or USER, "type": "private"}
    original = answered or {"message_id": fields.get("reply_to_message_id"), "date": 0, "chat": chat}
    with service.guard:
        update_id = _next_update(service)
        message = {
            "message_id": 1_000_000 + update_id,
            "date": int(service.now()),
            "chat": chat | ({"id": fields["chat_id"]} if fields.get("chat_id") else {}),
            "from": _user(fields),
            "text": str(fields.get("text", "")),
            "reply_to_message": original,
        }
        service.database.keep(_UPDATES, str(update_id), {"update_id": update_id, "message": message})
    return _push(service, {"update_id": update_id})


def _raw(service: TaskService, request: Request) -> Response:
    """POST /sandbox/telegram/update: exactly this update, with a number added if it has none."""
    with service.guard:
        update = {"update_id": _next_update(service), **request.fields}
        service.database.keep(_UPDATES, str(update["update_id"]), update)
    return _push(service, {"update_id": update["update_id"]})


CONTROLS: Mapping[str, Control] = MappingProxyType(
    {
        "POST telegram/tap": _tap,
        "POST telegram/reply": _reply,
        "POST telegram/update": _raw,
        "POST telegram/deliver": lambda service, _: _push(service, {}),
        "GET telegram/messages": lambda service, _: Response(200, service.database.things(_MESSAGES)),
        "GET telegram/answers": lambda service, _: Response(200, service.database.things(_ANSWERS)),
        "GET telegram/updates": lambda service, _: Response(200, service.database.things(_UPDATES)),
    }
)
"""A user's actions, by method and path below /sandbox/."""


def _push(service: TaskService, answer: dict[str, Any]) -> Response:
    _deliver(service)
    return Response(201, answer | {"pending": len(service.database.things(_UPDATES))})


def _pending(service: TaskService, offset: int) -> list[dict[str, Any]]:
    """Drop the updates that `offset` confirms, and return the rest, in order."""
    updates = service.database.things(_UPDATES)
    for update in updates:
        if update["update_id"] < offset:
            service.database.drop(_UPDATES, str(update["update_id"]))
    return sorted((it for it in updates if it["update_id"] >= offset), key=lambda it: int(it["update_id"]))


def _deliver(service: TaskService) -> None:
    """POST the pending updates to the webhook, if one is set, in order, until one is refused."""
    hook = json.loads(service.database.get("facts", "telegram.webhook") or "null")
    for update in _pending(service, 0) if hook else []:
        request = urllib.request.Request(  # noqa: S310 – a test's own address
            hook["url"],
            json.dumps(update).encode(),
            {"Content-Type": "application/json", "X-Telegram-Bot-Api-Secret-Token": hook["secret"]},
        )
        try:
            _opener.open(request, timeout=_WEBHOOK_TIMEOUT_S).close()
        except urllib.error.HTTPError as refused:
            refused.close()
            return
        except (OSError, ValueError):
            return
        service.database.drop(_UPDATES, str(update["update_id"]))


_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _next_update(service: TaskService) -> int:
    number = int(service.database.get("facts", "telegram.updates") or 0) + 1
    service.database.put("facts", "telegram.updates", str(number))
    return number


def _user(fields: dict[str, Any]) -> dict[str, Any]:
    return {"id": fields.get("from_id", USER), "is_bot": False, "first_name": "Somebody"}


def _buttons(markup: Any) -> list[dict[str, Any]]:
    rows = markup.get("inline_keyboard") if isinstance(markup, dict) else None
    return [button for row in rows or [] for button in row]


def _fields(request: Request) -> dict[str, Any]:
    """Return the parameters, sent as JSON or as a form whose values are JSON unless they are texts."""
    if not request.form:
        return request.fields
    return {
        name: value if name in ("text", "url", "secret_token") else _value(value)
        for name, value in request.form.items()
    }


def _value(text: str) -> Any:
    with suppress(ValueError):
        return json.loads(text)
    return text


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _result(result: Any) -> Response:
    return Response(200, {"ok": True, "result": result})
