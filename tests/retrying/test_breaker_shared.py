"""The circuit breaker over state stores: across ticks, threads, processes and deaths, and when the store is away."""

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from together import said_at_once

from retake.bucket import ANY
from retake.bucket.directory import DirectoryBucket
from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.clock import FakeClock
from retake.errors import Code, CodedError, Refused, RobotError, StateError, StorageError
from retake.retrying.breaker import Breaker, BreakerOpen, BreakerPolicy, Phase, breakers_of
from retake.retrying.state_store import MemoryStateStore, StateStore

KEY = "breakers/appius.json"


class Scene:
    """A breaker that many share: each `here()` is another client of it."""

    def __init__(self, policy: BreakerPolicy = BreakerPolicy()) -> None:  # noqa: B008  immutable
        self.policy = policy
        self.clock = FakeClock()
        self.store = MemoryStore()

    def here(self, states: StateStore | None = None) -> Breaker:
        states = states or breakers_of(MemoryBucket(self.store), self.clock)
        return Breaker("appius", states, self.policy, clock=self.clock, owner="here:1")

    def over(self, *faults: Fault) -> tuple[Breaker, FailingBucket]:
        bucket = FailingBucket(MemoryBucket(self.store), *faults)
        return self.here(breakers_of(bucket, self.clock)), bucket

    def open(self) -> None:
        for _ in range(self.policy.failures):
            with pytest.raises(RobotError):
                self.here().call(fails)

    def half_open(self) -> None:
        self.open()
        self.clock.sleep(self.policy.open_s)

    @property
    def phase(self) -> Phase:
        return self.here().state().phase(self.clock.now())


@pytest.fixture
def scene() -> Scene:
    return Scene()


def fails() -> str:
    raise RobotError("ERR_TEMPORARY_API_TIMEOUT", "no answer")


def works() -> str:
    return "done"


# --- across ticks -----------------------------------------------------------------------------------------------------


def test_failures_of_ten_ticks_open_it_and_the_eleventh_makes_no_call(scene: Scene) -> None:
    scene.open()
    called: list[str] = []
    with pytest.raises(BreakerOpen, match="appius has failed too often: open until 2026-01-01T00:01:00Z") as refused:
        scene.here().call(lambda: called.append("x"))
    assert (called, refused.value.retry_after_s, refused.value.exit_code) == ([], 60, 75)


def test_after_a_minute_one_call_is_made_and_closes_it(scene: Scene) -> None:
    scene.half_open()
    assert scene.here().call(works) == "done"
    assert scene.phase is Phase.CLOSED
    assert scene.here().call(works) == "done"


def test_after_a_minute_one_call_is_made_and_opens_it_again(scene: Scene) -> None:
    scene.half_open()
    with pytest.raises(RobotError):
        scene.here().call(fails)
    with pytest.raises(BreakerOpen):
        scene.here().call(works)
    assert scene.here().state().opened_at == scene.clock.now() - timedelta(seconds=60)


def test_one_that_a_clock_far_ahead_opened_is_tried_anyway(scene: Scene) -> None:
    scene.clock.sleep(365 * 24 * 3600)
    scene.open()
    scene.clock.moment -= timedelta(days=364)
    assert scene.here().call(works) == "done"
    assert scene.phase is Phase.CLOSED


def test_a_probe_of_a_clock_far_ahead_that_died_keeps_nobody_waiting(scene: Scene) -> None:
    scene.open()
    scene.clock.sleep(365 * 24 * 3600)
    scene.here().allow()
    scene.clock.moment -= timedelta(days=364)
    assert scene.here().call(works) == "done"


def test_a_probe_at_the_end_of_time_keeps_nobody_waiting(scene: Scene) -> None:
    probe = {"who": "dead", "since": "9999-12-31T23:59:59Z"}
    document = {"open_until": "2026-01-01T00:00:00Z", "probe": probe}
    MemoryBucket(scene.store).write(KEY, json.dumps(document).encode(), ANY)
    assert scene.here().call(works) == "done"


def test_failures_of_a_clock_far_ahead_do_not_count(scene: Scene) -> None:
    scene.clock.sleep(365 * 24 * 3600)
    for _ in range(scene.policy.failures - 1):
        with pytest.raises(RobotError):
            scene.here().call(fails)
    scene.clock.moment -= timedelta(days=364)
    with pytest.raises(RobotError):
        scene.here().call(fails)
    assert scene.phase is Phase.CLOSED


