"""A whole image-job service of real processes, killed at random while clients ask it for pictures.

Clients are well-behaved: they send an Idempotency-Key, ask again after an error, and wait for the result.
"""

import io
import json
import os
import subprocess
import sys
import threading
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import httpx
import redis
from local_servers import RunningServer
from PIL import Image
from rabbit_server import RabbitServer
from worker_world import picture

from retake.bucket.directory import DirectoryBucket
from retake.images.messages import DEAD_QUEUE, OUTFIT_QUEUE, TEXT_QUEUE, TOPOLOGY
from retake.images.up.folder import free_port
from retake.rabbit.broker import Broker, BrokerAway
from retake.sandbox.comfyui import ComfySandbox
from retake.vendors.comfyui import prompt_id_of

ROOT = Path(__file__).parents[2]
KEY = "a-key-for-everybody"
PATIENCE_S = 240.0
"""Seconds within which a job ends, whatever is killed meanwhile."""

SETTINGS = {
    "active_seconds": 0.3,
    "idle_seconds": 0.6,
    "idle_after_seconds": 1,
    "cache_ttl_seconds": 1.5,
    "comfyui_check_seconds": 0.3,
    "worker_silence_seconds": 4,
    "resend_after_seconds": 2,
    "retry_seconds": 0.2,
    "result_grace_seconds": 15,
    "result_ttl_seconds": 45,  # removes an answer whose API was killed before recording that it was sent
    "orphan_after_seconds": 12,
    "delivery_limit": 100,
    "rate_per_minute": 100_000,
}


class Program(NamedTuple):
    """A process of the service, and how to start it."""

    name: str
    arguments: tuple[str, ...]


class Wish(NamedTuple):
    """A job that a client wants, identified by its path."""

    number: int
    path: str

    @property
    def prompt(self) -> str:
        return f"wish {self.number}"


