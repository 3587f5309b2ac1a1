"""Shared by the tests of orders on the dashboard: a dashboard on a bucket in one of its states, and its users.

with dashboard(STATES["pictures failed"]()) as site:
    answer = site.press("retry", id=ID)          # in a browser that is signed in
    answer = site.order("retry", id=ID)          # as a program does
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from ssl import PROTOCOL_TLS_CLIENT, SSLContext
from typing import Any, NamedTuple
from urllib.parse import unquote

import httpx
from served_app import served_app

sys.path.append(str(Path(__file__).parent.parent / "console"))
sys.path.append(str(Path(__file__).parent.parent / "story"))

from dashboard import forgetful_shelf
from story_world import KEYS, World

from retake.bucket import Bucket
from retake.clock import Clock
from retake.console.command_context import CommandContext
from retake.operations.events import WEB
from retake.retrying.breaker import BreakerPolicy
from retake.story.settings import Settings
from retake.web.app import web_app
from retake.web.desk import DONE_COOKIE, Desk
from retake.web.live import Live
from retake.web.sessions import COOKIE, Sessions

TOKEN = "a-token-of-the-tests"
PAGE = {"Accept": "text/html"}

_NO_TLS = SSLContext(PROTOCOL_TLS_CLIENT)  # it is not used; for each client httpx would read all certificates


class Site(NamedTuple):
    """A running dashboard and its two users."""

    url: str
    desk: Desk
    browser: httpx.Client
    program: httpx.Client

    @property
    def csrf(self) -> str:
        return self.desk.sessions.csrf(self.browser.cookies[COOKIE])

    def press(self, verb: str, headers: dict[str, str] | None = None, **fields: str | list[str]) -> httpx.Response:
        """Send a form as one of our pages does; `csrf` is the session's unless given."""
        given = {"csrf": self.csrf, **fields}
        return self.browser.post(f"/actions/{verb}", data=given, headers={**PAGE, **(headers or {})})

    def order(self, verb: str, **fields: str | list[str]) -> httpx.Response:
        return self.program.post(f"/actions/{verb}", data=fields)

    def confirm(self, page: httpx.Response) -> httpx.Response:
        """Press the button of a confirmation page."""
        from re import findall, search

        fields: dict[str, Any] = {}
        for name, value in findall(
            r'<input type="hidden" name="(\w+)" value="([^"]*)">', page.text.split("<main", 1)[1]
        ):
            fields.setdefault(name, []).append(value)
        action = search(r'action="/actions/(\w+)"', page.text.split("<main", 1)[1])
        assert action
        assert "Confirm</button>" in page.text
        return self.press(action[1], **fields)


def done(answer: httpx.Response) -> str:
    """Return what was done, from an answer that redirects the browser back."""
    assert answer.status_code == 303, (answer.status_code, answer.text)
    return unquote(answer.cookies[DONE_COOKIE])


def told(answer: httpx.Response) -> str:
    """Return the error message on a page."""
    from html import unescape

    return unescape(answer.text.partition('role="alert">')[2].partition("</p>")[0])


@contextmanager
def dashboard(
    world: World,
    *,
    read_only: bool = False,
    channels: Sequence[str] = (),
    bucket: Bucket | None = None,
    policies: dict[str, BreakerPolicy] | None = None,
) -> Iterator[Site]:
    """Serve the dashboard of the world's bucket, or of `bucket` instead."""
    settings: Settings = world.settings._replace(channels=tuple(channels))
    with serving(bucket or world.bucket, settings, world.clock, read_only, policies) as site:
        yield site


@contextmanager
def serving(
    bucket: Bucket,
    settings: Settings,
    clock: Clock,
    read_only: bool = False,
    policies: dict[str, BreakerPolicy] | None = None,
    music: Any = None,
) -> Iterator[Site]:
    """Serve a dashboard on a free port; both users are signed in."""
    context = CommandContext({}, clock=clock, bucket=bucket, settings=settings, keys=KEYS, actor=WEB, music=music)
    with served(context, read_only, policies) as site:
        yield site


@contextmanager
def served(
    context: CommandContext, read_only: bool = False, policies: dict[str, BreakerPolicy] | None = None
) -> Iterator[Site]:
    """Serve the dashboard of a context in the same way."""
    clock, cap = context.clock, context.settings.workflow.daily_cap_usd
    sessions, shelf = Sessions(TOKEN, lambda: clock.now().timestamp()), forgetful_shelf()
    desk = Desk(context.operations, sessions, shelf, cap_usd=cap, read_only=read_only, policies=policies)
    app = web_app(desk, Live(dict, 1.0, shelf.forget), ())
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    with (
        closing(shelf),
        served_app(app) as url,
        httpx.Client(base_url=url, timeout=60, trust_env=False, verify=_NO_TLS) as browser,
        httpx.Client(base_url=url, timeout=60, trust_env=False, verify=_NO_TLS, headers=bearer) as program,
    ):
        browser.cookies.set(COOKIE, sessions.begin())
        yield Site(url, desk, browser, program)
