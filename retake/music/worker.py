"""The workers of a process: each takes one run at a time from the ledger and makes an attempt at its step."""

from collections.abc import Callable
from logging import getLogger
from typing import Any

from retake.errors import CapReached, Code, CodedError, RetakeError, Stopped, StorageError, redact
from retake.media import MediaError
from retake.music.attempts import CAP_REACHED, JobAttempt
from retake.music.context import JobContext, SharedContext
from retake.music.database import MusicDatabase
from retake.music.mode_gate import DEGRADED, HeldBack
from retake.music.settings import MusicSettings, ServiceSettings
from retake.music.states import MusicStep
from retake.music.steps import STEP_WORK
from retake.music.steps.cover import AwaitsPerson
from retake.music.store import NAME
from retake.retrying.backoff import Intervals
from retake.retrying.policy import Decision, GiveUp, Retry, RetryPolicy
from retake.runs.recovery import Recovery
from retake.runs.run import STEP_DONE, StaleRun
from retake.runs.run_handle import RunHandle
from retake.runs.worker import Decided, Postponed, Worker, coded, until_next_day
from retake.vendors.sellers import chat_call, imagine_call

_log = getLogger(__name__)


def policy_of(step: MusicStep, music: ServiceSettings) -> RetryPolicy:
    """Return the retry policy of a step. Publishing is never retried, since an upload must not be repeated blindly."""
    retries = 0 if step is MusicStep.PUBLISH else music.step_max_retries
    return RetryPolicy(retries, Intervals(tuple(music.step_retry_backoff_sec)))


class StepJob:
    """The job of a run: one attempt at the step that its row names. The row is written first, then the run."""

    def __init__(self, shared: SharedContext) -> None:
        self._shared = shared

    def __call__(self, handle: RunHandle) -> dict[str, Any] | None:
        """Return the step's result for the ledger, or None if the row has moved on."""
        handle.check()
        self._shared.gate.check_step()
        attempt = self._shared.attempts.begin(handle.run)
        if attempt is None:
            return None
        _log.info("%s: %s, attempt %s", handle.run.task_id, attempt.step, attempt.job.attempt, extra=_about(attempt))
        context = JobContext(self._shared, attempt, handle)
        try:
            saved = self._shared.attempts.succeed(attempt, STEP_WORK[attempt.step](context))
        except Stopped:
            self._shared.attempts.interrupt(attempt)
            raise
        except StaleRun:
            raise
        except CapReached as error:
            raise self._postponed(attempt, error) from error
        except HeldBack as error:
            self._shared.attempts.interrupt(attempt, str(error), DEGRADED)
            raise
        except AwaitsPerson as error:
            raise self._held(attempt, error) from error
        except Exception as error:
            raise self._failed(attempt, as_coded(error)) from error
        _log.info("%s: %s", handle.run.task_id, saved.state, extra=_about(attempt))
        text = f"{attempt.step} is done"
        return {"step": attempt.step.value, "job": attempt.job.id, "attempt": attempt.job.attempt, "text": text}

    def _failed(self, attempt: JobAttempt, error: CodedError) -> Decided:
        """Decide, for the row and for the ledger, whether the step is retried."""
        policy = policy_of(attempt.step, self._shared.settings.music)
        decision = policy.decide(error, attempt.job.attempt, self._shared.random.random)
        again = isinstance(decision, Retry)
        try:
            self._shared.attempts.fail(attempt, str(error), error.code, again=again)
        except StorageError as away:  # the next attempt updates the row, or upkeep does
            _log.warning("%s: its failure could not be saved yet: %s", attempt.run.task_id, away)
        return _decided(attempt, error, decision)

    def _held(self, attempt: JobAttempt, error: AwaitsPerson) -> Decided:
        self._shared.attempts.await_person(attempt, str(error), error.error.code)
        return _decided(attempt, error.error, GiveUp("a person decides", used_up=False))

    def _postponed(self, attempt: JobAttempt, error: CapReached) -> Postponed:
        """Postpone the step to the next day; no attempt is used up."""
        self._shared.attempts.interrupt(attempt, str(error), CAP_REACHED)
        return until_next_day(error, self._shared.clock.now())


def as_coded(error: Exception) -> CodedError:
    """Return an error of a step as one with a code. Failures of media tools are retried."""
    if isinstance(error, MediaError):
        return CodedError(Code.MEDIA, str(error))
    found = coded(error)
    if found is error or isinstance(error, RetakeError):
        return found
    _log.error("a step ended with a bug", exc_info=error)
    return CodedError(found.code, f"a bug: {type(error).__name__}: {redact(str(error))}")


def workers(database: MusicDatabase, shared: SharedContext, *, name: str) -> tuple[Callable[[], Worker], Recovery]:
    """Return a factory of workers, and the recovery that they share."""
    music = shared.settings.music
    recovery = Recovery(database.ledger, shared.clock, patience_s=music.stuck_seconds, pipeline=NAME)

    def make() -> Worker:
        return Worker(
            database.ledger,
            StepJob(shared),
            policy_of(MusicStep.COVER, music),
            shared.clock,
            name=name,
            pipeline=NAME,
            heartbeat_s=music.stuck_seconds / 4,
            recovery=recovery,
            result_kind=STEP_DONE,
        )

    return make, recovery


def step_prices(settings: MusicSettings) -> dict[str, float]:
    """Return the price of a paid call in US dollars, by the step that makes it."""
    factor = settings.prices.unknown_factor
    chat = chat_call(settings.prices, settings.openai).usd(factor)
    cover = imagine_call(settings.prices, settings.midjourney).usd(factor)
    return {MusicStep.COVER: cover, MusicStep.META: chat, MusicStep.REVIEW: chat}


def _decided(attempt: JobAttempt, error: CodedError, decision: Decision) -> Decided:
    return Decided(error, decision, f"{NAME}.{attempt.step}")


def _about(attempt: JobAttempt) -> dict[str, Any]:
    return {"step": attempt.step.value, "attempt": attempt.job.attempt, "generation_id": attempt.run.task_id}
