"""Messages on Telegram: one per event, in order, whatever Telegram answers."""

import json
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest
from desk import Desk, buttons, turn_of
from sqlalchemy import func, select, update

from retake.errors import StorageError
from retake.music.background import outbox_loop
from retake.music.leases import take_lease
from retake.music.messages import MAX_LENGTH, PENDING, message_of
from retake.music.outbox import LEASE, TelegramOutbox
from retake.music.states import AWAITING_MANUAL
from retake.music.tables import messages
from retake.serving.loop import Loop


def test_each_event_is_reported_once_and_in_order(desk: Desk) -> None:
    desk.rig.sandbox.order("chat#1-3=500")
    row = desk.rig.begun("meta")
    desk.rig.settle()
    desk.rig.actions.retry(row.id)
    desk.rig.approve_until(row, "published")
    for _ in range(2):
        assert desk.outbox.send(30) is None
    told = desk.phone.messages()
    jobs = {job.step: job.id for job in desk.rig.actions.jobs(row.id)}
    assert [buttons(message) for message in told] == [
        [f"ytpub_retry_{row.id}"],
        [f"ytpub_approve_{row.id}_{jobs['meta']}", f"ytpub_cancel_{row.id}_{jobs['meta']}"],
        [f"ytpub_approve_{row.id}_{jobs['review']}", f"ytpub_cancel_{row.id}_{jobs['review']}"],
        [],
    ]
    assert "reply_markup" not in told[-1]
    assert all("Paper Boats" in message["text"] and f"#{row.id}" in message["text"] for message in told)
    assert "meta" in told[0]["text"]
    assert str(desk.rig.actions.jobs(row.id)[2].error)[:60] in told[0]["text"]
    assert str(desk.rig.get(row).youtube_video_id) in told[-1]["text"]


def test_a_text_that_is_too_long_keeps_what_says_what_to_do(desk: Desk) -> None:
    row = desk.rig.begun("meta")._replace(
        state="review_pending",
        review_json=json.dumps({"verdict": "warn", "notes": ["x" * 500] * 20}),
        failed_reason=f"publish: {'x' * 5000}",
    )
    review, _ = message_of(row, PENDING, 1)
    held, _ = message_of(row, AWAITING_MANUAL, 1)
    assert (len(review), len(held)) == (MAX_LENGTH, MAX_LENGTH)
    assert "Verdict: warn" in review
    assert review.endswith("…\nReply to have it done again with your note.")
    assert held.splitlines()[-1].startswith(f"retake music resolve {row.id} VIDEO_ID")


