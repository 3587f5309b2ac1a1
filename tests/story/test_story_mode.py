"""Who sets the degraded mode, how it changes automatically, and where it is kept."""

import json
import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from operator_states import STATES
from watched_world import WatchedWorld, run_to_end

from retake.bucket import NotFound
from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.clock import FakeClock
from retake.degraded.mode import EMERGENCY, FULL, MINIMAL, REDUCED, Auto, ModeState, auto_after
from retake.degraded.settings import ModeSettings
from retake.degraded.store import ModeStore
from retake.errors import StateError
from retake.exit_codes import ExitCode
from retake.testing.logs import CapturedLogs

# --- who sets it ------------------------------------------------------------------------------------------------------


def test_by_default_it_is_0() -> None:
    shown = WatchedWorld().mode()
    assert shown == {
        "mode": 0,
        "by": "default",
        "why": "",
        "since": None,
        "until": None,
        "auto": {"mode": 0, "error_share": None, "tries": 0},
        "robots": [f"NR.NSI.{number}" for number in range(1, 10)],
    }


@pytest.mark.parametrize(("mode", "robots"), [(1, [1, 2, 3, 9]), (2, [1, 9]), (3, [])])
def test_the_robots_that_run(mode: int, robots: list[int]) -> None:
    world = WatchedWorld()
    world.panel.set(mode, None, "why")
    shown = world.mode()
    assert (shown["mode"], shown["by"], shown["why"]) == (mode, "operator", "why")
    assert shown["robots"] == [f"NR.NSI.{number}" for number in robots]


def test_what_is_set_by_hand_wins_0_too_until_its_time_is_over() -> None:
    night = {"days": "mon-sun", "from": "00:00", "to": "24:00", "mode": 2}
    world = WatchedWorld(modes={"schedule": [night]})
    assert (world.mode()["mode"], world.mode()["by"]) == (2, "schedule")
    world.panel.set(0, 1800, "we know")
    shown = world.mode()
    assert (shown["mode"], shown["by"], shown["until"]) == (0, "operator", "2026-01-01T00:30:00Z")
    run_to_end(world)
    world.later(minutes=29)
    assert world.mode()["by"] == "schedule"
    world.panel.set(3, None, "")
    world.later(days=400)
    assert world.mode()["mode"] == 3
    world.panel.auto()
    assert world.mode()["by"] == "schedule"


@pytest.mark.parametrize(
    ("zone", "moment", "mode"),
    [
        ("UTC", "2026-03-06T21:59", 0),  # Friday
        ("UTC", "2026-03-06T22:00", 1),
        ("UTC", "2026-03-07T05:59", 1),  # the night that began on Friday
        ("UTC", "2026-03-07T06:00", 0),
        ("UTC", "2026-03-07T23:00", 0),  # Saturday is not a day on which it begins
        ("UTC", "2026-03-02T03:00", 0),  # nor was Sunday
        ("Europe/Berlin", "2026-03-06T20:59", 0),
        ("Europe/Berlin", "2026-03-06T21:00", 1),
        ("Europe/Berlin", "2026-03-07T04:59", 1),
        ("Europe/Berlin", "2026-03-07T05:00", 0),
    ],
)
def test_a_schedule_across_midnight(zone: str, moment: str, mode: int) -> None:
    nights = {"days": "mon-fri", "from": "22:00", "to": "06:00", "mode": 1}
    world = WatchedWorld(modes={"schedule": [nights]}, alerts={"timezone": zone})
    world.clock.moment = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    assert world.mode()["mode"] == mode
    world.tick()
    assert ("degraded" in world.alerts()) == bool(mode)


@pytest.mark.parametrize(
    ("moment", "mode", "until"),
    [
        ("2026-03-06T22:00", 1, "2026-03-07T23:00:00Z"),  # not on Saturday, which begins in an hour
        ("2026-03-07T23:00", 2, "2026-03-08T05:00:00Z"),
        ("2026-03-28T23:00", 2, "2026-03-29T04:00:00Z"),  # at two o'clock it is three
        ("2026-10-24T22:00", 2, "2026-10-25T05:00:00Z"),  # at three o'clock it is two
    ],
)
def test_when_a_mode_of_the_schedule_ends_is_shown(moment: str, mode: int, until: str) -> None:
    nights = {"days": "sun-fri", "from": "00:00", "to": "06:00", "mode": 2}
    always = {"days": "mon-sun", "from": "00:00", "to": "24:00", "mode": 1}
    world = WatchedWorld(modes={"schedule": [nights, always]}, alerts={"timezone": "Europe/Berlin"})
    world.clock.moment = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    assert (world.mode()["mode"], world.mode()["until"]) == (mode, until)


