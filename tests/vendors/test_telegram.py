"""Telegram's client over real HTTP, against the sandbox."""

import io
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from errors_doc import fault_of, rows
from hypothesis import given
from hypothesis import strategies as st
from scripted_vendor import ScriptedVendor, closed_port, cut, drip, hang, page, says
from waiting import eventually

from retake.errors import Code, PollFailed, SettingsError
from retake.sandbox import Sandbox, music_endpoints
from retake.vendors.telegram import Tap, TelegramBot, TelegramUpdate, TextReply, parsed

TOKEN = "123456789:AAbot-token-of-a-test"
DONE = {"ok": True, "result": True}


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(quick=True, seed=7) as started:
        yield started


@pytest.fixture
def bot(sandbox: Sandbox) -> TelegramBot:
    return TelegramBot(TOKEN, music_endpoints(sandbox.url)["telegram"]["endpoint"], 5.0)


def scripted(vendor: ScriptedVendor, timeout_s: float = 60.0) -> TelegramBot:
    return TelegramBot(TOKEN, vendor.url, timeout_s)


def test_a_message_goes_out_with_its_buttons(sandbox: Sandbox, bot: TelegramBot) -> None:
    first = bot.send(42, "Slow Light", [("Retry", "ytpub_retry_7"), ("Cancel", "ytpub_cancel_7_1")])
    second = bot.send("-100", "plain & <text>")
    sent = sandbox.telegram.messages()
    assert [message["message_id"] for message in sent] == [first, second]
    assert sent[0]["reply_markup"] == {
        "inline_keyboard": [
            [
                {"text": "Retry", "callback_data": "ytpub_retry_7"},
                {"text": "Cancel", "callback_data": "ytpub_cancel_7_1"},
            ]
        ]
    }
    assert (sent[1]["chat"]["id"], sent[1]["text"], "reply_markup" in sent[1]) == (-100, "plain & <text>", False)


@pytest.mark.parametrize("text", ["x" * 5000, "😀" * 3000, "\ud800 alone"])
def test_a_text_is_cut_to_what_telegram_takes(sandbox: Sandbox, bot: TelegramBot, text: str) -> None:
    bot.send(42, text)
    [message] = sandbox.telegram.messages()
    assert len(message["text"].encode("utf-16-le")) <= 2 * 4096
    assert message["text"].endswith("…" if len(text) > 100 else "alone")


def test_a_tap_comes_in_and_is_answered(sandbox: Sandbox, bot: TelegramBot) -> None:
    message_id = bot.send(42, "Failed", [("Retry", "ytpub_retry_7")])
    query = sandbox.telegram.tap("ytpub_retry_7", from_id=5, message_id=message_id)
    [update] = bot.updates(None, 1)
    assert parsed(update) == TelegramUpdate(1, 5, tap=Tap(query, "ytpub_retry_7"))
    bot.answer_tap(query, "cover" * 100)
    [answer] = sandbox.telegram.answers()
    assert (answer["callback_query_id"], len(answer["text"])) == (query, 200)


def test_an_answer_that_comes_too_late_is_not_an_error(sandbox: Sandbox, bot: TelegramBot) -> None:
    bot.answer_tap("12345", "anything")
    assert sandbox.telegram.answers() == []
    sandbox.order("telegram=400")
    with pytest.raises(PollFailed):
        bot.answer_tap("12345", "anything")


def test_a_reply_comes_in(sandbox: Sandbox, bot: TelegramBot) -> None:
    message_id = bot.send(42, "Cover is ready")
    sandbox.telegram.reply("warmer, please", to=message_id, from_id=5)
    [update] = bot.updates(None, 1)
    assert parsed(update) == TelegramUpdate(1, 5, reply=TextReply("warmer, please", message_id, 42))


def test_updates_come_again_until_they_are_confirmed(sandbox: Sandbox, bot: TelegramBot) -> None:
    for data in "abc":
        sandbox.telegram.tap(data)
    assert [update["update_id"] for update in bot.updates(None, 0)] == [1, 2, 3]
    assert [update["update_id"] for update in bot.updates(2, 0)] == [2, 3]
    assert [update["update_id"] for update in bot.updates(None, 0)] == [2, 3]
    assert bot.updates(4, 0) == []
    assert sandbox.telegram.unconfirmed() == []


def test_one_update_that_nobody_can_read_does_not_hold_up_the_rest(sandbox: Sandbox, bot: TelegramBot) -> None:
    sandbox.telegram.push({"callback_query": {"id": None, "from": "nobody"}})
    sandbox.telegram.push({"message": [[]], "edited_message": 5})
    sandbox.telegram.tap("a")
    found = [parsed(update) for update in bot.updates(None, 1)]
    assert [it and (it.update_id, bool(it.tap)) for it in found] == [(1, False), (2, False), (3, True)]


def test_a_poll_waits_for_what_comes(sandbox: Sandbox, bot: TelegramBot) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(bot.updates, None, 20)
        assert eventually(lambda: bool(sandbox.calls("updates")))
        sandbox.telegram.tap("a")
        assert len(waiting.result(timeout=10)) == 1


