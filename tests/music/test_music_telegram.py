"""Taps and replies on Telegram act once, whatever dies in between, and are answered."""

import json
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from deaths import Fate, make_mortal
from desk import ME, STRANGER, Desk, buttons, turn_of
from sqlalchemy import insert, select, text, update

from retake.errors import StorageError
from retake.music.api import Webhook, music_app
from retake.music.background import poll_loop, webhook_loop
from retake.music.tables import messages, pipeline_jobs, updates
from retake.music.telegram import TelegramInbox
from retake.operations.port import Refusal
from retake.serving.server import ApiServer, address_of, listen
from retake.testing.vendors import Died

sys.path.append(str(Path(__file__).parents[1]))

from together import at_once

# --- taps -----------------------------------------------------------------------------------------------------------


def test_a_tap_is_answered_with_the_step(desk: Desk) -> None:
    row, message = desk.pending()
    told = desk.phone.messages()[-1]
    desk.phone.tap(buttons(told)[0], message_id=message)
    desk.poll()
    assert desk.state(row) == "review_running"
    assert desk.answers() == [f"#{row.id}: review begins"]
    assert desk.rig.work() == 1


def test_a_tap_to_retry_does_the_failed_step_again(desk: Desk) -> None:
    row = desk.failed()
    desk.phone.tap(f"ytpub_retry_{row.id}")
    desk.poll()
    assert desk.state(row) == "video_running"
    assert desk.rig.get(row).take == row.take, "paid work is kept"
    assert "video" in desk.answers()[0]


def test_a_tap_to_cancel_cancels(desk: Desk) -> None:
    row, _ = desk.pending()
    desk.phone.tap(buttons(desk.phone.messages()[-1])[1])
    desk.poll()
    assert desk.state(row) == "cancelled"
    assert len(desk.answers()) == 1


def test_a_refused_tap_is_answered_with_the_reason_that_the_api_gives(desk: Desk) -> None:
    row, _ = desk.pending()
    with pytest.raises(Refusal) as refused:
        desk.rig.actions.retry(row.id)
    desk.phone.tap(f"ytpub_retry_{row.id}")
    desk.phone.tap("ytpub_retry_99999")
    desk.poll()
    assert desk.answers()[0] == str(refused.value)
    assert "99999" in desk.answers()[1]
    assert desk.rig.get(row) == row


def test_a_tap_on_a_row_that_cannot_be_read_holds_up_no_other_update(desk: Desk) -> None:
    odd, good = desk.failed(), desk.failed()
    with desk.rig.database.transaction() as cursor:
        cursor.change(text("UPDATE pipelines SET created_at = 'yesterday' WHERE id = 1"))
    for row in (odd, good):
        desk.phone.tap(f"ytpub_retry_{row.id}")
    desk.poll()
    assert desk.state(good) == "video_running"
    assert "'yesterday' is invalid" in desk.answers()[0]


@pytest.mark.parametrize("verb", ["approve", "cancel"])
def test_the_button_of_an_earlier_result_is_refused(desk: Desk, verb: str) -> None:
    row, _ = desk.pending()
    old = next(it for it in buttons(desk.phone.messages()[-1]) if verb in it)
    desk.rig.actions.feedback(row.id, "shorter")
    desk.rig.settle()
    now = desk.rig.get(row)
    desk.phone.tap(old)
    desk.phone.tap(old.rpartition("_")[0])
    desk.poll()
    assert desk.rig.get(row) == now
    assert all("(state=meta_pending)" in answer for answer in desk.answers())


def test_the_buttons_of_a_row_from_outside_name_its_latest_attempt(desk: Desk) -> None:
    row = desk.rig.before("meta")
    with desk.rig.database.transaction() as cursor:
        for _ in range(2):
            cursor.change(insert(pipeline_jobs).values(pipeline_id=row.id, step="thumb", status="succeeded"))
    first, second = (job.id for job in desk.rig.actions.jobs(row.id))
    desk.phone.tap(f"ytpub_approve_{row.id}_{first}")
    desk.poll()
    assert desk.state(row) == "thumb_pending"
    desk.phone.tap(f"ytpub_approve_{row.id}_{second}")
    desk.poll()
    assert desk.state(row) == "meta_running"


def test_a_stranger_changes_nothing(desk: Desk) -> None:
    row, message = desk.pending()
    for data in buttons(desk.phone.messages()[-1]):
        desk.phone.tap(data, from_id=STRANGER)
    desk.phone.reply("make it mine", to=message, from_id=STRANGER)
    desk.poll()
    assert desk.rig.get(row) == row
    assert len(desk.answers()) == 2
    assert desk.phone.unconfirmed() != []
    desk.poll()
    assert desk.phone.unconfirmed() == []


