"""A worker in this process: which messages it takes, which jobs it executes, and how often."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from local_servers import RunningServer
from rabbit_server import RabbitServer
from worker_world import WorkerWorld, eventually, picture

from retake.images.claims import WriteResult
from retake.images.execution import JobExecution
from retake.images.jobs import JobStatus
from retake.images.messages import DEAD_QUEUE, OUTFIT_QUEUE, TEXT_QUEUE
from retake.images.redis_calls import RedisAway
from retake.images.settings import AccessKeys, ImagesSettings
from retake.images.worker import LineFull
from retake.images.worker_api import worker_app
from retake.rabbit.broker import Delivery
from retake.vendors.comfyui import prompt_id_of


def test_a_text_job_becomes_a_picture(world: WorkerWorld) -> None:
    comfy = world.comfyui()
    job_id = world.job("a red fox", styles=("watercolor", "soft"), negative_prompt="blurry", seed=11, steps=7)
    with world.running():
        job = world.ended(job_id)
        eventually(lambda: world.broker.depth(TEXT_QUEUE) == 0)
    assert (job.status, job.attempt, job.image_type, job.error) == (JobStatus.READY, 1, "image/png", "")
    assert (job.prompt_id, job.comfyui_server) == (prompt_id_of(job_id, 1), comfy.url)
    assert job.output_r2_key == f"jobs/{job_id}/output.png"
    assert job.executed_by == f"Worker-A @ {comfy.url.removeprefix('http://')}"
    graph = world.output(job_id)
    assert graph["2"]["inputs"]["text"] == "a red fox, watercolor, soft"
    assert graph["3"]["inputs"]["text"] == "blurry"
    assert (graph["4"]["inputs"]["width"], graph["5"]["inputs"]["seed"], graph["5"]["inputs"]["steps"]) == (64, 11, 7)
    assert comfy.executions() == {prompt_id_of(job_id, 1): 1}
    assert world.store.counts() == {
        "jobs:status:pending": 0,
        "jobs:status:ready": 1,
        "jobs:status:dispatcher_cache_processing": 0,
        "jobs:status:failed": 0,
    }
    assert world.dead() == 0


def test_an_outfit_job_uses_both_pictures(world: WorkerWorld) -> None:
    comfy = world.comfyui()
    job_id = world.outfit(person=picture("red"), garment=picture("blue"))
    with world.running(queue=OUTFIT_QUEUE):
        world.ended(job_id)
    graph = world.output(job_id)
    assert graph["4"]["inputs"]["image"] == f"{job_id}_person.png"
    assert graph["5"]["inputs"]["image"] == f"{job_id}_garment.png"
    assert comfy.executions() == {prompt_id_of(job_id, 1): 1}


def test_messages_that_are_no_jobs_leave_the_queue(world: WorkerWorld) -> None:
    world.comfyui()
    for body in (
        b"no JSON",
        b"[]",
        b'{"job_id": 7}',
        b'{"job_id": "../etc"}',
        b"\xff",
        b'{"job_id": "a", "job_id": "b"}',
    ):
        world.broker.publish("TextExchange", "text", body)
    unknown = world.job()
    world.store.remove(unknown)
    job_id = world.job()
    with world.running():
        assert world.ended(job_id).status == JobStatus.READY
        eventually(lambda: world.dead() == 6)
        assert world.broker.depth(TEXT_QUEUE) == 0
    assert list(world.executions()) == [prompt_id_of(job_id, 1)]


def test_two_messages_for_a_job_are_one_execution(world: WorkerWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    ack, acknowledged = Delivery.ack, []

    def noted(self: Delivery) -> bool:
        done = ack(self)
        acknowledged.append(done)
        return done

    monkeypatch.setattr(Delivery, "ack", noted)
    comfy = world.comfyui(pace=0.5)
    servers = world.servers()
    job_id = world.job(send=3)
    with world.running("Worker-A", context=world.context("Worker-A", servers)), world.running("Worker-B"):
        assert world.ended(job_id).status == JobStatus.READY
        eventually(lambda: acknowledged.count(True) == 3)  # the queue's depth excludes what a worker still holds
    assert comfy.executions() == {prompt_id_of(job_id, 1): 1}
    assert world.broker.depth(TEXT_QUEUE) == 0  # none is returned at the end


def test_a_job_of_another_worker_is_waited_for_and_not_dropped(world: WorkerWorld) -> None:
    comfy = world.comfyui()
    job_id = world.job()
    world.store.claim(job_id, "another worker", 600, 5)
    with world.running() as worker:
        eventually(lambda: worker.state().job == job_id)
        world.store.give_back(job_id, "another worker")
        assert world.ended(job_id).status == JobStatus.READY
    assert comfy.executions() == {prompt_id_of(job_id, 1): 1}


def test_a_worker_that_waits_for_another_one_stops_anyway(world: WorkerWorld) -> None:
    world.comfyui()
    job_id = world.job()
    world.store.claim(job_id, "another worker", 600, 5)
    with world.running(drain_s=600) as worker:
        eventually(lambda: worker.state().job == job_id)
    assert eventually(lambda: world.broker.depth(TEXT_QUEUE)) == 1


def test_a_job_whose_workers_die_again_and_again_is_failed(world: WorkerWorld) -> None:
    comfy = world.comfyui()
    job_id = world.job()
    names = iter(range(100))
    while world.store.fields(job_id).get("deaths") != "2":
        world.store.claim(job_id, f"worker {next(names)}", 0.001, 5)
    with world.running():
        job = world.ended(job_id)
        eventually(lambda: world.dead() == 1)
    assert (job.status, job.error) == (JobStatus.FAILED, "3 workers died of it: it is not retried")
    assert not comfy.executions()
    assert world.store.counts()["jobs:status:failed"] == 1


def test_a_failed_job_whose_worker_died_before_it_settled_the_message_is_dead_lettered(world: WorkerWorld) -> None:
    world.comfyui()
    job_id = world.job()
    consumer = world.broker.consume(TEXT_QUEUE)
    assert consumer.take(30)
    world.store.claim(job_id, "dying", 60, 5)
    world.store.end_failed(job_id, "dying", "it broke")
    consumer.close()
    with world.running():
        eventually(lambda: world.dead() == 1)
    assert world.stands(job_id) == JobStatus.FAILED


def test_a_failed_job_whose_end_redis_recorded_without_an_answer_is_dead_lettered(
    world: WorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker learns only from renewing its claim that it no longer has the job."""
    world.comfyui().order("comfy.prompt=execution-error")
    end_failed = world.store.end_failed

    def unanswered(job_id: str, token: str, error: str) -> WriteResult:
        end_failed(job_id, token, error)
        raise RedisAway("the answer was lost")

    monkeypatch.setattr(world.store, "end_failed", unanswered)
    job_id = world.job()
    with world.running(task_execution_max_retries=0):
        assert world.ended(job_id).status == JobStatus.FAILED
        eventually(lambda: world.dead() == 1)


