"""A long-lived worker: it claims one run at a time, does the job, and saves how it ended.

    worker = Worker(ledger, job, policy, SystemClock(), name="host:1")
    worker.work()          # until worker.stop()

    the job …                                  the run …
    ────────────────────────────────────────   ──────────────────────────────────────────────────────────────────
    returns                                    succeeded, with what it returned as an event
    returns what no ledger can store           failed at once: it would return the same again
    raises a CodedError that the policy        retry_scheduled, next_retry_at as the policy says
      repeats
    raises another, or once too often          failed, with the standard error record
    raises OutcomeUnknown                      failed: what may have been paid for is not asked again by a machine
                                               that cannot know, unless the policy names that very code
    takes longer than the policy's             as after OutcomeUnknown, or after the policy's `timeout_code`; a later
      `timeout_s`                              result is discarded, and the next `RunHandle.check` raises StaleRun
    raises anything else                       as after ERR_TEMPORARY_SCRIPT_DIED: a bug may pass, by luck, but
                                               not more often than the policy says
    raises Stopped                             interrupted at once: somebody else goes on with it
    is killed                                  stays running, until recovery notices the silence

What comes from a job whose run was cancelled or given to somebody else meanwhile is not saved, but noted.
"""

import random
from collections.abc import Callable, Mapping
from datetime import timedelta
from logging import getLogger
from typing import Any, NamedTuple

from retake.attempts import attempts
from retake.clock import Clock
from retake.errors import (
    Code,
    CodedError,
    LeaseHeld,
    RetakeError,
    SettingsError,
    Stopped,
    StorageError,
    error_record,
    escalate,
    retry_in,
)
from retake.retrying.policy import Retry, RetryPolicy, decide_on_paid
from retake.retrying.time_limit import OutOfTime, within
from retake.runs import Ledger, validation
from retake.runs.recovery import LOOK_INTO_IT, MAX_RESUMES, Recovery, exhausted, too_often
from retake.runs.run import BY_WORKER, Note, Run, StaleRun, new_trace_id
from retake.runs.run_handle import HEARTBEAT_S, RunHandle
from retake.runs.states import Trigger

Job = Callable[[RunHandle], Mapping[str, Any] | None]
"""Does the work of a run, and returns what is worth being on record, ready for JSON.

It may be begun again after a crash at any point. So it looks whether something is paid for already before it pays, by
the run's idempotency key, and calls `RunHandle.check` before each payment.
"""

RESULT = "run.result"
"""The event that holds what a job returned; written together with the end of its run."""

NOT_STORABLE = "ERR_BUSINESS_RESULT_NOT_STORABLE"
"""The error of a job that returned what no ledger can store."""

LATE = "run.result.late"
"""The event that says how a job ended whose run was taken away meanwhile. Payload: {worker, trigger, results, text}."""

IDLE_S = 1.0
MOST_ASKED = 30
"""How often a ledger that is away is asked in a row by a worker that is to work until nothing waits."""

SAVE_PAUSES_S = (0.2, 1.0, 5.0, 15.0)
"""Between tries to save how a job ended: work that is paid for is not thrown away because the ledger is busy."""

_log = getLogger(__name__)


class Outcome(NamedTuple):
    """What a job's end means for its run."""

    trigger: Trigger
    after_s: float | None = None  # of RETRYABLE_ERROR
    error: Mapping[str, Any] | None = None
    notes: tuple[Note, ...] = ()


