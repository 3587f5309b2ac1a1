"""The decision, compared with its own table row by row, for every shape that the documents can have."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from story_shapes import COUNTERS, FILES, NOON, SHAPES, shaped

from retake.clock import parse_stamp, stamp
from retake.errors import retry_in
from retake.story import decision
from retake.story.decision import Act, Action, decide, held_until, script_of
from retake.story.documents import (
    FAILED_STEP,
    IMAGINE,
    UPSCALE,
    Documents,
    GenDocument,
    MidjourneyDocument,
    Status,
    Step,
    parse_midjourney,
)
from retake.story.settings import Workflow

NOW = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)  # half an hour after whatever the shapes have in flight was ordered
LATER = NOW + timedelta(days=1)
LIMITS = Workflow()


class Case(NamedTuple):
    """What a row of the table looks at."""

    documents: Documents
    limits: Workflow
    now: datetime

    @property
    def doc(self) -> MidjourneyDocument:
        return self.documents.midjourney

    @property
    def failed(self) -> bool:
        return self.doc.status in FAILED_STEP

    @property
    def attempts_left(self) -> bool:
        assert self.doc.status is not None
        step, film = FAILED_STEP[self.doc.status], self.doc.runway_task
        ordered = film.requested_at if film and step is Step.RUNWAY_POLL else None
        over = ordered is not None and self.now - ordered > timedelta(seconds=self.limits.runway_timeout_seconds)
        return self.doc.retries.get(step, 0) < self.limits.max_retries and not over

    @property
    def waits(self) -> bool:
        error = self.doc.raw.get("last_error")
        return bool(error and parse_stamp(error["timestamp"]) + timedelta(seconds=30) > self.now)

    @property
    def substitute(self) -> bool:
        content = self.doc.status is Status.CONTENT_FAILED
        return self.limits.on_exhausted == "mock" and not content and "json" in self.documents.files

    @property
    def late(self) -> bool:
        task, limit = self.doc.task, timedelta(seconds=self.limits.mj_timeout_seconds)
        return bool(task and task.requested_at and self.now - task.requested_at > limit)

    def results_of(self, kind: str) -> bool:
        return bool(self.doc.results and self.doc.results.task_type == kind)


class Row(NamedTuple):
    number: int
    act: Act
    applies: Callable[[Case], Any]


IDLE: Callable[[Case], bool] = lambda case: case.documents.gen.generation_id is None  # noqa: E731
ROWS = [
    Row(1, Act.LOWER_FLAG, lambda case: IDLE(case) and case.doc.generation),
    Row(2, Act.WAIT, lambda case: IDLE(case) and case.documents.gen.failed_in_a_row >= case.limits.max_failed_in_a_row),
    Row(3, Act.BEGIN, IDLE),
    Row(4, Act.DEAD_LETTER, lambda case: case.doc.status is Status.TASK_FAILED_MAX_RETRIES),
    Row(
        5,
        Act.WAIT,
        lambda case: case.doc.pending and case.doc.pending.outcome and case.limits.on_unknown_outcome == "hold",
    ),
    Row(6, Act.RECONCILE, lambda case: case.doc.pending),
    Row(7, Act.WAIT, lambda case: case.failed and case.attempts_left and case.waits),
    Row(8, Act.RETRY, lambda case: case.failed and case.attempts_left),
    Row(9, Act.SUBSTITUTE, lambda case: case.failed and case.substitute),
    Row(10, Act.FAIL, lambda case: case.failed),
    Row(11, Act.MAKE_MOCK, lambda case: case.doc.status is Status.TIMED_OUT_MOCK_NEEDED),
    Row(12, Act.FINISH, lambda case: case.documents.files >= {"json", "png", "mp4"}),
    Row(13, Act.POLL_VIDEO, lambda case: case.doc.runway_task),
    Row(14, Act.TIME_OUT, lambda case: case.late),
    Row(15, Act.FETCH, lambda case: case.doc.task),
    Row(16, Act.ORDER_VIDEO, lambda case: case.results_of(UPSCALE)),
    Row(17, Act.ORDER_UPSCALE, lambda case: case.results_of(IMAGINE)),
    Row(18, Act.WRITE, lambda case: "json" not in case.documents.files),
    Row(19, Act.ORDER_IMAGINE, lambda case: case.doc.generation),
    Row(20, Act.RAISE_FLAG, lambda case: True),
]

FAILED_JUST_NOW, FAILED_BEFORE = (
    {"error_class": "A", "timestamp": stamp(NOW - timedelta(seconds=ago)), "recovery_actions": [retry_in(30)]}
    for ago in (29, 30)
)

LIMITS_THAT_MATTER = [
    LIMITS,
    LIMITS._replace(max_retries=0, on_exhausted="mock", on_unknown_outcome="hold", mj_timeout_seconds=60),
]


def first_row(case: Case) -> Row:
    return next(row for row in ROWS if row.applies(case))


@pytest.fixture(scope="module")
def cases() -> dict[int, list[Case]]:
    """Return every shape of the documents, by the first row of the table that applies to it."""
    found: dict[int, list[Case]] = {row.number: [] for row in ROWS}
    errors = [{"last_error": FAILED_JUST_NOW}, {"last_error": FAILED_BEFORE}]
    shapes = [*SHAPES, *({**keys, **error} for keys in SHAPES[:: len(SHAPES) // 500] for error in errors)]
    for keys in shapes:
        doc = MidjourneyDocument(keys)
        for files in FILES:
            for number, limits in enumerate(LIMITS_THAT_MATTER):
                documents = shaped()._replace(midjourney=doc, files=files)
                case = Case(documents, limits, NOW)
                found[first_row(case).number].append(case)
                if not files and number:
                    idle = documents._replace(gen=GenDocument({"failed_in_a_row": len(keys["midjourney_results"])}))
                    case = Case(idle, limits, NOW)
                    found[first_row(case).number].append(case)
    return found


# --- the table ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"row-{row.number}-{row.act.name}")
def test_whatever_a_row_is_the_first_to_apply_to_is_decided_as_it_says(row: Row, cases: dict[int, list[Case]]) -> None:
    assert cases[row.number], "no shape reaches this row"
    for case in cases[row.number]:
        action = decide(*case)
        assert action.act is row.act, case
        assert action.why


def test_the_table_in_the_docstring_is_the_one_that_is_tested() -> None:
    lines = re.findall(r"^ ?(\d+)  .*?  ([A-Z_]{4,})\b", decision.__doc__ or "", re.MULTILINE)
    assert [(int(number), act) for number, act in lines] == [(row.number, row.act.name) for row in ROWS]


def test_every_act_has_a_row() -> None:
    assert {row.act for row in ROWS} == set(Act) - {Act.MOCK_VIDEO}, "only a degraded mode leads there"


@given(
    st.sampled_from(SHAPES),
    COUNTERS,
    st.sampled_from(FILES),
    st.sampled_from([None, "a"]),
    st.integers(0, 3),
    st.builds(
        LIMITS._replace,
        max_retries=st.integers(0, 3),
        max_failed_in_a_row=st.integers(1, 3),
        mj_timeout_seconds=st.sampled_from([1, 18000]),
        runway_timeout_seconds=st.sampled_from([1, 18000]),
        on_exhausted=st.sampled_from(["fail", "mock"]),
        on_unknown_outcome=st.sampled_from(["retry", "hold"]),
    ),
    st.sampled_from([NOW, LATER, datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]),
)
def test_any_documents_limits_and_time_are_decided_by_the_first_row_that_applies(
    keys: dict[str, Any],
    retries: dict[str, int],
    files: frozenset[str],
    generation_id: str | None,
    failed: int,
    limits: Workflow,
    now: datetime,
) -> None:
    gen = GenDocument({"generation_id": generation_id, "failed_in_a_row": failed})
    documents = shaped(files, **keys, retries=retries)._replace(gen=gen)
    case = Case(documents, limits, now)
    action, row = decide(*case), first_row(case)
    mock_is_hopeless = row.act is Act.MAKE_MOCK and retries.get("mock", 0) > limits.max_retries
    assert action.act is (Act.FAIL if mock_is_hopeless else row.act)


# --- details of single rows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "files", "step"),
    [
        ({"status": "task_failed_max_retries", "failed_step": "upscale"}, "json", Step.UPSCALE),
        ({"pending_call": {"step": "runway"}}, "json png", Step.RUNWAY),
        ({"status": "content_failed"}, "", Step.CONTENT),
        ({"status": "mj_fetch_failed", "midjourney_task": {"task_id": "t"}}, "json", Step.FETCH),
        ({"status": "runway_poll_timeout", "runway_task": {"task_id": "t"}}, "json png", Step.RUNWAY_POLL),
        ({"status": "timed_out_mock_needed"}, "json", Step.MOCK),
        ({"runway_task": {"task_id": "t"}}, "json png", Step.RUNWAY_POLL),
        ({"midjourney_task": {"task_id": "t"}}, "json", Step.FETCH),
        ({"midjourney_results": {"task_id": "t", "task_type": "upscale"}}, "json", Step.RUNWAY),
        ({"midjourney_results": {"task_id": "t", "task_type": "imagine"}}, "json", Step.UPSCALE),
        ({}, "", Step.CONTENT),
        ({"generation": True}, "json", Step.IMAGINE),
    ],
    ids=str,
)
def test_an_action_names_its_step(keys: dict[str, Any], files: str, step: Step) -> None:
    assert decide(shaped(frozenset(files.split()), **keys), LIMITS, NOW).step is step


def test_a_retry_says_which_attempt_of_how_many_and_for_which_status() -> None:
    action = decide(shaped(status="upscale_trigger_failed", retries={"upscale": 1}), LIMITS, NOW)
    assert action.why == "attempt 2/3 for status upscale_trigger_failed"


@pytest.mark.parametrize("status", list(FAILED_STEP))
def test_attempts_are_counted_by_step_up_to_the_limit(status: Status) -> None:
    step = FAILED_STEP[status]
    elsewhere = {other.value: 99 for other in Step if other is not step}
    acts = [
        decide(shaped(status=status.value, retries={**elsewhere, step.value: used}), LIMITS, NOW).act
        for used in (0, 2, 3, 4)
    ]
    assert acts == [Act.RETRY, Act.RETRY, Act.FAIL, Act.FAIL]


@pytest.mark.parametrize("status", list(FAILED_STEP))
def test_without_retries_the_first_failure_is_the_last(status: Status) -> None:
    assert decide(shaped(status=status.value), LIMITS._replace(max_retries=0), NOW).act is Act.FAIL


def test_a_mock_is_tried_once_more_than_the_limit_says_and_then_the_generation_fails() -> None:
    for max_retries in (0, 3):
        limits = LIMITS._replace(max_retries=max_retries)
        acts = [
            decide(shaped(status="timed_out_mock_needed", retries={"mock": used}), limits, NOW).act
            for used in (0, max_retries, max_retries + 1)
        ]
        assert acts == [Act.MAKE_MOCK, Act.MAKE_MOCK, Act.FAIL]


def test_a_mock_stands_in_only_where_there_is_a_text() -> None:
    limits = LIMITS._replace(max_retries=0, on_exhausted="mock")
    with_text, without = frozenset({"json"}), frozenset[str]()
    assert decide(shaped(with_text, status="imagine_trigger_failed"), limits, NOW).act is Act.SUBSTITUTE
    assert decide(shaped(without, status="imagine_trigger_failed"), limits, NOW).act is Act.FAIL
    assert decide(shaped(with_text, status="content_failed"), limits, NOW).act is Act.FAIL


def test_a_held_call_rests_and_says_what_the_operator_can_do() -> None:
    held = shaped(pending_call={"step": "imagine", "outcome": "unknown"})
    action = decide(held, LIMITS._replace(on_unknown_outcome="hold"), NOW)
    assert (action.act, action.exit_code) == (Act.WAIT, 75)
    assert "--resolve retry" in action.why
    assert "--resolve skip" in action.why
    assert decide(held, LIMITS, NOW).act is Act.RECONCILE, "the rule was changed to `retry` since"


@pytest.mark.parametrize(("failed", "act"), [(0, Act.BEGIN), (2, Act.BEGIN), (3, Act.WAIT), (9, Act.WAIT)])
def test_too_many_failed_generations_stop_the_pipeline(failed: int, act: Act) -> None:
    documents = shaped()._replace(gen=GenDocument({"failed_in_a_row": failed}))
    action = decide(documents, LIMITS, NOW)
    assert action.act is act
    assert action.exit_code == (69 if act is Act.WAIT else 0)


def test_a_task_in_flight_is_given_up_only_after_its_time() -> None:
    documents = shaped(midjourney_task={"task_id": "t", "requested_at_utc": NOON})
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    limit = timedelta(seconds=LIMITS.mj_timeout_seconds)
    assert decide(documents, LIMITS, noon + limit).act is Act.FETCH
    assert decide(documents, LIMITS, noon + limit + timedelta(seconds=1)).act is Act.TIME_OUT
    assert decide(documents, LIMITS, noon - limit).act is Act.FETCH, "ordered in the future: a clock is wrong"


def test_a_task_that_does_not_say_when_it_was_ordered_is_asked_for() -> None:
    assert decide(shaped(midjourney_task={"task_id": "t"}), LIMITS, LATER).act is Act.FETCH


@pytest.mark.parametrize("status", ["runway_poll_failed", "runway_poll_timeout"])
def test_a_film_that_is_polled_in_vain_for_too_long_is_given_up_with_attempts_left(status: str) -> None:
    documents = shaped(status=status, runway_task={"task_id": "r", "requested_at_utc": NOON})
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    limit = timedelta(seconds=LIMITS.runway_timeout_seconds)
    assert decide(documents, LIMITS, noon + limit).act is Act.RETRY
    assert decide(documents, LIMITS, noon + limit + timedelta(seconds=1)).act is Act.FAIL


def test_the_time_of_a_film_says_nothing_about_another_step() -> None:
    keys = {"runway_task": {"task_id": "r", "requested_at_utc": NOON}, "status": "imagine_trigger_failed"}
    assert decide(shaped(**keys), LIMITS, LATER).act is Act.RETRY


def test_the_results_of_the_imagine_start_no_second_upscale_while_one_is_in_flight() -> None:
    pictures = {"task_id": "i", "task_type": "imagine"}
    flying = shaped(midjourney_results=pictures, midjourney_task={"task_id": "u", "task_type": "upscale"})
    assert decide(flying, LIMITS, NOW).act is Act.FETCH


# --- what needs a person ----------------------------------------------------------------------------------------------


def critical(moment: datetime, **more: Any) -> dict[str, Any]:
    return {"error_class": "C", "timestamp": moment.isoformat(), "message": "HTTP 401", **more}


SCRIPT_SHAPES = {
    Act.RECONCILE: {"pending_call": {"step": "imagine"}},
    Act.MAKE_MOCK: {"status": "timed_out_mock_needed"},
    Act.POLL_VIDEO: {"runway_task": {"task_id": "r"}},
    Act.ORDER_VIDEO: {"midjourney_results": {"task_id": "u", "task_type": "upscale"}},
    Act.TIME_OUT: {"midjourney_task": {"task_id": "t", "requested_at_utc": stamp(NOW - timedelta(days=1))}},
    Act.FETCH: {"midjourney_task": {"task_id": "t"}},
    Act.ORDER_UPSCALE: {"midjourney_results": {"task_id": "i", "task_type": "imagine"}},
    Act.ORDER_IMAGINE: {"generation": True},
    Act.WRITE: {},
}


@pytest.mark.parametrize("act", SCRIPT_SHAPES, ids=lambda act: act.name)
def test_after_a_refused_key_no_script_runs_until_the_waiting_time_is_over(act: Act) -> None:
    assert set(SCRIPT_SHAPES) == {it for it in Act if script_of(Action(it, Step.IMAGINE, ""))}
    files = frozenset() if act is Act.WRITE else frozenset({"json"})
    documents = shaped(files, **SCRIPT_SHAPES[act], last_error=critical(NOW))
    wait = timedelta(minutes=LIMITS.critical_retry_minutes)
    action = decide(documents, LIMITS, NOW + wait - timedelta(seconds=1))
    assert (action.act, action.exit_code) == (Act.WAIT, 78)
    assert "HTTP 401" in action.why
    assert "13:30 UTC" in action.why
    assert decide(documents, LIMITS, NOW + wait).act is act


@pytest.mark.parametrize("error_class", ["A", "B"])
def test_an_error_of_another_class_holds_nothing(error_class: str) -> None:
    assert held_until(MidjourneyDocument({"last_error": critical(NOW, error_class=error_class)}), LIMITS) is None


def test_what_needs_no_script_does_not_wait_for_a_key() -> None:
    documents = shaped(frozenset({"json", "png", "mp4"}), last_error=critical(NOW))
    assert decide(documents, LIMITS, NOW).act is Act.FINISH


@pytest.mark.parametrize("timestamp", [None, 5, "", "yesterday", [], "9999-12-31T23:59:59Z", "\ud800"])
def test_an_error_whose_time_makes_no_sense_holds_nothing(timestamp: object) -> None:
    doc = parse_midjourney(b"{}").updated(last_error={"error_class": "C", "timestamp": timestamp})
    assert held_until(doc, LIMITS) is None
    assert held_until(doc.updated(last_error={"error_class": "C"}), LIMITS) is None
