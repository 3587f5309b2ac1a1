"""Each generation is a run on the ledger: where it should stand, how it gets there, and what is recorded."""

from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from story_shapes import COUNTERS, FILES, SHAPES, shaped
from story_ticks import PICTURES, UPSCALED

from retake.operations.events import REMARK, STEP_DONE
from retake.runs.run import ERROR
from retake.runs.states import FINAL, TRANSITIONS, RunStatus, Trigger
from retake.story.decision import Act, Action, decide
from retake.story.documents import Step
from retake.story.run_mirror import RunTarget, expected, facts, identity, route
from retake.story.settings import Workflow

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
RECORD = {"error_id": "e1", "error_code": "ERR_TEMPORARY_NETWORK", "timestamp": "2026-01-01T00:00:00Z"}


# --- where a run should stand ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", [act for act in Act if act not in (Act.DEAD_LETTER, Act.FAIL, Act.FINISH)])
@pytest.mark.parametrize("until", [None, NOON])
def test_work_that_goes_on_is_running_and_what_waits_for_its_time_is_scheduled(
    act: Act, until: datetime | None
) -> None:
    found = expected(shaped(last_error=RECORD), Action(act, Step.UPSCALE, "", until=until))
    status = RunStatus.RETRY_SCHEDULED if until else RunStatus.RUNNING
    assert found == RunTarget(status, until, RECORD)


@pytest.mark.parametrize(
    ("act", "document", "standing"),
    [
        (Act.DEAD_LETTER, {"last_error": RECORD}, RunTarget(RunStatus.FAILED, error=RECORD)),
        (Act.DEAD_LETTER, {"cancelled": {"by": "operator"}}, RunTarget(RunStatus.CANCELLED)),
        (Act.DEAD_LETTER, {"cancelled": {"by": "web"}}, RunTarget(RunStatus.CANCELLED, by="web")),
        (Act.DEAD_LETTER, {"cancelled": {"by": "anybody"}}, RunTarget(RunStatus.CANCELLED)),
        (Act.FAIL, {"last_error": RECORD}, RunTarget(RunStatus.FAILED, error=RECORD)),
        (Act.FAIL, {"last_error": {"message": "by hand"}}, RunTarget(RunStatus.FAILED)),
        (Act.FINISH, {"last_error": RECORD}, RunTarget(RunStatus.SUCCEEDED)),
    ],
)
def test_what_ends_the_generation_ends_its_run(act: Act, document: dict[str, Any], standing: RunTarget) -> None:
    assert expected(shaped(**document), Action(act, Step.UPSCALE, "")) == standing


@given(st.sampled_from(SHAPES), COUNTERS, st.sampled_from(FILES))
def test_every_decision_on_any_documents_has_a_place_for_the_run(
    keys: dict[str, Any], retries: dict[str, int], files: frozenset[str]
) -> None:
    documents = shaped(files, **keys, retries=retries)
    standing = expected(documents, decide(documents, Workflow(), NOON))
    assert (standing.next_retry_at is not None) == (standing.status is RunStatus.RETRY_SCHEDULED)
    assert standing.status not in (RunStatus.QUEUED, RunStatus.INTERRUPTED)


# --- how it gets there ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "end"), list(product(RunStatus, RunStatus)))
def test_a_route_is_made_of_transitions_that_there_are(start: RunStatus, end: RunStatus) -> None:
    status = start
    for trigger in route(start, end):
        status = TRANSITIONS[status, trigger]
        assert trigger is not Trigger.RECOVERY_ABORT
    unreachable = start in FINAL or end is RunStatus.QUEUED
    assert status is (start if unreachable else end)


@pytest.mark.parametrize(
    ("start", "end", "way"),
    [
        (RunStatus.QUEUED, RunStatus.RUNNING, [Trigger.WORKER_CLAIM]),
        (RunStatus.QUEUED, RunStatus.SUCCEEDED, [Trigger.WORKER_CLAIM, Trigger.COMPLETED]),
        (RunStatus.RUNNING, RunStatus.RUNNING, []),
        (RunStatus.RUNNING, RunStatus.RETRY_SCHEDULED, [Trigger.RETRYABLE_ERROR]),
        (RunStatus.RUNNING, RunStatus.CANCELLED, [Trigger.CANCEL_COMMAND]),
        (RunStatus.RETRY_SCHEDULED, RunStatus.RUNNING, [Trigger.RETRY_DUE]),
        (RunStatus.RETRY_SCHEDULED, RunStatus.FAILED, [Trigger.RETRY_DUE, Trigger.NON_RETRYABLE_ERROR]),
        (RunStatus.INTERRUPTED, RunStatus.RUNNING, [Trigger.RECOVERY_RESUME]),
        (RunStatus.INTERRUPTED, RunStatus.FAILED, [Trigger.RECOVERY_RESUME, Trigger.NON_RETRYABLE_ERROR]),
        (RunStatus.FAILED, RunStatus.RUNNING, []),
    ],
)
def test_a_route_is_the_shortest(start: RunStatus, end: RunStatus, way: list[Trigger]) -> None:
    assert route(start, end) == way