def test_a_schedule_without_an_end_shows_none() -> None:
    always = {"days": "mon-sun", "from": "00:00", "to": "24:00", "mode": 1}
    assert WatchedWorld(modes={"schedule": [always]}).mode()["until"] is None


def test_the_highest_of_two_schedules_and_the_automatic_mode_applies() -> None:
    always = {"days": "mon-sun", "from": "00:00", "to": "24:00"}
    world = WatchedWorld(modes={"auto": True, "schedule": [{**always, "mode": 1}, {**always, "mode": 2}]})
    assert (world.mode()["mode"], world.mode()["by"]) == (2, "schedule")
    store = ModeStore(world.bucket, world.clock)
    store.change(lambda state: state._replace(auto=Auto(3, "2026-01-01T00:00:00Z", 0.5, 20)))
    assert (world.mode()["mode"], world.mode()["by"], world.mode()["since"]) == (3, "auto", "2026-01-01T00:00:00Z")
    assert world.mode()["why"] == "50.0 % of 20 tries failed within 3600 s"


# --- the automatic mode -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "failed", "tries", "after"),
    [
        (0, 2, 9, 0),  # too few
        (0, 2, 10, 0),  # a fifth is not above a fifth
        (0, 3, 10, 1),
        (1, 3, 10, 2),
        (2, 10, 10, 2),  # auto_max
        (3, 10, 10, 3),
        (2, 1, 10, 2),  # between the two shares
        (2, 1, 20, 1),  # at return_share
        (2, 0, 10, 1),
        (2, 9, 9, 1),  # too few tries
        (1, 0, 0, 0),
        (0, 0, 0, 0),
    ],
)
def test_one_step_of_the_automatic_mode(mode: int, failed: int, tries: int, after: int) -> None:
    now = FakeClock().now()
    changed = auto_after(Auto(mode), failed, tries, ModeSettings(), now)
    assert changed.mode == after
    assert (changed.since is not None) == (after != mode)
    assert changed.error_share == (failed / tries if tries >= 10 else None)


def test_it_holds_for_hold_seconds_after_each_change() -> None:
    now = FakeClock().now()
    first = auto_after(Auto(), 9, 10, ModeSettings(), now)
    for seconds, mode in ((0, 1), (899, 1), (900, 2)):
        assert auto_after(first, 10, 10, ModeSettings(), now + timedelta(seconds=seconds)).mode == mode


def test_a_clock_that_was_a_year_ahead_holds_it_no_longer() -> None:
    now = FakeClock().now()
    ahead = auto_after(Auto(), 9, 10, ModeSettings(), now + timedelta(days=365))
    assert auto_after(ahead, 0, 10, ModeSettings(), now).mode == 0
    a_little_ahead = auto_after(Auto(), 9, 10, ModeSettings(), now + timedelta(seconds=30))
    assert auto_after(a_little_ahead, 0, 10, ModeSettings(), now).mode == 1


def test_one_with_an_end_that_a_clock_ten_years_ahead_has_set_holds_nothing_up() -> None:
    world = WatchedWorld()
    right = world.clock.moment
    world.clock.moment += timedelta(days=3650)
    world.panel.set(3, 3600, "an hour off")
    assert world.mode()["mode"] == 3
    world.clock.moment = right
    assert world.mode()["mode"] == 0
    world.panel.set(3, None, "until somebody says otherwise")
    world.clock.moment = right - timedelta(days=3650)
    assert world.mode()["mode"] == 3


def test_one_that_another_machine_has_set_holds_though_its_clock_is_ahead() -> None:
    world = WatchedWorld()
    world.panel.set(3, 60, "a minute off")
    world.clock.moment -= timedelta(minutes=2)
    assert world.mode()["mode"] == 3


