"""Real worker processes, killed, stopped and frozen while they execute jobs."""

import signal
from collections.abc import Iterator
from contextlib import closing

import pytest
from local_servers import RunningServer
from rabbit_server import RabbitServer
from servers import empty_rabbit, empty_redis
from service_world import NOWHERE
from worker_program import WorkerProgram
from worker_world import SMALL, WorkerWorld, eventually

from retake.images.jobs import JobStatus
from retake.images.messages import TEXT_QUEUE
from retake.images.worker_command import WorkerOptions
from retake.images.worker_process import run_worker
from retake.vendors.comfyui import prompt_id_of


def test_a_worker_executes_and_ends_by_a_signal(world: WorkerWorld) -> None:
    comfy = world.comfyui()
    worker = WorkerProgram(world).start()
    jobs = [world.job(f"picture {n}") for n in range(3)]
    for job_id in jobs:
        assert world.ended(job_id).status == JobStatus.READY
    health = eventually(lambda: (it := worker.health())["job"] is None and it)
    assert health == {
        "name": "Worker-A",
        "queue": TEXT_QUEUE,
        "consuming": True,
        "job": None,
        "comfyui": [comfy.url],
        "waits": None,
    }
    assert worker.stop() == 0
    assert comfy.executions() == {prompt_id_of(it, 1): 1 for it in jobs}


def test_a_signal_ends_a_worker_that_waits_for_its_services(world: WorkerWorld) -> None:
    environ = WorkerProgram(world, comfyui_urls=["http://127.0.0.1:1"], start_seconds=1).environ
    environ["REDIS_URL"] = NOWHERE.redis
    assert run_worker(WorkerOptions(TEXT_QUEUE, "Worker-A", port=0), environ, signals=lambda: 1) == 0


def test_a_killed_worker_costs_no_second_execution(world: WorkerWorld) -> None:
    comfy = world.comfyui(pace=5.0)
    first = WorkerProgram(world, "Worker-A").start()
    job_id = world.job()
    eventually(comfy.executions)
    first.kill()
    WorkerProgram(world, "Worker-B").start()
    assert world.ended(job_id).executed_by.startswith("Worker-B @ 127.0.0.1:")
    assert comfy.executions() == {prompt_id_of(job_id, 1): 1}
    eventually(lambda: world.broker.depth(TEXT_QUEUE) == 0)


def test_a_frozen_worker_touches_nothing_of_the_new_owner(world: WorkerWorld) -> None:
    comfy = world.comfyui(pace=1.0)
    first = WorkerProgram(world, "Worker-A").start()
    job_id = world.job(send=2)
    eventually(comfy.executions)
    first.signal(signal.SIGSTOP)
    WorkerProgram(world, "Worker-B").start()
    job = world.ended(job_id)
    first.signal(signal.SIGCONT)
    eventually(lambda: first.health()["job"] is None)
    assert world.store.get(job_id) == job
    assert comfy.executions() == {prompt_id_of(job_id, 1): 1}
    assert first.stop() == 0


def test_a_job_that_takes_longer_than_the_drain_is_given_back(world: WorkerWorld) -> None:
    comfy = world.comfyui(pace=8.0)
    first = WorkerProgram(world, "Worker-A", drain=0.1).start()
    job_id = world.job()
    eventually(comfy.executions)
    assert first.stop() == 0
    job = world.store.get(job_id)
    assert job
    assert (job.status, job.prompt_id) == (JobStatus.PENDING, prompt_id_of(job_id, 1))
    WorkerProgram(world, "Worker-B").start()
    assert world.ended(job_id).status == JobStatus.READY
    assert comfy.executions() == {prompt_id_of(job_id, 1): 1}


def test_a_job_that_fits_into_the_drain_is_finished(world: WorkerWorld) -> None:
    comfy = world.comfyui(pace=1.0)
    worker = WorkerProgram(world, drain=30).start()
    job_id = world.job()
    eventually(comfy.executions)
    assert worker.stop() == 0
    assert world.stands(job_id) == JobStatus.READY


def test_jobs_by_http_have_their_turn_without_a_message(world: WorkerWorld) -> None:
    comfy = world.comfyui()
    worker = WorkerProgram(world).start()
    body = {"userId": "alice", "prompt": "a red fox", **SMALL}
    status, told = worker.ask("POST", "/CreateImageFromPrompt", body)
    assert (status, told["status"]) == (202, "accepted")
    job_id = told["job_id"]
    world.ended(job_id)
    status, told = worker.ask("GET", f"/status/{job_id}")
    assert (status, told["job_id"], told["status"]) == (200, job_id, "ready")
    assert world.output(job_id)["2"]["inputs"]["text"] == "a red fox"
    assert worker.ask("POST", "/CreateImageFromPrompt", body, idempotency_key="k")[1]["job_id"] != job_id
    known = [worker.ask("POST", "/CreateImageFromPrompt", body, idempotency_key="k")[1]["job_id"] for _ in range(2)]
    assert known[0] == known[1]
    world.ended(known[0])
    assert comfy.executions() == {prompt_id_of(it, 1): 1 for it in (job_id, known[0])}


@pytest.fixture(scope="module")
def idle_worker(
    shared_redis: RunningServer, shared_rabbit: RabbitServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkerProgram]:
    """Start a worker without jobs, for tests whose requests leave nothing behind. They come last, as emptying the
    servers for the other tests would disturb it."""
    for server in (shared_redis, shared_rabbit):
        server.start()
    empty_redis(shared_redis.url)
    empty_rabbit(shared_rabbit.url)
    with closing(WorkerWorld(shared_redis.url, shared_rabbit.url, tmp_path_factory.mktemp("idle"))) as world:
        world.comfyui()
        yield WorkerProgram(world).start()
        assert world.store.counts()["jobs:status:pending"] == 0


@pytest.mark.parametrize(
    ("method", "path", "body", "key", "status"),
    [
        ("POST", "/CreateImageFromPrompt", {"userId": "alice", "prompt": "x"}, "wrong", 401),
        ("POST", "/CreateImageFromPrompt", {"userId": "bob", "prompt": "x"}, "alices-key", 403),
        ("POST", "/CreateImageFromPrompt", {"userId": "alice", "prompt": ""}, "alices-key", 422),
        ("GET", "/status/0d7c3f39-5f0e-4d5c-9c67-0a4a0b8d2a11", None, "alices-key", 404),
        ("GET", "/status/nonsense", None, "alices-key", 422),
    ],
)
def test_what_is_refused(
    idle_worker: WorkerProgram, method: str, path: str, body: object, key: str, status: int
) -> None:
    assert idle_worker.ask(method, path, body, key)[0] == status
