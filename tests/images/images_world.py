"""The API of the image-job service over real HTTP, on a real Redis and RabbitMQ. There are no workers: tests make the
changes that a worker would make to Redis and the bucket."""

import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import httpx

from retake.bucket import ANY, Entry, Expect
from retake.bucket.memory import MemoryBucket
from retake.clock import SystemClock
from retake.errors import StorageError
from retake.images import scripts
from retake.images.api import images_app
from retake.images.api_process import api_parts
from retake.images.jobs import ImageJob
from retake.images.messages import TOPOLOGY
from retake.images.redis_calls import open_redis
from retake.images.settings import AccessKeys, ImageJobSettings, ImagesSettings, Places
from retake.images.start import ImageServices
from retake.images.store import JobStore
from retake.images.table import JobTable
from retake.rabbit.broker import Broker
from retake.serving.server import ApiServer, address_of, listen

ALICE, BOB, ALL = "key-of-alice-1", "key-of-bob-22", "key-of-all-333"
KEYS = AccessKeys({"alice": ALICE, "bob": BOB, "*": ALL})

PNG = b"\x89PNG\r\n\x1a\n" + b"png" * 20
JPEG = b"\xff\xd8\xff\xe0" + b"jpeg" * 20
WEBP = b"RIFF\x10\x00\x00\x00WEBPVP8 " + b"webp" * 20

WITHIN_S = 10.0
"""Seconds within which an answer comes while a service is away: the bound that the contract states."""

CALM = ImageJobSettings(active_seconds=3600, idle_seconds=3600, result_grace_seconds=3600, rate_per_minute=100_000)
"""Settings with which nothing happens by itself: tests call `cycle` and `sweep`."""


class ApiBucket(MemoryBucket):
    """A bucket that can be away, stall, or fail at one write."""

    def __init__(self) -> None:
        super().__init__()
        self.away, self.failing = False, ""  # `failing`: part of a key that cannot be written
        self.running = threading.Event()
        self.running.set()

    def look(self, key: str = "") -> None:
        self.running.wait(60)
        if self.away or (self.failing and self.failing in key):
            raise StorageError("the bucket is away: /srv/pictures is not there")

    def read(self, key: str) -> tuple[bytes, str]:
        self.look()
        return super().read(key)

    def write(self, key: str, data: bytes, expect: str | Expect) -> str:
        self.look(key)
        return super().write(key, data, expect)

    def list(self, prefix: str) -> list[Entry]:
        self.look()
        return super().list(prefix)

    def delete(self, key: str) -> None:
        self.look()
        super().delete(key)

    @property
    def kept(self) -> set[str]:
        """The keys of all objects."""
        return set(self.store.objects)


