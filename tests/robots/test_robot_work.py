"""Robots at work: breakers, creation, batches, compensation, dead letters, and a broken sink."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from protocol_robots import POLICIES, Workshop

from retake.bucket.directory import DirectoryBucket
from retake.clock import FakeClock
from retake.errors import Code, OutcomeUnknown, RobotError, Stopped, StorageError
from retake.retrying.breaker import breakers_of
from retake.retrying.dead_letters import DeadLetters
from retake.retrying.guard import Call
from retake.retrying.state_store import MemoryStateStore
from retake.robots import batch, creation
from retake.robots.action_sink import DeadLetterSink, Record, RecordingSink
from retake.robots.batch_plan import Answer, ItemFate, Made
from retake.robots.creation import How
from retake.robots.execution import Ports
from retake.robots.follow_ups import Do, FollowUp
from retake.robots.robot import Robot

AWAY = "ERR_TEMPORARY_APPIUS_UNAVAILABLE"
SLOW = "ERR_TEMPORARY_API_TIMEOUT"
CONFLICT = "ERR_TEMPORARY_DB_CONFLICT"
DUPLICATE = "ERR_BUSINESS_DUPLICATE_ITEM"


# --- the breaker ---


def test_the_tenth_failure_in_five_minutes_opens_the_breaker_and_the_next_call_comes_a_minute_later() -> None:
    """Half-open after 10 failures within 5 minutes and 60 seconds open: the wait is no attempt."""
    states, clock = MemoryStateStore(), FakeClock()
    first = Workshop("NR.NSI.2", states=states, clock=clock)
    first.robot.run(first.failing(SLOW), correlation_id="first")
    assert len(first.calls) == 6
    second = Workshop("NR.NSI.2", states=states, clock=clock)
    result = second.robot.run(second.failing(SLOW), correlation_id="second")
    assert second.waits_s == [1, 1, 2, 60, 60]  # its 4th call is the 10th failure; each failed probe opens it again
    assert result.attempts == 6


def test_two_robots_that_ask_the_same_system_share_its_breaker(tmp_path: Path) -> None:
    clock = FakeClock()
    states = breakers_of(DirectoryBucket(str(tmp_path)), clock)
    fetcher, detector = (Workshop(robot, states=states, clock=clock) for robot in ("NR.NSI.2", "NR.NSI.1"))
    for number in range(10):
        with_one_call = POLICIES["NR.NSI.2"].retry._replace(max_retries=0)
        shop = Workshop(POLICIES["NR.NSI.2"]._replace(retry=with_one_call), states=states, clock=clock)
        shop.robot.run(shop.failing(SLOW), correlation_id=str(number))
    result = detector.robot.run(detector.failing(AWAY, times=0), correlation_id="event")
    assert (result.value, result.attempts) == ("result", 1)
    assert detector.times_s == [60]
    assert fetcher.robot.run(fetcher.failing(SLOW, times=0), correlation_id="next").value == "result"
    assert fetcher.times_s == [60]  # the detector's probe has closed it


# --- creation: robot 4 ---


class Erp:
    """Where the robot creates items. Fails as planned."""

    def __init__(self, *errors: str) -> None:
        self.items: dict[str, Mapping[str, Any]] = {}
        self.errors = list(errors)
        self.looks = self.makes = 0

    def find(self, key: str, data: Mapping[str, Any]) -> str | None:
        self.looks += 1
        return key if key in self.items else None

    def make(self, key: str, data: Mapping[str, Any], call: Call) -> str:
        self.makes += 1
        if self.errors:
            raise RobotError(self.errors.pop(0), f"{data} was not created")
        self.items[key] = data
        return key

    def drop(self, key: str) -> None:
        del self.items[key]

    @property
    def parts(self) -> creation.Parts[str]:
        return creation.Parts(self.find, self.make)


def test_the_same_data_create_one_item_and_are_answered_with_it() -> None:
    shop, erp = Workshop("NR.NSI.4"), Erp()
    first = shop.robot.create(erp.parts, {"length": 10, "width": 5}, correlation_id="a")
    second = shop.robot.create(erp.parts, {"width": 5.0, "length": 10}, correlation_id="b")
    assert first.value
    assert second.value
    assert first.value.item == second.value.item
    assert (first.value.how, second.value.how, erp.makes) == (How.MADE, How.FOUND, 1)


def test_before_each_repeat_it_is_looked_whether_the_item_is_there_by_now() -> None:
    """Exponential backoff with a check for duplicates."""
    shop, erp = Workshop("NR.NSI.4"), Erp(CONFLICT, CONFLICT)
    result = shop.robot.create(erp.parts, {"length": 10}, correlation_id="a")
    assert (result.done, result.attempts, erp.makes, erp.looks) == (True, 3, 3, 3)
    assert (shop.clock.now() - shop.began).total_seconds() == 3 + 9


def test_a_duplicate_that_is_refused_is_answered_with_the_item_that_is_there() -> None:
    """After DUPLICATE_ITEM the existing item is returned."""
    shop, erp = Workshop("NR.NSI.4"), Erp(DUPLICATE)
    answers = iter([None, "the item of somebody else"])
    parts = erp.parts._replace(find=lambda key, data: next(answers))
    result = shop.robot.create(parts, {"length": 10}, correlation_id="a")
    assert result.value
    assert (result.value.item, result.value.how, result.done) == ("the item of somebody else", How.DUPLICATE, True)
    assert shop.sink.recorded == []


def test_after_five_failures_in_a_row_nothing_is_created_any_more_and_the_sink_is_told_once() -> None:
    """Read-only mode after 5 failures in a row."""
    shop, erp = Workshop("NR.NSI.4"), Erp(*[CONFLICT] * 1000)
    told = []
    for number in range(7):
        before = len(shop.sink.recorded)
        result = shop.robot.create(erp.parts, {"length": number}, correlation_id=str(number))
        assert not result.done
        told.append([it.action.do for it in shop.sink.recorded[before:]])
    assert told == [[Do.TICKET, Do.TELL]] * 4 + [[Do.READ_ONLY]] + [[]] * 2
    assert erp.makes == 5 * 5
    assert result.failures[0].error.code == "ERR_CRITICAL_READ_ONLY"
    assert shop.sink.recorded[-1].action.as_recovery_action() == {"action": "READ_ONLY", "failures_in_a_row": 5}


def test_an_error_that_the_action_leaves_out_does_not_end_creation_either() -> None:
    """Read-only mode comes with the action that reports it, whose except_codes name duplicates."""
    shop, erp = Workshop("NR.NSI.4"), Erp(*[DUPLICATE] * 6)
    for number in range(6):  # each is refused as a duplicate, and cannot be found
        assert not shop.robot.create(erp.parts, {"length": number}, correlation_id=str(number)).done
    assert shop.robot.create(erp.parts, {"length": 0}, correlation_id="0").done
    erp.errors = [CONFLICT] * 4 * 5
    for number in range(1, 5):
        shop.robot.create(erp.parts, {"length": number}, correlation_id=str(number))
    erp.errors = [DUPLICATE, *[CONFLICT] * 5]
    shop.robot.create(erp.parts, {"length": 5}, correlation_id="5")
    assert Do.READ_ONLY not in shop.sink.done
    shop.robot.create(erp.parts, {"length": 6}, correlation_id="6")
    assert shop.sink.done[-1] is Do.READ_ONLY


def test_read_only_mode_is_not_reported_again_if_an_item_cannot_be_looked_up() -> None:
    shop, erp = Workshop("NR.NSI.4"), Erp(*[CONFLICT] * 1000)
    for number in range(5):
        shop.robot.create(erp.parts, {"length": number}, correlation_id=str(number))

    def find(key: str, data: Mapping[str, Any]) -> None:
        raise RobotError(CONFLICT, "nothing can be looked for")

    assert not shop.robot.create(erp.parts._replace(find=find), {"length": 5}, correlation_id="5").done
    assert shop.sink.done.count(Do.READ_ONLY) == 1
    assert shop.sink.done[-2:] == [Do.TICKET, Do.TELL]


def test_a_success_between_failures_begins_the_row_anew() -> None:
    shop, erp = Workshop("NR.NSI.4"), Erp()
    for number in range(12):
        erp.errors = [] if number % 5 == 4 else [CONFLICT] * 5
        shop.robot.create(erp.parts, {"length": number}, correlation_id=str(number))
    assert Do.READ_ONLY not in shop.sink.done


def test_what_could_not_be_finished_is_marked_and_undone_after_a_day_unless_it_was_confirmed() -> None:
    """The item is marked as incorrect, and rolled back after 24 hours unless it is confirmed."""
    shop, erp = Workshop("NR.NSI.4"), Erp()
    marked: list[str] = []

    def finish(item: str, data: Mapping[str, Any]) -> None:
        raise RobotError(CONFLICT, "not finished")

    parts = erp.parts._replace(finish=finish, mark_incorrect=lambda item, error: marked.append(item))
    for length in (10, 20):
        assert not shop.robot.create(parts, {"length": length}, correlation_id=str(length)).done
    unconfirmed = shop.robot.creator(parts).unconfirmed
    assert marked == [doubt.key for doubt in unconfirmed.all()] == list(erp.items)
    unconfirmed.confirm(marked[0])
    shop.clock.sleep(24 * 3600 - 121)  # the second was begun 120 s ago: four repeats
    assert unconfirmed.roll_back_due(erp.drop) == []
    shop.clock.sleep(1)
    unconfirmed.roll_back_due(erp.drop)
    assert list(erp.items) == [marked[0]]


@pytest.mark.parametrize("robot", [robot for robot in POLICIES if robot != "NR.NSI.4"])
def test_other_robots_do_not_create(robot: str) -> None:
    with pytest.raises(ValueError, match=rf"{robot} does not look before it creates"):
        Workshop(robot).robot.create(Erp().parts, {}, correlation_id="a")


# --- batches: robot 5 ---


class Sink:
    """Where the robot creates scrap items, many in one call."""

    def __init__(self, bad: Mapping[str, str], limit: int = 100) -> None:
        self.bad, self.limit = bad, limit
        self.sizes: list[int] = []
        self.there: dict[str, str] = {}

    def send(self, sending: batch.BatchCall) -> Mapping[str, Answer[str]]:
        self.sizes.append(len(sending.items))
        if len(sending.items) > self.limit:
            raise RobotError("ERR_CRITICAL_MEMORY_OVERFLOW", "the batch is too large")
        answers: dict[str, Answer[str]] = {}
        for item in sending.items:
            if item.key in self.bad:
                answers[item.key] = RobotError(self.bad[item.key], f"{item.key} was not created")
            else:
                self.there[item.key] = item.key
                answers[item.key] = Made(item.key)
        return answers

    def undo(self, item: batch.Item, made: str) -> None:
        del self.there[made]

    @property
    def parts(self) -> batch.Parts[str]:
        return batch.Parts(
            find=lambda item: self.there.get(item.key),
            send=self.send,
            undo=self.undo,
        )


def items(count: int) -> list[batch.Item]:
    return [batch.Item(f"item-{number:02}", {}) for number in range(count)]


def test_a_batch_has_ten_items_at_most_and_what_fails_leaves_the_rest_there() -> None:
    """At most 10 items, partial success is allowed, 5 repeats of an item: 1, 3, 9, 27 and 81 s."""
    shop = Workshop("NR.NSI.5")
    sink = Sink({"item-03": "ERR_TEMPORARY_BATCH_FAILURE", "item-11": "ERR_BUSINESS_INVALID_SCRAP_TYPE"})
    result = shop.robot.create_all(sink.parts, items(25), correlation_id="scrap")
    assert result.value
    assert sink.sizes == [10, 1, 1, 1, 1, 1, 10, 5]
    assert (shop.clock.now() - shop.began).total_seconds() == 1 + 3 + 9 + 27 + 81
    assert result.value.statistics.created == 23
    assert [failure.error.code for failure in result.failures] == [
        "ERR_TEMPORARY_BATCH_FAILURE",
        "ERR_BUSINESS_INVALID_SCRAP_TYPE",
    ]
    assert shop.sink.done == [Do.JOURNAL, Do.JOURNAL]  # the robot itself went on with the rest
    record = shop.sink.recorded[0].record
    assert record["details"]["input_data"] == {"items": ["item-03"]}
    assert record["details"]["system_context"]["statistics"]["failed"] == 2


@pytest.mark.parametrize(("bad", "there"), [(5, 5), (6, 0)])
def test_above_half_the_whole_batch_is_taken_back(bad: int, there: int) -> None:
    """Above 50 % of failures the whole batch is rolled back."""
    shop, sink = Workshop("NR.NSI.5"), Sink({f"item-{n:02}": "ERR_BUSINESS_INVALID_SCRAP_TYPE" for n in range(bad)})
    result = shop.robot.create_all(sink.parts, items(10), correlation_id="scrap")
    assert result.value
    assert len(sink.there) == there
    assert sum(it.fate is ItemFate.ROLLED_BACK for it in result.value.ended.values()) == (10 - bad if bad > 5 else 0)


def test_a_batch_that_is_too_large_is_split() -> None:
    """A batch that is too large is split after MEMORY_OVERFLOW."""
    shop, sink = Workshop("NR.NSI.5"), Sink({}, limit=4)
    result = shop.robot.create_all(sink.parts, items(10), correlation_id="scrap")
    assert result.done
    assert sorted(sink.sizes) == [2, 2, 3, 3, 5, 5, 10]
    assert shop.sink.recorded == []


def test_batches_wait_while_the_breaker_is_open() -> None:
    breaker = POLICIES["NR.NSI.1"].breaker
    assert breaker
    policy = breaker.policy._replace(failures=2)
    shop = Workshop(POLICIES["NR.NSI.5"]._replace(breaker=breaker._replace(policy=policy)))
    calls: list[float] = []

    def send(sending: batch.BatchCall) -> dict[str, Answer[str]]:
        calls.append((shop.clock.now() - shop.began).total_seconds())
        if len(calls) < 4:
            raise RobotError(AWAY, "it is away")
        return {item.key: Made(item.key) for item in sending.items}

    parts = batch.Parts(lambda item: None, send, lambda item, made: None)
    assert shop.robot.create_all(parts, items(3), correlation_id="scrap").done
    assert calls == [0, 5, 65, 190]  # it opens at 5 s for 60 s; the next call would have been due at 30 s


def test_a_robot_without_batches_makes_none() -> None:
    with pytest.raises(ValueError, match=r"NR\.NSI\.4 makes no batches"):
        Workshop("NR.NSI.4").robot.create_all(Sink({}).parts, [], correlation_id="scrap")


def test_a_policy_without_partial_success_takes_the_batch_back_for_one_failure() -> None:
    section = POLICIES["NR.NSI.5"].batch
    assert section
    shop = Workshop(POLICIES["NR.NSI.5"]._replace(batch=section._replace(partial_success=False)))
    sink = Sink({"item-00": "ERR_BUSINESS_INVALID_SCRAP_TYPE"})
    shop.robot.create_all(sink.parts, items(10), correlation_id="scrap")
    assert sink.there == {}


# --- compensation, escalation ---


@pytest.mark.parametrize(
    ("partly", "first"), [(True, [Do.ROLL_BACK, Do.JOURNAL, Do.MANUAL_MODE]), (False, [Do.MANUAL_MODE, Do.TICKET])]
)
def test_robot_6_takes_back_what_it_set_up_in_part_before_anything_else(partly: bool, first: list[Do]) -> None:
    """A setup that failed in part is rolled back completely."""
    shop = Workshop("NR.NSI.6")
    work = shop.failing("ERR_CRITICAL_TEMPLATE_MISSING")
    result = shop.robot.run(work, correlation_id="x", partly_done=lambda: partly)
    assert shop.sink.done[: len(first)] == first
    assert result.failures[0].follow_ups == tuple(it.action for it in shop.sink.recorded)


@pytest.mark.parametrize("error", [RobotError("ERR_TEMPORARY_X", "it does not answer"), ConnectionError("cut")])
def test_work_that_may_be_partly_done_is_rolled_back(error: Exception) -> None:
    """The system that has just failed may have to be asked for that. The actions after the failure still follow."""
    shop = Workshop("NR.NSI.6")

    def asked() -> bool:
        raise error

    result = shop.robot.run(shop.failing("ERR_CRITICAL_TEMPLATE_MISSING"), correlation_id="x", partly_done=asked)
    assert result.failures[0].error.code == "ERR_CRITICAL_TEMPLATE_MISSING"
    assert shop.sink.done == [Do.ROLL_BACK, Do.JOURNAL, Do.MANUAL_MODE, Do.TICKET, Do.BUFFER]


def test_robot_7_corrects_where_the_flag_is_set() -> None:
    rules = POLICIES["NR.NSI.7"].validation
    assert rules
    shop = Workshop(POLICIES["NR.NSI.7"]._replace(validation=rules._replace(auto_correct=True)))
    shop.robot.run(shop.failing("ERR_BUSINESS_OUT_OF_RANGE"), correlation_id="x")
    assert shop.sink.done == [Do.SUGGEST_NEAREST, Do.AUTO_CORRECT]


def test_the_record_names_the_steps_of_the_recovery() -> None:
    shop = Workshop("NR.NSI.1")
    shop.robot.run(shop.failing(AWAY), correlation_id="x")
    context = shop.sink.recorded[0].record["details"]["system_context"]
    assert context["recovery"] == ["wait_for_health_check", "retry_with_circuit_breaker"]


# --- dead letters, desks ---


def test_after_the_last_failure_of_robot_1_there_is_a_dead_letter_and_the_others_are_told(tmp_path: Path) -> None:
    """After 3 failures the work goes to the dead letter queue."""
    others, clock = RecordingSink(), FakeClock()
    letters = DeadLetters(DirectoryBucket(str(tmp_path)), clock)
    shop = Workshop("NR.NSI.1", clock=clock, sink=DeadLetterSink(letters, others))
    shop.robot.run(shop.failing(AWAY), correlation_id="event-1", input_data={"event": 1})
    (letter,) = letters.list()
    assert (letter.kind, letter.item, letter.error_code) == ("NR.NSI.1", {"event": 1}, AWAY)
    assert letter.error["details"]["retry_count"] == 3
    assert others.done == [Do.NOTIFY, Do.NOTIFY, Do.ESCALATE]


@pytest.mark.parametrize("event", ["event-1", "\N{MILKY WAY}" * 20_000])
def test_a_dead_letter_is_kept_although_not_all_of_its_work_is_json(tmp_path: Path, event: str) -> None:
    others, clock = RecordingSink(), FakeClock()
    letters = DeadLetters(DirectoryBucket(str(tmp_path)), clock)
    shop = Workshop("NR.NSI.1", clock=clock, sink=DeadLetterSink(letters, others))
    given = {"event": 1, "since": clock.now(), "of": {3, 4}}
    assert not shop.robot.run(shop.failing(AWAY), correlation_id=event, input_data=given).done
    (letter,) = letters.list()
    assert letter.item["event"] == 1
    assert "2026, 1, 1" in letter.item["since"]
    assert others.done == [Do.NOTIFY, Do.NOTIFY, Do.ESCALATE]


class BrokenDesk(RecordingSink):
    """Records everything, and fails at it."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def carry_out(self, action: FollowUp, record: Record) -> None:
        super().carry_out(action, record)
        raise self.error

    def recovered(self, robot_id: str) -> None:
        raise self.error


