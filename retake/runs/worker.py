"""A long-lived worker: it claims one run at a time, does the job, and saves the result.

    worker = Worker(ledger, job, policy, SystemClock(), name="host:1")
    worker.work()          # until worker.stop()

    the job …                                  the run is …
    ────────────────────────────────────────   ──────────────────────────────────────────────────────────────────
    returns                                    succeeded, with the result as an event
    returns what no ledger can store           failed: the next attempt would return the same
    raises a CodedError that the policy        retry_scheduled, with the policy's next_retry_at
      retries
    raises Decided                             as the job decided: retry_scheduled, or failed
    raises Postponed                           retry_scheduled, though nothing has failed
    raises CapReached                          the same, until the next day; it is tried again every hour
    raises Degraded                            the same, for five minutes
    raises another, too often, or later        failed, with the standard error record; `deadline_s` counts from the
      than the policy's `deadline_s`           first time that the run was claimed
    raises OutcomeUnknown                      failed: a call that may have been paid for is not retried, unless
                                               the policy names that very code
    takes longer than the policy's             as after OutcomeUnknown, or after the policy's `timeout_code`; a result
      `timeout_s`                              that comes later is discarded, and `RunHandle.check` raises StaleRun
    raises anything else                       as after ERR_TEMPORARY_SCRIPT_DIED: a bug may go away, but is not
                                               retried more often than the policy says
    raises Stopped                             interrupted: another worker resumes it
    is killed, or raises SystemExit,           running, until recovery notices the silence; what was raised ends
      KeyboardInterrupt or the like              the worker too

The result of a job whose run was cancelled or taken away meanwhile is not saved, only noted.
"""

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from logging import getLogger
from typing import Any, NamedTuple

from retake.attempts import attempts
from retake.clock import Clock
from retake.errors import (
    CapReached,
    Code,
    CodedError,
    Degraded,
    LeaseHeld,
    RetakeError,
    SettingsError,
    StateError,
    Stopped,
    StorageError,
    error_record,
    escalate,
    message_of,
    retry_in,
)
from retake.retrying.policy import LONGEST_S, Decision, Retry, RetryPolicy, checked, decide_on_paid
from retake.retrying.time_limit import OutOfTime, within
from retake.runs import Ledger, validation
from retake.runs.recovery import GIVEN_UP_ADVICE, MAX_RESUMES, Recovery, exhausted, why_given_up
from retake.runs.run import BY_WORKER, CHANGED, Event, Note, Run, StaleRun, UnknownRun, new_trace_id
from retake.runs.run_handle import HEARTBEAT_S, RunHandle
from retake.runs.states import RunStatus, Trigger

Job = Callable[[RunHandle], Mapping[str, Any] | None]
"""Does the work of a run and returns the result to record, as JSON types.

It may be started again after a crash at any point. So before it pays it must check, by the run's idempotency key,
whether that is already paid for, and call `RunHandle.check`.
"""

RESULT = "run.result"
"""The event with a job's result, written together with the end of its run."""

NOT_STORABLE = "ERR_BUSINESS_RESULT_NOT_STORABLE"
"""The error code of a job whose result no ledger can store."""

LATE = "run.result.late"
"""The event for the end of a job whose run was taken away meanwhile: {worker, trigger, results, text}."""

MAX_CAP_WAIT_S = 3600.0
"""Maximum seconds until a run that hit the daily cap is tried again: the cap may have been raised."""

MODE_WAIT_S = 300.0
"""Seconds until a run that a degraded mode holds back is tried again."""

IDLE_S = 1.0
MAX_LEDGER_FAILURES = 30
"""Maximum failures in a row of the ledger before a worker with `until_idle` gives up."""

SAVE_PAUSES_S = (0.2, 1.0, 5.0, 15.0)
"""Seconds between attempts to save the end of a job, so that paid work is not lost because the ledger is busy."""

_log = getLogger(__name__)


class Outcome(NamedTuple):
    """What happens to a run at the end of its job."""

    trigger: Trigger
    after_s: float | None = None  # seconds until the retry, for RETRYABLE_ERROR
    error: Mapping[str, Any] | None = None
    notes: tuple[Note, ...] = ()