def test_while_no_comfyui_answers_nothing_is_consumed(world: WorkerWorld) -> None:
    comfy = world.comfyui()
    comfy.order("comfy.stats=503")
    job_id = world.job()
    with world.running() as worker:
        assert worker.state() == (False, None, [], None)
        comfy.withdraw_orders()
        assert world.ended(job_id).status == JobStatus.READY
        assert worker.state().consuming
        comfy.order("comfy.stats=503")
        eventually(lambda: not worker.state().consuming)
        waiting = world.job()
        eventually(lambda: world.broker.depth(TEXT_QUEUE) == 1)
        assert world.stands(waiting) == JobStatus.PENDING
        comfy.withdraw_orders()
        assert world.ended(waiting).attempt == 1


def test_a_deleted_job_is_stopped_and_leaves_nothing_behind(world: WorkerWorld) -> None:
    comfy = world.comfyui(pace=20.0)
    job_id = world.job()
    with world.running() as worker:
        eventually(comfy.executions)
        world.store.remove(job_id)
        eventually(lambda: worker.state().job is None)
        eventually(lambda: world.broker.depth(TEXT_QUEUE) == 0)
    eventually(lambda: [it.outcome for it in comfy.started()] == ["interrupted"])
    assert world.bucket.list("jobs/") == []
    assert world.store.fields(job_id) == {}
    assert sum(world.store.counts().values()) == 0
    assert world.dead() == 0