@pytest.mark.parametrize("error", [StorageError("the bucket is full"), ConnectionError("the ticket system is away")])
def test_an_action_that_cannot_be_carried_out_keeps_no_other_from_being_handed_in(error: Exception) -> None:
    sink = BrokenDesk(error)
    shop = Workshop("NR.NSI.1", sink=sink)
    result = shop.robot.run(shop.failing(AWAY), correlation_id="event-1")
    assert sink.done == [Do.DEAD_LETTER, Do.NOTIFY, Do.NOTIFY, Do.ESCALATE]
    assert result.failures[0].error.code == AWAY
    assert shop.robot.run(shop.failing(AWAY, times=0), correlation_id="event-2").value == "result"


def test_a_call_of_unknown_outcome_is_not_repeated() -> None:
    shop = Workshop("NR.NSI.1")

    def work(call: Call) -> None:
        shop.calls.append(call)
        raise OutcomeUnknown(Code.TIMEOUT, "no answer")

    result = shop.robot.run(work, correlation_id="paid")
    assert (len(shop.calls), result.done, shop.sink.done[0]) == (1, False, Do.DEAD_LETTER)


def test_a_robot_that_is_asked_to_stop_says_so_and_nothing_follows() -> None:
    sink = RecordingSink()
    robot = Robot(POLICIES["NR.NSI.1"], Ports(FakeClock(), lambda: 0.5, sink, stop=lambda: True))
    with pytest.raises(Stopped, match=r"NR\.NSI\.1 was stopped after 0 attempts"):
        robot.run(lambda call: None, correlation_id="x")
    assert sink.recorded == []


def test_a_bug_in_the_work_is_not_a_failure_of_the_robot() -> None:
    shop = Workshop("NR.NSI.1")

    def work(call: Call) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        shop.robot.run(work, correlation_id="x")
    assert shop.sink.recorded == []
