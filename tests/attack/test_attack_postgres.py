"""PostgreSQL is killed and restarted in the middle of transitions, of workers' jobs, and of ticks.

The invariants: each acknowledged transition is there, none is there twice, every error means "try again" (exit code
75), and work continues when the server is back. Nothing waits for a fixed time: the server is killed after a number of
transitions, or by the job or vendor call that its death is to interrupt.
"""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent.parent
sys.path += [str(TESTS / room) for room in ("runs", "cron") if str(TESTS / room) not in sys.path]

from cron_machine import ID, Machine, serving  # noqa: E402
from local_servers import or_skipped  # noqa: E402
from postgres import Server, new_database, running  # noqa: E402
from together import at_once  # noqa: E402

from retake.clock import FakeClock, SystemClock  # noqa: E402
from retake.errors import StorageError, StorageKeyRefused  # noqa: E402
from retake.retrying.policy import RetryPolicy  # noqa: E402
from retake.runs.recovery import Recovery  # noqa: E402
from retake.runs.run import CHANGED, Run, StaleRun  # noqa: E402
from retake.runs.run_handle import RunHandle  # noqa: E402
from retake.runs.sql_ledger import SqlLedger, open_sql_ledger  # noqa: E402
from retake.runs.states import START, TRANSITIONS, RunStatus, Trigger  # noqa: E402
from retake.runs.worker import LATE, RESULT, Worker  # noqa: E402

DURABLE = ("fsync=off", "full_page_writes=off")
"""Committed data must survive the death of the server, not that of the machine."""

THREADS = 4
RUNS_EACH = 6
LATENESS = 8
"""A death that is due lets this many transitions continue, so that it comes in the middle of one."""

WAY = (
    Trigger.WORKER_CLAIM,
    Trigger.RETRYABLE_ERROR,
    Trigger.RETRY_DUE,
    Trigger.PROCESS_RESTART,
    Trigger.RECOVERY_RESUME,
)
"""The states that each run passes through before it succeeds."""


@pytest.fixture(scope="module")
def started() -> Iterator[Server]:
    with or_skipped(), running(*DURABLE) as server:
        yield server


@pytest.fixture
def server(started: Server) -> Server:
    """Return the running server, whatever the previous test left behind."""
    if not started.running:
        started.start()
    return started


@pytest.fixture(params=["kill", "stop"])
def end(request: pytest.FixtureRequest, server: Server) -> Callable[[], None]:
    """Return a function that ends the server: SIGKILL of its postmaster, or an immediate stop. Nothing answers
    afterwards."""
    return server.kill_all if request.param == "kill" else server.stop


@pytest.fixture(params=["kill", "stop"])
def death(request: pytest.FixtureRequest, server: Server) -> Callable[[], None]:
    """Like `end`, but the children of a killed postmaster may answer for a moment longer."""
    return server.kill if request.param == "kill" else server.stop


@pytest.fixture
def url(server: Server) -> str:
    return new_database(server.base)


@pytest.fixture
def connect(url: str) -> Iterator[Callable[..., SqlLedger]]:
    opened: list[SqlLedger] = []

    def connect(clock: Any = None) -> SqlLedger:
        opened.append(open_sql_ledger(url, clock or SystemClock()))
        return opened[-1]

    yield connect
    for ledger in opened:
        ledger.close()


Connect = Callable[..., SqlLedger]


class Deaths:
    """Ends and restarts the server, each time after a number of transitions."""

    def __init__(self, server: Server, end: Callable[[], None], kill_after: tuple[int, ...] = (15, 45, 75)) -> None:
        self._kill_after = kill_after
        self.acknowledged: list[str] = []  # the trace ids of the transitions that the ledger acknowledged
        self.errors: list[StorageError] = []
        self._server, self._end = server, end
        self._progress = threading.Condition()
        self._ended = 0
        self._failed = False

    def made(self, trace_id: str) -> None:
        """Record a transition. Wait for a death that is late, so that it does not come after the work is done."""
        with self._progress:
            self.acknowledged.append(trace_id)
            self._progress.notify_all()
            self._progress.wait_for(lambda: self._failed or not self._is_late(), 120)

    def _is_late(self) -> bool:
        due = self._kill_after[self._ended : self._ended + 1]
        return any(len(self.acknowledged) >= number + LATENESS for number in due)

    def failed(self, error: StorageError) -> None:
        """Record an error. Raise AssertionError if the server does not come back, as asking again would be in vain."""
        assert not self._failed, error
        self.errors.append(error)

    def happen(self) -> None:
        try:
            for number in self._kill_after:
                with self._progress:
                    assert self._progress.wait_for(lambda number=number: len(self.acknowledged) >= number, 120)
                self._end()
                with self._progress:
                    self._ended += 1
                    self._progress.notify_all()
                self._server.start()
        except BaseException:
            with self._progress:
                self._failed = True
                self._progress.notify_all()
            raise


