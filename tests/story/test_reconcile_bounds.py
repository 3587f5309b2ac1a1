"""Looking into a paid call is bounded: the call is held once that has failed too often."""

from typing import Any

import pytest
from story_ticks import PICTURES, at
from story_world import Died, Heard, World
from test_paid_calls import BEFORE, STEPS, before

from retake.bucket import Lease
from retake.errors import StateError
from retake.ticking.tick import Orders, ScriptResult

UPSCALE = {"step": "upscale", "requested_at_utc": "2026-01-01T00:00:00Z"}


class Dying(World):
    """Scripts end as `end` says while a paid call is pending: they die at their start, or hang until they are ended."""

    end: ScriptResult | None = None

    def run(self, script: str, arguments: list[str], lease: Lease) -> ScriptResult:
        return self.end if self.end and self.doc.pending else super().run(script, arguments, lease)


def left_pending(kind: str, end: ScriptResult, **workflow: Any) -> Dying:
    """Return a pipeline whose paid call of that kind was cut short by a death; its scripts then end as `end` says."""
    world = before(kind, **workflow)
    world.__class__ = Dying
    assert isinstance(world, Dying)
    world.vendors.plan(kind, "dies")
    world.tick()
    assert world.doc.pending is not None
    world.end = end
    return world


@pytest.mark.parametrize("rule", ["retry", "hold"])
@pytest.mark.parametrize(
    "end",
    [
        ScriptResult(-9),
        ScriptResult(1),
        ScriptResult(70),
        ScriptResult(-9, timed_out=True),
        ScriptResult(75, timed_out=True),
    ],
)
@pytest.mark.parametrize("kind", BEFORE)
def test_a_settle_that_always_dies_is_counted_and_then_held(kind: str, end: ScriptResult, rule: str) -> None:
    world = left_pending(kind, end, on_unknown_outcome=rule, max_retries=2)
    with Heard() as log:
        for failed in (1, 2, 3):
            tick = world.tick()
            pending, error = world.doc.pending, world.doc.raw.get("last_error")
            assert tick.exit_code == 75
            assert pending is not None
            assert pending.failed_reconciles == failed
            assert error is not None
            assert error["error_code"] == "ERR_TEMPORARY_SCRIPT_DIED"
        assert log.alerts == ["outcome_unknown"]
        held = world.ticks(3)
    assert [tick.exit_code for tick in held] == [75] * 3
    assert all(tick.resting and "--resolve" in tick.why for tick in held)
    assert log.alerts == ["outcome_unknown"], "reported once"
    assert world.doc.pending is not None
    assert (world.doc.pending.failed_reconciles, world.doc.pending.outcome) == (3, "unknown")
    assert world.vendors.asked[kind] == 1, "nothing was paid for again"


@pytest.mark.parametrize("kind", BEFORE)
def test_a_call_held_for_failed_settles_goes_on_as_the_operator_says(kind: str) -> None:
    world = left_pending(kind, ScriptResult(-9), max_retries=0)
    world.ticks(2)
    world.end = None
    world.tick(Orders(resolve="retry"))
    assert world.vendors.asked[kind] == 2
    assert world.doc.pending is None
    assert [call["step"] for call in world.doc.paid_calls if call.get("possible_duplicate")] == [STEPS[kind]]


def test_a_settle_that_recovers_leaves_no_count_behind() -> None:
    world = left_pending("imagine", ScriptResult(-9))
    world.tick()
    world.end = None
    world.vendors.findable["imagine"] = "imagine-found"
    world.tick()
    assert world.doc.task is not None
    assert world.doc.task.task_id == "imagine-found"
    assert (world.doc.pending, world.doc.raw.get("last_error")) == (None, None)


def test_the_question_itself_may_be_what_dies() -> None:
    world = before("imagine", max_retries=1)
    world.vendors.plan("imagine", "dies")

    def dying(asked: object) -> str | None:
        raise Died

    world.vendors.find = dying
    ticks = world.ticks(5)
    assert {tick.exit_code for tick in ticks} == {75}
    assert world.doc.pending is not None
    assert (world.doc.pending.failed_reconciles, world.doc.pending.outcome) == (2, "unknown")


# --- what is not for the operator to decide -------------------------------------------------------------------------


@pytest.mark.parametrize("resolve", ["retry", "skip"])
def test_a_call_that_nobody_has_looked_up_is_not_resolved_but_looked_up_by_the_next_tick(resolve: str) -> None:
    """The vendor may know of it: as with the console, a person decides only where the vendor cannot tell."""
    world = at(midjourney_results=PICTURES, pending_call=UPSCALE)
    world.vendors.findable["upscale"] = "upscale-found"
    before = world.everything()
    for order in (world.manager().dry_run, world.tick):
        with pytest.raises(StateError, match=r"next tick finds out.*Nothing was changed"):
            order(Orders(resolve=resolve))
    assert world.everything() == before
    world.tick()
    assert (world.ended, world.vendors.asked["upscale"]) == (["done"], 0)


@pytest.mark.parametrize("resolve", ["retry", "skip"])
def test_a_call_that_belongs_to_no_generation_is_not_resolved_but_kept(resolve: str) -> None:
    world = at(gen={"generation_id": None}, pending_call={**UPSCALE, "outcome": "unknown"}, midjourney_results=PICTURES)
    before = world.everything()
    with pytest.raises(StateError, match="Nothing was changed"):
        world.tick(Orders(resolve=resolve))
    assert world.everything() == before
    world.tick()
    assert any(key.startswith("dead_letters/before-") for key in world.keys_of())
