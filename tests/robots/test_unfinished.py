"""An item that was created but not finished is marked, finished later, or rolled back; no other item is."""

from collections.abc import Mapping
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from catalogue import CONFLICT, DATA, DUPLICATE, KEY, Item, Scene

from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.clock import FakeClock
from retake.errors import CodedError, RobotError
from retake.retrying.guard import Call
from retake.retrying.state_store import BucketStateStore, MemoryStateStore
from retake.robots.compensation import Unconfirmed
from retake.robots.creation import Created, CreationPolicy, How
from retake.robots.read_only import CreationMode, ReadOnly


@pytest.fixture
def finishing() -> Scene:
    return Scene(finish=True)


@pytest.mark.parametrize("check", [True, False])
def test_a_lookup_that_failed_is_repeated_before_anything_is_made_and_what_it_finds_is_not_ours(
    finishing: Scene, check: bool
) -> None:
    """Otherwise an existing item would be created a second time, or be marked and rolled back as ours."""
    finishing.there.items[KEY] = {"theirs": True}
    finishing.policy = CreationPolicy(check_before_retry=check)
    finding = [CONFLICT]

    def find(key: str, data: Mapping[str, Any]) -> Item | None:
        if finding:
            raise RobotError(finding.pop(), "it cannot be looked up")
        return finishing.there.find(key, data)

    finishing.parts = finishing.parts._replace(find=find)
    assert finishing.creator.create(DATA) == Created(KEY, {"theirs": True}, How.FOUND)
    assert finishing.there.log == ["find"]


def test_what_is_finished_is_in_no_doubt(finishing: Scene) -> None:
    assert finishing.creator.create(DATA).how is How.MADE
    assert finishing.there.log == ["find", "make 1", "finish"]
    assert finishing.creator.unconfirmed.all() == []


def test_finishing_is_tried_again_without_making_it_again(finishing: Scene) -> None:
    finishing.there.finishing = [CONFLICT, CONFLICT]
    assert finishing.creator.create(DATA).how is How.MADE
    assert finishing.there.log == ["find", "make 1", "finish", "finish", "finish"]
    assert finishing.creator.unconfirmed.all() == []


def test_what_could_not_be_finished_is_marked_as_incorrect_and_stays_in_doubt(finishing: Scene) -> None:
    finishing.there.finishing = [CONFLICT] * 5
    with pytest.raises(RobotError, match="could not be finished"):
        finishing.creator.create(DATA)
    assert finishing.there.items[KEY]["correct"] is False
    assert finishing.there.log[-1] == f"mark {CONFLICT}"
    assert [(doubt.key, doubt.code) for doubt in finishing.creator.unconfirmed.all()] == [(KEY, CONFLICT)]


def test_what_cannot_even_be_marked_is_reported_by_the_error_that_came_first(finishing: Scene) -> None:
    finishing.there.finishing = [CONFLICT] * 5

    def fails(item: Item, error: CodedError) -> None:
        raise RobotError("ERR_TEMPORARY_LOCKED", "nor can it be marked")

    finishing.parts = finishing.parts._replace(mark_incorrect=fails)
    with pytest.raises(RobotError, match="could not be finished"):
        finishing.creator.create(DATA)
    assert [doubt.code for doubt in finishing.creator.unconfirmed.all()] == [CONFLICT]


def test_its_day_counts_from_when_it_was_made(finishing: Scene) -> None:
    finishing.there.plan = [CONFLICT] * 5
    with pytest.raises(RobotError):
        finishing.creator.create(DATA)
    finishing.clock.sleep(10 * 3600)
    made_at = finishing.clock.now()
    finishing.there.finishing = [CONFLICT] * 5
    with pytest.raises(RobotError):
        finishing.creator.create(DATA)
    assert [doubt.since for doubt in finishing.creator.unconfirmed.all()] == [made_at]


def test_asked_for_again_it_is_finished(finishing: Scene) -> None:
    finishing.there.finishing = [CONFLICT] * 5
    with pytest.raises(RobotError):
        finishing.creator.create(DATA)
    assert finishing.creator.create(DATA).how is How.MADE
    assert finishing.there.log[-2:] == ["find", "finish"]
    assert finishing.creator.unconfirmed.all() == []


