"""Shared by the tests of the acting commands: a pipeline in each of its states, and a context for commands.

world = STATES["pictures failed"]()
answer = act(retry, world, run=ID)
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent / "story"))

from operator_states import ID, STATES, TABLE
from reading_world import ask as act
from reading_world import context_of
from reading_world import shown as papers
from story_ticks import PUBLIC, Scripted
from story_world import World

from retake.runs.bucket_ledger import BucketLedger
from retake.runs.run import Run

__all__ = ["ID", "PUBLIC", "STATES", "TABLE", "Scripted", "World", "act", "context_of", "failed_run", "papers", "runs"]


def runs(world: World, task_id: str = ID) -> list[Run]:
    return BucketLedger(world.bucket, world.clock).of_task(task_id)


def failed_run(world: World, error: Mapping[str, Any] | None = None) -> Run:
    """Create a failed run of another pipeline."""
    from retake.runs.states import Trigger

    ledger = BucketLedger(world.bucket, world.clock)
    run = ledger.create_for_task("cover-7", "cover-7#1", actor="worker", pipeline="music")
    run = ledger.move(run, Trigger.WORKER_CLAIM, actor="worker", worker="w1")
    return ledger.move(run, Trigger.NON_RETRYABLE_ERROR, actor="worker", error=error, error_code="ERR_BUSINESS_X")
