"""Degraded modes: what each holds back, what continues, who sets them, and that nothing is lost or paid in between."""

from collections import Counter
from typing import Any

import pytest
from operator_states import STATES
from story_runs import ledger_of
from story_ticks import DOCUMENT, GEN, ID, UPSCALED, group
from story_world import PAID
from watched_world import WatchedWorld, run_to_end

from retake.degraded.mode import EMERGENCY, FULL, MINIMAL, REDUCED, Mode
from retake.errors import SettingsError
from retake.exit_codes import ExitCode
from retake.operations.status import status_report
from retake.story.decision import Act, Action, begin_held, under_mode
from retake.story.documents import Step
from retake.story.operations import open_operations

MODES = (FULL, REDUCED, MINIMAL, EMERGENCY)
ALL, FREE, NOT_NONE = {0, 1, 2, 3}, {0, 1, 2}, {0, 1}

GOES_ON: dict[tuple[Act, Step], set[int]] = {
    (Act.WAIT, Step.CONTENT): ALL,
    (Act.LOWER_FLAG, Step.IMAGINE): FREE,
    (Act.BEGIN, Step.CONTENT): FREE,  # to tidy up; `begin_held` holds the rest back
    (Act.DEAD_LETTER, Step.IMAGINE): FREE,
    (Act.RECONCILE, Step.IMAGINE): FREE,
    (Act.RETRY, Step.CONTENT): NOT_NONE,
    (Act.RETRY, Step.IMAGINE): NOT_NONE,
    (Act.RETRY, Step.UPSCALE): NOT_NONE,
    (Act.RETRY, Step.RUNWAY): {0},
    (Act.RETRY, Step.FETCH): FREE,
    (Act.RETRY, Step.RUNWAY_POLL): FREE,
    (Act.SUBSTITUTE, Step.RUNWAY): FREE,
    (Act.MOCK_VIDEO, Step.RUNWAY): FREE,
    (Act.FAIL, Step.IMAGINE): FREE,
    (Act.MAKE_MOCK, Step.MOCK): FREE,
    (Act.FINISH, Step.RUNWAY): FREE,
    (Act.POLL_VIDEO, Step.RUNWAY_POLL): FREE,
    (Act.TIME_OUT, Step.FETCH): FREE,
    (Act.FETCH, Step.FETCH): FREE,
    (Act.ORDER_VIDEO, Step.RUNWAY): {0},
    (Act.ORDER_UPSCALE, Step.UPSCALE): NOT_NONE,
    (Act.ORDER_IMAGINE, Step.IMAGINE): NOT_NONE,
    (Act.WRITE, Step.CONTENT): NOT_NONE,
    (Act.RAISE_FLAG, Step.IMAGINE): FREE,
}


def test_the_table_has_every_action() -> None:
    assert {act for act, _ in GOES_ON} == set(Act)


@pytest.mark.parametrize("video_mock", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("act", "step"), GOES_ON)
def test_what_each_mode_does_of_each_action(act: Act, step: Step, mode: int, video_mock: bool) -> None:
    action = Action(act, step, "because")
    done = under_mode(action, Mode(mode), video_mock=video_mock)
    if mode in GOES_ON[act, step]:
        assert done == action
    elif mode == REDUCED and video_mock:
        assert (done.act, done.step) == (Act.MOCK_VIDEO, Step.RUNWAY)
    else:
        assert (done.act, done.step, done.exit_code, done.until) == (Act.WAIT, step, ExitCode.OK, None)
        assert f"degraded mode {mode}" in done.why