def test_a_poll_may_take_longer_than_a_call(vendor: ScriptedVendor) -> None:
    def late(connection, stop: threading.Event) -> None:
        stop.wait(0.5)
        says(200, {"ok": True, "result": []})(connection, stop)

    vendor.script = [late, late]
    client = scripted(vendor, 0.2)
    assert client.updates(None, 5) == []
    with pytest.raises(PollFailed) as caught:
        client.delete_webhook()
    assert caught.value.code is Code.TIMEOUT


def test_the_first_of_two_pollers_learns_of_the_other(sandbox: Sandbox, bot: TelegramBot) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(bot.updates, None, 20)
        assert eventually(lambda: bool(sandbox.calls("updates")))
        assert bot.updates(None, 0) == []
        with pytest.raises(PollFailed, match="Only one process") as caught:
            waiting.result(timeout=10)
    assert caught.value.code is Code.CONFLICT


def test_a_webhook_and_a_poll_exclude_each_other(sandbox: Sandbox, bot: TelegramBot, vendor: ScriptedVendor) -> None:
    vendor.script = [says(200)]
    bot.set_webhook(f"{vendor.url}/telegram/webhook", "a-secret")
    with pytest.raises(PollFailed) as caught:
        bot.updates(None, 0)
    assert caught.value.code is Code.CONFLICT
    sandbox.telegram.tap("a")
    assert vendor.seen[0].headers["x-telegram-bot-api-secret-token"] == "a-secret"
    assert parsed(vendor.seen[0].json) == TelegramUpdate(1, 1, tap=Tap("1000", "a"))
    bot.delete_webhook()
    assert bot.updates(None, 0) == []


@pytest.mark.parametrize(("what", "kind_of_error", "error_class", "code"), rows("Telegram"))
def test_what_telegrams_errors_mean(
    sandbox: Sandbox, what: str, kind_of_error: str, error_class: str, code: str
) -> None:
    fault = fault_of(what)
    client = TelegramBot(TOKEN, f"{sandbox.url}/telegram/", 0.3 if fault == "hang" else 5.0)
    sandbox.order(f"telegram#1={fault}")
    with pytest.raises(PollFailed) as caught:
        client.send(42, "text")
    error = caught.value
    assert (type(error).__name__, error.error_class.value, error.code.name) == (kind_of_error, error_class, code)
    assert error.retry_after_s == (1.0 if fault == "429" else None)
    assert error.__cause__ is None
    assert len(sandbox.calls("telegram")) == 1, "asked more than once"
    assert client.send(42, "text")


ODD = [
    says(200, {"ok": True}),
    says(200, {"ok": True, "result": {}}),
    says(200, {"ok": True, "result": {"message_id": "x"}}),
    says(200, {"ok": True, "result": []}),
    says(200, "[]"),
    says(200, "[" * 100_000),
    says(200, '{"ok": true, "result": ' + "[" * 500 + "]" * 500 + "}"),
    says(200, b"\xff\xfe"),
    says(204),
    says(302, Location="https://elsewhere.example/"),
    says(200, b"", Content_Length=str(10 * 2**30)),
]


@pytest.mark.parametrize("answer", ODD)
def test_an_odd_answer_is_a_bad_answer(vendor: ScriptedVendor, answer) -> None:
    vendor.script = [answer]
    with pytest.raises(PollFailed) as caught:
        scripted(vendor).send(42, "text")
    assert caught.value.code is Code.BAD_ANSWER, str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("parameters", [5, [], {"retry_after": "soon"}, {"retry_after": -3}, {"retry_after": 1e300}])
def test_odd_parameters_of_an_error_do_no_harm(vendor: ScriptedVendor, parameters: Any) -> None:
    vendor.script = [says(429, {"ok": False, "description": ["?"], "parameters": parameters})]
    with pytest.raises(PollFailed) as caught:
        scripted(vendor).send(42, "text")
    assert caught.value.code is Code.RATE_LIMIT
    assert caught.value.retry_after_s in (None, 0.0)


@pytest.mark.parametrize(
    "words",
    [
        "chat not found",
        "group chat was upgraded to a supergroup chat",
        "not enough rights to send text messages to the chat",
        "need administrator rights in the channel chat",
        "CHAT_WRITE_FORBIDDEN",
        "PEER_ID_INVALID",
        "TOPIC_CLOSED",
    ],
)
def test_a_chat_that_takes_no_message_is_a_setting_to_fix_and_no_fault_of_the_message(
    vendor: ScriptedVendor, words: str
) -> None:
    vendor.script = [says(400, {"ok": False, "description": f"Bad Request: {words}"})]
    with pytest.raises(PollFailed, match=r"MUSIC\.telegram_chat_id") as caught:
        scripted(vendor).send(42, "text")
    assert caught.value.code is Code.CONFIGURATION


