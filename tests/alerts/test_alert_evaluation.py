"""When alerts open, close, reopen and are sent, to the second."""

import random
from itertools import pairwise

import pytest
from alert_world import CHANNELS, START, AlertWorld, alert_settings, condition

from retake.alerts.board import ACKNOWLEDGED, OPEN, RESOLVED, Board, ChannelQueue
from retake.clock import stamp

FAILING = condition()


def test_what_is_new_is_sent_and_what_is_gone_is_closed_and_sent() -> None:
    world = AlertWorld()
    world.look(FAILING)
    assert (world.alert.state, world.alert.occurrences, world.alert.pipelines) == (OPEN, 1, ["story"])
    assert world.sent() == ["trigger"]
    world.after(60).look(FAILING)
    assert world.sent() == []
    world.after(60).look()
    assert (world.alert.state, world.alert.closed_at) == (RESOLVED, "2026-03-02T10:02:00Z")
    assert world.alert.pipelines == ["story"]
    assert world.sent() == ["resolve"]


def test_a_thousand_pipelines_that_fail_alike_are_one_alert() -> None:
    world = AlertWorld()
    for number in range(1000):
        world.look(condition(occurrence=f"error-{number}"), pipeline=f"story/{number:03}")
    assert world.alert.occurrences == 1000
    assert len(world.alert.pipelines) == 1000
    assert world.sent() == ["trigger"]
    for number in range(999):
        world.look(pipeline=f"story/{number:03}")
    assert (world.alert.state, world.alert.pipelines) == (OPEN, ["story/999"])
    world.look(pipeline="story/999")
    assert world.alert.state == RESOLVED


def test_the_count_rises_by_one_with_each_new_error_and_not_with_the_same_one() -> None:
    world = AlertWorld()
    for occurrence in ("a", "a", "b", "b", "c"):
        world.after(1).look(condition(occurrence=occurrence))
    assert world.alert.occurrences == 3
    assert (world.alert.first_at, world.alert.last_at) == ("2026-03-02T10:00:01Z", "2026-03-02T10:00:05Z")


def test_alerts_of_codes_that_were_not_looked_at_stay_as_they_are() -> None:
    world = AlertWorld().look(FAILING)
    world.look(codes={"state_unreadable", "bug"})
    assert world.alert.state == OPEN


def test_what_nobody_acknowledged_is_reported_again_every_15_minutes() -> None:
    telephone = {"kind": "sms", "account": "A", "from": "1", "to": ["2"]}
    world = AlertWorld(escalate=["boss"], channels={"all": {"kind": "webhook"}, "boss": telephone})
    world.look(FAILING)
    assert (world.sent(), world.sent("boss")) == (["trigger"], [])
    world.after(899).look(FAILING)
    assert (world.sent(), world.sent("boss")) == ([], [])
    world.after(1).look(FAILING)
    assert (world.sent(), world.sent("boss")) == (["repeat"], ["repeat"])
    world.after(900).look(FAILING)
    assert (world.sent(), world.sent("boss")) == (["repeat"], ["repeat"])


def test_what_nobody_acknowledged_reaches_those_whose_hours_begin_meanwhile() -> None:
    telephone = {"kind": "sms", "account": "A", "from": "1", "to": ["2"]}
    world = AlertWorld(channels={"pager": {"kind": "pagerduty"}, "phone": telephone})
    broken = condition(level="critical")
    world.after(7.9 * 3600).look(broken)  # six minutes before the working hours end
    assert (world.sent("pager"), world.sent("phone")) == (["trigger"], [])
    world.after(900).look(broken)
    assert (world.sent("pager"), world.sent("phone")) == (["repeat"], ["repeat"])
    world.after(60).look()
    assert world.sent("pager") == ["resolve"]


def test_a_condition_that_is_ending_keeps_an_alert_open_and_raises_none() -> None:
    ending = condition(occurrence="2", ending=True)
    world = AlertWorld().look(ending)
    assert world.board.alerts == {}
    world.look(FAILING)
    world.look(ending)
    assert (world.alert.state, world.alert.occurrences, world.sent()) == (OPEN, 2, ["trigger"])
    world.look()
    assert world.sent() == ["resolve"]
    world.look(ending)
    assert (world.alert.state, world.sent()) == (RESOLVED, [])


def test_what_is_acknowledged_is_not_sent_again_unless_it_grows_worse() -> None:
    world = AlertWorld().look(FAILING)
    world.acknowledge()
    assert (world.alert.state, world.alert.acknowledged_by) == (ACKNOWLEDGED, "ann")
    world.sent()
    world.after(5000).look(condition(occurrence="2"))
    assert (world.sent(), world.alert.state, world.alert.occurrences) == ([], ACKNOWLEDGED, 2)
    world.look(condition(occurrence="2", level="critical"))
    assert (world.sent(), world.alert.state, world.alert.level) == (["trigger"], OPEN, "critical")
    world.look(condition(occurrence="2", level="warning"))
    assert (world.sent(), world.alert.level) == ([], "warning")


