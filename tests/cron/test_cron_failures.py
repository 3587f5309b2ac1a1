"""Every way in which a vendor can fail, at every call: the status, the exit code, and what was called and billed."""

import json

import pytest
from cron_machine import ID, Machine

from retake.story.content import KEYS

FAILED = {
    "chat": "content_failed",
    "imagine": "imagine_trigger_failed",
    "upscale": "upscale_trigger_failed",
    "runway": "runway_trigger_failed",
    "fetch": "mj_fetch_failed",
    "poll": "runway_poll_failed",
    "download": "runway_trigger_failed",
}
BEFORE = {"fetch": "waiting_for_imagine", "poll": "waiting_for_runway"}
"""The status before the failure, to which a reset leads back. None for the other calls."""

WAITING = {"imagine": "waiting_for_imagine", "upscale": "waiting_for_upscale"}

REFUSED = {"500": "UNAVAILABLE", "429": "RATE_LIMIT"}
LOST = {"500-html": "UNAVAILABLE", "cut-before": "NETWORK", "hang": "TIMEOUT"}
DONE_UNSEEN = {"cut-after": "NETWORK", "hang-after": "TIMEOUT", "not-json": "BAD_ANSWER", "no-id": "BAD_ANSWER"}
FATAL = {"401": "UNAUTHORIZED", "quota": "OUT_OF_CREDIT"}

PAID = ("chat", "imagine", "upscale", "runway")
FREE = ("fetch", "poll", "download")


def planted(machine: Machine, kind: str, fault: str) -> Machine:
    """Create a generation whose next call is of the kind, and meets the fault."""
    if kind != "chat":
        machine.plant(kind)
    if fault.startswith("hang"):
        machine.set(WORKFLOW={"call_timeout_seconds": 3})
    machine.order(f"{kind}={fault}")
    return machine


@pytest.mark.parametrize("kind", FAILED)
def test_another_attempt_is_granted_in_a_tick_of_its_own_which_asks_nobody_anything(
    patient: Machine, kind: str
) -> None:
    patient.put("config/config_gen.json", {"generation_id": ID})
    if kind != "chat":
        patient.plant(kind)
    patient.put("config/config_midjourney.json", {**patient.doc, "status": FAILED[kind]})
    tick = patient.tick()
    assert (tick.exit_code, patient.status, patient.doc["retry_count"]) == (0, BEFORE.get(kind), 1)
    assert tick.said(f"attempt 1/3 for status {FAILED[kind]}")
    assert patient.calls() == []


@pytest.mark.parametrize("fault", REFUSED)
@pytest.mark.parametrize("kind", PAID)
def test_a_refused_call_has_failed_and_is_not_billed(patient: Machine, kind: str, fault: str) -> None:
    tick = planted(patient, kind, fault).tick()
    assert (patient.status, tick.exit_code) == (FAILED[kind], 75)
    assert (len(patient.calls(kind)), patient.billed(kind), tick.alerts) == (1, 0, [])
    assert patient.error_code == f"ERR_TEMPORARY_{REFUSED[fault]}"
    assert not patient.doc.get("pending_call")


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("kind", PAID)
def test_a_call_that_nobody_knows_of_has_failed_and_may_have_been_billed(
    patient: Machine, kind: str, fault: str
) -> None:
    tick = planted(patient, kind, fault).tick()
    assert (patient.status, tick.exit_code) == (FAILED[kind], 75)
    assert (len(patient.calls(kind)), patient.billed(kind), tick.alerts) == (1, 0, ["outcome_unknown"])
    assert patient.error_code == f"ERR_TEMPORARY_{LOST[fault]}"
    assert patient.doc["paid_calls"][-1]["possible_duplicate"] is True


@pytest.mark.parametrize("fault", DONE_UNSEEN)
@pytest.mark.parametrize("kind", ["imagine", "upscale"])
def test_a_picture_whose_order_was_not_answered_is_found_at_the_vendor_and_never_ordered_twice(
    patient: Machine, kind: str, fault: str
) -> None:
    tick = planted(patient, kind, fault).tick()
    assert (patient.status, tick.exit_code) == (WAITING[kind], 0)
    assert (len(patient.calls(kind)), patient.billed(kind), tick.alerts) == (1, 1, [])
    assert patient.doc["midjourney_task"]["task_id"] == patient.sandbox.tasks()[-1].id


