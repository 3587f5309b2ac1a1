"""Batches against another side that fails at will: nothing is created twice, and every item reaches an end."""

from collections.abc import Mapping
from datetime import timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retake.clock import FakeClock
from retake.errors import CodedError, RobotError, Stopped
from retake.retrying.policy import RetryPolicy
from retake.robots.batch import BatchCall, Batches, Item, Parts, Report
from retake.robots.batch_plan import Answer, BatchPolicy, BatchTally, Exists, ItemFate, Made, in_batches

TEMPORARY, INVALID, OVERFLOW = (
    "ERR_TEMPORARY_BATCH_FAILURE",
    "ERR_BUSINESS_INVALID_SCRAP_TYPE",
    "ERR_CRITICAL_MEMORY_OVERFLOW",
)


class Catalogue:
    """The other side: takes at most `memory` items per call; `faults` say what happens to a call or to an item."""

    def __init__(self, memory: int = 100) -> None:
        self.items: dict[str, str] = {}
        self.made: list[str] = []  # one entry per creation
        self.undone: list[str] = []
        self.sent: list[tuple[float, tuple[str, ...]]] = []
        self.calls: list[str] = []  # what happens to the next calls
        self.faults: dict[str, list[str]] = {}  # what happens to an item, each time
        self.undoing: list[str] = []
        self.finding: list[str] = []
        self._memory = memory

    def parts(self) -> Parts[str]:
        return Parts(self.find, self.send, self.undo)

    def find(self, item: Item) -> str | None:
        self._perhaps(self.finding)
        return self.items.get(item.key)

    def send(self, sending: BatchCall) -> Mapping[str, Answer[str]]:
        keys = tuple(item.key for item in sending.items)
        self.sent.append((sending.attempt, keys))
        if len(keys) > self._memory:
            raise RobotError(OVERFLOW, f"{len(keys)} are too many")
        call = self.calls.pop(0) if self.calls else ""
        if call == "refused":
            raise RobotError(TEMPORARY, "not this time")
        says = {key: self._one(key) for key in keys}
        if call == "answer lost":
            raise RobotError(TEMPORARY, "no answer")
        return says

    def undo(self, item: Item, made: str) -> None:
        self._perhaps(self.undoing)
        self.undone.append(item.key)
        self.items.pop(item.key, None)

    def _one(self, key: str) -> Answer[str]:
        fault = self.faults[key].pop(0) if self.faults.get(key) else ""
        if key in self.items:
            return Exists(self.items[key])
        if fault not in ("", "made, answer lost"):
            return RobotError(fault, f"{key} failed")
        self.made.append(key)
        self.items[key] = f"the {key}"
        return RobotError(TEMPORARY, f"{key}: no answer") if fault else Made(self.items[key])

    @staticmethod
    def _perhaps(plan: list[str]) -> None:
        if plan and (code := plan.pop(0)):
            raise RobotError(code, "not this time")


def items(keys: str) -> list[Item]:
    return [Item(key, {"name": key}) for key in keys]


PROTOCOL = BatchPolicy()


def run(there: Catalogue, keys: str, policy: BatchPolicy = PROTOCOL, clock: FakeClock | None = None) -> Report[str]:
    return Batches(there.parts(), policy, clock or FakeClock(), lambda: 0.5).run(items(keys))


def fates(report: Report[str]) -> dict[str, str]:
    return {key: ended.fate.value for key, ended in report.ended.items()}


def test_twelve_items_are_two_calls() -> None:
    there = Catalogue()
    report = run(there, "abcdefghijkl")
    assert [len(keys) for _, keys in there.sent] == [10, 2]
    assert set(fates(report).values()) == {"created"}
    figures = report.statistics
    assert (figures.items, figures.created, figures.batches, figures.tally.calls) == (12, 12, 2, 2)


def test_no_items_are_no_calls() -> None:
    there = Catalogue()
    report = run(there, "")
    assert (report.ended, set(report.statistics[:-1]), report.statistics.tally, there.sent) == (
        {},
        {0},
        BatchTally(),
        [],
    )


def test_an_item_given_twice_is_made_once() -> None:
    there = Catalogue()
    assert fates(run(there, "aba")) == {"a": "created", "b": "created"}
    assert there.made == ["a", "b"]


