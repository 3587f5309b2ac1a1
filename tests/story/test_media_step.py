"""The picture, its upscale, the video, the mock: one step per call, and the record that each outcome leaves."""

from datetime import timedelta
from typing import Any

import pytest
from story_ticks import ID, ORDERED, UPSCALED, at
from story_world import CONTENT, Heard, World

from retake.errors import (
    Code,
    OutcomeUnknown,
    PollFailed,
    Refused,
    RetakeError,
    SettingsError,
    StateError,
    Stopped,
    TaskFailed,
)
from retake.media import MediaError
from retake.story.documents import Status, Step
from retake.story.media import make_media
from retake.vendors import TaskState

FOUR = [f"https://cdn/{n}.png" for n in range(4)]
PICTURES = {
    "task_id": "imagine-1",
    "task_type": "imagine",
    "task_result": {"image_url": "https://cdn/grid.png", "temporary_image_urls": FOUR},
}


def make(world: World, generation_id: str = ID, *, use_mock: bool = False) -> None:
    world.by_hand(lambda context: make_media(context, generation_id, use_mock=use_mock))


def file(world: World, suffix: str) -> bytes:
    return world.bucket.read(f"666/{ID}.{suffix}")[0]


def code(world: World) -> str:
    error = world.doc.raw.get("last_error")
    assert error is not None
    return str(error["error_code"])


# --- the pictures are ordered -----------------------------------------------------------------------------------------


def test_pictures_are_ordered_once_and_are_in_flight() -> None:
    world = at(generation=True)
    asked: list[tuple[str, int]] = []
    world.vendors.imagine = lambda prompt, nonce: asked.append((prompt, nonce)) or "task-1"
    make(world)
    assert asked == [(CONTENT["midjourney_prompt"], 7)]
    assert world.doc.raw["midjourney_task"] == {
        "task_id": "task-1",
        "task_type": "imagine",
        "requested_at_utc": ORDERED,
    }
    assert (world.doc.status, world.doc.generation) == (Status.WAITING_FOR_IMAGINE, False)


def test_what_is_asked_is_on_record_before_it_goes_out() -> None:
    world = at(generation=True, retries={"imagine": 1})
    seen: list[dict[str, Any]] = []
    world.vendors.imagine = lambda prompt, nonce: seen.append(world.doc.raw["pending_call"]) or "task-1"
    make(world)
    wanted = {"step": "imagine", "attempt": 2, "requested_at_utc": ORDERED, "nonce": 7}
    assert [{**known, **wanted, "prompt": CONTENT["midjourney_prompt"]} for known in seen] == seen != []


PAID_STEPS: dict[str, tuple[dict[str, Any], Step]] = {
    "imagine": ({"generation": True}, Step.IMAGINE),
    "upscale": ({"midjourney_results": PICTURES}, Step.UPSCALE),
    "create": ({"midjourney_results": UPSCALED}, Step.RUNWAY),
}


@pytest.mark.parametrize("kind", PAID_STEPS)
@pytest.mark.parametrize(
    ("outcome", "error", "status"),
    [
        ("refused", Refused, "trigger_failed"),
        ("unknown", OutcomeUnknown, "trigger_failed"),
        ("lost", OutcomeUnknown, "trigger_failed"),
        ("wasted", TaskFailed, "trigger_failed"),
        ("rejected", Refused, "task_failed_max_retries"),
        ("key", Refused, None),
    ],
)
def test_every_outcome_of_every_paid_call_has_its_status(
    kind: str, outcome: str, error: type[RetakeError], status: str | None
) -> None:
    doc, step = PAID_STEPS[kind]
    world = at(**doc)
    world.vendors.plan(kind, outcome)
    with pytest.raises(error):
        make(world)
    after = world.doc
    assert after.status == (f"{step}_{status}" if status == "trigger_failed" else status)
    assert after.pending is None
    assert (after.task, after.runway_task) == (None, None)
    assert after.raw.get("last_error") is not None
    assert after.raw.get("last_error")["correlation_id"] == ID
    assert after.retries == {}, "a failure leaves the counters alone"
    assert after.raw.get("midjourney_results") == doc.get("midjourney_results")
    spent = [(call["step"], call["outcome"]) for call in after.paid_calls]
    assert spent == {
        "wasted": [(step, "wasted")],
        "unknown": [(step, "unknown")],
        "lost": [(step, "unknown")],
    }.get(outcome, [])