def test_a_process_that_was_frozen_before_its_turn_tells_nothing_twice(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = TelegramOutbox(desk.rig.database, desk.bot, 42, "other")
    desk.rig.begun("meta")
    desk.rig.settle()

    def frozen(*lease: Any) -> bool:
        monkeypatch.setattr("retake.music.outbox.take_lease", take_lease)
        other.send(30)
        desk.rig.later(seconds=31)
        return take_lease(*lease)

    monkeypatch.setattr("retake.music.outbox.take_lease", frozen)
    desk.outbox.send(30)
    assert len(desk.phone.messages()) == 1


def test_while_another_process_sends_this_one_sends_nothing(desk: Desk) -> None:
    desk.rig.begun("meta")
    desk.rig.settle()
    assert take_lease(desk.rig.database, LEASE, "other", 30)
    assert desk.outbox.send(30) is None
    assert desk.phone.messages() == []
    desk.rig.later(seconds=31)  # it is gone
    desk.outbox.send(30)
    assert len(desk.phone.messages()) == 1


def test_what_a_person_has_to_decide_is_reported_without_buttons(desks: Callable[..., Desk]) -> None:
    desk = desks(provider="legnext", workflow={"on_unknown_outcome": "hold"})
    desk.rig.sandbox.order("imagine#1=cut-after")
    row = desk.rig.create()
    desk.rig.settle()
    desk.outbox.send(30)
    assert desk.state(row) == "awaiting_manual"
    [message] = desk.phone.messages()
    assert "reply_markup" not in message
    assert f"#{row.id}" in message["text"]


def test_each_new_failure_is_reported(desk: Desk) -> None:
    row = desk.failed()
    desk.rig.actions.retry(row.id)
    desk.rig.settle()
    desk.outbox.send(30)
    assert [buttons(message) for message in desk.phone.messages()] == [[f"ytpub_retry_{row.id}"]] * 2


@pytest.mark.parametrize("fault", ["500", "cut-before", "401"])
def test_while_telegram_is_away_messages_wait_and_work_does_not(desk: Desk, fault: str) -> None:
    desk.rig.sandbox.order(f"telegram={fault}")
    rows = [desk.rig.begun(step) for step in ("meta", "review", "thumb")]
    for row in rows:
        desk.rig.settle()
        assert desk.outbox.send(30) is not None
        assert desk.state(row).endswith("_pending")
    assert desk.phone.messages() == []
    desk.rig.sandbox.withdraw_orders()
    assert desk.outbox.send(30) is None
    expected = sorted(rows, key=lambda row: desk.rig.actions.jobs(row.id)[-1].finished_at or 0)
    assert len(desk.phone.messages()) == len(expected)
    with desk.rig.database.reading() as cursor:
        order = [found[0] for found in cursor.rows(select(messages.c.pipeline_id).order_by(messages.c.id))]
    assert [f"#{number}" in it["text"] for number, it in zip(order, desk.phone.messages(), strict=True)] == [True] * 3


def test_what_telegram_asks_to_wait_is_waited(desk: Desk) -> None:
    row = desk.rig.begun("meta")
    desk.rig.settle()
    desk.rig.sandbox.order("telegram#1=429")
    assert turn_of(outbox_loop(desk.outbox, 0.25, 30, lambda: False)) == 1.0
    assert desk.phone.messages() == []
    assert turn_of(outbox_loop(desk.outbox, 0.25, 30, lambda: False)) == 0.25
    assert f"#{row.id}" in desk.phone.messages()[0]["text"]


def test_a_message_that_is_refused_does_not_hold_up_the_others(desk: Desk) -> None:
    for _ in range(2):
        desk.rig.begun("meta")
    desk.rig.settle()
    before = len(desk.rig.sandbox.calls("telegram"))
    desk.rig.sandbox.order("telegram#1=400")
    for _ in range(2):
        assert desk.outbox.send(30) is None
    assert len(desk.phone.messages()) == 1
    assert len(desk.rig.sandbox.calls("telegram")) - before == 2


@pytest.mark.parametrize("buttons", ["[null]", "{}", '[["a"]]', "[[1, 2]]", "no JSON", "[" * 9000, "5"])
def test_a_message_whose_buttons_are_invalid_does_not_hold_up_the_others(desk: Desk, buttons: str) -> None:
    for _ in range(2):
        desk.rig.begun("meta")
    desk.rig.settle()
    with desk.rig.database.transaction() as cursor:
        first = cursor.row(select(func.min(messages.c.id)))[0]
        cursor.change(update(messages).where(messages.c.id == first).values(buttons=buttons))
    assert desk.outbox.send(30) is None
    assert len(desk.phone.messages()) == 1


@pytest.mark.parametrize("error", [StorageError("the database is away"), KeyError("a bug")])
def test_what_goes_wrong_in_one_turn_does_not_end_the_loop(error: Exception) -> None:
    turns, done = [0], Event()

    def turn() -> float:
        turns[0] += 1
        if turns[0] == 1:
            raise error
        done.set()
        return 60.0

    loop = Loop("test", turn, error_pause_s=0.0)
    loop.start()
    assert done.wait(60)
    loop.stop()
    loop.join(60)
    assert turns == [2]
