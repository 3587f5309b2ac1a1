"""Idempotent creation: created once, returned whenever requested again; read-only after five failures in a row."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from catalogue import CONFLICT, DATA, DUPLICATE, KEY, Catalogue, Item, Scene
from hypothesis import given
from hypothesis import strategies as st

from retake.bucket.failing import FailingBucket, Fault
from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock
from retake.errors import Code, CodedError, ErrorClass, OutcomeUnknown, RobotError, StateError, Stopped
from retake.retrying.breaker import Breaker, BreakerOpen, BreakerPolicy
from retake.retrying.guard import Call
from retake.retrying.state_store import BucketStateStore, MemoryStateStore
from retake.robots.creation import Created, How, Parts
from retake.robots.read_only import CreationMode, ReadOnly, decoded, encoded


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


def test_a_probe_that_is_stopped_after_its_attempt_is_used_up(scene: Scene) -> None:
    scene.fail(5)
    scene.creator.probe()
    scene.there.plan = [Stopped("asked to")]
    with pytest.raises(Stopped):
        scene.creator.create(DATA)
    with pytest.raises(ReadOnly):
        scene.creator.create(DATA)


def test_a_probe_of_what_still_makes_things_is_nothing(scene: Scene) -> None:
    assert scene.creator.probe() == CreationMode()


def test_a_reset_ends_it(scene: Scene) -> None:
    scene.fail(5)
    scene.creator.reset()
    assert scene.creator.create(DATA).how is How.MADE


def test_what_a_breaker_refuses_is_not_a_failed_creation(scene: Scene) -> None:
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
