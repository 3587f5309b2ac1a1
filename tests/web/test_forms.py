"""Who may press buttons, and what happens to foreign forms."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from acting import PAGE, TOKEN, Site, dashboard, done, told
from acting_world import ID, STATES, World
from test_actions import letters

from retake.web.sessions import COOKIE
from retake.web.verbs import VERBS

# --- incomplete bodies ------------------------------------------------------------------------------------------------


@contextmanager
def half_a_form() -> Iterator[socket.socket]:
    """Open a client that announces a form to /login, where anyone may send one, and sends half of it."""
    with dashboard(STATES["pictures failed"]()) as site:
        place = urlsplit(site.url)
        with socket.create_connection((place.hostname or "", place.port or 0), 20) as client:
            head = "POST /login HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\nContent-Length: 20\r\n\r\n"
            client.sendall(f"{head}token=".encode())
            yield client


def test_a_form_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retake.serving.body.BODY_S", 0.2)
    with half_a_form() as client:
        assert client.recv(4096).startswith(b"HTTP/1.1 408")


def test_a_client_that_goes_in_the_middle_of_a_form_is_not_a_bug(capsys: pytest.CaptureFixture[str]) -> None:
    with half_a_form():
        pass
    assert capsys.readouterr().err == ""


# --- who may not --------------------------------------------------------------------------------------------------


def forbidden(site: Site, world: World, **changed: Any) -> None:
    """Send every order as an attacker would: 403, and nothing is changed."""
    before = world.everything()
    fields = changed.pop("fields", {})
    for verb in VERBS:
        answer = site.press(verb, id="2" if verb == "mode" else ID, agreed="yes", **fields, **changed)
        assert answer.status_code == 403, verb
        assert "Nothing was changed" in told(answer)
    assert world.everything() == before


def test_without_the_csrf_of_this_session_nothing_is_changed() -> None:
    world = STATES["pictures failed"]()
    with dashboard(world) as site:
        other = site.desk.sessions.csrf(site.desk.sessions.begin())
        for csrf in ("", other, site.csrf[:-1], site.csrf + "0", TOKEN, "\u00e9", "0" * 64):
            forbidden(site, world, fields={"csrf": csrf})
        del site.browser.cookies[COOKIE]
        assert site.browser.post("/actions/retry", data={"id": ID, "csrf": other}, headers=PAGE).status_code == 303
        program = {"Accept": "application/json"}
        assert site.browser.post("/actions/retry", data={"id": ID, "csrf": other}, headers=program).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://localhost"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_from_another_site_nothing_is_changed(headers: dict[str, str]) -> None:
    world = STATES["pictures failed"]()
    with dashboard(world) as site:
        forbidden(site, world, headers=headers)
        bearer = site.program.post("/actions/retry", data={"id": ID}, headers={"Origin": "https://evil.example"})
        assert bearer.status_code == 403


def test_its_own_origin_may() -> None:
    with dashboard(STATES["pictures failed"]()) as site:
        assert done(site.press("retry", headers={"Origin": site.url, "Sec-Fetch-Site": "same-origin"}, id=ID))


def test_a_dashboard_that_only_shows_changes_nothing_for_anybody() -> None:
    world = STATES["pictures failed"]()
    before = world.everything()
    with dashboard(world, read_only=True) as site:
        forbidden(site, world)
        for verb in VERBS:
            answer = site.order(verb, id=ID, agreed="yes")
            assert (answer.status_code, "--read-only" in answer.json()["error"]) == (403, True)
        out = site.browser.post("/logout", data={"csrf": site.csrf}, headers=PAGE)
        assert (out.status_code, out.headers["location"]) == (303, "/login")
    assert world.everything() == before


def test_nobody_is_signed_out_by_another_site() -> None:
    with dashboard(STATES["no generation"]()) as site:
        assert site.browser.post("/logout", headers=PAGE).status_code == 403
        foreign = {**PAGE, "Origin": "https://evil.example"}
        assert site.browser.post("/logout", data={"csrf": site.csrf}, headers=foreign).status_code == 403
        assert site.browser.get("/", headers=PAGE).status_code == 200


def test_a_get_never_changes_anything() -> None:
    """Chat programs fetch links: every page and every action, as a browser and as a program."""
    world = letters("a")
    world.put("666/x.png", b"a picture")
    pages = ["/", "/runs", "/runs/x", "/dead-letters", "/spend", "/kpi", "/alerts", "/alerts/a", "/mode", "/breakers"]
    pages += ["/metrics", "/healthz", "/login", "/logout", "/media/-/x.png", "/static/style.css"]
    pages += [f"/actions/{verb}?id={name}&agreed=yes" for verb in VERBS for name in ("a", "2")]
    before = world.everything()
    with dashboard(world) as site:
        for path in pages:
            for answer in (
                site.browser.get(f"{path}{'&' if '?' in path else '?'}csrf={site.csrf}", headers=PAGE),
                site.program.get(path),
                site.program.head(path),
            ):
                assert answer.status_code < 500, path
                assert not path.startswith(("/actions", "/logout")) or answer.status_code == 405, path
    assert world.everything() == before


# --- forms of all sorts -------------------------------------------------------------------------------------------


def test_nonsense_is_reported_and_never_a_bug() -> None:
    world = STATES["pictures failed"]()
    with dashboard(world) as site:
        assert site.order("explode", id=ID).status_code == 404
        assert site.order("retry").status_code == 422
        assert site.order("retry", id="").status_code == 422
        assert site.order("drop", id=[f"x{number}" for number in range(1001)]).status_code == 422
        names = (
            "../../x",
            "run-../..",
            "run-\u00e9",
            "run-",
            "a/b/c",
            ".retake",
            "%2e%2e",
            "\U0001f480",
            "-",
            "*",
            "'",
        )
        for verb in (it for it in VERBS if it != "mode"):
            for name in names:
                assert site.order(verb, id=name, agreed="1").status_code == 409, (verb, name)
            for name in ("run-\n.", "a\0b", "x" * 201):
                assert site.order(verb, id=name, agreed="1").status_code == 422, (verb, name)
        huge = site.program.post("/actions/retry", content=b"id=" + b"x" * 70_000)
        assert huge.status_code == 422
        assert site.program.post("/actions/retry", content=b"\xff\xfe=\xff").status_code == 422


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"back": "/runs?page=2"}, "/runs?page=2"),
        ({"back": "https://evil.example/"}, "/"),
        ({"back": "//evil.example"}, "/"),
        ({"back": "//[x"}, "/"),
        ({"back": "/actions/drop"}, "/"),
        ({"referer": "{url}/runs/x?y=1#z"}, "/runs/x?y=1"),
        ({"referer": "https://evil.example/runs"}, "/"),
        ({"referer": "{url}"}, "/"),
        ({}, "/"),
    ],
    ids=str,
)
def test_the_browser_is_sent_back_only_to_our_own_pages(given: dict[str, str], wanted: str) -> None:
    with dashboard(STATES["pictures failed"]()) as site:
        headers = {"Referer": given.pop("referer").format(url=site.url)} if "referer" in given else {}
        answer = site.press("retry", headers, id=ID, **given)
        assert (answer.status_code, answer.headers["location"]) == (303, wanted)
