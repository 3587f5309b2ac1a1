"""The effect of each event on the document: the counting rule, what is cleared when, what is always kept."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from story_shapes import COUNTERS, NOON, SHAPES, UNKNOWN_KEYS

from retake.story import transitions
from retake.story.documents import (
    FAILED_STEP,
    FAILURE_STATUS,
    IMAGINE,
    MidjourneyDocument,
    Status,
    Step,
    parse_midjourney,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
PAID_STEPS = (Step.CONTENT, Step.IMAGINE, Step.UPSCALE, Step.RUNWAY)
RECORDS = {letter: {"error_class": letter, "message": f"class {letter}", "timestamp": NOON} for letter in "ABC"}
TEMPORARY = RECORDS["A"]

Doc = MidjourneyDocument


def doc(**keys: Any) -> Doc:
    return parse_midjourney(json.dumps(keys).encode())


def asking(step: Step, **keys: Any) -> Doc:
    """Return a document with a pending paid call of that step."""
    return transitions.intended(doc(**keys), step, NOW, {"nonce": 7}, 0.25)


def flying(kind: str, **keys: Any) -> Doc:
    return doc(midjourney_task={"task_id": "t", "task_type": kind, "requested_at_utc": NOON}, **keys)


def filming(**keys: Any) -> Doc:
    return doc(runway_task={"task_id": "r", "requested_at_utc": NOON}, status="waiting_for_runway", **keys)


PICTURES = {"task_id": "i", "task_type": "imagine", "task_result": {"image_url": "grid"}}


# --- every transition on every shape ----------------------------------------------------------------------------------


def possible(before: Doc) -> Iterator[tuple[str, Callable[[], Doc]]]:
    """Yield the transitions that can happen to a document of this shape, by name."""
    yield "clean", lambda: transitions.clean(before)
    yield "content_ready", lambda: transitions.content_ready(before)
    yield "picture_next", lambda: transitions.picture_next(before)
    yield "flag_lowered", lambda: transitions.flag_lowered(before)
    yield "exhausted", lambda: transitions.exhausted(before)
    yield "mock_instead", lambda: transitions.mock_instead(before)
    yield "mock_failed", lambda: transitions.mock_failed(before)
    yield "alerted", lambda: transitions.alerted(before)
    yield "hold_lifted", lambda: transitions.hold_lifted(before)
    yield "video_polled", lambda: transitions.video_polled(before, NOW)
    yield "video_delivered", lambda: transitions.video_delivered(before)
    for step in PAID_STEPS:
        yield f"intended {step}", lambda step=step: transitions.intended(before, step, NOW, {"nonce": 7})
    for status in FAILED_STEP:
        for letter, record in RECORDS.items():
            yield (
                f"failed {status} {letter}",
                lambda status=status, record=record: transitions.failed(before, status, record),
            )
    if before.status in FAILED_STEP:
        yield "retried", lambda: transitions.retried(before)
    if before.runway_task:
        late = Status.RUNWAY_POLL_TIMEOUT
        yield "polls_counted", lambda: transitions.failed(transitions.polls_counted(before, 2), late, TEMPORARY)
        yield "video_task_failed", lambda: transitions.video_task_failed(before, TEMPORARY)
    if before.task:
        yield "picture_delivered", lambda: transitions.picture_delivered(before, {"image_url": "u"})
        yield "picture_still_awaited", lambda: transitions.picture_still_awaited(before, NOW)
        yield "picture_task_failed", lambda: transitions.picture_task_failed(before, TEMPORARY)
    if before.results:
        yield "picture_picked", lambda: transitions.picture_picked(before, 3)
    if before.pending:
        yield from possible_while_asking(before, before.pending.step)


def possible_while_asking(before: Doc, step: Step) -> Iterator[tuple[str, Callable[[], Doc]]]:
    yield "call_refused", lambda: transitions.call_refused(before, TEMPORARY)
    yield "call_wasted", lambda: transitions.call_wasted(before, TEMPORARY)
    yield "call_lost", lambda: transitions.call_lost(before, TEMPORARY)
    yield "call_held", lambda: transitions.call_held(before, TEMPORARY)
    yield "operator_retries", lambda: transitions.operator_retries(before)
    yield "operator_skips", lambda: transitions.operator_skips(before, mock=False)
    yield "operator_skips for a mock", lambda: transitions.operator_skips(before, mock=True)
    if step is Step.CONTENT:
        yield "answered", lambda: transitions.answered(before, {"topic": "t"})
    elif step is Step.RUNWAY:
        yield "video_ordered", lambda: transitions.video_ordered(before, "r2")
    else:
        yield "picture_ordered", lambda: transitions.picture_ordered(before, "t2")


OURS = {
    "spend",
    *("midjourney_task", "midjourney_results", "generation", "status", "retry_count"),
    *("retries", "runway_task", "pending_call", "last_error", "content_draft", "paid_calls", "failed_step"),
}


def check_every_transition(before: Doc) -> None:
    raw, encoded = json.dumps(before.raw), before.encode()
    unknown = {key: value for key, value in before.raw.items() if key not in OURS}
    for name, happens in possible(before):
        after = happens()
        assert parse_midjourney(after.encode()) == after, name
        assert {key: value for key, value in after.raw.items() if key not in OURS} == unknown, name
        assert after.raw["retry_count"] == after.retries_of(after.present_step), name
        assert json.dumps(before.raw) == raw, f"{name} changed the document that it was given"
    assert before.encode() == encoded


@pytest.mark.slow
def test_every_transition_of_every_shape_can_be_saved_and_read() -> None:
    for keys in SHAPES[::13]:
        check_every_transition(doc(**keys, note={"kept": [1, None]}))


@pytest.mark.slow
@given(st.sampled_from(SHAPES), COUNTERS, UNKNOWN_KEYS)
def test_every_transition_keeps_the_keys_that_nobody_here_knows(
    keys: dict[str, Any], retries: dict[str, int], unknown: dict[str, Any]
) -> None:
    check_every_transition(doc(**keys, **unknown, retries=retries, paid_calls=[{"step": "content"}]))


# --- the counting rule ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", FAILED_STEP)
def test_a_failure_leaves_the_counters_alone_and_a_reset_adds_one(status: Status) -> None:
    step = FAILED_STEP[status]
    before = doc(retries={step.value: 1, "other": 4})
    failed = transitions.failed(before, status, TEMPORARY)
    assert failed.retries == before.retries
    assert transitions.retried(failed).retries == {step.value: 2, "other": 4}


@pytest.mark.parametrize("step", PAID_STEPS)
def test_an_order_that_was_taken_clears_no_counter(step: Step) -> None:
    before = asking(step, retries={step.value: 2})
    if step is Step.CONTENT:
        after = transitions.answered(before, {"topic": "t"})
    elif step is Step.RUNWAY:
        after = transitions.video_ordered(before, "r")
    else:
        after = transitions.picture_ordered(before, "t")
    assert after.retries_of(step) == 2


@pytest.mark.parametrize(("kind", "step"), [("imagine", Step.IMAGINE), ("upscale", Step.UPSCALE)])
def test_a_picture_that_is_there_clears_the_counters_of_its_order_and_of_the_fetch(kind: str, step: Step) -> None:
    before = flying(kind, retries={"imagine": 1, "upscale": 2, "fetch": 3, "runway": 1})
    after = transitions.picture_delivered(before, {"image_url": "u"})
    assert after.retries == {name: n for name, n in before.retries.items() if name not in (step, "fetch")}


def test_an_answered_poll_clears_the_counter_of_polls_alone() -> None:
    counted = {"imagine": 1, "fetch": 2, "runway_poll": 3}
    assert transitions.picture_still_awaited(flying("imagine", retries=counted), NOW).retries == {
        "imagine": 1,
        "runway_poll": 3,
    }
    assert transitions.video_polled(filming(retries=counted), NOW).retries == {"imagine": 1, "fetch": 2}


def test_a_task_that_failed_counts_for_its_order_and_no_longer_for_the_polls() -> None:
    picture = transitions.picture_task_failed(flying("upscale", retries={"upscale": 1, "fetch": 2}), TEMPORARY)
    assert picture.retries == {"upscale": 1}
    film = transitions.video_task_failed(filming(retries={"runway": 1, "runway_poll": 2}), TEMPORARY)
    assert film.retries == {"runway": 1}


@pytest.mark.parametrize("polls_failed", [0, 2])
def test_polling_in_vain_puts_the_counter_back_to_what_it_was(polls_failed: int) -> None:
    polled = transitions.video_polled(filming(retries={"runway_poll": polls_failed}), NOW)
    after = transitions.failed(transitions.polls_counted(polled, polls_failed), Status.RUNWAY_POLL_TIMEOUT, TEMPORARY)
    assert after.retries_of(Step.RUNWAY_POLL) == polls_failed
    assert transitions.retried(after).retries_of(Step.RUNWAY_POLL) == polls_failed + 1


def test_a_finished_generation_has_no_counters() -> None:
    assert transitions.video_delivered(filming(retries={"content": 1, "runway": 3})).retries == {}
    assert transitions.content_ready(doc(retries={"content": 1})).retries == {}


def test_a_failed_mock_is_counted() -> None:
    once = transitions.mock_failed(doc(status="timed_out_mock_needed"))
    assert (once.retries, once.raw["retry_count"]) == ({"mock": 1}, 1)
    assert transitions.mock_failed(once).retries == {"mock": 2}


# --- beginning and ending ---------------------------------------------------------------------------------------------


def test_a_clean_document_has_nothing_under_way() -> None:
    for keys in SHAPES[::101]:
        before = doc(**keys, retries={"content": 1}, last_error={"a": 1}, content_draft={"a": 1}, failed_step="runway")
        after = transitions.clean(before)
        assert after.blank
        assert after.raw == {
            "midjourney_task": None,
            "midjourney_results": {},
            "generation": False,
            "status": None,
            "retry_count": 0,
        }


def test_the_text_raises_the_flag_and_keeps_what_it_cost() -> None:
    before = transitions.answered(asking(Step.CONTENT, last_error=TEMPORARY), {"topic": "t"})
    after = transitions.content_ready(before)
    assert after.generation
    assert (after.draft, after.status, after.raw.get("last_error")) == ({}, None, None)
    assert [call["step"] for call in after.paid_calls] == ["content"]


def test_the_flag_goes_up_and_down() -> None:
    assert transitions.picture_next(doc()).generation
    assert not transitions.flag_lowered(doc(generation=True)).generation


# --- paid calls -------------------------------------------------------------------------------------------------------


def test_what_is_about_to_be_asked_is_on_record_with_its_attempt_and_time() -> None:
    asked = asking(Step.IMAGINE, retries={"imagine": 2}, status=None).pending
    assert asked is not None
    assert asked.raw == {"step": "imagine", "attempt": 3, "requested_at_utc": NOON, "price_usd": 0.25, "nonce": 7}


def test_an_ordered_picture_is_in_flight_since_it_was_asked_for() -> None:
    after = transitions.picture_ordered(asking(Step.IMAGINE, generation=True, last_error=TEMPORARY), "t1")
    assert after.raw["midjourney_task"] == {"task_id": "t1", "task_type": "imagine", "requested_at_utc": NOON}
    assert (after.status, after.generation, after.pending, after.raw.get("last_error")) == (
        Status.WAITING_FOR_IMAGINE,
        False,
        None,
        None,
    )
    (call,) = after.paid_calls
    assert call == {
        "step": "imagine",
        "attempt": 1,
        "requested_at_utc": NOON,
        "price_usd": 0.25,
        "outcome": "accepted",
        "task_id": "t1",
    }


def test_an_ordered_upscale_keeps_the_pictures_it_is_made_from() -> None:
    after = transitions.picture_ordered(asking(Step.UPSCALE, midjourney_results=PICTURES), "t2")
    assert after.raw["midjourney_results"] == PICTURES
    assert after.status is Status.WAITING_FOR_UPSCALE
    assert after.task is not None
    assert after.task.task_type == "upscale"


def test_an_ordered_film_is_in_flight_since_it_was_asked_for() -> None:
    after = transitions.video_ordered(asking(Step.RUNWAY), "r1")
    assert after.raw["runway_task"] == {"task_id": "r1", "requested_at_utc": NOON}
    assert (after.status, after.pending) == (Status.WAITING_FOR_RUNWAY, None)
    assert after.paid_calls[0]["task_id"] == "r1"


def test_a_call_found_again_that_does_not_say_when_it_was_made_is_in_flight_anyway() -> None:
    lost = doc(pending_call={"step": "upscale"}, midjourney_results=PICTURES)
    after = transitions.picture_ordered(lost, "t2")
    assert after.task is not None
    assert (after.task.task_id, after.task.requested_at) == ("t2", None)


def test_answers_of_the_writer_add_up() -> None:
    once = transitions.answered(asking(Step.CONTENT), {"topic": "t"})
    twice = transitions.answered(transitions.intended(once, Step.CONTENT, NOW, {"call": "text"}), {"text": "x"})
    assert twice.draft == {"topic": "t", "text": "x"}
    assert twice.pending is None
    assert [call.get("call") for call in twice.paid_calls] == [None, "text"]


@pytest.mark.parametrize("step", PAID_STEPS)
def test_a_refused_call_was_not_paid_for(step: Step) -> None:
    after = transitions.call_refused(asking(step), TEMPORARY)
    assert (after.status, after.pending, after.paid_calls) == (FAILURE_STATUS[step], None, [])
    assert after.raw.get("last_error") == TEMPORARY


@pytest.mark.parametrize("step", PAID_STEPS)
def test_a_wasted_call_and_a_lost_one_are_on_record_as_spent(step: Step) -> None:
    wasted, lost = transitions.call_wasted(asking(step), TEMPORARY), transitions.call_lost(asking(step), TEMPORARY)
    assert wasted.status is lost.status is FAILURE_STATUS[step]
    assert [call["outcome"] for call in wasted.paid_calls] == ["wasted"]
    assert [(call["outcome"], call["possible_duplicate"]) for call in lost.paid_calls] == [("unknown", True)]


def test_a_held_call_stays_as_it_was_asked() -> None:
    before = asking(Step.IMAGINE, generation=True, status=None)
    after = transitions.call_held(before, TEMPORARY)
    assert after.raw["pending_call"] == {**before.raw["pending_call"], "outcome": "unknown"}
    assert (after.status, after.generation, after.paid_calls) == (None, True, [])


def test_the_operator_lets_a_held_call_be_made_again_without_using_up_an_attempt() -> None:
    held = transitions.call_held(asking(Step.UPSCALE, retries={"upscale": 1}, midjourney_results=PICTURES), TEMPORARY)
    after = transitions.operator_retries(held)
    assert (after.pending, after.raw.get("last_error"), after.retries) == (None, None, {"upscale": 1})
    assert after.paid_calls[0]["possible_duplicate"] is True


def test_the_operator_skips_a_held_call_and_the_generation_ends() -> None:
    held = transitions.call_held(asking(Step.RUNWAY), TEMPORARY)
    failed, mock = transitions.operator_skips(held, mock=False), transitions.operator_skips(held, mock=True)
    assert (failed.status, failed.failed_step) == (Status.TASK_FAILED_MAX_RETRIES, Step.RUNWAY)
    assert mock.status is Status.TIMED_OUT_MOCK_NEEDED
    assert failed.pending is mock.pending is None
    assert failed.paid_calls == mock.paid_calls


# --- what the vendors' tasks deliver ----------------------------------------------------------------------------------


def test_a_delivered_picture_takes_the_place_of_what_it_was_made_from() -> None:
    before = flying("upscale", midjourney_results=PICTURES, status="waiting_for_upscale", last_error=TEMPORARY)
    after = transitions.picture_delivered(before, {"image_url": "u", "more": [1]})
    assert after.raw["midjourney_results"] == {
        "task_id": "t",
        "task_type": "upscale",
        "task_result": {"image_url": "u", "more": [1]},
    }
    assert (after.task, after.status, after.raw.get("last_error")) == (None, None, None)


def test_a_task_that_does_not_say_when_it_was_ordered_is_dated_by_its_first_answered_poll() -> None:
    undated = doc(midjourney_task={"task_id": "t"})
    assert transitions.picture_still_awaited(undated, NOW).raw["midjourney_task"]["requested_at_utc"] == NOON
    dated = flying("imagine")
    assert transitions.picture_still_awaited(dated, datetime(2027, 1, 1, tzinfo=UTC)).task == dated.task


@pytest.mark.parametrize(
    ("kind", "status"), [("imagine", Status.IMAGINE_TRIGGER_FAILED), ("upscale", Status.UPSCALE_TRIGGER_FAILED)]
)
def test_a_task_that_failed_is_a_failed_order_and_its_id_is_dropped(kind: str, status: Status) -> None:
    after = transitions.picture_task_failed(flying(kind, midjourney_results=PICTURES), TEMPORARY)
    assert (after.status, after.task) == (status, None)
    assert after.raw["midjourney_results"] == PICTURES


def test_a_film_that_failed_is_a_failed_order_and_its_id_is_dropped() -> None:
    after = transitions.video_task_failed(filming(), TEMPORARY)
    assert (after.status, after.runway_task) == (Status.RUNWAY_TRIGGER_FAILED, None)


def test_the_choice_of_a_picture_is_kept_with_the_pictures() -> None:
    begun = transitions.picture_picked(doc(midjourney_results=PICTURES), 0)
    assert begun.results is not None
    assert begun.results.picked == 0
    assert begun.raw["midjourney_results"] == {**PICTURES, "picked": 0}


# --- failures and retries ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", FAILED_STEP)
def test_the_class_of_an_error_says_what_a_failure_comes_to(status: Status) -> None:
    before = doc(status=None, note="kept")
    temporary, business, critical = (transitions.failed(before, status, RECORDS[letter]) for letter in "ABC")
    assert (temporary.status, temporary.failed_step) == (status, None)
    assert (business.status, business.failed_step) == (Status.TASK_FAILED_MAX_RETRIES, FAILED_STEP[status])
    assert critical.without("last_error") == before.without("last_error"), "everything stays as it is"
    assert [after.raw.get("last_error") for after in (temporary, business, critical)] == list(RECORDS.values())


@pytest.mark.parametrize(
    ("before", "status", "generation"),
    [
        (doc(status="content_failed"), None, False),
        (doc(status="imagine_trigger_failed"), None, True),
        (doc(status="upscale_trigger_failed", midjourney_results=PICTURES), None, False),
        (flying("imagine", status="mj_fetch_failed"), "waiting_for_imagine", False),
        (flying("upscale", status="mj_fetch_failed", midjourney_results=PICTURES), "waiting_for_upscale", False),
        (doc(status="mj_fetch_failed"), None, False),
        (doc(status="runway_trigger_failed", midjourney_results=PICTURES), None, False),
        (filming().updated(status="runway_poll_failed"), "waiting_for_runway", False),
        (filming().updated(status="runway_poll_timeout"), "waiting_for_runway", False),
        (doc(status="runway_poll_failed"), None, False),
    ],
    ids=lambda value: value.raw["status"] if isinstance(value, MidjourneyDocument) else str(value),
)
def test_a_reset_goes_back_to_what_stood_before_the_failed_step(
    before: Doc, status: str | None, generation: bool
) -> None:
    after = transitions.retried(before)
    assert (after.status, after.generation) == (status, generation)
    assert (after.task, after.results, after.runway_task) == (before.task, before.results, before.runway_task)
    assert after.raw["retry_count"] == after.retries_of(after.present_step)


def test_a_generation_whose_attempts_are_used_up_says_at_which_step() -> None:
    after = transitions.exhausted(doc(status="upscale_trigger_failed", retries={"upscale": 3}))
    assert (after.status, after.failed_step) == (Status.TASK_FAILED_MAX_RETRIES, Step.UPSCALE)
    assert after.raw["retry_count"] == 3, "the counter of the failed step is still shown"


def test_a_generation_that_failed_at_its_picture_leaves_no_flag_to_the_next() -> None:
    before = doc(status="imagine_trigger_failed", generation=True, retries={"imagine": 3})
    failed = transitions.exhausted(before)
    assert not failed.generation
    assert transitions.requeued(failed, doc()).generation


def test_giving_up_on_the_vendors_drops_what_they_have_in_flight() -> None:
    before = flying("imagine", midjourney_results=PICTURES, runway_task={"task_id": "r"}, paid_calls=[{"a": 1}])
    after = transitions.mock_instead(before.updated(generation=True))
    assert (after.task, after.results, after.runway_task, after.generation) == (None, None, None, False)
    assert after.status is Status.TIMED_OUT_MOCK_NEEDED
    assert after.paid_calls == [{"a": 1}]


def test_what_a_person_was_told_of_and_has_mended_is_on_record() -> None:
    told = transitions.alerted(doc(last_error=RECORDS["C"]))
    assert told.raw.get("last_error") == {**RECORDS["C"], "alerted": True}
    assert transitions.hold_lifted(told).raw.get("last_error") is None


def test_the_type_of_a_task_tells_which_step_ordered_it() -> None:
    for kind, step in ((IMAGINE, Step.IMAGINE), ("upscale", Step.UPSCALE)):
        task = flying(kind).task
        assert task is not None
        assert transitions.ordered_by(task) is step
