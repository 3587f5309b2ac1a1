"""The RabbitMQ of `images up`, for tests: it can be frozen, stopped, killed and started again on the same data.

It dies with the thread that started it (retake/images/up/children.py): start it in the main thread.
"""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retake.images.up import rabbit_server
from retake.images.up.children import Child
from retake.images.up.folder import DataFolder
from retake.images.up.programs import MissingProgram, Programs

_START_S = 60.0


class NoRabbit(Exception):
    """There is no RabbitMQ, or it did not start; the message says what to do."""


class RabbitServer:
    """A server with its data in `folder`. `settings` are further lines of rabbitmq.conf. Raises NoRabbit."""

    def __init__(self, folder: str, settings: str = "") -> None:
        try:
            server = rabbit_server.RabbitServer(DataFolder(Path(folder)), Programs(os.environ), os.environ)
        except MissingProgram as error:
            raise NoRabbit(str(error)) from None
        self.url, self.port = server.url, server.port
        server.prepare()
        with Path(folder, "rabbitmq/rabbitmq.conf").open("a") as configuration:
            configuration.write(settings)
        self._folder = Path(folder)
        self._children = [Child(command) for command in server.commands()]
        self.start()

    @property
    def runs(self) -> bool:
        """Whether it was started, and not ended since."""
        return self._children[-1].running

    def start(self) -> None:
        """Start it, on the same port and data as before; return when it takes connections."""
        for child in self._children:
            if not child.running:
                child.start()
            end = time.monotonic() + _START_S
            while not child.command.ready():
                if not child.running or time.monotonic() > end:
                    raise NoRabbit(f"RabbitMQ does not start: {self.log()}")
                time.sleep(0.05)

    def wait_for_queue(self, queue: str) -> None:
        """Wait until a new quorum queue is on disk, which is up to a second after it was declared: a server that is
        killed earlier knows the queue afterwards and never runs it."""
        end = time.monotonic() + _START_S
        while not any(queue.encode() in path.read_bytes() for path in self._folder.glob("rabbitmq/data/**/names.dets")):
            if time.monotonic() > end:
                raise NoRabbit(f"{queue} is not on disk")
            time.sleep(0.02)

    def stop(self) -> None:
        """End it as its operator would."""
        self._children[-1].stop(time.sleep)

    def kill(self) -> None:
        """Kill it by SIGKILL."""
        self._children[-1].kill()

    def freeze(self) -> None:
        """Let it hang: connections stay, and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill it, with all that it started."""
        for child in reversed(self._children):
            child.kill()

    def log(self) -> str:
        """Return the end of what it has printed."""
        return self._children[-1].command.log.read_text(errors="replace")[-8000:]

    def _signal(self, number: int) -> None:
        pid = self._children[-1].pid
        if pid is None:
            raise NoRabbit("it does not run")
        os.kill(pid, number)


@contextmanager
def running(settings: str = "") -> Iterator[RabbitServer]:
    """A server that runs meanwhile. Raises NoRabbit."""
    with tempfile.TemporaryDirectory(prefix="retake-rabbit-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        server = RabbitServer(folder, settings)
        try:
            yield server
        finally:
            server.close()
