"""A service as a subprocess, with the real command line: started, stopped, killed, and called over HTTP."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple, Self

from waiting import LONG_S

ROOT = Path(__file__).parents[1]


class Answer(NamedTuple):
    status: int
    body: Any


class ServedProgram:
    """A process of Python with these arguments in a folder. Its log is appended to the file `log`."""

    def __init__(self, arguments: list[str], folder: Path, environ: dict[str, str], *, log: str, key: str) -> None:
        self.folder, self.environ, self.url = folder, environ, ""
        self.process: subprocess.Popen[str] | None = None
        self._arguments, self._log, self._key = arguments, folder / log, key

    def start(self) -> Self:
        """Start it, and return when it serves."""
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self._arguments],
                cwd=self.folder,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line.startswith("Listening on http://"), (line, self.log())
        self.url = line.split()[-1]
        return self

    def signal(self, number: int) -> None:
        assert self.process
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill it with SIGKILL, if it is running."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.ended()

    def stop(self) -> int:
        """Ask it to end; return its exit code."""
        self.signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        """Wait until it has ended; return its exit code."""
        assert self.process
        code = self.process.wait(timeout=LONG_S)
        if self.process.stdout:
            self.process.stdout.close()
        return code

    def log(self) -> str:
        return self._log.read_text()

    def ask(self, method: str, path: str, body: Any = None, key: str = "", **more: str) -> Answer:
        """Make a call with `key`, or with the program's own; `more` are headers."""
        headers = {"Authorization": f"Bearer {key or self._key}", "Content-Type": "application/json"}
        headers |= {name.replace("_", "-"): value for name, value in more.items()}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)  # noqa: S310  (our own http)
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(request, timeout=30) as reply:
                return Answer(reply.status, json.load(reply))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, json.load(error))
