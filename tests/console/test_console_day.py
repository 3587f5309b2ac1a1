"""What `spend` and `status` say about the day: one book, one sum, and a clock that is not trusted blindly."""

from datetime import date, timedelta
from random import Random

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reading_world import World, ask, clear, shown

from retake.console.retry import command as retry
from retake.console.since import read_day
from retake.console.spend import command as spend
from retake.console.status import command as status
from retake.errors import StateError
from retake.operations.port import Refusal
from retake.story.settings import Settings
from retake.ticking.tick import Orders

OUTCOMES = {
    **dict.fromkeys(
        ("write", "imagine", "upscale", "create"), ("ok", "ok", "ok", "refused", "unknown", "lost", "rejected", "dies")
    ),
    "choose": ("ok", "refused", "unknown", "wasted", "dies"),
    "fetch": ("ok", "ok", "running", "failed"),
    "poll": ("ok", "ok", "running", "failed"),
    "download": ("ok", "ok", "error"),
}


def finish(world: World) -> None:
    ended = len(world.ended)
    while len(world.ended) == ended:
        world.tick()
    clear(world)


def play(world: World, random: Random) -> None:
    world.vendors.choose_next = lambda kind: random.choice(OUTCOMES[kind])
    for _ in range(random.randint(1, 25)):
        pending = world.doc.pending
        held = pending is not None and pending.outcome is not None
        world.tick(Orders(resume=True, resolve=random.choice(["retry", "skip"]) if held else None))
        if random.random() < 0.3:
            world.clock.moment += timedelta(hours=random.choice([-30, -2, 5, 13, 40]))
        if random.random() < 0.5:
            clear(world)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["retry", "hold"]), st.sampled_from(["first", "vision"]))
def test_every_sum_that_spend_prints_agrees_with_the_others_and_with_the_books(
    seed: int, unknown: str, pick: str
) -> None:
    world = World(on_unknown_outcome=unknown, max_retries=1)
    world.settings = world.settings._replace(image=world.settings.image._replace(pick=pick))
    play(world, Random(seed))
    document = ask(spend, world, days=3650).document
    total = document["total"]["usd"]
    for part in ("by_day", "by_step", "by_generation"):
        assert sum(row["usd"] for row in document[part]) == pytest.approx(total), part
    days = {key[5:-5]: world.json(key)["pipelines"]["story"] for key in world.keys_of("caps/")}
    settled = {day: sums["settled_usd"] for day, sums in days.items() if sums["settled_usd"]}
    assert {row["day"]: row["usd"] for row in document["by_day"]} == pytest.approx(settled)
    pending = world.doc.pending
    reserved = sum(sums["reserved_usd"] for sums in days.values())
    assert reserved == pytest.approx(pending.raw["price_usd"] if pending else 0.0)


def test_what_is_left_of_the_cap_is_what_all_channels_leave() -> None:
    world = World(daily_cap_usd=1.0, channel_cap_usd=0.6)
    world.settings = world.settings._replace(channels=("en", "ru"))
    pipelines = {"story/en": {"settled_usd": 0.5}, "story/ru": {"settled_usd": 0.1, "open": {"a/1": 0.2}}}
    world.put("caps/2026-01-01.json", {"pipelines": pipelines})
    answer = ask(spend, world, days=1)
    today = answer.document["today"]
    assert (today["spent_usd"], today["left_usd"], today["cap_usd"], today["channel_cap_usd"]) == (0.8, 0.2, 1.0, 0.6)
    assert [(it["channel"], it["left_usd"]) for it in today["pipelines"]] == [("en", 0.1), ("ru", 0.2)]
    assert "0.200 left of the cap of 1.000 USD; each channel has a cap of 0.600 USD" in shown(answer)
    assert "spent today by all channels: 0.800 of 1.000 USD" in shown(ask(status, world))
    assert ask(status, world).document["caps"] == {
        "day": "2026-01-01",
        "clock_day": "2026-01-01",
        "spent_usd": 0.8,
        "cap_usd": 1.0,
        "channel_cap_usd": 0.6,
    }


def test_status_says_that_the_cap_holds_the_next_call_back() -> None:
    world = World(daily_cap_usd=0.05)
    world.ticks(2)
    assert "the daily cap: 0.010 of 0.050 USD are spent" in ask(status, world).document["pipelines"][0]["next_tick"]
    fresh = World(daily_cap_usd=0)
    assert "begin nothing: the daily cap" in ask(status, fresh).document["pipelines"][0]["next_tick"]


