"""How often a step that keeps failing is paid for, and what is left when its attempts are used up."""

import pytest
from cron_machine import ID, Machine


def test_a_step_that_always_fails_runs_once_and_three_times_again_over_the_ticks(machine: Machine) -> None:
    machine.plant("upscale")
    machine.order("upscale=500")
    ticks = []
    while machine.generation_id:
        tick = machine.tick()
        doc = machine.doc
        ticks.append((tick.exit_code, doc["status"], doc["retry_count"], len(machine.calls("upscale"))))
        assert doc.get("retries", {}).get("upscale", 0) == doc["retry_count"]
    assert ticks == [
        (75, "upscale_trigger_failed", 0, 1),
        (0, None, 1, 1),
        (75, "upscale_trigger_failed", 1, 2),
        (0, None, 2, 2),
        (75, "upscale_trigger_failed", 2, 3),
        (0, None, 3, 3),
        (75, "upscale_trigger_failed", 3, 4),
        (69, "task_failed_max_retries", 3, 4),
    ]
    assert tick.alerts == ["generation_failed"]
    assert tick.said("failed at upscale after 4 attempts")


ALWAYS = [
    # the constant fault; the call; how often it is made, carried out, and recorded as (possibly) paid
    ("chat=500", "chat", 2, 0, 0),
    ("chat=not-json", "chat", 2, 2, 2),
    ("imagine=500-html", "imagine", 2, 0, 2),
    ("imagine=task-failed", "imagine", 2, 2, 2),
    ("upscale=429", "upscale", 2, 0, 0),
    ("upscale=task-failed", "upscale", 2, 2, 2),
    ("runway=cut-after", "runway", 2, 2, 2),
    ("runway=task-failed", "runway", 2, 2, 2),
    ("runway=never-ends", "runway", 1, 1, 1),
    ("fetch=not-json", "fetch", 2, 2, 0),
    ("poll=500", "poll", 2, 0, 0),
    ("download=500", "download", 2, 0, 0),
]


@pytest.mark.parametrize(("order", "kind", "called", "carried_out", "noted"), ALWAYS, ids=[row[0] for row in ALWAYS])
def test_no_call_is_made_more_often_than_there_are_attempts(
    machine: Machine, order: str, kind: str, called: int, carried_out: int, noted: int
) -> None:
    machine.set(WORKFLOW={"max_retries": 1})
    if kind != "chat":
        machine.plant(kind)
    machine.order(order)
    done = machine.until_done()
    assert done.exit_code == 69
    assert (len(machine.calls(kind)), machine.billed(kind)) == (called, carried_out)
    assert machine.generation_id is None
    [report] = (key for key in machine.files("dead_letters") if key.endswith("report.json"))
    assert report in done.out
    assert len(machine.read(report)["paid_calls"]) == noted


def test_an_upscale_that_is_never_answered_but_always_done_is_paid_for_once(machine: Machine) -> None:
    machine.plant("upscale")
    machine.order("upscale=not-json")
    assert machine.tick().exit_code == 0
    assert machine.generation_id is None
    assert len(machine.calls("upscale")) == machine.billed("upscale") == 1


def test_with_mocks_for_used_up_attempts_the_generation_is_finished_all_the_same(machine: Machine) -> None:
    machine.set(WORKFLOW={"max_retries": 0, "on_exhausted": "mock"})
    machine.plant("imagine")
    machine.order("imagine=500")
    assert [machine.tick().exit_code for _ in range(2)] == [75, 0]
    assert machine.generation_id is None
    assert machine.files("666") == {f"666/{ID}.{suffix}" for suffix in ("json", "png", "mp4")}


def test_everything_of_a_failed_generation_is_kept(machine: Machine) -> None:
    machine.set(WORKFLOW={"max_retries": 0})
    machine.plant("runway")
    files = {key: data for key, data in machine.snapshot().items() if key.startswith("666/")}
    machine.order("runway=task-failed")
    assert [machine.tick().exit_code for _ in range(2)] == [75, 69]
    kept = machine.snapshot()
    assert {key: kept[key.replace("666", f"dead_letters/{ID}")] for key in files} == files
    assert machine.files("666") == set()
    report = machine.read(f"dead_letters/{ID}/report.json")
    assert report["failed_step"] == "runway"
    assert report["files"] == [f"{ID}.json", f"{ID}.png"]
    assert report["last_error"]["error_class"] == "A"
    assert machine.read(f"dead_letters/{ID}/config_midjourney.json")["status"] == "task_failed_max_retries"


def test_after_too_many_failed_generations_none_is_begun_until_the_operator_says_so(machine: Machine) -> None:
    machine.set(WORKFLOW={"max_failed_in_a_row": 2})
    machine.order("chat=400")
    assert [machine.tick().alerts for _ in range(2)] == [["generation_failed"], ["generation_failed", "stopped"]]
    before = machine.snapshot()
    stopped = machine.tick()
    assert (stopped.exit_code, machine.snapshot(), len(machine.calls())) == (69, before, 2)
    assert stopped.said("--resume")
    machine.sandbox.withdraw_orders()
    machine.order("imagine=401")  # far enough
    assert machine.tick("--resume").exit_code == 78
    assert machine.billed("chat") == 3


def test_after_the_key_was_mended_the_operator_need_not_wait_for_the_hour(machine: Machine) -> None:
    machine.plant("poll")
    machine.order("poll#1=401")
    assert [machine.tick().exit_code for _ in range(2)] == [78, 78]
    assert machine.tick("--resume").exit_code == 0
    assert machine.generation_id is None


@pytest.mark.parametrize(("answer", "billed", "exit_code"), [("retry", 2, 0), ("skip", 1, 69)])
def test_a_held_call_is_made_again_or_not_as_the_operator_says(
    machine: Machine, answer: str, billed: int, exit_code: int
) -> None:
    machine.set(WORKFLOW={"on_unknown_outcome": "hold"})
    machine.plant("runway")
    machine.order("runway#1=cut-after")
    assert machine.tick().exit_code == 75
    assert machine.tick("--resolve", answer).exit_code == exit_code
    assert (machine.generation_id, machine.billed("runway")) == (None, billed)


def test_there_is_nothing_to_resolve_where_no_call_is_held(machine: Machine) -> None:
    machine.plant("poll")
    before = machine.snapshot()
    tick = machine.tick("--resolve", "retry")
    assert (tick.exit_code, machine.snapshot(), machine.calls()) == (65, before, [])