# --- one of four ------------------------------------------------------------------------------------------------------


def upscaled_index(world: World) -> int:
    """Return the index of the picture that is ordered in full size."""
    asked: list[tuple[str, int]] = []
    world.vendors.upscale = lambda task_id, index: asked.append((task_id, index)) or "upscale-1"
    make(world)
    assert [task_id for task_id, _ in asked] == ["imagine-1"]
    return asked[0][1]


def test_the_first_picture_is_upscaled_unless_something_else_is_wanted() -> None:
    world = at(midjourney_results=PICTURES)
    assert upscaled_index(world) == 1
    assert world.vendors.asked["choose"] == 0
    assert world.doc.raw["midjourney_results"] == PICTURES, "the pictures stay until the upscale is there"


def test_the_chat_api_picks_among_the_four_pictures() -> None:
    world = at(pick="vision", midjourney_results=PICTURES)
    shown: list[Any] = []
    world.vendors.choose = lambda question, images: shown.extend(images) or 3
    assert upscaled_index(world) == 3
    assert shown == FOUR
    assert world.doc.results is not None
    assert world.doc.results.picked == 3


def test_where_the_single_pictures_are_missing_the_grid_is_cut_into_its_quarters() -> None:
    for singles in ([], FOUR[:3], None):
        result = {"image_url": "https://cdn/grid.png", "temporary_image_urls": singles}
        world = at(pick="vision", midjourney_results={**PICTURES, "task_result": result})
        shown: list[Any] = []
        world.vendors.choose = lambda question, images, shown=shown: shown.extend(images) or 2
        assert upscaled_index(world) == 2
        assert shown == ["data:image/png;base64,"] * 4
        assert world.vendors.asked["download"] == 1


@pytest.mark.parametrize(
    "trouble", ["choose refused", "choose key", "choose unknown", "download error", "no link", "quarters"]
)
def test_on_any_trouble_with_the_choice_the_first_is_taken(trouble: str) -> None:
    result: dict[str, Any] = {"image_url": None} if trouble == "no link" else {"image_url": "https://cdn/grid.png"}
    world = at(pick="vision", midjourney_results={**PICTURES, "task_result": result})
    kind, _, outcome = trouble.partition(" ")
    if outcome:
        world.vendors.plan(kind, outcome)
    if trouble == "quarters":
        world.media.quarters = lambda grid: (_ for _ in ()).throw(MediaError("no picture"))
    assert upscaled_index(world) == 1


def test_without_a_key_for_the_chat_api_the_first_is_taken() -> None:
    world = at(pick="vision", midjourney_results=PICTURES)
    world.vendors.writer = lambda: (_ for _ in ()).throw(SettingsError("OPENAI_API_KEY is missing"))
    assert upscaled_index(world) == 1


def test_the_choice_is_paid_for_once_however_often_the_upscale_is_refused() -> None:
    world = at(pick="vision", midjourney_results=PICTURES)
    world.vendors.plan("upscale", "refused", "refused")
    world.ticks(5)
    assert world.ended == ["done"]
    assert world.vendors.billed["choose"] == 1
    assert world.vendors.asked["upscale"] == 3


def test_a_script_that_dies_in_the_choice_does_not_choose_again() -> None:
    world = at(pick="vision", midjourney_results=PICTURES)
    world.vendors.plan("choose", "dies")
    world.tick()
    assert world.doc.results is not None
    assert world.doc.results.picked == 0
    world.tick()  # one more attempt is granted
    assert upscaled_index(world) == 1
    assert world.vendors.billed["choose"] == 1


# --- the picture is saved ---------------------------------------------------------------------------------------------


