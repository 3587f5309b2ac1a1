"""Alerts of real ticks: each condition is raised, closed and sent over real HTTP, and changes no exit code."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from cron_machine import CHECKOUT, GEN, ID, MANAGER, Machine, Run, manager_killed_at

from retake.sandbox.notices import addresses

SECRETS = {
    "ALERT_WEBHOOK_URL": "",  # of the sandbox, with a secret path
    "TELEGRAM_BOT_TOKEN": "123456:the-token-of-the-bot",
}
PATH = "?key=the-secret-of-the-webhook"


@pytest.fixture
def told(machine: Machine) -> Machine:
    """Return a machine with a channel that takes everything."""
    url = addresses(machine.sandbox.url)
    machine.env.update({**SECRETS, "ALERT_WEBHOOK_URL": url["webhook"] + PATH})
    waits = {"timeout_seconds": 60, "tick_wait_seconds": 120}  # enough for a busy machine
    machine.set(ALERTS={"channels": {"all": {"kind": "webhook"}}, **waits}, STORAGE={"url": "file:bucket"})
    return machine


def board(machine: Machine) -> dict[str, dict[str, Any]]:
    """Return the open alerts by code."""
    alerts = machine.read("alerts/state.json").get("alerts") or []
    return {it["code"]: it for it in alerts if it.get("state", "open") != "resolved"}


def events(machine: Machine, code: str | None = None, kind: str = "webhook") -> list[str]:
    sent = [call.request for call in machine.calls(kind) if call.carried_out]
    return [it["event"] for it in sent if code in (None, it.get("code"))]


def retake(machine: Machine, *arguments: str) -> dict[str, Any]:
    """Return the answer of a console command."""
    command = [sys.executable, "-m", "retake", *arguments, "--json"]
    done = subprocess.run(
        command, cwd=machine.cwd, env={**machine.env, "PYTHONPATH": str(CHECKOUT)}, capture_output=True, check=False
    )
    assert done.stdout, done.stderr
    return {"exit_code": done.returncode, **json.loads(done.stdout)}


def until(machine: Machine, code: str, ticks: int = 8) -> dict[str, Any]:
    """Tick until an alert of the code is open."""
    for _ in range(ticks):
        machine.tick()
        if code in board(machine):
            return board(machine)[code]
    raise AssertionError(f"no {code}: {board(machine)}, {machine.doc}")


def until_closed(machine: Machine, code: str, ticks: int = 8) -> None:
    for _ in range(ticks):
        machine.tick()
        if code not in board(machine):
            return
    raise AssertionError(f"{code} stays open: {board(machine)}, {machine.doc}")


# --- the table of codes -----------------------------------------------------------------------------------------------


def test_a_failing_step_is_told_after_two_failures_and_stays_open_through_its_resets(told: Machine) -> None:
    told.plant("upscale")
    told.order("upscale#1-3=500")
    codes, counts = [], []
    while told.generation_id:
        codes.append(told.tick().exit_code)
        counts.append(board(told).get("step_failing", {}).get("occurrences", 0))
    assert codes == [75, 0, 75, 0, 75, 0, 0]
    assert counts == [0, 0, 1, 1, 2, 2, 0]
    sent = [call.request for call in told.calls("webhook")]
    assert [(it["event"], it["code"], it["level"]) for it in sent] == [
        ("trigger", "step_failing", "warning"),
        ("resolve", "step_failing", "warning"),
    ]
    text = sent[0]["text"]
    assert f"Where: story, generation {ID}, step upscale, attempt 2/4" in text
    assert "Error: ERR_TEMPORARY_UNAVAILABLE (class A): " in text
    assert "Automatically: It is tried again, 4 times in all." in text
    assert f"Command: python -m retake show {ID}" in text


def test_a_generation_that_failed_is_reported_until_one_succeeds(told: Machine) -> None:
    told.set(WORKFLOW={"max_retries": 0})
    told.plant("upscale")
    told.order("upscale#1=500")
    alert = until(told, "generation_failed")
    assert (alert["level"], alert["step"], alert["generation_id"]) == ("error", "upscale", ID)
    assert alert["error_code"] == "ERR_TEMPORARY_UNAVAILABLE"
    assert told.until_done().exit_code == 0
    assert "generation_failed" not in board(told)
    assert events(told, "generation_failed") == ["trigger", "resolve"]


def test_a_pipeline_that_stopped_is_critical_until_it_is_resumed(told: Machine) -> None:
    told.set(WORKFLOW={"max_retries": 0, "max_failed_in_a_row": 1})
    told.plant("upscale")
    told.order("upscale#1=500")
    alert = until(told, "stopped")
    assert (alert["level"], alert["command"]) == ("critical", "retake tick --resume")
    assert told.tick().exit_code == 69
    told.tick("--resume")
    until_closed(told, "stopped")


def test_a_key_that_is_refused_waits_for_a_person(told: Machine) -> None:
    told.plant("imagine")
    told.order("imagine#1=401")
    tick = told.tick()
    alert = board(told)["refused"]
    assert tick.exit_code == 78
    assert (alert["level"], alert["key"], alert["error_class"]) == ("critical", "refused/midjourney", "C")
    assert alert["error_code"] == "ERR_CRITICAL_UNAUTHORIZED"
    assert told.tick().exit_code == 78
    assert board(told)["refused"]["occurrences"] == 1
    told.tick("--resume")
    until_closed(told, "refused")
    assert events(told, "refused") == ["trigger", "resolve"]


def test_a_key_that_is_missing_is_named(told: Machine) -> None:
    key = told.env.pop("OPENAI_API_KEY")
    assert told.tick().exit_code == 78
    alert = board(told)["refused"]
    assert (alert["level"], alert["key"]) == ("critical", "refused/settings")
    assert "OPENAI_API_KEY" in alert["message"]
    told.env["OPENAI_API_KEY"] = key
    assert told.tick().exit_code == 0
    assert "refused" not in board(told)


def test_a_paid_call_of_unknown_outcome_that_is_held_is_an_error(told: Machine) -> None:
    told.set(WORKFLOW={"on_unknown_outcome": "hold"})
    told.plant("runway")
    told.order("runway#1=cut-after")
    alert = until(told, "outcome_unknown")
    assert (alert["level"], alert["key"]) == ("error", "outcome_unknown/runway")
    assert told.tick().exit_code == 75
    assert told.tick("--resolve", "retry").exit_code in (0, 75)
    until_closed(told, "outcome_unknown")
    assert events(told, "outcome_unknown") == ["trigger", "resolve"]


def test_a_paid_call_that_is_made_again_is_a_warning_until_its_step_has_a_result(told: Machine) -> None:
    told.set(WORKFLOW={"on_unknown_outcome": "retry"})
    told.plant("runway")
    told.order("runway#1=cut-after", "poll#1-2=500")
    seen = set()
    while told.generation_id:
        told.tick()
        seen |= {(it["level"], it["key"]) for code, it in board(told).items() if code == "outcome_unknown"}
    assert seen == {("warning", "outcome_unknown/runway")}
    assert "outcome_unknown" not in board(told)


def test_an_invalid_document_is_critical_and_named(told: Machine) -> None:
    told.put(GEN, b"{")
    assert told.tick().exit_code == 65
    alert = board(told)["state_unreadable"]
    assert alert["level"] == "critical"
    assert GEN in alert["message"]
    told.put(GEN, {})
    assert told.tick().exit_code == 0
    assert events(told, "state_unreadable") == ["trigger", "resolve"]


def test_a_bug_is_critical(told: Machine) -> None:
    broken = told.folder / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import retake.story.pipeline as it\ndef decide(*_, **__):\n    return {}[0]\nit.decide_in = decide\n"
    )
    process = told.start(MANAGER, env={**told.env, "PYTHONPATH": f"{broken}:{CHECKOUT}"})
    process.communicate(timeout=60)
    assert process.returncode == 70
    alert = board(told)["bug"]
    assert (alert["level"], alert["message"]) == ("critical", "KeyError")
    assert told.tick().exit_code == 0
    assert events(told, "bug") == ["trigger", "resolve"]


def test_a_tick_that_was_killed_is_reported_by_the_next_one(told: Machine) -> None:
    told.plant("imagine")
    manager_killed_at(told, "imagine", script_too=True)
    assert told.tick().exit_code == 0
    assert board(told)["interrupted"]["level"] == "warning"
    told.tick()
    assert "interrupted" not in board(told)


def test_a_breaker_that_is_open(told: Machine) -> None:
    told.set(BREAKER={"failures": 1, "open_seconds": 3600})
    told.plant("upscale")
    told.order("upscale#1=500")
    assert told.tick().exit_code == 75
    alert = board(told)["breaker_open"]
    assert alert["level"] == "warning"
    assert alert["key"].startswith("breaker_open/")
    for _ in range(3):
        told.tick()
    assert board(told)["breaker_open"]["occurrences"] == 1
    assert retake(told, "breaker", "reset", alert["key"].partition("/")[2])["exit_code"] == 0
    until_closed(told, "breaker_open")


def test_a_breaker_that_was_reset_is_closed_by_idle_ticks_too(told: Machine) -> None:
    told.set(BREAKER={"failures": 1, "open_seconds": 3600}, WORKFLOW={"max_retries": 0})
    told.plant("upscale")
    told.order("upscale#1=500")
    until(told, "breaker_open")
    told.until_done()
    for suffix in ("json", "png", "mp4"):
        told.put(f"666/20250101-0003.{suffix}", {})
        told.put(f"555/20250101-0002.{suffix}", {})
        told.put(f"444/20250101-0001.{suffix}", {})
    retake(told, "breaker", "reset", board(told)["breaker_open"]["key"].partition("/")[2])
    assert told.tick().said("nothing to do")
    assert "breaker_open" not in board(told)


def test_a_cap_that_holds_a_call_back(told: Machine) -> None:
    told.set(WORKFLOW={"daily_cap_usd": 0.001})
    told.plant("imagine")
    assert told.tick().exit_code == 75
    alert = board(told)["cap_reached"]
    assert (alert["level"], alert["command"]) == ("warning", "python -m retake spend")
    told.tick()
    assert board(told)["cap_reached"]["occurrences"] == 1
    told.set(WORKFLOW={"daily_cap_usd": 100.0})
    told.tick()
    assert events(told, "cap_reached") == ["trigger", "resolve"]


def test_a_degraded_mode(told: Machine) -> None:
    for mode, level in (("1", "warning"), ("3", "critical"), ("0", None)):
        assert retake(told, "mode", "set", mode, "--why", "a drill")["mode"] == int(mode)
        assert told.tick().exit_code == 0
        assert board(told).get("degraded", {}).get("level") == level
    assert events(told, "degraded") == ["trigger", "trigger", "resolve"]


def test_a_ledger_that_stays_away_is_reported_while_it_is(told: Machine) -> None:
    told.set(STORAGE={"ledger": "sqlite:ledger/runs.sqlite3"}, ALERTS={"group_seconds": 3600})
    (told.folder / "ledger").write_text("in place of the folder")
    told.plant("upscale")
    assert (told.tick().exit_code, events(told)) == (75, [])
    time.sleep(1)  # ticks of one second are one occurrence
    told.set(ALERTS={"group_seconds": 0})
    assert (told.tick().exit_code, events(told)) == (75, ["trigger"])
    alert = board(told)["ledger_unavailable"]
    assert (alert["level"], alert["occurrences"], told.calls("upscale")) == ("error", 2, [])
    assert "ledger/runs.sqlite3: its folder cannot be created" in alert["message"]
    key = told.env.pop("MIDJOURNEY_API_KEY")
    assert (told.tick().exit_code, [*board(told)]) == (78, ["ledger_unavailable", "refused"])  # it was not asked
    told.env["MIDJOURNEY_API_KEY"] = key
    (told.folder / "ledger").unlink()
    assert (told.tick().exit_code, events(told, "ledger_unavailable")) == (0, ["trigger", "resolve"])


def test_rates_that_are_bad(told: Machine) -> None:
    told.set(WORKFLOW={"max_retries": 0}, KPI={"min_runs": 1})
    told.plant("upscale")
    told.order("upscale#1=500")
    alert = until(told, "kpi")
    assert (alert["level"], alert["key"]) == ("critical", "kpi")
    assert "story: success 0.0 %" in alert["message"]


def test_a_channel_that_refuses_is_reported_by_the_others(told: Machine) -> None:
    url = addresses(told.sandbox.url)
    channels = {
        "all": {"kind": "webhook"},
        "bot": {"kind": "telegram", "endpoint": url["telegram"], "chat_id": 4, "levels": ["critical"]},
    }
    told.set(ALERTS={"channels": channels})
    told.order("telegram#1=403")
    told.put(GEN, b"{")
    assert told.tick().exit_code == 65
    assert told.tick().exit_code == 65
    assert board(told)["channel_refused"]["key"] == "channel_refused/bot"
    assert events(told, "channel_refused") == ["trigger"]
    assert len(told.calls("telegram")) == 1
    told.put(GEN, {})
    told.tick()
    until_closed(told, "channel_refused", 2)


# --- what programs see ------------------------------------------------------------------------------------------------

FIELDS = [
    *("id", "key", "code", "level", "error_class", "error_code", "state", "count", "pipelines", "generation_id"),
    *("step", "title", "text", "first_at", "last_at", "acknowledged_by"),
]


def test_the_list_has_exactly_these_keys(told: Machine) -> None:
    told.put(GEN, b"{")
    told.tick()
    listed = retake(told, "alerts", "list")
    [alert] = listed["alerts"]
    assert list(alert) == FIELDS
    [channel] = listed["channels"]
    assert list(channel) == ["name", "kind", "waiting", "last_error", "last_delivered_at"]
    assert (channel["waiting"], channel["last_error"]) == (0, None)
    assert (alert["state"], alert["count"], alert["pipelines"]) == ("open", 1, ["story"])
    sent = told.calls("webhook")[-1].request
    assert {"event", "at", *FIELDS} == set(sent)
    acknowledged = retake(told, "alerts", "ack", alert["id"], "--by", "ann")
    assert acknowledged["alert"]["acknowledged_by"] == "ann"
    told.put(GEN, {})
    told.tick()
    assert retake(told, "alerts", "list")["alerts"] == []
    [over] = retake(told, "alerts", "list", "--all")["alerts"]
    assert (over["id"], over["state"]) == (alert["id"], "resolved")


def test_without_channels_alerts_are_raised_anyway(machine: Machine) -> None:
    machine.put(GEN, b"{")
    assert machine.tick().exit_code == 65
    assert board(machine)["state_unreadable"]["level"] == "critical"


def test_channels_that_fail_alike_are_one_alert(told: Machine) -> None:
    written = json.loads(told.settings_file.read_text())
    told.settings_file.write_text(json.dumps({**written, "CHANNELS": ["north", "south"]}))
    for name in ("north", "south"):
        told.put(f"{name}/{GEN}", b"{")
    assert told.tick().exit_code == 65
    alert = board(told)["state_unreadable"]
    assert sorted(alert["seen"]) == ["story/north", "story/south"]
    assert (alert["occurrences"], events(told)) == (2, ["trigger"])
    told.put(f"north/{GEN}", {})
    told.tick()
    assert sorted(board(told)["state_unreadable"]["seen"]) == ["story/south"]


# --- what alerts must not do ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["hang", "500", "401", "cut-before"])
@pytest.mark.parametrize(("prepare", "expected"), [("broken", 65), ("fine", 0)])
def test_exit_codes_do_not_depend_on_channels(told: Machine, fault: str, prepare: str, expected: int) -> None:
    told.order(f"webhook={fault}")
    told.set(ALERTS={"tick_wait_seconds": 0.2})
    retake(told, "mode", "set", "3")
    if prepare == "broken":
        told.put(GEN, b"{")
    assert told.tick().exit_code == expected
    assert told.tick().exit_code == expected


def seconds(work: Callable[[], Run]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def test_a_channel_that_hangs_costs_a_tick_two_seconds_at_most(told: Machine) -> None:
    told.set(ALERTS={"timeout_seconds": 120, "tick_wait_seconds": 2})
    retake(told, "mode", "set", "3")
    told.tick()
    usual = min(seconds(told.tick) for _ in range(3))
    sent = len(told.calls("webhook"))
    told.order("webhook=hang")
    told.put(GEN, b"{")  # something new to report
    took = seconds(told.tick)
    assert len(told.calls("webhook")) == sent + 1
    assert 2 <= took < usual + 2 + 60, f"usual {usual:.2f} s"  # waiting for the answer would take 120
    assert told.read("alerts/state.json")["channels"]["all"]["queue"]


def test_a_tick_that_is_killed_while_it_sends_loses_nothing(told: Machine) -> None:
    told.set(ALERTS={"timeout_seconds": 6, "tick_wait_seconds": 20})
    told.put(GEN, b"{")
    told.order("webhook#1=hang")
    manager = told.start(MANAGER)
    told.await_call("webhook")
    os.kill(manager.pid, signal.SIGKILL)
    manager.wait()
    time.sleep(7)  # timeout_seconds, in whole seconds
    told.tick()
    assert events(told, "state_unreadable") == ["trigger"]


def test_two_ticks_at_the_same_time_tell_once(told: Machine) -> None:
    told.put(GEN, b"{")
    for process in [told.start(MANAGER) for _ in range(4)]:
        told.finish(process)
    assert events(told, "state_unreadable") == ["trigger"]


PROMPT = "a lighthouse that nobody has ever lit, in the fog of an early morning, seen from the sea"
SIGNED = "https://storage.example/picture.png?X-Signature=0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize("final", [False, True])
def test_no_secret_no_signed_link_and_no_prompt_is_revealed(told: Machine, final: bool) -> None:
    """The vendor repeats all that it was asked, and more."""
    sys.path.append(str(CHECKOUT / "tests" / "vendors"))
    from scripted_vendor import ScriptedVendor, says

    told.plant("imagine")
    text = told.read(f"666/{ID}.json")
    told.put(f"666/{ID}.json", {**text, "midjourney_prompt": PROMPT})
    told.set(WORKFLOW={"max_retries": 0 if final else 3})
    bot = {"kind": "telegram", "endpoint": addresses(told.sandbox.url)["telegram"], "chat_id": 4, "levels": []}
    told.set(ALERTS={"channels": {"all": {"kind": "webhook"}, "bot": bot}})
    secret = PATH.partition("=")[2]
    answer = f"{told.env['TELEGRAM_BOT_TOKEN']} {told.env['ALERT_WEBHOOK_URL']} no: {PROMPT} for {SIGNED}"
    vendor = ScriptedVendor()
    try:
        vendor.script = [says(500, {"code": 500, "message": answer})] * 20
        seller = {"provider": "piapi", "endpoint": f"{vendor.url}/task", "task_endpoint": f"{vendor.url}/fetch"}
        told.set(API_KEYS={"midjourney": seller})
        out, code = "", "generation_failed" if final else "step_failing"
        while code not in board(told):
            out += told.tick().err
    finally:
        vendor.close()
    assert events(told, code) == ["trigger"]
    told_people = json.dumps([call.request for call in told.calls("webhook")], ensure_ascii=False)
    kept = json.dumps(told.read("alerts/state.json"), ensure_ascii=False)
    assert "lighthouse" not in told_people + kept
    everything = "".join((told.bucket / key).read_text("utf-8", "replace") for key in told.files())
    for where, words in (("told", told_people), ("in the bucket", everything), ("logged", out)):
        for hidden in (secret, "0123456789abcdef", "the-key-for", told.env["TELEGRAM_BOT_TOKEN"]):
            assert hidden not in words, (where, hidden)


# --- what an idle tick costs ------------------------------------------------------------------------------------------


def idle(machine: Machine) -> None:
    machine.put(GEN, {"generation_id": None})
    for folder, name in (("444", "20250101-0001"), ("555", "20250101-0002"), ("666", "20250101-0003")):
        for suffix in ("json", "png", "mp4"):
            machine.put(f"{folder}/{name}.{suffix}", {})


LIGHT = {"retake.alerts", *(f"retake.alerts.{it}" for it in ("conditions", "settings", "hours"))}


@pytest.mark.parametrize("reports", [False, True])
def test_an_idle_tick_loads_no_more_of_alerts_than_it_needs(told: Machine, reports: bool) -> None:
    idle(told)
    if reports:
        told.set(ALERTS={"channels": {"all": {"kind": "webhook", "reports": ["daily", "weekly"]}}})
        told.tick()  # sends those that are due
    told.env["PYTHONPROFILEIMPORTTIME"] = "1"
    process = told.start(MANAGER)
    _, err = process.communicate(timeout=60)
    assert "nothing to do" in err
    loaded = {line.rpartition("|")[2].strip() for line in err.splitlines() if line.startswith("import time:")}
    alerts = {name for name in loaded if name.startswith("retake.alerts")}
    assert alerts <= LIGHT | ({"retake.alerts.reports"} if reports else set())
    assert not [
        name
        for name in loaded
        if name.startswith(("retake.runs", "retake.retrying", "retake.kpi", "retake.operations", "requests"))
    ]
    assert not told.read("alerts/state.json").get("alerts")


COUNTED = """
import sys
from retake.bucket.directory import DirectoryBucket
read = DirectoryBucket.read
def counted(self, key):
    print(f"READ {key}", file=sys.stdout)
    return read(self, key)
DirectoryBucket.read = counted
"""


@pytest.mark.parametrize("mode", ["0", "3"])
def test_an_idle_tick_reads_one_document_more(told: Machine, mode: str) -> None:
    idle(told)
    if mode != "0":
        retake(told, "mode", "set", mode)
        retake(told, "mode", "auto")
    counting = told.folder / "counting"
    counting.mkdir()
    (counting / "sitecustomize.py").write_text(COUNTED)
    tick = told.tick(env={**told.env, "PYTHONPATH": f"{counting}:{CHECKOUT}"})
    reads = [line for line in tick.out.splitlines() if line.startswith("READ ")]
    assert [line for line in reads if "alerts" in line or "mode" in line] == ["READ alerts/state.json"]
    assert tick.said("nothing to do")
