"""Idempotent creation: made once, returned as often as it is asked for; read-only after five failures in a row."""

from collections.abc import Mapping
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.clock import FakeClock
from retake.errors import Code, CodedError, ErrorClass, OutcomeUnknown, RobotError, StateError
from retake.retrying.backoff import Exponential
from retake.retrying.breaker import Breaker, BreakerOpen, BreakerPolicy
from retake.retrying.guard import Call, Guard
from retake.retrying.policy import RetryIf, RetryPolicy
from retake.retrying.state_store import BucketStateStore, MemoryStateStore, StateStore
from retake.robots.compensation import Unconfirmed
from retake.robots.creation import Created, CreationPolicy, Creator, How, Parts
from retake.robots.idempotency import key_of
from retake.robots.read_only import CreationMode, ReadOnly, decoded, encoded

DATA = {"вид": "Лист", "толщина": 2.5}
KEY = key_of(DATA)
DUPLICATE, CONFLICT = "ERR_BUSINESS_DUPLICATE_ITEM", "ERR_TEMPORARY_DB_CONFLICT"
ROBOT_4 = RetryPolicy(
    4, Exponential(3, 3), retry_if=RetryIf(frozenset(ErrorClass), except_codes=frozenset({DUPLICATE}))
)

Item = dict[str, Any]


class Catalogue:
    """The other side. Fails as planned: before it has made the item, or after («made, then …»)."""

    def __init__(self) -> None:
        self.items: dict[str, Item] = {}
        self.log: list[str] = []
        self.plan: list[str | Exception] = []
        self.finishing: list[str] = []

    def find(self, key: str, data: Mapping[str, Any]) -> Item | None:
        self.log.append("find")
        return self.items.get(key)

    def make(self, key: str, data: Mapping[str, Any], call: Call) -> Item:
        self.log.append(f"make {call.attempt}")
        planned = self.plan.pop(0) if self.plan else ""
        if isinstance(planned, Exception):
            raise planned
        if planned and not planned.startswith("made, then "):
            raise RobotError(planned, "it failed")
        assert key not in self.items, "made twice"
        self.items[key] = {**data, "correct": True}
        if planned:
            raise RobotError(planned.removeprefix("made, then "), "no answer")
        return self.items[key]

    def finish(self, item: Item, data: Mapping[str, Any]) -> None:
        self.log.append("finish")
        if self.finishing:
            raise RobotError(self.finishing.pop(0), "it could not be finished")

    def mark(self, item: Item, error: CodedError) -> None:
        self.log.append(f"mark {error.code}")
        item["correct"] = False

    def undo(self, key: str) -> None:
        self.log.append("undo")
        self.items.pop(key, None)


class Scene:
    def __init__(self, states: StateStore | None = None, *, finish: bool = False) -> None:
        self.clock = FakeClock()
        self.there = Catalogue()
        self.states = states or MemoryStateStore()
        self.breaker: Breaker | None = None
        self.parts: Parts[Item] = Parts(self.there.find, self.there.make)
        if finish:
            self.parts = Parts(self.there.find, self.there.make, self.there.finish, self.there.mark)

    @property
    def creator(self) -> Creator[Item]:
        """Another one each time, as after a restart."""
        guard = Guard(ROBOT_4, self.clock, lambda: 0.5, breaker=self.breaker, deadline_s=200)
        return Creator("заготовки", self.parts, guard, self.clock, CreationPolicy(), self.states)

    def fail(self, times: int = 1) -> None:
        for _ in range(times):
            self.there.plan = [CONFLICT] * 5
            with pytest.raises(RobotError):
                self.creator.create({"number": self.clock.now().timestamp()})


@pytest.fixture
def scene() -> Scene:
    return Scene()


# --- made once --------------------------------------------------------------------------------------------------------


def test_what_is_not_there_is_made(scene: Scene) -> None:
    created = scene.creator.create(DATA)
    assert created == Created(KEY, {**DATA, "correct": True}, How.MADE)
    assert scene.there.log == ["find", "make 1"]


def test_what_is_there_is_returned_and_not_made(scene: Scene) -> None:
    first = scene.creator.create(DATA)
    again = scene.creator.create({"толщина": 2.5, "вид": "Лист"})
    assert (again.how, again.item) == (How.FOUND, first.item)
    assert scene.there.log == ["find", "make 1", "find"]