def test_the_upscaled_picture_is_sized_and_saved_before_the_film_is_ordered() -> None:
    world = at(midjourney_results=UPSCALED)
    there: list[bool] = []
    create = world.vendors.create
    world.vendors.create = lambda image, prompt: (
        there.append(f"666/{ID}.png" in world.keys_of()) or create(image, prompt)
    )
    make(world)
    assert there == [True]
    assert file(world, "png") == b"PNG bytes of https://cdn/full.png"


def test_the_picture_is_downloaded_once_however_often_the_film_is_refused() -> None:
    world = at(midjourney_results=UPSCALED)
    world.vendors.plan("create", "refused", "unknown", "refused")
    world.ticks(7)
    assert world.ended == ["done"]
    assert world.vendors.asked["create"] == 4
    assert world.vendors.asked["download"] == 2, "the picture once, the film once"


@pytest.mark.parametrize("trouble", ["download", "sized", "data_uri", "no link"])
def test_a_picture_that_cannot_be_had_is_a_failed_order_of_the_film_and_nothing_is_paid(trouble: str) -> None:
    result = {} if trouble == "no link" else UPSCALED["task_result"]
    world = at(midjourney_results={**UPSCALED, "task_result": result})
    if trouble == "download":
        world.vendors.plan("download", "error")
    elif trouble != "no link":
        setattr(world.media, trouble, lambda picture: (_ for _ in ()).throw(MediaError("no picture")))
    with pytest.raises(PollFailed):
        make(world)
    assert world.doc.status is Status.RUNWAY_TRIGGER_FAILED
    assert world.doc.raw["midjourney_results"] == {**UPSCALED, "task_result": result}
    assert not world.vendors.billed


@pytest.mark.parametrize("data", [{"topic": "t"}, {"runway_prompt": " "}, {"runway_prompt": 5}, None])
def test_without_its_prompt_a_step_fails_for_good_and_nothing_is_paid(data: object) -> None:
    for doc, status in (({"midjourney_results": UPSCALED}, Step.RUNWAY), ({"generation": True}, Step.IMAGINE)):
        world = at(files="", **doc)
        if data is not None:
            world.put(f"666/{ID}.json", data)
        with pytest.raises(Refused):
            make(world)
        assert (world.doc.status, world.doc.failed_step) == (Status.TASK_FAILED_MAX_RETRIES, status)
        assert code(world) == "ERR_BUSINESS_MISSING"
        assert world.doc.raw.get("last_error") is not None
        assert ("is not there" in world.doc.raw.get("last_error")["message"]) is (data is None)
        assert not world.vendors.billed


def test_a_text_that_cannot_be_read_is_named_and_left_as_it_is() -> None:
    world = at(files="", generation=True)
    world.put(f"666/{ID}.json", b"{torn")
    with pytest.raises(StateError, match=f"666/{ID}"):
        make(world)
    assert file(world, "json") == b"{torn"
    assert not world.vendors.billed


# --- the film ---------------------------------------------------------------------------------------------------------


FILMING = {"runway_task": {"task_id": "create-1", "requested_at_utc": ORDERED}, "status": "waiting_for_runway"}


def polling(*outcomes: str, **more: Any) -> World:
    """Return a film in flight whose polls get these answers."""
    world = at(files="json png", **{**FILMING, "midjourney_results": UPSCALED, **more})
    world.vendors.plan("poll", *outcomes)
    return world


def test_a_film_in_flight_is_polled_and_not_ordered_again() -> None:
    world = polling("ok")
    make(world)
    assert world.vendors.asked["create"] == 0
    assert file(world, "mp4") == b"bytes of https://cdn/film.mp4"


def test_the_vendor_is_not_polled_more_often_than_it_wants() -> None:
    world = polling("running", "ok")
    world.vendors.min_poll_s = 40.0
    make(world)
    assert world.clock.now().second == 40


@pytest.mark.parametrize(
    ("outcome", "error", "status", "kept"),
    [
        ("error", PollFailed, "runway_poll_failed", True),
        ("key", PollFailed, "waiting_for_runway", True),
        ("failed", TaskFailed, "runway_trigger_failed", False),
        ("failed_b", TaskFailed, "task_failed_max_retries", False),
    ],
)
def test_every_outcome_of_a_poll_has_its_status(
    outcome: str, error: type[RetakeError], status: str, kept: bool
) -> None:
    world = polling(outcome)
    with pytest.raises(error):
        make(world)
    assert world.doc.status == status
    assert bool(world.doc.runway_task) is kept
    assert world.vendors.asked["create"] == 0


