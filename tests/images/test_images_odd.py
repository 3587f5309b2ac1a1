"""An odd item, as another program or a half-written document may leave it, fails alone and holds up no other."""

from collections.abc import Callable
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest
from images_world import CALM, PNG, ImagesWorld
from service_world import ServiceWorld
from waiting import eventually
from worker_world import WorkerWorld, picture

from retake.images import scripts
from retake.images.claims import ClaimResult
from retake.images.dead_messages import DeadMessages
from retake.images.jobs import UNDER_WAY, ImageJob, JobStatus
from retake.images.messages import OUTFIT_QUEUE, message_of

ODD = ["", "…", "null", "nan", "1e308", "-1", "True", "[[[]]]", "x" * 5000, "9" * 5000, "9999-12-31T23:59:59"]


# --- uploads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ODD)
def test_an_odd_answer_of_an_upload_holds_up_no_other(instances: Callable[..., ImagesWorld], answer: str) -> None:
    api = instances(images=CALM._replace(result_grace_seconds=0.05))
    assert api.upload(("a.png", PNG), ("b.png", PNG)).status_code == 201
    api.redis.hset("uploads:answered:alice", mapping={"a.png": answer})
    api.redis.sadd("uploads:answered", "alice")
    api.parts.uploads.sweep()
    assert not api.redis.exists("uploads:answered:alice")
    assert api.bucket.kept == {"alice/a.png", "alice/b.png"}, "nobody knows what was answered"
    api.redis.hset("uploads:answered:alice", mapping={"a.png": answer})
    assert api.alice.get("/images/alice").status_code == 200
    eventually(lambda: [api.parts.uploads.sweep(), not api.bucket.kept][1])


@pytest.mark.parametrize("user", ["", "..", "jobs", "a/b", "\ud800", "x" * 1000, "mallory"])
def test_answers_of_a_user_that_cannot_be_hold_up_no_other(instances: Callable[..., ImagesWorld], user: str) -> None:
    api = instances(images=CALM._replace(result_grace_seconds=0.05))
    name = user.encode("utf-8", "surrogatepass") + b"\xff"
    if user == "mallory":
        api.redis.set(f"uploads:answered:{user}", "not a hash")
        api.redis.sadd("uploads:answered", user)
    else:
        api.redis.hset(b"uploads:answered:" + name, "../../x", "1 version")
        api.redis.sadd("uploads:answered", name)
        api.redis.hset("uploads:answered:jobs", "x", "1 version")
        api.redis.sadd("uploads:answered", "jobs")
    assert api.upload(("a.png", PNG)).status_code == 201
    assert api.alice.get("/images/alice").status_code == 200
    eventually(lambda: [api.parts.uploads.sweep(), not api.bucket.kept][1])


# --- jobs in Redis --------------------------------------------------------------------------------------------------


def test_a_key_that_is_not_a_job_holds_up_neither_worker_nor_operator(world: WorkerWorld) -> None:
    world.comfyui()
    odd = str(uuid4())
    world.store.client.set(odd, "not a hash")
    world.send(ImageJob(odd, "pending"))
    later = world.job()
    with world.running():
        assert world.ended(later).status == JobStatus.READY
    world.broker.publish("DeadExchange", "", message_of(ImageJob(odd, "failed")))
    dead = DeadMessages(world.store, world.broker, None)
    assert [(it.name, it.job) for it in dead.all()] == [(odd, None)]
    assert dead.drop_gone() == [odd]


def test_a_key_that_is_not_a_job_is_unknown_to_the_api(api: ImagesWorld) -> None:
    odd = str(uuid4())
    api.redis.set(odd, "not a hash")
    assert api.result(odd).status_code == 404
    assert api.alice.delete("/jobResult", params={"jobId": odd}).status_code == 404


@pytest.mark.parametrize("until", ["1e308", "inf", "nan", "9" * 14, "-1e308", "", "…"])
def test_a_claim_that_no_worker_can_have_made_has_ended(world: WorkerWorld, until: str) -> None:
    job_id = world.job(send=0)
    world.store.client.hset(job_id, mapping={"claim": "x", "claim_until": until})
    unclaimed = world.store.members(scripts.PENDING, calm=UNDER_WAY, changed="9")
    assert [it.job_id for it in unclaimed] == [job_id]
    assert world.store.claim(job_id, "mine", 2, 3).result == ClaimResult.CLAIMED


@pytest.mark.parametrize("deaths", ["-1e308", "nan", "-nan", "-5", "…"])
def test_deaths_that_are_no_number_are_counted_from_0(world: WorkerWorld, deaths: str) -> None:
    job_id = world.job(send=0)
    world.store.client.hset(job_id, mapping={"claim": "x", "claim_until": "1", "deaths": deaths})
    assert world.store.claim(job_id, "mine", 2, 3).result == ClaimResult.CLAIMED
    assert world.store.client.hget(job_id, "deaths") == "1"