def test_without_allowed_users_everyone_is_refused(desk: Desk) -> None:
    row = desk.failed()
    desk.phone.tap(f"ytpub_retry_{row.id}")
    TelegramInbox(desk.rig.actions, desk.bot, []).take(desk.phone.unconfirmed()[0])
    assert desk.rig.get(row) == row


def test_an_update_that_comes_again_acts_once_and_is_answered_again(desk: Desk) -> None:
    row = desk.failed()
    desk.phone.tap(f"ytpub_retry_{row.id}")
    [update] = desk.phone.unconfirmed()
    before = len(desk.rig.sandbox.calls("telegram"))
    desk.inbox.take(update)
    began = desk.rig.get(row)
    desk.rig.settle()
    failed = desk.rig.get(row)
    assert failed.state == "failed"
    desk.begin()
    desk.inbox.take(update)
    assert desk.rig.get(row) == failed
    assert began.run_number == failed.run_number
    assert len(desk.rig.sandbox.calls("telegram")) - before == 2


def test_updates_that_are_too_old_to_come_again_are_not_kept(desk: Desk) -> None:
    for _ in range(3):
        desk.phone.tap("ytpub_retry_1")
        desk.poll()
        desk.rig.clock.sleep(timedelta(days=3).total_seconds())
    with desk.rig.database.reading() as cursor:
        assert [row[0] for row in cursor.rows(select(updates.c.update_id).order_by(updates.c.update_id))] == [2, 3]


def test_a_tap_whose_answer_fails_is_answered_later(desk: Desk) -> None:
    row = desk.failed()
    desk.rig.sandbox.order("telegram#1=500")
    desk.phone.tap(f"ytpub_retry_{row.id}")
    desk.poll()
    assert desk.state(row) == "video_running"
    assert desk.answers() == []
    desk.poll()
    assert len(desk.answers()) == 1


def test_an_answer_that_telegram_refuses_is_not_sent_again(desk: Desk) -> None:
    desk.failed()
    desk.rig.sandbox.order("telegram=400")
    desk.phone.tap("ytpub_retry_1")
    desk.poll()
    before = len(desk.rig.sandbox.calls("telegram"))
    for _ in range(3):
        desk.inbox.answer()
    assert len(desk.rig.sandbox.calls("telegram")) == before


