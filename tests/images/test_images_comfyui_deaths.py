"""A job that kills ComfyUI each time is bounded; one that every server refuses waits, and says so."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from uuid import uuid4

import pytest
from worker_world import WorkerWorld, eventually

from retake.images import execution
from retake.images.comfyui_servers import ComfyServers
from retake.images.graphs import load_graphs
from retake.images.jobs import ImageJob, JobStatus, TextRequest
from retake.sandbox.comfyui import ComfySandbox
from retake.testing.logs import CapturedLogs
from retake.vendors.comfyui import ComfyUI, prompt_id_of


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "_GONE_PAUSES_S", [0.0 for _ in execution._GONE_PAUSES_S])
    monkeypatch.setattr(execution, "_SETTLE_S", 0.01)


@contextmanager
def dying(world: WorkerWorld, servers: ComfyServers, doomed: str) -> Iterator[list[str]]:
    """End a server as soon as it executes the prompt `doomed`, and start another in its place; yield the URLs of those
    that have ended."""
    ended: list[str] = []
    over = Event()

    def run() -> None:
        while not over.is_set():
            one = ComfySandbox(pace=30)
            with one:
                servers._urls = [one.url]
                while not over.wait(0.02):
                    if any(it.startswith(doomed) for it in one.executions()):
                        ended.append(one.url)
                        break

    thread = Thread(target=run, daemon=True)
    thread.start()
    try:
        yield ended
    finally:
        over.set()
        thread.join(30)


@pytest.mark.parametrize("retries", [0, 1])
def test_a_job_that_restarts_comfyui_each_time_fails(world: WorkerWorld, retries: int) -> None:
    comfy = world.comfyui(pace=0.2)
    comfy.order("comfy.prompt=restart")
    job_id = world.job()
    with world.running(comfyui_death_limit=3, task_execution_max_retries=retries):
        job = world.ended(job_id)
        eventually(lambda: world.dead() == 1)
        comfy.withdraw_orders()
        later = world.ended(world.job())
    assert (job.status, job.attempt, job.comfyui_deaths) == (JobStatus.FAILED, 1 + retries, 3 + retries)
    told = f"ComfyUI went away {3 + retries} times while it executed this job, the last time at {comfy.url}: look there"
    assert job.error.startswith(told)
    expected = {prompt_id_of(job_id, 1): 3, prompt_id_of(job_id, 2): 1}
    assert {it: n for it, n in comfy.executions().items() if it in expected} == dict([*expected.items()][: 1 + retries])
    assert (later.status, later.comfyui_deaths) == (JobStatus.READY, 0)


def test_a_job_that_ends_one_server_after_another_fails(world: WorkerWorld) -> None:
    servers = ComfyServers([], client=lambda url: ComfyUI(url, timeout_s=3.0))
    job_id = world.job()
    context = world.context(
        servers=servers, worker_silence_seconds=0.3, comfyui_death_limit=2, task_execution_max_retries=0
    )
    with dying(world, servers, prompt_id_of(job_id, 1)) as ended, world.running(context=context):
        job = world.ended(job_id)
        eventually(lambda: world.dead() == 1)
        assert len(ended) == 2
    assert (job.status, job.attempt, job.comfyui_deaths) == (JobStatus.FAILED, 1, 2)


def test_the_count_goes_with_the_job_to_another_worker_and_ends_with_a_requeue(world: WorkerWorld) -> None:
    comfy = world.comfyui(pace=0.2)
    job_id = world.job(send=0)
    world.store.client.hset(job_id, mapping={"comfyui_deaths": "2"})
    comfy.order("comfy.prompt=restart")
    world.send(ImageJob(job_id, "pending"))
    with world.running(comfyui_death_limit=3, task_execution_max_retries=0):
        assert world.ended(job_id).status == JobStatus.FAILED
    assert comfy.executions() == {prompt_id_of(job_id, 1): 1}
    world.store.requeue(job_id)
    assert world.store.client.hget(job_id, "comfyui_deaths") is None


def test_a_prompt_that_waits_for_its_turn_is_not_to_blame_for_a_restart(world: WorkerWorld) -> None:
    comfy = world.comfyui()
    other = ComfyUI(comfy.url)
    job_id = world.job(send=0)
    with world.running(comfyui_death_limit=1, task_execution_max_retries=0):
        comfy.order("comfy.prompt#1=never-ends")
        graph = load_graphs().of_text(ImageJob(str(uuid4()), "", text=TextRequest("x")), 1)
        other.submit(graph, str(uuid4()), "another")
        assert comfy.until(lambda: comfy.started())
        world.send(ImageJob(job_id, "pending"))
        eventually(lambda: len(comfy.calls("comfy.queue")) > 2)
        comfy.restart()
        job = world.ended(job_id)
    assert (job.status, job.attempt, job.comfyui_deaths) == (JobStatus.READY, 1, 0)


def test_servers_that_are_away_before_they_have_the_prompt_do_not_count(world: WorkerWorld) -> None:
    comfy = world.comfyui()
    job_id = world.job()
    comfy.order("comfy.prompt#1-6=429")
    with world.running(comfyui_death_limit=1, task_execution_max_retries=0):
        job = world.ended(job_id)
    assert (job.status, job.attempt, job.comfyui_deaths) == (JobStatus.READY, 1, 0)
    assert comfy.executions() == {prompt_id_of(job_id, 1): 1}


def test_a_server_that_is_silent_for_a_while_and_goes_on_has_not_died(world: WorkerWorld) -> None:
    comfy = world.comfyui(pace=6)
    job_id = world.job()
    with world.running(comfyui_death_limit=1, task_execution_max_retries=0, worker_silence_seconds=0.3) as worker:
        eventually(comfy.executions)
        for kind in ("history", "queue", "stats"):
            comfy.order(f"comfy.{kind}=503")
        eventually(lambda: worker.state().waits)
        comfy.withdraw_orders()
        job = world.ended(job_id)
    assert (job.status, job.attempt, job.comfyui_deaths) == (JobStatus.READY, 1, 0)
    assert comfy.executions() == {prompt_id_of(job_id, 1): 1}


@pytest.mark.parametrize("status", [401, 403, 429])
def test_a_job_that_every_server_refuses_waits_and_says_so_once(world: WorkerWorld, status: int) -> None:
    comfy = world.comfyui()
    comfy.order(f"comfy.prompt={status}")
    job_id = world.job()
    with CapturedLogs() as log, world.running() as worker:
        eventually(lambda: len(comfy.calls("comfy.prompt")) > 3)
        waits = worker.state().waits
        assert waits
        assert waits.startswith(f"ComfyUI at {comfy.url} was asked to execute a prompt and answered HTTP {status}")
        eventually(lambda: world.stands(job_id) == JobStatus.WAITING)  # between two tries
        comfy.withdraw_orders()
        assert world.ended(job_id).attempt == 1
        eventually(lambda: worker.state() == (True, None, [comfy.url], None))
    told = [it.getMessage() for it in log.records]
    assert len([it for it in told if f"HTTP {status}" in it]) == 1, told
    assert len([it for it in told if it.startswith("ComfyUI at") and "answers" in it]) <= 1, told
    assert len([it for it in told if it.startswith("no ComfyUI server answers")]) <= 1, told
