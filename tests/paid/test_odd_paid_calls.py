"""Paid calls of programs that do odd things: errors and answers of every kind, async functions, threads, nested
calls."""

import logging
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from forking import forking

from retake.bucket import open_bucket
from retake.bucket.memory import MemoryBucket
from retake.clock import SystemClock
from retake.errors import CapReached, Code, LeaseHeld, OutcomeUnknown, PollFailed, Refused
from retake.paid import plain_process
from retake.paid.guard import DROP, HOLD, RETRY
from retake.paid.paid_calls import BegunCall, PaidCalls, PlainProcess
from retake.retrying.guard import Guard
from retake.retrying.policy import RetryPolicy
from retake.testing import CapturedLogs


class Untold(Exception):
    def __str__(self) -> str:
        return str(self.args[0])


class Hidden:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def posters(**options: Any) -> PaidCalls:
    return PaidCalls(MemoryBucket(), "posters", {"text": 0.01, "poster": 0.04}, **options)


def raising(error: BaseException) -> Callable[..., Any]:
    def ask(*_: object) -> Any:
        raise error

    return ask


@pytest.mark.parametrize(
    "error", [Untold(), PollFailed(Code.NETWORK, "cut"), RecursionError(), CapReached("another cap"), LeaseHeld("x")]
)
def test_an_error_that_does_not_say_what_became_of_the_call_leaves_it_unknown(error: Exception) -> None:
    with posters() as paid:
        with pytest.raises(OutcomeUnknown, match=f"may have been paid for .{type(error).__name__}"):
            paid.call("aurora", "poster", raising(error))
        assert paid.pending
        assert paid.pending.held


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_what_ends_the_program_leaves_the_call_pending(error: BaseException) -> None:
    with posters() as paid:
        with pytest.raises(type(error)):
            paid.call("aurora", "poster", raising(error))
        with pytest.raises(OutcomeUnknown, match="nobody can tell"):
            paid.call("aurora", "poster", lambda: "never")


def nested(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (b"\xff", r"b'\xff'"),
        (datetime(2026, 1, 1), "datetime.datetime(2026, 1, 1, 0, 0)"),
        (Hidden(), "whose repr raises RuntimeError"),
        (nested(100_000), "whose repr raises RecursionError"),
        (10**5000, "whose repr raises ValueError"),
    ],
    ids=["bytes", "time", "without repr", "deep", "long"],
)
def test_part_of_an_answer_that_is_not_json_is_kept_with_a_warning(answer: Any, kept: str) -> None:
    with CapturedLogs() as log, posters() as paid:
        assert str(paid.call("aurora", "poster", lambda: answer)).endswith(kept)
        assert str(paid.call("aurora", "poster", lambda: "never")).endswith(kept)
    [warning] = log.warnings
    assert warning.startswith("of a paid answer only its repr is kept: ")


async def order() -> str:
    return "poster-1"


def test_an_async_function_is_refused_as_a_call_that_was_not_made() -> None:
    with posters() as paid:
        for ask in (order, lambda: order()):
            with pytest.raises(Refused, match="`ask` is async") as refused:
                paid.call("aurora", "poster", ask)
            assert refused.value.code == Code.CONFIGURATION
        assert paid.call("aurora", "poster", lambda: "poster-2") == "poster-2"


def test_an_async_find_finds_nothing() -> None:
    async def find(call: BegunCall) -> str:
        return "poster-1"

    with posters(find=find) as paid:
        for _ in range(2):
            with pytest.raises(TypeError, match="`find` is async"):
                paid.call("aurora", "poster", raising(ConnectionError("cut")))
        assert paid.pending


def test_while_find_is_refused_the_call_stays_undecided_and_nothing_is_paid_for() -> None:
    with posters(find=raising(Refused(Code.UNAUTHORIZED, "the key is refused"))) as paid:
        for ask in (raising(ConnectionError("cut")), lambda: "never"):
            with pytest.raises(Refused, match="the key is refused"):
                paid.call("aurora", "poster", ask)
        assert paid.pending


def test_an_answer_in_the_place_of_a_function_is_refused_before_anything_is_on_record() -> None:
    with posters() as paid:
        with pytest.raises(TypeError, match="ask is to be a function that makes the call; found str"):
            paid.call("aurora", "poster", "poster-1")  # type: ignore[arg-type]
        assert paid.pending is None


def test_outside_of_its_with_nothing_is_paid_for() -> None:
    with posters() as left:
        left.call("aurora", "poster", lambda: "poster-1")
    assert left.pending is None
    never = posters()
    acts = [
        *(lambda paid=paid: paid.call("aurora", "poster", lambda: "never") for paid in (left, never)),
        *(lambda paid=paid: paid.resolve(DROP) for paid in (left, never)),
        lambda: never.pending,
    ]
    for act in acts:
        with pytest.raises(RuntimeError, match="inside of `with PaidCalls"):
            act()


