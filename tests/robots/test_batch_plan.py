"""The plan of a batch: what is done next, row by row and at random."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retake.errors import RobotError
from retake.retrying.backoff import Fixed
from retake.retrying.policy import RetryPolicy
from retake.robots.batch_plan import (
    Answer,
    BatchLoad,
    BatchPlan,
    BatchPolicy,
    EndedItem,
    Exists,
    ItemFate,
    Look,
    Made,
    Send,
    Undo,
    answered,
    begun,
    found,
    in_batches,
    looked,
    next_step,
    refused,
    undone,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PROTOCOL = BatchPolicy()
TEN = tuple("abcdefghij")
A = RobotError("ERR_TEMPORARY_BATCH_FAILURE", "not this time")
B = RobotError("ERR_BUSINESS_INVALID_SCRAP_TYPE", "never")
TOO_MUCH = RobotError("ERR_CRITICAL_MEMORY_OVERFLOW", "too large")


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def middle() -> float:
    return 0.5


def start(keys: tuple[str, ...] = TEN) -> BatchPlan[str]:
    return begun(PROTOCOL, keys, NOW)


def load_of(plan: BatchPlan[str]) -> BatchLoad:
    step = next_step(plan)
    assert isinstance(step, Send)
    return step.load


def answer(plan: BatchPlan[str], says: Mapping[str, Answer[str]], now: datetime = NOW) -> BatchPlan[str]:
    return answered(plan, load_of(plan), says, now, middle)


def made(keys: str) -> dict[str, Answer[str]]:
    return {key: Made(key) for key in keys}


# --- the numbers ------------------------------------------------------------------------------------------------------


def test_the_numbers_match_the_protocol() -> None:
    assert (PROTOCOL.size, PROTOCOL.roll_back_above_percent) == (10, 50)
    assert (PROTOCOL.batch.max_retries, PROTOCOL.item.max_retries) == (3, 5)
    assert [PROTOCOL.batch.backoff.delay_s(n) for n in (1, 2, 3)] == [5, 25, 125]
    assert [PROTOCOL.item.backoff.delay_s(n) for n in (1, 2, 3, 4, 5)] == [1, 3, 9, 27, 81]


@given(st.lists(st.text(max_size=3), max_size=60), st.integers(1, 12))
def test_items_come_in_their_order_each_once_in_as_few_batches_as_can_be(keys: list[str], size: int) -> None:
    batches = in_batches(keys, size)
    assert [key for batch in batches for key in batch] == list(dict.fromkeys(keys))
    assert len(batches) == ceil(len(set(keys)) / size)
    assert all(len(batch) <= size for batch in batches)


# --- what follows -----------------------------------------------------------------------------------------------------


def test_all_are_sent_at_once() -> None:
    assert next_step(start()) == Send(BatchLoad(TEN, NOW))


def test_nothing_is_a_batch_of_nothing_to_do() -> None:
    assert next_step(start(())) is None


def test_once_all_are_made_there_is_nothing_to_do() -> None:
    plan = answer(start(), made("abcdefghij"))
    assert next_step(plan) is None
    assert plan.of(ItemFate.CREATED) == TEN


def test_an_item_that_failed_is_repeated_alone_after_the_waits_of_the_protocol() -> None:
    plan = answer(start(), {**made("bcdefghij"), "a": A})
    now = NOW
    for repeat, wait in enumerate([1, 3, 9, 27, 81], 1):
        now += timedelta(seconds=wait)
        assert load_of(plan) == BatchLoad(("a",), now, repeat + 1, alone=True, retries=repeat)
        plan = answer(plan, {"a": A}, now)
    assert plan.ended["a"] == EndedItem(ItemFate.FAILED, None, A, 5)
    assert plan.tally.item_repeats == 5
    assert next_step(plan) == Look(("a",))


def test_what_is_due_first_comes_first() -> None:
    plan = answer(start(("a", "b")), {"a": A, "b": A})
    assert load_of(plan) == BatchLoad(("a",), at(1), 2, alone=True, retries=1)
    plan = answer(plan, {"a": A}, at(1))
    assert load_of(plan) == BatchLoad(("b",), at(1), 2, alone=True, retries=1)
    plan = answer(plan, {"b": Made("b")}, at(1))
    assert load_of(plan) == BatchLoad(("a",), at(4), 3, alone=True, retries=2)


def test_a_batch_that_failed_is_repeated_whole_after_the_waits_of_the_protocol() -> None:
    plan, now = start(), NOW
    for repeat, wait in enumerate([5, 25, 125], 1):
        plan = refused(plan, load_of(plan), A, now, middle)
        now += timedelta(seconds=wait)
        assert load_of(plan) == BatchLoad(TEN, now, repeat + 1, retries=repeat)
    plan = refused(plan, load_of(plan), A, now, middle)
    assert plan.of(ItemFate.FAILED) == TEN
    assert plan.tally.batch_repeats == 3


def test_an_items_own_repeats_are_counted_from_the_first_answer_however_often_the_batch_was_repeated() -> None:
    plan = refused(start(), load_of(start()), A, NOW, middle)
    plan = answer(plan, {**made("bcdefghij"), "a": A}, at(5))
    assert load_of(plan) == BatchLoad(("a",), at(6), 2, alone=True, retries=2)


def test_nothing_is_repeated_after_its_deadline_whole_or_alone() -> None:
    """The deadline counts from the beginning of the batch."""
    without_end = RetryPolicy(None, Fixed(1.0), deadline_s=10.0)
    plan: BatchPlan[str] = begun(BatchPolicy(without_end, without_end), ("a", "b"), NOW)
    for failed in (refused(plan, load_of(plan), A, at(11), middle), answer(plan, {"a": A, "b": A}, at(11))):
        assert failed.of(ItemFate.FAILED) == ("a", "b")
    assert load_of(refused(plan, load_of(plan), A, at(10), middle)).attempt == 2


def test_what_another_try_cannot_mend_is_not_repeated() -> None:
    plan = refused(start(), load_of(start()), B, NOW, middle)
    assert plan.of(ItemFate.FAILED) == TEN
    plan = answer(start(), {**made("bcdefghij"), "a": B})
    assert (plan.loads, plan.ended["a"].error) == ((), B)


def test_an_item_that_the_answer_does_not_name_is_repeated() -> None:
    plan = answer(start(), made("bcdefghij"))
    assert load_of(plan).keys == ("a",)


def test_what_the_answer_names_and_nobody_asked_for_is_passed_over() -> None:
    plan = answer(start(("a",)), {"a": Made("a"), "z": Made("z")})
    assert set(plan.ended) == {"a"}


# --- looking first ----------------------------------------------------------------------------------------------------


def test_what_is_there_before_the_first_call_was_there_before() -> None:
    plan = found(start(), load_of(start()), {"b": "theirs"})
    assert plan.ended["b"].fate is ItemFate.EXISTING
    assert load_of(plan).keys == tuple("acdefghij")


def test_what_is_there_before_a_repeat_and_was_not_before_is_ours() -> None:
    plan = refused(start(), load_of(start()), A, NOW, middle)
    plan = found(plan, load_of(plan), {"b": "ours"})
    assert plan.ended["b"].fate is ItemFate.CREATED


def test_what_was_never_sent_is_not_ours_even_at_a_repeat() -> None:
    plan = refused(start(), load_of(start()), A, NOW, middle, sent=False)
    assert plan.tally.calls == 0
    plan = found(plan, load_of(plan), {"b": "theirs"})
    assert plan.ended["b"].fate is ItemFate.EXISTING


def test_what_the_other_side_calls_a_duplicate_was_there() -> None:
    assert answer(start(("a",)), {"a": Exists("theirs")}).ended["a"].fate is ItemFate.EXISTING


def test_what_failed_is_looked_for_once_more_at_the_end() -> None:
    plan = answer(start(("a", "b", "c")), {"a": B, "b": B, "c": Made("c")})
    assert next_step(plan) == Look(("a", "b"))
    there = looked(plan, {"a": "after all"})
    assert (there.ended["a"].fate, there.ended["b"].fate) == (ItemFate.CREATED, ItemFate.FAILED)
    assert next_step(there) is None
    assert next_step(looked(plan, {})) == Undo(("c",))


# --- too large --------------------------------------------------------------------------------------------------------


def test_what_is_too_large_is_split_in_halves_down_to_one() -> None:
    plan = refused(start(), load_of(start()), TOO_MUCH, NOW, middle)
    assert [load.keys for load in plan.loads] == [tuple("abcde"), tuple("fghij")]
    sizes = list[int]()
    while plan.loads:
        load = load_of(plan)
        sizes.append(len(load.keys))
        plan = refused(plan, load, TOO_MUCH, NOW, middle)
    assert sorted(sizes) == [*[1] * 10, *[2] * 4, 3, 3, 5, 5]
    assert plan.of(ItemFate.FAILED) == TEN
    assert plan.tally.splits == 9


def test_halves_are_repeated_anew_and_are_still_one_batch() -> None:
    plan = refused(start(), load_of(start()), A, NOW, middle)
    plan = refused(plan, load_of(plan), TOO_MUCH, at(5), middle)
    assert {load.attempt for load in plan.loads} == {1}
    plan = answer(plan, made("abcd"), at(5))  # e is not mentioned
    for _ in range(2):
        plan = refused(plan, load_of(plan), B, at(5), middle)
    assert plan.of(ItemFate.FAILED) == tuple("efghij")
    assert next_step(looked(plan, {})) == Undo(tuple("abcd"))


# --- rolled back ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "failures", "back"),
    [(10, 5, False), (10, 6, True), (10, 0, False), (1, 1, False), (3, 1, False), (3, 2, True), (9, 4, False)],
)
def test_above_half_the_batch_is_rolled_back_and_at_half_it_is_not(count: int, failures: int, back: bool) -> None:
    keys = TEN[:count]
    says: dict[str, Answer[str]] = {key: B if number < failures else Made(key) for number, key in enumerate(keys)}
    plan = looked(answer(start(keys), says), {})
    assert next_step(plan) == (Undo(keys[failures:]) if back else None)


def test_what_was_there_before_is_not_rolled_back_but_counts_as_no_failure() -> None:
    says: dict[str, Answer[str]] = {"a": Exists("theirs"), "b": Made("b"), "c": B, "d": B, "e": B}
    plan = looked(answer(start(tuple("abcde")), says), {})
    assert next_step(plan) == Undo(("b",))
    plan = undone(plan, "b", None)
    assert (next_step(plan), plan.of(ItemFate.ROLLED_BACK), plan.of(ItemFate.EXISTING)) == (None, ("b",), ("a",))


def test_what_cannot_be_rolled_back_stays_created_and_is_reported() -> None:
    plan = looked(answer(start(("a", "b", "c")), {"a": B, "b": B, "c": Made("c")}), {})
    plan = undone(plan, "c", A)
    assert (next_step(plan), plan.ended["c"].fate, plan.ended["c"].error) == (None, ItemFate.CREATED, A)
    assert plan.kept == {"c"}
