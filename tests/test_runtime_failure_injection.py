"""Each failure mode, end to end, on every store: what happens to a run, event by event, and what is paid for.

The payments in these tests go to a vendor that counts them; the job checks whether its run is already paid for.
"""

import doctest
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from retake.bucket.directory import DirectoryBucket
from retake.bucket.failing import Crash
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.clock import FakeClock
from retake.errors import Code, ErrorClass, OutcomeUnknown, PollFailed, Refused
from retake.retrying.backoff import Exponential
from retake.retrying.policy import RetryIf, RetryPolicy
from retake.runs import Ledger, failure_injection
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.failure_injection import MODES, FailureInjection, Injection, inject, parse_injection
from retake.runs.recovery import MAX_RESUMES, PATIENCE_S, Recovery
from retake.runs.run import CHANGED, ERROR, Run
from retake.runs.run_handle import RunHandle
from retake.runs.sql_ledger import open_sql_ledger
from retake.runs.states import RunStatus
from retake.runs.worker import RESULT, Worker

Connect = Callable[[], Ledger]
POLICY = RetryPolicy(max_retries=3, backoff=Exponential(2.0, 4.0))


@pytest.fixture(params=["memory", "directory", "sqlite", "postgresql"])
def connect(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> Iterator[Connect]:
    """Yield a function that opens another client of the same store, as another process would."""
    if request.param == "memory":
        store = MemoryStore()
        yield lambda: BucketLedger(MemoryBucket(store), clock)
    elif request.param == "directory":
        yield lambda: BucketLedger(DirectoryBucket(str(tmp_path / "bucket")), clock)
    else:
        sqlite = request.param == "sqlite"
        url = f"sqlite:{tmp_path}/runs.db" if sqlite else request.getfixturevalue("database_url")
        opened = [open_sql_ledger(url, clock)]
        yield lambda: opened.append(open_sql_ledger(url, clock)) or opened[-1]  # type: ignore[func-returns-value]
        for ledger in opened:
            ledger.close()


class Vendor:
    """A vendor that records what was paid for, by idempotency key, and how often."""

    def __init__(self) -> None:
        self.paid: Counter[str] = Counter()

    def pay(self, key: str) -> str:
        self.paid[key] += 1
        return f"picture {sum(self.paid.values())} of {key}"

    def job(self, pay: Callable[[str], str]) -> Callable[[RunHandle], Mapping[str, Any]]:
        def job(handle: RunHandle) -> Mapping[str, Any]:
            key = handle.run.idempotency_key
            handle.check()
            return {"picture": f"known of {key}" if self.paid[key] else pay(key)}

        return job


class World:
    """A waiting run, the workers that execute it, and their common clock."""

    def __init__(self, connect: Connect, clock: FakeClock, *orders: str, policy: RetryPolicy = POLICY) -> None:
        self.connect, self.clock, self.policy = connect, clock, policy
        self.vendor = Vendor()
        self.injection = FailureInjection(*orders)
        self.pay = self.injection.around("pay", self.vendor.pay)
        self.job = self.injection.around("job", self.vendor.job(self.pay))
        self.run_id = connect().create_for_task("night", "night#1", actor="cron", pipeline="pictures").run_id

    def worker(self, name: str) -> Worker:
        """Return a worker, as if in a process of its own."""
        return Worker(self.connect(), self.job, self.policy, self.clock, name=name, draw=lambda: 0.5)

    def work(self, name: str = "worker 1") -> Run | None:
        return self.worker(name).work_once()

    def die(self, name: str) -> None:
        with pytest.raises(Crash):
            self.work(name)

    @property
    def run(self) -> Run:
        return self.connect().get(self.run_id)

    def history(self) -> list[str]:
        """Return each event in one to three words."""
        words = []
        for event in self.connect().events(self.run_id):
            it = event.payload
            kinds = {ERROR: f"error {it.get('error_code')}", RESULT: f"result {it.get('picture')}"}
            moved = f"{it.get('previous_status')} → {it.get('status')} by {it.get('actor')}"
            words.append(moved if event.kind == CHANGED else kinds.get(event.kind, event.kind))
        return words


BEGUN = ["None → queued by cron", "queued → running by worker"]


# --- timeout ----------------------------------------------------------------------------------------------------


def test_after_a_timeout_the_run_is_tried_again_when_its_policy_says(connect: Connect, clock: FakeClock) -> None:
    world = World(connect, clock, "pay#1=timeout")
    failed = world.work()
    assert failed is not None
    assert (failed.status, failed.attempt, failed.error_code) == (RunStatus.RETRY_SCHEDULED, 1, Code.TIMEOUT)
    assert failed.next_retry_at is not None
    assert (failed.next_retry_at - clock.now()).total_seconds() == 2
    assert world.work() is None  # not yet
    clock.sleep(2)
    done = world.work()
    assert done is not None
    assert (done.status, done.attempt, done.error_code) == (RunStatus.SUCCEEDED, 2, None)
    assert world.history() == [
        *BEGUN,
        "running → retry_scheduled by worker",
        "error ERR_TEMPORARY_TIMEOUT",
        "retry_scheduled → running by worker",
        "result picture 1 of night#1",
        "running → succeeded by worker",
    ]
    assert world.vendor.paid == {"night#1": 1}


def test_a_timeout_after_the_work_may_have_been_paid_for_and_is_not_repeated(
    connect: Connect, clock: FakeClock
) -> None:
    world = World(connect, clock, "pay#1=timeout-after")
    failed = world.work()
    assert failed is not None
    assert failed.status is RunStatus.FAILED
    assert world.history() == [*BEGUN, "running → failed by worker", "error ERR_TEMPORARY_TIMEOUT"]
    (action,) = world.connect().events(world.run_id)[-1].payload["recovery_actions"]
    assert (action["action"], action["recipient"]) == ("ESCALATE", "operator")
    assert "nobody can tell" in action["what"]
    assert world.vendor.paid == {"night#1": 1}


def test_a_policy_that_names_the_code_repeats_it_and_the_job_does_not_pay_again(
    connect: Connect, clock: FakeClock
) -> None:
    policy = POLICY._replace(retry_if=RetryIf(codes=frozenset({Code.TIMEOUT})))
    world = World(connect, clock, "pay#1=timeout-after", policy=policy)
    world.work()
    clock.sleep(2)
    world.work()
    assert world.history()[-2:] == ["result known of night#1", "running → succeeded by worker"]
    assert world.vendor.paid == {"night#1": 1}


# --- transient_error --------------------------------------------------------------------------------------------


def test_a_transient_error_passes(connect: Connect, clock: FakeClock) -> None:
    world = World(connect, clock, "pay#1-2=transient_error")
    waits = []
    while not world.run.ended:
        world.work()
        if due := world.run.next_retry_at:
            waits.append((due - clock.now()).total_seconds())
            clock.sleep(waits[-1])
    assert waits == [2, 8]
    again = ["running → retry_scheduled by worker", "error ERR_TEMPORARY_UNAVAILABLE"]
    taken = "retry_scheduled → running by worker"
    end = ["result picture 1 of night#1", "running → succeeded by worker"]
    assert world.history() == [*BEGUN, *again, taken, *again, taken, *end]
    assert world.run.attempt == 3


def test_one_that_does_not_pass_ends_when_the_repeats_are_used_up(connect: Connect, clock: FakeClock) -> None:
    world = World(connect, clock, "pay=transient_error")
    attempts = world.worker("worker 1").work(idle_s=1, until_idle=True)
    while not world.run.ended:
        clock.sleep(32)
        attempts += world.worker("worker 1").work(until_idle=True)
    assert (attempts, world.run.attempt, world.run.status) == (4, 4, RunStatus.FAILED)
    last = world.connect().events(world.run_id)[-1].payload
    assert (last["details"]["retry_count"], last["error_class"]) == (3, "A")
    assert not world.vendor.paid


# --- process_restart_interrupt ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("order", "result"), [("", "picture 1 of night#1"), ("-after", "known of night#1")])
@pytest.mark.parametrize("where", ["pay", "job"])
def test_what_a_dead_process_began_goes_on_elsewhere_and_is_paid_for_once(
    connect: Connect, clock: FakeClock, where: str, order: str, result: str
) -> None:
    world = World(connect, clock, f"{where}#1=process_restart_interrupt{order}")
    recovery = Recovery(world.connect(), clock)
    world.die("worker 1")
    assert world.history() == BEGUN  # it is dead and silent

    clock.sleep(PATIENCE_S)
    assert recovery.sweep() == ([], [])  # it may still be alive
    assert world.work("worker 2") is None
    clock.sleep(1)
    assert [run.status for run in recovery.sweep().interrupted] == [RunStatus.INTERRUPTED]
    done = world.work("worker 2")
    assert done is not None
    assert (done.status, done.attempt, done.resumes) == (RunStatus.SUCCEEDED, 1, 1)
    assert world.history() == [
        *BEGUN,
        "running → interrupted by recovery",
        "error ERR_TEMPORARY_SCRIPT_DIED",
        "interrupted → running by worker",
        f"result {result}",
        "running → succeeded by worker",
    ]
    assert world.vendor.paid == {"night#1": 1}


def test_a_worker_sweeps_up_after_a_dead_one_by_itself(connect: Connect, clock: FakeClock) -> None:
    world = World(connect, clock, "job#1=process_restart_interrupt")
    world.die("worker 1")
    clock.sleep(PATIENCE_S + 1)
    ledger = world.connect()
    second = Worker(ledger, world.job, POLICY, clock, name="worker 2", recovery=Recovery(ledger, clock))
    assert second.work(until_idle=True) == 1
    assert world.run.status is RunStatus.SUCCEEDED


def test_a_run_that_ends_every_worker_is_given_up(connect: Connect, clock: FakeClock) -> None:
    world = World(connect, clock, "job=process_restart_interrupt")
    recovery = Recovery(world.connect(), clock)
    for number in range(1 + MAX_RESUMES):
        assert not world.run.ended
        world.die(f"worker {number}")
        clock.sleep(PATIENCE_S + 1)
        recovery.sweep()
    assert world.history()[-4:] == [
        "running → interrupted by recovery",
        "error ERR_TEMPORARY_SCRIPT_DIED",
        "interrupted → failed by recovery",
        "error ERR_TEMPORARY_SCRIPT_DIED",
    ]
    assert world.work("worker 9") is None


def test_one_thing_after_another_goes_wrong(connect: Connect, clock: FakeClock) -> None:
    world = World(
        connect, clock, "pay#1=timeout", "pay#2=process_restart_interrupt", "pay#3=transient_error", "job#4=timeout"
    )
    recovery = Recovery(world.connect(), clock)
    for number in range(40):
        with suppress(Crash):
            world.work(f"worker {number}")
        clock.sleep(10)
        recovery.sweep()
    assert world.run.status is RunStatus.SUCCEEDED
    assert world.vendor.paid == {"night#1": 1}
    states = [it.split(" by ")[0].split(" → ")[1] for it in world.history() if " → " in it]
    assert Counter(states) == {"queued": 1, "running": 5, "retry_scheduled": 3, "interrupted": 1, "succeeded": 1}


# --- the orders -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_calls_that_are_not_meant_are_made(mode: str) -> None:
    made: list[int] = []
    call = inject(made.append, f"job#2,4-5={mode}")
    failed = []
    for number in range(1, 7):
        try:
            call(number)
        except (Refused, Crash):
            failed.append(number)
    assert (made, failed) == ([1, 3, 6], [2, 4, 5])


@pytest.mark.parametrize(
    ("mode", "error", "code"),
    [
        ("timeout", Refused, Code.TIMEOUT),
        ("timeout-after", OutcomeUnknown, Code.TIMEOUT),
        ("transient_error", Refused, Code.UNAVAILABLE),
    ],
)
def test_an_error_says_what_is_known_of_the_work(mode: str, error: type[Refused], code: Code) -> None:
    made: list[int] = []
    with pytest.raises(error) as raised:
        inject(made.append, f"job={mode}")(1)
    assert (raised.value.code, raised.value.error_class) == (code, ErrorClass.TEMPORARY)
    assert made == ([1] if mode.endswith("after") else [])


def test_what_a_timeout_is_can_be_said() -> None:
    with pytest.raises(PollFailed):
        inject(print, "poll=timeout", name="poll", timeout_as=PollFailed)()


def test_what_fails_by_itself_fails_as_it_does() -> None:
    def broken() -> None:
        raise ValueError("by itself")

    with pytest.raises(ValueError, match="by itself"):
        inject(broken, "job=process_restart_interrupt-after")()


def test_of_several_orders_for_a_call_the_first_has_it() -> None:
    with pytest.raises(Crash):
        inject(print, "job#1=process_restart_interrupt", "job=timeout")()


@pytest.mark.parametrize("text", ["job#2=timeout", "job=transient_error", "a#1-3,5=process_restart_interrupt-after"])
def test_an_order_is_read_as_it_was_written(text: str) -> None:
    assert str(parse_injection(text)) == text


def test_an_order_is_a_value() -> None:
    assert parse_injection("job=timeout-after") == Injection("job", "timeout", after=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("job", "NAME[#CALLS]=MODE"),
        ("job=explode", "'explode'"),
        ("job=transient_error-after", "'transient_error-after'"),
        ("job#0=timeout", "counted from 1"),
        ("pay=timeout", "pay: no call has that name here, only job"),
    ],
)
def test_a_wrong_order_says_what_is_possible(text: str, said: str) -> None:
    with pytest.raises(ValueError) as refusal:
        inject(print, text)
    assert said in str(refusal.value)


def test_the_example_runs() -> None:
    assert doctest.testmod(failure_injection) == (0, 5)
