"""What can go wrong with a job on ComfyUI, and how often it is then executed."""

from threading import Thread
from time import monotonic
from typing import Any
from uuid import uuid4

import pytest
from worker_world import LONG_S, WorkerWorld, eventually, picture

from retake.errors import Code, Refused, StorageError
from retake.images import execution
from retake.images.comfyui_servers import ComfyServers
from retake.images.graphs import load_graphs
from retake.images.jobs import ImageJob, JobStatus, TextRequest
from retake.images.messages import OUTFIT_QUEUE, TEXT_QUEUE
from retake.sandbox.comfyui import ComfySandbox
from retake.vendors import ImageFile, PromptPhase, PromptState
from retake.vendors.comfyui import ComfyUI, prompt_id_of


@pytest.mark.parametrize(
    ("order", "outcomes"),
    [
        ("comfy.prompt#1=execution-error", ["error", "success"]),
        ("comfy.prompt#1=interrupted", ["interrupted", "success"]),
        ("comfy.prompt#1=lost-output", ["success", "success"]),
        ("comfy.prompt#1=never-ends", ["interrupted", "success"]),
    ],
)
def test_what_failed_is_tried_again_as_another_attempt(world: WorkerWorld, order: str, outcomes: list[str]) -> None:
    comfy = world.comfyui()
    comfy.order(order)
    job_id = world.job()
    with world.running(comfyui_timeout_seconds=5 if "never-ends" in order else 60):  # it covers both attempts
        job = world.ended(job_id)
    assert (job.status, job.attempt, job.prompt_id) == (JobStatus.READY, 2, prompt_id_of(job_id, 2))
    assert [it.outcome for it in comfy.started()] == outcomes
    assert comfy.executions() == {prompt_id_of(job_id, 1): 1, prompt_id_of(job_id, 2): 1}
    assert world.output(job_id)["7"]["inputs"]["filename_prefix"] == f"retake/{job_id}_2"


@pytest.mark.parametrize(
    "order",
    [
        "comfy.prompt#1=cut-after",
        "comfy.prompt#1=cut-before",
        "comfy.prompt#1=hang-after",
        "comfy.prompt#1=hang",
        "comfy.prompt#1=not-json",
        "comfy.prompt#1=no-id",
        "comfy.prompt#1=500",
        "comfy.prompt#1=502-html",
        "comfy.prompt#1=429",
        "comfy.prompt=ws-cut",
        "comfy.ws=ws-cut",
        "comfy.ws=500",
        "comfy.history#1-2=500",
        "comfy.queue#1=cut-before",
        "comfy.view#1=500",
        "comfy.view#1=cut-after",
    ],
)
def test_a_lost_answer_costs_neither_an_attempt_nor_an_execution(world: WorkerWorld, order: str) -> None:
    comfy = world.comfyui(pace=0.1)
    comfy.order(order)
    job_id = world.job()
    with world.running():
        job = world.ended(job_id)
    assert (job.status, job.attempt) == (JobStatus.READY, 1)
    assert comfy.executions() == {prompt_id_of(job_id, 1): 1}


