"""A picture whose video has to wait, for the day's cap, a degraded mode or a breaker, is saved before its link expires.

Links expire within hours, and in the end the vendor forgets the task: the upscale would have been paid for in vain.
"""

from collections.abc import Callable
from typing import NoReturn

import pytest
from story_ticks import ID, PICTURES, UPSCALED, at
from test_breakers import breaker_of, protected
from watched_world import WatchedWorld, run_to_end

from retake.alerts.conditions import PipelineFacts, TickEnd, look
from retake.bucket.memory import MemoryBucket
from retake.degraded.mode import EMERGENCY, FULL, MINIMAL, REDUCED
from retake.errors import Code, PollFailed
from retake.media import MediaError
from retake.operations.status import status_report
from retake.story.documents import Status
from retake.story.media import save_picture
from retake.story.operations import open_operations
from retake.testing.logs import CapturedLogs
from retake.testing.vendors import Died
from retake.testing.world import World

PICTURE = f"666/{ID}.png"
NOTHING = "the upscaled picture is not delivered yet: nothing to save"


def planted() -> MemoryBucket:
    bucket = at(midjourney_results=UPSCALED).bucket
    assert isinstance(bucket, MemoryBucket)
    return bucket


def in_mode(mode: int) -> WatchedWorld:
    world = WatchedWorld(bucket=planted())
    world.panel.set(mode, None, "a test")
    return world


def without_runway() -> World:
    world = protected(World(planted()))
    breaker = breaker_of(world, "runway")
    for _ in range(3):
        breaker.failed(breaker.allow(), PollFailed(Code.UNAVAILABLE, "down"))
    return world


HELD_BACK: dict[str, Callable[[], World]] = {
    "mode 1": lambda: in_mode(REDUCED),
    "mode 2": lambda: in_mode(MINIMAL),
    "the cap": lambda: World(planted(), daily_cap_usd=0.01),
    "a breaker": without_runway,
}


@pytest.fixture(params=HELD_BACK.values(), ids=HELD_BACK)
def world(request: pytest.FixtureRequest) -> World:
    held_back: World = request.param()
    return held_back


def test_it_is_saved_once_and_the_video_waits_as_before(world: World) -> None:
    before = world.doc
    first, *later = world.ticks(3)
    assert world.everything()[PICTURE] == b"PNG bytes of https://cdn/full.png"
    assert (world.doc, world.vendors.asked) == (before, {"download": 1})
    assert [tick._replace(until=None) for tick in later] == [first._replace(until=None)] * 2


def test_a_dry_run_tells_it_and_leaves_it(world: World) -> None:
    if isinstance(world, WatchedWorld):
        world.watch.begin(send=False)
    assert "would save the picture, before the link to it expires" in world.manager().dry_run()
    assert world.vendors.asked == {}
    world.tick()
    if isinstance(world, WatchedWorld):
        world.watch.begin(send=False)
    assert "would save the picture, before the link to it expires" not in world.manager().dry_run()


def test_a_download_that_fails_uses_up_no_attempt_and_is_tried_again(world: World) -> None:
    world.vendors.plan("download", "error", "error")
    before = world.doc
    with CapturedLogs() as logs:
        world.ticks(2)
    assert (world.doc, PICTURE in world.keys_of()) == (before, False)
    assert [record.getMessage() for record in logs.records].count("download: cut") == 2
    world.tick()
    assert PICTURE in world.keys_of()


def test_a_script_that_dies_is_told(world: World) -> None:
    def die(lease: object) -> NoReturn:
        raise Died

    context, world.context = world.context, die  # type: ignore[method-assign]
    with CapturedLogs() as logs:
        world.tick()
    assert "the picture is not saved: the script ended with exit code -9" in logs.warnings
    world.context = context  # type: ignore[method-assign]
    world.tick()
    assert PICTURE in world.keys_of()


def test_a_link_that_has_expired_is_renewed_at_once(world: World) -> None:
    world.vendors.plan("download", "expired")
    world.tick()
    assert world.everything()[PICTURE] == b"PNG bytes of https://cdn/grid.png"
    assert world.vendors.asked == {"download": 2, "fetch": 1}


def test_a_picture_that_cannot_be_saved_is_told_once_until_it_is_saved() -> None:
    world = in_mode(REDUCED)
    world.vendors.plan("download", "expired", "expired", "expired")
    world.vendors.plan("fetch", "failed", "error", "failed")
    for _ in range(3):
        world.tick()
        alert = world.alerts()["picture_unsaved"]
        assert (alert.level, alert.occurrences, alert.generation_id) == ("warning", 1, ID)
        operations = open_operations(world.settings, world.clock, bucket=world.bucket)
        [seen] = status_report(operations, None).pipelines
        assert any(alert.title in note for note in seen.notes)
    assert alert.command == f"python -m retake media --generation_id {ID} --picture-only"
    [of_a_channel] = look("story/en", TickEnd(0, ""), PipelineFacts(ID, picture_unsaved=True), 2).found
    assert of_a_channel.command == f"{alert.command} --channel en"
    world.tick()
    assert (PICTURE in world.keys_of(), "picture_unsaved" in world.alerts()) == (True, False)


@pytest.mark.parametrize("mode", [REDUCED, MINIMAL])
def test_it_is_saved_too_where_its_download_has_failed_before(mode: int) -> None:
    world = WatchedWorld(bucket=planted())
    world.vendors.plan("download", "error")
    world.tick()
    world.panel.set(mode, None, "a test")
    before = world.doc
    world.ticks(2)
    assert (before.status, world.doc) == (Status.RUNWAY_TRIGGER_FAILED, before)
    assert (PICTURE in world.keys_of(), world.vendors.asked) == (True, {"download": 2})


def test_a_mode_in_which_nothing_runs_asks_for_nothing() -> None:
    world = in_mode(EMERGENCY)
    world.ticks(2)
    assert (world.vendors.asked, PICTURE in world.keys_of()) == ({}, False)


def test_the_video_is_made_from_it_although_the_vendor_has_lost_it() -> None:
    world = in_mode(REDUCED)
    world.tick()
    world.vendors.plan("fetch", *["failed"] * 9)
    world.panel.set(FULL, None, "")
    run_to_end(world)
    assert world.ended == ["done"]
    assert world.vendors.asked == {"download": 2, "create": 1, "poll": 1}  # the picture and the video


def test_by_hand_nothing_is_ordered() -> None:
    world = World(planted())
    for _ in range(2):
        world.by_hand(lambda context: save_picture(context, ID))
    assert world.vendors.asked == {"download": 1}
    assert PICTURE in world.keys_of()


def test_by_hand_a_failure_is_an_error_and_changes_nothing() -> None:
    world = World(planted())
    before = world.doc
    world.vendors.plan("download", "error")
    with pytest.raises(PollFailed, match="cut"):
        world.by_hand(lambda context: save_picture(context, ID))
    world.media.sized = unreadable  # type: ignore[method-assign]
    with pytest.raises(PollFailed, match="not a picture"):
        world.by_hand(lambda context: save_picture(context, ID))
    assert (world.doc, PICTURE in world.keys_of()) == (before, False)


def unreadable(picture: bytes) -> NoReturn:
    raise MediaError("not a picture")


def test_four_pictures_are_none_yet() -> None:
    world = at(midjourney_results=PICTURES)
    with CapturedLogs() as logs:
        world.by_hand(lambda context: save_picture(context, ID))
    assert (world.vendors.asked, PICTURE in world.keys_of()) == ({}, False)
    assert [record.getMessage() for record in logs.records] == [NOTHING]
