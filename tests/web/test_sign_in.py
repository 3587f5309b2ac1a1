"""Who gets in, under which host, and the headers of every answer, over real HTTP."""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest
from dashboard import Board, forgetful_shelf
from served_app import served_app
from story_world import World

from retake.bucket.directory import DirectoryBucket
from retake.bucket.failing import FailingBucket, Fault
from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock
from retake.errors import StorageError
from retake.story.operations import open_operations
from retake.story.settings import Settings
from retake.testing.logs import CapturedLogs
from retake.web.app import web_app
from retake.web.desk import Desk
from retake.web.gate import host_name, own_path
from retake.web.live import Live
from retake.web.sessions import COOKIE, SESSION_S, Sessions, WrongTokens

TOKEN = "a-token-of-the-tests"
PAGE = {"Accept": "text/html"}
PLACE = "file:/srv/secret-channel"


class Door:
    """A dashboard on an empty bucket, with its own clock."""

    def __init__(self) -> None:
        self.clock, self.seconds = FakeClock(), 0.0
        away = Fault(lambda: StorageError(f"{PLACE} is gone"), operation="find", number=2, times=100)
        self.bucket = FailingBucket(MemoryBucket(), away)
        operations = open_operations(Settings(), self.clock, channel=None, named=False, bucket=self.bucket)
        sessions = Sessions(TOKEN, lambda: self.clock.now().timestamp())
        self.shelf = forgetful_shelf()
        live = Live(dict, 1.0, self.shelf.forget)
        desk = Desk(operations, sessions, self.shelf)
        self.app = web_app(desk, live, {"board.example.org"}, lambda: self.seconds)

    @contextmanager
    def open(self) -> Iterator[httpx.Client]:
        with closing(self.shelf), served_app(self.app) as url, httpx.Client(base_url=url, timeout=30) as client:
            yield client


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Door:
    async def at_once(seconds: float) -> None:
        return None

    monkeypatch.setattr("retake.web.entrance.sleep", at_once)
    return Door()


@pytest.fixture
def client(door: Door) -> Iterator[httpx.Client]:
    with door.open() as client:
        yield client


def sign_in(client: httpx.Client, token: str = TOKEN, **fields: str) -> httpx.Response:
    return client.post("/login", data={"token": token, **fields}, headers=PAGE)


def test_a_page_sends_to_the_login_and_back(client: httpx.Client) -> None:
    asked = client.get("/runs?page=2&q=a b", headers=PAGE)
    assert (asked.status_code, asked.headers["location"]) == (303, "/login?next=/runs%3Fpage%3D2%26q%3Da%2520b")
    form = client.get(asked.headers["location"], headers=PAGE)
    assert 'value="/runs?page=2&amp;q=a%20b"' in form.text
    back = sign_in(client, next="/runs?page=2&q=a%20b")
    assert (back.status_code, back.headers["location"]) == (303, "/runs?page=2&q=a%20b")
    assert "<h1>Overview</h1>" in client.get("/", headers=PAGE).text


@pytest.mark.parametrize("accept", ["*/*", "text/html", "text/html, application/json", "image/avif"])
def test_whoever_asks_for_no_json_asks_for_pages(client: httpx.Client, accept: str) -> None:
    asked = client.get("/", headers={"Accept": accept})
    assert (asked.status_code, asked.headers["location"]) == (303, "/login?next=/")
    sign_in(client)
    assert client.get("/", headers={"Accept": accept}).headers["content-type"].startswith("text/html")


def test_a_form_of_nobodys_is_sent_to_the_login_alone(client: httpx.Client) -> None:
    assert client.post("/actions/retry", data={"id": "x"}).headers["location"] == "/login"


def test_the_cookie_is_not_a_token_and_is_kept_from_scripts_and_other_sites(client: httpx.Client) -> None:
    cookie = sign_in(client).headers["set-cookie"]
    assert TOKEN not in cookie
    assert {it.strip() for it in cookie.split(";")[1:]} == {
        *("HttpOnly", "SameSite=strict", "Path=/", f"Max-Age={SESSION_S}"),
    }
    elsewhere = client.post("/login", data={"token": TOKEN}, headers={**PAGE, "Host": "board.example.org"})
    assert "Secure" in elsewhere.headers["set-cookie"]


def test_a_session_ends_after_twelve_hours_and_with_the_token(door: Door, client: httpx.Client) -> None:
    sign_in(client)
    door.clock.sleep(SESSION_S - 1)
    assert client.get("/", headers=PAGE).status_code == 200
    door.clock.sleep(1)
    assert client.get("/", headers=PAGE).status_code == 303
    cookie = Sessions("another token, long", lambda: door.clock.now().timestamp()).begin()
    client.cookies.set(COOKIE, cookie)
    assert client.get("/", headers=PAGE).status_code == 303


@pytest.mark.parametrize("cookie", ["x", "9999999999.a.b", "9999999999", "..", "é" * 300, "1" * 5000])
def test_an_invented_cookie_is_ignored(client: httpx.Client, cookie: str) -> None:
    header = {"Cookie": f"{COOKIE}={cookie}".encode()}
    assert client.get("/", headers={**PAGE, **header}).status_code == 303


@pytest.mark.parametrize(
    "other", ['seen={"a": 1}', "flag", "path=/x", "name=Zoë", "a[b]=1", "=x", "secure=1", "tour=a b", "x=1; ;"]
)
def test_a_cookie_of_another_program_on_this_host_signs_nobody_out(client: httpx.Client, other: str) -> None:
    session = sign_in(client).headers["set-cookie"].partition(";")[0]
    client.cookies.clear()
    for header in (f"{other}; {session}", f"{session}; {other}"):
        page = client.get("/", headers={**PAGE, "Cookie": header.encode()})
        assert page.status_code == 200, header


