"""What the ticks of a process remember: until when nothing is due, and nothing at all if anything was done."""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from retake.alerts.conditions import PipelineFacts
from retake.alerts.hours import WorkingHours, next_due, zone_of
from retake.alerts.settings import AlertChannel, AlertSettings
from retake.bucket import ANY
from retake.bucket.directory import DirectoryBucket
from retake.clock import stamp
from retake.degraded.settings import ModeSettings, Scheduled
from retake.errors import StateError
from retake.exit_codes import ExitCode
from retake.strict_json import encode
from retake.testing.logs import CapturedLogs
from retake.ticking.rest import IdleLook, LookFile, RememberedLook, looked_up
from retake.ticking.tick import Orders, Tick
from retake.ticking.watch import TickWatch

NOW = datetime(2026, 3, 4, 11, 30, tzinfo=UTC)  # a Wednesday
HOUR = 3600.0
IDLE = Tick(ExitCode.OK, "nothing to do", resting=True)
FACTS = PipelineFacts()

REPORTED = AlertChannel("all", "webhook", "WEBHOOK", (), "any", (), True, ("daily",), {})


class StoppedClock:
    def now(self) -> datetime:
        return NOW

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody waits")


class Runner:
    """A runner whose ticks end with the given result."""

    def __init__(self, tick: Tick | Exception, *, worked: bool = False, facts: PipelineFacts | None = FACTS) -> None:
        self._tick, self.worked, self._facts = tick, worked, facts

    def preparing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def tick(self, orders: Orders) -> Tick:
        if isinstance(self._tick, Exception):
            raise self._tick
        return self._tick

    def facts(self) -> PipelineFacts | None:
        return self._facts


class World:
    def __init__(self, folder: Path) -> None:
        self.bucket = DirectoryBucket(str(folder / "bucket"))
        self.bucket.write("config/a.json", b"{}", ANY)
        self.file = LookFile(str(folder / "cache" / "retake" / "look"))
        self.settings: dict[str, Any] = {}
        self.modes = ModeSettings()
        self.external_ledger = False
        self.reported: list[tuple[str, datetime]] = []
        for path in folder.rglob("*"):
            os.utime(path, (1e9, 1e9))

    def put(self, board: Mapping[str, Any]) -> None:
        self.bucket.write("alerts/state.json", encode(dict(board)), ANY)

    def tick(self, runner: Runner) -> RememberedLook | None:
        """Run one tick, ten seconds from now: the kernel's times of the files cannot be set back."""
        look = IdleLook(
            self.file,
            "basis",
            began_at=NOW.timestamp(),
            longest_s=HOUR,
            look_up=lambda path: (looked_up(path)[0], NOW.timestamp() - 60),
            external_ledger=self.external_ledger,
        )
        self.bucket.observe(look)
        settings = AlertSettings(**self.settings)
        report = lambda *made: self.reported.append(made)  # noqa: E731
        watch = TickWatch(settings, self.modes, self.bucket, StoppedClock(), {}, look=look, report=report)
        with suppress(StateError):
            watch.tick("story", runner)
        return self.file.read()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def minutes(look: RememberedLook | None) -> float:
    assert look
    assert look.due_at is not None
    return (look.due_at - NOW.timestamp()) / 60


def after(**passed: float) -> datetime:
    return NOW + timedelta(**passed)


def test_an_idle_tick_is_remembered_for_as_long_as_a_look_counts(world: World) -> None:
    look = world.tick(Runner(IDLE))
    assert minutes(look) == 60
    assert look
    assert look.basis == "basis"
    assert {os.path.relpath(it, world.bucket._tree.root) for it in look.seen} >= {".", "alerts", "alerts/state.json"}
    assert any(it.endswith("retake/ticking/watch.py") for it in look.seen)


@pytest.mark.parametrize(
    "runner",
    [
        Runner(IDLE, worked=True),
        Runner(Tick(ExitCode.OK, "waiting for Midjourney")),
        Runner(Tick(ExitCode.OK, "somebody else is at work"), facts=None),
        Runner(IDLE, facts=None),
        Runner(Tick(ExitCode.TRY_LATER, "the cap of the day is reached", resting=True)),
        Runner(Tick(ExitCode.TRY_LATER, "the breaker is open", until=after(minutes=1))),
        Runner(Tick(ExitCode.CONFIG, "a key is refused", until=after(minutes=50))),
        Runner(StateError("a document is invalid")),
    ],
)
def test_any_other_tick_forgets_what_was_remembered(world: World, runner: Runner) -> None:
    assert world.tick(Runner(IDLE))
    assert world.tick(runner) is None


def test_a_write_forgets_it(world: World) -> None:
    runner = Runner(IDLE)
    original = runner.tick

    def writing(orders: Orders) -> Tick:
        world.bucket.write("config/b.json", b"{}", ANY)
        return original(orders)

    runner.tick = writing  # type: ignore[method-assign]
    assert world.tick(runner) is None


def test_a_ledger_that_cannot_be_seen_forgets_it(world: World) -> None:
    world.external_ledger = True
    assert world.tick(Runner(IDLE))
    assert world.tick(Runner(IDLE._replace(generation_id="20260304-1100"))) is None


def test_a_retry_is_due_at_its_time(world: World) -> None:
    assert minutes(world.tick(Runner(Tick(ExitCode.OK, "due later", until=after(minutes=7))))) == 7
    assert minutes(world.tick(Runner(Tick(ExitCode.OK, "due later", until=after(days=7))))) == 60