@pytest.mark.parametrize("video_mock", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_who_begins(mode: int, video_mock: bool) -> None:
    held = begin_held(Mode(mode), video_mock=video_mock)
    assert bool(held) == (mode >= MINIMAL or (mode == REDUCED and not video_mock))


@pytest.mark.parametrize("mode", MODES)
def test_a_wait_for_the_operator_tidies_up_unless_nothing_runs(mode: int) -> None:
    stop = Action(Act.WAIT, Step.CONTENT, "too many failed", ExitCode.FAILED, tidies=True)
    assert under_mode(stop, Mode(mode), video_mock=False).tidies == (mode != EMERGENCY)


# --- a world in each mode ---------------------------------------------------------------------------------------------


def paid(world: WatchedWorld) -> Counter[str]:
    return Counter({kind: world.vendors.billed[kind] for kind in (*PAID, "choose") if world.vendors.billed[kind]})


def in_state(name: str, mode: int, **modes: Any) -> WatchedWorld:
    """Return a watched world whose bucket has a state of the operator's tests."""
    planted = STATES[name]()
    world = WatchedWorld(bucket=planted.bucket, modes=modes)
    world.settings = world.settings._replace(workflow=planted.settings.workflow)
    world.panel.set(mode, None, "a test")
    return world


@pytest.mark.parametrize("mode", [MINIMAL, EMERGENCY])
@pytest.mark.parametrize("state", [name for name in STATES if name != "no generation"])
def test_in_modes_2_and_3_nothing_is_paid_for_whatever_is_under_way(state: str, mode: int) -> None:
    world = in_state(state, mode)
    for _ in range(4):
        world.tick()
    assert paid(world) == {}


@pytest.mark.parametrize("state", STATES)
def test_in_mode_3_nothing_at_all_is_asked_or_changed(state: str) -> None:
    world = in_state(state, EMERGENCY)
    world.tick()
    before = {key: it for key, it in world.everything().items() if not key.startswith(("alerts/", "runs/", "kpi/"))}
    tick = world.tick()
    after = {key: it for key, it in world.everything().items() if not key.startswith(("alerts/", "runs/", "kpi/"))}
    assert after == before
    assert world.vendors.asked == {}
    assert tick.exit_code in (ExitCode.OK, *_WAITS_ANYWAY.get(state, ()))


_WAITS_ANYWAY = {
    name: (ExitCode.TRY_LATER, ExitCode.CONFIG, ExitCode.FAILED)
    for name in STATES
    if name.endswith(("held", "for the key")) or "stopped" in name
}
"""States that wait for a person in every mode."""


@pytest.mark.parametrize(
    ("state", "modes"),
    [
        ("text next", {2, 3}),
        ("text failed", {2, 3}),
        ("pictures next", {2, 3}),
        ("pictures failed", {2, 3}),
        ("pictures there", {2, 3}),
        ("upscale failed", {2, 3}),
        ("video failed", {1, 2, 3}),
        ("pictures awaited", {3}),
        ("poll of the pictures failed", {3}),
        ("video awaited", {3}),
        ("poll of the video failed", {3}),
    ],
)
@pytest.mark.parametrize("mode", [REDUCED, MINIMAL, EMERGENCY])
def test_what_is_held_back_rests_with_exit_0_and_uses_up_no_attempt(state: str, modes: set[int], mode: int) -> None:
    world = in_state(state, mode)
    before = world.doc
    if mode not in modes:
        world.tick()
        assert world.doc != before
        return
    for _ in range(5):
        tick = world.tick()
        assert (tick.exit_code, tick.resting, tick.until) == (ExitCode.OK, True, None)
        assert f"degraded mode {mode}" in tick.why
    assert world.doc == before
    assert paid(world) == {}
    world.panel.set(FULL, None, "")
    run_to_end(world)
    assert world.ended == ["done"]


def test_the_ledger_does_not_grow_while_a_retry_is_held_back() -> None:
    world = in_state("pictures failed", MINIMAL)
    world.tick()
    [run] = ledger_of(world).of_task(ID)
    told = len(ledger_of(world).events(run.run_id))
    for _ in range(5):
        world.tick()
    assert len(ledger_of(world).events(run.run_id)) == told


def test_in_mode_2_polls_go_on_and_in_mode_3_they_do_not() -> None:
    for mode, polls in ((MINIMAL, 3), (EMERGENCY, 0)):
        world = in_state("pictures awaited", mode)
        world.vendors.plan("fetch", *["running"] * 9)
        world.settings = world.settings._replace(
            workflow=world.settings.workflow._replace(mj_timeout_seconds=10_000_000)
        )
        for _ in range(3):
            assert world.tick().exit_code == ExitCode.OK
        assert world.vendors.asked["fetch"] == polls


def test_in_mode_2_a_lost_order_is_looked_for_and_not_made_again() -> None:
    world = in_state("pictures unasked", MINIMAL)
    for _ in range(6):
        world.tick()
    assert paid(world) == {}
    world.panel.set(FULL, None, "")
    run_to_end(world)
    assert world.ended == ["done"]


def test_mode_1_pays_for_texts_and_pictures_and_rests_before_the_video() -> None:
    world = WatchedWorld()
    world.vendors.plan("fetch", "running")
    world.tick()
    begun = world.generation_id
    assert begun
    world.panel.set(REDUCED, None, "")
    for _ in range(8):
        assert world.tick().exit_code == ExitCode.OK
    assert paid(world) == {"write": 1, "imagine": 1, "upscale": 1}
    assert world.generation_id == begun
    world.panel.set(FULL, None, "")
    run_to_end(world)
    assert (world.ended, world.vendors.billed["create"]) == (["done"], 1)


def test_mode_1_with_video_mock_makes_it_though_the_day_s_money_would_not_do_for_a_video() -> None:
    world = WatchedWorld(modes={"video_mock": True}, daily_cap_usd=0.1)
    world.panel.set(1, None, "a test")
    told = world.manager().dry_run
    world.vendors.plan("fetch", "ok", "running")
    world.tick()
    world.put(DOCUMENT, {**world.doc.raw, "midjourney_task": None, "midjourney_results": UPSCALED, "status": None})
    assert "mock take the place of the video" in told()[0]
    assert world.tick().ended == "done"
    assert world.vendors.billed == {"write": 1, "imagine": 1, "upscale": 1}


def test_mode_1_with_video_mock_makes_it_from_the_picture_that_was_paid_for() -> None:
    world = WatchedWorld(modes={"video_mock": True})
    seen: list[bytes] = []
    real = world.media.mock_video
    world.media.mock_video = lambda picture: (seen.append(picture), real(picture))[1]  # type: ignore[method-assign, func-returns-value]
    world.panel.set(REDUCED, None, "")
    run_to_end(world)
    assert (world.ended, world.vendors.billed["create"], world.vendors.billed["upscale"]) == (["done"], 0, 1)
    [picture] = [it for key, it in world.everything().items() if key.startswith("666/") and key.endswith(".png")]
    [video] = [it for key, it in world.everything().items() if key.startswith("666/") and key.endswith(".mp4")]
    assert (seen, video) == ([picture], b"MOCK")
    assert picture.startswith(b"PNG bytes of https://cdn/")  # the real one, not a placeholder


def test_modes_1_and_2_tidy_up_and_begin_nothing_and_mode_3_does_not_tidy_up() -> None:
    for mode in (REDUCED, MINIMAL, EMERGENCY):
        world = WatchedWorld()
        world.put(GEN, {"generation_id": None})
        group(world, "666", "20250101-0003")
        world.panel.set(mode, None, "")
        tick = world.tick()
        moved = [key for key in world.keys_of() if key.startswith(("555/", "444/"))]
        assert bool(moved) == (mode != EMERGENCY)
        assert (tick.exit_code, tick.resting, world.generation_id) == (ExitCode.OK, True, None)


def test_a_key_that_is_missing_does_not_matter_where_nothing_is_begun() -> None:
    world = WatchedWorld()
    world.keys = world.keys._replace(openai=None)
    with pytest.raises(SettingsError, match="OPENAI_API_KEY"):
        world.tick()
    world.panel.set(MINIMAL, None, "")
    assert world.tick().exit_code == ExitCode.OK


# --- messages ---------------------------------------------------------------------------------------------------------


def test_it_is_an_alert_of_the_level_of_its_mode() -> None:
    world = WatchedWorld()
    for mode, level in ((1, "warning"), (2, "error"), (3, "critical"), (1, "warning")):
        world.panel.set(mode, None, "the vendor is down")
        world.tick()
        alert = world.alerts()["degraded"]
        assert (alert.level, alert.message) == (level, "the vendor is down")
    world.panel.set(0, None, "")
    world.tick()
    assert "degraded" not in world.alerts()


@pytest.mark.parametrize(
    ("mode", "words"),
    [(FULL, "it continues with the next tick"), (MINIMAL, "it is waiting"), (EMERGENCY, "it is waiting")],
)
def test_the_status_does_not_promise_what_it_holds_back(mode: int, words: str) -> None:
    world = in_state("pictures next", mode)
    [seen] = status_report(open_operations(world.settings, world.clock, bucket=world.bucket), None).pipelines
    assert seen.state.words == words


def test_a_dry_run_says_what_it_holds_back() -> None:
    world = in_state("pictures next", MINIMAL)
    world.watch.begin(send=False)
    [line] = world.manager().dry_run()
    assert "degraded mode 2 (nothing is begun or paid for) holds it back: order the pictures" in line
    idle = WatchedWorld()
    idle.panel.set(REDUCED, None, "")
    idle.watch.begin(send=False)
    assert "would begin nothing: degraded mode 1 (no video is ordered) holds it back" in idle.manager().dry_run()
    assert DOCUMENT not in idle.keys_of()