def test_the_picture_of_a_job_that_is_deleted_at_the_last_moment_goes_too(world: WorkerWorld) -> None:
    world.comfyui()
    job_id = world.job()
    write = world.bucket.write

    def write_late(*arguments: Any) -> str:
        done = write(*arguments)
        world.store.remove(job_id)
        return done

    world.bucket.write = write_late  # type: ignore[method-assign,assignment]
    with world.running():
        eventually(lambda: world.store.fields(job_id) == {})
        eventually(lambda: not any(Path(world.bucket.url.removeprefix("file:"), "jobs").iterdir()))


def test_a_job_by_http_that_waits_when_the_worker_stops_is_sent_to_its_queue(world: WorkerWorld) -> None:
    comfy = world.comfyui(pace=5.0)
    first, second = world.job(send=0), world.job(send=0)
    with world.running(drain_s=20) as worker:
        worker.add(first)
        eventually(comfy.executions)
        worker.add(second)
    assert world.stands(first) == JobStatus.READY
    assert world.stands(second) == JobStatus.PENDING
    with world.running("Worker-B"):
        assert world.ended(second).executed_by.startswith("Worker-B")
    assert set(world.executions().values()) == {1}


def test_a_job_by_http_that_is_under_way_when_the_worker_stops_is_given_back_and_sent(world: WorkerWorld) -> None:
    comfy = world.comfyui(pace=5.0)
    job_id = world.job(send=0)
    with world.running() as worker:
        worker.add(job_id)
        eventually(comfy.executions)
    fields = world.store.fields(job_id)
    assert (fields["status"], "claim" in fields) == (JobStatus.PENDING, False)
    assert world.broker.depth(TEXT_QUEUE) == 1


def test_a_job_by_http_that_another_worker_has_does_not_hold_up_the_next(world: WorkerWorld) -> None:
    """A sweeper has sent it to the queue because it waited long behind this worker's other jobs."""
    world.comfyui()
    taken, next_one = world.job(send=0), world.job(send=0)
    world.store.claim(taken, "another worker", 600, 5)
    with world.running() as worker:
        worker.add(taken)
        worker.add(next_one)
        assert world.ended(next_one).status == JobStatus.READY
    assert world.stands(taken) == JobStatus.PENDING
    assert world.broker.depth(TEXT_QUEUE) == 0


class WorkerHttp:
    """The HTTP API of a worker that is not running, for two users and one who acts for all."""

    def __init__(self, world: WorkerWorld, **settings: Any) -> None:
        self.worker = world.worker(**settings)
        keys = AccessKeys({"alice": "alices-key", "bob": "bobs-key", "*": "key-of-all"})
        given = ImagesSettings(images=self.worker.context.settings, keys=keys)
        self._app = httpx.ASGITransport(worker_app(given, world.store, self.worker))

    def ask(self, method: str, path: str, key: str, body: object = None, **headers: str) -> httpx.Response:
        async def asking() -> httpx.Response:
            given = {"Authorization": f"Bearer {key}", **headers}
            async with httpx.AsyncClient(transport=self._app, base_url="http://worker", headers=given) as client:
                return await client.request(method, path, json=body)

        return asyncio.run(asking())

    def order(self, **headers: str) -> httpx.Response:
        body = {"userId": "alice", "prompt": "a red fox"}
        return self.ask("POST", "/CreateImageFromPrompt", "alices-key", body, **headers)


