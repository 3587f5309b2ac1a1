"""What guards the API: keys, sizes, Telegram's webhook, and the pages that need no key."""

import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from api_world import HOOK_SECRET, KEY, ApiWorld
from served_app import check_pages

from retake.errors import StorageError
from retake.serving.body import MAX_BODY_BYTES

API = "/api/music/pipeline"
WRONG = [None, "", KEY, f"Basic {KEY}", "Bearer", f"Bearer {KEY}x", f"Bearer x{KEY}", "Bearer sch\u00f6n"]
CALLS = [
    *(("GET", API), ("POST", API), ("GET", f"{API}/1"), ("GET", f"{API}/1/media/a.png"), ("HEAD", f"{API}/1")),
    *(("POST", f"{API}/1/{it}") for it in ("approve", "feedback", "publish", "cancel", "retry", "resolve")),
    *(("GET", f"{API}/1/nothing"), ("DELETE", API), ("GET", f"{API}/"), ("GET", "/api")),
]


@pytest.fixture
def anybody(api: ApiWorld) -> Iterator[httpx.Client]:
    """Yield a client without a key."""
    with httpx.Client(base_url=api.base, timeout=30) as client:
        yield client


@pytest.mark.parametrize(("method", "path"), CALLS, ids=str)
def test_without_the_key_nothing_is_done(api: ApiWorld, anybody: httpx.Client, method: str, path: str) -> None:
    api.put("cover_pending")
    for given in WRONG:
        headers = {} if given is None else {b"Authorization": given.encode("latin-1")}
        answer = anybody.request(method, path, headers=headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert method == "HEAD" or answer.json()["detail"]
        assert KEY not in answer.text
    assert api.shown(1)["state"] == "cover_pending"


def test_the_scheme_is_read_in_any_case(api: ApiWorld, anybody: httpx.Client) -> None:
    assert anybody.get(API, headers={"Authorization": f"bearer {KEY}"}).status_code == 200


def test_what_is_not_there_is_reported_in_the_same_form(api: ApiWorld) -> None:
    for method, path, status in (
        ("GET", f"{API}/1/nothing", 404),
        ("GET", "/nothing", 404),
        ("DELETE", API, 405),
        ("GET", f"{API}/1/retry", 405),
    ):
        answer = api.http.request(method, path)
        assert (answer.status_code, [*answer.json()]) == (status, ["detail"])


def test_health_description_and_pages_are_open_and_need_nothing_from_elsewhere(anybody: httpx.Client) -> None:
    assert anybody.get("/health").json() == {"ok": True}
    assert set(anybody.get("/openapi.json").json()["paths"]) == {
        "/health",
        API,
        f"{API}/{{pipeline_id}}",
        f"{API}/{{pipeline_id}}/media/{{name}}",
        *(f"{API}/{{pipeline_id}}/{it}" for it in ("approve", "feedback", "publish", "cancel", "retry", "resolve")),
    }
    check_pages(anybody)


# --- sizes ----------------------------------------------------------------------------------------------------------


def test_a_body_of_the_largest_size_is_read(api: ApiWorld) -> None:
    number = api.put("failed", failed_reason="video: x")
    assert api.post(f"{number}/retry", content=b"{}".ljust(MAX_BODY_BYTES)).status_code == 200


@pytest.mark.parametrize("path", ["", "/1/retry", "/1/approve", "/1", "/none"])
def test_a_larger_body_is_refused(api: ApiWorld, path: str) -> None:
    number = api.put("failed", failed_reason="video: x")
    for content in (b" " * (MAX_BODY_BYTES + 1), (b" " * 1000 for _ in range(70)), b" " * 5_000_000):
        answer = api.http.request("POST", API + path, content=content)
        assert (answer.status_code, [*answer.json()]) == (413, ["detail"])
    assert api.shown(number)["state"] == "failed"


@pytest.mark.parametrize(
    ("length", "begun"),
    [("Content-Length: 9999999999", b""), ("Transfer-Encoding: chunked", b"fffff\r\n" + b"x" * 70_000)],
)
def test_a_larger_body_is_refused_before_it_is_read(api: ApiWorld, length: str, begun: bytes) -> None:
    """The client announces more than it ever sends, and still gets its answer."""
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", int(api.base.rpartition(":")[2])), timeout=120) as connection:
        head = f"POST {API} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n{length}\r\n\r\n"
        connection.sendall(head.encode() + begun)
        assert b" 413 " in connection.recv(4096).split(b"\r\n")[0]
    assert time.monotonic() - began < 60


def test_a_body_that_never_ends_is_given_up(api: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retake.serving.body.BODY_S", 0.2)
    with socket.create_connection(("127.0.0.1", int(api.base.rpartition(":")[2])), timeout=120) as connection:
        head = f"POST {API} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 10\r\n\r\n"
        connection.sendall(head.encode() + b"{")
        assert b" 408 " in connection.recv(4096).split(b"\r\n")[0]


# --- Telegram's webhook ---------------------------------------------------------------------------------------------


def tell(api: ApiWorld, content: bytes, secret: str | None = HOOK_SECRET) -> httpx.Response:
    headers = {} if secret is None else {"X-Telegram-Bot-Api-Secret-Token": secret}
    return httpx.post(f"{api.base}/telegram/webhook", content=content, headers=headers, timeout=30)


def test_an_update_is_taken(api: ApiWorld) -> None:
    assert tell(api, b'{"update_id": 7}').status_code == 200
    assert api.updates == [{"update_id": 7}]


@pytest.mark.parametrize("secret", [None, "", "x", HOOK_SECRET + "x", KEY])
def test_an_update_without_the_secret_is_refused(api: ApiWorld, secret: str | None) -> None:
    for content in (b'{"update_id": 7}', b"x" * 100_000, b""):
        assert tell(api, content, secret).status_code == 403
    assert api.updates == []


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 9000, b'{"a": 1, "a": 2}', b"x" * 2_000_000])
def test_nonsense_from_telegram_is_answered_and_passed_over(api: ApiWorld, content: bytes) -> None:
    assert tell(api, content).status_code == 200
    assert api.updates == []


def test_an_update_larger_than_other_bodies_is_taken(api: ApiWorld) -> None:
    text = "x" * (2 * MAX_BODY_BYTES)
    assert tell(api, f'{{"text": "{text}"}}'.encode()).status_code == 200
    assert api.updates == [{"text": text}]


def test_an_update_that_could_not_be_saved_comes_again(api: ApiWorld) -> None:
    def away(update: object) -> None:
        raise StorageError("the database is away")

    api.on_update = away
    assert tell(api, b"{}").status_code == 503


def test_without_a_webhook_there_is_none(tmp_path: Any) -> None:
    world = ApiWorld(f"sqlite:{tmp_path / 'music.sqlite3'}")
    with world.serving(hook=False):
        assert tell(world, b"{}").status_code == 404
    world.close()
