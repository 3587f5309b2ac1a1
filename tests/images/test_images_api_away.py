"""A service is away, dead or stopped: what needs it answers 503 within ten seconds, the rest works, nothing is lost."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from images_world import ALICE, CALM, PNG, WITHIN_S, ImagesWorld, pictured, timed
from local_servers import RunningServer
from rabbit_server import RabbitServer
from together import at_once
from waiting import eventually

from retake.images import access, api_process, redis_calls
from retake.images.api_process import FILE_S
from retake.images.messages import DEAD_QUEUE, OUTFIT_QUEUE, TEXT_QUEUE
from retake.images.redis_calls import ANSWER_S
from retake.images.sweeper import Sweeper
from retake.serving import body


@contextmanager
def stopped(server: RunningServer) -> Iterator[None]:
    """Stop the server's process during the block; it does not answer, and its connections stay open."""
    assert server.pid
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@contextmanager
def killed(server: RunningServer) -> Iterator[None]:
    server.kill()
    try:
        yield
    finally:
        server.start()


LOSSES = [killed, stopped]


@pytest.fixture(autouse=True)
def half_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halve the waits for the bucket and Redis, to leave more of the bound to a busy machine."""
    monkeypatch.setattr(api_process, "FILE_S", FILE_S / 2)
    monkeypatch.setattr(redis_calls, "ANSWER_S", ANSWER_S / 2)


def in_time(call: Callable[[], httpx.Response], answers: list[httpx.Response]) -> Callable[[], None]:
    """Return a function that times one request: how fast this machine starts eighty of them does not count."""

    def ask() -> None:
        with timed():
            answers.append(call())

    return ask


def test_the_shipped_wait_leaves_time_to_answer() -> None:
    assert FILE_S <= WITHIN_S - 2
    assert 2 * ANSWER_S <= WITHIN_S - 2


def assert_away(answer: httpx.Response) -> None:
    assert (answer.status_code, [*answer.json()]) == (503, ["detail"]), answer.text
    assert int(answer.headers["retry-after"]) > 0
    assert "/" not in answer.text, "where the service is stands in the log alone"
    assert "127.0.0.1" not in answer.text


@pytest.mark.parametrize("lost", LOSSES)
def test_redis_is_away(
    instances: Callable[..., ImagesWorld], redis_server: RunningServer, lost: Callable[..., Any]
) -> None:
    api = instances()
    waits, cached = api.job(), api.job()
    api.finish(cached)
    api.dispatcher.cycle()
    assert api.dispatcher.cached(cached)
    with lost(redis_server):
        for request in (
            lambda: api.ask(),
            lambda: api.outfit(),
            lambda: api.result(waits),
            lambda: api.alice.delete("/jobResult", params={"jobId": waits}),
            lambda: api.upload(("a.png", PNG)),
            lambda: api.alice.get(f"/image/raw/jobs/{cached}/output.png"),
        ):
            with timed():
                assert_away(request())
        with timed():
            assert pictured(api.result(cached)) == PNG, "a cached result is answered"
        with timed():
            assert api.bob.get("/jobResult", params={"jobId": cached}).status_code == 404
        health = api.alice.get("/health")
        assert health.status_code == 503
        assert {**health.json(), "detail": ""} == {
            "status": "degraded",
            "redis": False,
            "rabbitmq": True,
            "database": None,
            "dispatcher": {"mode": "active", "cached": 1},
            "detail": "",
        }
        assert not [it for it in api.bucket.kept if "input" in it or it.startswith("alice")]
        # What follows an answer runs in the background, and must not find Redis again.
        eventually(lambda: [it for it in list(api.parts.intake._unfinished._work) if it.startswith("delivered")])
    eventually(lambda: api.result(waits).status_code == 202)
    assert "delivered_at" not in api.store.fields(cached)
    api.parts.intake._unfinished.retry()
    assert api.store.fields(cached)["delivered_at"], "the delivery is remembered"
    assert api.members("pending") == {waits}


def test_many_at_once_are_answered_in_time_while_redis_hangs(api: ImagesWorld, redis_server: RunningServer) -> None:
    job_id = api.job()
    answers: list[httpx.Response] = []
    with stopped(redis_server):
        at_once([in_time(lambda: api.result(job_id), answers)] * 80)
    for answer in answers:
        assert_away(answer)


@pytest.mark.parametrize("lost", LOSSES)
def test_rabbitmq_is_away(
    new_rabbit: RabbitServer,  # before the instances connect
    instances: Callable[..., ImagesWorld],
    lost: Callable[..., Any],
) -> None:
    api = instances(images=CALM._replace(resend_after_seconds=0.01))
    api.job()
    eventually(lambda: api.depth(TEXT_QUEUE) == 1)
    for queue in (TEXT_QUEUE, OUTFIT_QUEUE, DEAD_QUEUE):
        new_rabbit.wait_for_queue(queue)
    with lost(new_rabbit):
        with timed():
            job_id = api.job()
        with timed():
            assert_away(api.outfit(key="k"))
        assert api.bucket.kept == set()
        assert len(api.members("pending")) == 2
        if lost is killed:
            eventually(lambda: api.alice.get("/health").json()["rabbitmq"] is False)
            answer = api.alice.get("/health")
            assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
    api.services.broker.connect(60)
    assert api.result(job_id).status_code == 202
    eventually(lambda: api.outfit(key="k").status_code == 201)


@pytest.mark.parametrize("how", ["away", "stalled"])
def test_the_bucket_is_away(api: ImagesWorld, how: str) -> None:
    ready, deleted = api.job(), api.job()
    api.finish(ready)
    api.finish(deleted)
    before = set(api.bucket.kept)
    if how == "away":
        api.bucket.away = True
    else:
        api.bucket.running.clear()
    for request in (
        lambda: api.result(ready),
        lambda: api.outfit(key="k"),
        lambda: api.upload(("a.png", PNG), ("b.png", PNG)),
        lambda: api.alice.get("/images/alice"),
        lambda: api.alice.get(f"/image/raw/jobs/{ready}/output.png"),
        lambda: api.alice.delete("/jobResult", params={"jobId": deleted}),
    ):
        with timed():
            assert_away(request())
    with timed():
        assert api.ask().status_code == 201, "it needs no bucket"
    assert api.alice.get("/health").status_code == 200
    api.bucket.away = False
    api.bucket.running.set()
    assert eventually(lambda: api.result(ready).status_code == 200)
    eventually(lambda: [api.parts.intake._unfinished.retry(), not len(api.parts.intake._unfinished)][1])
    assert eventually(lambda: api.alice.delete("/jobResult", params={"jobId": deleted}).status_code in (204, 404))
    eventually(lambda: [api.parts.uploads.sweep(), not [it for it in api.bucket.kept if it.startswith("alice")]][1])
    assert eventually(lambda: {it for it in api.bucket.kept if "input" not in it} <= before)
    assert eventually(lambda: api.outfit(key="k").status_code == 201)


def test_many_at_once_are_answered_in_time_while_the_bucket_hangs(api: ImagesWorld) -> None:
    job_id = api.job()
    api.finish(job_id)
    api.bucket.running.clear()
    answers: list[httpx.Response] = []
    at_once([in_time(lambda: api.result(job_id), answers)] * 80)
    for answer in answers:
        assert_away(answer)


# --- jobs2 ----------------------------------------------------------------------------------------------------------


def test_with_redis_away_jobs_takes_jobs_and_the_sweeper_brings_them_in(
    table_api: ImagesWorld, redis_server: RunningServer
) -> None:
    api = table_api
    with killed(redis_server):
        with timed():
            answer = api.ask("/jobs", key="k")
        assert answer.status_code == 201, answer.text
        job_id = answer.json()["jobId"]
        assert api.ask("/jobs", key="k").json()["jobId"] == job_id
    eventually(lambda: api.result(job_id).status_code == 202)
    cleanup = api.parts.results._cleanup
    sweeper = Sweeper(api.services, cleanup, api.clock)
    eventually(lambda: [sweeper.sweep(), api.members("pending") == {job_id}][1])
    assert api.ask("/jobsRedis", key="k").json()["jobId"] == job_id


def test_with_postgresql_away_jobs_is_503_and_the_rest_goes_on(
    instances: Callable[..., ImagesWorld], database_url: str
) -> None:
    away = instances("postgresql://retake@127.0.0.1:1/none")
    with timed():
        assert_away(away.ask("/jobs"))
    with timed():
        job_id = away.job()
    away.finish(job_id)
    assert pictured(away.result(job_id)) == PNG
    health = away.alice.get("/health")
    assert (health.status_code, health.json()["status"], health.json()["database"]) == (200, "degraded", False)
    there = instances(database_url)
    assert there.table is not None
    there.table.prepare()
    assert there.alice.get("/health").json()["database"] is True


def test_a_slow_client_is_cut(instances: Callable[..., ImagesWorld], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "BODY_S", 0.2)
    monkeypatch.setattr(body, "BODY_S", 0.2)
    api = instances()
    place = urlsplit(api.base)
    form = "Content-Type: multipart/form-data; boundary=x\r\n"
    for request in ("POST /jobsRedis", "POST /upload"):
        head = f"{request} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ALICE}\r\nContent-Length: 100\r\n{form}"
        with socket.create_connection((place.hostname, place.port), 60) as connection:
            connection.sendall(f"{head}\r\n--".encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 408")