def test_what_is_acknowledged_before_its_repeat_is_not_sent_again() -> None:
    world = AlertWorld().look(condition())
    world.after(60).look()
    assert world.sent() == ["trigger", "resolve"]
    world.after(60).look(condition(occurrence="2"))
    world.acknowledge()
    world.after(3600).look(condition(occurrence="2"))
    assert (world.sent(), world.alert.state) == ([], "acknowledged")
    world.after(60).look(condition(occurrence="3", level="critical"))
    assert world.sent() == ["trigger"]


def test_raised_again_within_five_minutes_it_is_the_same_and_is_told_when_they_are_over() -> None:
    world = AlertWorld().look(FAILING)
    name = world.alert.id
    world.after(10).look()
    assert world.sent() == ["trigger", "resolve"]
    world.after(299).look(condition(occurrence="2"))
    assert (world.alert.id, world.alert.state, world.alert.occurrences) == (name, OPEN, 2)
    assert world.sent() == []
    world.after(1).look(condition(occurrence="2"))
    assert world.sent() == ["trigger"]


def test_what_comes_and_goes_is_reported_once() -> None:
    world = AlertWorld().look(FAILING)
    told = world.sent()
    for number in range(500):  # a minute each
        world.after(60).look(*([condition(occurrence=str(number))] if number % 2 else []))
        told += world.sent()
    assert told == ["trigger", "resolve"]
    assert world.alert.occurrences == 251


def test_raised_again_later_it_is_another_one() -> None:
    world = AlertWorld().look(FAILING)
    name = world.alert.id
    world.after(10).look()
    world.sent()
    world.after(300).look(condition(occurrence="2"))
    assert world.alert.id != name
    assert world.sent() == ["trigger"]
    assert [it.id for it in world.board.ended] == [name]


YEAR_S = 365 * 24 * 3600


def test_a_clock_that_was_a_year_ahead_keeps_nothing_from_being_told() -> None:
    world = AlertWorld()
    ahead = world.after(YEAR_S).look(FAILING)
    assert ahead.sent() == ["trigger"]
    assert world.after(-YEAR_S).look(FAILING).sent() == ["repeat"]
    assert world.after(60).look(FAILING).sent() == []
    world.after(YEAR_S).look()
    assert world.sent() == ["resolve"]
    assert world.after(-YEAR_S).look(condition(occurrence="2")).sent() == ["trigger"]
    world.after(YEAR_S).look()
    world.after(60).look(condition(occurrence="3"))
    assert world.sent() == ["resolve"]  # the alert that came back waits
    assert world.after(-YEAR_S).look(condition(occurrence="3")).sent() == ["trigger"]


def test_a_clock_of_another_machine_that_is_a_little_ahead_changes_nothing() -> None:
    world = AlertWorld()
    assert world.after(30).look(FAILING).sent() == ["trigger"]
    assert world.after(-30).look(FAILING).sent() == []
    assert world.after(30).look().sent() == ["resolve"]
    assert world.after(-30).look(condition(occurrence="2")).sent() == []


def test_one_that_is_closed_by_hand_stays_closed_until_its_cause_occurs_again() -> None:
    world = AlertWorld().look(FAILING)
    world.close()
    assert (world.alert.state, world.alert.closed_by) == (RESOLVED, "ann")
    assert world.sent() == ["trigger", "resolve"]
    world.after(3600).look(FAILING)
    assert (world.alert.state, world.sent()) == (RESOLVED, [])
    world.look(condition(occurrence="2"))
    assert (world.alert.state, world.sent()) == (OPEN, ["trigger"])


@pytest.mark.parametrize("seconds", [60, 3600])
def test_closed_by_hand_what_its_pipelines_have_does_not_count_again_when_another_has_it(seconds: int) -> None:
    world = AlertWorld().look(FAILING, pipeline="one").look(FAILING, pipeline="two")
    world.close()
    world.after(seconds).look(condition(occurrence="2", message="the new error"), pipeline="three")
    count = world.alert.occurrences
    world.after(1).look(FAILING, pipeline="one").look(FAILING, pipeline="two")
    assert (world.alert.occurrences, world.alert.message) == (count, "the new error")
    assert world.alert.pipelines == ["one", "three", "two"]


def test_closed_by_hand_it_is_over_since_then_also_once_its_cause_is_gone() -> None:
    world = AlertWorld().look(FAILING)
    world.close()
    at = world.alert.closed_at
    world.after(60).look()
    assert (world.alert.closed_at, world.alert.closed_by, world.sent()) == (at, "ann", ["trigger", "resolve"])


def test_an_alert_says_what_its_only_pipeline_says_and_of_several_the_one_with_the_last_error() -> None:
    world = AlertWorld().look(condition(message="the next attempt is soon"))
    world.look(condition(message="the next attempt is due"))
    assert world.alert.message == "the next attempt is due"
    world.look(condition(occurrence="2", message="of the second"), pipeline="two")
    world.look(condition(message="the next attempt is late"))
    assert world.alert.message == "of the second"


