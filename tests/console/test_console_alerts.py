"""`alerts`: what people and programs see of alerts and can do about them, with real HTTP to stand-ins."""

import json
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from reading_world import KEYS, ask, finish, shown

sys.path.append(str(Path(__file__).parent.parent / "story"))

from watched_world import WatchedWorld

from retake.clock import stamp
from retake.console.alerts import (
    acknowledge,
    close,
    deliver,
    list_alerts,
    report,
    show_alert,
)
from retake.console.alerts import test as try_channels
from retake.console.answer import Answer
from retake.console.command_context import CommandContext
from retake.console.rendering import show
from retake.exit_codes import ExitCode
from retake.operations.port import Refusal
from retake.sandbox import Sandbox
from retake.sandbox.notices import addresses

CHANNELS = {"all": {"kind": "webhook"}}
FIELDS = [
    *("id", "key", "code", "level", "error_class", "error_code", "state", "count", "pipelines", "generation_id"),
    *("step", "title", "text", "first_at", "last_at", "acknowledged_by"),
]


def environ(sandbox: Sandbox) -> dict[str, str]:
    return {
        "ALERT_WEBHOOK_URL": addresses(sandbox.url)["webhook"],
        "SLACK_WEBHOOK_URL": addresses(sandbox.url)["slack"],
        "PAGERDUTY_ROUTING_KEY": "a-routing-key",
    }


def world_of(sandbox: Sandbox, channels: Any = None, **alerts: Any) -> WatchedWorld:
    waits = {"timeout_seconds": 60, "tick_wait_seconds": 60}  # enough for a busy machine
    return WatchedWorld(alerts={"channels": channels or CHANNELS, **waits, **alerts}, environ=environ(sandbox))


def context(world: WatchedWorld) -> CommandContext:
    return CommandContext(world.environ, clock=world.clock, bucket=world.bucket, settings=world.settings, keys=KEYS)


def failing(world: WatchedWorld) -> str:
    """Let two tries of the pictures fail; return the id of the alert."""
    world.vendors.plan("imagine", "refused", "refused", "refused", "refused")
    while "step_failing" not in world.alerts():
        world.tick()
    return world.alerts()["step_failing"].id


def sent(sandbox: Sandbox, before: int, kind: str = "webhook") -> list[str]:
    return [str(call.request.get("event") or call.request) for call in sandbox.calls(kind)[before:]]


def narrow(answer: Answer) -> str:
    from io import StringIO

    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    show(answer, stream, as_json=False)
    return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())


def test_without_alerts_and_channels_it_says_so() -> None:
    answer = ask(list_alerts, context(WatchedWorld()), ended=False)
    assert answer.document == {"alerts": [], "channels": []}
    assert "No alert is open." in shown(answer)
    assert "ALERTS.channels is empty" in shown(answer)


def test_with_a_sandbox_no_channel_is_told_and_that_is_the_reason_given() -> None:
    world = WatchedWorld()
    world.environ = {"RETAKE_SANDBOX_URL": "http://127.0.0.1:1"}
    why = "RETAKE_SANDBOX_URL is set, and a sandbox notifies none"
    assert f"No channel is notified: {why}" in shown(ask(list_alerts, context(world), ended=False))
    with pytest.raises(Refusal, match=f"there is no channel to test: {why}"):
        ask(try_channels, context(world), name=None)


def test_the_list_has_the_alerts_the_most_severe_first_and_the_channels(sandbox: Sandbox) -> None:
    world = world_of(sandbox)
    failing(world)
    world.panel.set(3, None, "a drill")
    world.tick()
    answer = ask(list_alerts, context(world), ended=False)
    assert [list(it) for it in answer.document["alerts"]] == [FIELDS, FIELDS]
    assert [it["code"] for it in answer.document["alerts"]] == ["degraded", "step_failing"]
    [channel] = answer.document["channels"]
    assert (channel["name"], channel["kind"], channel["waiting"], channel["last_error"]) == ("all", "webhook", 0, None)
    text = shown(answer)
    assert "imagine fails: 2 tries without a result" in text
    assert "Degraded mode 3: nothing runs" in text


def test_show_has_where_what_since_when_how_often_and_what_to_do(sandbox: Sandbox) -> None:
    world = world_of(sandbox, web_url="https://dash.example")
    name = failing(world)
    text = shown(ask(show_alert, context(world), alert_id=name))
    for part in (
        f"alert {name}: imagine fails: 2 tries without a result",
        "step imagine, attempt 2/4",
        "ERR_TEMPORARY_UNAVAILABLE (class A): imagine: HTTP 500",
        "once",
        "It is tried again, 4 times in all.",
        "python -m retake show",
        f"https://dash.example/alerts/{name}",
        "notified",
    ):
        assert part in text, text


