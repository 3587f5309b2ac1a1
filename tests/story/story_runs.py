"""What must hold of the runs in a world's bucket, and how to read them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from retake.bucket.memory import MemoryBucket
from retake.bucket.wrappers import Wrapper
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.run import CHANGED, Event, Run
from retake.runs.states import FINAL, OPEN, TRANSITIONS, RunStatus
from retake.story.decision import decide
from retake.story.run_mirror import expected
from retake.story.store import DocumentStore

if TYPE_CHECKING:
    from story_world import World


def memory_of(world: World) -> MemoryBucket:
    """The bucket itself: past whatever its wrappers do to who uses it."""
    bucket: Any = world.bucket
    while isinstance(bucket, Wrapper):
        bucket = bucket.bucket
    return MemoryBucket(bucket.store)


def ledger_of(world: World) -> BucketLedger:
    """To look at."""
    return BucketLedger(memory_of(world), world.clock)


def runs_of(world: World, generation_id: str) -> list[Run]:
    return ledger_of(world).of_task(generation_id)


def told(world: World, generation_id: str) -> list[str]:
    """All that is on record of a generation: its transitions as «status actor», other events as «kind: what»."""
    ledger = ledger_of(world)
    return [in_words(event) for run in ledger.of_task(generation_id) for event in ledger.events(run.run_id)]


def in_words(event: Event) -> str:
    payload = event.payload
    if event.kind == CHANGED:
        return f"{payload['status']} {payload['actor']}"
    what = payload.get("step") if event.kind == "run.step.done" else payload.get("code") or payload.get("error_code")
    return f"{event.kind}: {what}"


def check_agreement(world: World) -> None:
    """After a tick: the run stands where the documents say; none is open that nothing under way stands for."""
    if world.settings.storage.ledger:
        return  # not in the bucket
    store = memory_of(world)
    documents = DocumentStore(store, world.settings.paths, None, world.clock).read()
    ledger, generation_id = BucketLedger(store, world.clock), documents.gen.generation_id
    opened = ledger.runs(status=OPEN)
    if generation_id is None:
        assert opened == [], "nothing is under way, and yet a run is open"
        return
    action = decide(documents, world.settings.workflow, world.clock.now())
    run, wanted = ledger.of_task(generation_id)[-1], expected(documents, action)
    assert run.status is wanted.status, f"the run is {run.status}, the documents say {wanted.status}: {action}"
    assert opened in ([], [run])


def check_history(world: World) -> None:
    """Every run's events are in their order without a gap, lead from one state to the next as they may, and to no more
    than one end; runs of one task follow one another, and each has attempts of its own."""
    ledger = ledger_of(world)
    runs = [ledger.get(key.removeprefix("runs/").removesuffix(".json")) for key in world.keys_of("runs/run-")]
    for run in runs:
        events = ledger.events(run.run_id)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        changes = [event.payload for event in events if event.kind == CHANGED]
        states = [None, *(RunStatus(payload["status"]) for payload in changes)]
        assert [payload["previous_status"] for payload in changes] == states[:-1]
        ways = {(before, after) for (before, _), after in TRANSITIONS.items()}
        assert states[1] is RunStatus.QUEUED
        assert set(pairwise(states[1:])) <= ways
        assert states[-1] is run.status
        assert sum(state in FINAL for state in states) == run.ended
        assert len(changes) == run.version
        assert all(event.kind == "run.error" or event.payload["actor"] for event in events)
    for task_id in {run.task_id for run in runs}:
        of_task = ledger.of_task(task_id)
        assert [run.idempotency_key for run in of_task] == [f"{task_id}#{n + 1}" for n in range(len(of_task))]
        assert all(run.ended for run in of_task[:-1])
        assert len({run.attempt for run in of_task}) == len(of_task)
