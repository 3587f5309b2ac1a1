"""The chat API's choice of one of four pictures is a paid call like any other: reserved, recorded, settled."""

import pytest
from story_world import World

from retake.errors import SettingsError
from retake.story.documents import Step
from retake.story.settings import Settings
from retake.story.spending import prices

PRICE = prices(Settings())
DAY = "2026-01-01"


def choosing(**workflow: object) -> World:
    world = World(**workflow)
    world.settings = world.settings._replace(image=world.settings.image._replace(pick="vision"))
    return world


def picks(world: World) -> list[dict[str, object]]:
    calls = [call for key in world.keys_of("spend/") for call in world.json(key)["paid_calls"]]
    return [call for call in calls or world.doc.paid_calls if call.get("call") == "pick"]


def settled(world: World) -> float:
    sums = world.json(f"caps/{DAY}.json")["pipelines"]["story"]
    assert sums["reserved_usd"] == 0
    return float(sums["settled_usd"])


def test_it_is_on_record_and_in_every_sum() -> None:
    world = choosing()
    world.tick()
    [pick] = picks(world)
    assert pick == {
        "step": "upscale",
        "attempt": 1,
        "requested_at_utc": "2026-01-01T00:00:00Z",
        "price_usd": PRICE[Step.CONTENT],
        "call": "pick",
        "outcome": "done",
    }
    assert settled(world) == pytest.approx(sum(PRICE.values()) + PRICE[Step.CONTENT])
    assert world.doc.spend.settled == settled(world)


@pytest.mark.parametrize(("outcome", "on_record"), [("unknown", "unknown"), ("wasted", "wasted"), ("lost", "unknown")])
def test_one_whose_answer_is_lost_or_of_no_use_counts(outcome: str, on_record: str) -> None:
    world = choosing()
    world.vendors.plan("choose", outcome)
    world.tick()
    assert [it["outcome"] for it in picks(world)] == [on_record]
    assert settled(world) == pytest.approx(sum(PRICE.values()) + PRICE[Step.CONTENT])


@pytest.mark.parametrize("outcome", ["refused", "key", "rejected"])
def test_one_that_was_refused_costs_nothing(outcome: str) -> None:
    world = choosing()
    world.vendors.plan("choose", outcome)
    world.tick()
    assert picks(world) == []
    assert settled(world) == pytest.approx(sum(PRICE.values()))


def test_without_a_key_nothing_was_asked_and_nothing_counts() -> None:
    world = choosing()
    world.vendors.choose = lambda question, images: (_ for _ in ()).throw(SettingsError("no key"))  # type: ignore[method-assign]
    world.tick()
    assert picks(world) == []
    assert settled(world) == pytest.approx(sum(PRICE.values()))


def test_a_call_whose_script_dies_counts_because_its_outcome_is_unknown() -> None:
    world = choosing()
    world.vendors.plan("choose", "dies")
    world.ticks(3)
    assert world.ended == ["done"]
    assert [it["outcome"] for it in picks(world)] == ["unknown"]
    assert settled(world) == pytest.approx(sum(PRICE.values()) + PRICE[Step.CONTENT])


def test_where_the_cap_leaves_nothing_for_it_the_first_is_taken_unpaid() -> None:
    world = choosing(daily_cap_usd=PRICE[Step.CONTENT] + PRICE[Step.IMAGINE] + PRICE[Step.UPSCALE] - 0.001)
    world.tick()
    assert world.vendors.asked["choose"] == 0


def test_its_reservation_is_settled_with_that_of_the_upscale_that_follows() -> None:
    world = choosing()
    world.vendors.plan("upscale", "refused")
    world.tick()
    assert settled(world) == pytest.approx(PRICE[Step.CONTENT] + PRICE[Step.IMAGINE] + PRICE[Step.CONTENT])


def test_one_that_was_paid_for_counts_whatever_the_setting_says_by_then() -> None:
    world, asked = choosing(), list[int]()
    upscale = world.vendors.upscale

    def refused_once(task_id: str, index: int) -> str:
        asked.append(index)
        return upscale(task_id, index)

    world.vendors.upscale = refused_once  # type: ignore[method-assign]
    world.vendors.plan("upscale", "refused")
    world.tick()
    world.settings = world.settings._replace(image=world.settings.image._replace(pick="first"))
    world.ticks(2)
    assert (world.ended, asked) == (["done"], [3, 3])