def test_an_acting_command_says_so_too() -> None:
    world = World(daily_cap_usd=0.05)
    world.vendors.plan("write", "refused")
    world.tick()
    world.put("caps/2026-01-01.json", {"pipelines": {"story": {"settled_usd": 0.05}}})
    generation_id = world.generation_id
    document = ask(retry, world, run=generation_id).document
    assert "the next tick waits: the daily cap" in document["next_tick"]


def test_a_day_that_is_not_the_clocks_is_named() -> None:
    world = World(daily_cap_usd=5.0)
    finish(world)
    world.later(days=-3)
    told = "counted on 2026-01-01, the latest day on record; this machine's clock says 2025-12-29"
    assert told in shown(ask(status, world))
    assert told in shown(ask(spend, world, days=30))
    assert ask(spend, world, days=30).document["today"]["doubt"] == told


def test_an_invalid_book_needs_a_person_and_the_rest_is_reported() -> None:
    world = World(daily_cap_usd=5.0)
    world.put("caps/2026-01-01.json", b"{")
    answer = ask(status, world)
    assert answer.exit_code == 69
    assert "caps/2026-01-01.json" in shown(answer)
    assert "spent today  not known: the day's book cannot be read" in shown(answer)
    with pytest.raises(StateError, match=r"caps/2026-01-01\.json"):
        ask(spend, world, days=1)


# --- spend --latest-day -----------------------------------------------------------------------------------------------


def ahead() -> World:
    """Return a world whose clock was five years ahead for one generation, and is right again."""
    world = World(daily_cap_usd=0.6)
    world.later(days=5 * 365)
    finish(world)
    world.clock.moment -= timedelta(days=5 * 365)
    return world


def day(world: World, text: str, *, yes: bool = True) -> object:
    return ask(spend, world, days=30, latest_day=date.fromisoformat(text), yes=yes)


def test_a_clock_that_was_ahead_is_corrected_with_consent_alone() -> None:
    world = ahead()
    before = world.everything()
    with pytest.raises(Refusal, match=r"this counts what is on record of later days .* Pass --yes"):
        day(world, "2026-01-01", yes=False)
    assert world.everything() == before
    answer = day(world, "2025-12-31")
    assert answer.document["done"] == "latest-day"  # type: ignore[attr-defined]
    assert [key[5:-5] for key in world.keys_of("caps/")] == ["2025-12-31"]
    world.tick()
    assert "caps/2026-01-01.json" in world.keys_of("caps/")


def test_naming_the_present_day_counts_all_of_it_on_it() -> None:
    world = ahead()
    day(world, "2026-01-01")
    assert "the daily cap: 0.575 of 0.600 USD are spent" in (world.tick(), world.tick())[1].why


@pytest.mark.parametrize(
    ("text", "why"),
    [("2026-01-02", "is in the future: the clock says 2026-01-01"), ("2025-11-11", "nothing to correct")],
)
def test_a_day_to_come_or_with_nothing_after_it_is_refused(text: str, why: str) -> None:
    with pytest.raises(Refusal, match=why):
        day(World(), text)


@pytest.mark.parametrize("text", ["2026-13-45", "yesterday", ""])
def test_what_is_not_a_day_is_reported_without_a_pattern(text: str) -> None:
    with pytest.raises(click.BadParameter, match=f"^'{text}' is not a day; write it like 2026-01-31.$"):
        read_day(None, None, text)


def test_a_channel_sees_what_it_spent_and_what_all_spent() -> None:
    world = World(daily_cap_usd=1.0)
    world.settings = Settings(channels=("en", "ru"))._replace(workflow=world.settings.workflow)
    world.put("caps/2026-01-01.json", {"pipelines": {"story/ru": {"settled_usd": 0.1}, "story/en": {}}})
    from reading_world import context_of

    assert "spent today  0.100 USD; 0.100 of 1.000 USD by all" not in shown(
        ask(status, context_of(world, channel="ru"))
    )
    assert "0.100 of 1.000 USD by all channels" in shown(ask(status, context_of(world, channel="en")))


def test_spend_says_what_else_has_used_up_the_cap() -> None:
    world = World(daily_cap_usd=1.0)
    world.put("caps/2026-01-01.json", {"pipelines": {"posters": {"settled_usd": 0.7}, "story": {"settled_usd": 0.1}}})
    left = "0.100 USD settled, 0.000 USD reserved; 0.200 left of the cap of 1.000 USD"
    assert f"{left}, of which others have spent 0.700 USD" in shown(ask(spend, world))