def test_a_chat_that_has_moved_is_named(vendor: ScriptedVendor) -> None:
    vendor.script = [says(400, {"ok": False, "description": "x", "parameters": {"migrate_to_chat_id": -1007}})]
    with pytest.raises(PollFailed, match="-1007") as caught:
        scripted(vendor).send(42, "text")
    assert caught.value.code is Code.CONFIGURATION


def test_an_error_with_status_200_is_an_error(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, {"ok": False, "error_code": 403, "description": "Forbidden"})]
    with pytest.raises(PollFailed) as caught:
        scripted(vendor).send(42, "text")
    assert caught.value.code is Code.UNAUTHORIZED


@pytest.mark.parametrize(
    "act", [cut, hang, drip, page(502), says(404, f"no {TOKEN}"), says(401, {"description": TOKEN}), says(200)]
)
def test_no_error_and_no_log_has_the_token(vendor: ScriptedVendor, diagnosed: io.StringIO, act) -> None:
    vendor.script = [act, act, says(200, {"ok": True, "result": {"message_id": 1}})]
    client = scripted(vendor, 0.4)
    shown = ""
    for ask in (lambda: client.send(42, "text"), lambda: client.updates(None, 0)):
        with pytest.raises(PollFailed) as caught:
            ask()
        shown += f"{caught.value} {caught.value!r}"
    assert client.send(42, "text") == 1
    assert TOKEN not in shown
    assert TOKEN not in diagnosed.getvalue()


def test_an_address_where_nobody_is(deaf_url: str) -> None:
    for url, code in ((closed_port(), Code.NETWORK), (deaf_url, Code.TIMEOUT)):
        with pytest.raises(PollFailed) as caught:
            TelegramBot(TOKEN, url, 0.2).send(42, "text")
        assert caught.value.code is code
        assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("token", ["", "two words", "1:a/b", "1:a?b", "lïne", "1:a\n"])
def test_a_token_that_cannot_be_one_is_reported_at_once(token: str) -> None:
    with pytest.raises(SettingsError, match="TELEGRAM_BOT_TOKEN") as caught:
        TelegramBot(token, None, 1.0)
    assert not token or token not in str(caught.value)


def test_many_threads_share_a_bot(sandbox: Sandbox, bot: TelegramBot) -> None:
    with ThreadPoolExecutor(4) as crowd:
        sent = list(crowd.map(lambda n: bot.send(n + 1, "text"), range(12)))
    assert sorted(sent) == sorted(message["message_id"] for message in sandbox.telegram.messages())
    assert len({*sent}) == 12


def test_threads_may_import_the_library_at_once() -> None:
    script = (
        "import threading\n"
        "from retake.vendors.telegram import TelegramBot\n"
        "made = []\n"
        "def make(): made.append(TelegramBot('1:a-token-of-a-test', None, 1.0))\n"
        "threads = [threading.Thread(target=make) for _ in range(8)]\n"
        "[it.start() for it in threads]\n"
        "[it.join() for it in threads]\n"
        "assert len(made) == 8\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_closed_bot_asks_nothing(sandbox: Sandbox, bot: TelegramBot) -> None:
    bot.close()
    with pytest.raises(PollFailed, match="closed"):
        bot.send(42, "text")
    assert sandbox.calls() == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
fields = st.fixed_dictionaries(
    {"update_id": json_values | st.integers(0, 9)},
    optional={
        "callback_query": json_values
        | st.fixed_dictionaries({}, optional={"id": json_values, "from": json_values, "data": json_values}),
        "message": json_values
        | st.fixed_dictionaries(
            {},
            optional={
                "text": json_values | st.text(),
                "from": json_values | st.fixed_dictionaries({"id": json_values}),
                "chat": json_values | st.fixed_dictionaries({"id": json_values | st.integers()}),
                "reply_to_message": json_values | st.fixed_dictionaries({"message_id": json_values | st.integers()}),
            },
        ),
    },
)


@given(json_values | fields)
def test_nonsense_never_raises_and_never_leaves_its_types(update: Any) -> None:
    found = parsed(update)
    if found is None:
        return
    assert type(found.update_id) is int
    assert found.user_id is None or (type(found.user_id) is int and abs(found.user_id) < 2**63)
    assert found.tap is None or [type(it) for it in found.tap] == [str, str]
    assert found.reply is None or [type(it) for it in found.reply] == [str, int, int]
    json.dumps(found, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "update",
    [None, 5, [], {}, {"update_id": True}, {"update_id": 2**70}, {"update_id": "1"}, {"message": {"text": "x"}}],
)
def test_what_has_no_number_is_not_an_update(update: object) -> None:
    assert parsed(update) is None


def test_nobody_waits_longer_than_a_year_because_telegram_says_so(vendor: ScriptedVendor) -> None:
    vendor.script = [says(429, {"ok": False, "description": "Too Many", "parameters": {"retry_after": 10**14}})]
    with pytest.raises(PollFailed) as caught:
        scripted(vendor).send(42, "text")
    assert caught.value.retry_after_s == 366 * 24 * 3600.0
