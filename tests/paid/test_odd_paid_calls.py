"""Paid calls of programs that do odd things: errors and answers of every kind, async functions, threads, calls within
calls."""

import threading
from typing import Any

import pytest

from retake.bucket.memory import MemoryBucket
from retake.errors import LeaseHeld
from retake.paid.guard import DROP, HOLD, RETRY
from retake.paid.paid_calls import PaidCalls


def posters(**options: Any) -> PaidCalls:
    return PaidCalls(MemoryBucket(), "posters", {"text": 0.01, "poster": 0.04}, **options)


def test_an_answer_in_the_place_of_a_function_is_refused_before_anything_is_on_record() -> None:
    with posters() as paid:
        with pytest.raises(TypeError, match="ask is to be a function that makes the call; found str"):
            paid.call("aurora", "poster", "poster-1")  # type: ignore[arg-type]
        assert paid.pending is None


def test_outside_of_its_with_nothing_is_paid_for() -> None:
    paid = posters()
    acts = [lambda: paid.call("aurora", "poster", lambda: "never"), lambda: paid.pending, lambda: paid.resolve(DROP)]
    for act in acts:
        with pytest.raises(RuntimeError, match="inside of `with PaidCalls"):
            act()


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
def test_of_two_threads_one_pays_and_the_other_is_told_so(rule: str) -> None:
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