@pytest.mark.parametrize("fault", [fault for fault in DONE_UNSEEN if fault != "no-id"])
@pytest.mark.parametrize("kind", ["chat", "runway"])
def test_where_the_vendor_cannot_tell_a_call_that_was_not_answered_is_asked_again_and_noted(
    patient: Machine, kind: str, fault: str
) -> None:
    tick = planted(patient, kind, fault).tick()
    assert (patient.status, tick.exit_code) == (FAILED[kind], 75)
    assert (len(patient.calls(kind)), patient.billed(kind), tick.alerts) == (1, 1, ["outcome_unknown"])
    assert patient.doc["paid_calls"][-1]["possible_duplicate"] is True


@pytest.mark.parametrize("kind", ["chat", "runway"])
def test_or_it_is_held_until_the_operator_decides(patient: Machine, kind: str) -> None:
    patient.set(WORKFLOW={"on_unknown_outcome": "hold"})
    tick = planted(patient, kind, "cut-after").tick()
    assert (patient.status, tick.exit_code, tick.alerts) == (None, 75, ["outcome_unknown"])
    held = patient.doc
    assert held["pending_call"]["outcome"] == "unknown"
    tick = patient.tick()
    assert (tick.exit_code, patient.doc, patient.billed(kind)) == (75, held, 1)
    assert tick.said("--resolve retry")


@pytest.mark.parametrize("fault", FATAL)
@pytest.mark.parametrize("kind", PAID)
def test_what_only_a_person_can_mend_waits_for_one_and_is_told_once(patient: Machine, kind: str, fault: str) -> None:
    tick = planted(patient, kind, fault).tick()
    assert (patient.status, tick.exit_code) == (None, 78)
    assert (len(patient.calls(kind)), patient.billed(kind)) == (1, 0)
    assert patient.error_code == f"ERR_CRITICAL_{FATAL[fault]}"
    assert tick.alerts == [patient.error_code]
    before, calls = patient.doc, patient.calls()
    tick = patient.tick()
    assert (tick.exit_code, patient.doc, patient.calls(), tick.alerts) == (78, before, calls, [])


@pytest.mark.parametrize("kind", ["fetch", "poll"])
def test_a_key_that_is_refused_when_a_task_is_asked_for_waits_too(patient: Machine, kind: str) -> None:
    tick = planted(patient, kind, "401").tick()
    assert (patient.status, tick.exit_code) == (BEFORE[kind], 78)
    assert tick.alerts == ["ERR_CRITICAL_UNAUTHORIZED"]
    tick = patient.tick()
    assert (tick.exit_code, len(patient.calls(kind)), tick.alerts) == (78, 1, [])


@pytest.mark.parametrize("kind", PAID)
def test_a_request_that_the_vendor_will_never_take_ends_the_generation_at_once(patient: Machine, kind: str) -> None:
    tick = planted(patient, kind, "400").tick()
    assert (patient.generation_id, tick.exit_code) == (None, 69)
    assert (len(patient.calls(kind)), patient.billed(kind), tick.alerts) == (1, 0, ["generation_failed"])
    [report] = (key for key in patient.files("dead_letters") if key.endswith("report.json"))
    assert patient.read(report)["last_error"]["error_code"] == "ERR_BUSINESS_INVALID_INPUT"


@pytest.mark.parametrize("fault", ["500", "500-html", "429", "400", "cut-before", "hang", "not-json"])
@pytest.mark.parametrize("kind", FREE)
def test_a_question_that_is_not_answered_costs_an_attempt_and_no_money(patient: Machine, kind: str, fault: str) -> None:
    tick = planted(patient, kind, fault).tick()
    assert (patient.status, tick.exit_code) == (FAILED[kind], 75)
    assert (len(patient.calls(kind)), tick.alerts) == (1, [])
    assert sum(patient.billed(paid) for paid in PAID) == 0


