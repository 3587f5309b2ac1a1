"""The stand-in for Telegram's Bot API."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from loopback import LoopbackServer
from sandbox_customer import Customer

from retake.sandbox import Sandbox

BOT = "/telegram/bot1:x"


class Hook(LoopbackServer):
    """A webhook that answers with the statuses of `script`, then with 200."""

    def __init__(self) -> None:
        self.script: list[int] = []
        self.seen: list[tuple[str, dict[str, Any]]] = []
        super().__init__(60.0)

    def serve(self, connection: Any, _stop: Any) -> None:
        with connection.makefile("rb") as stream:
            headers = {}
            while line := stream.readline().decode().strip():
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            body = json.loads(stream.read(int(headers["content-length"])))
        self.seen.append((headers["x-telegram-bot-api-secret-token"], body))
        status = self.script.pop(0) if self.script else 200
        connection.sendall(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())


@pytest.fixture
def hook() -> Iterator[Hook]:
    server = Hook()
    yield server
    server.close()


def ask(customer: Customer, method: str, **fields: Any) -> requests.Response:
    return customer.post(f"{BOT}/{method}", fields)


def result(customer: Customer, method: str, **fields: Any) -> Any:
    reply = ask(customer, method, **fields)
    assert reply.json()["ok"], reply.text
    return reply.json()["result"]


def test_json_and_forms_are_the_same(sandbox: Sandbox, customer: Customer) -> None:
    markup = {"inline_keyboard": [[{"text": "Retry", "callback_data": "r"}]]}
    result(customer, "sendMessage", chat_id=4, text="5", reply_markup=markup)
    form = {"chat_id": "4", "text": "5", "reply_markup": json.dumps(markup)}
    assert customer.session.post(f"{sandbox.url}{BOT}/sendMessage", data=form, timeout=60).ok
    first, second = sandbox.telegram.messages()
    assert {**first, "message_id": 0} == {**second, "message_id": 0}
    assert first["message_id"] != second["message_id"]
    assert (first["text"], first["chat"]["id"], first["reply_markup"]) == ("5", 4, markup)


@pytest.mark.parametrize(
    ("method", "fields", "status", "words"),
    [
        ("sendMessage", {"chat_id": 4, "text": "x" * 4097}, 400, "too long"),
        (
            "sendMessage",
            {"chat_id": 4, "text": "x", "reply_markup": {"inline_keyboard": [[{"callback_data": "é" * 33}]]}},
            400,
            "BUTTON_DATA_INVALID",
        ),
        ("answerCallbackQuery", {"callback_query_id": "9", "text": "x"}, 400, "query is too old"),
        ("answerCallbackQuery", {"callback_query_id": "9", "text": "x" * 201}, 400, "MESSAGE_TOO_LONG"),
        ("explode", {}, 404, "Not Found"),
    ],
)
def test_what_telegram_does_not_take(
    customer: Customer, method: str, fields: dict[str, Any], status: int, words: str
) -> None:
    reply = ask(customer, method, **fields)
    assert (reply.status_code, reply.json()["error_code"]) == (status, status)
    assert words in reply.json()["description"]


def test_a_query_is_answered_once(sandbox: Sandbox, customer: Customer) -> None:
    query = sandbox.telegram.tap("r")
    assert result(customer, "answerCallbackQuery", callback_query_id=query, text="done")
    assert ask(customer, "answerCallbackQuery", callback_query_id=query, text="again").status_code == 400
    assert sandbox.telegram.answers() == [{"callback_query_id": query, "text": "done"}]


def test_an_update_has_the_vendors_fields(sandbox: Sandbox, customer: Customer) -> None:
    message = result(customer, "sendMessage", chat_id=4, text="Cover is ready")
    sandbox.telegram.tap("approve", from_id=9, message_id=message["message_id"])
    sandbox.telegram.reply("warmer", to=message["message_id"], from_id=9)
    tap, reply = result(customer, "getUpdates")
    assert (tap["callback_query"]["data"], tap["callback_query"]["from"]["id"]) == ("approve", 9)
    assert tap["callback_query"]["message"] == message
    assert (reply["message"]["text"], reply["message"]["reply_to_message"]) == ("warmer", message)
    assert reply["message"]["chat"]["id"] == 4
    assert [tap["update_id"], reply["update_id"]] == [1, 2]


def test_updates_are_given_in_order_up_to_a_limit(sandbox: Sandbox, customer: Customer) -> None:
    for data in "abc":
        sandbox.telegram.tap(data)
    assert [it["update_id"] for it in result(customer, "getUpdates", limit=2)] == [1, 2]
    assert [it["update_id"] for it in result(customer, "getUpdates", offset=3)] == [3]
    sandbox.telegram.tap("d")
    assert [it["update_id"] for it in result(customer, "getUpdates", offset=4)] == [4]


def test_an_outage_of_messages_leaves_updates_alone(sandbox: Sandbox, customer: Customer) -> None:
    sandbox.order("telegram=500")
    assert ask(customer, "sendMessage", chat_id=4, text="x").status_code == 500
    assert ask(customer, "getMe").status_code == 500
    assert result(customer, "getUpdates") == []
    sandbox.order("updates#1=429")
    reply = ask(customer, "getUpdates")
    assert (reply.status_code, reply.json()["parameters"]) == (429, {"retry_after": 1})
    assert sandbox.telegram.messages() == []


def test_a_webhook_has_each_update_once_it_takes_it(sandbox: Sandbox, customer: Customer, hook: Hook) -> None:
    sandbox.telegram.tap("before")
    result(customer, "setWebhook", url=f"{hook.url}/telegram/webhook", secret_token="s3cret")
    assert ask(customer, "getUpdates").status_code == 409
    hook.script = [500, 503]
    sandbox.telegram.tap("a")
    sandbox.telegram.tap("b")
    assert len(sandbox.telegram.unconfirmed()) == 2
    assert sandbox.telegram.deliver() == 0
    assert [body["update_id"] for _, body in hook.seen] == [1, 2, 2, 2, 3]
    assert {secret for secret, _ in hook.seen} == {"s3cret"}
    result(customer, "deleteWebhook")
    sandbox.telegram.tap("after")
    assert [it["update_id"] for it in result(customer, "getUpdates")] == [4]


def test_no_secret_is_recorded(sandbox: Sandbox, customer: Customer, hook: Hook) -> None:
    result(customer, "setWebhook", url=hook.url, secret_token="s3cret-of-a-test")
    assert "s3cret-of-a-test" not in str(sandbox.calls())


def test_what_was_said_survives_a_restart(tmp_path: Path, session: requests.Session) -> None:
    with Sandbox(tmp_path, quick=True) as sandbox:
        result(Customer(sandbox, session), "sendMessage", chat_id=4, text="x")
        sandbox.telegram.tap("a")
    session.close()
    with Sandbox(tmp_path, quick=True) as sandbox, Sandbox(tmp_path, quick=True) as other:
        assert [message["text"] for message in sandbox.telegram.messages()] == ["x"]
        other.telegram.tap("b")
        assert len(result(Customer(sandbox, session), "getUpdates")) == 2


def test_a_poll_ends_when_the_sandbox_closes(session: requests.Session) -> None:
    import threading

    with Sandbox(quick=True) as sandbox:
        url = f"{sandbox.url}{BOT}/getUpdates"
        poll = threading.Thread(target=lambda: _quietly(lambda: session.post(url, json={"timeout": 50}, timeout=60)))
        poll.start()
        while not sandbox.calls("updates"):
            threading.Event().wait(0.01)
    poll.join(timeout=60)
    assert not poll.is_alive()


def _quietly(do: Any) -> None:
    try:
        do()
    except requests.RequestException:
        return
