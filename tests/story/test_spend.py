"""What is spent: reserved at the intent, settled or released at the result, and capped by the day."""

import pytest
from story_world import World

from retake.settings import Settings
from retake.story.documents import Step
from retake.story.prices import prices
from retake.story.shift import Tick

PRICE = prices(Settings())


def spend(world: World) -> tuple[float, float]:
    return world.doc.spend.reserved, world.doc.spend.settled


def capped(usd: float) -> World:
    return World(daily_cap_usd=usd, max_retries=3)


def until_it_rests(world: World) -> Tick:
    for _ in range(20):
        tick = world.tick()
        if tick.resting:
            return tick
    raise AssertionError("it never rests")


def test_a_whole_generation_costs_the_sum_of_its_calls() -> None:
    world = World()
    world.tick()
    assert spend(world) == (0.0, pytest.approx(sum(PRICE.values())))
    record = world.json(world.keys_of("spend/")[0])
    assert sum(call["price_usd"] for call in record["paid_calls"]) == pytest.approx(sum(PRICE.values()))


def test_a_refused_call_is_released_and_a_lost_one_counts_as_billed() -> None:
    world = World()
    world.vendors.plan("imagine", "refused", "unknown")
    world.tick()
    assert spend(world) == (0.0, PRICE[Step.CONTENT])
    world.ticks(2)
    assert world.status == "imagine_trigger_failed"
    assert spend(world) == (0.0, pytest.approx(PRICE[Step.CONTENT] + PRICE[Step.IMAGINE]))


def test_a_held_call_stays_reserved_until_the_operator_has_decided() -> None:
    world = World(on_unknown_outcome="hold")
    world.vendors.plan("create", "unknown")
    world.tick()
    assert world.doc.spend.reserved == PRICE[Step.RUNWAY]


@pytest.mark.parametrize("outcome", ["refused", "unknown", "lost", "dies", "rejected", "key"])
@pytest.mark.parametrize("kind", ["write", "imagine", "upscale", "create"])
def test_what_was_reserved_is_settled_or_released(kind: str, outcome: str) -> None:
    world = World()
    world.vendors.plan(kind, outcome)
    for _ in range(6):
        world.tick()
        pending = world.doc.pending
        assert world.doc.spend.reserved == (pending.raw["price_usd"] if pending else 0.0)


def test_the_cap_stops_the_next_paid_call_and_tomorrow_goes_on() -> None:
    world = capped(PRICE[Step.CONTENT] + PRICE[Step.IMAGINE])
    tick = until_it_rests(world)
    assert tick.exit_code == 75
    assert "daily cap" in tick.why
    assert world.vendors.billed == {"write": 1, "imagine": 1}
    assert world.doc.results, "what was paid for was fetched all the same"
    world.later(days=1)
    until_it_rests(world)
    assert world.vendors.billed == {"write": 1, "imagine": 1, "upscale": 1}, "the video costs more than a day allows"


def test_a_paid_video_is_polled_however_much_is_spent() -> None:
    world = capped(sum(PRICE.values()))
    world.vendors.plan("poll", "error")
    world.ticks(3)
    assert world.ended == ["done"]


def test_no_generation_is_begun_that_could_not_pay_its_first_call() -> None:
    world = capped(0)
    tick = world.tick()
    assert (tick.exit_code, tick.resting) == (75, True)
    assert world.generation_id is None
    assert not world.vendors.billed


def test_an_unknown_model_counts_as_the_dearest_of_its_kind() -> None:
    settings = Settings()
    unknown = settings._replace(runwayml=settings.runwayml._replace(model_name="gen9"))
    assert prices(unknown)[Step.RUNWAY] >= prices(settings)[Step.RUNWAY]
    own = settings._replace(prices=settings.prices._replace(runway_second=0.5))
    assert prices(own)[Step.RUNWAY] == 5.0