@pytest.mark.parametrize(
    ("command", "options"), [(show_alert, {}), (acknowledge, {"by": None}), (close, {})], ids=["show", "ack", "close"]
)
def test_an_unknown_id_is_refused(command: Any, options: dict[str, Any], sandbox: Sandbox) -> None:
    with pytest.raises(Refusal, match="there is no alert 'nothing': see alerts list --all") as raised:
        ask(command, context(world_of(sandbox)), alert_id="nothing", **options)
    assert raised.value.exit_code == 65


def test_an_acknowledged_alert_is_told_to_pagerduty_at_once_and_not_told_again(sandbox: Sandbox) -> None:
    pager = {"kind": "pagerduty", "levels": ["warning"], "hours": "any"}
    endpoint = {"endpoint": addresses(sandbox.url)["pagerduty"]}
    world = world_of(sandbox, {"pager": {**pager, **endpoint}, **CHANNELS})
    name = failing(world)
    pages, hooks = len(sandbox.calls("pagerduty")), len(sandbox.calls("webhook"))
    answer = ask(acknowledge, context(world), alert_id=name, by="ann")
    assert answer.document["alert"]["acknowledged_by"] == "ann"
    assert answer.document["alert"]["state"] == "acknowledged"
    assert f"the alert {name} is acknowledged by ann" in shown(answer)
    [page] = [call.request for call in sandbox.calls("pagerduty")[pages:]]
    assert (page["event_action"], page["dedup_key"]) == ("acknowledge", name)
    world.later(hours=2)
    assert ask(deliver, context(world)).document["failed"] == []
    assert len(sandbox.calls("webhook")) == hooks
    assert "acknowledged by ann" in shown(ask(list_alerts, context(world), ended=False))


def test_without_a_name_the_account_acknowledges(sandbox: Sandbox) -> None:
    world = world_of(sandbox)
    answer = ask(acknowledge, context(world), alert_id=failing(world), by=None)
    assert answer.document["alert"]["acknowledged_by"]


def test_a_closed_alert_is_reported_at_once_and_stays_closed_until_its_cause_occurs_again(sandbox: Sandbox) -> None:
    world = world_of(sandbox)
    name, before = failing(world), len(sandbox.calls("webhook"))
    assert ask(close, context(world), alert_id=name).document["alert"]["state"] == "resolved"
    assert sent(sandbox, before) == ["resolve"]
    with pytest.raises(Refusal, match="ended at"):
        ask(close, context(world), alert_id=name)
    with pytest.raises(Refusal, match="cannot be acknowledged"):
        ask(acknowledge, context(world), alert_id=name, by="ann")
    world.tick()  # the step was reset: no new failure
    assert "step_failing" not in world.alerts()
    while "step_failing" not in world.alerts():
        world.tick()
    listed = ask(list_alerts, context(world), ended=True).document["alerts"]
    assert {it["state"] for it in listed} <= {"open", "resolved"}


def test_what_ended_is_listed_for_30_days(sandbox: Sandbox) -> None:
    world = world_of(sandbox)
    name = failing(world)
    ask(close, context(world), alert_id=name)
    world.vendors.plans.clear()
    for _ in range(9):
        world.tick()
    for days, there in ((0, True), (29, True), (3, False)):
        world.later(days=days)
        listed = ask(list_alerts, context(world), ended=True).document["alerts"]
        assert any(it["id"] == name for it in listed) == there, days
    assert ask(list_alerts, context(world), ended=False).document["alerts"] == []


# --- channels ---------------------------------------------------------------------------------------------------------


def test_every_channel_is_tried_and_timed(sandbox: Sandbox) -> None:
    world = world_of(sandbox, {**CHANNELS, "team": {"kind": "slack"}})
    sandbox.order("slack#1=404")
    before = len(sandbox.calls("webhook"))
    answer = ask(try_channels, context(world), name=None)
    assert answer.exit_code == ExitCode.TRY_LATER
    found = {it["name"]: it for it in answer.document["channels"]}
    assert [list(it) for it in found.values()] == [["name", "kind", "delivered", "seconds", "error"]] * 2
    assert (found["all"]["delivered"], found["all"]["error"]) == (True, None)
    assert not found["team"]["delivered"]
    assert "404" in found["team"]["error"]
    assert found["all"]["seconds"] > 0
    assert "not delivered" in shown(answer)
    assert len(sandbox.calls("webhook")) == before + 1
    assert ask(try_channels, context(world), name="all").exit_code == ExitCode.OK