@pytest.mark.parametrize(("attempt", "before"), [("1", "9" * 18), ("", "5"), ("2", "-9"), ("-1", "-1")])
def test_odd_numbers_of_attempts_do_not_repeat_an_execution_without_end(
    world: WorkerWorld, attempt: str, before: str
) -> None:
    comfy = world.comfyui()
    comfy.order("comfy.prompt=execution-error")
    job_id = world.job(send=0)
    world.store.client.hset(job_id, mapping={"attempt": attempt, "attempts_before": before})
    world.send(ImageJob(job_id, "pending"))
    with world.running(retry_seconds=0):
        assert world.ended(job_id).status == JobStatus.FAILED
    assert len(comfy.started()) <= 3


def test_a_job_whose_parameters_are_too_large_for_a_message_is_executed(world: WorkerWorld) -> None:
    world.comfyui()
    job_id = world.job("x" * 300_000)
    with world.running():
        assert world.ended(job_id).status == JobStatus.READY
    assert world.dead() == 0


@pytest.mark.parametrize("name", ["", "../x.png", "a//b.png", "a\0b.png", "x" * 5000])
def test_a_picture_under_a_name_that_no_bucket_can_hold_is_gone(world: WorkerWorld, name: str) -> None:
    world.comfyui()
    job_id = world.outfit(person=picture(), garment=picture(), send=False)
    world.store.client.hset(job_id, "person_image_r2_key", f"jobs/{job_id}/{name}")
    job = world.store.get(job_id)
    assert job
    world.send(job)
    with world.running(queue=OUTFIT_QUEUE):
        job = world.ended(job_id)
    assert (job.status, job.error) == (JobStatus.FAILED, "the picture of the person is gone: make a new job")
    assert world.store.client.hget(job_id, "deaths") is None


# --- rows of jobs2 --------------------------------------------------------------------------------------------------

DEEP = "[" * 1500 + "]" * 1500


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("created_at", "infinity"),
        ("created_at", "-infinity"),
        ("created_at", "0044-03-15 BC"),
        ("created_at", "0001-01-01 00:00:00+14"),
        ("parameters", DEEP),
        ("parameters", f'{{"seed": {"9" * 5000}}}'),
        ("parameters", '{"seed": 1e5000, "steps": -1e308, "width": {}, "styles": [null, {}]}'),
        ("parameters", "null"),
    ],
)
def test_an_odd_row_holds_up_no_other(table_world: ServiceWorld, column: str, value: str) -> None:
    world = table_world
    rows = sorted(world.row() for _ in range(2))
    world.clock.sleep(31)
    with psycopg.connect(world.places.database) as connection:
        connection.execute(f"UPDATE jobs2 SET {column} = %s WHERE id = %s", [value, rows[0]])  # noqa: S608
    sweeper = world.sweeper()
    sweeper.sweep()
    assert world.sent() == rows
    assert {world.status(it) for it in rows} == {"pending"}


def test_parameters_that_are_null_are_missing(table_world: ServiceWorld) -> None:
    world, job_id = table_world, table_world.row()
    with psycopg.connect(world.places.database) as connection:
        connection.execute('UPDATE jobs2 SET parameters = \'{"negative_prompt": null, "styles": null}\'')
    world.clock.sleep(31)
    world.sweeper().sweep()
    job = world.store.get(job_id)
    assert job is not None
    assert (job.text.negative_prompt, job.text.styles) == ("", ())


def test_text_that_postgresql_cannot_keep_holds_up_no_other_row(table_world: ServiceWorld) -> None:
    world = table_world
    rows = sorted(world.row() for _ in range(2))
    world.clock.sleep(31)
    world.sweeper().sweep()
    for job_id in rows:
        world.ready(job_id)
    world.store.client.hset(rows[0], mapping={"output_r2_key": "a\0b", "executed_by_comfyui_server": b"\0\xff"})
    world.clock.sleep(31)
    world.sweeper().sweep()
    assert [world.row_status(it) for it in rows] == ["ready", "ready"]
    world.clock.sleep(1000)
    world.sweeper().sweep()
    assert [world.row_status(it) for it in rows] == ["completed", "completed"]


# --- clocks ----------------------------------------------------------------------------------------------------------


def test_a_row_that_a_wrong_clock_has_made_is_brought_in(table_world: ServiceWorld) -> None:
    world = table_world
    world.clock.moment += timedelta(days=1)
    job_id = world.row("a blue fox", "key")
    world.clock.moment -= timedelta(days=1)
    world.sweeper().sweep()
    assert world.sent() == [job_id]
