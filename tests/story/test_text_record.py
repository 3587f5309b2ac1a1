"""A saved text is the record of its last answer: no document has to be saved in between."""

from typing import Any

import pytest
from story_world import CONTENT, World

from retake.bucket.failing import FailingBucket, Fault
from retake.story.content import TOPICS, Prompt, write_content
from retake.story.documents import Step
from retake.story.settings import LEASE, Settings
from retake.story.spending import prices
from retake.testing.vendors import Died

ID = "20260101-0000"
TEXT = f"666/{ID}.json"
DOCUMENT = "config/config_midjourney.json"
PRICE = prices(Settings())[Step.CONTENT]
PROMPTS = [
    Prompt("topic", ("topic", "short_topic", "text", "sarcasm"), "Think.", "", 0.9, 100),
    Prompt("film", ("script", "first_frame_description", "midjourney_prompt", "runway_prompt"), "Film.", "", 0.5, 500),
]


def writing(**workflow: Any) -> World:
    """Return a generation under way that has no text yet."""
    world = World(**workflow)
    world.prompts = PROMPTS
    world.put("config/config_gen.json", {"generation_id": ID})
    return world


def write_under_a_tick(world: World) -> None:
    """Do the script's work under the lease of a tick that then dies."""
    lease = world.bucket.lease(LEASE, "somebody")
    try:
        write_content(world.context(lease), ID, world.prompts)
    finally:
        lease.release()


def calls(world: World) -> list[tuple[str, str]]:
    return [(call["call"], call["outcome"]) for call in world.doc.paid_calls]


def test_a_tick_that_dies_once_the_text_is_saved_has_lost_nothing() -> None:
    world = writing()
    write_under_a_tick(world)
    assert world.json(DOCUMENT)["pending_call"]["answer_in"] == TEXT
    world.vendors.plan("imagine", "refused")
    world.tick()
    assert world.vendors.billed["write"] == 2, "neither call is made again"
    assert calls(world) == [("topic", "done"), ("film", "done")]
    assert world.doc.spend.settled == pytest.approx(2 * PRICE)
    assert not [call for call in world.doc.paid_calls if call.get("possible_duplicate")]


def test_where_the_tick_goes_no_further_the_document_says_it_at_its_end() -> None:
    world = writing(daily_cap_usd=2 * PRICE)
    tick = world.tick()
    assert "daily cap" in tick.why
    assert "pending_call" not in world.json(DOCUMENT)
    assert (world.doc.generation, world.doc.draft) == (True, {})
    assert calls(world) == [("topic", "done"), ("film", "done")]


def test_a_script_that_is_run_by_hand_says_it_too() -> None:
    world = writing()
    world.by_hand(lambda context: write_content(context, ID, world.prompts))
    assert "pending_call" not in world.json(DOCUMENT)
    assert world.json(DOCUMENT)["generation"] is True


@pytest.mark.parametrize("key", [TEXT, TOPICS])
def test_an_answer_whose_text_cannot_be_saved_is_kept_in_the_document(key: str) -> None:
    world = writing()
    whole = world.bucket
    world.bucket = FailingBucket(whole, Fault(operation="write", key=key, times=2))  # type: ignore[assignment]
    world.tick()
    assert (world.doc.pending, world.doc.draft) == (None, CONTENT)
    world.bucket = whole
    world.vendors.plan("imagine", "refused")
    world.ticks(2)
    assert world.vendors.billed["write"] == 2, "neither call is made again"
    assert world.json(TEXT)["script"] == CONTENT["script"]
    assert world.json(TOPICS) == {"topics": {ID: CONTENT["topic"]}}


def test_a_text_that_was_there_before_the_call_is_not_a_record_of_its_answer() -> None:
    world = writing()
    world.put(TEXT, {"generation_id": ID, **CONTENT})
    world.vendors.plan("write", "ok", "dies")
    with pytest.raises(Died):
        write_under_a_tick(world)
    assert "answer_in" not in world.json(DOCUMENT)["pending_call"]
    assert world.doc.pending is not None