def lead(ledger: SqlLedger, task: str, deaths: Deaths) -> None:
    """Take a run of `task` to its end, asking again until each transition is there."""
    tries = 0
    while True:
        trace = f"{task} try {(tries := tries + 1)}"
        try:
            run = ledger.create_for_task(task, f"{task}#1", actor="cron")
            if run.ended:
                return
            done = run.version - 1
            trigger = WAY[done] if done < len(WAY) else Trigger.COMPLETED
            due = run.updated_at if trigger is Trigger.RETRYABLE_ERROR else None
            ledger.move(run, trigger, actor="cron", worker="w", next_retry_at=due, trace_id=trace)
            deaths.made(trace)
        except StorageError as error:
            deaths.failed(error)
        except StaleRun as error:  # nobody else moves this run
            raise AssertionError(f"{trace}: a run that was just read is stale: {error}") from error


def check_history(ledger: SqlLedger, run: Run) -> None:
    """Check that every transition and its event is there once, and that they lead to the run's state."""
    events = ledger.events(run.run_id)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    changes = [event.payload for event in events if event.kind == CHANGED]
    status: RunStatus | None = None
    for it in changes:
        after = RunStatus(it["status"])
        assert it["previous_status"] == (status.value if status else None)
        assert after in {end for (start, _), end in TRANSITIONS.items() if start is status} or after is START
        status = after
    assert (status, len(changes)) == (run.status, run.version)


def check_errors(errors: list[StorageError]) -> None:
    for error in errors:
        assert error.exit_code == 75, error
        assert not isinstance(error, StorageKeyRefused)
        assert "Traceback" not in str(error)


def test_no_transition_is_lost_or_doubled(connect: Connect, server: Server, death: Callable[[], None]) -> None:
    deaths = Deaths(server, death)
    connect()  # creates the tables

    def work(name: int, ledger: SqlLedger) -> None:
        for number in range(RUNS_EACH):
            lead(ledger, f"{name}.{number}", deaths)

    clients = [(name, connect()) for name in range(THREADS)]  # while there is a server to connect to
    at_once([*(lambda it=it: work(*it) for it in clients), deaths.happen])
    assert deaths.errors
    check_errors(deaths.errors)
    ledger = connect()
    runs = ledger.runs(limit=100)
    assert Counter(run.status for run in runs) == {RunStatus.SUCCEEDED: THREADS * RUNS_EACH}
    assert {(run.version, run.retries, run.crashes) for run in runs} == {(len(WAY) + 2, 1, 1)}
    traces = Counter(event.trace_id for run in runs for event in ledger.events(run.run_id))
    assert [trace for trace in deaths.acknowledged if traces[trace] != 1] == []
    for run in runs:
        check_history(ledger, run)


# --- workers --------------------------------------------------------------------------------------------------------


class Reviving(SystemClock):
    """A clock that restarts the server once a worker has slept `naps` times without it."""

    def __init__(self, server: Server, naps: int) -> None:
        self.naps = naps
        self._server = server
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == self.naps and not self._server.running:
            self._server.start()


class Brisk(SystemClock):
    """A clock on which nobody waits long, so what is tried only a few times is often given up."""

    def sleep(self, seconds: float) -> None:
        super().sleep(min(seconds, 0.05))


@pytest.mark.parametrize("naps", [1, 3])
def test_the_end_of_a_job_is_saved_when_the_server_is_back(
    connect: Connect, server: Server, end: Callable[[], None], naps: int
) -> None:
    """The server dies in the middle of the first job. The worker saves how it ended, and continues with the second."""
    clock, paid = Reviving(server, naps), []
    ledger = connect(clock)
    runs = [ledger.create_for_task(name, f"{name}#1", actor="cron") for name in ("a", "b")]

    def job(handle: RunHandle) -> Mapping[str, Any]:
        paid.append(handle.run.task_id)
        if len(paid) == 1:
            end()
        return {"number": len(paid)}

    assert Worker(ledger, job, RetryPolicy(0), clock, name="host:1").work(until_idle=True) == 2
    assert (paid, len(clock.slept) >= naps) == (["a", "b"], True)
    for run in runs:
        kinds = [event.payload.get("status", event.kind) for event in connect().events(run.run_id)]
        assert kinds == ["queued", "running", RESULT, "succeeded"]


def test_a_worker_asks_for_work_until_the_server_is_back(
    connect: Connect, server: Server, end: Callable[[], None]
) -> None:
    clock = Reviving(server, 4)
    ledger = connect(clock)
    ledger.create_for_task("a", "a#1", actor="cron")
    end()
    assert Worker(ledger, lambda handle: None, RetryPolicy(0), clock, name="host:1").work(until_idle=True) == 1
    assert ledger.counts()[RunStatus.SUCCEEDED] == 1