def test_failed_tries_raise_it_and_idle_ticks_bring_it_down_again() -> None:
    world = WatchedWorld(modes={"auto": True, "min_tries": 3, "hold_seconds": 300, "window_seconds": 1200})
    world.vendors.plan("imagine", *["refused"] * 4)
    modes = []
    for _ in range(60):
        world.tick()
        modes.append(world.mode()["mode"])
    steps = [mode for number, mode in enumerate(modes) if number == 0 or modes[number - 1] != mode]
    assert max(steps) >= 1, modes
    assert steps[0] == 0
    assert steps[-1] == 0, modes
    assert all(abs(a - b) == 1 for a, b in pairwise(steps))
    assert "degraded" not in world.alerts()
    assert "done" in world.ended


def test_videos_that_take_longer_than_a_tick_do_not_raise_it() -> None:
    world = WatchedWorld(modes={"auto": True, "min_tries": 4, "hold_seconds": 1, "window_seconds": 86400})
    world.vendors.plan("poll", *["running"] * 2)
    world.vendors.plan("fetch", "error", "error", "ok", "error")
    while not world.ended:
        world.tick()
        assert world.mode()["mode"] == 0
    assert world.mode()["auto"] == {"mode": 0, "error_share": 0.0, "tries": 4}


def test_a_video_that_is_given_up_counts_as_one_failed_try() -> None:
    world = WatchedWorld(modes={"auto": True, "min_tries": 4})
    world.vendors.plan("poll", *["error"] * 4)
    run_to_end(world)
    assert (world.ended, world.mode()["auto"]) == (["failed"], {"mode": 1, "error_share": 0.25, "tries": 4})


def test_a_schedule_above_it_does_not_keep_it_up() -> None:
    """Above 0 every tick looks, whatever keeps the mode up."""
    always = {"days": "mon-sun", "from": "00:00", "to": "24:00", "mode": 2}
    world = WatchedWorld(modes={"auto": True, "schedule": [always]})
    store = ModeStore(world.bucket, world.clock)
    store.change(lambda state: state._replace(auto=Auto(1, "2026-01-01T00:00:00Z", 0.5, 20)))
    world.later(hours=1)
    world.tick()
    assert world.mode()["auto"]["mode"] == 0


# --- where it is kept -------------------------------------------------------------------------------------------------


def test_it_is_written_first_and_then_repeated_in_the_alerts_document() -> None:
    bucket = FailingBucket(MemoryBucket())
    ModeStore(bucket, FakeClock()).change(lambda state: state._replace(auto=Auto(1)))
    written = [key for operation, key in bucket.operations if operation == "write"]
    assert [key.rpartition("/")[2] for key in written] == ["state.json", "state.json"]
    assert json.loads(bucket.read("mode/state.json")[0]) == json.loads(bucket.read("alerts/state.json")[0])["mode"]


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_between_the_two_is_healed_by_the_next_tick_that_does_something(after: bool) -> None:
    counted = FailingBucket(MemoryBucket())
    world = WatchedWorld(bucket=counted)
    world.panel.set(2, None, "")
    for number in range(1, len(counted.operations) + 1):
        store = MemoryStore()
        dying = FailingBucket(MemoryBucket(store), Fault(Crash, number=number, after=after))
        with pytest.raises(Crash):
            WatchedWorld(bucket=dying).panel.set(2, None, "")
        lives = WatchedWorld(bucket=MemoryBucket(store))
        for _ in range(2):
            lives.tick()
        kept = ModeStore(lives.bucket, lives.clock).read()
        assert lives.watch.mode.mode == (kept.hand.mode if kept.hand else 0)


@pytest.mark.parametrize("mode", [MINIMAL, EMERGENCY])
def test_a_crash_that_left_a_copy_of_the_mode_that_was_does_not_hold_ticks_back_for_ever(mode: int) -> None:
    world = WatchedWorld()
    world.panel.set(mode, None, "")
    world.put("mode/state.json", {"hand": {"mode": FULL, "why": "", "since": "2026-01-01T00:00:00Z"}})
    run_to_end(world)
    assert world.json("alerts/state.json")["mode"]["hand"]["mode"] == FULL