def test_the_first_of_several_items_with_one_key_is_sent() -> None:
    sent: list[Item] = []

    class Listening(Catalogue):
        def send(self, sending: BatchCall) -> Mapping[str, Answer[str]]:
            sent.extend(sending.items)
            return super().send(sending)

    batches = Batches(Listening().parts(), PROTOCOL, FakeClock(), lambda: 0.5)
    batches.run([Item("a", {"number": 1}), Item("a", {"number": 2})])
    assert sent == [Item("a", {"number": 1})]


def test_the_rest_goes_on_where_some_fail() -> None:
    there = Catalogue()
    there.faults = {"a": [INVALID], "b": [TEMPORARY, TEMPORARY]}
    clock = FakeClock()
    report = run(there, "abcd", clock=clock)
    assert fates(report) == {"a": "failed", "b": "created", "c": "created", "d": "created"}
    assert [keys for _, keys in there.sent] == [("a", "b", "c", "d"), ("b",), ("b",)]
    assert (clock.now() - FakeClock().now()).total_seconds() == 1 + 3
    assert report.statistics.tally.item_repeats == 2


def test_what_is_too_large_is_sent_in_halves() -> None:
    there = Catalogue(memory=3)
    report = run(there, "abcdefghij")
    assert [len(keys) for _, keys in there.sent] == [10, 5, 5, 3, 2, 3, 2]
    assert (set(fates(report).values()), report.statistics.tally.splits) == ({"created"}, 3)


def test_what_was_made_while_the_answer_of_the_batch_was_lost_is_not_made_again() -> None:
    there = Catalogue()
    there.calls = ["answer lost"]
    assert set(fates(run(there, "abc")).values()) == {"created"}
    assert (there.made, len(there.sent)) == (["a", "b", "c"], 1)


def test_what_was_made_though_it_failed_for_good_by_all_appearances_is_rolled_back_too() -> None:
    there = Catalogue()
    there.faults = {"a": ["made, answer lost"], "b": [INVALID], "c": [INVALID]}
    policy = BatchPolicy(item=RetryPolicy(0))
    assert fates(run(there, "abc", policy)) == {"a": "rolled back", "b": "failed", "c": "failed"}
    assert there.items == {}


def test_a_batch_that_is_rolled_back_does_not_keep_the_next_from_being_made() -> None:
    there = Catalogue()
    there.items["x"] = "theirs"
    there.faults = {key: [INVALID] for key in "abcdef"}
    report = run(there, "abcdefghix" + "kl")
    assert fates(report) == {
        **dict.fromkeys("abcdef", "failed"),
        **dict.fromkeys("ghi", "rolled back"),
        "x": "existing",
        **dict.fromkeys("kl", "created"),
    }
    assert (there.undone, set(there.items)) == (["g", "h", "i"], {"x", "k", "l"})
    figures = report.statistics
    assert (figures.failed, figures.rolled_back, figures.existing, figures.created) == (6, 3, 1, 2)
    assert (figures.batches, figures.batches_rolled_back) == (2, 1)


def test_rolling_back_is_retried_and_reported_if_it_fails() -> None:
    there = Catalogue()
    there.faults = {key: [INVALID] for key in "ab"}
    there.undoing = [TEMPORARY]
    assert fates(run(there, "abc"))["c"] == "rolled back"
    there.undoing = [INVALID]
    there.faults = {key: [INVALID] for key in "ab"}
    report = run(there, "abc")
    assert (fates(report)["c"], str(report.ended["c"].error), report.statistics.not_undone) == (
        "created",
        "not this time",
        1,
    )


def test_a_look_that_fails_is_tried_again_like_the_call() -> None:
    there = Catalogue()
    there.finding = ["", TEMPORARY]
    clock = FakeClock()
    assert set(fates(run(there, "abc", clock=clock)).values()) == {"created"}
    assert (clock.now() - FakeClock().now()).total_seconds() == 5
    assert len(there.sent) == 1


def test_the_work_is_told_what_a_call_may_take() -> None:
    told: list[float | None] = []

    class Listening(Catalogue):
        def send(self, sending: BatchCall) -> Mapping[str, Answer[str]]:
            told.append(sending.timeout_s)
            return super().send(sending)

    there = Listening()
    there.faults = {"a": [TEMPORARY]}
    run(
        there,
        "ab",
        PROTOCOL._replace(batch=PROTOCOL.batch._replace(timeout_s=30.0), item=PROTOCOL.item._replace(timeout_s=5.0)),
    )
    assert told == [30, 5]