class Decided(CodedError):
    """An error for which the job has already decided whether to retry, and recorded that in its own state.

    `where` is the part of the pipeline that failed, for the error record: "music.cover".
    """

    def __init__(self, error: CodedError, decision: Decision, where: str) -> None:
        super().__init__(error.code, str(error), retry_after_s=error.retry_after_s)
        self.decision, self.where = decision, where


class Postponed(RetakeError):
    """The job cannot be done yet, and nothing has failed: the run is claimed again `after_s` seconds later."""

    def __init__(self, message: str, after_s: float) -> None:
        super().__init__(message)
        self.after_s = float(after_s)  # a wrong type fails in the job, not in the worker


class Worker:
    """Works on the runs of one pipeline, or of all, one at a time.

    >>> from retake.clock import SystemClock
    >>> from retake.runs import open_ledger
    >>> def job(handle: RunHandle) -> dict[str, str]:
    ...     return {"poster": f"{handle.run.task_id}.png"}
    >>> ledger = open_ledger("sqlite:posters.db")
    >>> _ = ledger.create_for_task("aurora", "posters/aurora", actor="shop")
    >>> worker = Worker(ledger, job, RetryPolicy(max_retries=3), SystemClock(), name="host:1")
    >>> worker.work_once().status.value
    'succeeded'
    """

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
        result_kind: str = RESULT,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`name` identifies the worker for people ("host:pid"). `recovery` is swept whenever no run waits.
        `result_kind` is the kind of event that holds a job's result. `draw()` returns 0 … 1, for the policy's jitter.

        Raises ValueError for a `heartbeat_s` that is not above 0, and for a policy that cannot decide
        (`retake.retrying.policy.checked`). Logs a warning if the recovery's patience is not longer than `heartbeat_s`.
        """
        if not heartbeat_s > 0:
            raise ValueError(f"heartbeat_s is more than 0; found {heartbeat_s!r}")
        if recovery and recovery.patience_s <= heartbeat_s:
            _log.warning(
                "a recovery with a patience of %g s takes a worker for dead that is heard of every %g s: lower "
                "heartbeat_s, or raise patience_s",
                recovery.patience_s,
                heartbeat_s,
            )
        validation.name("result_kind", result_kind)
        self._ledger, self._job, self._policy, self._clock = ledger, job, checked(policy), clock
        self._name = validation.name("name", name)
        self._pipeline, self._heartbeat_s, self._max_resumes = pipeline, heartbeat_s, max_resumes
        self._recovery, self._result_kind, self._draw = recovery, result_kind, draw
        self._stopped = False

    def stop(self) -> None:
        """Claim no more runs, and finish the current one. May be called from a signal handler."""
        self._stopped = True

    def work(self, *, idle_s: float = IDLE_S, until_idle: bool = False) -> int:
        """Work until `stop`, or with `until_idle` until no run waits. Return how many runs were worked on.

        `idle_s` is the pause in seconds when no run waits. On a ledger in a bucket each look for a run is a listing,
        which costs money on B2, S3 and R2. An unavailable ledger is tried again; with `until_idle`, StorageError or
        LeaseHeld is raised after MAX_LEDGER_FAILURES times. Raises StorageError if the end of a job could not be saved:
        the run stays running, and recovery finds it.

        >>> from retake.clock import SystemClock
        >>> from retake.runs import open_ledger
        >>> ledger = open_ledger("sqlite:posters.db")
        >>> for title in ("aurora", "comet"):
        ...     _ = ledger.create_for_task(title, f"posters/{title}", actor="shop")
        >>> worker = Worker(ledger, lambda handle: None, RetryPolicy(max_retries=3), SystemClock(), name="host:1")
        >>> worker.work(until_idle=True)
        2
        """
        count = failures = 0
        while not self._stopped:
            try:
                run = self._claim()
            except (StorageError, LeaseHeld) as error:
                failures += 1
                if until_idle and failures > MAX_LEDGER_FAILURES:
                    raise
                _log.warning("claiming a run failed and is retried: %s", error)
                self._clock.sleep(idle_s)
                continue
            failures = 0
            if run:
                self._work_on(run)
                count += 1
            elif until_idle:
                break
            else:
                self._clock.sleep(idle_s)
        return count

    def work_once(self) -> Run | None:
        """Work on one run and return it, or None if none waits. Raises what `work` and the ledger raise."""
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
            except (UnknownRun, StateError) as error:  # somebody has removed or damaged it; the worker continues
                _log.error("%s ended %s (%s), which is not saved: %s", self._name, run.run_id, outcome.trigger, error)
                return run

    def _try(self, handle: RunHandle) -> Outcome:
        try:
            result = within(self._policy.timeout_s, lambda: self._job(handle))
        except OutOfTime as error:
            handle.revoke(f"{handle.run.run_id}: {error}")
            return self._failed(handle.run, error.as_error(self._policy.timeout_code))
        except Stopped:
            self.stop()
            return Outcome(Trigger.PROCESS_RESTART)
        except Postponed as error:
            return _put_off(handle.run, error)
        except CapReached as error:
            return _put_off(handle.run, until_next_day(error, self._clock.now()))
        except Degraded as error:
            return _put_off(handle.run, Postponed(str(error), MODE_WAIT_S))
        except StaleRun as error:  # from `RunHandle.check`
            return Outcome(Trigger.PROCESS_RESTART, notes=(_note_of(error),))
        except Exception as error:  # noqa: BLE001  whatever a job raises must not end the worker
            return self._failed(handle.run, coded(error))
        try:
            payload = validation.result("result", result)
        except validation.InvalidField as error:
            return self._not_storable(handle.run, result, error)
        return Outcome(Trigger.COMPLETED, notes=(Note(self._result_kind, payload),) if payload else ())

    def _not_storable(self, run: Run, result: Any, error: validation.InvalidField) -> Outcome:
        """Return a failure whose record keeps as much of the result as can be stored: it may have been paid for."""
        text = f"the result of the job cannot be stored: {error.field} {error.reason}"
        _log.error("%s (task %s): %s", run.run_id, run.task_id, text)
        record = self._record(
            run,
            CodedError(NOT_STORABLE, text),
            run.retries,
            escalate("operator", "make the job return JSON, then create a new run of the task"),
            result=validation.mended({"result": result})["result"],
        )
        return Outcome(Trigger.NON_RETRYABLE_ERROR, error=record)

    def _failed(self, run: Run, error: CodedError) -> Outcome:
        retries = _retries(self._ledger, run)
        if isinstance(error, Decided):
            decision = error.decision
        else:
            dated = self._policy.deadline_s is not None
            elapsed_s = _elapsed_s(self._ledger, run, self._clock.now()) if dated else 0.0
            decision = decide_on_paid(self._policy, error, retries + 1, self._draw, elapsed_s=elapsed_s)
        if isinstance(decision, Retry):
            _log.warning("%s (task %s) failed and is retried: %s", run.run_id, run.task_id, error)
            record = self._record(run, error, retries, retry_in(round(decision.after_s, 3)))
            return Outcome(Trigger.RETRYABLE_ERROR, decision.after_s, record)
        _log.error("%s (task %s) failed: %s", run.run_id, run.task_id, error)
        record = self._record(run, error, retries, escalate("operator", decision.why))
        return Outcome(Trigger.NON_RETRYABLE_ERROR, error=record)

    def _give_up(self, run: Run) -> Outcome:
        """Return the failure of a run that was resumed once too often, before recovery could give it up."""
        error = CodedError(Code.SCRIPT_DIED, why_given_up(run))
        return Outcome(
            Trigger.NON_RETRYABLE_ERROR, error=self._record(run, error, 0, escalate("operator", GIVEN_UP_ADVICE))
        )

    def _record(
        self, run: Run, error: CodedError, retries: int, action: Mapping[str, Any], **context: Any
    ) -> dict[str, Any]:
        record = error_record(
            error,
            now=self._clock.now(),
            robot_id=error.where if isinstance(error, Decided) else run.pipeline or "worker",
            correlation_id=run.run_id,
            retry_count=retries,
            input_data={"task_id": run.task_id, "attempt": run.attempt, "idempotency_key": run.idempotency_key},
            system_context={"worker": self._name, **context},
            recovery_actions=[action],
        )
        return validation.mended_record(record)  # the message may be anything

    def _save(self, run: Run, outcome: Outcome) -> Run:
        """Save the end of a run, or note it if the run was taken away. Return the run. Raises UnknownRun, StateError,
        StorageError, LeaseHeld."""
        trace_id = new_trace_id(run.run_id)
        for attempt in attempts(SAVE_PAUSES_S, self._clock.sleep):
            try:
                try:
                    return self._moved(run, outcome, trace_id)
                except StaleRun as error:
                    return self._note_late(run, outcome, error, trace_id)
            except (StorageError, LeaseHeld) as error:
                if attempt.last:
                    raise
                _log.warning("saving the end of %s is tried again in %g s: %s", run.run_id, attempt.pause, error)
        raise AssertionError

    def _moved(self, run: Run, outcome: Outcome, trace_id: str) -> Run:
        """Return the run after `outcome`, even if an earlier attempt has saved it and only the answer was lost."""
        try:
            return self._move(run, outcome, trace_id)
        except StaleRun:
            with suppress(StateError):  # older events are missing, so it cannot be known
                if any(event.trace_id == trace_id for event in self._ledger.events(run.run_id)):
                    return self._ledger.get(run.run_id)
            raise

    def _move(self, run: Run, outcome: Outcome, trace_id: str) -> Run:
        after_s = None if outcome.after_s is None else max(0.0, min(outcome.after_s, LONGEST_S))  # NaN becomes 0
        due = None if after_s is None else self._clock.now() + timedelta(seconds=after_s)
        return self._ledger.move(
            run,
            outcome.trigger,
            actor=BY_WORKER,
            next_retry_at=due,
            error=outcome.error,
            notes=outcome.notes,
            trace_id=trace_id,
        )

    def _note_late(self, run: Run, outcome: Outcome, error: StaleRun, trace_id: str) -> Run:
        text = f"{self._name} ended ({outcome.trigger}), which is not saved: {error}"
        _log.warning("%s", text)
        # Keep the results: they may have been paid for.
        results = [note.payload for note in outcome.notes if note.kind == self._result_kind]
        payload = {"worker": self._name, "trigger": outcome.trigger.value, "results": results, "text": text}
        self._ledger.note(run, LATE, validation.mended(payload), actor=BY_WORKER, trace_id=trace_id)
        return self._ledger.get(run.run_id)


def coded(error: Exception) -> CodedError:
    """Return the exception of a job as an error with a code."""
    if isinstance(error, CodedError):
        return error
    if isinstance(error, SettingsError):
        return CodedError(Code.CONFIGURATION, str(error))
    if isinstance(error, RetakeError):
        return CodedError(Code.SCRIPT_DIED, f"the job failed: {error}")
    return CodedError(Code.SCRIPT_DIED, f"the job failed with a bug: {type(error).__name__}: {message_of(error)}")


def until_next_day(error: CapReached, now: datetime) -> Postponed:
    """Return the postponement of a job that hit the daily cap, until the next day in UTC. It uses up no attempt."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    return Postponed(str(error), min(MAX_CAP_WAIT_S, (midnight - now).total_seconds()))