@pytest.mark.parametrize("key", ["mode/state.json", "alerts/state.json"])
def test_ticks_follow_the_kept_one_of_two_modes_set_at_once(key: str) -> None:
    world = WatchedWorld()
    others: list[int] = []

    def other_sets(step: str, at: str) -> None:
        if (step, at) == ("read", key) and others:
            world.panel.set(others.pop(), None, "")

    both = WatchedWorld(bucket=MemoryBucket(world.bucket.store, meanwhile=other_sets))
    for first, second in ((MINIMAL, FULL), (FULL, MINIMAL)):
        others.append(second)
        both.panel.set(first, None, "")
        world.tick()
        assert world.watch.mode.mode == world.mode()["mode"]


def test_an_invalid_alerts_document_does_not_hide_the_mode_and_an_invalid_mode_stops_the_tick() -> None:
    for broken in (b"{", b"[]", b'{"mode": 7}', b'{"mode": {"hand": {"mode": 9, "why": "", "since": "x"}}}'):
        world = WatchedWorld()
        world.panel.set(MINIMAL, None, "")
        world.put("alerts/state.json", broken)
        assert world.tick().exit_code == ExitCode.OK
        assert (world.generation_id, world.watch.mode.mode) == (None, MINIMAL)
        world.put("mode/state.json", b"{")
        with pytest.raises(StateError, match=r"mode/state\.json"):
            world.tick()


@pytest.mark.parametrize("copy", [7, 0, "", [], False, "x", {"hand": {"mode": 9, "why": "", "since": "x"}}], ids=str)
def test_a_copy_of_the_mode_without_sense_keeps_no_alert_from_being_raised(copy: object) -> None:
    world = WatchedWorld(modes={"auto": True})
    world.vendors.plan("imagine", "refused", "refused", "refused", "refused")
    while "step_failing" not in world.alerts():
        world.tick()
    board = world.json("alerts/state.json")
    world.put("alerts/state.json", {**board, "alerts": [], "mode": copy})
    world.put("mode/state.json", {"hand": {"mode": MINIMAL, "why": "", "since": "2026-01-01T00:00:00Z"}})
    paid = dict(world.vendors.billed)
    for _ in range(3):
        world.tick()
        assert (world.watch.mode.mode, world.vendors.billed) == (MINIMAL, paid)
    assert {"step_failing", "degraded"} <= set(world.alerts())


@pytest.mark.parametrize("share", [10**400, float("nan"), 1.5, -1])
def test_an_invalid_share_is_an_invalid_mode_and_no_bug(share: float) -> None:
    mode = {"auto": {"mode": REDUCED, "since": None, "error_share": share, "tries": 20}}
    world = WatchedWorld(modes={"auto": True})
    world.put("alerts/state.json", json.dumps({"mode": mode}).encode())
    assert world.tick().exit_code == ExitCode.OK
    world.put("mode/state.json", json.dumps(mode).encode())
    world.put("alerts/state.json", json.dumps({"mode": mode}).encode())
    with pytest.raises(StateError, match=r"mode/state\.json: auto: error_share must be a number from 0 to 1"):
        world.tick()


@pytest.mark.parametrize(
    "broken",
    [
        {"alerts": [{"id": 1}]},
        {"alerts": 5},
        {"alerts": {}, "channels": []},
        {"channels": {"it": {"queue": [1]}}},
        {"channels": {"it": {"queue": [{"id": "a"}]}}},
        {"ended": [{}]},
        {"alerts": [{"id": "a", "key": "k", "code": "c", "level": "loud", "title": "t"}]},
    ],
)
def test_whatever_else_is_wrong_with_it_the_tick_goes_on(broken: dict[str, Any]) -> None:
    world = WatchedWorld(alerts={"channels": {"it": {"kind": "webhook"}}})
    world.put("alerts/state.json", broken)
    world.vendors.plan("imagine", "refused", "refused")
    run_to_end(world)
    assert world.ended == ["done"]
    assert world.json("alerts/state.json") == broken or "mode" in world.json("alerts/state.json")