@pytest.mark.parametrize("kind", ["retry", "approve", "stranger"])
def test_whenever_it_dies_a_tap_acts_once_and_is_answered(
    desks: Callable[..., Desk], url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, fate = desks(url), Fate()
    model, _ = desk.pending()
    make_mortal(desk.rig.database.database, fate, monkeypatch)
    number, points = 0, 1
    while number < points:
        fate.reset()
        row = desk.rig.before("review", run_number=3, current_job=model.current_job)
        if kind == "retry":
            row = desk.rig.actions.change(row.id, lambda *_: {"state": "failed", "failed_reason": "review: no"})
        known = len(desk.answers())
        verb = "retry" if kind == "retry" else f"approve_{row.id}_{row.current_job}"
        desk.phone.tap(
            f"ytpub_retry_{row.id}" if kind == "retry" else f"ytpub_{verb}",
            from_id=STRANGER if kind == "stranger" else ME,
        )
        fate.reset(number)
        for _ in range(3):
            try:
                desk.poll()
            except Died:
                desk.begin()
        points = max(points, fate.count if number == 0 else points)
        fate.reset()
        desk.rig.upkeep.look()
        after = desk.rig.get(row)
        assert after.run_number - row.run_number == (kind != "stranger"), number
        assert len(desk.answers()) == known + 1, number
        runs = desk.rig.database.ledger.of_task(row.task_id)
        assert len(runs) == (kind != "stranger"), number
        desk.rig.actions.cancel(row.id)
        number += 1
    assert number > 8


def test_the_offset_moves_once_the_update_is_saved(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    row = desk.failed()
    desk.phone.tap(f"ytpub_retry_{row.id}")

    def full(*_: Any, **__: Any) -> Any:
        raise StorageError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(desk.inbox, "_carried_out", full)
        with pytest.raises(StorageError):
            desk.poll()
    assert desk.inbox.offset is None
    assert desk.state(row) == "failed"
    desk.poll()
    assert desk.state(row) == "video_running"
    assert desk.inbox.offset == desk.phone.unconfirmed()[0]["update_id"] + 1


@pytest.mark.parametrize("off", [timedelta(days=3650), timedelta(days=-10)], ids=["ahead", "behind"])
def test_what_a_wrong_clock_has_taken_is_not_asked_for_again_and_keeps_no_later_one_back(
    desk: Desk, off: timedelta
) -> None:
    right = desk.rig.clock.moment
    desk.rig.clock.moment += off
    desk.phone.push({"message": "nonsense"})
    desk.poll()
    desk.rig.clock.moment = right
    assert desk.inbox.offset is None  # Telegram may count from another number by now
    desk.poll()
    known = desk.phone.unconfirmed()[0]["update_id"]
    assert desk.inbox.offset == known + 1
    desk.poll()
    assert desk.phone.unconfirmed() == []


NONSENSE: tuple[dict[str, Any], ...] = (
    {"callback_query": {"id": 5, "data": {}}},
    {"callback_query": {"id": "a\0b", "data": "ytpub_retry_1", "from": {"id": ME}}},
    {"message": "nonsense"},
    {"message": {"text": "\0", "chat": {"id": 1}, "from": {"id": ME}, "reply_to_message": {"message_id": 1}}},
    {"something_new": {"id": [1, 2]}},
)
LONE = "\ud800"
"""What no database accepts, nor the stand-in for Telegram."""


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_what_cannot_be_read_is_stepped_over(
    desks: Callable[..., Desk], kind: str, request: pytest.FixtureRequest
) -> None:
    desk = desks(request.getfixturevalue("database_url") if kind == "postgresql" else "")
    row = desk.failed()
    for nonsense in NONSENSE:
        desk.phone.push(nonsense)
    desk.phone.tap(f"ytpub_retry_{row.id}")
    desk.poll()
    assert desk.state(row) == "video_running"
    desk.poll()
    assert desk.phone.unconfirmed() == []
    for number, query in enumerate(({"id": LONE, "data": "x"}, {"id": "q", "data": LONE}), 1000):
        desk.inbox.take({"update_id": number, "callback_query": {**query, "from": {"id": ME}}})
    reply = {"text": LONE, "chat": {"id": 1}, "from": {"id": ME}, "reply_to_message": {"message_id": 1}}
    desk.inbox.take({"update_id": 1002, "message": reply})
    assert desk.inbox.offset == 1003


@pytest.mark.parametrize("found", [[{"update_id": None}], []])
def test_where_nothing_can_be_taken_it_is_asked_for_at_leisure(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, found: list[Any]
) -> None:
    monkeypatch.setattr(desk.bot, "updates", lambda offset, timeout_s: found)
    assert turn_of(poll_loop(desk.bot, desk.inbox, "me", 25)) >= 1.0


# --- replies --------------------------------------------------------------------------------------------------------


def test_a_reply_is_feedback(desk: Desk) -> None:
    row, message = desk.pending()
    desk.phone.reply("  shorter\nand warmer ", to=message)
    desk.poll()
    assert desk.state(row) == "meta_running"
    assert desk.rig.get(row).note == "shorter\nand warmer"
    desk.rig.settle()
    assert desk.rig.actions.jobs(row.id)[-1].feedback == "shorter\nand warmer"


def test_a_reply_to_an_earlier_message_changes_nothing(desk: Desk) -> None:
    row, old = desk.pending()
    desk.rig.actions.feedback(row.id, "shorter")
    desk.rig.settle()
    desk.outbox.send(30)
    now = desk.rig.get(row)
    desk.phone.reply("longer", to=old)
    desk.phone.reply("about nothing", to=424242)
    desk.phone.reply(" \n ", to=old)
    desk.poll()
    assert desk.rig.get(row) == now


def test_a_reply_in_another_chat_is_about_none_of_its_messages(desk: Desk) -> None:
    row, message = desk.pending()
    elsewhere = {"message_id": message, "date": 0, "chat": {"id": 7, "type": "private"}}
    text = {"message_id": 9, "date": 0, "chat": {"id": 7, "type": "private"}, "from": {"id": ME}, "text": "no"}
    desk.phone.push({"message": {**text, "reply_to_message": elsewhere}})
    desk.poll()
    assert desk.rig.get(row) == row


def test_in_a_chat_that_counts_its_messages_anew_a_reply_is_about_the_latest(desk: Desk) -> None:
    old, _ = desk.pending()
    row, message = desk.pending()
    with desk.rig.database.transaction() as cursor:
        cursor.change(update(messages).where(messages.c.pipeline_id == old.id).values(message_id=message))
    desk.phone.reply("shorter", to=message)
    desk.poll()
    assert (desk.state(old), desk.state(row)) == ("meta_pending", "meta_running")


# --- poll and webhook -----------------------------------------------------------------------------------------------


def test_polling_begins_by_deleting_the_webhook(desk: Desk) -> None:
    desk.bot.set_webhook("http://127.0.0.1:9/telegram/webhook", "secret")
    row = desk.failed()
    desk.phone.tap(f"ytpub_retry_{row.id}")
    desk.poll()
    assert desk.state(row) == "video_running"


def test_one_process_polls_at_a_time(desks: Callable[..., Desk]) -> None:
    first, second = desks(), desks()
    first.poll()
    before = len(first.rig.sandbox.calls("updates"))
    assert turn_of(poll_loop(second.bot, second.inbox, "another", 0)) == 5.0
    assert len(first.rig.sandbox.calls("updates")) == before
    first.rig.later(seconds=61)
    row = second.failed()
    second.phone.tap(f"ytpub_retry_{row.id}")
    turn_of(poll_loop(second.bot, second.inbox, "another", 0))
    assert second.state(row) == "video_running"


def test_a_webhook_is_set_with_its_secret_and_takes_updates(desk: Desk) -> None:
    stopped = threading.Event()
    app = music_app(desk.rig.actions, desk.rig.bucket, "key", webhook=Webhook("hook-secret", desk.inbox.take))
    with listen("127.0.0.1", 0) as listener:
        server = ApiServer(app, listener, signals=lambda: int(stopped.is_set()))
        thread = threading.Thread(target=server.serve_until_stopped)
        thread.start()
        try:
            address = address_of(listener, "127.0.0.1")
            turn_of(webhook_loop(desk.bot, desk.inbox, address, "hook-secret"))
            row = desk.failed()
            desk.phone.tap(f"ytpub_retry_{row.id}")
            assert desk.state(row) == "video_running"
            assert desk.phone.unconfirmed() == []
            assert len(desk.answers()) == 1
            update = json.dumps({"update_id": 77, "callback_query": {"id": "q", "data": "x", "from": {"id": ME}}})
            header = "X-Telegram-Bot-Api-Secret-Token"
            statuses = [
                requests.post(f"{address}/telegram/webhook", update, headers=headers, timeout=10).status_code
                for headers in ({}, {header: "wrong"}, {header: "hook-secret"}, {header: "hook-secret"})
            ]
            assert statuses == [403, 403, 200, 200]
        finally:
            stopped.set()
            thread.join(60)
    assert desk.inbox.offset == 78


# --- many at once ---------------------------------------------------------------------------------------------------


def test_one_of_twenty_simultaneous_taps_and_calls_counts(desks: Callable[..., Desk], url: str) -> None:
    pair = desks(url), desks(url)
    row = pair[0].failed()
    runs = len(pair[0].rig.database.ledger.of_task(row.task_id))
    for _ in range(10):
        pair[0].phone.tap(f"ytpub_retry_{row.id}")
    taps = pair[0].phone.unconfirmed()
    begun: list[str] = []

    def call(number: int) -> None:
        try:
            begun.append(pair[number % 2].rig.actions.retry(row.id).state)
        except Refusal as error:
            assert str(error).endswith("(state=video_running)")  # noqa: PT017

    calls: list[Callable[[], None]] = []
    for number in range(10):
        calls.append(lambda number=number: call(number))  # type: ignore[misc]
        calls.append(lambda number=number: pair[number % 2].inbox.take(taps[number]))  # type: ignore[misc]
    at_once(calls)
    said = [answer for answer in pair[0].answers() if answer.endswith("begins")]
    assert len(begun) + len(said) == 1
    assert len(pair[0].answers()) == 10
    assert pair[0].rig.get(row).run_number == row.run_number + 1
    assert len(pair[0].rig.database.ledger.of_task(row.task_id)) == runs + 1


def test_one_update_that_two_processes_take_at_once_acts_once(desks: Callable[..., Desk], url: str) -> None:
    pair = desks(url), desks(url)
    row = pair[0].failed()
    pair[0].phone.tap(f"ytpub_retry_{row.id}")
    [update] = pair[0].phone.unconfirmed()
    at_once([lambda desk=desk: desk.inbox.take(update) for desk in pair * 4])  # type: ignore[misc]
    assert pair[0].rig.get(row).run_number == row.run_number + 1
    with pair[0].rig.database.reading() as cursor:
        assert len(cursor.rows(select(updates.c.update_id))) == 1
    assert pair[0].answers() == [f"#{row.id}: video begins"]