def test_after_a_day_without_confirmation_it_is_rolled_back_once(finishing: Scene) -> None:
    finishing.there.finishing = [CONFLICT] * 5
    began = finishing.clock.now()
    with pytest.raises(RobotError):
        finishing.creator.create(DATA)
    finishing.clock.moment = began + timedelta(hours=24, seconds=-1)
    assert finishing.creator.unconfirmed.roll_back_due(finishing.there.undo) == []
    finishing.clock.sleep(1)
    assert [doubt.key for doubt in finishing.creator.unconfirmed.roll_back_due(finishing.there.undo)] == [KEY]
    assert finishing.there.items == {}
    assert finishing.creator.unconfirmed.roll_back_due(finishing.there.undo) == []


def test_what_a_person_confirmed_is_not_rolled_back(finishing: Scene) -> None:
    finishing.there.finishing = [CONFLICT] * 5
    with pytest.raises(RobotError):
        finishing.creator.create(DATA)
    finishing.creator.unconfirmed.confirm(KEY)
    finishing.clock.sleep(48 * 3600)
    assert finishing.creator.unconfirmed.roll_back_due(finishing.there.undo) == []
    assert finishing.creator.create(DATA).how is How.FOUND


def test_what_could_not_be_rolled_back_is_due_again(finishing: Scene) -> None:
    finishing.there.finishing = [CONFLICT] * 5
    with pytest.raises(RobotError):
        finishing.creator.create(DATA)
    finishing.clock.sleep(24 * 3600)

    def fails(key: str) -> None:
        raise RobotError(CONFLICT, "locked")

    with pytest.raises(RobotError):
        finishing.creator.unconfirmed.roll_back_due(fails)
    assert [doubt.key for doubt in finishing.creator.unconfirmed.due()] == [KEY]


def test_what_cannot_be_rolled_back_keeps_no_other_from_it_and_what_is_confirmed_meanwhile_stays() -> None:
    clock = FakeClock()
    unconfirmed = Unconfirmed(MemoryStateStore(), "items", clock, 60)
    for key in "abcd":
        unconfirmed.begun(key)
        clock.sleep(1)
    clock.sleep(60)
    undone: list[str] = []

    def undo(key: str) -> None:
        if key == "a":
            raise RobotError(CONFLICT, "locked")
        undone.append(key)
        unconfirmed.confirm("c")

    with pytest.raises(RobotError, match="locked"):
        unconfirmed.roll_back_due(undo)
    assert undone == ["b", "d"]
    assert [doubt.key for doubt in unconfirmed.due()] == ["a"]


def test_what_is_begun_anew_while_it_is_rolled_back_stays_in_doubt() -> None:
    clock = FakeClock()
    unconfirmed = Unconfirmed(MemoryStateStore(), "items", clock, 60)
    unconfirmed.begun("a")
    clock.sleep(60)
    assert [doubt.key for doubt in unconfirmed.roll_back_due(unconfirmed.begun)] == ["a"]
    assert [doubt.since for doubt in unconfirmed.all()] == [clock.now()]


def test_an_item_begun_by_a_clock_that_was_ahead_is_rolled_back_in_time() -> None:
    clock = FakeClock()
    unconfirmed = Unconfirmed(MemoryStateStore(), "items", clock, 60)
    clock.sleep(1000)
    unconfirmed.begun("a")
    clock.moment -= timedelta(seconds=1000)
    assert unconfirmed.roll_back_due(lambda key: None) == []
    clock.sleep(60)
    assert [doubt.key for doubt in unconfirmed.roll_back_due(lambda key: None)] == ["a"]


def test_a_duplicate_of_somebody_elses_is_in_no_doubt(finishing: Scene) -> None:
    finishing.there.plan = [DUPLICATE]
    find = finishing.there.find
    finishing.parts = finishing.parts._replace(
        find=lambda key, data: {"theirs": True} if "make 1" in finishing.there.log else find(key, data)
    )
    assert finishing.creator.create(DATA).how is How.DUPLICATE
    assert finishing.creator.unconfirmed.all() == []


def test_a_duplicate_that_cannot_be_looked_up_at_once_is_not_finished_either(finishing: Scene) -> None:
    def make(key: str, data: Mapping[str, Any], call: Call) -> Item:
        finishing.there.items[key] = {"theirs": True}
        raise RobotError(DUPLICATE, "there already")

    def find(key: str, data: Mapping[str, Any]) -> Item | None:
        if finishing.there.log == ["find"]:
            finishing.there.log.append("find, without an answer")
            raise RobotError(CONFLICT, "it cannot be looked up")
        return finishing.there.find(key, data)

    finishing.parts = finishing.parts._replace(find=find, make=make)
    assert finishing.creator.create(DATA) == Created(KEY, {"theirs": True}, How.FOUND)
    assert "finish" not in finishing.there.log
    assert finishing.creator.unconfirmed.all() == []