# --- what is recorded ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "document", "expected_facts"),
    [
        ("", {}, []),
        ("json", {}, [(STEP_DONE, {"step": "content"})]),
        ("", {"midjourney_results": PICTURES}, [(STEP_DONE, {"step": "imagine", "task_id": "imagine-1"})]),
        ("", {"midjourney_results": UPSCALED}, [(STEP_DONE, {"step": "upscale", "task_id": "upscale-1"})]),
        ("mp4", {}, [(STEP_DONE, {"step": "runway"})]),
        (
            "mp4",
            {"status": "timed_out_mock_needed"},
            [(REMARK, {"code": "mock_instead"}), (STEP_DONE, {"step": "mock"})],
        ),
        ("", {"retries": {"mock": 2}}, [(REMARK, {"code": "mock_failed", "times": 2})]),
        (
            "",
            {"paid_calls": [{"step": "runway", "requested_at_utc": "t", "possible_duplicate": True}]},
            [(REMARK, {"code": "possible_duplicate", "step": "runway", "requested_at_utc": "t"})],
        ),
        (
            "",
            {"paid_calls": [{"step": "runway", "requested_at_utc": "t", "outcome": "unknown"}]},
            [(REMARK, {"code": "unknown_outcome", "step": "runway", "requested_at_utc": "t"})],
        ),
        (
            "",
            {"paid_calls": [{"step": "content", "call": "post", "requested_at_utc": "t", "outcome": "wasted"}]},
            [(REMARK, {"code": "wasted", "step": "content", "call": "post", "requested_at_utc": "t"})],
        ),
        ("", {"paid_calls": [{"step": "imagine", "outcome": "accepted"}]}, []),
        (
            "",
            {"pending_call": {"step": "imagine", "outcome": "unknown", "requested_at_utc": "t"}},
            [(REMARK, {"code": "held", "step": "imagine", "requested_at_utc": "t"})],
        ),
        ("", {"pending_call": {"step": "imagine"}}, []),
        (
            "",
            {"skipped": [{"step": "upscale", "by": "operator", "at_utc": "t"}]},
            [(REMARK, {"code": "skipped", "step": "upscale", "at_utc": "t"})],
        ),
    ],
)
def test_what_the_documents_tell(
    files: str, document: dict[str, Any], expected_facts: list[tuple[str, dict[str, Any]]]
) -> None:
    if (document.get("pending_call") or {}).get("requested_at_utc"):
        document["pending_call"]["requested_at_utc"] = "2026-01-01T00:00:00Z"
        expected_facts[0][1]["requested_at_utc"] = "2026-01-01T00:00:00Z"
    found = list(facts(shaped(frozenset(files.split()), **document), known=()))
    bare = [(note.kind, {name: it for name, it in note.payload.items() if name != "text"}) for note in found]
    assert bare == expected_facts
    assert all(note.payload["text"] for note in found)


def test_a_film_after_a_mock_was_called_for_is_the_mock() -> None:
    known = {identity(REMARK, {"code": "mock_instead", "text": "long ago", "actor": "cron"})}
    [note] = facts(shaped(frozenset({"mp4"})), known)
    assert note.payload["step"] == "mock"


def test_an_event_is_the_same_whoever_wrote_it_and_when() -> None:
    event = {"step": "content", "text": "there", "actor": "cron", "seen_at_utc": "t"}
    assert identity(STEP_DONE, event) == identity(STEP_DONE, {"step": "content"})
    assert identity(STEP_DONE, {"step": "content"}) != identity(REMARK, {"step": "content"})
    assert identity(ERROR, RECORD) == identity(ERROR, {**RECORD, "message": "redacted"})
    assert identity(ERROR, RECORD) != identity(ERROR, {**RECORD, "error_id": "e2"})
