"""A run and its events: the pure rules that lead from one to the next."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retake.errors import RunError
from retake.runs.run import CHANGED, ERROR, Event, Note, Run, RunRequest, Transition, moved, new_run, run_id_of
from retake.runs.states import FINAL, TRANSITIONS, IllegalTransition, RunStatus, Trigger

NOW = datetime(2026, 2, 7, 12, 0, tzinfo=UTC)
LATER = NOW + timedelta(seconds=8)
RECORD = {"error_code": "ERR_TEMPORARY_TIMEOUT", "message": "no answer"}


def a_run(**more: Any) -> Run:
    return new_run(RunRequest("t", "t#1", "cron"), 1, at=NOW)[0]._replace(**more)


def running(**more: Any) -> Run:
    return a_run(status=RunStatus.RUNNING, version=2, worker="w", heartbeat_at=NOW, **more)


def test_a_new_run_waits_for_a_worker_and_has_an_event() -> None:
    run, event = new_run(RunRequest("t", "t#1", "cron", "story", "tr"), 3, at=NOW)
    assert run == Run(run_id_of("t#1"), "t", 3, "t#1", RunStatus.QUEUED, NOW, NOW, 1, "story")
    assert (event.run_id, event.seq, event.kind, event.at, event.trace_id) == (run.run_id, 1, CHANGED, NOW, "tr")
    assert (event.payload["previous_status"], event.payload["status"]) == (None, "queued")


@pytest.mark.parametrize("attempt", [0, -1])
def test_attempts_are_counted_from_one(attempt: int) -> None:
    with pytest.raises(RunError, match="from 1"):
        new_run(RunRequest("t", "t#1", "cron"), attempt, at=NOW)


@pytest.mark.parametrize("names", [("", "k", "a"), ("t", "", "a"), ("t", "k", ""), ("t", " \n", "a")])
def test_what_a_run_needs_is_not_empty(names: tuple[str, str, str]) -> None:
    with pytest.raises(RunError, match="not empty"):
        new_run(RunRequest(*names), 1, at=NOW)


def test_the_id_is_made_from_the_key_alone() -> None:
    assert run_id_of("t#1") == new_run(RunRequest("u", "t#1", "x"), 7, at=LATER)[0].run_id
    assert run_id_of("t#1") != run_id_of("t#2")


def test_whoever_works_is_on_record_while_it_is_running_and_no_longer() -> None:
    begun, _ = moved(a_run(), Transition(Trigger.WORKER_CLAIM, "worker", "host:7"), 2, at=LATER)
    assert (begun.worker, begun.heartbeat_at, begun.updated_at) == ("host:7", LATER, LATER)
    for trigger in (Trigger.COMPLETED, Trigger.PROCESS_RESTART, Trigger.CANCEL_COMMAND):
        ended, _ = moved(begun, Transition(trigger, "worker", "ignored"), 3, at=LATER)
        assert (ended.worker, ended.heartbeat_at) == (None, None)


def test_an_attempt_given_counts_for_a_retry_alone() -> None:
    for (status, trigger), end in TRANSITIONS.items():
        due = LATER if end is RunStatus.RETRY_SCHEDULED else None
        after, _ = moved(a_run(status=status), Transition(trigger, "x", next_retry_at=due), 2, at=NOW, attempt=9)
        assert after.attempt == (9 if trigger is Trigger.RETRY_DUE else 1)
        assert after.resumes == (1 if trigger is Trigger.RECOVERY_RESUME else 0)


def test_the_error_code_is_that_of_the_record_unless_one_is_given() -> None:
    def code(**more: Any) -> tuple[str | None, object]:
        failure = Transition(Trigger.NON_RETRYABLE_ERROR, "w", **more)
        after, events = moved(running(error_code="ERR_BEFORE"), failure, 3, at=NOW)
        return after.error_code, events[0].payload["error_code"]

    assert code(error=RECORD) == ("ERR_TEMPORARY_TIMEOUT", "ERR_TEMPORARY_TIMEOUT")
    assert code(error=RECORD, error_code="ERR_GIVEN") == ("ERR_GIVEN", "ERR_GIVEN")
    assert code() == ("ERR_BEFORE", None)


def test_a_success_clears_the_error_code() -> None:
    after, _ = moved(running(error_code="ERR_BEFORE"), Transition(Trigger.COMPLETED, "w"), 3, at=NOW)
    assert after.error_code is None


def test_notes_the_transition_and_the_error_are_numbered_in_this_order() -> None:
    notes = [Note("run.step.done", {"step": "video", "actor": "overwritten"})]
    failure = Transition(Trigger.NON_RETRYABLE_ERROR, "w", error=RECORD, notes=notes, trace_id="tr")
    after, events = moved(running(), failure, 7, at=LATER)
    assert [(event.seq, event.kind, event.trace_id) for event in events] == [
        (7, "run.step.done", "tr"),
        (8, CHANGED, "tr"),
        (9, ERROR, "tr"),
    ]
    assert events[0] == Event(after.run_id, 7, "run.step.done", LATER, "tr", {"step": "video", "actor": "w"})
    assert events[2].payload == RECORD
    assert events[2].payload is not RECORD


@given(
    st.lists(st.sampled_from(Trigger), max_size=30),
    st.booleans(),
)
def test_no_history_leads_to_an_invalid_run(triggers: list[Trigger], fails: bool) -> None:
    run = a_run()
    for number, trigger in enumerate(triggers, 2):
        due = LATER if trigger is Trigger.RETRYABLE_ERROR else None
        try:
            transition = Transition(trigger, "x", next_retry_at=due, error=RECORD if fails else None)
            after, events = moved(run, transition, number, at=NOW)
        except IllegalTransition:
            assert (run.status, trigger) not in TRANSITIONS
            continue
        assert after.version == run.version + 1
        assert (after.next_retry_at is not None) == (after.status is RunStatus.RETRY_SCHEDULED)
        assert (after.heartbeat_at is not None) == (after.status is RunStatus.RUNNING)
        assert (events[0].payload["previous_status"], events[0].payload["status"]) == (run.status, after.status)
        run = after
    assert run.ended == (run.status in FINAL)