@pytest.mark.parametrize("kind", ["imagine", "upscale", "runway"])
def test_a_task_that_ends_as_failed_is_a_failed_order(machine: Machine, kind: str) -> None:
    tick = planted(machine, kind, "task-failed").tick()
    assert (machine.status, tick.exit_code, machine.billed(kind)) == (FAILED[kind], 75, 1)
    assert not machine.doc.get("midjourney_task")
    assert not machine.doc.get("runway_task")


@pytest.mark.parametrize("kind", ["imagine", "upscale", "runway"])
def test_a_task_that_moderation_ends_is_never_ordered_again(machine: Machine, kind: str) -> None:
    tick = planted(machine, kind, "task-rejected").tick()
    assert (machine.generation_id, tick.exit_code, machine.billed(kind)) == (None, 69, 1)
    report = machine.read(f"dead_letters/{ID}/report.json")
    assert report["last_error"]["error_code"] == "ERR_BUSINESS_REJECTED"


@pytest.mark.parametrize("kind", ["imagine", "upscale"])
def test_a_picture_that_takes_too_long_is_given_up_for_a_mock(machine: Machine, kind: str) -> None:
    assert planted(machine, kind, "never-ends").tick().exit_code == 0
    assert machine.status == WAITING[kind]
    long_ago = {**machine.doc["midjourney_task"], "requested_at_utc": "2020-01-01T00:00:00Z"}
    machine.put("config/config_midjourney.json", {**machine.doc, "midjourney_task": long_ago})
    tick = machine.tick()
    assert (tick.exit_code, machine.generation_id, machine.billed(kind)) == (0, None, 1)
    assert machine.files("666") == {f"666/{ID}.{suffix}" for suffix in ("json", "png", "mp4")}


def test_a_video_that_takes_longer_than_one_polling_stays_paid_for(machine: Machine) -> None:
    machine.set(WORKFLOW={"runway_polling_interval": 0.5, "runway_polling_timeout": 4})
    tick = planted(machine, "runway", "never-ends").tick()
    task = machine.doc["runway_task"]
    assert (machine.status, tick.exit_code, machine.error_code) == (
        "runway_poll_timeout",
        75,
        "ERR_TEMPORARY_POLL_TIMEOUT",
    )
    assert len(machine.calls("poll")) > 1
    tick = machine.tick()
    assert (machine.status, tick.exit_code, machine.doc["runway_task"]) == ("waiting_for_runway", 0, task)
    assert machine.billed("runway") == 1


def test_an_answer_without_what_was_asked_for_is_a_failed_text(machine: Machine) -> None:
    """The prompts ask for a topic and require everything in the answer."""
    call = {"name": "all", "keys": KEYS, "system": "Answer in JSON.", "user": "Write a topic."}
    prompts = machine.folder / "prompts.json"
    prompts.write_text(json.dumps({"calls": [call]}))
    machine.set(FILE_PATHS={"prompts": str(prompts)})
    tick = machine.tick()
    assert (machine.status, tick.exit_code, machine.billed("chat")) == ("content_failed", 75, 1)
    assert machine.error_code == "ERR_TEMPORARY_BAD_ANSWER"
    assert machine.doc["paid_calls"][-1]["outcome"] == "wasted"


def test_the_text_goes_on_with_the_call_that_failed(machine: Machine) -> None:
    machine.order("chat#2=500", "imagine=401")
    assert [machine.tick().exit_code for _ in range(3)] == [75, 0, 78]
    assert machine.billed("chat") == 3
    assert len(machine.calls("chat")) == 4


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_picture_whose_link_has_expired_is_asked_for_again_and_not_paid_for_again(
    machine: Machine, status: int
) -> None:
    machine.order(f"download#1={status}")
    machine.plant("upscale")
    machine.tick()
    assert machine.status == "runway_trigger_failed"
    asked = len(machine.calls("fetch"))
    machine.tick()  # counts the attempt
    machine.tick()
    assert len(machine.calls("fetch")) == asked + 1
    assert (machine.billed("upscale"), machine.billed("runway")) == (1, 1)
    assert "link_expired" not in machine.doc.get("midjourney_results", {})