def test_an_invalid_channel_and_no_channel_at_all_are_refused(sandbox: Sandbox) -> None:
    with pytest.raises(Refusal, match=r"there is no channel pager in ALERTS.channels \(all\)"):
        ask(try_channels, context(world_of(sandbox)), name="pager")
    with pytest.raises(Refusal, match=r"ALERTS.channels is empty"):
        ask(try_channels, context(WatchedWorld()), name=None)


def test_a_test_shows_that_a_channel_works_again(sandbox: Sandbox) -> None:
    world = world_of(sandbox, {**CHANNELS, "team": {"kind": "slack"}})
    sandbox.order("slack#1=404")
    failing(world)
    world.tick()
    assert "channel_refused" in world.alerts()
    assert ask(try_channels, context(world), name="team").exit_code == ExitCode.OK
    ask(deliver, context(world))
    assert "channel_refused" not in world.alerts()


def test_deliver_sends_what_waits_and_says_who_did_not_take_it(sandbox: Sandbox) -> None:
    world = world_of(sandbox)
    sandbox.order("webhook#1-2=503")
    failing(world)
    before = len(sandbox.calls("webhook"))
    world.later(seconds=60)
    answer = ask(deliver, context(world))
    assert (answer.exit_code, answer.document["failed"], answer.document["waiting"]) == (75, ["all"], 1)
    assert "1 message waits." in shown(answer)
    answer = ask(deliver, context(world))
    assert (answer.exit_code, answer.document["failed"], answer.document["waiting"]) == (0, [], 1)
    assert "These failed recently and wait for their next attempt: all." in shown(answer)
    world.later(minutes=10)
    answer = ask(deliver, context(world))
    assert (answer.exit_code, answer.document["failed"], answer.document["waiting"]) == (0, [], 0)
    assert sent(sandbox, before)[-1] in ("trigger", "repeat")
    assert "No message waits." in shown(answer)


def test_deliver_says_that_another_process_is_sending(sandbox: Sandbox) -> None:
    world = world_of(sandbox)
    sandbox.order("webhook#1=503")
    failing(world)
    document = json.loads(world.bucket.read("alerts/state.json")[0])
    until = stamp(world.clock.now() + timedelta(seconds=world.settings.alerts.timeout_seconds))
    document["channels"]["all"].update({"sending_until": until, "next_at": None})
    world.put("alerts/state.json", document)
    text = shown(ask(deliver, context(world)))
    assert "Another process is sending to these just now: all." in text
    assert "failed recently" not in text


def test_a_channel_whose_message_waits_was_not_told_yet(sandbox: Sandbox) -> None:
    world = world_of(sandbox)
    sandbox.order("webhook#1=503")
    name = failing(world)
    text = shown(ask(show_alert, context(world), alert_id=name))
    assert "not notified yet  all" in text
    world.later(minutes=10)
    ask(deliver, context(world))
    text = shown(ask(show_alert, context(world), alert_id=name))
    assert "not notified yet" not in text
    assert re.search(r"^notified +all$", text, re.MULTILINE)


def test_a_missing_secret_is_named(sandbox: Sandbox) -> None:
    world = world_of(sandbox)
    world.environ = {}
    failing(world)
    [channel] = ask(list_alerts, context(world), ended=False).document["channels"]
    assert channel["waiting"] > 0
    assert channel["last_error"] == "ALERT_WEBHOOK_URL is not set"


# --- on a terminal ----------------------------------------------------------------------------------------------------


