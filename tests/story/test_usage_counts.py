"""Runway cannot be asked about a lost order, but it counts them: equal counts show that the order was not carried
out."""

import pytest
from story_world import World

from retake.sandbox import Pace, Sandbox
from retake.vendors.runway import Runway


def held(outcome: str) -> World:
    world = World(on_unknown_outcome="hold")
    world.vendors.counts = lambda created: {"daily_generations": created}
    world.vendors.plan("create", outcome)
    tick = world.tick()
    assert (tick.exit_code, world.status) == (75, None)
    assert world.doc.pending
    return world


def test_an_order_that_was_not_carried_out_is_made_again_without_asking_the_operator() -> None:
    world = held("lost")
    assert world.tick().resting, "not before the counts can be trusted"
    world.later(minutes=5)
    world.tick()
    assert world.status == "runway_trigger_failed"
    assert not [call for call in world.doc.paid_calls if call["step"] == "runway"], "it is not recorded as billed"
    world.ticks(2)
    assert world.ended == ["done"]
    assert world.vendors.billed["create"] == 1


def test_an_order_that_may_have_been_carried_out_stays_held_and_is_compared_once() -> None:
    world = held("unknown")
    world.later(minutes=5)
    assert world.tick().exit_code == 75
    for _ in range(3):
        assert world.tick().resting
    assert world.vendors.billed["create"] == 1


def test_without_counts_a_held_order_waits_for_the_operator() -> None:
    world = World(on_unknown_outcome="hold")
    world.vendors.plan("create", "lost")
    world.tick()
    world.later(hours=1)
    assert world.tick().resting


@pytest.mark.parametrize("order", ["", "organization=500", "organization=500-html", "organization=cut-before"])
def test_the_client_reads_the_counts_or_says_that_it_cannot(order: str) -> None:
    with Sandbox(pace=Pace(0, 0, 0), quick=True) as sandbox:
        if order:
            sandbox.order(order)
        client = Runway(
            f"{sandbox.url}/runway", "key_x", model="gen4_turbo", ratio="1280:720", duration_s=5, timeout_s=60
        )
        counts = client.usage()
    assert counts == (None if order else {"daily_generations": 0, "credit_balance": 100_000})