def test_its_state_can_be_read_in_the_bucket(scene: Scene) -> None:
    scene.open()
    assert json.loads(MemoryBucket(scene.store).read(KEY)[0]) == {
        "failures": [],
        "open_until": "2026-01-01T00:01:00Z",
        "opened_at": "2026-01-01T00:00:00Z",
        "code": "ERR_TEMPORARY_API_TIMEOUT",
        "probe": None,
        "probe_ordered": False,
    }


def test_closed_it_costs_one_read_a_call_and_a_failure_one_write(scene: Scene) -> None:
    breaker, bucket = scene.over()
    breaker.call(works)
    assert bucket.operations == [("read", KEY)]
    with pytest.raises(RobotError):
        breaker.call(fails)
    assert bucket.operations[1:] == [("read", KEY), ("read", KEY), ("write", KEY)]


def test_an_error_that_does_not_count_is_not_written(scene: Scene) -> None:
    breaker, bucket = scene.over()
    with pytest.raises(Refused):
        breaker.call(lambda: (_ for _ in ()).throw(Refused(Code.REJECTED, "banned")))
    assert [operation for operation, _ in bucket.operations] == ["read", "read"]


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_an_operators_probe_lets_exactly_one_call_through(scene: Scene) -> None:
    scene.open()
    assert scene.here().probe().probe_ordered
    with pytest.raises(RobotError):
        scene.here().call(fails)
    with pytest.raises(BreakerOpen):
        scene.here().call(works)
    scene.here().probe()
    assert scene.here().call(works) == "done"
    assert scene.phase is Phase.CLOSED


def test_an_operators_reset_closes_it(scene: Scene) -> None:
    scene.open()
    scene.here().reset()
    assert scene.here().call(works) == "done"


def test_closed_an_operators_probe_changes_nothing(scene: Scene) -> None:
    breaker, bucket = scene.over()
    assert breaker.probe().phase(scene.clock.now()) is Phase.CLOSED
    assert [operation for operation, _ in bucket.operations] == ["read"]


# --- when work ends abnormally ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [ZeroDivisionError, KeyboardInterrupt, SystemExit, StorageError])
def test_work_that_ends_in_a_way_that_says_nothing_leaves_the_probe_to_the_next(
    scene: Scene, end: type[BaseException]
) -> None:
    scene.half_open()

    def ends() -> str:
        raise end

    with pytest.raises(end):
        scene.here().call(ends)
    assert (scene.phase, scene.here().state().probe) == (Phase.HALF_OPEN, None)
    assert scene.here().call(works) == "done"


def test_while_the_probe_is_under_way_nobody_else_calls(scene: Scene) -> None:
    scene.half_open()

    def work() -> str:
        with pytest.raises(BreakerOpen, match=r"here:1#[0-9a-f]{8} has been trying since"):
            scene.here().call(works)
        return "done"

    assert scene.here().call(work) == "done"


# --- when the store is away -------------------------------------------------------------------------------------------


def test_a_breaker_that_cannot_be_asked_lets_calls_through(scene: Scene) -> None:
    scene.open()
    breaker, _ = scene.over(Fault(times=99))
    assert breaker.call(works) == "done"
    with pytest.raises(RobotError):
        breaker.call(fails)


@pytest.mark.parametrize("after", [False, True])
def test_a_result_is_not_lost_because_it_could_not_be_noted(scene: Scene, after: bool) -> None:
    scene.half_open()
    breaker, _ = scene.over(Fault(operation="write", number=2, after=after))
    assert breaker.call(works) == "done"


def test_a_result_is_not_lost_because_the_document_was_spoilt_meanwhile(scene: Scene) -> None:
    scene.half_open()

    def work() -> str:
        MemoryBucket(scene.store).write(KEY, b"{", ANY)
        return "paid for"

    assert scene.here().call(work) == "paid for"
    assert MemoryBucket(scene.store).read(KEY)[0] == b"{"


@pytest.mark.parametrize("after", [False, True])
def test_a_probe_that_could_not_be_noted_is_not_made(scene: Scene, after: bool) -> None:
    scene.half_open()
    breaker, _ = scene.over(Fault(operation="write", after=after))
    with pytest.raises(BreakerOpen, match="a probe could not be noted") as refused:
        breaker.call(works)
    assert refused.value.retry_after_s == 5
    assert scene.here().call(works) == "done", "it does not keep others from trying"


