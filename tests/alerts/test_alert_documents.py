"""The documents of alerts: what is over is kept in that of its day, and one that makes no sense is left as it is."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from alert_world import START
from delivery_world import DeliveryWorld, cause, failing

from retake.alerts.board import RESOLVED
from retake.bucket import ANY
from retake.errors import StateError
from retake.testing.logs import CapturedLogs


def test_what_is_over_moves_to_the_document_of_its_day_and_is_kept_for_30_days() -> None:
    world = DeliveryWorld()
    for day in range(40):
        world.clock.moment = START + timedelta(days=day)
        world.tick(failing(day))
        world.later(60)
        world.tick()
        world.later(600)
        world.tick()
    keys = [it.key for it in world.bucket.list("alerts/")]
    assert keys[0] == "alerts/2026-03-11.json"
    assert keys[-2:] == ["alerts/2026-04-10.json", "alerts/state.json"]
    [alert] = json.loads(world.bucket.read("alerts/2026-04-10.json")[0])["alerts"]
    assert (alert["state"], alert["closed_at"]) == (RESOLVED, "2026-04-10T10:01:00Z")
    history = world.store.history(world.clock.now())
    assert len(history) == 31
    assert history == sorted(history, key=lambda it: it.closed_at or "", reverse=True)


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
    assert "alerts that are over could not be filed" in "\n".join(record.getMessage() for record in logs.records)
    assert world.service.events() == ["trigger", "resolve", "trigger"]
    assert world.bucket.read("alerts/2026-03-02.json")[0] == broken
    with pytest.raises(StateError, match=r"2026-03-02"):
        world.store.history(world.clock.now())
    world.bucket.delete("alerts/2026-03-02.json")
    world.later(60)
    world.tick(cause("another"))
    assert [it.key for it in world.store.history(world.clock.now())] == [failing().key]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("id", float("nan")), ("id", []), ("at", None), ("subject_id", 7), ("title", None), ("text", {})],
        *[("level", ["x"]), ("link", -1)],
    ],
    ids=str,
)
def test_a_message_with_a_field_that_is_no_text_is_sent_to_nobody_and_named(field: str, value: object) -> None:
    world = DeliveryWorld()
    world.look(failing())
    board = json.loads(world.bucket.read("alerts/state.json")[0])
    board["channels"]["all"]["queue"][0][field] = value
    broken = json.dumps(board).encode()
    world.bucket.write("alerts/state.json", broken, ANY)
    with pytest.raises(StateError, match=rf"alerts/state\.json: channels\.all\.queue: {field}: no text"):
        world.deliver()
    assert world.service.events() == []
    assert world.bucket.read("alerts/state.json")[0] == broken


def test_a_message_about_something_other_than_a_list_of_pipelines_is_named() -> None:
    world = DeliveryWorld(channels={"all": {"kind": "pagerduty", "levels": ["warning"], "hours": "any"}})
    world.look(failing())
    rewrite(world, lambda board: board["channels"]["all"]["queue"][0]["fields"].update(pipelines=7))
    with pytest.raises(StateError, match=r"channels\.all\.queue: fields\.pipelines: no list"):
        world.deliver()


def rewrite(world: DeliveryWorld, change: Callable[[Any], object]) -> None:
    """What a person makes of the board with an editor."""
    board = json.loads(world.bucket.read("alerts/state.json")[0])
    change(board)
    world.bucket.write("alerts/state.json", json.dumps(board).encode(), ANY)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        *[("message", None, "message: no text"), ("message", [None], "message: no text")],
        *[("follows", 1, "follows: no text"), ("command", {}, "command: no text"), ("since", True, "since: no text")],
        *[("error_code", 404, "error_code: no text"), ("generation_id", [], "generation_id: no text")],
        *[("acknowledged_by", 7, "acknowledged_by: no text"), ("seen", [[1, 2]], "seen: no object of texts")],
        ("seen", {"story": None}, "seen: no object of texts"),
    ],
    ids=str,
)
def test_an_alert_with_a_field_that_is_no_text_is_named(field: str, value: object, words: str) -> None:
    world = DeliveryWorld()
    world.tick(failing())
    rewrite(world, lambda board: board["alerts"][0].update({field: value}))
    with pytest.raises(StateError, match=rf"alerts/state\.json: an alert: {words}"):
        world.store.read()


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("last_delivered_at", "late", "no time"),
        ("last_delivered_at", [1], "no time"),
        ("last_error", 5, "no text"),
    ],
    ids=str,
)
def test_a_channel_with_a_field_that_is_neither_time_nor_text_is_named(field: str, value: object, words: str) -> None:
    world = DeliveryWorld()
    world.tick(failing())
    rewrite(world, lambda board: board["channels"]["all"].update({field: value}))
    with pytest.raises(StateError, match=rf"alerts/state\.json: channels\.all: {field}: {words}"):
        world.store.read()