class Worker:
    """Works on the runs of one pipeline, or of all, one at a time."""

    def __init__(
        self,
        ledger: Ledger,
        job: Job,
        policy: RetryPolicy,
        clock: Clock,
        *,
        name: str,
        pipeline: str | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        max_resumes: int = MAX_RESUMES,
        recovery: Recovery | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`name` is who has a run, for people («host:pid»). With a `recovery`, it is swept whenever nothing waits.
        `draw()` gives 0 … 1, for the policy's jitter."""
        self._ledger, self._job, self._policy, self._clock = ledger, job, policy, clock
        self._name = validation.name("name", name)
        self._pipeline, self._heartbeat_s, self._max_resumes = pipeline, heartbeat_s, max_resumes
        self._recovery, self._draw = recovery, draw
        self._stopped = False

    def stop(self) -> None:
        """Take up nothing more; what is in hand is finished. May be called from a signal handler."""
        self._stopped = True

    def work(self, *, idle_s: float = IDLE_S, until_idle: bool = False) -> int:
        """Work until `stop`, or, with `until_idle`, until nothing waits: how many runs were worked on.

        A ledger that is away is asked again; with `until_idle` a number of times, and then StorageError or LeaseHeld is
        raised. Raises StorageError if a job's end could not be saved: then the run stays as it is, and recovery finds
        it.
        """
        count = away = 0
        while not self._stopped:
            try:
                run = self._claim()
            except (StorageError, LeaseHeld) as error:
                away += 1
                if until_idle and away > MOST_ASKED:
                    raise
                _log.warning("the ledger is asked for work again in a moment: %s", error)
                self._clock.sleep(idle_s)
                continue
            away = 0
            if run:
                self._work_on(run)
                count += 1
            elif until_idle:
                break
            else:
                self._clock.sleep(idle_s)
        return count

    def work_once(self) -> Run | None:
        """Take up one run: how it stands then. None if nothing waits. Raises what `work` and the ledger raise."""
        run = self._ledger.claim(self._name, pipeline=self._pipeline)
        return self._work_on(run) if run else None

    def _claim(self) -> Run | None:
        run = self._ledger.claim(self._name, pipeline=self._pipeline)
        if run is None and self._recovery and self._recovery.sweep().interrupted:
            run = self._ledger.claim(self._name, pipeline=self._pipeline)
        return run

    def _work_on(self, run: Run) -> Run:
        with RunHandle(self._ledger, run, self._clock, heartbeat_s=self._heartbeat_s).kept_alive() as handle:
            outcome = self._give_up(run) if exhausted(run, self._max_resumes) else self._try(handle)
            try:
                return self._save(run, outcome)
            except StaleRun as error:
                return self._late(run, outcome, error)

    def _try(self, handle: RunHandle) -> Outcome:
        try:
            result = within(self._policy.timeout_s, lambda: self._job(handle))
        except OutOfTime as error:
            handle.revoke(f"{handle.run.run_id}: {error}")
            return self._failed(handle.run, error.as_error(self._policy.timeout_code))
        except Stopped:
            self.stop()
            return Outcome(Trigger.PROCESS_RESTART)
        except StaleRun as error:  # by its own check
            return Outcome(Trigger.PROCESS_RESTART, notes=(Note("run.note", {"text": str(error)}),))
        except Exception as error:  # noqa: BLE001  whatever a job raises ends that job alone
            return self._failed(handle.run, coded(error))
        try:
            payload = validation.result("result", result)
        except validation.InvalidField as error:
            return self._not_storable(handle.run, result, error)
        return Outcome(Trigger.COMPLETED, notes=(Note(RESULT, payload),) if payload else ())

    def _not_storable(self, run: Run, result: Any, error: validation.InvalidField) -> Outcome:
        """Another try would return the same. What can be kept of the result is kept in the record: it may have been
        paid for."""
        text = f"the job returned what cannot be stored: {error.field} {error.reason}"
        _log.error("%s (task %s): %s", run.run_id, run.task_id, text)
        record = self._record(
            run,
            CodedError(NOT_STORABLE, text),
            run.retries,
            escalate("operator", "let the job return JSON, then let the task be done anew"),
            result=validation.mended({"result": result})["result"],
        )
        return Outcome(Trigger.NON_RETRYABLE_ERROR, error=record)

    def _failed(self, run: Run, error: CodedError) -> Outcome:
        decision = decide_on_paid(self._policy, error, run.retries + 1, self._draw)
        if isinstance(decision, Retry):
            _log.warning("%s (task %s) failed and is tried again: %s", run.run_id, run.task_id, error)
            record = self._record(run, error, run.retries, retry_in(round(decision.after_s, 3)))
            return Outcome(Trigger.RETRYABLE_ERROR, decision.after_s, record)
        _log.error("%s (task %s) failed: %s", run.run_id, run.task_id, error)
        record = self._record(run, error, run.retries, escalate("operator", decision.why))
        return Outcome(Trigger.NON_RETRYABLE_ERROR, error=record)

    def _give_up(self, run: Run) -> Outcome:
        """It was resumed before a recovery could give it up: the job is not begun once more."""
        error = CodedError(Code.SCRIPT_DIED, too_often(run))
        return Outcome(
            Trigger.NON_RETRYABLE_ERROR, error=self._record(run, error, 0, escalate("operator", LOOK_INTO_IT))
        )

    def _record(
        self, run: Run, error: CodedError, retries: int, action: Mapping[str, Any], **context: Any
    ) -> dict[str, Any]:
        record = error_record(
            error,
            now=self._clock.now(),
            robot_id=run.pipeline or "worker",
            correlation_id=run.run_id,
            retry_count=retries,
            input_data={"task_id": run.task_id, "attempt": run.attempt, "idempotency_key": run.idempotency_key},
            system_context={"worker": self._name, **context},
            recovery_actions=[action],
        )
        return validation.mended_record(record)  # its message is whatever the job's error says

    def _save(self, run: Run, outcome: Outcome) -> Run:
        """Raises StaleRun if the run was taken away; StorageError, LeaseHeld if it cannot be saved for a while."""
        trace_id = new_trace_id(run.run_id)
        for attempt in attempts(SAVE_PAUSES_S, self._clock.sleep):
            try:
                return self._moved(run, outcome, trace_id)
            except (StorageError, LeaseHeld) as error:
                if attempt.last:
                    raise
                _log.warning("saving the end of %s is tried again in %g s: %s", run.run_id, attempt.pause, error)
        raise AssertionError

    def _moved(self, run: Run, outcome: Outcome, trace_id: str) -> Run:
        """The run after `outcome`, also if an earlier try has made that move and only its answer was lost."""
        try:
            return self._move(run, outcome, trace_id)
        except StaleRun:
            if any(event.trace_id == trace_id for event in self._ledger.events(run.run_id)):
                return self._ledger.get(run.run_id)
            raise

    def _move(self, run: Run, outcome: Outcome, trace_id: str) -> Run:
        due = None if outcome.after_s is None else self._clock.now() + timedelta(seconds=outcome.after_s)
        return self._ledger.move(
            run,
            outcome.trigger,
            actor=BY_WORKER,
            next_retry_at=due,
            error=outcome.error,
            notes=outcome.notes,
            trace_id=trace_id,
        )

    def _late(self, run: Run, outcome: Outcome, error: StaleRun) -> Run:
        text = f"{self._name} came to an end ({outcome.trigger}) that is not saved: {error}"
        _log.warning("%s", text)
        results = [note.payload for note in outcome.notes if note.kind == RESULT]  # it may have been paid for
        payload = {"worker": self._name, "trigger": outcome.trigger.value, "results": results, "text": text}
        self._ledger.note(run, LATE, validation.mended(payload), actor=BY_WORKER)
        return self._ledger.get(run.run_id)


def coded(error: Exception) -> CodedError:
    """What a job raised, as an error that has a code."""
    if isinstance(error, CodedError):
        return error
    if isinstance(error, SettingsError):
        return CodedError(Code.CONFIGURATION, str(error))
    name = "" if isinstance(error, RetakeError) else f"{type(error).__name__}: "
    return CodedError(Code.SCRIPT_DIED, f"the job came to an end by itself: {name}{error}")