def test_nothing_is_wider_than_a_terminal_of_80_columns(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    world = world_of(sandbox, {**CHANNELS, "a-channel-with-a-rather-long-name": {"kind": "slack"}})
    sandbox.order("slack=500")
    name = failing(world)
    world.panel.set(2, 3600, "the vendor is down, and has been for so long that it takes many words to say")
    world.tick()
    for answer in (
        ask(list_alerts, context(world), ended=True),
        ask(show_alert, context(world), alert_id=name),
        ask(deliver, context(world)),
        ask(try_channels, context(world), name=None),
        ask(report, context(world), kind="weekly", send=False),
    ):
        text = narrow(answer)
        assert max(map(len, text.splitlines())) <= 80, text


# --- reports ----------------------------------------------------------------------------------------------------------

REPORTED = {"all": {"kind": "webhook", "levels": [], "reports": ["daily", "weekly"]}}


def worked() -> WatchedWorld:
    """Return two weeks of work: 1 made and 1 failed; then 2 made with one retry, and 1 failed on the last day."""
    world = WatchedWorld()
    finish(world)
    finish(world, ("imagine", "rejected"))
    world.later(days=7)
    finish(world)
    finish(world, ("upscale", "refused"))
    world.later(days=5)
    finish(world, ("imagine", "rejected"))
    return world


def test_the_figures_of_a_week_stand_against_those_of_the_week_before() -> None:
    world = worked()
    answer = ask(report, context(world), kind="weekly", send=False)
    told, before = answer.document, answer.document["before"]
    assert (told["made"], told["failed"]) == (2, 1)
    assert told["success_rate"] == pytest.approx(2 / 3)
    assert told["retry_rate"] == pytest.approx(1 / 11)  # of 4 + 5 + 2 tries
    assert (before["made"], before["failed"], before["success_rate"]) == (1, 1, 0.5)
    assert before["retry_rate"] == 0.0
    assert told["spend_usd"] > before["spend_usd"] > 0
    assert told["dead_letters"] == 2
    assert told["alerts"] == 1
    assert before["alerts"] == 1
    text = shown(answer)
    assert "Weekly report, " in text
    assert "2 (+1 from the week before)" in text
    assert "66.7 % (the week before: 50.0 %)" in text


def test_the_figures_of_a_day() -> None:
    world = worked()
    told = ask(report, context(world), kind="daily", send=False).document
    assert (told["made"], told["failed"], told["success_rate"], told["before"]) == (0, 1, 0.0, None)
    assert told["retry_rate"] == 0.0
    assert told["open_alerts"] == ["A generation failed at imagine"]


def test_spend_is_that_of_the_calls_of_the_period() -> None:
    world = WatchedWorld()
    finish(world)
    [record] = [world.json(key) for key in world.keys_of("spend/")]
    usd = sum(call["price_usd"] for call in record["paid_calls"])
    for hours, expected in ((1, usd), (22, usd), (2, 0.0)):
        world.later(hours=hours)
        told = ask(report, context(world), kind="daily", send=False).document
        assert told["spend_usd"] == pytest.approx(expected)


def test_a_report_is_sent_on_demand_and_refused_where_nobody_takes_it(sandbox: Sandbox) -> None:
    with pytest.raises(Refusal, match="no channel takes the daily report"):
        ask(report, context(world_of(sandbox)), kind="daily", send=True)
    world = world_of(sandbox, REPORTED)
    for _ in range(2):
        before = len(sandbox.calls("webhook"))
        answer = ask(report, context(world), kind="daily", send=True)
        assert (answer.exit_code, answer.document["not_taken_by"]) == (0, [])
        [message] = [call.request for call in sandbox.calls("webhook")[before:]]
        assert (message["event"], message["made"], message["kind"]) == ("report", 0, "daily")
        world.later(minutes=1)
    sandbox.order("webhook=503")
    for _ in range(2):  # the second time the channel is not even tried
        answer = ask(report, context(world), kind="weekly", send=True)
        assert (answer.exit_code, answer.document["not_taken_by"]) == (75, ["all"])


@pytest.mark.parametrize(
    ("zone", "due"),
    [("UTC", "2026-03-03T07:00"), ("Asia/Tokyo", "2026-03-02T22:00"), ("America/New_York", "2026-03-03T12:00")],
)
def test_the_first_tick_after_report_at_sends_the_daily_report_once(zone: str, due: str, sandbox: Sandbox) -> None:
    world = world_of(sandbox, {"all": {"kind": "webhook", "levels": [], "reports": ["daily"]}}, timezone=zone)
    world.interval_s = 0
    at = datetime.fromisoformat(due).replace(tzinfo=UTC)
    world.panel.set(3, None, "to be idle")
    world.clock.moment = at - timedelta(hours=1)
    world.tick()
    before = len(reports(sandbox))
    for minutes, number in ((-1, 0), (0, 1), (1, 1), (60, 1), (23 * 60, 1), (24 * 60, 2), (24 * 60 + 1, 2)):
        world.clock.moment = at + timedelta(minutes=minutes)
        world.tick()
        assert len(reports(sandbox)) - before == number, minutes


def test_the_weekly_report_is_sent_on_its_day(sandbox: Sandbox) -> None:
    channels = {"all": {"kind": "webhook", "levels": [], "reports": ["weekly"]}}
    world = world_of(sandbox, channels, report_day="wed", report_at="24:00")
    world.interval_s = 0
    world.panel.set(3, None, "to be idle")
    world.clock.moment = datetime(2026, 3, 3, tzinfo=UTC)  # a Tuesday
    world.tick()
    before = len(reports(sandbox))
    days = []
    for hour in range(1, 15 * 24):
        world.clock.moment = datetime(2026, 3, 3, tzinfo=UTC) + timedelta(hours=hour)
        world.tick()
        if len(reports(sandbox)) - before > len(days):
            days.append(f"{world.clock.moment:%a %H:%M}")
    assert days == ["Thu 00:00", "Thu 00:00"]


def reports(sandbox: Sandbox) -> list[str]:
    return [json.dumps(call.request) for call in sandbox.calls("webhook") if call.request.get("event") == "report"]
