"""Delivery: at least once, in order, each channel independently, however often machines die or services are away."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from alert_world import START
from delivery_world import DELIVERED, FAILED, REFUSED, TWO, DeliveryWorld, Service, cause, failing, send_once
from waiting import eventually

from retake.alerts.board import OPEN, RESOLVED
from retake.alerts.delivery import is_sending
from retake.alerts.message import Ending, Sent
from retake.bucket import Bucket
from retake.bucket.directory import DirectoryBucket
from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.clock import FakeClock
from retake.errors import StorageError
from retake.testing.logs import CapturedLogs

LONG_S = 60.0  # only reached when something is broken


class Hang:
    """A plan for a channel: it does not answer until the test is over, and then fails."""

    def __init__(self) -> None:
        self._begun, self._over = threading.Semaphore(0), threading.Event()

    def __call__(self) -> Sent:
        self._begun.release()
        self._over.wait(2 * LONG_S)
        return FAILED

    def begins(self) -> bool:
        """Return whether a try that was not yet asked about has reached the service."""
        return self._begun.acquire(timeout=LONG_S)

    def end(self) -> None:
        """End all tries and wait for their threads: what they log belongs to this test."""
        self._over.set()
        assert eventually(lambda: not is_sending())


@pytest.fixture
def hang() -> Iterator[Hang]:
    hang = Hang()
    yield hang
    hang.end()


def logged(logs: CapturedLogs) -> str:
    return "\n".join(record.getMessage() for record in logs.records)


def test_messages_of_a_channel_arrive_in_their_order() -> None:
    world = DeliveryWorld()
    for name in "abcde":
        world.look(*(cause(it) for it in "abcde"[: "abcde".index(name) + 1]))
        world.later(1)
    world.deliver()
    assert [title for _, _, title in world.service.taken] == [f"{name} fails" for name in "abcde"]
    world.look()
    world.deliver()
    assert [event for _, event, _ in world.service.taken[5:]] == ["resolve"] * 5


def test_what_grows_worse_within_the_second_in_which_it_is_being_sent_is_reported() -> None:
    world, grown = DeliveryWorld(), threading.Event()

    def slowly() -> Sent:
        assert grown.wait(LONG_S)
        return DELIVERED

    world.service.plan("all", slowly)
    world.look(failing(1))
    sender = world.sender()
    sender.start()
    world.look(failing(1)._replace(level="critical"))
    grown.set()
    assert sender.wait(LONG_S)
    world.deliver()
    assert world.service.events() == ["trigger", "trigger"]


def test_what_fails_keeps_what_comes_after_it_waiting() -> None:
    world = DeliveryWorld()
    world.service.plan("all", DELIVERED, FAILED)
    world.look(cause("a"), cause("b"), cause("c"))
    world.deliver()
    assert [title for _, _, title in world.service.taken] == ["a fails"]
    assert [it.title for it in world.queue().queue] == ["b fails", "c fails"]
    world.later(29)
    assert world.deliver() == []
    world.later(1)
    world.deliver()
    assert [title for _, _, title in world.service.taken] == ["a fails", "b fails", "c fails"]


def test_a_channel_that_hangs_delays_no_other_and_holds_nobody_up(hang: Hang) -> None:
    world = DeliveryWorld(channels=TWO)
    world.service.plan("one", hang)
    world.look(failing())
    sender = world.sender()
    assert sorted(sender.start()) == ["one", "two"]
    assert eventually(lambda: world.service.events("two") == ["trigger"])
    assert not sender.wait(0.1)
    assert world.queue("one").last_error == "the sender ended before there was an answer"
    hang.end()
    assert sender.wait(20)


def test_a_failed_delivery_is_tried_again_after_30_seconds_doubling_to_10_minutes() -> None:
    world = DeliveryWorld()
    world.service.plan("all", *[FAILED] * 99)
    world.look(failing())
    for _ in range(3600):
        world.deliver()
        world.later(1)
    assert [at for at, _ in world.service.tries] == [0, 30, 90, 210, 450, 930, 1530, 2130, 2730, 3330]
    assert world.queue().last_error == "HTTP 503"
    world.service.plans.clear()
    world.later(600)
    world.deliver()
    assert world.service.events() == ["trigger"]
    assert (world.queue().failures, world.queue().next_at, world.queue().last_error) == (0, None, None)


def test_a_channel_that_hangs_is_tried_as_rarely_as_one_that_fails(hang: Hang) -> None:
    world = DeliveryWorld()
    world.look(failing())
    for _ in range(20):
        world.service.plan("all", hang)
        sender = world.sender()
        assert not sender.start() or hang.begins()
        sender.wait(0.01)
        world.later(60)
    assert [at for at, _ in world.service.tries] == [0, 60, 120, 240, 480, 960]


@pytest.mark.parametrize("hangs", [True, False])
def test_a_clock_that_was_a_year_ahead_keeps_no_channel_waiting(hangs: bool, hang: Hang) -> None:
    world = DeliveryWorld()
    world.service.plan("all", hang if hangs else FAILED)
    world.later(365 * 24 * 3600)
    world.look(failing())
    world.deliver(wait_s=0 if hangs else 20)
    assert world.deliver() == []
    world.later(-365 * 24 * 3600)
    assert world.deliver() == ["all"]
    assert world.service.events() == ["trigger"]


def test_what_the_service_asks_for_is_waited_for() -> None:
    for asked in (5.0, 1800.0):
        world = DeliveryWorld()
        world.service.plan("all", Sent(Ending.FAILED, "HTTP 429", asked))
        world.look(failing())
        for _ in range(2000):
            world.deliver()
            world.later(1)
        assert [at for at, _ in world.service.tries] == [0, asked]


def test_retry_seconds_longer_than_ten_minutes_are_kept() -> None:
    world = DeliveryWorld(retry_seconds=1200)
    world.service.plan("all", FAILED, FAILED)
    world.look(failing())
    for _ in range(300):
        world.deliver()
        world.later(10)
    assert [at for at, _ in world.service.tries] == [0, 1200, 2400]


def test_what_is_refused_is_not_sent_again_and_the_others_tell() -> None:
    world = DeliveryWorld(channels=TWO)
    world.service.plan("one", REFUSED)
    world.tick(failing())
    assert (world.queue("one").queue, world.queue("one").last_error) == ((), "HTTP 404")
    world.later(60)
    world.tick(failing())
    assert world.service.taken == [
        ("two", "trigger", "step_failing at imagine"),
        ("two", "trigger", "The channel one refused an alert"),
    ]
    alert = world.active()["channel_refused/one"]
    assert (alert.level, alert.message, alert.told) == ("warning", "it answered: HTTP 404", ("two",))
    world.later(900)
    world.tick(failing(2))
    world.later(60)
    world.tick(failing(2))
    assert "channel_refused/one" not in world.active()
    assert ("one", "repeat", "Still open: step_failing at imagine") in world.service.taken
    assert ("two", "resolve", "Resolved: The channel one refused an alert") in world.service.taken


def test_the_only_channel_that_refuses_is_told_of_nothing_and_the_alert_is_on_record() -> None:
    world = DeliveryWorld()
    world.service.plan("all", REFUSED)
    world.tick(failing())
    world.later(60)
    world.tick(failing())
    assert world.active()["channel_refused/all"].told == ()
    assert world.service.taken == []


def test_without_its_secret_a_channel_waits_and_is_sent_everything_later() -> None:
    world = DeliveryWorld()
    secrets, world.environ = world.environ, {}
    world.look(failing())
    world.deliver()
    assert world.queue().last_error == "ALERT_WEBHOOK_URL is not set"
    world.environ = secrets
    world.later(30)
    world.deliver()
    assert world.service.events() == ["trigger"]


def test_a_bug_in_a_channel_is_a_failed_try_of_that_channel() -> None:
    world = DeliveryWorld(channels=TWO)

    def bug() -> Sent:
        raise ZeroDivisionError("with a-secret-of-a-channel")

    world.service.plan("one", bug)
    world.look(failing())
    world.deliver()
    assert world.queue("one").last_error == "a bug in Retake: ZeroDivisionError"
    assert world.service.events("two") == ["trigger"]


def test_after_seven_days_it_is_dropped_with_a_line_in_the_log() -> None:
    world = DeliveryWorld(repeat_seconds=10_000_000)
    world.service.plan("all", *[FAILED] * 9)
    world.tick(failing())
    world.later(7 * 86400 - 1)
    world.deliver()
    assert len(world.queue().queue) == 1
    world.later(1)
    with CapturedLogs() as logs:
        world.deliver()
    assert world.queue().queue == ()
    assert "an alert could not be delivered for 7 days and was dropped: step_failing at imagine" in logged(logs)


@pytest.mark.parametrize("minutes", [7, 30])
def test_the_queue_of_a_channel_that_is_away_for_a_week_stays_small(minutes: int) -> None:
    """Alerts repeat, and causes come and go, both as the same alert and as new ones."""
    world = DeliveryWorld(channels={"all": {"kind": "webhook"}, "sms": SMS})
    for name in ("all", "sms"):
        world.service.plan(name, *[FAILED] * 20_000)
    longest = 0
    causes = ("content", "imagine", "runway")
    for number in range(7 * 24 * 60 // minutes):
        found = [cause(name, str(number)) for place, name in enumerate(causes) if (number >> place) % 2]
        world.look(cause("upscale", str(number)), *found)
        longest = max(longest, len(world.queue().queue), len(world.queue("sms").queue))
        if number % 60 == 0:
            world.deliver()
        world.later(60 * minutes)
    assert longest <= 4 * (len(causes) + 1), longest
    assert len(json.dumps(json.loads(world.bucket.read("alerts/state.json")[0]))) < 60_000
    world.service.plans.clear()
    for _ in range(2):
        world.later(900)
        world.tick(cause("upscale"))  # its beginning was dropped after a week, so it is reported again as a lasting one
    for name in ("all", "sms"):
        assert (name, "repeat", "Still open: upscale fails") in world.service.taken


SMS = {"kind": "sms", "account": "A", "from": "1", "to": ["2"], "hours": "any", "levels": ["warning"]}


def test_what_began_and_ended_while_a_channel_was_away_is_reported_once_with_its_end() -> None:
    world = DeliveryWorld()
    world.service.plan("all", FAILED, FAILED)
    world.tick(failing())
    world.later(60)
    world.tick()
    world.later(600)
    world.tick()
    assert world.service.events() == ["trigger", "resolve"]


def test_the_end_of_an_alert_that_was_told_is_reported_whatever_comes_after_it() -> None:
    world = DeliveryWorld()
    world.tick(failing(1))
    world.service.plan("all", FAILED)
    world.later(60)
    world.tick()  # its end cannot be sent
    world.later(1000)
    world.service.plan("all", FAILED)
    world.tick(failing(2))  # a new alert of the same cause
    world.later(1000)
    world.tick(failing(2))
    assert world.service.events()[:3] == ["trigger", "resolve", "trigger"]


def test_the_end_of_an_alert_that_was_told_is_reported_although_it_grew_worse_while_the_channel_was_away() -> None:
    world = DeliveryWorld(channels={"all": {"kind": "pagerduty", "levels": ["warning", "error"], "hours": "any"}})
    world.tick(failing(1))
    first = world.board.alerts["step_failing/imagine"].id
    world.service.plan("all", *[FAILED] * 3)
    world.later(60)
    world.tick(failing(2)._replace(level="error"))
    world.later(60)
    world.tick()
    world.later(1000)
    world.tick(failing(3))  # a new alert of the same cause
    for _ in range(2):
        world.later(1000)
        world.tick(failing(3))
    assert ("all", "resolve", first) in world.service.subjects


def test_the_end_of_an_alert_is_reported_although_nobody_knows_whether_its_beginning_was(hang: Hang) -> None:
    world = DeliveryWorld()
    world.service.plan("all", hang)
    world.look(failing(1))
    world.deliver(wait_s=0)
    assert hang.begins()
    world.later(60)
    world.look()
    world.later(1000)
    world.look(failing(2))  # a new alert of the same cause
    world.deliver()
    assert world.service.events() == ["trigger", "resolve", "trigger"]


# --- several machines -------------------------------------------------------------------------------------------------


def memory(tmp_path: Path) -> Callable[[], Bucket]:
    store = MemoryStore()
    return lambda: MemoryBucket(store)


def directory(tmp_path: Path) -> Callable[[], Bucket]:
    return lambda: DirectoryBucket(str(tmp_path / "bucket"))


@pytest.mark.parametrize("place", [memory, directory])
def test_one_of_several_machines_sends(place: Callable[[Path], Callable[[], Bucket]], tmp_path: Path) -> None:
    send_once(place(tmp_path))


def test_one_that_died_while_sending_blocks_for_timeout_seconds_at_most(hang: Hang) -> None:
    world = DeliveryWorld()
    world.service.plan("all", hang)
    world.look(failing())
    world.sender().start()  # nobody waits for it: its process is gone
    assert hang.begins()
    other = DeliveryWorld(world.bucket, world.service, world.clock)
    other.later(9)
    assert other.deliver() == []
    other.later(1)
    assert other.deliver() == ["all"]
    assert world.service.events() == ["trigger"]


def test_a_try_without_a_result_counts_as_a_failed_one(hang: Hang) -> None:
    world = DeliveryWorld()
    world.look(failing())
    for _ in range(3):
        world.service.plan("all", hang)
        world.sender().start()
        assert hang.begins()
        world.later(10)
    assert world.queue().failures == 3
    world.service.plan("all", FAILED)
    assert world.deliver() == ["all"]
    assert world.queue().next_at == "2026-03-02T10:04:30Z"  # 240 s after 10:00:30


def test_a_queue_that_takes_longer_than_a_tick_waits_ends(hang: Hang) -> None:
    """Each delivered message is saved at once, so the next tick does not send it again."""
    world, names = DeliveryWorld(), "abcdefg"
    world.look(*(cause(name) for name in names))
    for _ in range(3):
        world.service.plan("all", DELIVERED, DELIVERED, hang)
        sender = world.sender()
        assert sender.start() == ["all"]
        assert hang.begins()
        assert not sender.wait(0.01)
        world.later(1000)
    world.deliver()
    assert [title for _, _, title in world.service.taken] == [f"{name} fails" for name in names]


# --- crashes ----------------------------------------------------------------------------------------------------------

LIFE = [(0, True), (60, True), (120, True), (180, False), (240, False), (600, False), (700, False), (1400, False)]
"""Ticks: the time, and whether the cause is present."""


def live(world: DeliveryWorld, ticks: list[tuple[int, bool]]) -> None:
    for at, failed in ticks:
        world.clock.moment = START + timedelta(seconds=at)
        world.tick(*([failing()] if failed else []))


def operations() -> int:
    counted = FailingBucket(MemoryBucket())
    live(DeliveryWorld(counted), LIFE)
    return len(counted.operations)


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_operation_loses_no_alert_and_no_end(after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda args: None)  # a sender's thread dies with its process
    number_of_operations = operations()
    assert number_of_operations > 20
    for number in range(1, number_of_operations + 1):
        store, service, clock = MemoryStore(), Service(), FakeClock(START)
        dying = FailingBucket(MemoryBucket(store), Fault(Crash, number=number, after=after))
        world = DeliveryWorld(dying, service, clock)
        for place, moment in enumerate(LIFE):
            with suppress(Crash):
                live(world, [moment])
            if len(dying.operations) >= number and world.bucket is dying:
                world = DeliveryWorld(MemoryBucket(store), service, clock)
                live(world, LIFE[place + 1 :])
                break
        events = service.events()
        where = f"operation {number}, {after=}: {events}"
        assert events[0] == "trigger", where
        assert events[-1] == "resolve", where
        assert events == sorted(events, key=["trigger", "resolve"].index), where
        assert len(events) <= 3, where  # one may be sent twice
        history = [it for it in world.store.history(clock.now()) if it.key == failing().key]
        assert [it.state for it in history] == [RESOLVED], where
        assert (world.board.alerts, world.board.ended) == ({}, ()), where


def test_what_cannot_be_saved_is_sent_again() -> None:
    store = MemoryStore()
    world = DeliveryWorld(MemoryBucket(store))
    world.look(failing())
    failing_write = Fault(lambda: StorageError("away"), number=2, operation="write")
    away = DeliveryWorld(FailingBucket(MemoryBucket(store), failing_write), world.service, world.clock)
    with CapturedLogs() as logs:
        away.deliver()
    assert "it may be sent again" in logged(logs)
    world.later(30)
    world.deliver()
    assert world.service.events() == ["trigger", "trigger"]
    assert world.queue().queue == ()
    assert world.active()[failing().key].state == OPEN
