"""The documents of alerts: closed alerts move to the document of their day, and an invalid document is left alone."""

import json
import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import pytest
from alert_world import START
from delivery_world import FAILED, DeliveryWorld, cause, failing

from retake.alerts.board import OPEN, RESOLVED
from retake.alerts.channels import post
from retake.alerts.channels.sending import send
from retake.alerts.delivery import message_of
from retake.alerts.wording import text
from retake.bucket import ANY
from retake.errors import StateError
from retake.testing.logs import CapturedLogs
from retake.vendors.answers import Reply


def fail_on(world: DeliveryWorld, days: Iterable[int]) -> None:
    """Let something fail for a minute on each of the days, and file its alert."""
    for day in days:
        world.clock.moment = START + timedelta(days=day)
        world.tick(failing(day))
        world.later(60)
        world.tick()
        world.later(600)
        world.tick()


def test_what_is_over_moves_to_the_document_of_its_day_and_is_kept_for_30_days() -> None:
    world = DeliveryWorld()
    fail_on(world, range(40))
    keys = [it.key for it in world.bucket.list("alerts/")]
    assert keys[0] == "alerts/2026-03-11.json"
    assert keys[-2:] == ["alerts/2026-04-10.json", "alerts/state.json"]
    [alert] = json.loads(world.bucket.read("alerts/2026-04-10.json")[0])["alerts"]
    assert (alert["state"], alert["closed_at"]) == (RESOLVED, "2026-04-10T10:01:00Z")
    history = world.store.history(world.clock.now())
    assert len(history) == 31
    assert history == sorted(history, key=lambda it: it.closed_at or "", reverse=True)


def test_a_clock_that_is_far_ahead_removes_no_history() -> None:
    world = DeliveryWorld()
    fail_on(world, (0, 1, 2, 400, 3))
    closed = [(it.closed_at or "")[:10] for it in world.store.history(world.clock.now())]
    assert closed == ["2027-04-06", "2026-03-05", "2026-03-04", "2026-03-03", "2026-03-02"]


@pytest.mark.parametrize("broken", [b"{", b"[]", b'{"alerts": 5}', b'{"alerts": [5]}'])
def test_an_invalid_document_of_a_day_keeps_nothing_from_being_sent(broken: bytes) -> None:
    world = DeliveryWorld()
    world.tick(failing())
    world.later(60)
    world.tick()
    world.bucket.write("alerts/2026-03-02.json", broken, ANY)
    world.later(600)
    with CapturedLogs() as logs:
        world.tick(cause("another"))
    assert "ended alerts could not be filed" in "\n".join(record.getMessage() for record in logs.records)
    assert world.service.events() == ["trigger", "resolve", "trigger"]
    assert world.bucket.read("alerts/2026-03-02.json")[0] == broken
    with pytest.raises(StateError, match=r"2026-03-02"):
        world.store.history(world.clock.now())
    world.bucket.delete("alerts/2026-03-02.json")
    world.later(60)
    world.tick(cause("another"))
    assert [it.key for it in world.store.history(world.clock.now())] == [failing().key]


def test_an_invalid_document_of_a_day_keeps_the_alerts_of_other_days_from_nothing() -> None:
    world = DeliveryWorld()
    world.bucket.write("alerts/2026-03-02.json", b"{", ANY)
    fail_on(world, range(3))
    keys = [it.key for it in world.bucket.list("alerts/")]
    assert keys == [f"alerts/{it}.json" for it in ("2026-03-02", "2026-03-03", "2026-03-04", "state")]
    assert [it.closed_at for it in world.board.ended] == ["2026-03-02T10:01:00Z"]
    with CapturedLogs() as logs:
        assert len(world.store.history(world.clock.now(), tolerant=True)) == 2
    assert "2026-03-02" in logs.records[0].getMessage()


@pytest.mark.parametrize(
    ("field", "value"),
    [("id", float("nan")), ("id", []), ("at", None), ("subject_id", 7), ("title", None), ("text", {})],
    ids=str,
)
def test_a_message_with_a_field_that_is_not_text_is_sent_to_nobody_and_named(field: str, value: object) -> None:
    world = DeliveryWorld()
    world.look(failing())
    board = json.loads(world.bucket.read("alerts/state.json")[0])
    board["channels"]["all"]["queue"][0][field] = value
    broken = json.dumps(board).encode()
    world.bucket.write("alerts/state.json", broken, ANY)
    with pytest.raises(StateError, match=rf"alerts/state\.json: channels\.all\.queue: {field}: is not text"):
        world.deliver()
    assert world.service.events() == []
    assert world.bucket.read("alerts/state.json")[0] == broken


