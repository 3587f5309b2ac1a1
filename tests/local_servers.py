"""The servers of `images up`, started for tests with their data in a temporary folder.

Start them in the main thread: they die with the thread that started them (retake/images/up/children.py).
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from postgres import NoServer

from retake.images.up.children import Child, end_all
from retake.images.up.folder import DataFolder
from retake.images.up.programs import MissingProgram, Programs
from retake.images.up.redis_server import RedisServer
from retake.images.up.servers import LocalServer

START_S = 60.0
PIECE_S = 0.02


class RunningServer:
    """A server that runs from its construction, and can be killed, stopped and restarted on the same port and data."""

    def __init__(self, server: LocalServer, folder: Path) -> None:
        self._server, self.folder = server, folder
        self._prepare()
        self._children = [Child(command) for command in server.commands()]
        self.start()

    def _prepare(self) -> None:
        self._server.prepare()

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def pid(self) -> int | None:
        """The process id of the server, None while it is not running."""
        return self._children[-1].pid

    @property
    def runs(self) -> bool:
        """Whether the server is running."""
        return self._children[-1].running

    def start(self) -> None:
        """Start whatever is not running, and wait until it is ready."""
        self.start_unready()
        end = time.monotonic() + START_S
        while not self._children[-1].command.ready():
            if not self._children[-1].running or time.monotonic() > end:
                pytest.fail(f"{self._server.name} does not start: {self._children[-1].last_output(2000)}")
            time.sleep(PIECE_S)

    def start_unready(self) -> None:
        """Start whatever is not running, without waiting until it is ready."""
        end = time.monotonic() + START_S
        for child in self._children:
            if not child.running:
                child.start()
            while child is not self._children[-1] and not child.command.ready() and time.monotonic() < end:
                time.sleep(PIECE_S)

    def stop(self) -> None:
        """Stop the server cleanly, as an operator does."""
        end_all(self._children[-1:], time.sleep)

    def kill(self) -> None:
        """Kill the server with SIGKILL, and wait until it is gone."""
        self._children[-1].kill()

    def renew(self) -> None:
        """Kill the server and start it again on the same port, without its data."""
        self.kill()
        shutil.rmtree(self.folder / self._server.name / "data")
        self._prepare()
        self.start()

    def end(self) -> None:
        """Kill the server and the processes it needs."""
        for child in reversed(self._children):
            child.kill()


@contextmanager
def running_redis() -> Iterator[RunningServer]:
    """Run a Redis. If it is not installed, skip the test; on a build machine, fail."""
    with server_folder() as folder:
        with or_skipped():
            server = RedisServer(DataFolder(folder), Programs(os.environ), os.environ)
        started = RunningServer(server, folder)
        try:
            yield started
        finally:
            started.end()


@contextmanager
def server_folder() -> Iterator[Path]:
    """Yield a folder for a server's data; the server must have ended by the end of the block."""
    with tempfile.TemporaryDirectory(prefix="retake-server-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def or_skipped() -> Iterator[None]:
    """Skip the test with installation advice if a server is missing; on a build machine, fail."""
    try:
        yield
    except (MissingProgram, NoServer) as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