def test_before_each_repeat_it_is_looked_whether_it_is_there(scene: Scene) -> None:
    scene.there.plan = [CONFLICT, CONFLICT]
    assert scene.creator.create(DATA).how is How.MADE
    assert scene.there.log == ["find", "make 1", "find", "make 2", "find", "make 3"]


def test_what_was_made_while_the_answer_was_lost_is_found_and_not_made_again(scene: Scene) -> None:
    scene.there.plan = [f"made, then {CONFLICT}"]
    assert scene.creator.create(DATA).how is How.MADE
    assert scene.there.log == ["find", "make 1", "find"]


def test_what_the_other_side_calls_a_duplicate_is_looked_up_and_returned(scene: Scene) -> None:
    class Raced(Catalogue):
        def make(self, key: str, data: Mapping[str, Any], call: Call) -> Item:
            self.items[key] = {"theirs": True}
            raise RobotError(DUPLICATE, "there already")

    raced = Raced()
    scene.parts = Parts(raced.find, raced.make)
    assert scene.creator.create(DATA) == Created(KEY, {"theirs": True}, How.DUPLICATE)


def test_a_duplicate_that_cannot_be_found_is_an_error_and_not_tried_again(scene: Scene) -> None:
    scene.there.plan = [DUPLICATE]
    with pytest.raises(RobotError, match="it failed"):
        scene.creator.create(DATA)
    assert scene.there.log == ["find", "make 1", "find"]


def test_the_last_error_is_raised_once_every_repeat_is_used_up(scene: Scene) -> None:
    scene.there.plan = [CONFLICT] * 9
    with pytest.raises(RobotError):
        scene.creator.create(DATA)
    assert scene.there.log.count("find") == 5
    assert (scene.clock.now() - FakeClock().now()).total_seconds() == 3 + 9 + 27 + 81


def test_a_creation_that_may_have_been_carried_out_is_not_repeated_but_found_the_next_time(scene: Scene) -> None:
    scene.there.plan = [OutcomeUnknown(Code.TIMEOUT, "no answer")]
    with pytest.raises(OutcomeUnknown):
        scene.creator.create(DATA)
    scene.there.items[KEY] = {"late": True}
    assert scene.creator.create(DATA).how is How.FOUND


def test_data_that_have_no_key_are_refused_before_anything_is_asked(scene: Scene) -> None:
    with pytest.raises(ValueError, match=r"data\.a: nan"):
        scene.creator.create({"a": float("nan")})
    assert scene.there.log == []


PLANS = st.lists(st.sampled_from(["", CONFLICT, f"made, then {CONFLICT}", DUPLICATE]), max_size=6)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 3), PLANS), max_size=12))
def test_however_calls_fail_nothing_is_made_twice_and_what_is_returned_is_there(
    asked: list[tuple[int, list[str | Exception]]],
) -> None:
    scene = Scene()
    for number, plan in asked:
        scene.there.plan = [*plan]
        try:
            created = scene.creator.create({"number": number})
        except CodedError:
            continue
        assert scene.there.items[created.key] is created.item


# --- read only --------------------------------------------------------------------------------------------------------


def test_after_five_creations_in_a_row_that_failed_nothing_is_made_any_more(scene: Scene) -> None:
    scene.fail(4)
    assert scene.creator.mode().read_only_since is None
    scene.fail()
    scene.there.log.clear()
    with pytest.raises(ReadOnly, match="заготовки: nothing more is created: 5 creations in a row have failed") as error:
        scene.creator.create(DATA)
    assert error.value.error_class is ErrorClass.CRITICAL
    assert scene.there.log == ["find"]
    assert scene.creator.mode() == CreationMode(5, scene.clock.now(), CONFLICT)


def test_read_only_what_is_there_is_still_returned(scene: Scene) -> None:
    scene.creator.create(DATA)
    scene.fail(5)
    assert scene.creator.create(DATA).how is How.FOUND


def test_a_success_in_between_begins_the_count_anew(scene: Scene) -> None:
    scene.fail(4)
    scene.creator.create(DATA)
    scene.fail(4)
    assert scene.creator.mode().read_only_since is None


def test_finding_what_is_there_takes_no_failure_back(scene: Scene) -> None:
    scene.creator.create(DATA)
    scene.fail(4)
    scene.creator.create(DATA)
    assert scene.creator.mode().failed_in_a_row == 4


def test_a_probe_that_succeeds_ends_it(scene: Scene) -> None:
    scene.fail(5)
    assert scene.creator.probe().probe_ordered
    assert scene.creator.create(DATA).how is How.MADE
    assert scene.creator.mode() == CreationMode()


