"""A ComfyUI whose answers about one job are unusable: the job fails alone, and is not executed on every server."""

from collections.abc import Callable

import pytest
from worker_world import WorkerWorld, eventually, picture

from retake.images import execution
from retake.images.jobs import JobStatus
from retake.images.messages import OUTFIT_QUEUE
from retake.sandbox.comfyui import ComfySandbox
from retake.sandbox.http_messages import Request, Response
from retake.sandbox.request_handler import ResponseDelivery
from retake.vendors.comfyui import prompt_id_of

NO_JSON = Response(200, b"<html>", "text/html")
BROKEN = Response(500, b"500 Internal Server Error", "text/plain")
TOO_LARGE = Response(413, b"413 Request Entity Too Large", "text/plain")


class OddComfy(ComfySandbox):
    """A stand-in that returns the answer of `odd`, if it has one."""

    odd: Callable[[Request], Response | None] = staticmethod(lambda request: None)

    def _receive(self, request: Request) -> ResponseDelivery:
        odd = self.odd(request)
        return super()._receive(request) if odd is None else ResponseDelivery(odd)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "_GONE_PAUSES_S", (0.0, 0.0))


def odd_servers(world: WorkerWorld, odd: Callable[[Request], Response | None], number: int = 2) -> list[OddComfy]:
    """Start servers that answer so."""
    servers = [OddComfy(pace=0.0) for _ in range(number)]
    for one in servers:
        one.odd = odd  # type: ignore[method-assign]
        world.sandboxes.append(world.stack.enter_context(one))
    return servers


@pytest.mark.parametrize(
    "answer", [BROKEN, NO_JSON, Response(200, [1]), Response(200, {"another": {}}), Response(400, {"error": "x"})]
)
def test_a_job_whose_history_cannot_be_read_fails_alone(world: WorkerWorld, answer: Response) -> None:
    """ComfyUI answers 500 for a prompt whose outputs are not JSON, and continues with all others."""
    job_id = world.job(send=0)
    prompts = [prompt_id_of(job_id, n) for n in (1, 2)]
    odd_servers(world, lambda request: answer if request.path.rpartition("/")[2] in prompts else None)
    job = world.store.get(job_id)
    assert job
    world.send(job)
    with world.running(comfyui_timeout_seconds=1, worker_silence_seconds=0.3, task_execution_max_retries=1):
        job = world.ended(job_id)
        assert world.ended(world.job()).status == JobStatus.READY
        eventually(lambda: world.dead() == 1)
    assert (job.status, job.attempt, job.comfyui_deaths) == (JobStatus.FAILED, 2, 0)
    assert job.error.startswith("what became of the prompt could not be learned for 1 s: ComfyUI at http://127.0.0.1:")
    assert [world.executions()[it] for it in prompts] == [1, 1]


@pytest.mark.parametrize(
    "answer", [BROKEN, TOO_LARGE, NO_JSON, Response(200, {"name": 5}), Response(200, {"name": "x" * 5000})]
)
def test_a_job_whose_pictures_no_server_takes_fails_alone(world: WorkerWorld, answer: Response) -> None:
    job_id = world.outfit(person=picture("red"), garment=picture("blue"), send=False)

    def odd(request: Request) -> Response | None:
        return answer if request.path == "/upload/image" and job_id.encode() in request.body else None

    odd_servers(world, odd)
    job = world.store.get(job_id)
    assert job
    world.send(job)
    later = world.outfit(person=picture("red"), garment=picture("blue"))
    with world.running(queue=OUTFIT_QUEUE, worker_silence_seconds=0.3, task_execution_max_retries=0):
        job = world.ended(job_id)
        assert world.ended(later).status == JobStatus.READY
    assert job.status == JobStatus.FAILED
    assert "was asked to store a picture" in job.error
    assert set(world.executions()) == {prompt_id_of(later, 1)}


def test_a_picture_that_one_server_refuses_is_stored_by_another(world: WorkerWorld) -> None:
    """Each server, or its proxy, has its own limit for the size of a body."""
    [small, _] = odd_servers(world, lambda request: None)
    small.odd = lambda request: TOO_LARGE if request.path == "/upload/image" else None  # type: ignore[method-assign]
    jobs = [world.outfit(person=picture("red"), garment=picture("blue")) for _ in range(2)]
    with world.running(queue=OUTFIT_QUEUE, worker_silence_seconds=0.3, task_execution_max_retries=0):
        assert [world.ended(it).status for it in jobs] == [JobStatus.READY] * 2
    assert world.executions() == {prompt_id_of(it, 1): 1 for it in jobs}


@pytest.mark.parametrize("status", [402, 410, 451])
def test_a_refusal_that_nobody_knows_is_a_failed_attempt_at_last(world: WorkerWorld, status: int) -> None:
    odd = Response(status, {"error": "for reasons of our own"})
    odd_servers(world, lambda request: odd if request.path == "/prompt" else None)
    job_id = world.job()
    with world.running(task_execution_max_retries=0):
        job = world.ended(job_id)
    assert job.status == JobStatus.FAILED
    assert f"answered HTTP {status}" in job.error
    assert not world.executions()


def test_a_prompt_that_cannot_be_cancelled_has_failed_anyway(world: WorkerWorld) -> None:
    [comfy] = odd_servers(
        world, lambda request: BROKEN if (request.method, request.path) == ("POST", "/queue") else None, 1
    )
    comfy.order("comfy.prompt#1=never-ends")
    job_id = world.job()
    with world.running(comfyui_timeout_seconds=1, worker_silence_seconds=0.3, task_execution_max_retries=0):
        job = world.ended(job_id)
    assert (job.status, job.comfyui_deaths) == (JobStatus.FAILED, 0)
    assert "took longer than 1 s, and cannot be stopped: ComfyUI at" in job.error
    assert comfy.executions() == {prompt_id_of(job_id, 1): 1}
