"""What the tests of the acting commands share: a pipeline in one of its states, and a context to act from.

world = STATES["pictures failed"]()
answer = act(retry, world, run=ID)
"""

import json
import sys
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import click

sys.path.append(str(Path(__file__).parent.parent / "story"))

from operator_states import ID, STATES, TABLE
from schemas import check_answer, name_of
from story_ticks import PUBLIC, Scripted
from story_world import KEYS, World

from retake.bucket import Bucket
from retake.console.answer import Answer
from retake.console.command_context import CommandContext
from retake.console.rendering import show
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.run import Run

__all__ = ["ID", "PUBLIC", "STATES", "TABLE", "Scripted", "World", "act", "context_of", "failed_run", "papers", "runs"]


def context_of(world: World, bucket: Bucket | None = None) -> CommandContext:
    return CommandContext({}, clock=world.clock, bucket=bucket or world.bucket, settings=world.settings, keys=KEYS)


def act(command: click.Command, world: World, **options: Any) -> Answer:
    """What the command answers; its errors are raised. Options that every command has are not there."""
    callback: Any = command.callback
    answer: Answer = callback.__wrapped__(context_of(world), **options)
    check_answer(name_of(command), json.loads(json.dumps(answer.document)))
    return answer


def papers(answer: Answer) -> str:
    """The answer as it is shown in a pipe."""
    stream = StringIO()
    show(answer, stream, as_json=False)
    return stream.getvalue()


def runs(world: World, task_id: str = ID) -> list[Run]:
    return BucketLedger(world.bucket, world.clock).of_task(task_id)


def failed_run(world: World, error: Mapping[str, Any] | None = None) -> Run:
    """A run of another pipeline, which failed."""
    from retake.runs.states import Trigger

    ledger = BucketLedger(world.bucket, world.clock)
    run = ledger.create_for_task("cover-7", "cover-7#1", actor="worker", pipeline="music")
    run = ledger.move(run, Trigger.WORKER_CLAIM, actor="worker", worker="w1")
    return ledger.move(run, Trigger.NON_RETRYABLE_ERROR, actor="worker", error=error, error_code="ERR_BUSINESS_X")
