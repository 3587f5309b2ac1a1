"""A ledger whose runs do what a test wants, and the figures counted from them.

run = place.begun("a", "story")
place.done(run, "content")
place.failed(run, "upscale")
place.end(run, Trigger.COMPLETED)
"""

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from retake.bucket import Bucket
from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock
from retake.errors import CodedError, error_record
from retake.kpi.facts import Cell, RunSource, micros
from retake.kpi.figures import PipelineFigures, pipeline_figures
from retake.kpi.snapshots import CountedRuns, KpiSnapshots
from retake.runs import Ledger, open_ledger
from retake.runs.history import open_history
from retake.runs.run import STEP_DONE, Run
from retake.runs.states import RunStatus, Trigger

A, B, C = "ERR_TEMPORARY_UNAVAILABLE", "ERR_BUSINESS_REJECTED", "ERR_CRITICAL_UNAUTHORIZED"


class Place:
    """A ledger at `url` (None: in `bucket`), what is written to it, and the figures counted from it."""

    def __init__(self, url: str | None, bucket: Bucket, clock: FakeClock) -> None:
        self.url, self.bucket, self.clock = url, bucket, clock
        self.ledger: Ledger = open_ledger(url, bucket, clock)
        self.numbers: Counter[str] = Counter()

    def close(self) -> None:
        if self.url is not None:
            self.ledger.close()  # type: ignore[attr-defined]

    # --- events ---

    def begun(self, task: str, pipeline: str = "story") -> Run:
        self.numbers[task] += 1
        key = f"{task}#{self.numbers[task]}"
        run = self.ledger.create_for_task(task, key, actor="cron", pipeline=pipeline)
        return self.ledger.move(run, Trigger.WORKER_CLAIM, actor="cron", worker="w")

    def done(self, run: Run, step: str) -> None:
        self.ledger.note(run, STEP_DONE, {"step": step, "text": "it is there"}, actor="cron")

    def record(self, robot_id: str, code: str = A) -> dict[str, Any]:
        return error_record(
            CodedError(code, "нет ответа"),
            now=self.clock.now(),
            robot_id=robot_id,
            correlation_id="c",
            retry_count=0,
            recovery_actions=[],
        )

    def failed(self, run: Run, step: str, code: str = A) -> Run:
        """Fail a try and start the retry that follows."""
        due = self.clock.now() + timedelta(seconds=1)
        error = self.record(f"story.{step}", code)
        run = self.ledger.move(run, Trigger.RETRYABLE_ERROR, actor="cron", next_retry_at=due, error=error)
        return self.ledger.move(run, Trigger.RETRY_DUE, actor="cron", worker="w")

    def end(self, run: Run, trigger: Trigger, step: str = "", code: str = A) -> Run:
        error = self.record(f"story.{step}", code) if step else None
        return self.ledger.move(run, trigger, actor="cron", error=error)

    # --- figures ---

    def counted(self, snapshots: KpiSnapshots | None = None, *, rebuild: bool = False) -> CountedRuns:
        """Return the figures. Without `snapshots`, new ones are used: everything is read from the ledger."""
        source = RunSource(open_history(self.url, self.bucket))
        snapshots = snapshots or KpiSnapshots(MemoryBucket(), self.clock)
        return snapshots.counted("ledger", source, rebuild=rebuild)

    def counts(self, since: datetime | None = None, snapshots: KpiSnapshots | None = None) -> Counter[Cell]:
        now = self.clock.now()
        return self.counted(snapshots).between(micros(since or now - timedelta(days=1)), micros(now))

    def figures(self, since: datetime | None = None) -> dict[str, PipelineFigures]:
        return {it.pipeline: it for it in pipeline_figures(self.counts(since), min_runs=1)}


def statuses(succeeded: int = 0, failed: int = 0, cancelled: int = 0) -> dict[RunStatus, int]:
    return {RunStatus.SUCCEEDED: succeeded, RunStatus.FAILED: failed, RunStatus.CANCELLED: cancelled}