def _put_off(run: Run, error: Postponed) -> Outcome:
    note = _note_of(error)
    _log.info("%s (task %s) is put off: %s", run.run_id, run.task_id, note.payload["text"])
    return Outcome(Trigger.RETRYABLE_ERROR, error.after_s, notes=(note,))


def _note_of(error: RetakeError) -> Note:
    return Note("run.note", validation.mended({"text": str(error)}))


def _elapsed_s(ledger: Ledger, run: Run, now: datetime) -> float:
    """Return the seconds since a worker first claimed the run or, if the ledger does not say, since this worker did."""
    changes = _changes(ledger, run, "its deadline counts from this attempt on")
    began = next((it.at for it in changes if it.payload.get("status") == RunStatus.RUNNING), run.updated_at)
    return (now - began).total_seconds()


def _retries(ledger: Ledger, run: Run) -> int:
    """Return how often a run was retried after a failure. Being `Postponed` uses up no attempt."""
    if run.retries == 0:
        return 0
    changes = _changes(ledger, run, "each time that it was put off counts as an attempt")
    waits = [it.payload for it in changes if it.payload.get("status") == RunStatus.RETRY_SCHEDULED]
    return run.retries - sum(not it.get("error_code") for it in waits)


def _changes(ledger: Ledger, run: Run, otherwise: str) -> list[Event]:
    """Return the transitions of the run. If the ledger cannot read them, log that and the consequence (`otherwise`),
    and return none."""
    try:
        return [event for event in ledger.events(run.run_id) if event.kind == CHANGED]
    except RetakeError as error:
        _log.warning("%s: %s: %s", run.run_id, otherwise, error)
        return []
