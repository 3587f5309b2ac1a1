"""A worker as a subprocess, with the real command line: started, stopped, killed, and called over HTTP."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from worker_world import LONG_S, WorkerWorld

ROOT = Path(__file__).parents[2]
KEYS = "alice=alices-key,*=key-of-all"


class WorkerProgram:
    """A process of `retake images worker`, in the folder and on the services of a world."""

    def __init__(
        self, world: WorkerWorld, name: str = "Worker-A", *, queue: str = "TextQueue", drain: float = 5, **images: Any
    ) -> None:
        self.name, self.url, self._folder = name, "", world.folder
        quick = {
            "comfyui_urls": [it.url for it in world.sandboxes],
            "comfyui_check_seconds": 0.3,
            "comfyui_timeout_seconds": 20,
            "worker_silence_seconds": 1.5,
            "retry_seconds": 0.05,
            "start_seconds": 60,
        }
        config = world.folder / f"config-{name}.json"
        config.write_text(json.dumps({"IMAGES": {**quick, **images}}))
        self.environ = {
            "PATH": os.environ["PATH"],
            "RETAKE_CONFIG": str(config),
            "REDIS_URL": world.redis_url,
            "RABBITMQ_URL": world.rabbitmq_url,
            "IMAGES_STORAGE_URL": f"file:{world.folder / 'bucket'}",
            "IMAGES_KEYS": KEYS,
            "PYTHONPATH": str(ROOT),
        }
        self._arguments = ["--queue", queue, "--name", name, "--port", "0", "--drain", str(drain)]
        self.process: subprocess.Popen[str] | None = None
        world.stack.callback(self.kill)

    def start(self) -> "WorkerProgram":
        """Start it, and return when it works."""
        with (self._folder / f"{self.name}.log").open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "retake", "images", "worker", *self._arguments],
                cwd=self._folder,
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
        return (self._folder / f"{self.name}.log").read_text()

    def health(self) -> Any:
        return self.ask("GET", "/health")[1]

    def ask(self, method: str, path: str, body: Any = None, key: str = "alices-key", **more: str) -> tuple[int, Any]:
        """Return status and JSON of an answer; `more` are headers."""
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        headers |= {name.replace("_", "-"): value for name, value in more.items()}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)  # noqa: S310  (our own http)
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(request, timeout=30) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
