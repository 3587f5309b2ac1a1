"""Rows of music pipelines as a service leaves them, without its workers and vendors.

rows = Rows(f"sqlite:{tmp_path}/music.db")
pipeline = rows.create()
rows.fail("PiAPI answered 500", "ERR_TEMPORARY_UNAVAILABLE")     # what a worker did with the waiting run
"""

from datetime import UTC, datetime
from typing import Any

from retake.bucket import ANY
from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock
from retake.errors import CapReached, CodedError, OutcomeUnknown, error_record
from retake.music.actions import PipelineActions
from retake.music.attempts import CAP_REACHED, AttemptStore, JobAttempt
from retake.music.calls import CallBook
from retake.music.database import open_music_database
from retake.music.operations import MusicOperations
from retake.music.rows import PaidCall, PipelineRow
from retake.music.settings import MusicSettings, ServiceSettings
from retake.music.states import MusicStep, running
from retake.music.store import NewPipeline
from retake.paid.guard import Intent
from retake.runs.run import STEP_DONE
from retake.runs.states import Trigger

START = datetime(2026, 11, 22, 12, tzinfo=UTC)


class Rows:
    """A database, a bucket and a clock."""

    def __init__(self, url: str, **music: Any) -> None:
        self.clock, self.bucket = FakeClock(START), MemoryBucket()
        self.settings = MusicSettings(music=ServiceSettings(database=url, **music))
        self.database = open_music_database(url, self.clock)
        self.actions = PipelineActions(self.database, uploads_per_day=100, telling=True)
        self.attempts = AttemptStore(self.actions)
        self.calls = CallBook(self.database, daily_cap_usd=self.settings.music.daily_cap_usd)

    @property
    def operations(self) -> MusicOperations:
        return MusicOperations(self.settings, self.bucket, self.clock)

    def create(self, title: str = "Paper Boats") -> PipelineRow:
        return self.actions.create(NewPipeline(title, "boats.wav")).pipeline

    def at(self, pipeline: PipelineRow, step: MusicStep) -> PipelineRow:
        """Move the pipeline to a step, as if everything before it were done."""
        return self.actions.change(pipeline.id, lambda cursor, row: {"state": running(step)})

    def begin(self) -> JobAttempt:
        """Claim the waiting run and begin an attempt."""
        run = self.database.ledger.claim("w", pipeline="music")
        assert run, "no run waits"
        attempt = self.attempts.begin(run)
        assert attempt, "the row has moved on"
        return attempt

    def succeed(self) -> PipelineRow:
        attempt = self.begin()
        self.clock.sleep(10)
        row = self.attempts.succeed(attempt, {})
        self.database.ledger.note(attempt.run, STEP_DONE, {"step": attempt.job.step}, actor="worker")
        self.database.ledger.move(attempt.run, Trigger.COMPLETED, actor="worker")
        return row

    def fail(self, error: str, code: str) -> PipelineRow:
        """Let the step fail for good."""
        attempt = self.begin()
        self.clock.sleep(10)
        row = self.attempts.fail(attempt, error, code, again=False)
        self._failed(attempt, CodedError(code, error))
        return row

    def await_person(self, error: str) -> PipelineRow:
        attempt = self.begin()
        row = self.attempts.await_person(attempt, error, "ERR_TEMPORARY_NETWORK")
        self._failed(attempt, CodedError("ERR_TEMPORARY_NETWORK", error))
        return row

    def held_back(self) -> None:
        """Let the cap hold the step back."""
        attempt = self.begin()
        words = str(CapReached("MUSIC.daily_cap_usd: 1.000 of 1.000 USD are spent on 2026-11-22"))
        self.attempts.interrupt(attempt, words, CAP_REACHED)

    def pay(self, attempt: JobAttempt, outcome: str, usd: float = 0.045, task: str = "task-1") -> PaidCall:
        call = self.calls.begin(attempt, Intent(attempt.job.step, {"nonce": 7}, usd))
        if outcome != "pending":
            unknown = OutcomeUnknown("ERR_TEMPORARY_NETWORK", "cut") if outcome in ("lost", "held") else None
            self.calls.settle(call, outcome, unknown, task if outcome == "accepted" else None)
        return call

    def keep(self, pipeline: PipelineRow, name: str) -> None:
        self.bucket.write(f"music/{pipeline.id}/{name}", b"picture", ANY)

    def _failed(self, attempt: JobAttempt, error: CodedError) -> None:
        record = error_record(
            error,
            now=self.clock.now(),
            robot_id=f"music.{attempt.step}",
            correlation_id=attempt.run.run_id,
            retry_count=attempt.job.attempt - 1,
            input_data={},
        )
        self.database.ledger.move(attempt.run, Trigger.NON_RETRYABLE_ERROR, actor="worker", error=record)