class ImagesWorld:
    """An instance of the API. Several worlds on the same servers and bucket are several instances."""

    def __init__(
        self,
        redis_url: str,
        rabbitmq_url: str,
        database_url: str = "",
        *,
        images: ImageJobSettings = CALM,
        bucket: ApiBucket | None = None,
        keys: AccessKeys = KEYS,
        sweep: Callable[[], None] | None = lambda: None,
    ) -> None:
        self.bucket = bucket or ApiBucket()
        self.clock = SystemClock()
        settings = ImagesSettings(images=images, places=Places(redis_url, rabbitmq_url, database_url), keys=keys)
        self.services = ImageServices(
            settings,
            JobStore(open_redis(redis_url), self.clock),
            self.bucket,
            Broker(rabbitmq_url, TOPOLOGY, name="test"),
            JobTable(database_url, self.clock) if database_url else None,
        )
        self.store, self.table = self.services.store, self.services.table
        self.redis = open_redis(redis_url)
        self.services.broker.start()
        self.parts = api_parts(self.services, self.clock, sweep)
        self.dispatcher = self.parts.dispatcher
        self.base = ""

    @contextmanager
    def serving(self) -> Iterator["ImagesWorld"]:
        stopped, ready = threading.Event(), threading.Event()
        try:
            with listen("127.0.0.1", 0) as listener:
                server = ApiServer(
                    images_app(self.parts), listener, signals=lambda: int(stopped.is_set()), on_start=ready.set
                )
                thread = threading.Thread(target=server.serve_until_stopped)
                self.base = address_of(listener, "127.0.0.1")
                thread.start()
                assert ready.wait(30)
                try:
                    with self.client(ALICE) as self.alice, self.client(BOB) as self.bob, self.client(ALL) as self.all:
                        yield self
                finally:
                    stopped.set()
                    thread.join(20)
                    assert not thread.is_alive()
        finally:
            self.bucket.running.set()
            self.services.close()
            self.redis.close()

    def client(self, key: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.base, headers=headers, timeout=60)

    # --- requests -----------------------------------------------------------------------------------------------

    def ask(self, path: str = "/jobsRedis", key: str | None = None, **fields: Any) -> httpx.Response:
        """Request a picture as alice."""
        headers = {} if key is None else {"Idempotency-Key": key}
        return self.alice.post(path, json={"userId": "alice", "prompt": "a fox", **fields}, headers=headers)

    def job(self, path: str = "/jobsRedis", **fields: Any) -> str:
        """Create a job of alice's and return its id."""
        found = self.ask(path, **fields)
        assert found.status_code == 201, found.text
        return str(found.json()["jobId"])

    def outfit(
        self, key: str | None = None, person: bytes = PNG, garment: bytes = JPEG, user: str = "alice"
    ) -> httpx.Response:
        headers = {} if key is None else {"Idempotency-Key": key}
        files = {"personImage": ("p.png", person), "garmentImage": ("g.jpg", garment)}
        return self.alice.post("/jobChangeOutfit", data={"userId": user}, files=files, headers=headers)

    def upload(self, *files: tuple[str, bytes], user: str = "alice") -> httpx.Response:
        return self.alice.post("/upload", data={"userId": user}, files=[("imageFiles", it) for it in files])

    def result(self, job_id: str, **options: Any) -> httpx.Response:
        return self.alice.get("/jobResult", params={"jobId": job_id}, **options)

    # --- what other programs do -----------------------------------------------------------------------------------

    def finish(self, job_id: str, data: bytes = PNG) -> str:
        """Finish the job as a worker does; return the key of its picture."""
        key = f"jobs/{job_id}/output.png"
        self.bucket.write(key, data, ANY)
        self.store.claim(job_id, "worker", 60, 5)
        self.store.end_ready(job_id, "worker", key, "image/png", "Worker-A @ 127.0.0.1:8188")
        return key

    def fail(self, job_id: str, error: str = "ComfyUI refused the graph") -> None:
        self.store.claim(job_id, "worker", 60, 5)
        self.store.end_failed(job_id, "worker", error)

    def put(self, **fields: str) -> str:
        """Create a job of alice's as another program writes it; return its id."""
        job_id = str(uuid4())
        self.redis.hset(job_id, mapping={"user_id": "alice", **fields})
        return job_id

    def depth(self, queue: str) -> int:
        return self.services.broker.depth(queue)

    def members(self, name: str) -> set[str]:
        """Return the ids of a set: pending, ready, cached or failed."""
        of = {"pending": scripts.PENDING, "ready": scripts.READY, "cached": scripts.CACHED, "failed": scripts.FAILED}
        return set(self.redis.smembers(of[name]))  # type: ignore[arg-type]

    def kept(self, job_id: str) -> ImageJob | None:
        return self.store.get(job_id)


def pictured(answer: httpx.Response) -> bytes:
    """Return the picture of a finished job."""
    assert answer.status_code == 200, answer.text
    return b64decode(answer.json()["image_data_base64"])


@contextmanager
def timed() -> Iterator[None]:
    """Check that the block ends within the bound of the contract."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < WITHIN_S
