"""A dashboard over HTTP on a bucket filled by real ticks, and the console on the same bucket.

world = failed_world()
with Board(world).serving() as board:
    assert board.json("/runs") == {...}
    assert "<h1>Runs" in board.page("/runs").text
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click
import httpx

TESTS = Path(__file__).parent.parent
folders = [str(TESTS), *(str(TESTS / room) for room in ("story", "cron", "runs", "console"))]
sys.path += [folder for folder in folders if folder not in sys.path]

from reading_world import ask  # noqa: E402
from served_app import served_app  # noqa: E402
from story_world import KEYS, World, busy_world  # noqa: E402, F401

from retake.bucket import ANY, Bucket  # noqa: E402
from retake.bucket.directory import DirectoryBucket  # noqa: E402
from retake.console.command_context import CommandContext  # noqa: E402
from retake.story.settings import Settings  # noqa: E402
from retake.web.app import web_app  # noqa: E402
from retake.web.desk import Desk  # noqa: E402
from retake.web.live import Live  # noqa: E402
from retake.web.sessions import COOKIE, Sessions  # noqa: E402
from retake.web.shelf import Shelf  # noqa: E402

TOKEN = "a-token-of-the-tests"


def forgetful_shelf() -> Shelf:
    """Return a shelf that reads anew for each page. Its clock makes every read instantaneous: slow reads would be kept
    for a while, and on a busy machine any read may be slow."""
    return Shelf(0.0, lambda: 0.0)


class Board:
    """A dashboard with nothing read yet, on the clock of `world`; `bucket` may be another one."""

    def __init__(
        self,
        world: World,
        bucket: Bucket | None = None,
        *,
        settings: Settings | None = None,
        read_only: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.context = CommandContext(
            environ or {},
            clock=world.clock,
            bucket=bucket or world.bucket,
            settings=settings or world.settings,
            keys=KEYS,
        )
        self.shelf = forgetful_shelf()
        self.sessions = Sessions(TOKEN, lambda: world.clock.now().timestamp())
        cap = self.context.settings.workflow.daily_cap_usd
        operations = self.context.operations
        desk = Desk(operations, self.sessions, self.shelf, cap_usd=cap, read_only=read_only, environ=environ or {})
        self.app = web_app(desk, Live(dict, 1.0, self.shelf.forget), ())

    @contextmanager
    def serving(self) -> Iterator["Board"]:
        with closing(self.shelf), served_app(self.app) as url, httpx.Client(base_url=url, timeout=30) as self.http:
            yield self

    def page(self, path: str, **options: Any) -> httpx.Response:
        """Return what a signed-in browser gets."""
        headers = {"Accept": "text/html", "Cookie": f"{COOKIE}={self.sessions.begin()}"}
        return self.http.get(path, headers=headers, **options)

    def program(self, path: str, **options: Any) -> httpx.Response:
        headers = {"Accept": "application/json", "Authorization": f"Bearer {TOKEN}"}
        return self.http.get(path, headers=headers, **options)

    def json(self, path: str, **options: Any) -> Any:
        found = self.program(path, **options)
        assert found.status_code == 200, found.text
        return found.json()

    def console(self, command: click.Command, **options: Any) -> Any:
        """Return the document of the console's command on the same bucket."""
        return ask(command, self.context, **options).document


def in_directory(world: World, folder: Path) -> Bucket:
    """Copy the world's bucket into a directory."""
    bucket = DirectoryBucket(str(folder))
    for key, data in world.everything().items():
        bucket.write(key, data, ANY)
    return bucket