def test_a_probe_lets_one_creation_through_and_its_failure_leaves_it_read_only(scene: Scene) -> None:
    scene.fail(5)
    since = scene.creator.mode().read_only_since
    scene.creator.probe()
    scene.fail()
    with pytest.raises(ReadOnly):
        scene.creator.create(DATA)
    assert scene.creator.mode() == CreationMode(6, since, CONFLICT)


def test_while_the_probe_is_under_way_nothing_else_is_made(scene: Scene) -> None:
    scene.fail(5)
    scene.creator.probe()
    make = scene.there.make

    def meanwhile(key: str, data: Mapping[str, Any], call: Call) -> Item:
        with pytest.raises(ReadOnly):
            scene.creator.create({"another": 1})
        return make(key, data, call)

    scene.parts = scene.parts._replace(make=meanwhile)
    assert scene.creator.create(DATA).how is How.MADE


def test_a_probe_is_not_used_up_by_what_is_there_already(scene: Scene) -> None:
    scene.creator.create(DATA)
    scene.fail(5)
    scene.creator.probe()
    assert scene.creator.create(DATA).how is How.FOUND
    assert scene.creator.mode().probe_ordered


def test_a_probe_is_not_used_up_by_what_a_breaker_refuses(scene: Scene) -> None:
    scene.fail(5)
    scene.creator.probe()
    scene.breaker = Breaker("1C", MemoryStateStore(), BreakerPolicy(1, open_s=900), clock=scene.clock, owner="here:1")
    scene.breaker.failed(scene.breaker.allow(), RobotError(CONFLICT, "1C is away"))
    with pytest.raises(BreakerOpen):
        scene.creator.create(DATA)
    scene.clock.sleep(900)
    assert scene.creator.create(DATA).how is How.MADE


def test_a_probe_of_what_still_makes_things_is_nothing(scene: Scene) -> None:
    assert scene.creator.probe() == CreationMode()


def test_a_reset_ends_it(scene: Scene) -> None:
    scene.fail(5)
    scene.creator.reset()
    assert scene.creator.create(DATA).how is How.MADE


def test_what_a_breaker_refuses_is_no_failed_creation(scene: Scene) -> None:
    scene.breaker = Breaker("1C", MemoryStateStore(), BreakerPolicy(open_s=900), clock=scene.clock, owner="here:1")
    for _ in range(2):
        scene.fail()
    with pytest.raises(BreakerOpen):
        scene.creator.create(DATA)
    assert scene.creator.mode().failed_in_a_row == 2


def test_the_mode_survives_in_a_bucket_and_is_left_there_as_it_is_if_it_makes_no_sense() -> None:
    bucket = MemoryBucket()
    scene = Scene(BucketStateStore(bucket, "creation/", FakeClock()))
    scene.fail(5)
    data, version = bucket.read("creation/заготовки.json")
    assert b'"read_only_since": "2026-01-01T00:10:00Z"' in data
    bucket.write("creation/заготовки.json", data.replace(b"5", b'"five"'), version)
    with pytest.raises(StateError, match="failed_in_a_row: 'five' is not a number of failures"):
        scene.creator.create(DATA)


def test_what_was_made_is_returned_although_that_could_not_be_noted() -> None:
    bucket = FailingBucket(MemoryBucket())
    scene = Scene(BucketStateStore(bucket, "creation/", FakeClock()))
    scene.fail()
    dying = FailingBucket(bucket, Fault(operation="write", times=9))
    scene.states = BucketStateStore(dying, "creation/", FakeClock())
    assert scene.creator.create(DATA).how is How.MADE


SINCE = st.none() | st.integers(0, 10**9).map(lambda seconds: FakeClock().now() + timedelta(seconds=seconds))


@given(st.builds(CreationMode, st.integers(0), SINCE, st.none() | st.text(), st.booleans()))
def test_a_document_says_all_of_a_mode(mode: CreationMode) -> None:
    assert decoded(encoded(mode)) == mode


# --- made, and not finished -------------------------------------------------------------------------------------------


@pytest.fixture
def finishing() -> Scene:
    return Scene(finish=True)


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


def test_what_cannot_even_be_marked_is_told_by_the_error_that_came_first(finishing: Scene) -> None:
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


def test_who_dies_between_making_and_finishing_is_found_out() -> None:
    """A death at each touch of the states: asked for again it is made once, finished, and in no doubt."""

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
