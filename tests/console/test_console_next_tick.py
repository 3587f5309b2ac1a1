"""What an order says about the next tick is what `status` says right after it, whatever holds that tick back."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from acting_world import ID, STATES, World, act
from reading_world import ask
from story_ticks import fill

from retake.clock import stamp
from retake.console.answer import Answer
from retake.console.cancel import command as cancel
from retake.console.dead_letters import requeue_letter
from retake.console.retry import command as retry
from retake.console.rollback import command as rollback
from retake.console.skip import command as skip
from retake.console.status import command as status
from retake.operations.modes import ModePanel
from retake.story.operations import open_operations


def nothing(world: World) -> None:
    """Hold nothing back."""


def mode(number: int) -> Callable[[World], None]:
    def prepare(world: World) -> None:
        ModePanel(open_operations(world.settings, world.clock, bucket=world.bucket)).set(number, None, "")

    return prepare


def open_breakers(world: World) -> None:
    world.settings = world.settings._replace(breaker=world.settings.breaker._replace(failures=3))
    until = stamp(world.clock.now() + timedelta(seconds=world.settings.breaker.open_seconds))
    for vendor in ("openai", "midjourney", "runway"):
        world.put(f"breakers/{vendor}.json", {"open_until": until, "opened_at": stamp(world.clock.now())})


def invalid_breakers(world: World) -> None:
    open_breakers(world)
    for vendor in ("openai", "midjourney", "runway"):
        world.put(f"breakers/{vendor}.json", b"[]")


def tight_cap(world: World) -> None:
    world.settings = world.settings._replace(workflow=world.settings.workflow._replace(daily_cap_usd=0.001))


HELD_BY = [nothing, mode(1), mode(2), mode(3), open_breakers, tight_cap, fill]
ORDERS: dict[str, tuple[str, Callable[[World], Answer]]] = {
    "retry": ("upscale failed", lambda world: act(retry, world, run=ID)),
    "retry a held call": ("video held", lambda world: act(retry, world, run=ID)),
    "skip": ("video failed", lambda world: act(skip, world, run=ID)),
    "cancel": ("pictures failed", lambda world: act(cancel, world, run=ID, yes=True)),
    "requeue": ("dead_lettered", lambda world: act(requeue_letter, world, letter_id=ID)),
    "rollback": ("video failed", lambda world: act(rollback, world, run=ID, step="imagine", yes=True)),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("held_by", HELD_BY)
def test_an_order_says_of_the_next_tick_what_status_says(order: str, held_by: Callable[[World], None]) -> None:
    state, give = ORDERS[order]
    world = STATES[state]()
    held_by(world)
    told = give(world).document["next_tick"]
    [shown] = ask(status, world).document["pipelines"]
    assert told.removeprefix("the next tick").removeprefix(":").strip() == shown["next_tick"]


def test_an_invalid_breaker_is_named_and_the_order_is_done() -> None:
    world = STATES["upscale failed"]()
    invalid_breakers(world)
    answer = act(retry, world, run=ID)
    [shown] = ask(status, world).document["pipelines"]
    for told in (answer.document["next_tick"], shown["next_tick"]):
        assert "breakers/midjourney.json: the whole document is not an object" in told
    assert world.status is None
