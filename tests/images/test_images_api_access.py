"""Who may do what: keys, users, and the jobs and files that each can see."""

from collections.abc import Iterator

import httpx
import pytest
from images_world import ALICE, ALL, PNG, ImagesWorld, pictured
from served_app import check_pages

from retake.images.settings import AccessKeys

ID = "0b8f8a52-9d0b-4b53-9f5f-0242ac120002"
CALLS = [
    *(("POST", it) for it in ("/jobsRedis", "/jobs", "/jobChangeOutfit", "/upload")),
    *(("GET", f"/jobResult?jobId={ID}"), ("DELETE", f"/jobResult?jobId={ID}"), ("GET", "/images/alice")),
    *(("GET", "/image/raw/alice/a.png"), ("GET", "/nothing"), ("GET", "/"), ("HEAD", "/jobs"), ("GET", "/docsx")),
]
WRONG = [None, "", ALICE, f"Basic {ALICE}", "Bearer", f"Bearer {ALICE}x", f"Bearer x{ALICE}", "Bearer ö"]


@pytest.fixture
def anybody(api: ImagesWorld) -> Iterator[httpx.Client]:
    """Yield a client without a key."""
    with api.client("") as client:
        yield client


def test_without_a_key_nothing_is_done(api: ImagesWorld, anybody: httpx.Client) -> None:
    for method, path in CALLS:
        for given in WRONG:
            headers = {} if given is None else {b"Authorization": given.encode("latin-1")}
            answer = anybody.request(method, path, headers=headers, content=b"{" if method == "POST" else None)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), (method, path, given)
            assert method == "HEAD" or [*answer.json()] == ["detail"]
            assert ALICE not in answer.text


def test_the_scheme_is_read_in_any_case(api: ImagesWorld, anybody: httpx.Client) -> None:
    headers = {"Authorization": f"bEARER {ALICE}"}
    assert anybody.get("/images/alice", headers=headers).status_code == 200


def test_health_description_and_pages_are_open_and_need_nothing_from_elsewhere(anybody: httpx.Client) -> None:
    assert anybody.get("/health").json()["status"] == "ok"
    paths = anybody.get("/openapi.json").json()["paths"]
    assert {path: sorted(calls) for path, calls in paths.items()} == {
        "/jobsRedis": ["post"],
        "/jobs": ["post"],
        "/jobChangeOutfit": ["post"],
        "/jobResult": ["delete", "get"],
        "/upload": ["post"],
        "/images/{user_id}": ["get"],
        "/image/raw/{key}": ["get"],
        "/health": ["get"],
    }
    check_pages(anybody)


def test_health_tells_how_the_services_stand(api: ImagesWorld, anybody: httpx.Client) -> None:
    assert anybody.get("/health").json() == {
        "status": "ok",
        "redis": True,
        "rabbitmq": True,
        "database": None,
        "dispatcher": {"mode": "active", "cached": 0},
    }
    api.finish(api.job())
    api.dispatcher.cycle()
    assert anybody.get("/health").json()["dispatcher"] == {"mode": "active", "cached": 1}


def test_a_key_acts_for_its_own_user(api: ImagesWorld) -> None:
    body = {"userId": "bob", "prompt": "a fox"}
    files = {"personImage": ("p.png", PNG), "garmentImage": ("g.png", PNG)}
    for answer in (
        api.alice.post("/jobsRedis", json=body),
        api.alice.post("/jobs", json=body),
        api.alice.post("/jobChangeOutfit", data={"userId": "bob"}, files=files),
        api.upload(("a.png", PNG), user="bob"),
        api.alice.get("/images/bob"),
    ):
        assert (answer.status_code, [*answer.json()]) == (403, ["detail"])
    assert api.members("pending") == set()
    assert api.bucket.kept == set()


def test_the_key_of_all_acts_for_every_user(api: ImagesWorld) -> None:
    for user in ("alice", "carol"):
        answer = api.all.post("/jobsRedis", json={"userId": user, "prompt": "a fox"})
        assert answer.status_code == 201
        job_id = answer.json()["jobId"]
        api.finish(job_id)
        assert pictured(api.all.get("/jobResult", params={"jobId": job_id})) == PNG
        assert api.all.get(f"/image/raw/jobs/{job_id}/output.png").content == PNG
        assert api.all.get(f"/images/{user}").status_code == 200
        assert api.all.delete("/jobResult", params={"jobId": job_id}).status_code == 204


@pytest.mark.parametrize("cached", [False, True])
def test_anothers_job_looks_like_a_missing_one(api: ImagesWorld, cached: bool) -> None:
    job_id = api.job()
    api.finish(job_id)
    if cached:
        api.dispatcher.cycle()
    theirs = api.bob.get("/jobResult", params={"jobId": job_id})
    none = api.bob.get("/jobResult", params={"jobId": ID})
    assert (theirs.status_code, theirs.text.replace(job_id, "")) == (404, none.text.replace(ID, ""))
    assert api.bob.delete("/jobResult", params={"jobId": job_id}).status_code == 404
    theirs = api.bob.get(f"/image/raw/jobs/{job_id}/output.png")
    assert (theirs.status_code, theirs.text) == (404, api.bob.get(f"/image/raw/jobs/{ID}/output.png").text)
    assert pictured(api.result(job_id)) == PNG


def test_raw_files_are_ones_own_and_stay(api: ImagesWorld) -> None:
    assert api.upload(("a b.png", PNG), ("ä.png", PNG)).status_code == 201
    for name in ("a b.png", "a%20b.png", "%C3%A4.png"):
        answer = api.alice.get(f"/image/raw/alice/{name}")
        assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, PNG, "image/png")
        assert api.bob.get(f"/image/raw/alice/{name}").status_code == 404
    job_id = api.outfit().json()["jobId"]
    assert api.alice.get(f"/image/raw/jobs/{job_id}/input_person.png").content == PNG


def test_a_missing_file_is_404(api: ImagesWorld) -> None:
    climbing = "alice/..%2Fbob%2Fa.png"
    for key in ("alice/none.png", "alice", "alice/", climbing, "jobs/x/y", "jobs/", "alice/%00", "a%5Cb", "%2Fx/y"):
        assert api.alice.get(f"/image/raw/{key}").status_code == 404
        assert api.all.get(f"/image/raw/{key}").status_code == 404


def test_keys_are_not_shown() -> None:
    assert ALL not in repr(AccessKeys({"*": ALL}))