def test_a_prompt_whose_answer_was_lost_has_a_moment_to_show_up(
    world: WorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, began = ComfyUI.state, list[float]()

    def late(server: ComfyUI, prompt_id: str) -> PromptState:
        began.append(monotonic())
        return known(server, prompt_id) if began[-1] - began[0] > 0.5 else PromptState(PromptPhase.GONE)

    monkeypatch.setattr(ComfyUI, "state", late)
    comfy = world.comfyui()
    comfy.order("comfy.prompt#1=cut-after")
    job_id = world.job()
    with world.running():
        job = world.ended(job_id)
    assert (job.status, job.attempt) == (JobStatus.READY, 1)
    assert comfy.executions() == {prompt_id_of(job_id, 1): 1}


def test_a_server_that_loses_each_answer_does_not_hold_the_worker_for_ever(
    world: WorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy answers /prompt alone, with a page."""
    pauses = execution._GONE_PAUSES_S
    assert sum(pauses) + len(pauses) + 1 < 90, "docs/images.md: six times in a minute and a half"
    monkeypatch.setattr(execution, "_GONE_PAUSES_S", [0.0 for _ in pauses])
    monkeypatch.setattr(execution, "_SETTLE_S", 0.01)
    comfy = world.comfyui()
    comfy.order("comfy.prompt=502-html")
    job_id = world.job()
    with world.running(task_execution_max_retries=1, retry_seconds=0.1):
        job = world.ended(job_id)
    assert (job.status, job.attempt) == (JobStatus.FAILED, 2)
    assert "HTTP 502" in job.error
    assert comfy.started() == []
    assert len([it for it in comfy.calls() if it.kind == "comfy.prompt"]) == 2 * 6


@pytest.mark.parametrize("order", ["comfy.prompt#1=restart", "comfy.history#1=restart"])
def test_a_restart_of_comfyui_costs_no_attempt(world: WorkerWorld, order: str) -> None:
    comfy = world.comfyui(pace=0.3)
    comfy.order(order)
    job_id = world.job()
    with world.running():
        job = world.ended(job_id)
    assert (job.status, job.attempt) == (JobStatus.READY, 1)
    assert [it.outcome for it in comfy.started()][-1] == "success"
    assert set(comfy.executions()) == {prompt_id_of(job_id, 1)}


def test_after_the_last_attempt_the_job_has_failed(world: WorkerWorld) -> None:
    comfy = world.comfyui()
    comfy.order("comfy.prompt=execution-error")
    job_id = world.job()
    with world.running():
        job = world.ended(job_id)
        eventually(lambda: world.dead() == 1)
        assert world.broker.depth(TEXT_QUEUE) == 0
    assert (job.status, job.attempt) == (JobStatus.FAILED, 3)
    assert "an error was ordered" in job.error
    assert job.error.endswith("(attempt 3)")
    assert comfy.executions() == {prompt_id_of(job_id, n): 1 for n in (1, 2, 3)}
    assert world.store.counts()["jobs:status:pending"] == 0
    assert world.store.counts()["jobs:status:failed"] == 1


def test_after_a_requeue_the_attempts_are_counted_anew(world: WorkerWorld) -> None:
    comfy = world.comfyui()
    comfy.order("comfy.prompt=execution-error")
    job_id = world.job(send=0)
    world.store.client.hset(job_id, mapping={"attempt": "4", "attempts_before": "3"})
    job = world.store.get(job_id)
    assert job
    world.send(job)
    with world.running():
        assert world.ended(job_id).attempt == 6
    assert comfy.executions() == {prompt_id_of(job_id, n): 1 for n in (4, 5, 6)}


def test_a_refused_graph_is_not_tried_again(world: WorkerWorld) -> None:
    comfy = world.comfyui()
    comfy.order("comfy.prompt=400")
    job_id = world.job()
    with world.running():
        job = world.ended(job_id)
        eventually(lambda: world.dead() == 1)
    assert (job.status, job.attempt) == (JobStatus.FAILED, 1)
    assert "an error 400 was ordered" in job.error
    assert len(comfy.calls("comfy.prompt")) == 1


def test_repeats_wait_longer_each_time(world: WorkerWorld) -> None:
    policy = world.context(servers=ComfyServers([]), retry_seconds=5).policy
    assert [policy.bounds_s(n) for n in (1, 2, 3)] == [(5, 5), (10, 10), (20, 20)]
    assert policy.max_retries == 2


@pytest.mark.parametrize("odd", [b"GIF89a...", picture()[:-20]])
def test_what_is_not_a_whole_picture_is_not_an_output(world: WorkerWorld, odd: bytes) -> None:
    comfy, answers = world.comfyui(), [odd]

    class Odd(ComfyUI):
        def view(self, file: ImageFile) -> bytes:
            return answers.pop() if answers else super().view(file)

    servers = ComfyServers([comfy.url], client=Odd)
    servers.check()
    job_id = world.job()
    with world.running(context=world.context(servers=servers)):
        assert world.ended(job_id).attempt == 2
    assert comfy.executions() == {prompt_id_of(job_id, 1): 1, prompt_id_of(job_id, 2): 1}


def test_a_server_that_stays_away_with_the_prompt_is_given_up_for_another(world: WorkerWorld) -> None:
    first = ComfySandbox(pace=30)
    first.__enter__()
    world.sandboxes.append(first)
    servers = world.servers()
    job_id = world.job()
    with world.running(context=world.context(servers=servers, worker_silence_seconds=0.5)):
        eventually(first.executions)
        second = world.comfyui()
        servers._urls = [first.url, second.url]
        eventually(lambda: len(servers.alive) == 2)
        first.__exit__()
        job = world.ended(job_id)
    assert (job.status, job.attempt, job.comfyui_server) == (JobStatus.READY, 1, second.url)
    assert second.executions() == {prompt_id_of(job_id, 1): 1}


def test_a_server_that_comes_back_is_asked_what_became_of_the_prompt(world: WorkerWorld) -> None:
    """It does not answer for a while, but was not restarted."""
    comfy, other = world.comfyui(pace=1.0), world.comfyui()
    other.order("comfy.stats=503")
    servers = world.servers()
    job_id = world.job()
    with world.running(context=world.context(servers=servers, worker_silence_seconds=30)):
        eventually(comfy.executions)
        for kind in ("history", "queue", "stats"):
            comfy.order(f"comfy.{kind}=503")
        other.withdraw_orders()
        eventually(lambda: servers.alive == [other.url])
        comfy.withdraw_orders()
        job = world.ended(job_id)
    assert (job.attempt, job.comfyui_server) == (1, comfy.url)
    assert world.executions() == {prompt_id_of(job_id, 1): 1}


def test_a_job_that_was_taken_waits_for_a_server(world: WorkerWorld) -> None:
    comfy = world.comfyui()
    servers = world.servers()
    comfy.order("comfy.prompt=429")
    job_id = world.job()
    with world.running(context=world.context(servers=servers)):
        eventually(lambda: comfy.calls("comfy.prompt"))
        comfy.order("comfy.stats=503")
        eventually(lambda: not servers.alive)
        eventually(lambda: world.stands(job_id) == JobStatus.WAITING)
        comfy.withdraw_orders()
        job = world.ended(job_id)
    assert (job.status, job.attempt) == (JobStatus.READY, 1)
    assert comfy.executions() == {prompt_id_of(job_id, 1): 1}


@pytest.mark.parametrize("missing", ["person", "garment"])
def test_without_its_pictures_an_outfit_job_has_failed(world: WorkerWorld, missing: str) -> None:
    comfy = world.comfyui()
    given: dict[str, Any] = {it: picture() for it in ("person", "garment") if it != missing}
    job_id = world.outfit(**given)
    with world.running(queue=OUTFIT_QUEUE):
        job = world.ended(job_id)
        eventually(lambda: world.dead() == 1)
    assert (job.status, job.error) == (JobStatus.FAILED, f"the picture of the {missing} is gone: make a new job")
    assert not comfy.executions()


def test_an_outfit_job_with_a_file_that_is_no_picture_has_failed(world: WorkerWorld) -> None:
    comfy = world.comfyui()
    job_id = world.outfit(person=picture(), garment=b"GIF89a...")
    with world.running(queue=OUTFIT_QUEUE):
        job = world.ended(job_id)
    assert (job.status, job.error) == (JobStatus.FAILED, "the picture of the garment is not a PNG, JPEG or WebP")
    assert not comfy.executions()


def test_the_pictures_of_another_job_are_not_used(world: WorkerWorld) -> None:
    world.comfyui()
    other, job_id = world.outfit(person=picture(), garment=picture(), send=False), world.outfit(send=False)
    for which in ("person", "garment"):
        world.store.client.hset(job_id, f"{which}_image_r2_key", f"jobs/{other}/input_{which}.png")
    job = world.store.get(job_id)
    assert job
    world.send(job)
    with world.running(queue=OUTFIT_QUEUE):
        assert world.ended(job_id).status == JobStatus.FAILED


@pytest.mark.parametrize("order", ["comfy.upload#1=500", "comfy.upload#2=cut-after", "comfy.upload#1=not-json"])
def test_an_upload_is_repeated(world: WorkerWorld, order: str) -> None:
    comfy = world.comfyui()
    comfy.order(order)
    job_id = world.outfit(person=picture("red"), garment=picture("blue"))
    with world.running(queue=OUTFIT_QUEUE):
        assert world.ended(job_id).attempt == 1
    assert comfy.executions() == {prompt_id_of(job_id, 1): 1}


@pytest.mark.parametrize("method", ["read", "write"])
def test_a_bucket_that_is_away_is_waited_for(world: WorkerWorld, method: str) -> None:
    comfy, work, troubles = world.comfyui(), getattr(world.bucket, method), [1, 2, 3]

    def away(*arguments: Any) -> Any:
        if troubles:
            raise StorageError(f"the bucket does not answer ({troubles.pop()})")
        return work(*arguments)

    job_id = world.outfit(person=picture("red"), garment=picture("blue"))
    setattr(world.bucket, method, away)
    with world.running(queue=OUTFIT_QUEUE, worker_silence_seconds=0.5) as worker:
        assert eventually(lambda: worker.state().waits).startswith("the bucket cannot be used")
        assert world.ended(job_id).status == JobStatus.READY
        eventually(lambda: worker.state() == (True, None, [comfy.url], None))
    assert not troubles
    assert comfy.executions() == {prompt_id_of(job_id, 1): 1}


def test_a_prompt_may_wait_for_its_turn_longer_than_it_may_take(world: WorkerWorld) -> None:
    comfy = world.comfyui()
    comfy.order("comfy.prompt#1=never-ends")
    another = ComfyUI(comfy.url)
    another.submit(load_graphs().of_text(ImageJob(str(uuid4()), "", text=TextRequest("x")), 1), str(uuid4()), "another")
    job_id = world.job()
    with world.running(comfyui_timeout_seconds=5):
        eventually(lambda: len(comfy.calls("comfy.queue")) > 14)  # ten polls per limit
        another.cancel(comfy.started()[0].prompt_id)
        assert world.ended(job_id).attempt == 1
    assert comfy.executions()[prompt_id_of(job_id, 1)] == 1


def test_a_server_that_refuses_every_prompt_is_asked_again_only_after_a_check(world: WorkerWorld) -> None:
    comfy = world.comfyui()
    comfy.order("comfy.prompt#1-2=429")
    worker, job_id = world.worker(), world.job()
    thread = Thread(target=worker.run, daemon=True)
    thread.start()
    for asked in (1, 2):
        eventually(lambda: worker.context.servers.alive == [])
        assert len(comfy.calls("comfy.prompt")) == asked
        worker.context.servers.check()
    assert world.ended(job_id).attempt == 1
    worker.stop(0)
    thread.join(LONG_S)
    assert not thread.is_alive()


def test_secrets_do_not_get_into_the_error(world: WorkerWorld) -> None:
    comfy = world.comfyui()

    class Talkative(ComfyUI):
        def submit(self, *arguments: Any) -> None:
            raise Refused(Code.INVALID_INPUT, "at http://user:secret@host/x?token=abc " + "x" * 9000)

    servers = ComfyServers([comfy.url], client=Talkative)
    servers.check()
    job_id = world.job()
    with world.running(context=world.context(servers=servers)):
        error = world.ended(job_id).error
    assert error.startswith("at http://…@host/x?… xxx")
    assert len(error) <= 520
