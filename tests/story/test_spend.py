"""Spending: reserved at the intent, settled or released at the result, and capped by the day."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from story_world import Channel, Heard, World

from retake.bucket.failing import FailingBucket, Fault
from retake.bucket.wrappers import CountingBucket
from retake.clock import FakeClock
from retake.story.documents import Step
from retake.story.settings import Settings
from retake.story.spending import prices
from retake.ticking.tick import Tick
from retake.vendors.runway import Runway
from retake.vendors.runway_limits import MODELS
from retake.vendors.sellers import CHAT_USD, RUNWAY_SECOND_USD

PRICE = prices(Settings())
MIDJOURNEY = "config/config_midjourney.json"


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
    assert world.doc.results, "paid work was still fetched"
    world.later(days=1)
    until_it_rests(world)
    assert world.vendors.billed == {"write": 1, "imagine": 1, "upscale": 1}, "the video costs more than a day allows"


@pytest.mark.parametrize("step", [Step.CONTENT, Step.UPSCALE])
def test_a_cap_that_is_reached_between_two_calls_of_a_script_uses_up_no_attempt(step: Step) -> None:
    """The first of two texts, and the choice of a picture before its upscale, are paid for with the rest of the day's
    money."""
    of_upscale = PRICE[Step.IMAGINE] + PRICE[Step.UPSCALE] if step is Step.UPSCALE else 0.005
    world = capped(PRICE[Step.CONTENT] + of_upscale)
    if step is Step.CONTENT:
        [whole] = world.prompts
        world.prompts = [whole._replace(name="first", keys=whole.keys[:1]), whole]
    world.settings = world.settings._replace(image=world.settings.image._replace(pick="vision"))
    for tick in world.ticks(3):
        assert (tick.exit_code, world.status, world.doc.retries) == (75, None, {})
        assert not world.doc.error
    assert world.vendors.billed == Counter(["write"] if step is Step.CONTENT else ["write", "imagine", "choose"])
    world.later(days=1)
    world.ticks(2)
    assert world.vendors.billed["upscale" if step is Step.UPSCALE else "write"] == (1 if step is Step.UPSCALE else 2)


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


# --- prices -----------------------------------------------------------------------------------------------------------


def set_up(section: str, **values: Any) -> Settings:
    settings = Settings()
    return settings._replace(**{section: getattr(settings, section)._replace(**values)})


def test_an_unknown_model_counts_as_twice_the_dearest_of_its_kind() -> None:
    assert prices(set_up("runwayml", model_name="gen9"))[Step.RUNWAY] == 10 * 2 * max(RUNWAY_SECOND_USD.values())
    assert prices(set_up("openai", model="gpt-9"))[Step.CONTENT] == 2 * max(CHAT_USD.values())
    dearer = set_up("openai", model="gpt-9")._replace(prices=Settings().prices._replace(unknown_factor=5))
    assert prices(dearer)[Step.CONTENT] == 5 * max(CHAT_USD.values())
    own = set_up("prices", runway_second=0.5)
    assert prices(own)[Step.RUNWAY] == 5.0


def test_the_price_booked_is_that_of_the_length_that_is_ordered() -> None:
    assert prices(set_up("video", runway_duration=8))[Step.RUNWAY] == 0.50, "gen4_turbo makes 5 s or 10 s"
    assert prices(set_up("video", runway_duration=7))[Step.RUNWAY] == 0.25
    any_length = set_up("video", runway_duration=8)._replace(runwayml=Settings().runwayml._replace(model_name="gen4.5"))
    assert prices(any_length)[Step.RUNWAY] == 0.96


def test_the_price_booked_is_that_of_the_length_that_the_client_orders() -> None:
    for model in (*MODELS, "gen9"):
        for seconds in range(2, 31):
            settings = set_up("video", runway_duration=seconds)
            settings = settings._replace(runwayml=settings.runwayml._replace(model_name=model))
            runway = Runway(None, "key", model=model, ratio="1280:720", duration_s=seconds, timeout_s=1)
            second = RUNWAY_SECOND_USD.get(model, 2 * max(RUNWAY_SECOND_USD.values()))
            assert prices(settings)[Step.RUNWAY] == pytest.approx(second * runway._duration)


def test_a_price_that_is_a_guess_is_warned_of_once_in_the_life_of_the_process() -> None:
    world = World()
    world.settings = world.settings._replace(openai=world.settings.openai._replace(model=f"gpt-{id(world)}"))
    with Heard() as log:
        world.ticks(3)
    assert [it for it in log.warnings if "PRICES" in it] == [
        f"API_KEYS.openai.model: the price of gpt-{id(world)} is not known; it counts as 0.02 USD, 2 times the "
        "highest known price. Set its price in PRICES.content"
    ]


# --- one book for all channels ---------------------------------------------------------------------------------------


def test_the_daily_cap_holds_for_all_channels_together() -> None:
    shared = World()
    channels = [Channel(name, shared, daily_cap_usd=1.0) for name in ("en", "ru", "de", "fr")]
    for channel in channels * 4:
        channel.tick()
    usd = sum(
        channel.vendors.billed[kind] * PRICE[step]
        for channel in channels
        for kind, step in (("write", Step.CONTENT), ("imagine", Step.IMAGINE), ("upscale", Step.UPSCALE))
    ) + sum(channel.vendors.billed["create"] * PRICE[Step.RUNWAY] for channel in channels)
    assert 0.5 < usd <= 1.0
    assert shared.json("caps/2026-01-01.json")["spent_usd"] == pytest.approx(usd)


def test_a_channels_own_cap_leaves_the_others_theirs() -> None:
    shared = World()
    first, second = (Channel(name, shared, channel_cap_usd=0.1) for name in ("en", "ru"))
    for _ in range(4):
        tick = first.tick()
    assert tick.exit_code == 75
    assert "the daily cap of story/en: 0.065 of 0.100 USD are spent, 0.500 more are asked for" in tick.why
    second.tick()
    assert second.vendors.billed["write"] == 1


def test_a_clock_set_back_does_not_begin_with_nothing_spent() -> None:
    world = capped(0.06)
    for days in (0, -1, 1, -1, 0, -1, 0, -1):
        world.clock.moment = FakeClock().moment + timedelta(days=max(days, 0), hours=12 * days)
        world.ticks(3)
    assert sum(world.vendors.billed[kind] for kind in ("write", "imagine", "upscale", "create")) <= 4
    days = [world.json(key)["spent_usd"] for key in world.keys_of("caps/")]
    assert len(days) == 2
    assert max(days) <= 0.06


def test_a_call_on_a_day_that_is_not_the_clocks_says_on_which_it_counts() -> None:
    world = World()
    world.put("caps/2026-01-03.json", {})
    world.vendors.plan("create", *["refused"] * 9)
    world.tick()
    assert {call["counted_on"] for call in world.doc.paid_calls} == {"2026-01-03"}
    assert world.doc.spend.day == "2026-01-03"


def test_removing_the_document_does_not_forget_the_day() -> None:
    world = capped(PRICE[Step.CONTENT] + PRICE[Step.IMAGINE])
    until_it_rests(world)
    billed = Counter(world.vendors.billed)
    for _ in range(3):
        world.bucket.delete("config/config_midjourney.json")
        world.ticks(2)
    assert world.vendors.billed == billed


@pytest.mark.parametrize("outcome", ["dies", "unknown"])
def test_a_call_under_way_counts_though_a_person_takes_its_generation_away(outcome: str) -> None:
    world = World(daily_cap_usd=5, on_unknown_outcome="hold")
    world.vendors.plan("create", outcome)
    world.tick()
    assert world.doc.pending
    world.put("config/config_gen.json", {})
    while not world.ended:
        world.tick()
    twice = pytest.approx(2 * sum(PRICE.values()))
    assert world.json("caps/2026-01-01.json")["spent_usd"] == twice
    [letter] = world.keys_of("dead_letters/before-")
    calls = [*world.json(letter)["paid_calls"], *world.json(world.keys_of("spend/")[0])["paid_calls"]]
    assert sum(call["price_usd"] for call in calls) == twice


def test_removing_the_document_while_a_call_is_under_way_counts_the_call() -> None:
    world = capped(5.0)
    world.vendors.plan("write", "dies")
    world.tick()
    world.bucket.delete(MIDJOURNEY)
    world.tick()
    assert world.vendors.billed["write"] == 2
    billed = sum(PRICE.values()) + PRICE[Step.CONTENT]
    assert world.json("caps/2026-01-01.json")["spent_usd"] == pytest.approx(billed)


def test_a_book_that_was_removed_is_begun_again_from_what_the_document_says() -> None:
    world = capped(PRICE[Step.CONTENT] + PRICE[Step.IMAGINE])
    until_it_rests(world)
    billed = Counter(world.vendors.billed)
    world.bucket.delete("caps/2026-01-01.json")
    until_it_rests(world)
    assert world.vendors.billed == billed


def test_what_an_older_document_counted_is_carried_over() -> None:
    world = capped(0.9)
    world.put(
        "config/config_midjourney.json", {"spend": {"day": "2026-01-01", "reserved_usd": 0.0, "settled_usd": 0.8}}
    )
    tick = until_it_rests(world)
    assert "0.865 of 0.900 USD are spent" in tick.why
    assert world.json("caps/2026-01-01.json")["spent_usd"] == 0.865


def test_a_call_that_died_before_its_intent_was_saved_is_released() -> None:
    world = capped(100.0)
    world.bucket = FailingBucket(world.bucket, Fault(operation="write", key=MIDJOURNEY, number=2))  # type: ignore[assignment]
    world.tick()
    assert not world.vendors.billed
    assert world.json("caps/2026-01-01.json")["spent_usd"] == 0


def test_a_tick_that_pays_nothing_does_not_look_into_the_book() -> None:
    world = capped(1.0)
    world.vendors.plan("fetch", *["running"] * 9)
    world.tick()
    counting = CountingBucket(world.bucket)
    asked: list[str] = []
    around = counting.around
    counting.around = lambda operation, key, call: (asked.append(f"{operation} {key}"), around(operation, key, call))[1]  # type: ignore[method-assign, assignment]
    world.bucket = counting  # type: ignore[assignment]
    world.tick()
    assert not [it for it in asked if "caps" in it or it.startswith("now")]


def test_without_a_cap_a_book_is_kept_anyway() -> None:
    world = World()
    world.tick()
    assert world.json("caps/2026-01-01.json")["pipelines"]["story"]["settled_usd"] == pytest.approx(sum(PRICE.values()))


def test_a_dry_run_says_that_the_cap_holds_a_call_back() -> None:
    world = capped(PRICE[Step.CONTENT])
    world.ticks(2)
    [line] = world.manager().dry_run()
    assert "the daily cap: 0.010 of 0.010 USD are spent, 0.045 more are asked for; continues at 00:00 UTC" in line
    assert "would begin nothing: the daily cap" in "".join(capped(0).manager().dry_run())
