"""Schemathesis reads /openapi.json and sends valid and invalid requests, with and without keys: no answer is a 5xx, and
each answer matches the description."""

from collections.abc import Callable

import schemathesis
from hypothesis import given
from hypothesis import strategies as st
from images_world import ALL, KEYS, PNG, ImagesWorld
from schemathesis_search import CHECKS, calls_of, cases_of, sought
from worker_world import WorkerWorld

from retake.images.settings import ImageJobSettings, ImagesSettings
from retake.images.worker_api import worker_app

CALLS = [
    *("GET /health", "POST /jobsRedis", "POST /jobs", "POST /jobChangeOutfit", "GET /jobResult", "DELETE /jobResult"),
    *("POST /upload", "GET /images/{user_id}", "GET /image/raw/{key}"),
]


def test_no_request_makes_the_service_fail(instances: Callable[..., ImagesWorld], database_url: str) -> None:
    api = instances(database_url)
    assert api.table is not None
    api.table.prepare()
    operations = calls_of(schemathesis.openapi.from_url(f"{api.base}/openapi.json"))
    assert sorted(CALLS) == sorted(operations)
    for call, operation in operations.items():
        send_to(api, operation, call)


def test_no_request_makes_a_worker_fail(world: WorkerWorld) -> None:
    images = ImageJobSettings(rate_per_minute=1_000_000)
    with world.running() as worker:
        app = worker_app(ImagesSettings(images=images, keys=KEYS), world.store, worker)
        calls = calls_of(schemathesis.openapi.from_asgi("/openapi.json", app))
        assert calls.keys() == {"POST /CreateImageFromPrompt", "GET /status/{job_id}", "GET /health"}
        for call, operation in calls.items():
            send_to_worker(operation, world.job(send=0), call)


def send_to_worker(operation: schemathesis.APIOperation, known: str, call: str) -> None:
    @sought
    @given(
        case=cases_of(operation),
        job_id=st.one_of(st.none(), st.just(known)),
        signed=st.sampled_from([True, True, True, False]),
    )
    def send(case: schemathesis.Case, job_id: str | None, signed: bool) -> None:
        if job_id and "job_id" in case.path_parameters:
            case.path_parameters["job_id"] = job_id
        answer = case.call(headers={"Authorization": f"Bearer {ALL}"} if signed else {})
        case.validate_response(answer, checks=CHECKS)
        assert signed or call == "GET /health" or answer.status_code == 401

    send()


def send_to(api: ImagesWorld, operation: schemathesis.APIOperation, call: str) -> None:
    ids = [api.job(), api.job("/jobs"), api.put(status="resting")]
    api.finish(ids[0])
    api.upload(("a.png", PNG))
    files = ["alice/a.png", f"jobs/{ids[0]}/output.png", "alice/none.png"]

    @sought
    @given(
        case=cases_of(operation),
        job_id=st.one_of(st.none(), st.sampled_from(ids)),
        key=st.one_of(st.none(), st.sampled_from(files)),
        signed=st.sampled_from([True, True, True, False]),
    )
    def send(case: schemathesis.Case, job_id: str | None, key: str | None, signed: bool) -> None:
        if job_id and "jobId" in (case.query or {}):
            case.query["jobId"] = job_id
        if key and "key" in case.path_parameters:
            case.path_parameters["key"] = key
        headers = {"Authorization": f"Bearer {ALL}"} if signed else {}
        answer = case.call(headers=headers, timeout=20)
        case.validate_response(answer, checks=CHECKS)
        if not signed and call != "GET /health":
            assert answer.status_code == 401

    send()


def test_every_call_describes_what_refuses_it(api: ImagesWorld) -> None:
    paths = api.alice.get("/openapi.json").json()["paths"]
    for call in CALLS:
        method, _, path = call.partition(" ")
        answers = set(paths[path][method.lower()]["responses"])
        if call == "GET /health":
            assert answers == {"200", "503"}
        else:
            assert {"401", "422", "503"} <= answers
            assert ("500" in answers) == (call == "GET /jobResult")
            assert ("429" in answers) == (method == "POST")
