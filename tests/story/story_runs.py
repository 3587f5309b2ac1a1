"""Checks and readers for the runs in a world's bucket."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from retake.bucket.memory import MemoryBucket
from retake.bucket.wrappers import Wrapper
from retake.clock import FakeClock
from retake.operations.examinations import check_bucket
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.run import CHANGED, Event, Run
from retake.runs.states import OPEN
from retake.story.decision import decide
from retake.story.operations import open_operations
from retake.story.run_mirror import expected
from retake.story.store import DocumentStore

if TYPE_CHECKING:
    from story_world import World


def memory_of(world: World) -> MemoryBucket:
    """Return the bucket without its wrappers and their effects."""
    bucket: Any = world.bucket
    while isinstance(bucket, Wrapper):
        bucket = bucket.bucket
    return MemoryBucket(bucket.store)


def ledger_of(world: World) -> BucketLedger:
    """Return a ledger for reading."""
    return BucketLedger(memory_of(world), world.clock)


def runs_of(world: World, generation_id: str) -> list[Run]:
    return ledger_of(world).of_task(generation_id)


def told(world: World, generation_id: str) -> list[str]:
    """Return the record of a generation: its transitions as `status actor`, other events as `kind: what`."""
    ledger = ledger_of(world)
    return [in_words(event) for run in ledger.of_task(generation_id) for event in ledger.events(run.run_id)]


def in_words(event: Event) -> str:
    payload = event.payload
    if event.kind == CHANGED:
        return f"{payload['status']} {payload['actor']}"
    what = payload.get("step") if event.kind == "run.step.done" else payload.get("code") or payload.get("error_code")
    return f"{event.kind}: {what}"


def check_agreement(world: World) -> None:
    """Check after a tick that the run agrees with the documents, and that no other run is open."""
    if world.settings.storage.ledger:
        return  # not in the bucket
    store = memory_of(world)
    documents = DocumentStore(store, world.settings.paths, None, world.clock).read()
    ledger, generation_id = BucketLedger(store, world.clock), documents.gen.generation_id
    opened = ledger.runs(status=OPEN)
    if generation_id is None:
        assert opened == [], "a run is open although nothing is under way"
        return
    action = decide(documents, world.settings.workflow, world.clock.now())
    run, wanted = ledger.of_task(generation_id)[-1], expected(documents, action)
    assert run.status is wanted.status, f"the run is {run.status}, the documents say {wanted.status}: {action}"
    assert opened in ([], [run])


def assert_whole(world: World, *, but: Collection[str] = ()) -> None:
    """Check that `retake check` finds no errors `but` those with these codes."""
    clock = FakeClock(world.clock.now())  # a second look takes time, which the world does not have
    operations = open_operations(world.settings, clock, bucket=memory_of(world))
    report = check_bucket(operations)
    assert report.complete, report.findings
    left = [it for it in report.open if it.code not in but]
    assert not left, left