def test_polling_ends_in_time_and_the_paid_task_is_kept() -> None:
    world = polling(*["running"] * 99)
    with pytest.raises(PollFailed, match="no video after 300 s"):
        make(world)
    assert world.doc.status is Status.RUNWAY_POLL_TIMEOUT
    assert world.doc.runway_task is not None
    assert world.doc.runway_task.task_id == "create-1"
    assert world.vendors.asked["poll"] == 21
    assert (world.clock.now().minute, world.clock.now().second) == (5, 0)


def test_polling_takes_no_longer_where_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    world = polling(*["running"] * 99)
    vendor, poll = world.vendors, world.vendors.poll

    def set_back(task_id: str) -> TaskState:
        if vendor.asked["poll"] == 10:
            world.clock.moment -= timedelta(days=1)
        return poll(task_id)

    monkeypatch.setattr(vendor, "poll", set_back)
    with pytest.raises(PollFailed, match="no video after 300 s"):
        make(world)
    assert vendor.asked["poll"] <= 22


def test_a_polling_time_shorter_than_the_interval_still_asks_once() -> None:
    world = at(files="json png", workflow={"runway_polling_timeout": 1.0}, **FILMING)
    world.vendors.plan("poll", "running")
    with pytest.raises(PollFailed):
        make(world)
    assert world.vendors.asked["poll"] == 1


def test_the_same_paid_film_is_polled_again_after_a_timeout_and_no_second_one_is_ordered() -> None:
    world = polling(*["running"] * 22)
    world.tick()
    assert world.status == "runway_poll_timeout"
    world.tick()
    assert world.status == "waiting_for_runway"
    world.tick()
    assert world.generation_id is None
    assert world.vendors.asked["create"] == 0


@pytest.mark.parametrize(
    ("outcomes", "download", "counter"),
    [
        (["error"], None, 2),  # not answered: the counter stays
        (["running", "error"], None, 0),  # an answered poll has cleared it
        (["running"] * 99, None, 2),  # time was up: restored
        (["ok"], "error", 2),  # ready, but the download fails: restored
    ],
)
def test_answered_polls_clear_their_counter_unless_the_film_is_not_had(
    outcomes: list[str], download: str | None, counter: int
) -> None:
    world = polling(*outcomes, retries={"runway_poll": 2, "runway": 1})
    if download:
        world.vendors.plan("download", download)
    with pytest.raises(PollFailed):
        make(world)
    assert world.doc.retries_of(Step.RUNWAY_POLL) == counter
    assert world.doc.retries_of(Step.RUNWAY) == 1


@pytest.mark.parametrize("trouble", ["download", "check_video"])
def test_a_film_that_cannot_be_had_is_asked_for_again_and_not_ordered_again(trouble: str) -> None:
    world = polling("ok")
    if trouble == "download":
        world.vendors.plan("download", "error")
    else:
        world.media.check_video = lambda video: (_ for _ in ()).throw(MediaError("cut short"))
    with pytest.raises(PollFailed):
        make(world)
    assert world.doc.status is Status.RUNWAY_POLL_FAILED
    assert world.doc.runway_task is not None
    assert f"666/{ID}.mp4" not in world.keys_of()


def test_a_film_that_gives_rise_to_doubt_is_kept_with_a_warning() -> None:
    world = polling("ok")
    world.media.check_video = lambda video: "an odd codec"
    with Heard() as log:
        make(world)
    assert any("an odd codec" in warning for warning in log.warnings)
    assert f"666/{ID}.mp4" in world.keys_of()