def test_a_worker_that_is_to_work_until_nothing_waits_says_that_the_ledger_stays_away(
    connect: Connect, end: Callable[[], None]
) -> None:
    """The worker does not mistake an absent server for a lack of work."""
    clock = FakeClock()
    ledger = connect(clock)
    end()
    with pytest.raises(StorageError) as refusal:
        Worker(ledger, lambda handle: None, RetryPolicy(0), clock, name="host:1").work(until_idle=True)
    check_errors([refusal.value])


def test_whoever_is_killed_when_each_run_succeeds_once_and_is_paid_for_once(
    connect: Connect, server: Server, death: Callable[[], None]
) -> None:
    """Several workers run, with recovery for claims left behind and endings of unknown outcome."""
    ledger, lock, paid = connect(), threading.Lock(), Counter[str]()
    deaths = Deaths(server, death, kill_after=(5, 15, 25))
    names = [f"task {number}" for number in range(40)]
    for name in names:
        ledger.create_for_task(name, f"{name}#1", actor="cron")

    def job(handle: RunHandle) -> Mapping[str, Any]:
        with lock:
            key = handle.run.idempotency_key
            paid[key] += not paid[key]  # as every job does: it checks whether it is paid for
        deaths.made(key)
        return {"paid": key}

    def work(name: str, ours: SqlLedger) -> None:
        often = {"max_resumes": 1000}  # the death of the server is no fault of a run
        recovery = Recovery(ours, SystemClock(), patience_s=0.5, **often)
        more = {"name": name, "heartbeat_s": 0.05, "recovery": recovery, **often}
        worker = Worker(ours, job, RetryPolicy(0), Brisk(), **more)
        while True:
            try:
                worker.work(until_idle=True, idle_s=0.05)
                if ours.counts()[RunStatus.SUCCEEDED] == len(names):
                    return
            except StorageError as error:
                deaths.failed(error)

    clients = [(f"w{number}", connect()) for number in range(3)]
    at_once([*(lambda it=it: work(*it) for it in clients), deaths.happen])
    check_errors(deaths.errors)
    assert set(paid.values()) == {1}
    ledger = connect()  # the connection of the old one was cut
    for run in ledger.runs(limit=100):
        check_history(ledger, run)
        kinds = Counter(event.kind for event in ledger.events(run.run_id))
        assert (run.status, kinds[RESULT]) == (RunStatus.SUCCEEDED, 1), (run, kinds[LATE])


# --- ticks ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path, url: str) -> Iterator[Machine]:
    vendors = serving(0)
    machine = Machine(tmp_path, next(vendors))
    machine.set(STORAGE={"url": "file:bucket", "ledger": url})
    yield machine
    machine.end()
    next(vendors, None)


def test_a_tick_without_its_ledger_pays_nothing(
    machine: Machine, connect: Connect, server: Server, end: Callable[[], None]
) -> None:
    machine.plant("imagine")
    end()
    for _ in range(2):
        tick = machine.tick()
        assert tick.exit_code == 75, tick.err
        assert "Check that the server is running" in tick.error
        assert machine.calls() == []
    server.start()
    assert machine.until_done().exit_code == 0
    assert [machine.billed(kind) for kind in ("imagine", "upscale", "runway")] == [1, 1, 1]
    assert connect().counts()[RunStatus.SUCCEEDED] == 1


@pytest.mark.parametrize("kind", ["imagine", "upscale", "runway"])
def test_a_tick_whose_ledger_dies_amid_a_paid_call_makes_no_other(
    machine: Machine, connect: Connect, server: Server, end: Callable[[], None], kind: str
) -> None:
    """The cost cannot be recorded, so nothing else is paid for until it is."""
    machine.plant("imagine")
    paid = ("imagine", "upscale", "runway")

    def die(call: Any) -> None:
        if call.kind == kind and server.running:
            end()

    machine.vendors.on_call = die
    tick = machine.tick()
    assert tick.exit_code == 75, tick.err
    before = [1 if number <= paid.index(kind) else 0 for number in range(3)]
    assert [machine.billed(it) for it in paid] == before
    assert machine.tick().exit_code == 75
    assert [machine.billed(it) for it in paid] == before
    server.start()
    assert machine.until_done().exit_code == 0
    assert [machine.billed(it) for it in paid] == [1, 1, 1]
    ledger = connect()
    [run] = ledger.of_task(ID)
    assert run.status is RunStatus.SUCCEEDED
    check_history(ledger, run)
    done = [event.payload["step"] for event in ledger.events(run.run_id) if event.kind == "run.step.done"]
    assert done == ["content", "imagine", "upscale", "runway"]
