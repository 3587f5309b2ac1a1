"""A worker dies at each point of a job, and another continues: one execution, one picture, nothing left behind."""

from collections.abc import Callable
from threading import Thread

import pytest
from worker_deaths import ended, mortal
from worker_world import WorkerWorld, eventually, picture

from retake.images.jobs import JobStatus
from retake.images.messages import OUTFIT_QUEUE, TEXT_QUEUE
from retake.images.worker import QueueWorker
from retake.vendors.comfyui import prompt_id_of

Make = Callable[[WorkerWorld], str]


def text(world: WorkerWorld) -> str:
    return world.job()


def outfit(world: WorkerWorld) -> str:
    return world.outfit(person=picture("red"), garment=picture("blue"))


def wait_for(world: WorkerWorld, worker: QueueWorker, thread: Thread, job_id: str) -> None:
    """Wait until the worker is dead, or has done the job and settled its message."""
    eventually(
        lambda: not thread.is_alive() or (world.stands(job_id) == JobStatus.READY and worker.state().job is None)
    )


@pytest.mark.parametrize(("make", "queue", "fewest"), [(text, TEXT_QUEUE, 20), (outfit, OUTFIT_QUEUE, 28)])
def test_wherever_a_worker_dies_its_job_is_executed_once(
    world: WorkerWorld, monkeypatch: pytest.MonkeyPatch, make: Make, queue: str, fewest: int
) -> None:
    world.comfyui()
    servers, point, died = world.servers(), 0, True
    while died:
        before = set(world.executions())
        job_id = make(world)
        first = world.worker("Worker-A", queue, world.context("Worker-A", servers, worker_silence_seconds=0.4))
        with mortal(world, monkeypatch) as fate:
            fate.plan(point)
            thread = fate.run(first)
            wait_for(world, first, thread, job_id)
            first.stop(0)
            ended(thread)
            died = fate.count > point
        with world.running("Worker-B", queue, world.context("Worker-B", servers)):
            assert world.ended(job_id).status == JobStatus.READY, point
            eventually(lambda: world.broker.depth(queue) == 0)
        assert {it: n for it, n in world.executions().items() if it not in before} == {prompt_id_of(job_id, 1): 1}, (
            point
        )
        assert [it.key for it in world.bucket.list(f"jobs/{job_id}/output")] == [f"jobs/{job_id}/output.png"]
        point += 1
    assert point > fewest
    assert world.dead() == 0
    assert world.store.counts()["jobs:status:pending"] == 0
    assert world.store.counts()["jobs:status:ready"] == point