def test_each_part_of_a_cookie_counts() -> None:
    sessions = Sessions(TOKEN, lambda: 1000.0)
    cookie = sessions.begin()
    assert sessions.holds(cookie)
    for at in range(len(cookie)):
        other = "0" if cookie[at] != "0" else "1"
        assert not sessions.holds(cookie[:at] + other + cookie[at + 1 :]), at
    assert sessions.is_csrf(cookie, sessions.csrf(cookie))
    assert not sessions.is_csrf(sessions.begin(), sessions.csrf(cookie))
    assert not sessions.is_csrf(cookie, "")


def test_programs_show_the_token_as_a_bearer(client: httpx.Client) -> None:
    refused = client.get("/", headers={"Accept": "application/json"})
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    right = {"Authorization": f"Bearer {TOKEN}"}
    assert client.get("/", headers={**right, "Accept": "application/json"}).json()["healthy"] is True
    assert client.get("/nothing", headers=right).json() == {"error": "There is no such page."}
    for wrong in (f"Basic {TOKEN}", "Bearer", f"Bearer {TOKEN}x", TOKEN):
        assert client.get("/", headers={"Authorization": wrong}).status_code == 401


def test_wrong_tokens_are_refused_and_then_not_even_looked_at(door: Door, client: httpx.Client) -> None:
    for _ in range(10):
        wrong = sign_in(client, "wrong")
        assert (wrong.status_code, "Wrong token." in wrong.text) == (403, True)
        assert "set-cookie" not in wrong.headers
    late = sign_in(client)
    assert (late.status_code, late.headers["retry-after"]) == (429, "61")
    door.seconds = 60.5
    assert sign_in(client).status_code == 303


def test_each_wrong_token_waits_longer() -> None:
    wrong = WrongTokens(lambda: 0.0)
    waits = [wrong.add("a") for _ in range(10)]
    assert waits == sorted(waits)
    assert waits[0] < 0.2 < 1.9 < waits[-1] <= 2
    assert wrong.wait_s("a") == 60
    assert wrong.wait_s("b") == 0


@pytest.mark.parametrize(
    "target",
    ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", "\\\\evil", "/a\nb", "x", ""],
)
def test_nobody_is_sent_elsewhere(client: httpx.Client, target: str) -> None:
    assert own_path(target) == "/"
    assert sign_in(client, next=target).headers["location"] == "/"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "127.0.0.1.evil.org", "board.example.org."])
def test_another_host_is_refused_before_anything_else(client: httpx.Client, host: str) -> None:
    for path in ("/", "/login", "/healthz", "/static/style.css"):
        assert client.get(path, headers={"Host": host}).status_code == 400


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "[::1]:80", "Board.example.org", "board.example.org:1"])
def test_these_hosts_are_ours(client: httpx.Client, host: str) -> None:
    assert client.get("/healthz", headers={"Host": host}).status_code == 200


def test_a_host_is_read_without_its_port() -> None:
    assert [host_name(it) for it in ("a:1", "[::1]", "[::1]:1", "::1", "A")] == ["a", "[::1]", "[::1]", "::1", "a"]


@pytest.mark.parametrize("path", ["/", "/login", "/healthz", "/static/style.css", "/nothing", "/events"])
def test_every_answer_has_the_headers_that_protect_it(client: httpx.Client, path: str) -> None:
    found = client.get(path, headers=PAGE).headers
    policy = found["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert found["x-content-type-options"] == "nosniff"
    assert found["referrer-policy"] == "same-origin"
    assert path.startswith("/static") or found["cache-control"] == "no-store"


def test_pages_have_no_script_or_style_of_their_own(client: httpx.Client) -> None:
    sign_in(client)
    for path in ("/", "/login"):
        text = client.get(path, headers=PAGE).text
        assert not re.search(r"<script(?! src)|<style|\sstyle=|\son\w+=", text), path


def test_what_pages_load_is_ours(client: httpx.Client) -> None:
    sign_in(client)
    loaded = re.findall(r'(?:src|href)="([^"]+)"', client.get("/", headers=PAGE).text)
    assert {it for it in loaded if it.startswith("/static/")} >= {"/static/htmx.min.js", "/static/style.css"}
    for path in loaded:
        assert path.startswith(("/", "#"))
        if path.startswith("/static/"):
            assert client.get(path).status_code == 200
    sheet = client.get("/static/style.css").text
    assert "http" not in sheet.replace("http://www.w3.org", "")


def test_health_reflects_the_bucket(client: httpx.Client) -> None:
    assert client.get("/healthz").json() == {"ok": True}
    with CapturedLogs() as log:
        away = client.get("/healthz")
    assert away.status_code == 503
    assert PLACE not in away.text
    assert [PLACE in record.getMessage() for record in log.records] == [True]


def test_health_is_also_that_of_the_buckets_folder_and_of_a_ledger_in_a_database(tmp_path: Path) -> None:
    folder, ledger = tmp_path / "bucket", tmp_path / "runs.db"
    storage = Settings().storage._replace(url=f"file:{folder}", ledger=f"sqlite:{ledger}")
    world = World(DirectoryBucket(folder))
    with Board(world, settings=Settings(storage=storage)).serving() as board:
        assert board.http.get("/healthz").status_code == 200  # the first tick will create it
        folder.mkdir()
        assert board.http.get("/healthz").status_code == 200
        folder.rename(tmp_path / "away")
        assert board.http.get("/healthz").status_code == 503
        (tmp_path / "away").rename(folder)
        assert board.http.get("/healthz").status_code == 200
        ledger.write_text("no database at all")
        assert board.http.get("/healthz").status_code == 503
