"""The real scripts with LegNext as the vendor of the pictures."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cron_machine import ID, Machine, Vendors
from PIL import Image

from retake.media.video import check_video
from retake.sandbox import Pace, Sandbox


class GridsAlone(Vendors):
    """Vendors whose pictures come as one grid, never separately."""

    def __init__(self) -> None:
        super().__init__(0)
        self.sandbox = Sandbox(pace=Pace(0, 0, 0), quick=True, seed=7, singles=False)


@pytest.fixture
def buyer(machine: Machine) -> Machine:
    """Return a machine that buys from LegNext; its next call is the imagine."""
    return told_of_legnext(machine)


@pytest.fixture
def without_singles(tmp_path: Path) -> Iterator[Machine]:
    """Yield such a machine whose imagines yield only their grid."""
    vendors = GridsAlone()
    with vendors.sandbox:
        machine = Machine(tmp_path, vendors)
        yield told_of_legnext(machine)
        machine.end()


def told_of_legnext(machine: Machine) -> Machine:
    machine.set(API_KEYS=machine.sandbox.endpoints("legnext"))
    machine.plant("imagine")
    return machine


def assert_finished(machine: Machine) -> None:
    with Image.open(machine.bucket / f"666/{ID}.png") as picture:
        assert (picture.format, picture.size) == ("PNG", (320, 180))
    assert check_video((machine.bucket / f"666/{ID}.mp4").read_bytes()).codec == "h264"
    assert (machine.generation_id, machine.status) == (None, None)


def test_a_generation_is_made_with_one_job_for_the_four_and_one_for_the_upscale(buyer: Machine) -> None:
    tick = buyer.tick()
    assert tick.exit_code == 0, tick.err
    assert_finished(buyer)
    imagine, upscale = buyer.calls("imagine"), buyer.calls("upscale")
    assert [call.request["text"].partition(" --seed ")[0] for call in imagine] == ["a lighthouse in fog"]
    assert [call.request["imageNo"] for call in upscale] == [0]
    assert upscale[0].request["jobId"] == imagine[0].task_id
    assert [task.request.get("seller") for task in buyer.sandbox.tasks()[-3:]] == ["legnext", "legnext", None]


def test_the_sandbox_stands_in_for_the_seller_that_the_settings_name(machine: Machine) -> None:
    machine.set(API_KEYS={"midjourney": {"provider": "legnext"}, "runwayml": {}, "openai": {}})
    machine.env["RETAKE_SANDBOX_URL"] = machine.sandbox.url
    machine.plant("imagine")
    tick = machine.tick()
    assert tick.exit_code == 0, tick.err
    assert_finished(machine)
    assert "text" in machine.calls("imagine")[0].request


def test_each_failure_costs_a_retry_of_its_own_step_and_nothing_twice(buyer: Machine) -> None:
    buyer.order("imagine#1=429", "fetch#1=502-html", "upscale#1=500")
    run = buyer.until_done()
    assert run.exit_code == 0, run.err
    assert_finished(buyer)
    assert [(len(buyer.calls(kind)), buyer.billed(kind)) for kind in ("imagine", "upscale", "runway")] == [
        *((2, 1), (2, 1), (1, 1)),
    ]


@pytest.mark.parametrize("fault", ["cut-after", "not-json", "no-id"])
def test_a_lost_answer_cannot_be_asked_for_so_it_is_ordered_again_and_noted(buyer: Machine, fault: str) -> None:
    buyer.order(f"imagine#1={fault}")
    tick = buyer.tick()
    assert (buyer.status, tick.exit_code, tick.alerts) == ("imagine_trigger_failed", 75, ["outcome_unknown"])
    assert buyer.doc["paid_calls"][-1]["possible_duplicate"] is True
    assert buyer.calls("histories") == []
    assert buyer.until_done().exit_code == 0
    assert_finished(buyer)
    assert buyer.billed("imagine") == 2


def test_or_it_is_held_until_the_operator_decides(buyer: Machine) -> None:
    buyer.set(WORKFLOW={"on_unknown_outcome": "hold"})
    buyer.order("imagine#1=cut-after")
    assert buyer.tick().exit_code == 75
    assert buyer.doc["pending_call"]["outcome"] == "unknown"
    assert (buyer.tick().exit_code, buyer.billed("imagine")) == (75, 1)


def test_a_prompt_that_is_refused_as_sensitive_is_not_asked_again(buyer: Machine) -> None:
    buyer.order("imagine=403")
    tick = buyer.tick()
    assert (buyer.generation_id, tick.exit_code, len(buyer.calls("imagine"))) == (None, 69, 1)
    assert buyer.read(f"dead_letters/{ID}/report.json")["last_error"]["error_code"] == "ERR_BUSINESS_REJECTED"


def test_a_refused_key_is_reported_with_the_name_of_its_variable(buyer: Machine) -> None:
    buyer.order("imagine=401")
    tick = buyer.tick()
    assert tick.exit_code == 78
    assert tick.said("LegNext was asked to start an imagine job and answered HTTP 401")
    assert tick.said("MIDJOURNEY_API_KEY")


def test_where_there_is_only_the_grid_its_quarters_are_chosen_from(without_singles: Machine) -> None:
    machine = without_singles
    machine.set(IMAGE_GENERATION={"output_size": "320x180", "pick": "vision"})
    tick = machine.tick()
    assert tick.exit_code == 0, tick.err
    assert_finished(machine)
    [choice] = machine.calls("chat")
    shown = [part["image_url"]["url"] for part in choice.request["messages"][0]["content"] if "image_url" in part]
    assert len(shown) == 4
    assert all(picture.startswith("data:image/") for picture in shown)
    [chosen] = (found[1] for message in tick.messages if (found := re.match(r"picture (\d) of 4 was chosen", message)))
    assert machine.calls("upscale")[0].request["imageNo"] == int(chosen) - 1


def test_where_there_is_only_the_grid_the_first_is_upscaled_without_a_choice(without_singles: Machine) -> None:
    tick = without_singles.tick()
    assert tick.exit_code == 0, tick.err
    assert_finished(without_singles)
    assert without_singles.calls("chat") == []
    assert without_singles.calls("upscale")[0].request["imageNo"] == 0
