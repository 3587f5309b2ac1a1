"""--diagnose logs the requests, answers, decisions and bucket operations of the scripts, too, and never a secret."""

import json
import re
import sys
from typing import Any

import pytest
from cron_machine import ID, KEYS, MIDJOURNEY, TEXT, Machine, Run
from test_cron_logs import SIGNED, on_a_terminal

SECRETS = (*KEYS.values(), SIGNED, "0123456789abcdef", TEXT["midjourney_prompt"], TEXT["runway_prompt"], TEXT["script"])


def of(run: Run, logger: str) -> list[dict[str, Any]]:
    return [line for line in run.lines if line["logger"] == f"retake.diagnosis.{logger}"]


def test_each_request_is_reported_by_place_status_size_time_and_shape(machine: Machine) -> None:
    machine.plant("imagine")
    run = machine.tick("--diagnose")
    order = next(line for line in of(run, "http") if line["url"].endswith("/task") and line["method"] == "POST")
    assert (order["level"], order["status"], order["step"], order["generation_id"]) == ("DEBUG", 200, "imagine", ID)
    assert order["bytes"] > 0
    assert 0 <= order["seconds"] < 60
    assert re.fullmatch(r"\d+ bytes \{model, task_type, input: \{.*\}.*\}", order["request"])
    assert "data: {task_id" in order["answer"]
    assert order["message"].startswith(f"POST {order['url']}: HTTP 200, ")
    assert len(of(run, "http")) == len(machine.calls())


def test_each_decision_is_reported_with_its_facts_by_the_tick_and_by_the_script(machine: Machine) -> None:
    machine.plant("upscale")
    machine.order("upscale=500")
    run = machine.tick("--diagnose")
    decided = of(run, "decision")
    assert [line["act"] for line in decided[:2]] == ["ORDER_UPSCALE", "ORDER_UPSCALE"]
    task = machine.vendors.stock.imagine
    assert decided[0]["facts"]["results"] == f"imagine {task}"
    assert decided[0]["facts"]["mode"] == 0
    assert f"results imagine {task}" in decided[0]["message"]
    again = of(machine.tick("--diagnose"), "decision")
    assert again[0]["act"] in ("WAIT", "RETRY")
    assert again[0]["facts"]["error"] == "ERR_TEMPORARY_UNAVAILABLE"
    assert again[0]["facts"]["status"] == "upscale_trigger_failed"


def test_each_operation_of_the_bucket_is_reported(machine: Machine) -> None:
    machine.plant("fetch")
    run = machine.tick("--diagnose")
    told = of(run, "bucket")
    assert {"read", "write", "list", "lease", "join"} <= {line["operation"] for line in told}
    [first] = [line for line in told if line["key"] == MIDJOURNEY][:1]
    assert re.fullmatch(r"\d+ bytes", first["outcome"])
    assert first["message"].startswith(f"bucket {first['number']}: read {MIDJOURNEY}: ")


def test_nobody_sees_a_secret_a_signature_or_a_prompt(machine: Machine) -> None:
    """The vendor's answers contain signed links, and so does a document."""
    machine.plant("download")
    doc = machine.doc
    doc["midjourney_results"]["task_result"]["image_url"] += f"?{SIGNED}"
    machine.put(MIDJOURNEY, doc)
    runs = [machine.until_done("--diagnose")]
    machine.order("imagine#1=401")
    runs += [machine.tick("--diagnose"), machine.tick("--diagnose", "--resume")]
    told = "".join(run.out + run.err for run in runs)
    assert "/picture.png" in told
    assert not [secret for secret in SECRETS if secret in told or json.dumps(secret)[1:-1] in told]
    assert "Authorization" not in told
    for run in runs:
        assert of(run, "http")
        assert not [line for line in of(run, "http") if "?" in line["url"] or "?" in line["message"]]


def test_a_dry_run_tells_its_decision_and_changes_nothing(machine: Machine) -> None:
    machine.plant("upscale")
    before = machine.snapshot()
    run = machine.tick("--dry-run", "--diagnose")
    assert run.out.startswith(f"{ID}: would order the upscale")
    assert [line["act"] for line in of(run, "decision")] == ["ORDER_UPSCALE"]
    assert of(run, "bucket")
    assert machine.snapshot() == before


@pytest.mark.parametrize("value", ["1", "yes", "0", ""])
def test_the_environment_says_it_too(machine: Machine, value: str) -> None:
    machine.plant("fetch")
    machine.env["RETAKE_DIAGNOSE"] = value
    run = machine.tick()
    assert bool(of(run, "http")) == bool(of(run, "decision")) == (value in ("1", "yes"))


def test_without_it_a_tick_loads_and_tells_nothing_of_it(machine: Machine) -> None:
    machine.plant("fetch")
    assert not [line for line in machine.tick().lines if line["level"] == "DEBUG"]
    machine.env["PYTHONPROFILEIMPORTTIME"] = "1"
    process = machine.start("b2_storage_manager.py", "--dry-run")
    _, err = process.communicate(timeout=60)
    loaded = {line.rpartition("|")[2].strip() for line in err.splitlines() if line.startswith("import time:")}
    assert "retake.story.pipeline" in loaded
    assert not [name for name in loaded if "diagnos" in name]


@pytest.mark.skipif(sys.platform != "linux", reason="a terminal is left in another way elsewhere")
def test_a_person_at_a_terminal_can_read_it(machine: Machine) -> None:
    machine.plant("fetch")
    run = on_a_terminal(machine, "--diagnose")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", run.err)
    assert re.search(r"\d\d:\d\d:\d\d  \S+ +GET http://127.0.0.1:\d+/.*: HTTP 200, \d", plain)
    assert "decided: ask Midjourney for the task's state" in plain
    assert '{"timestamp"' not in plain