@pytest.mark.parametrize(
    "raw",
    [
        {"hand": {"mode": True, "why": "", "since": "2026-01-01T00:00:00Z"}},
        {"hand": {"mode": 4, "why": "", "since": "2026-01-01T00:00:00Z"}},
        {"hand": {"mode": 1}},
        {"hand": {"mode": 1, "why": 5, "since": "2026-01-01T00:00:00Z"}},
        {"hand": {"mode": 1, "why": "", "since": 5}},
        {"hand": {"mode": 1, "why": "", "since": None, "until": "2026-01-02T00:00:00Z"}},
        {"hand": {"mode": 1, "why": "", "since": "2026-01-01T00:00:00Z", "until": 5}},
        {"hand": {"mode": 1, "why": "", "since": "2026-01-01T00:00:00Z", "more": 1}},
        {"auto": {"mode": -1}},
        {"auto": {"error_share": "much"}},
        {"auto": {"tries": "many"}},
        {"auto": {"since": "yesterday"}},
        {"auto": []},
        {"auto": [1]},
        {"hand": [1]},
    ],
)
def test_an_invalid_mode_is_named_and_left_as_it_is(raw: dict[str, Any]) -> None:
    world = WatchedWorld()
    world.put("mode/state.json", raw)
    if raw == {"auto": []}:  # as good as none
        assert world.mode()["mode"] == 0
        return
    with pytest.raises(StateError, match=r"mode/state\.json"):
        world.mode()
    assert world.json("mode/state.json") == raw


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({"hand": {"mode": 1}}, "hand: has no why, since"),
        (
            {"hand": {"mode": 1, "why": "", "since": "2026-01-01T00:00:00Z", "untl": "x"}},
            "hand.untl: is none of its keys",
        ),
        ({"hand": 7}, "hand: is not an object"),
        ({"auto": {"tries": -1}}, "tries a whole number from 0 up"),
    ],
)
def test_a_mode_that_was_edited_says_what_is_wrong_with_it(raw: dict[str, Any], told: str) -> None:
    world = WatchedWorld()
    world.put("mode/state.json", raw)
    with pytest.raises(StateError, match=rf"mode/state\.json: .*{re.escape(told)}"):
        world.mode()


def test_without_a_mode_nothing_is_written() -> None:
    world = WatchedWorld()
    world.tick()
    with pytest.raises(NotFound):
        world.bucket.read("mode/state.json")
    assert ModeStore(world.bucket, world.clock).read() == ModeState()


FULL_BY_HAND = {"mode": FULL, "why": "", "since": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    "alerts", [None, {}, {"alerts": [{"code": "breaker_open", "seen": 5}]}, {"mode": {"hand": FULL_BY_HAND}}], ids=str
)
def test_nothing_is_paid_for_where_the_copy_of_the_mode_is_outdated_or_removed(alerts: dict[str, Any] | None) -> None:
    world = WatchedWorld()
    world.panel.set(MINIMAL, None, "")
    world.bucket.delete("alerts/state.json")
    if alerts is not None:
        world.put("alerts/state.json", alerts)
    for _ in range(3):
        assert world.tick().exit_code == ExitCode.OK
    assert (world.watch.mode.mode, dict(world.vendors.billed)) == (MINIMAL, {})
    if "alerts" not in (alerts or {}):  # otherwise the document is invalid
        assert world.json("alerts/state.json")["mode"] == world.json("mode/state.json")


@pytest.mark.parametrize("state", ["no generation", "pictures next"])
def test_a_dry_run_uses_the_mode_that_a_tick_reads_before_it_pays(state: str) -> None:
    world = WatchedWorld(bucket=STATES[state]().bucket)
    world.put("mode/state.json", {"hand": {"mode": MINIMAL, "why": "", "since": "2026-01-01T00:00:00Z"}})
    world.watch.begin(send=False)
    dry = world.manager().dry_run()
    assert world.tick().why in "\n".join(dry)
    world.put("mode/state.json", b"{")
    world.put("alerts/state.json", {})
    world.watch.begin(send=False)
    for told in (world.manager().dry_run, world.tick):
        with pytest.raises(StateError, match=r"mode/state\.json"):
            told()


@pytest.mark.parametrize("alert", [{"code": "breaker_open", "seen": 5}, {"code": ["breaker_open"], "seen": {"": "x"}}])
def test_an_invalid_alert_is_not_a_bug_in_an_idle_tick(alert: dict[str, Any]) -> None:
    world = WatchedWorld()
    world.panel.set(MINIMAL, None, "")
    board = world.json("alerts/state.json")
    world.put("alerts/state.json", {**board, "alerts": [alert]})
    with CapturedLogs() as logs:
        assert world.tick().exit_code == ExitCode.OK
    told = [it.getMessage() for it in logs.records]
    assert any("alerts/state.json: an alert" in it for it in told)
    assert not any("bug" in it for it in told)