def test_asked_to_stop_it_sends_nothing_more_and_goes_on_the_next_time() -> None:
    there, clock = Catalogue(), FakeClock()
    there.faults = {"a": [TEMPORARY] * 4}
    until = clock.now() + timedelta(seconds=6)
    stopping = Batches(there.parts(), PROTOCOL, clock, lambda: 0.5, stop=lambda: clock.now() >= until)
    with pytest.raises(Stopped, match="stopped before attempt 4 of 1 items"):
        stopping.run(items("abc"))
    assert (clock.now(), len(there.sent)) == (until, 3)
    assert fates(run(there, "abc")) == {"a": "created", "b": "existing", "c": "existing"}


def test_a_clock_that_is_set_back_makes_no_item_wait_longer() -> None:
    there, clock = Catalogue(), FakeClock()
    there.faults = {key: [TEMPORARY] * 2 for key in "abc"}
    send, slept = there.send, list[float]()

    def sending(call: BatchCall) -> Mapping[str, Answer[str]]:
        if len(there.sent) == 1:
            clock.moment -= timedelta(days=3650)
        return send(call)

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.moment += timedelta(seconds=seconds)

    clock.sleep = sleep  # type: ignore[method-assign]
    report = Batches(there.parts()._replace(send=sending), PROTOCOL, clock, lambda: 0.5).run(items("abc"))
    assert fates(report) == dict.fromkeys("abc", "created")
    assert sum(slept) < 10


def test_what_is_not_a_coded_error_passes_through() -> None:
    class Broken(Catalogue):
        def send(self, sending: BatchCall) -> Mapping[str, Answer[str]]:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(Broken(), "a")


KEYS = "abcdefghijklmnopq"
FAULTS = st.lists(st.sampled_from([TEMPORARY, INVALID, "made, answer lost", ""]), max_size=7)
CODES = st.lists(st.sampled_from(["", "", "", TEMPORARY, INVALID]), max_size=30)


@given(
    keys=st.lists(st.sampled_from(KEYS), max_size=25).map("".join),
    there_before=st.sets(st.sampled_from(KEYS)),
    faults=st.dictionaries(st.sampled_from(KEYS), FAULTS),
    calls=st.lists(st.sampled_from(["", "refused", "answer lost"]), max_size=8),
    undoing=CODES,
    finding=CODES,
    memory=st.integers(1, 12),
    size=st.integers(1, 10),
    seed=st.integers(),
)
def test_whatever_fails_nothing_is_made_twice_and_every_item_ends_in_one_way_that_is_true(
    keys: str,
    there_before: set[str],
    faults: dict[str, list[str]],
    calls: list[str],
    undoing: list[str],
    finding: list[str],
    memory: int,
    size: int,
    seed: int,
) -> None:
    there = Catalogue(memory)
    there.items = {key: f"the {key}" for key in there_before}
    there.faults, there.calls, there.undoing, there.finding = faults, calls, undoing, finding
    always_looked = not any(finding)
    report = Batches(there.parts(), PROTOCOL._replace(size=size), FakeClock(), Random(seed).random).run(items(keys))

    assert len(there.made) == len(set(there.made)), "created twice"
    assert set(report.ended) == set(keys)
    assert all(len(sent) <= size for _, sent in there.sent)
    for key, ended in report.ended.items():
        fate, ours = ended.fate, key in there.made
        assert (fate is ItemFate.EXISTING) <= (key in there_before)
        assert (fate is ItemFate.CREATED) <= (ours and key in there.items)
        assert (fate is ItemFate.ROLLED_BACK) <= (ours and key not in there.items)
        assert (fate is ItemFate.FAILED) == (ended.item is None)
        assert fate is not ItemFate.FAILED or isinstance(ended.error, CodedError)
        assert fate is not ItemFate.FAILED or not always_looked or key not in there.items
    assert not set(there.undone) & there_before, "an older item was rolled back"
    for batch in in_batches(keys, size):
        ends = [report.ended[key] for key in batch]
        if 2 * sum(it.fate is ItemFate.FAILED for it in ends) > len(batch):
            assert all(it.error for it in ends if it.fate is ItemFate.CREATED), "it could not be rolled back"
        else:
            assert not any(it.fate is ItemFate.ROLLED_BACK for it in ends)
    figures = report.statistics
    assert figures.created + figures.existing + figures.failed + figures.rolled_back == figures.items == len(set(keys))
