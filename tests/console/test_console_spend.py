"""`spend`: every paid call counts once, on its day, at its step, for its generation."""

from datetime import timedelta

import pytest
from reading_world import World, ask, context_of, finish, shown

from retake.bucket.wrappers import CountingBucket
from retake.console.spend import command as spend
from retake.errors import StateError
from retake.operations.bills import paid_sums, sums_document
from retake.story.settings import Settings
from retake.ticking.tick import Orders


def test_nothing_paid_is_nothing() -> None:
    answer = ask(spend, World(), days=30)
    assert answer.document["total"] == {
        "calls": 0,
        "usd": 0.0,
        "unsure_calls": 0,
        "unsure_usd": 0.0,
        "possible_duplicates": 0,
    }
    assert shown(answer).startswith("Paid since 2025-12-03: 0.000 USD for 0 calls\n")


def test_sums_on_record_say_what_their_calls_do() -> None:
    calls = [
        {"price_usd": 0.1, "outcome": "accepted"},
        {"price_usd": 0.2, "outcome": "wasted"},
        {"price_usd": 0.4, "outcome": "unknown", "possible_duplicate": True},
        {"price_usd": 0.000001, "outcome": "accepted", "possible_duplicate": True},
    ]
    sums = paid_sums(calls)
    assert sums
    assert sums_document([], sums) == sums_document(calls)
    assert sums_document(calls[:2], paid_sums(calls[2:]) or sums) == sums_document(calls)
    assert paid_sums([*calls, {"price_usd": 0.0000004}]) is None


def test_calls_are_summed_by_day_step_and_generation() -> None:
    world = World(daily_cap_usd=5.0)
    finish(world)
    world.later(days=1)
    finish(world, ("upscale", "unknown"))
    document = ask(spend, world, days=30).document
    assert document["total"]["calls"] == 9
    assert document["total"]["usd"] == pytest.approx(1.14)
    assert [(it["day"], it["calls"]) for it in document["by_day"]] == [("2026-01-02", 5), ("2026-01-01", 4)]
    assert {it["step"]: it["calls"] for it in document["by_step"]} == {
        "content": 2,
        "imagine": 2,
        "upscale": 3,
        "runway": 2,
    }
    assert [it["outcome"] for it in document["by_generation"]] == ["done", "done"]
    assert document["total"]["possible_duplicates"] == 1
    assert document["total"]["unsure_usd"] == pytest.approx(0.01)


def test_the_day_is_reported_with_what_is_left_of_its_cap() -> None:
    world = World(daily_cap_usd=5.0)
    finish(world)
    answer = ask(spend, world, days=1)
    [today] = answer.document["today"]["pipelines"]
    assert today == {"channel": None, "settled_usd": 0.565, "reserved_usd": 0.0, "left_usd": 4.435}
    assert "0.565 USD settled, 0.000 USD reserved; 4.435 left of the cap of 5.000 USD" in shown(answer)


def test_the_sum_of_the_calls_is_what_the_days_counter_says() -> None:
    world = World()
    finish(world, ("imagine", "unknown"), ("create", "lost"), ("write", "wasted"))
    finish(world, ("upscale", "rejected"))
    document = ask(spend, world, days=1).document
    assert document["by_day"][0]["usd"] == pytest.approx(document["today"]["pipelines"][0]["settled_usd"])


def test_a_generation_under_way_counts_and_one_resumed_counts_once() -> None:
    world = World()
    finish(world, ("upscale", "rejected"))
    world.vendors.plan("create", *["refused"] * 2)
    world.tick(Orders(retake="20260101-0000"))
    document = ask(spend, world, days=1).document
    [row] = document["by_generation"]
    assert (row["outcome"], row["calls"]) == ("under way", 3)
    while world.generation_id:
        world.tick()
    [row] = ask(spend, world, days=1).document["by_generation"]
    assert (row["outcome"], row["calls"]) == ("done", 4)


def test_paid_work_that_became_nobodys_counts() -> None:
    world = World()
    finish(world)
    call = {"step": "imagine", "requested_at_utc": "2026-01-01T00:00:00Z", "price_usd": 0.045, "outcome": "accepted"}
    world.put("dead_letters/before-20260101-0009/config_midjourney.json", {"paid_calls": [call]})
    rows = ask(spend, world, days=1).document["by_generation"]
    assert [(row["generation_id"], row["outcome"]) for row in rows] == [
        ("before-20260101-0009", "nobody's"),
        ("20260101-0000", "done"),
    ]


def test_days_before_those_asked_for_are_not_counted_and_not_read() -> None:
    world = World()
    world.bucket.store._clock = world.clock
    finish(world)
    world.clock.moment += timedelta(days=10)
    finish(world)
    counted = CountingBucket(world.bucket)
    document = ask(spend, context_of(world, counted), days=3).document
    assert [row["day"] for row in document["by_day"]] == ["2026-01-11"]
    few = counted.counts["read"]
    ask(spend, context_of(world, counted), days=30)
    assert counted.counts["read"] == 2 * few + 1


def test_channels_are_summed_and_told_apart() -> None:
    world = World()
    world.settings = Settings()._replace(channels=("en", "ru"))
    call = {"step": "imagine", "requested_at_utc": "2026-01-01T00:00:00Z", "price_usd": 0.5, "outcome": "accepted"}
    for channel in ("en", "ru"):
        world.put(f"{channel}/spend/20260101-0000.json", {"outcome": "done", "paid_calls": [call]})
    document = ask(spend, world, days=1).document
    assert document["total"]["usd"] == 1.0
    assert {row["channel"] for row in document["by_generation"]} == {"en", "ru"}
    assert "CHANNEL" in shown(ask(spend, world, days=1))


def test_many_generations_are_cut_on_paper_and_whole_in_json() -> None:
    world = World()
    call = {"step": "imagine", "requested_at_utc": "2026-01-01T00:00:00Z", "price_usd": 0.5}
    for number in range(25):
        world.put(f"spend/20260101-{number:04d}.json", {"outcome": "done", "paid_calls": [call]})
    answer = ask(spend, world, days=1)
    assert len(answer.document["by_generation"]) == 25
    assert "and 5 more; --json has all of them" in shown(answer)


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        b"{}",
        b'{"paid_calls": 7}',
        b'{"paid_calls": [7, {"price_usd": "x"}]}',
        b'{"paid_calls": [{"requested_at_utc": "2026-01-01T00:00:00Z", "price_usd": 1%s}]}' % (b"0" * 400),
    ],
)
def test_a_spend_document_of_any_shape_does_not_break_the_sum(content: bytes) -> None:
    world = World()
    world.put("spend/20260101-0000.json", content)
    assert ask(spend, world, days=1).document["total"]["usd"] == 0


def test_one_that_is_not_json_is_named() -> None:
    world = World()
    world.put("spend/20260101-0000.json", b"{")
    with pytest.raises(StateError, match=r"spend/20260101-0000\.json: not JSON"):
        ask(spend, world, days=1)