def test_a_signal_stops_the_polling_between_two_polls_with_everything_on_record() -> None:
    world = polling("running", "running", "ok")
    world.stopping = lambda: world.vendors.asked["poll"] == 2
    with pytest.raises(Stopped):
        make(world)
    assert (world.doc.status, world.doc.runway_task is not None) == (Status.WAITING_FOR_RUNWAY, True)
    assert world.vendors.asked["poll"] == 2
    world.stopping = lambda: False
    make(world)
    assert f"666/{ID}.mp4" in world.keys_of()
    assert world.vendors.asked["create"] == 0


@pytest.mark.parametrize("kind", PAID_STEPS)
def test_after_a_signal_nothing_is_paid_for(kind: str) -> None:
    world = at(files="json png", **PAID_STEPS[kind][0])
    before = world.everything()
    world.stopping = lambda: True
    with pytest.raises(Stopped):
        make(world)
    assert world.everything() == before
    assert not world.vendors.asked[kind]


# --- the mock ---------------------------------------------------------------------------------------------------------


def test_a_mock_is_a_placeholder_with_the_topic_and_a_film_of_it() -> None:
    world = at(status="timed_out_mock_needed", paid_calls=[{"step": "content"}])
    make(world, use_mock=True)
    assert file(world, "png") == b"PNG " + CONTENT["topic"].encode()
    assert file(world, "mp4") == b"MOCK"
    assert (world.doc.status, world.doc.paid_calls) == (None, [{"step": "content"}])
    assert not world.vendors.asked


def test_a_mock_is_made_of_the_picture_where_there_is_one() -> None:
    world = at(files="json png", status="timed_out_mock_needed")
    filmed: list[bytes] = []
    world.media.mock_video = lambda picture: filmed.append(picture) or b"MOCK"
    make(world, use_mock=True)
    assert filmed == [b"the png"] == [file(world, "png")]


@pytest.mark.parametrize("content", [None, {}, {"topic": None}, {"topic": ""}])
def test_a_mock_without_a_topic_shows_the_id(content: object) -> None:
    world = at(files="", status="timed_out_mock_needed")
    if content is not None:
        world.put(f"666/{ID}.json", content)
    make(world, use_mock=True)
    assert file(world, "png") == b"PNG " + ID.encode()


def test_a_mock_that_cannot_be_made_leaves_the_document_alone() -> None:
    world = at(status="timed_out_mock_needed")
    world.media.broken = True
    before = world.everything()
    with pytest.raises(MediaError):
        make(world, use_mock=True)
    assert world.everything() == before


# --- when there is nothing to do --------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_mock", [True, False])
@pytest.mark.parametrize(("under_way", "asked"), [(None, ID), ("another", ID), (None, "")])
def test_a_generation_that_is_not_under_way_is_left_alone(under_way: str | None, asked: str, use_mock: bool) -> None:
    world = at(generation=True)
    world.put("config/config_gen.json", {"generation_id": under_way})
    before = world.everything()
    with pytest.raises(StateError, match="Nothing was changed"):
        make(world, asked, use_mock=use_mock)
    assert world.everything() == before


@pytest.mark.parametrize("doc", [{}, {"midjourney_task": {"task_id": "t"}}])
def test_with_nothing_to_do_nothing_is_asked_or_changed(doc: dict[str, Any]) -> None:
    world = at(**doc)
    before = world.everything()
    make(world)
    assert world.everything() == before
    assert not world.vendors.asked


def test_a_poll_tells_how_far_it_is() -> None:
    world = polling()
    states = iter([TaskState(progress="42 %"), TaskState(result={"output": ["https://cdn/film.mp4"]})])
    world.vendors.poll = lambda task_id: next(states)
    with Heard() as log:
        make(world)
    assert any("42 %" in record.getMessage() for record in log.records)


def test_an_alert_about_an_error_that_is_a_whole_sentence_has_one_full_stop_after_it() -> None:
    world = polling()

    def refuse(task_id: str) -> TaskState:
        raise PollFailed(Code.UNAUTHORIZED, "Runway answered HTTP 401. Check the key.")

    world.vendors.poll = refuse
    with Heard() as log, pytest.raises(PollFailed):
        make(world)
    [told] = [record.getMessage() for record in log.records if "alert" in vars(record)]
    assert told == "Runway answered HTTP 401. Check the key. Everything waits until it is fixed"