class Ruin:
    """Kills and restarts processes and the servers under them, while clients are at work."""

    def __init__(self, folder: Path, redis_server: RunningServer, rabbit: RabbitServer, database_url: str) -> None:
        self.folder, self.redis, self.rabbit = folder, redis_server, rabbit
        self.stack = ExitStack()
        self.comfy = [self.stack.enter_context(ComfySandbox(pace=0.15)) for _ in range(2)]
        self.broker = Broker(rabbit.url, TOPOLOGY, name="ruin")
        self.broker.start()
        self.stack.callback(self.broker.close)
        self.broker.connect(60)
        for queue in (TEXT_QUEUE, OUTFIT_QUEUE, DEAD_QUEUE):
            rabbit.wait_for_queue(queue)
        self.ports = [free_port(), free_port()]
        self.environ = self._environ(database_url)
        self.programs = [
            *(Program(f"api-{port}", ("api", "--port", str(port))) for port in self.ports),
            *(Program(f"text-{n}", _worker("TextQueue", f"text-{n}")) for n in (1, 2)),
            Program("outfit-1", _worker("OutfitQueue", "outfit-1")),
        ]
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        self.ended = threading.Event()
        self.told: list[str] = []  # what was killed
        self.jobs: dict[int, str] = {}  # by wish

    def _environ(self, database_url: str) -> dict[str, str]:
        config = self.folder / "config.json"
        config.write_text(json.dumps({"IMAGES": SETTINGS}))
        kept = ("PATH", "HOME", "LANG", "TMPDIR")
        return {name: os.environ[name] for name in kept if name in os.environ} | {
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "RETAKE_CONFIG": str(config),
            "REDIS_URL": self.redis.url,
            "RABBITMQ_URL": self.rabbit.url,
            "DATABASE_URL": database_url,
            "IMAGES_STORAGE_URL": f"file:{self.folder}/bucket",
            "IMAGES_KEYS": f"*={KEY}",
            "RETAKE_COMFYUI_URLS": ",".join(it.url for it in self.comfy),
        }

    # --- processes --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start every program, and restart whatever ends, as `images up` or systemd does."""
        (self.folder / "logs").mkdir()
        keeper = threading.Thread(target=self._keep, name="keeper")
        self.stack.callback(self._end_all)
        self.stack.callback(keeper.join, 60)
        self.stack.callback(self.ended.set)
        keeper.start()

    def _keep(self) -> None:
        while not self.ended.wait(0.1):
            with self._lock:
                for program in self.programs:
                    process = self._running.get(program.name)
                    if process is None or process.poll() is not None:
                        self._running[program.name] = self._begin(program)

    def _begin(self, program: Program) -> "subprocess.Popen[bytes]":
        with (self.folder / f"logs/{program.name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "retake", "images", *program.arguments],
                cwd=self.folder, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def kill(self, name: str) -> None:
        with self._lock, suppress(ProcessLookupError, KeyError):
            self._running[name].kill()

    def _end_all(self) -> None:
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait(30)

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("logs/*.log")))

    # --- what goes wrong --------------------------------------------------------------------------------------------

    def destroy(self, random: Random, deaths: int) -> None:
        """Cause `deaths` failures, one after another."""
        causes: dict[str, Callable[[], None]] = {
            **{it.name: lambda name=it.name: self.kill(name) for it in self.programs},
            "redis killed": lambda: self._again(self.redis, self.redis.kill),
            "redis restarted": lambda: self._again(self.redis, self.redis.stop),
            "rabbit killed": lambda: self._again(self.rabbit, self.rabbit.kill),
            "rabbit restarted": lambda: self._again(self.rabbit, self.rabbit.stop),
        }
        names = sorted(causes)
        weights = [1 if name.startswith("rabbit") else 3 for name in names]
        for name in random.choices(names, weights, k=deaths):
            if self.ended.wait(random.uniform(0.2, 1.2)):
                return
            self.told.append(name)
            causes[name]()

    def _again(self, server: RunningServer, end: Callable[[], None]) -> None:
        end()
        time.sleep(0.3)
        server.start()

    # --- clients ----------------------------------------------------------------------------------------------------

    def fulfil(self, wish: Wish, random: Random) -> str:
        """Create the job, wait for its result, and return what is wrong with it, or ""."""
        end = time.monotonic() + PATIENCE_S
        job_id = self._made(wish, random, end)
        self.jobs[wish.number] = job_id
        while time.monotonic() < end:
            answer = self._asked(random, "GET", "/jobResult", params={"jobId": job_id})
            if answer is not None and answer.status_code == 200:
                fault = self._fault(wish, answer.json())
                if not fault and random.random() < 0.5:
                    self._asked(random, "DELETE", "/jobResult", params={"jobId": job_id})
                return fault
            if answer is not None and answer.status_code not in (202, 503):
                return f"{wish}: {job_id}: {answer.status_code} {answer.text[:300]}"
            time.sleep(0.1)
        return f"{wish}: {job_id}: no result"

    def _made(self, wish: Wish, random: Random, end: float) -> str:
        headers = {"Idempotency-Key": f"wish {wish.number}"}
        user = f"user-{wish.number % 3}"
        asked: dict[str, Any] = {"json": {"userId": user, "prompt": wish.prompt, "width": 64, "height": 64}}
        if wish.path == "/jobChangeOutfit":
            files = {name: (f"{name}.png", picture("red"), "image/png") for name in ("personImage", "garmentImage")}
            asked = {"data": {"userId": user}, "files": files}
        while time.monotonic() < end:
            answer = self._asked(random, "POST", wish.path, headers=headers, **asked)
            if answer is not None and answer.status_code == 201:
                return str(answer.json()["jobId"])
            assert answer is None or answer.status_code == 503, f"{answer.status_code} {answer.text[:300]}"
            time.sleep(0.2)
        raise AssertionError(f"{wish} was never accepted")

    def _asked(self, random: Random, method: str, path: str, **options: Any) -> httpx.Response | None:
        """Return the answer of one of the APIs; None if it died or is not running."""
        headers = {"Authorization": f"Bearer {KEY}", **options.pop("headers", {})}
        try:
            url = f"http://127.0.0.1:{random.choice(self.ports)}{path}"
            return httpx.request(method, url, headers=headers, timeout=30, **options)
        except httpx.TransportError:
            return None

    def _fault(self, wish: Wish, result: Mapping[str, Any]) -> str:
        if result.get("status") != "completed":
            return f"{wish}: {result}"
        image = Image.open(io.BytesIO(b64decode(result["image_data_base64"])))
        image.load()
        graph = image.info.get("prompt", "")
        right = f'"{wish.prompt}"' in graph if wish.path != "/jobChangeOutfit" else self.jobs[wish.number] in graph
        return "" if right else f"{wish}: the picture of another job: {graph[:200]}"

    # --- what must hold afterwards ----------------------------------------------------------------------------------

    def executions(self) -> Counter[str]:
        return sum((it.executions() for it in self.comfy), Counter[str]())

    def expected(self) -> Counter[str]:
        return Counter(prompt_id_of(job_id, 1) for job_id in self.jobs.values())

    def left(self) -> list[str]:
        """Return what is left of any job: keys, messages, files."""
        with redis.Redis.from_url(self.redis.url, decode_responses=True) as client:
            passing = ("jobs:idempotency:", "jobs:rate:", "jobs:worker:", "jobs:alone:")
            keys = [key for key in client.scan_iter() if not key.startswith(passing)]
        messages = []
        with suppress(BrokerAway):
            depths = {queue: self.broker.depth(queue) for queue in (TEXT_QUEUE, OUTFIT_QUEUE, DEAD_QUEUE)}
            messages = [f"{count} messages in {queue}" for queue, count in depths.items() if count]
        files = [entry.key for entry in DirectoryBucket(str(self.folder / "bucket")).list("jobs/")]
        return [*keys, *messages, *files]


def _worker(queue: str, name: str) -> tuple[str, ...]:
    return ("worker", "--queue", queue, "--name", name, "--port", "0", "--drain", "2")