@pytest.mark.parametrize("seconds", [float("inf"), 1e12, 0, -5])
def test_any_time_that_a_call_may_take_lets_the_with_end(seconds: float) -> None:
    with posters(call_timeout_s=seconds) as paid:
        assert paid.call("aurora", "poster", lambda: "poster-1") == "poster-1"


@pytest.mark.slow
def test_a_fork_of_the_process_pays_for_nothing(tmp_path: Path) -> None:
    program = """
from retake.bucket import open_bucket
from retake.paid.paid_calls import PaidCalls

def pay(who):
    print(paid.call(who, "poster", lambda: f"poster of the {who}"), flush=True)

with PaidCalls(open_bucket(sys.argv[1]), "posters", {"poster": 0.04}, on_unknown="retry") as paid:
    in_both(pay)
"""
    said = forking(program, f"file:{tmp_path}")
    assert "poster of the parent\n" in said
    assert "child: RuntimeError('posters: make paid calls inside of `with PaidCalls" in said
    assert "poster of the child" not in said


def test_the_room_that_was_set_aside_for_an_answer_is_given_back(tmp_path: Path) -> None:
    left = list[list[Path]]()
    with PaidCalls(open_bucket(f"file:{tmp_path}"), "posters", {"poster": 0.04}) as paid:
        for _ in range(2):
            with pytest.raises(Refused):
                paid.call("aurora", "poster", raising(Refused(Code.UNAVAILABLE, "HTTP 503")))
            left.append(sorted(tmp_path.rglob("*")))
    assert left[0] == left[1]


@pytest.mark.parametrize("rule", [HOLD, RETRY, DROP])
def test_a_call_within_a_call_is_refused_and_changes_nothing_of_the_outer_one(rule: str) -> None:
    with posters(on_unknown=rule) as paid:

        def outer() -> str:
            with pytest.raises(LeaseHeld, match="another call is under way"):
                paid.call("text", "text", lambda: "never")
            with pytest.raises(LeaseHeld):
                paid.resolve(RETRY)
            return "poster-1"

        assert paid.call("aurora", "poster", outer) == "poster-1"
        assert paid.call("text", "text", lambda: "text-1") == "text-1"


@pytest.mark.parametrize("rule", [HOLD, RETRY, DROP])
def test_one_of_two_threads_pays_and_the_other_is_told_so(rule: str) -> None:
    """A guard whose policy has a time limit leaves such a thread behind, and calls again."""
    asked, go_on, answers = threading.Event(), threading.Event(), list[str]()

    def slow() -> str:
        asked.set()
        assert go_on.wait(60)
        return "poster-1"

    with posters(on_unknown=rule) as paid:
        first = threading.Thread(target=lambda: answers.append(paid.call("aurora", "poster", slow)))
        first.start()
        assert asked.wait(60)
        for key in ("aurora", "comet"):
            with pytest.raises(LeaseHeld, match="another call is under way"):
                paid.call(key, "poster", lambda: "never")
        go_on.set()
        first.join()
        assert [*answers, paid.call("aurora", "poster", lambda: "never")] == ["poster-1", "poster-1"]
        assert paid.call("comet", "poster", lambda: "poster-2") == "poster-2"


def test_the_end_of_the_with_waits_for_a_call_that_a_time_limit_has_left_behind() -> None:
    bucket, asked, go_on = MemoryBucket(), threading.Event(), threading.Event()
    policy = RetryPolicy(max_retries=0, timeout_s=0.05)

    class Awaited(CapturedLogs):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage() == "posters: a paid call is under way, and waited for, 90 s at most":
                go_on.set()

    def slow() -> str:
        asked.set()
        assert go_on.wait(60)
        return "poster-1"

    with Awaited(), PaidCalls(bucket, "posters", {"poster": 0.04}) as paid:
        with pytest.raises(OutcomeUnknown, match="the call was abandoned"):
            Guard(policy, SystemClock(), lambda: 0.5).call(lambda call: paid.call("aurora", "poster", slow))
        assert asked.wait(60)
    with PaidCalls(bucket, "posters", {"poster": 0.04}) as paid:
        assert paid.call("aurora", "poster", lambda: "never") == "poster-1"


def test_while_several_pay_the_kernels_timer_is_that_of_the_earliest_end(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = list[float]()
    monkeypatch.setattr(plain_process, "set_kill_timer", timer.append)
    first, second = PlainProcess(), PlainProcess()
    first.kill_after(100)
    second.kill_after(50)
    second.kill_after(0)
    first.kill_after(0)
    assert timer == [pytest.approx(100, abs=5), pytest.approx(50, abs=5), pytest.approx(100, abs=5), 0]
    first.kill_after(50)
    second.kill_after(100)
    first.kill_after(0)
    second.kill_after(0)
    assert timer[4:] == [pytest.approx(50, abs=5), pytest.approx(50, abs=5), pytest.approx(100, abs=5), 0]