def test_what_an_alert_or_a_message_lacks_is_named() -> None:
    world = DeliveryWorld()
    world.look(failing())
    board = json.loads(world.bucket.read("alerts/state.json")[0])
    message = board["channels"]["all"]["queue"][0]
    for changed, told in (
        (
            {"alerts": [{"id": "a-1", "level": "error"}]},
            "an alert: has no key, code, title, occurrences, seen, first_at",
        ),
        ({"channels": {"all": {"queue": [{**message, "event": None}]}}}, "None is not a valid AlertEvent"),
        (
            {"channels": {"all": {"queue": [{"id": "m", "at": "x"}]}}},
            "all.queue: has no event, subject_id, title, text",
        ),
    ):
        world.bucket.write("alerts/state.json", json.dumps({**board, **changed}).encode(), ANY)
        with pytest.raises(StateError, match=re.escape(told)):
            world.deliver()


def rewrite(world: DeliveryWorld, change: Callable[[Any], object]) -> None:
    """Change the board as a person with an editor would."""
    board = json.loads(world.bucket.read("alerts/state.json")[0])
    change(board)
    world.bucket.write("alerts/state.json", json.dumps(board).encode(), ANY)


@pytest.mark.parametrize("field", ["level", "link", "pipelines"])
@pytest.mark.parametrize("value", [None, -1, ["x"], {"x": 1}], ids=str)
def test_a_message_is_sent_without_an_invalid_part(field: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    posted: list[object] = []

    def take(*request: object, **more: Any) -> Reply:
        posted.append(more["json"])
        return Reply(202, {}, b"{}")

    monkeypatch.setattr(post, "exchange", take)
    world = DeliveryWorld(channels={"all": {"kind": "pagerduty", "levels": ["warning"], "hours": "any"}})
    world.look(failing())

    def edit(board: Any) -> None:
        message = board["channels"]["all"]["queue"][0]
        (message["fields"] if field == "pipelines" else message)[field] = value

    rewrite(world, edit)
    world.service.plan("all", lambda: send(world.settings.channels[0], "a-key", message_of(world.queue().queue[0]), 5))
    world.deliver()
    assert len(posted) == 1
    assert world.queue().queue == ()


DESCRIPTION = (
    *("message", "follows", "command", "since", "generation_id", "step", "attempt", "error_class", "error_code"),
    *("acknowledged_by", "state"),
)


@pytest.mark.parametrize(
    ("field", "value"),
    [*((field, it) for field in DESCRIPTION for it in (None, True, 404, [None], {"x": 1})), ("seen", {"story": 5})],
    ids=str,
)
def test_an_alert_is_reported_without_an_invalid_part(field: str, value: object) -> None:
    world = DeliveryWorld()
    world.tick(failing())
    rewrite(world, lambda board: board["alerts"][0].update({field: value}))
    world.later(901)
    world.tick(failing())
    [alert] = world.active().values()
    assert (alert.state, alert.message) == (OPEN, "")
    assert text(alert, "https://example.com")
    assert world.service.events() == ["trigger", "repeat"]
    world.tick()
    assert world.service.events() == ["trigger", "repeat", "resolve"]


@pytest.mark.parametrize("value", [None, 5, ["x"], {"x": 1}], ids=str)
def test_what_is_known_of_an_invalid_channel_is_ignored(value: object) -> None:
    world = DeliveryWorld()
    world.tick(failing())
    rewrite(world, lambda board: board["channels"]["all"].update(last_delivered_at=value, last_error=value))
    assert (world.queue().last_delivered_at, world.queue().last_error) == (None, None)
    world.tick()
    assert world.service.events() == ["trigger", "resolve"]


def test_an_invalid_time_of_a_channel_is_named() -> None:
    world = DeliveryWorld()
    world.tick(failing())
    rewrite(world, lambda board: board["channels"]["all"].update(last_delivered_at="late"))
    with pytest.raises(StateError, match=r"alerts/state\.json: channels\.all: last_delivered_at: is not a time"):
        world.store.read()


def test_what_waits_for_a_channel_of_another_program_is_kept_for_a_week() -> None:
    world = DeliveryWorld()
    other = DeliveryWorld(world.bucket, world.service, world.clock, channels={"own": {"kind": "webhook"}})
    world.service.plan("all", FAILED)
    world.tick(failing())
    other.tick(cause("upscale"))
    assert [it.event.value for it in other.queue("all").queue] == ["trigger", "resolve"]
    world.later(60)
    world.deliver()
    assert world.service.events() == ["trigger", "resolve"]
    world.service.plan("all", *[FAILED] * 9)
    world.later(3600)
    world.tick(failing(2))
    assert other.queue("all").queue
    world.later(7 * 86400)
    other.tick(cause("upscale"))
    assert "all" not in world.board.channels
