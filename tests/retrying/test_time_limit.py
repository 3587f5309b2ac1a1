"""Calls that take too long: they are abandoned, their late results discarded, and never too many at a time.

No call here sleeps: one that hangs waits for an event, which its test sets once everything is checked.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from retake.clock import FakeClock
from retake.errors import Code, CodedError, OutcomeUnknown, Refused, RobotError
from retake.retrying import time_limit
from retake.retrying.backoff import Fixed
from retake.retrying.breaker import Breaker, BreakerPolicy, Phase
from retake.retrying.guard import Call, End, Guard
from retake.retrying.policy import RetryIf, RetryPolicy
from retake.retrying.state_store import MemoryStateStore
from retake.retrying.time_limit import MAX_ABANDONED, OutOfTime, Overrun, abandoned, within
from retake.robots.batch import BatchCall, Batches, Item, Parts
from retake.robots.batch_plan import Answer, BatchPolicy, ItemFate, Made
from retake.robots.creation import Creator
from retake.robots.creation import Parts as CreationParts

SOON_S = 0.02
ENOUGH_S = 2.0  # for a call that does nothing, on a busy machine
LONG_S = 30.0  # only reached when something is broken
ROOT = Path(__file__).parents[2]


class Hanging:
    """Work that hangs until the test is over, for `times` calls; then it returns `done`."""

    def __init__(self, times: int = 1_000) -> None:
        self.times = times
        self.begun = threading.Event()  # a caller may give up before its thread has come this far
        self.go_on = threading.Event()
        self.threads: list[threading.Thread] = []
        self.calls: list[object] = []

    def __call__(self, *given: object) -> str:
        self.calls.append(given[0] if given else None)
        if len(self.calls) > self.times:
            return "done"
        self.threads.append(threading.current_thread())
        self.begun.set()
        assert self.go_on.wait(LONG_S)
        return "late"

    def end(self) -> None:
        """End the abandoned calls, and wait for them."""
        self.go_on.set()
        end = time.monotonic() + LONG_S
        while abandoned() and time.monotonic() < end:  # even those whose threads have not come here yet
            time.sleep(0.01)
        for thread in self.threads:
            thread.join(LONG_S)


@pytest.fixture
def hanging() -> Iterator[Callable[..., Hanging]]:
    made: list[Hanging] = []

    def make(times: int = 1_000) -> Hanging:
        made.append(Hanging(times))
        return made[-1]

    yield make
    for it in made:
        it.end()
    assert abandoned() == 0


def guard(policy: RetryPolicy, **more: Any) -> Guard:
    return Guard(policy, FakeClock(), lambda: 0.5, **more)


# --- one call -------------------------------------------------------------------------------------------------------


def test_a_call_without_a_limit_is_made_where_it_is_asked_for() -> None:
    assert within(None, threading.current_thread) is threading.current_thread()


def test_a_call_with_a_limit_has_its_result_and_its_error() -> None:
    assert within(LONG_S, lambda: "done") == "done"
    with pytest.raises(ZeroDivisionError):
        within(LONG_S, lambda: 1 // 0)
    with pytest.raises(KeyboardInterrupt):
        within(1e300, interrupted)


def interrupted() -> None:
    raise KeyboardInterrupt


def test_a_call_that_hangs_is_abandoned_in_a_thread_that_keeps_nobody(hanging: Callable[..., Hanging]) -> None:
    work = hanging()
    with pytest.raises(OutOfTime, match=r"no result within 0\.02 s"):
        within(SOON_S, work)
    assert abandoned() == 1
    assert work.begun.wait(LONG_S)
    (thread,) = work.threads
    assert thread.daemon


def test_what_is_logged_is_logged_as_by_the_caller() -> None:
    said: ContextVar[str] = ContextVar("said", default="nothing")
    said.set("the generation's id")
    assert within(LONG_S, said.get) == "the generation's id"


def test_there_are_never_more_abandoned_calls_than_the_bound(
    hanging: Callable[..., Hanging], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_ABANDONED >= 8
    monkeypatch.setattr(time_limit, "MAX_ABANDONED", 3)
    work, made = hanging(), []
    for _ in range(3):
        with pytest.raises(OutOfTime):
            within(SOON_S, work)
    with pytest.raises(Refused, match="3 abandoned calls are still running"):
        within(LONG_S, lambda: made.append(1))
    assert made == []
    work.end()
    within(LONG_S, lambda: made.append(1))
    assert made == [1]


def test_a_thread_that_cannot_be_started_is_a_call_that_was_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(Refused, match="can't start new thread"):
        within(LONG_S, lambda: None)


def test_a_process_ends_although_a_call_of_it_hangs() -> None:
    code = (
        "import threading\n"
        "from retake.retrying.time_limit import OutOfTime, within\n"
        "try:\n    within(0.05, threading.Event().wait)\n"
        "except OutOfTime as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "no result within 0.05 s, and the call was abandoned\n")


# --- under a guard --------------------------------------------------------------------------------------------------


def test_the_outcome_of_an_abandoned_call_is_unknown_and_it_is_not_made_again(hanging: Callable[..., Hanging]) -> None:
    work = hanging()
    outcome = guard(RetryPolicy(3, Fixed(1.0), timeout_s=SOON_S)).outcome(work)
    assert work.begun.wait(LONG_S)
    assert (outcome.end, outcome.attempts, work.calls) == (End.UNKNOWN, 1, [Call(1, SOON_S)])
    assert isinstance(outcome.error, OutcomeUnknown)
    assert outcome.error.code is Code.TIMEOUT


def test_its_late_result_is_discarded(hanging: Callable[..., Hanging]) -> None:
    work, seen = hanging(times=1), []
    policy = RetryPolicy(3, Fixed(1.0), retry_if=RetryIf(codes=frozenset({Code.TIMEOUT})), timeout_s=ENOUGH_S)
    outcome = guard(policy, observe=lambda tried: seen.append((tried.attempt, type(tried.error)))).outcome(
        lambda call: work(call) if call.attempt == 1 else "the second"
    )
    work.end()
    assert (outcome.end, outcome.value, outcome.attempts) == (End.DONE, "the second", 2)
    assert seen == [(1, Overrun), (2, type(None))]


def test_a_policy_may_say_which_error_it_is_and_then_it_is_repeated(hanging: Callable[..., Hanging]) -> None:
    work = hanging(times=2)
    policy = RetryPolicy(3, Fixed(1.0), timeout_s=ENOUGH_S, timeout_code="ERR_TEMPORARY_1C_UNAVAILABLE")
    seen: list[CodedError | None] = []
    outcome = guard(policy, observe=lambda tried: seen.append(tried.error)).outcome(
        lambda call: work(call) if call.attempt < 3 else "the third"
    )
    assert (outcome.value, outcome.attempts) == ("the third", 3)
    assert [error and error.code for error in seen] == ["ERR_TEMPORARY_1C_UNAVAILABLE"] * 2 + [None]
    assert not isinstance(seen[0], OutcomeUnknown)


def test_a_breaker_is_notified(hanging: Callable[..., Hanging]) -> None:
    clock = FakeClock()
    breaker = Breaker("x", MemoryStateStore(), BreakerPolicy(failures=1), clock=clock, owner="test")
    guard(RetryPolicy(0, timeout_s=SOON_S), breaker=breaker).outcome(hanging())
    assert breaker.state().phase(clock.now()) is Phase.OPEN


# --- batches and creation -------------------------------------------------------------------------------------------


def test_a_batch_whose_call_hangs_is_not_sent_again_but_looked_for(hanging: Callable[..., Hanging]) -> None:
    work, there = hanging(), {"a": "a"}

    def send(sending: BatchCall) -> Mapping[str, Answer[str]]:
        work(sending)
        return {}

    def find(item: Item) -> str | None:
        return there.get(item.key) if work.calls else None

    policy = BatchPolicy(batch=RetryPolicy(3, timeout_s=ENOUGH_S), roll_back_above_percent=100)
    report = Batches(Parts(find, send, lambda item, made: None), policy, FakeClock(), lambda: 0.5).run(
        [Item("a", {}), Item("b", {})]
    )
    assert len(work.calls) == 1
    assert {key: it.fate for key, it in report.ended.items()} == {"a": ItemFate.CREATED, "b": ItemFate.FAILED}
    assert isinstance(report.ended["b"].error, Overrun)


def test_a_question_of_a_batch_that_hangs_is_asked_again(hanging: Callable[..., Hanging]) -> None:
    work = hanging(times=1)

    def find(item: Item) -> None:
        work(item)

    parts = Parts[str](find, lambda sending: {"a": Made("a")}, lambda item, made: None)
    policy = BatchPolicy(batch=RetryPolicy(3, timeout_s=ENOUGH_S))
    report = Batches(parts, policy, FakeClock(), lambda: 0.5).run([Item("a", {})])
    assert (report.ended["a"].fate, len(work.calls)) == (ItemFate.CREATED, 2)


def test_an_abandoned_creation_finishes_nothing_and_stays_unconfirmed(hanging: Callable[..., Hanging]) -> None:
    work, finished, clock = hanging(), [], FakeClock()
    parts = CreationParts[str](
        find=lambda key, data: None,
        make=lambda key, data, call: work(call),
        finish=lambda item, data: finished.append(item),
    )
    creator = Creator("thing", parts, Guard(RetryPolicy(2, timeout_s=ENOUGH_S), clock, lambda: 0.5), clock)
    with pytest.raises(Overrun):
        creator.create({"length": 10})
    work.end()
    assert (len(work.calls), finished, len(creator.unconfirmed.all())) == (1, [], 1)


def test_other_errors_are_what_they_were(hanging: Callable[..., Hanging]) -> None:
    def work(call: Call) -> None:
        raise RobotError("ERR_BUSINESS_X", "no")

    outcome = guard(RetryPolicy(2, timeout_s=LONG_S)).outcome(work)
    assert (outcome.end, str(outcome.error)) == (End.NOT_RETRYABLE, "no")