def test_an_invalid_document_is_reported_before_anything_is_called(scene: Scene) -> None:
    MemoryBucket(scene.store).write(KEY, b'{"open_until": "tomorrow"}', ANY)
    for work in (lambda: scene.here().call(fails), scene.here().probe, scene.here().state):
        with pytest.raises(
            StateError, match=r"breakers/appius\.json: open_until: 'tomorrow' is not a time. It is left"
        ):
            work()
    assert MemoryBucket(scene.store).read(KEY)[0] == b'{"open_until": "tomorrow"}'


def test_a_death_at_any_point_holds_nobody_up_for_good(scene: Scene) -> None:
    """Wherever a probe dies, once its time has run out somebody calls and the breaker closes."""
    for number in (1, 2, 3, 4, 5, 6):
        for after in (False, True):
            scene = Scene()
            scene.half_open()
            dying, bucket = scene.over(Fault(Crash, number=number, after=after))
            with suppress(Crash):
                dying.call(works)
            scene.clock.sleep(scene.policy.probe_s)
            assert scene.here().call(works) == "done"
            assert scene.phase is Phase.CLOSED
    assert len(bucket.operations) < number, "every operation was a death"


# --- many at once -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "bucket in memory", "directory"])
def test_one_of_many_threads_makes_the_probe(kind: str, tmp_path: Path) -> None:
    scene = Scene()
    one, clock = MemoryStateStore(), scene.clock
    clients: dict[str, Callable[[], Breaker]] = {
        "memory": lambda: scene.here(one),
        "bucket in memory": scene.here,
        "directory": lambda: scene.here(breakers_of(DirectoryBucket(str(tmp_path / "bucket")), clock)),
    }
    client = clients[kind]
    for _ in range(scene.policy.failures):
        with pytest.raises(RobotError):
            client().call(fails)
    clock.sleep(60)
    through, refused, barrier = list[str](), list[str](), threading.Barrier(8)

    def ask() -> None:
        breaker = client()
        barrier.wait()
        try:
            through.append(breaker.allow().who)
        except BreakerOpen as error:
            refused.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(through), len(refused)) == (1, 7)
    probe = client().state().probe
    assert probe is not None
    assert probe.who == through[0]


CHILD = """
import sys
from retake.bucket.directory import DirectoryBucket
from retake.clock import FakeClock
from retake.retrying.breaker import Breaker, BreakerOpen, breakers_of
clock = FakeClock()
clock.sleep(60)
breaker = Breaker("appius", breakers_of(DirectoryBucket(sys.argv[1]), clock), clock=clock, owner="child")
print("ready", flush=True)
sys.stdin.readline()
try:
    breaker.allow()
    print("through")
except BreakerOpen as error:
    print(error)
"""


def test_one_of_several_processes_makes_the_probe(scene: Scene, tmp_path: Path) -> None:
    """The process that makes it ends silently, so nobody else is let through before its time has run out."""
    breaker = scene.here(breakers_of(DirectoryBucket(str(tmp_path / "bucket")), scene.clock))
    for _ in range(10):
        with pytest.raises(RobotError):
            breaker.call(fails)
    said = said_at_once(CHILD, str(tmp_path / "bucket"), number=4)
    assert sorted(line == "through" for line in said) == [False, False, False, True], said
    scene.clock.sleep(60 + breaker.policy.probe_s)
    assert breaker.call(works) == "done"


def test_failures_of_several_machines_add_up(scene: Scene) -> None:
    error: CodedError | None = None
    for machine in range(10):
        breaker = Breaker(
            "appius", breakers_of(MemoryBucket(scene.store), scene.clock), clock=scene.clock, owner=f"machine-{machine}"
        )
        with pytest.raises(RobotError) as raised:
            breaker.call(fails)
        error = raised.value
        scene.clock.sleep(20)
    assert error is not None
    assert scene.phase is Phase.OPEN


def test_channels_share_the_breakers_at_the_root(scene: Scene) -> None:
    scene.open()
    assert breakers_of(MemoryBucket(scene.store), scene.clock).names() == ["appius"]
