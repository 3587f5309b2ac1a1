"""Jobs over the API: created, polled, delivered, deleted."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from images_world import CALM, JPEG, PNG, WEBP, ImagesWorld, pictured
from together import at_once
from waiting import eventually

from retake.images.jobs import ImageJob, is_job_id
from retake.images.messages import OUTFIT_QUEUE, TEXT_QUEUE
from retake.images.redis_calls import RedisAway
from retake.images.table import JobTable


def test_a_job_is_pending_in_redis_and_sent(api: ImagesWorld) -> None:
    styles = ["ink", "wash"]
    answer = api.ask(prompt="a fox", negativePrompt="blur", styles=styles, width=512, height=64, steps=7, seed=5)
    assert answer.status_code == 201
    job_id = answer.json()["jobId"]
    assert is_job_id(job_id)
    assert [*answer.json()] == ["jobId"]
    fields = api.store.fields(job_id)
    assert {name: fields[name] for name in ("status", "type", "user_id", "prompt", "negative_prompt")} == {
        "status": "pending",
        "type": "text",
        "user_id": "alice",
        "prompt": "a fox",
        "negative_prompt": "blur",
    }
    assert json.loads(fields["styles"]) == styles
    assert [fields[it] for it in ("width", "height", "steps", "seed")] == ["512", "64", "7", "5"]
    assert fields["created_at"] == fields["updated_at"]
    assert api.members("pending") == {job_id}
    assert eventually(lambda: api.depth(TEXT_QUEUE)) == 1
    (message,) = api.services.broker.browse(TEXT_QUEUE, 10)
    assert json.loads(message.body)["job_id"] == job_id


def test_what_is_not_given_is_as_usual_and_the_seed_is_random(api: ImagesWorld) -> None:
    first, second = (api.store.get(api.job()) for _ in range(2))
    assert first
    assert second
    assert (first.text.width, first.text.height, first.text.steps) == (1024, 1024, 20)
    assert first.text.seed != second.text.seed


def test_a_job_from_the_first_to_the_last_answer(api: ImagesWorld) -> None:
    job_id = api.job()
    answer = api.result(job_id)
    assert (answer.status_code, answer.json()["status"]) == (202, "pending")
    assert set(answer.json()) == {"status", "message"}
    api.finish(job_id)
    answer = api.result(job_id)
    assert pictured(answer) == PNG
    assert {**answer.json(), "image_data_base64": ""} == {
        "status": "completed",
        "jobId": job_id,
        "image_data_base64": "",
        "image_type": "image/png",
    }
    eventually(lambda: api.store.fields(job_id).get("delivered_at"))
    assert pictured(api.result(job_id)) == PNG, "it is answered again during the grace period"


def test_a_job_under_way_is_accepted(api: ImagesWorld) -> None:
    for status in ("pending", "waiting_comfyui", "processing_comfyui", "processing"):
        answer = api.result(api.put(status=status))
        assert (answer.status_code, answer.json()["status"]) == (202, status)
        assert answer.json()["message"]


def test_a_failed_job_tells_why(api: ImagesWorld) -> None:
    job_id = api.job()
    api.fail(job_id, "the graph was refused")
    answer = api.result(job_id)
    assert answer.status_code == 200
    assert answer.json() == {"status": "failed", "jobId": job_id, "error": "the graph was refused"}
    eventually(lambda: api.store.fields(job_id).get("delivered_at"))


def test_a_status_of_another_program_is_shown_and_kept(api: ImagesWorld) -> None:
    job_id = api.put(status="resting")
    for _ in range(2):
        answer = api.result(job_id)
        assert (answer.status_code, answer.json()) == (200, {"status": "resting"})
    assert "delivered_at" not in api.store.fields(job_id)


def test_ready_without_a_picture_is_500_and_cleaned_up(api: ImagesWorld) -> None:
    job_id = api.put(status="ready")
    answer = api.result(job_id)
    assert (answer.status_code, [*answer.json()]) == (500, ["detail"])
    assert api.store.fields(job_id) == {}
    assert api.result(job_id).status_code == 404


def test_a_picture_that_is_gone_is_404_and_cleaned_up(api: ImagesWorld) -> None:
    for key in ("", "../x", "a//b", "jobs/\x00"):  # others are keys that no bucket can hold
        job_id = api.job()
        api.finish(job_id)
        if key:
            api.redis.hset(job_id, "output_r2_key", key)
        api.bucket.delete(f"jobs/{job_id}/output.png")
        assert api.result(job_id).status_code == 404
        assert api.kept(job_id) is None
        assert api.members("ready") | api.members("pending") == set()


def test_an_unknown_job_is_404_and_no_uuid_422(api: ImagesWorld) -> None:
    assert api.result("0b8f8a52-9d0b-4b53-9f5f-0242ac120002").status_code == 404
    for job_id in ("jobs:status:pending", "1", "", "x" * 5000, "0b8f8a52-9d0b-4b53-9f5f-0242ac12000g"):
        assert api.result(job_id).status_code == 422
    assert api.alice.get("/jobResult").status_code == 422


def test_an_id_in_capitals_is_the_same_job(api: ImagesWorld) -> None:
    job_id = api.job()
    assert api.result(job_id.upper()).status_code == 202


def test_without_a_grace_a_result_goes_with_its_first_answer(instances: Callable[..., ImagesWorld]) -> None:
    api = instances(images=instances().services.settings.images._replace(result_grace_seconds=0))
    ready, failed = api.job(), api.job()
    api.finish(ready)
    api.fail(failed)
    assert pictured(api.result(ready)) == PNG
    assert api.result(failed).json()["status"] == "failed"
    eventually(lambda: api.kept(ready) is None and api.kept(failed) is None)
    assert api.result(ready).status_code == api.result(failed).status_code == 404
    assert api.bucket.kept == set()


@pytest.mark.parametrize("grace_s", [0, 60])
def test_a_failure_that_is_answered_while_the_job_is_requeued_is_forgotten(
    instances: Callable[..., ImagesWorld], grace_s: int
) -> None:
    api = instances(images=CALM._replace(result_grace_seconds=grace_s))
    job_id = api.job()
    api.fail(job_id)
    found = api.parts.results.state(job_id, "alice")
    assert found.after
    assert api.store.requeue(job_id)
    found.after()
    assert api.kept(job_id), "it was removed"
    api.finish(job_id)
    assert "delivered_at" not in api.store.fields(job_id), "its picture would be deleted before its delivery"


# --- deleting -------------------------------------------------------------------------------------------------------


def test_a_result_stays_though_an_earlier_failure_of_its_job_is_cleaned_up_late(
    instances: Callable[..., ImagesWorld],
) -> None:
    """The failure was answered while the bucket was away, then an operator requeued the job, and now it is ready."""
    api = instances(images=CALM._replace(result_grace_seconds=0))
    job_id = api.job()
    api.fail(job_id)
    found = api.parts.results.state(job_id, "alice")
    assert found.after
    api.bucket.away = True
    found.after()
    api.bucket.away = False
    assert api.store.requeue(job_id)
    api.finish(job_id)
    api.parts.results._unfinished.retry()
    assert pictured(api.result(job_id)) == PNG


def test_what_is_deleted_is_gone_at_once(api: ImagesWorld) -> None:
    for state in ("pending", "ready", "failed", "cached"):
        job_id = api.job()
        if state in ("ready", "cached"):
            api.finish(job_id)
        if state == "cached":
            api.dispatcher.cycle()
            assert api.dispatcher.cached(job_id)
        if state == "failed":
            api.fail(job_id)
        answer = api.alice.delete("/jobResult", params={"jobId": job_id})
        assert (answer.status_code, answer.content) == (204, b"")
        assert api.redis.exists(job_id) == 0
        assert not any(api.members(it) for it in ("pending", "ready", "cached", "failed"))
        assert api.bucket.kept == set()
        assert api.result(job_id).status_code == 404
        assert api.alice.delete("/jobResult", params={"jobId": job_id}).status_code == 404


# --- jobs with pictures ---------------------------------------------------------------------------------------------


def test_an_outfit_has_its_pictures_beside_it(api: ImagesWorld) -> None:
    answer = api.outfit(person=WEBP, garment=JPEG)
    assert answer.status_code == 201, answer.text
    job_id = answer.json()["jobId"]
    fields = api.store.fields(job_id)
    assert (fields["type"], fields["status"], fields["user_id"]) == ("outfit_change", "pending", "alice")
    assert fields["person_image_r2_key"] == f"jobs/{job_id}/input_person.webp"
    assert fields["garment_image_r2_key"] == f"jobs/{job_id}/input_garment.jpg"
    assert api.bucket.read(fields["person_image_r2_key"])[0] == WEBP
    (message,) = api.services.broker.browse(OUTFIT_QUEUE, 10)
    assert json.loads(message.body) == {"job_id": job_id}


def test_an_outfit_that_fails_half_way_leaves_nothing(api: ImagesWorld) -> None:
    api.bucket.failing = "input_garment"
    answer = api.outfit(key="k")
    assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
    assert api.bucket.kept == set()
    assert api.members("pending") == set()
    assert api.depth(OUTFIT_QUEUE) == 0
    api.bucket.failing = ""
    assert api.outfit(key="k").status_code == 201, "the key is free again"


def test_an_outfit_that_cannot_be_sent_leaves_nothing(api: ImagesWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    from retake.rabbit.broker import BrokerAway

    def refuse(*_: object, **__: object) -> None:
        raise BrokerAway("away")

    monkeypatch.setattr(api.services.broker, "publish", refuse)
    assert api.outfit(key="k").status_code == 503
    assert api.bucket.kept == set()
    assert api.members("pending") == set()
    assert not [*api.redis.scan_iter("jobs:idempotency:*")]


@pytest.mark.parametrize("key", [None, "k"])
def test_a_job_of_which_redis_did_not_answer_is_withdrawn_unless_its_key_finds_it(
    api: ImagesWorld, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    def unanswered(*given: Any) -> str:
        create(*given)
        raise RedisAway("the answer was lost")

    create = api.store.create
    with monkeypatch.context() as lossy:
        lossy.setattr(api.store, "create", unanswered)
        assert api.ask(key=key).status_code == 503
    api.parts.intake._unfinished.retry()
    kept = api.members("pending")
    assert len(kept) == (0 if key is None else 1)
    assert key is None or {api.job(key=key)} == kept


# --- idempotency ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/jobsRedis", "/jobs", "/jobChangeOutfit"])
def test_twenty_at_once_with_one_key_make_one_job(table_api: ImagesWorld, path: str) -> None:
    api, answers = table_api, list[httpx.Response]()

    def ask() -> None:
        answers.append(api.outfit(key="k1") if path == "/jobChangeOutfit" else api.ask(path, key="k1"))

    at_once([ask] * 20)
    assert {it.status_code for it in answers} == {201}
    (job_id,) = {it.json()["jobId"] for it in answers}
    assert api.members("pending") == {job_id}
    expected = {f"jobs/{job_id}/input_person.png", f"jobs/{job_id}/input_garment.jpg"}
    eventually(lambda: api.bucket.kept == (expected if path == "/jobChangeOutfit" else set()))


@pytest.mark.parametrize("path", ["/jobsRedis", "/jobs"])
def test_a_key_counts_after_the_end_of_its_job(table_api: ImagesWorld, path: str) -> None:
    api = table_api
    job_id = api.ask(path, key="k").json()["jobId"]
    assert api.alice.delete("/jobResult", params={"jobId": job_id}).status_code == 204
    again = api.ask(path, key="k")
    assert (again.status_code, again.json()["jobId"]) == (201, job_id)
    assert api.members("pending") == set()


def test_an_outfit_whose_first_request_died_before_it_was_sent_is_sent_by_the_next(api: ImagesWorld) -> None:
    job_id = api.outfit(key="k").json()["jobId"]
    assert api.services.broker.pull(OUTFIT_QUEUE, lambda _: True, 9)
    api.redis.hdel(job_id, "sent_at")
    assert api.outfit(key="k").json() == {"jobId": job_id}
    assert api.depth(OUTFIT_QUEUE) == 1
    assert "sent_at" in api.store.fields(job_id), "it is no longer withdrawn"


def test_a_key_is_one_users_own(api: ImagesWorld) -> None:
    ours = api.ask(key="k").json()["jobId"]
    theirs = api.bob.post(
        "/jobsRedis", json={"userId": "bob", "prompt": "a fox"}, headers={"Idempotency-Key": "k"}
    ).json()["jobId"]
    assert ours != theirs


def test_a_key_counts_for_all_ways_of_making_a_job(table_api: ImagesWorld) -> None:
    api = table_api
    first = api.ask("/jobsRedis", key="k").json()["jobId"]
    assert api.ask("/jobs", key="k").json()["jobId"] == first
    assert api.outfit(key="k").json()["jobId"] == first
    assert api.depth(OUTFIT_QUEUE) == 0
    second = api.ask("/jobs", key="l").json()["jobId"]
    assert api.ask("/jobsRedis", key="l").json()["jobId"] == second


@pytest.mark.parametrize("paths", [("/jobs", "/jobsRedis"), ("/jobsRedis",)])
def test_one_job_counts_for_a_key_that_comes_in_both_ways_at_once(
    table_api: ImagesWorld, monkeypatch: pytest.MonkeyPatch, paths: tuple[str, ...]
) -> None:
    """The first request has its row, and its job is not in Redis yet, when the others come."""
    api, ids, bring_in = table_api, list[str](), JobTable.bring_in

    def others_come_first(table: JobTable, job_id: str, create: Callable[[ImageJob, str], bool]) -> bool:
        monkeypatch.setattr(JobTable, "bring_in", bring_in)
        ids.extend(api.ask(path, key="k").json()["jobId"] for path in paths)
        return table.bring_in(job_id, create)

    monkeypatch.setattr(JobTable, "bring_in", others_come_first)
    ids.append(api.ask("/jobs", key="k").json()["jobId"])
    assert {*ids} == api.members("pending")
    assert len(ids) == len(paths) + 1
    assert api.depth(TEXT_QUEUE) == 1


def test_a_key_is_short_and_printable(api: ImagesWorld) -> None:
    for key in ("", "x" * 201, "a\tb", "sch\u00f6n"):
        headers = {b"Idempotency-Key": key.encode("latin-1")}
        answer = api.alice.post("/jobsRedis", json={"userId": "alice", "prompt": "a fox"}, headers=headers)
        assert answer.status_code == 422
    assert api.ask(key="x" * 200).status_code == 201


# --- jobs2 ----------------------------------------------------------------------------------------------------------


def test_a_job_of_the_table_is_in_both(table_api: ImagesWorld) -> None:
    api = table_api
    job_id = api.job("/jobs")
    assert api.table is not None
    row = api.table.get(job_id)
    assert row
    assert (row.user_id, row.status) == ("alice", "pending")
    assert api.store.fields(job_id)["in_table"] == "1"
    assert api.members("pending") == {job_id}
    assert api.depth(TEXT_QUEUE) == 1
    api.finish(job_id)
    assert pictured(api.result(job_id)) == PNG
    assert api.alice.delete("/jobResult", params={"jobId": job_id}).status_code == 204
    row = api.table.get(job_id)
    assert row
    assert row.status == "completed"


def test_without_a_database_jobs_is_503(api: ImagesWorld) -> None:
    answer = api.ask("/jobs")
    assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
    assert api.members("pending") == set()


def test_a_job_that_is_still_to_be_brought_in_is_pending(table_api: ImagesWorld) -> None:
    api = table_api
    job_id = api.job("/jobs")
    api.store.remove(job_id)
    assert api.result(job_id).json()["status"] == "pending"
    assert api.bob.get("/jobResult", params={"jobId": job_id}).status_code == 404
    assert api.alice.delete("/jobResult", params={"jobId": job_id}).status_code == 204
    assert api.result(job_id).status_code == 404
    assert api.table is not None
    row = api.table.get(job_id)
    assert row
    assert row.status == "failed", "no sweeper brings it in"
