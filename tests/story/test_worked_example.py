"""The worked example of the original specification (its section 4, a failing upscale), tick by tick."""

import pytest
from story_world import World

from retake.story.documents import Step


def at_the_upscale() -> World:
    """Return a world whose pictures exist and whose upscale is next."""
    world = World()
    world.vendors.plan("fetch", "running")
    world.tick()
    assert world.status == "waiting_for_imagine"
    return world


def shown(world: World) -> tuple[str | None, int]:
    return world.status, world.doc.raw["retry_count"]


def test_a_failing_upscale_is_tried_three_more_times_and_then_given_up() -> None:
    world = at_the_upscale()
    generation_id = world.generation_id
    world.vendors.plan("upscale", *["refused"] * 99)

    run_1 = world.tick()  # the upscale fails
    assert shown(world) == ("upscale_trigger_failed", 0)
    assert run_1.exit_code == 75

    for attempt in (1, 2, 3):
        reset = world.tick()  # the attempt is counted, the status is reset, the tick ends
        assert shown(world) == (None, attempt)
        assert reset.exit_code == 0
        assert reset.why == f"attempt {attempt}/3 for status upscale_trigger_failed"
        assert world.doc.results, "the pictures are kept"

        again = world.tick()  # the upscale is tried again, and fails again
        assert shown(world) == ("upscale_trigger_failed", attempt)
        assert again.exit_code == 75

    run_n = world.tick()  # no attempt is left
    assert shown(world) == ("task_failed_max_retries", 3)
    assert (run_n.exit_code, run_n.ended) == (69, "failed")
    assert world.generation_id is None
    assert world.documents.public.processing_lock is False
    assert world.vendors.asked["upscale"] == 4
    assert world.vendors.billed["imagine"] == 1, "only the failed step was repeated"

    world.vendors.plans.clear()
    world.tick()  # the system is ready for a new task
    assert world.ended == ["failed", "done"]
    assert world.json("dead_letters/" + str(generation_id) + "/report.json")["failed_step"] == "upscale"


def test_an_upscale_that_fails_twice_ends_well_and_starts_the_next_step_with_a_fresh_counter() -> None:
    world = at_the_upscale()
    world.vendors.plan("upscale", "refused", "refused", "ok")
    world.ticks(4)
    world.vendors.plan("fetch", "running")
    world.tick()
    assert world.status == "waiting_for_upscale"
    assert world.doc.retries == {"upscale": 2}, "an order is not a result: the counter stays"
    world.vendors.plan("create", "refused")
    world.tick()
    assert shown(world) == ("runway_trigger_failed", 0)
    assert world.doc.retries == {}
    world.ticks(2)
    assert world.ended == ["done"]


@pytest.mark.parametrize(
    ("kind", "step", "status"),
    [
        ("write", Step.CONTENT, "content_failed"),
        ("imagine", Step.IMAGINE, "imagine_trigger_failed"),
        ("upscale", Step.UPSCALE, "upscale_trigger_failed"),
        ("fetch", Step.FETCH, "mj_fetch_failed"),
        ("create", Step.RUNWAY, "runway_trigger_failed"),
        ("poll", Step.RUNWAY_POLL, "runway_poll_failed"),
    ],
)
def test_each_step_that_always_fails_goes_through_the_same_sequence(kind: str, step: Step, status: str) -> None:
    world = World()
    world.vendors.plan(kind, *["error" if kind in ("fetch", "poll") else "refused"] * 99)
    seen = []
    while not world.ended:
        world.tick()
        seen.append((world.status if world.status == status else "reset", world.doc.retries_of(step)))
    assert seen[:-1] == [
        (status, 0), ("reset", 1), (status, 1), ("reset", 2), (status, 2), ("reset", 3), (status, 3),
    ]  # fmt: skip
    assert shown(world) == ("task_failed_max_retries", 3)
    assert world.vendors.asked[kind] == 4


def test_a_video_that_never_comes_is_polled_four_times_and_ordered_once() -> None:
    world = World()
    world.vendors.plan("poll", *["running"] * 999)
    seen = []
    while not world.ended:
        world.tick()
        seen.append(shown(world))
    timeouts = [count for status, count in seen if status == "runway_poll_timeout"]
    assert timeouts == [0, 1, 2, 3]
    assert world.vendors.billed["create"] == 1


def test_tasks_that_are_accepted_and_then_always_end_failed_are_not_paid_for_without_end() -> None:
    world = World()
    world.vendors.plan("poll", *["failed"] * 99)
    while not world.ended:
        world.tick()
    assert world.ended == ["failed"]
    assert world.vendors.billed["create"] == 4