def test_a_job_that_another_request_was_promised_stays_though_the_line_is_full(
    world: WorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    http, promised, key = WorkerHttp(world), list[str](), {"Idempotency-Key": "k"}

    def full(job_id: str) -> None:
        if not promised:  # another request with the same key, at this moment
            promised.append(http.order(**key).json()["job_id"])
        raise LineFull("full")

    monkeypatch.setattr(http.worker, "add", full)
    first = http.order(**key)
    assert world.stands(promised[0]) == JobStatus.PENDING
    assert first.json() == {"status": "accepted", "job_id": promised[0]}


def test_a_job_for_which_a_worker_has_no_room_is_not_made(world: WorkerWorld) -> None:
    http = WorkerHttp(world)
    http.worker.stop(0)
    assert http.order(**{"Idempotency-Key": "k"}).status_code == 503
    assert world.store.counts()["jobs:status:pending"] == 0
    assert world.store.known("alice", "k") is None


def test_a_workers_jobs_are_counted_and_shown_to_their_user_only(world: WorkerWorld) -> None:
    http, key = WorkerHttp(world, rate_per_minute=2), {"Idempotency-Key": "k"}
    job_id = http.order(**key).json()["job_id"]
    assert http.order(**key).json()["job_id"] == job_id, "a replay does not count"
    assert [http.order().status_code for _ in range(2)] == [202, 429]
    seen = [http.ask("GET", f"/status/{job_id}", it).status_code for it in ("alices-key", "bobs-key", "key-of-all")]
    assert seen == [200, 404, 200]


def test_a_bug_ends_no_worker_and_no_job(world: WorkerWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    comfy = world.comfyui()
    job_id, execute, bugs = world.job(), JobExecution.run, [1]

    def buggy(self: JobExecution) -> bool:
        if bugs:
            raise ZeroDivisionError(bugs.pop())
        return execute(self)

    monkeypatch.setattr(JobExecution, "run", buggy)
    with world.running(worker_silence_seconds=0.3):
        assert world.ended(job_id).status == JobStatus.READY
    assert comfy.executions() == {prompt_id_of(job_id, 1): 1}


def test_a_redis_that_is_restarted_is_waited_for(world: WorkerWorld, redis_server: RunningServer) -> None:
    comfy = world.comfyui(pace=1.0)
    job_id = world.job()
    with world.running():
        eventually(comfy.executions)
        redis_server.kill()
        eventually(lambda: comfy.started()[0].outcome == "success")
        redis_server.start()
        assert world.ended(job_id).status == JobStatus.READY
    assert comfy.executions() == {prompt_id_of(job_id, 1): 1}


def test_a_rabbitmq_that_is_killed_costs_no_second_execution(new_rabbit: RabbitServer, world: WorkerWorld) -> None:
    for queue in (TEXT_QUEUE, OUTFIT_QUEUE, DEAD_QUEUE):
        new_rabbit.wait_for_queue(queue)
    comfy = world.comfyui(pace=1.0)
    job_id = world.job()
    with world.running():
        eventually(comfy.executions)
        new_rabbit.kill()
        assert world.ended(job_id).status == JobStatus.READY
        new_rabbit.start()
        eventually(lambda: world.broker.depth(TEXT_QUEUE) == 0)
        after = world.job(send=0)
        job = world.store.get(after)
        assert job
        eventually(lambda: world.sent(job))
        assert world.ended(after).status == JobStatus.READY
        eventually(lambda: world.broker.depth(TEXT_QUEUE) == 0)
    assert comfy.executions() == {prompt_id_of(it, 1): 1 for it in (job_id, after)}
    eventually(lambda: world.broker.depth(TEXT_QUEUE) == 0)  # none is returned at the end