def test_a_mode_set_by_hand_ends_at_its_time(world: World) -> None:
    hand = {"mode": 0, "why": "a test", "since": stamp(NOW), "until": stamp(after(minutes=9))}
    world.put({"mode": {"hand": hand}})
    assert minutes(world.tick(Runner(IDLE))) == 9
    for until in (stamp(after(minutes=-9)), None):
        world.put({"mode": {"hand": {**hand, "until": until}}})
        assert minutes(world.tick(Runner(IDLE))) == 60


@pytest.mark.parametrize(("start", "end"), [("12:10", "14:00"), ("09:00", "12:10")])
def test_the_scheduled_mode_begins_and_ends_at_its_time(world: World, start: str, end: str) -> None:
    holding = start < "11:30"
    world.modes = ModeSettings(schedule=(Scheduled(WorkingHours("mon-sun", start, end), 0 if holding else 1),))
    assert minutes(world.tick(Runner(IDLE))) == 40


def test_the_automatic_mode_is_looked_at_by_each_tick(world: World) -> None:
    world.modes = ModeSettings(auto=True)
    assert world.tick(Runner(IDLE))
    mode = {"auto": {"mode": 1, "since": stamp(NOW), "error_share": 0.9, "tries": 10}}
    world.bucket.write("mode/state.json", encode(mode), ANY)
    world.put({"mode": mode})
    assert world.tick(Runner(IDLE)) is None


def test_a_report_is_due_at_its_time(world: World) -> None:
    world.settings = {"channels": (REPORTED,), "report_at": "11:45"}
    world.put({"reports": {"daily": stamp(after(days=-1, minutes=15))}})
    assert minutes(world.tick(Runner(IDLE))) == 15


def test_a_report_that_is_due_is_made_by_a_tick_that_has_nothing_else_to_do(world: World) -> None:
    world.settings = {"channels": (REPORTED,), "report_at": "11:15"}
    for day, made in ((-1, [("daily", NOW)]), (0, [])):
        world.put({"reports": {"daily": stamp(after(days=day, minutes=-15))}})
        world.reported.clear()
        world.tick(Runner(IDLE))
        assert world.reported == made


def test_a_report_that_is_due_and_could_not_be_made_is_tried_again(world: World) -> None:
    world.settings = {"channels": (REPORTED,), "report_at": "11:15"}
    world.put({"reports": {"daily": stamp(after(days=-1, minutes=-15))}})
    assert world.tick(Runner(IDLE)) is None


def alert(**fields: object) -> dict[str, object]:
    own = {"code": "generation_failed", "level": "warning", "title": "x", "occurrences": 1, "seen": {"other": "1"}}
    times = {"first_at": stamp(NOW), "last_at": stamp(NOW)}
    return {"id": "1", "key": "x", **own, **times, **fields}


@pytest.mark.parametrize(
    ("fields", "due"),
    [
        ({"told_at": stamp(after(minutes=-5))}, 10),  # ALERTS.repeat_seconds: 900
        ({"told_at": stamp(after(minutes=-5)), "state": "acknowledged"}, 60),
        ({"tell_at": stamp(after(minutes=3))}, 3),
        ({"state": "resolved", "closed_at": stamp(after(minutes=-1)), "seen": {}}, 4),  # ALERTS.group_seconds: 300
        ({"state": "resolved", "closed_at": stamp(after(days=-1)), "closed_by": "operator"}, 60),
    ],
)
def test_an_alert_is_due_when_it_is_to_be_told_again_or_filed(
    world: World, fields: dict[str, object], due: int
) -> None:
    world.put({"alerts": [alert(**fields)]})
    assert minutes(world.tick(Runner(IDLE))) == due


def test_a_message_that_waits_forgets_it(world: World) -> None:
    world.settings = {"channels": (REPORTED._replace(reports=()),)}
    message = {"id": "1", "event": "trigger", "at": stamp(NOW), "subject_id": "1", "level": None, "title": "x"}
    queue = {"queue": [{**message, "text": "x", "fields": {}}], "next_at": stamp(after(minutes=2)), "failures": 1}
    world.put({"channels": {"all": queue}})
    assert world.tick(Runner(IDLE)) is None


def test_alerts_that_cannot_be_read_forget_it(world: World) -> None:
    world.bucket.write("alerts/state.json", b"{", ANY)
    assert world.tick(Runner(IDLE)) is None
    world.put({"alerts": [alert(told_at="yesterday")]})
    assert world.tick(Runner(IDLE)) is None


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kathmandu"])
@pytest.mark.parametrize("minute", [0, 45, 690, 1439, 1440])
def test_the_next_time_of_day_is_within_the_next_day(zone: str, minute: int) -> None:
    for hours in range(0, 24 * 366, 7):
        now = NOW + timedelta(hours=hours, seconds=hours)
        due = next_due(now, zone_of(zone), minute)
        assert now < due <= now + timedelta(hours=25)
        local = due.astimezone(zone_of(zone))
        assert (60 * local.hour + local.minute - minute) % 1440 in (0, 60)  # 60: a time that the clock skips in spring


@pytest.mark.parametrize(
    "board",
    [
        {"reports": "x"},
        {"reports": [{}]},
        {"alerts": [alert(told_at="9999-12-31T23:59:59Z")]},
        {"alerts": [alert(closed_at="9999-12-31T23:59:59Z", state="resolved", seen={})]},
        {"alerts": [alert(tell_at="noon")]},
        {"alerts": [alert(told_at=7)]},
    ],
    ids=str,
)
def test_an_invalid_board_is_not_a_bug(world: World, board: Mapping[str, Any]) -> None:
    world.settings = {"channels": (REPORTED,)}
    world.put(board)
    with CapturedLogs() as logs:
        world.tick(Runner(IDLE))
    assert [it.getMessage() for it in logs.records if it.exc_info] == []