def test_a_duplicate_of_a_creation_that_another_process_has_not_finished_stays_in_doubt(finishing: Scene) -> None:
    """Both looked before either created it. If the other one dies now, the item is rolled back or finished."""
    other = finishing.creator

    def make(key: str, data: Mapping[str, Any], call: Call) -> Item:
        finishing.clock.sleep(0.001)
        other.unconfirmed.begun(key)
        finishing.there.items[key] = {"theirs": True}
        raise RobotError(DUPLICATE, "there already")

    finishing.parts = finishing.parts._replace(make=make)
    assert finishing.creator.create(DATA).how is How.DUPLICATE
    assert [doubt.key for doubt in finishing.creator.unconfirmed.all()] == [KEY]
    assert other.create(DATA).how is How.MADE
    assert finishing.there.log[-1] == "finish"


def test_a_duplicate_of_our_own_earlier_request_is_finished(finishing: Scene) -> None:
    """Its answer was lost, and it was still under way when the lookup was made."""

    def find(key: str, data: Mapping[str, Any]) -> Item | None:
        made = [line for line in finishing.there.log if line.startswith("make")]
        return finishing.there.find(key, data) if len(made) != 1 else None

    finishing.there.plan = [f"made, then {CONFLICT}", DUPLICATE]
    finishing.parts = finishing.parts._replace(find=find)
    assert finishing.creator.create(DATA).how is How.MADE
    assert finishing.there.log[-2:] == ["find", "finish"]
    assert finishing.creator.unconfirmed.all() == []


def test_a_duplicate_of_what_a_process_made_before_it_died_is_finished(finishing: Scene) -> None:
    """It was still under way when the lookup was made."""
    finishing.creator.unconfirmed.begun(KEY)
    finishing.there.items[KEY] = {"correct": True}
    finishing.there.plan = [DUPLICATE]
    find = finishing.there.find
    finishing.parts = finishing.parts._replace(
        find=lambda key, data: find(key, data) if "make 1" in finishing.there.log else None
    )
    assert finishing.creator.create(DATA).how is How.MADE
    assert finishing.there.log == ["make 1", "find", "finish"]
    assert finishing.creator.unconfirmed.all() == []


def test_read_only_an_item_that_is_not_finished_is_not_returned_and_a_probe_finishes_it(finishing: Scene) -> None:
    """It is marked as incorrect, and rolled back when its day is over."""
    finishing.there.finishing = [CONFLICT] * 25
    for _ in range(5):
        with pytest.raises(RobotError, match="could not be finished"):
            finishing.creator.create(DATA)
    with pytest.raises(ReadOnly):
        finishing.creator.create(DATA)
    finishing.creator.probe()
    assert finishing.creator.create(DATA).how is How.MADE
    assert (finishing.creator.mode(), finishing.creator.unconfirmed.all()) == (CreationMode(), [])


def test_read_only_an_item_that_is_finished_is_returned(finishing: Scene) -> None:
    finishing.creator.create(DATA)
    finishing.fail(5)
    assert finishing.creator.create(DATA).how is How.FOUND


def test_whoever_dies_between_making_and_finishing_is_detected() -> None:
    """After a death at any access to the states a second request creates it only once, finishes it, and leaves no
    doubt."""

    def scene_over(store: MemoryStore, *faults: Fault) -> tuple[Scene, FailingBucket]:
        bucket = FailingBucket(MemoryBucket(store), *faults)
        return Scene(BucketStateStore(bucket, "creation/", FakeClock()), finish=True), bucket

    counted, bucket = scene_over(MemoryStore())
    counted.creator.create(DATA)
    count = len(bucket.operations)
    for number, after in product(range(1, count + 1), (False, True)):
        store = MemoryStore()
        dying, _ = scene_over(store, Fault(Crash, number=number, after=after))
        with pytest.raises(Crash):
            dying.creator.create(DATA)
        again, _ = scene_over(store)
        again.there.items = dying.there.items
        created = again.creator.create(DATA)
        assert created.item["correct"]
        assert [*dying.there.log, *again.there.log].count("make 1") == 1
        assert "finish" in [*dying.there.log, *again.there.log]
        assert again.creator.unconfirmed.all() == []
    assert count > 4
