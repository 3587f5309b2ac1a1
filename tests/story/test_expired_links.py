"""An expired link to a picture is renewed by asking for the task, which is free."""

from typing import Any

import pytest
from story_world import World
from test_paid_calls import ID, before

from retake.errors import Code, PollFailed, SettingsError
from retake.story.media import make_mock
from retake.ticking.tick import Orders
from retake.vendors import TaskState

OLD, NEW = "https://cdn/full.png", "https://cdn/renewed.png"


def links_expire(world: World, *, renewed: str = NEW) -> list[str]:
    """Let downloads of the old link find nothing, and the task's answer contain `renewed`. Return a list of the
    downloads."""
    tried: list[str] = []
    usual = world.vendors.download

    def download(url: str, max_bytes: int | None = None) -> bytes:
        tried.append(url)
        if url == OLD:
            world.vendors.plan("download", "expired")
        return usual(url)

    world.vendors.download = download
    world.vendors.plans.pop("fetch")
    world.vendors.fetch = lambda task_id: TaskState(result={"image_url": renewed, "of": task_id})
    return tried


def test_the_next_attempt_asks_for_the_task_first_and_takes_its_new_link() -> None:
    world = before("create")
    world.bucket.delete(f"666/{ID}.png")
    tried = links_expire(world)
    assert world.tick().exit_code == 75
    assert (world.status, world.doc.retries) == ("runway_trigger_failed", {})
    assert world.doc.raw["midjourney_results"]["link_expired"] is True
    world.ticks(2)
    assert tried == [OLD, NEW]
    assert world.doc.raw["midjourney_results"] == {
        "task_id": "upscale-1",
        "task_type": "upscale",
        "task_result": {"image_url": NEW, "of": "upscale-1"},
    }
    assert world.vendors.billed == {"create": 1}, "the upscale was not paid for again"


def test_a_dead_letter_resumed_days_later_gets_a_new_link_too() -> None:
    world = before("create", max_retries=0)
    world.bucket.delete(f"666/{ID}.png")
    tried = links_expire(world)
    while not world.ended:
        world.tick()
    world.later(days=3)
    world.tick(Orders(retake=ID))
    assert world.ended == ["failed"]
    assert tried == [OLD, NEW]
    assert world.vendors.billed == {"create": 1}


def test_a_link_that_is_dead_when_it_is_new_uses_up_attempts_like_any_failure() -> None:
    world = before("create")
    world.bucket.delete(f"666/{ID}.png")
    tried = links_expire(world, renewed=OLD)
    while not world.ended:
        world.tick()
    assert world.ended == ["failed"]
    assert tried == [OLD] * 4
    assert not world.vendors.billed


@pytest.mark.parametrize(
    "answer",
    [PollFailed(Code.BAD_ANSWER, "HTTP 404: no such task"), PollFailed(Code.NETWORK, "cut"), TaskState(), "failed"],
    ids=["unknown task", "network", "running", "failed"],
)
def test_a_task_that_gives_no_new_link_is_a_failed_attempt(answer: Any) -> None:
    world = before("create")
    world.bucket.delete(f"666/{ID}.png")
    tried = links_expire(world)

    def fetch(task_id: str) -> TaskState:
        if isinstance(answer, Exception):
            raise answer
        return answer if answer != "failed" else world.vendors.look("fetch", {})

    world.vendors.plan("fetch", *["failed"] * 9)
    world.vendors.fetch = fetch
    world.ticks(3)
    assert (world.status, world.doc.retries) == ("runway_trigger_failed", {"runway": 1})
    assert world.doc.raw["midjourney_results"]["link_expired"] is True
    assert tried == [OLD], "the dead link is not tried again"


@pytest.mark.parametrize("known", [False, True])
def test_a_mock_is_made_of_the_picture_that_was_paid_for_though_its_link_has_expired(known: bool) -> None:
    """As when a cap held the video back until the next day, and mode 1 then makes a mock of it."""
    world = before("create")
    world.bucket.delete(f"666/{ID}.png")
    tried = links_expire(world)
    if known:
        results = {**world.doc.raw["midjourney_results"], "link_expired": True}
        world.put("config/config_midjourney.json", world.doc.updated(midjourney_results=results).raw)
    world.by_hand(make_mock)
    assert tried == ([NEW] if known else [OLD, NEW])
    assert world.bucket.read(f"666/{ID}.png")[0] == b"PNG bytes of " + NEW.encode()


@pytest.mark.parametrize("trouble", [PollFailed(Code.NETWORK, "cut"), SettingsError("no key"), TaskState()])
def test_a_mock_of_a_picture_whose_link_cannot_be_renewed_has_a_placeholder(trouble: Any) -> None:
    world = before("create")
    world.bucket.delete(f"666/{ID}.png")
    links_expire(world)

    def fetch(task_id: str) -> TaskState:
        if isinstance(trouble, Exception):
            raise trouble
        return trouble

    world.vendors.fetch = fetch
    world.by_hand(make_mock)
    assert {f"666/{ID}.png", f"666/{ID}.mp4"} <= {*world.keys_of("666/")}
    assert world.doc.results is None
