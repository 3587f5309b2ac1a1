"""The part of the ledger contract about values: what every ledger refuses, and what every ledger keeps."""

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from enum import IntEnum, StrEnum
from typing import Any

import pytest
from ledger_shapes import a_record, in_state, step

from retake.clock import FakeClock
from retake.errors import RunError
from retake.retrying.policy import RetryPolicy
from retake.runs import Ledger
from retake.runs.run import CHANGED, ERROR, Note, Run, UnknownRun
from retake.runs.run_handle import RunHandle
from retake.runs.states import RunStatus, Trigger
from retake.runs.validation import MAX_NAME_BYTES, MAX_NOTES, MAX_PAYLOAD_BYTES, MAX_PAYLOAD_DEPTH, InvalidField
from retake.runs.worker import NOT_STORABLE, RESULT, Worker

Connect = Callable[[], Ledger]

BAD_NAMES = {
    "empty": "",
    "blank": " \n",
    "half a surrogate pair": "a\ud800",
    "NUL": "a\0b",
    "too long": "ж" * (MAX_NAME_BYTES // 2 + 1),
    "no text": 7,
}


class Many:
    """An object that is not JSON."""


def nested(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(levels - 1):
        found = {"a": found}
    return found


endless: dict[str, Any] = {}
endless["again"] = endless

BAD_PAYLOADS: dict[str, Any] = {
    "no object": ["a"],
    "an object of Python's": {"a": Many()},
    "bytes": {"a": b"x"},
    "a set": {"a": {1}},
    "NaN": {"a": [1.5, float("nan")]},
    "Infinity": {"a": float("inf")},
    "a key that is not text": {"a": {1: 2}},
    "too deep": nested(MAX_PAYLOAD_DEPTH + 2),
    "without end": endless,
    "too large": {"a": "x" * MAX_PAYLOAD_BYTES},
    "too large once it is written": {"a": "ж" * (MAX_PAYLOAD_BYTES // 3)},
    "a number too long": {"a": 10**2000},
}

BAD_RESULTS = BAD_PAYLOADS | {"half a surrogate pair": {"a": "\ud800"}, "NUL": {"a": ["x\0"]}}


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    LARGE = 3


GOOD_PAYLOADS: dict[str, Any] = {
    "every kind": {"a": [None, True, 1, -0.5, 1e300, "ж", {}, []], "": {" ": "\u2028"}},
    "text that UTF-8 does not know": {"a\ud800": "\udfff and \0"},
    "as deep as may be": nested(MAX_PAYLOAD_DEPTH),
    "a long number": {"a": 10**300},
    "a large one": {"a": "x" * (MAX_PAYLOAD_BYTES - 10)},
}


class ValuesContract:
    """Mixed into `LedgerContract`."""

    @pytest.mark.parametrize("value", BAD_NAMES.values(), ids=list(BAD_NAMES))
    @pytest.mark.parametrize("field", ["task_id", "idempotency_key", "actor", "pipeline", "trace_id"])
    def test_a_run_is_not_created_with_a_name_that_some_store_cannot_keep(
        self, ledger: Ledger, field: str, value: Any
    ) -> None:
        if field in ("pipeline", "trace_id") and not str(value).strip():
            return  # these may be left out
        given = {"task_id": "t", "idempotency_key": "t#1", "actor": "cron", field: value}
        with pytest.raises(InvalidField) as refusal:
            ledger.create_for_task(given.pop("task_id"), given.pop("idempotency_key"), **given)
        assert (refusal.value.field, isinstance(refusal.value, RunError | ValueError)) == (field, True)
        assert ledger.runs() == []

    @pytest.mark.parametrize("value", BAD_NAMES.values(), ids=list(BAD_NAMES))
    @pytest.mark.parametrize("field", ["actor", "worker", "error_code", "trace_id"])
    def test_a_run_is_not_moved_with_one(self, connect: Connect, field: str, value: Any) -> None:
        if field in ("error_code", "trace_id") and value == "":
            return
        run = in_state(connect(), RunStatus.INTERRUPTED)
        with pytest.raises(InvalidField) as refusal:
            connect().move(run, Trigger.RECOVERY_RESUME, **{"actor": "cron", field: value})
        assert refusal.value.field == field
        self.unharmed(connect(), run)

    @pytest.mark.parametrize("value", BAD_NAMES.values(), ids=list(BAD_NAMES))
    @pytest.mark.parametrize("field", ["kind", "actor", "trace_id"])
    def test_a_note_is_not_made_with_one(self, connect: Connect, field: str, value: Any) -> None:
        if field == "trace_id" and value == "":
            return
        run = in_state(connect(), RunStatus.RUNNING)
        given = {"kind": "run.note", "actor": "cron", field: value}
        with pytest.raises(InvalidField) as refusal:
            connect().note(run, given.pop("kind"), {}, **given)
        assert refusal.value.field == field
        self.unharmed(connect(), run)

    @pytest.mark.parametrize("value", BAD_NAMES.values(), ids=list(BAD_NAMES))
    def test_nobody_claims_with_one_and_the_run_goes_on_waiting(self, connect: Connect, value: Any) -> None:
        run = in_state(connect(), RunStatus.QUEUED)
        for given in ({"worker": value}, {"worker": "w", "actor": value}):
            with pytest.raises(InvalidField):
                connect().claim(**given)
        self.unharmed(connect(), run)
        assert connect().claim("w") is not None

    @pytest.mark.parametrize("payload", BAD_PAYLOADS.values(), ids=list(BAD_PAYLOADS))
    def test_what_is_not_json_is_refused_wherever_it_is_given(self, connect: Connect, payload: Any) -> None:
        run = in_state(connect(), RunStatus.RUNNING)
        for field, call in {
            "payload": lambda: connect().note(run, "run.note", payload, actor="cron"),
            "notes[1].payload": lambda: connect().move(
                run, Trigger.COMPLETED, actor="cron", notes=[Note("run.note", {}), Note("run.note", payload)]
            ),
            "error": lambda: connect().move(run, Trigger.NON_RETRYABLE_ERROR, actor="cron", error=payload),
        }.items():
            with pytest.raises(InvalidField) as refusal:
                call()
            assert refusal.value.field.startswith(field)
            assert refusal.value.reason in str(refusal.value)
            assert len(str(refusal.value)) < 2_000
        self.unharmed(connect(), run)

    def test_an_error_record_names_its_code_or_the_code_is_given(self, connect: Connect) -> None:
        run = in_state(connect(), RunStatus.RUNNING)
        for record in ({"message": "no code"}, {"error_code": ""}, {"error_code": 7}, {"error_code": "a\0"}):
            with pytest.raises(InvalidField, match=r"^error\.error_code: "):
                connect().move(run, Trigger.NON_RETRYABLE_ERROR, actor="cron", error=record)
        self.unharmed(connect(), run)
        failed = connect().move(
            run, Trigger.NON_RETRYABLE_ERROR, actor="cron", error={"message": "no code"}, error_code="ERR_BUSINESS_X"
        )
        assert failed.error_code == "ERR_BUSINESS_X"

    def test_more_notes_than_a_store_takes_at_once_are_refused(self, connect: Connect) -> None:
        run = in_state(connect(), RunStatus.RUNNING)
        notes = [Note("run.note", {"number": number}) for number in range(MAX_NOTES + 1)]
        with pytest.raises(InvalidField, match="notes: are 1,001"):
            connect().move(run, Trigger.COMPLETED, actor="cron", notes=notes)
        self.unharmed(connect(), run)
        connect().move(run, Trigger.COMPLETED, actor="cron", notes=notes[:-1])
        assert len(connect().events(run.run_id)) == 3 + MAX_NOTES

    @pytest.mark.parametrize("due", [datetime(2026, 1, 1), datetime.max.replace(tzinfo=timezone(-timedelta(hours=5)))])
    def test_a_time_that_utc_does_not_have_is_refused(self, connect: Connect, due: datetime) -> None:
        run = in_state(connect(), RunStatus.RUNNING)
        with pytest.raises(InvalidField, match="next_retry_at: is a time"):
            connect().move(run, Trigger.RETRYABLE_ERROR, actor="cron", next_retry_at=due)
        with pytest.raises(InvalidField, match="since: is a time"):
            connect().silent(due)
        self.unharmed(connect(), run)

    @pytest.mark.parametrize("payload", GOOD_PAYLOADS.values(), ids=list(GOOD_PAYLOADS))
    def test_json_comes_back_as_it_was_given(self, connect: Connect, clock: FakeClock, payload: Any) -> None:
        run = in_state(connect(), RunStatus.RUNNING)
        note = connect().note(run, "run.note", payload, actor="cron")
        connect().move(
            run,
            Trigger.NON_RETRYABLE_ERROR,
            actor="cron",
            notes=[Note("run.other", payload)],
            error={**a_record(clock), "details": nested(3), "more": payload.get("", 1)},
        )
        again, other, _, error = connect().events(run.run_id)[2:]
        assert again == note
        assert again.payload == other.payload == {**payload, "actor": "cron"}
        assert error.payload["more"] == payload.get("", 1)

    def test_what_python_writes_as_json_is_given_back_as_what_it_was_written_as(self, connect: Connect) -> None:
        run = in_state(connect(), RunStatus.RUNNING)
        note = connect().note(
            run, "run.note", {"a": (1, Colour.RED, Size.LARGE), "b": {Colour.RED: True}}, actor="cron"
        )
        assert note.payload == {"a": [1, "red", 3], "b": {"red": True}, "actor": "cron"}
        assert connect().events(run.run_id)[-1] == note
        assert [type(it) for it in note.payload["a"]] == [int, str, int]

    @pytest.mark.parametrize("value", BAD_NAMES.values(), ids=list(BAD_NAMES))
    def test_what_cannot_be_kept_is_not_found_and_no_error(self, ledger: Ledger, value: Any) -> None:
        if not isinstance(value, str):
            return
        in_state(ledger, RunStatus.QUEUED)
        assert ledger.find(value) is None
        assert ledger.of_task(value) == []
        if value:
            assert ledger.runs(pipeline=value) == []
            assert ledger.counts(pipeline=value) == dict.fromkeys(RunStatus, 0)
            assert ledger.claim("w", pipeline=value) is None
        for ask in (ledger.get, ledger.events):
            with pytest.raises(UnknownRun):
                ask(value)

    def test_a_list_has_as_many_runs_as_were_asked_for_at_most(self, ledger: Ledger) -> None:
        run = in_state(ledger, RunStatus.QUEUED)
        assert [ledger.runs(limit=limit) for limit in (-1, 0, 1, 2**80)] == [[], [], [run], [run]]

    # --- what a job returns -------------------------------------------------------------------------------------

    @pytest.mark.parametrize("result", BAD_RESULTS.values(), ids=list(BAD_RESULTS))
    def test_a_job_whose_result_cannot_be_stored_fails_at_once(
        self, connect: Connect, clock: FakeClock, result: Any
    ) -> None:
        run, calls = connect().create_for_task("t", "t#1", actor="cron"), []

        def job(handle: RunHandle) -> Any:
            calls.append(handle.run)
            return result

        worker = Worker(connect(), job, RetryPolicy(max_retries=5), clock, name="host:1")
        assert worker.work(until_idle=True) == 1
        clock.sleep(3600)
        assert worker.work(until_idle=True) == 0
        after, events = connect().get(run.run_id), connect().events(run.run_id)
        assert (after.status, after.error_code, len(calls)) == (RunStatus.FAILED, NOT_STORABLE, 1)
        assert [event.payload.get("status", event.kind) for event in events] == ["queued", "running", "failed", ERROR]
        assert events[-1].payload["message"].startswith("the result of the job cannot be stored: result")
        assert "result" in events[-1].payload["details"]["system_context"]

    def test_a_job_whose_result_can_be_stored_succeeds(self, connect: Connect, clock: FakeClock) -> None:
        run = connect().create_for_task("t", "t#1", actor="cron")
        result = GOOD_PAYLOADS["every kind"]
        Worker(connect(), lambda handle: result, RetryPolicy(max_retries=5), clock, name="host:1").work_once()
        found, end = connect().events(run.run_id)[-2:]
        assert (found.kind, found.payload) == (RESULT, {**result, "actor": "worker"})
        assert end.payload["status"] == "succeeded"

    @pytest.mark.parametrize("text", ["\ud800", "a\0b", "x" * 2_000_000, ""], ids=["surrogate", "NUL", "long", "none"])
    def test_a_job_whose_error_can_hardly_be_written_down_fails_as_any_other(
        self, connect: Connect, clock: FakeClock, text: str
    ) -> None:
        run = connect().create_for_task("t", "t#1", actor="cron")

        def job(handle: RunHandle) -> None:
            raise ValueError(text)

        worker = Worker(connect(), job, RetryPolicy(max_retries=1), clock, name="host:1", draw=lambda: 0.5)
        assert [worker.work(until_idle=True) for _ in range(2)] == [2, 0]
        assert connect().get(run.run_id).status is RunStatus.FAILED
        assert len([event for event in connect().events(run.run_id) if event.kind == ERROR]) == 2

    # --- what is counted on the run -----------------------------------------------------------------------------

    def test_retries_and_the_deaths_of_workers_are_counted_on_the_run(self, connect: Connect) -> None:
        run = in_state(connect(), RunStatus.RUNNING)
        for trigger, actor in (
            *((Trigger.RETRYABLE_ERROR, "worker"), (Trigger.RETRY_DUE, "worker")) * 3,
            *((Trigger.PROCESS_RESTART, "worker"), (Trigger.RECOVERY_RESUME, "worker")),
            *((Trigger.PROCESS_RESTART, "recovery"), (Trigger.RECOVERY_RESUME, "worker")) * 2,
        ):
            due = run.updated_at if trigger is Trigger.RETRYABLE_ERROR else None
            run = connect().move(run, trigger, actor=actor, next_retry_at=due)
            assert connect().get(run.run_id) == run
        assert (run.retries, run.crashes, run.resumes) == (3, 2, 3)
        done = step(connect(), run, Trigger.COMPLETED)
        assert (done.retries, done.crashes) == (3, 2)
        assert len([event for event in connect().events(run.run_id) if event.kind == CHANGED]) == done.version

    # --- what is asked, and the end -----------------------------------------------------------------------------

    def test_states_may_be_asked_for_by_their_names(self, connect: Connect) -> None:
        run = in_state(connect(), RunStatus.RUNNING)
        assert connect().runs(status=["running"]) == [run]  # type: ignore[list-item]
        assert connect().runs(status=["queued"]) == []  # type: ignore[list-item]
        with pytest.raises(ValueError, match="runing"):
            connect().runs(status=["runing"])  # type: ignore[list-item]

    def test_a_ledger_can_be_closed_as_often_as_one_likes(self, connect: Connect) -> None:
        ledger = connect()
        run = in_state(ledger, RunStatus.QUEUED)
        ledger.close()
        ledger.close()
        assert connect().get(run.run_id) == run

    def unharmed(self, ledger: Ledger, run: Run) -> None:
        """Check that the run is as it was, and can be read."""
        assert ledger.get(run.run_id) == run
        assert [event.seq for event in ledger.events(run.run_id)] == list(range(1, run.version + 1))
        assert ledger.runs() == ledger.of_task("t") == [run]