def test_an_alert_of_several_pipelines_is_as_bad_as_the_worst_and_as_old_as_the_first() -> None:
    world = AlertWorld().look(condition(since="2026-03-02T09:00:00Z"))
    world.look(condition(occurrence="2", since="2026-03-02T09:30:00Z"), pipeline="two")
    assert (world.alert.since, world.alert.level) == ("2026-03-02T09:00:00Z", "warning")
    world.look(condition(occurrence="3", level="critical", title="worse"), pipeline="two")
    assert (world.alert.level, world.alert.title) == ("critical", "worse")
    world.look(condition(occurrence="4", title="another"))
    assert (world.alert.level, world.alert.title) == ("critical", "another")


def test_a_channel_that_refuses_is_an_alert_while_it_is_in_the_settings() -> None:
    world, refused = AlertWorld(), ChannelQueue(failures=3, last_error="HTTP 410", refused_at=stamp(START))
    world.board = Board(channels={"all": refused, "former": refused})
    for _ in range(2):
        world.after(60).look()
        assert ([*world.board.alerts], world.alert.state) == (["channel_refused/all"], OPEN)
        assert world.board.channels == {"all": refused}


def test_a_channel_that_is_removed_while_a_message_waits_has_the_end_too_once_it_is_back() -> None:
    world = AlertWorld(channels={**CHANNELS, "other": {"kind": "webhook"}}).look(FAILING)
    world.sent("all")
    world.settings = alert_settings(channels=CHANNELS)
    world.after(10).look()
    assert (world.sent("all"), world.queue("other")) == (["resolve"], ["trigger", "resolve"])


def test_one_that_is_often_over_at_once_is_sent_only_if_it_lasts() -> None:
    world = AlertWorld(group_seconds=300, repeat_seconds=900)
    away = [condition(occurrence=str(number), lasting=True) for number in range(10)]
    world.look(away[0])
    assert (world.alert.state, world.sent()) == (OPEN, [])
    world.after(60).look()
    assert (world.alert.state, world.sent()) == (RESOLVED, [])
    world.after(299).look(away[1])  # soon after its end: the five minutes begin again
    for number in range(2, 6):
        world.after(60).look(away[number])
        assert world.sent() == []
    world.after(60).look(away[6])
    assert (world.alert.occurrences, world.sent()) == (7, ["trigger"])
    world.after(900).look(away[7])
    assert world.sent() == ["repeat"]
    world.after(60).look()
    assert world.sent() == ["resolve"]


def test_one_that_is_over_leaves_the_board_for_the_document_of_its_day() -> None:
    world = AlertWorld().look(FAILING)
    world.after(10).look()
    world.after(300).look()
    assert world.board.alerts == {}
    assert [it.key for it in world.board.ended] == ["step_failing/imagine"]


def test_an_end_is_not_sent_if_the_beginning_was_not() -> None:
    world = AlertWorld(channels={"sms": {"kind": "sms", "account": "A", "from": "1", "to": ["2"]}}).look(FAILING)
    assert world.sent("sms") == ["trigger"]  # no channel takes a warning, so all do
    world.look()
    assert world.sent("sms") == []  # `resolved` is off for a telephone


@pytest.mark.parametrize("seed", range(20))
def test_at_random_it_is_reported_at_most_every_five_minutes_and_never_twice_the_same(seed: int) -> None:
    choose = random.Random(seed)
    world = AlertWorld(repeat_seconds=900, group_seconds=300)
    told: list[tuple[float, str]] = []
    at = 0.0
    for number in range(400):
        wait = choose.choice((1, 10, 60, 300, 900))
        at += wait
        world.after(wait).look(*([condition(occurrence=str(number))] if choose.random() < 0.6 else []))
        told += [(at, event) for event in world.sent()]
    starts = [moment for moment, event in told if event in ("trigger", "repeat")]
    apart = [later - earlier for earlier, later in pairwise(starts)]
    assert min(apart) >= 300, f"seed {seed}: {told}"
    open_now = False
    for _, event in told:
        assert (event == "trigger") != open_now or event == "repeat", f"seed {seed}: {told}"
        open_now = event != "resolve"


def test_ten_thousand_equal_failures_in_five_minutes_are_one_notice_then_one_per_quarter_of_an_hour() -> None:
    world = AlertWorld()
    told = []
    for number in range(10_000):
        world.after(0.03).look(condition(occurrence=str(number)), pipeline=f"story/{number % 10}")
        told += world.sent()
    assert (told, world.alert.occurrences) == (["trigger"], 10_000)
    for minute in range(60):
        world.after(60).look(condition(occurrence=str(minute)))
        told += world.sent()
    assert told == ["trigger", *["repeat"] * 4]
