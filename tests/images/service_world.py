"""Shared by the API, workers and sweepers in one process: real servers, a bucket in memory, and a clock that stands
still."""

from contextlib import ExitStack
from typing import Any
from uuid import uuid4

from retake.bucket import ANY, Bucket
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.clock import FakeClock
from retake.images import scripts
from retake.images.cleanup import CleanUp
from retake.images.jobs import ImageJob, JobType, TextRequest, text_fields
from retake.images.messages import OUTFIT_QUEUE, TEXT_QUEUE, TOPOLOGY, job_id_of
from retake.images.redis_calls import open_redis
from retake.images.settings import ImageJobSettings, ImagesSettings, Places
from retake.images.start import ImageServices
from retake.images.store import JobStore
from retake.images.sweeper import Sweeper
from retake.images.table import JobTable
from retake.rabbit.broker import Broker

SETTINGS = ImageJobSettings(
    resend_after_seconds=30,
    result_grace_seconds=60,
    result_ttl_seconds=1000,
    orphan_after_seconds=400,
    start_seconds=5,
)
NOWHERE = Places(
    "redis://:hunter2hunter2@127.0.0.1:1/0",
    "amqp://guest:hunter2hunter2@127.0.0.1:1/",
    "postgresql://ann:hunter2hunter2@127.0.0.1:1/x",
)
"""Addresses where nothing listens."""


class ServiceWorld:
    """A client of each service. Without a `database_url` there is no jobs2."""

    def __init__(self, redis_url: str, rabbitmq_url: str, database_url: str = "") -> None:
        self.stack = ExitStack()
        self.clock = FakeClock()
        self.places = Places(redis_url, rabbitmq_url, database_url)
        self.store = JobStore(open_redis(redis_url), self.clock)
        self.stack.callback(self.store.client.close)
        self.objects = MemoryStore(self.clock)
        self.bucket: Bucket = MemoryBucket(self.objects)
        self.broker = self.opened(Broker(rabbitmq_url, TOPOLOGY, name="test"))
        self.broker.connect(30)
        self.table: JobTable | None = None
        if database_url:
            self.table = JobTable(database_url, self.clock)
            self.stack.callback(self.table.close)
            self.table.prepare()

    def opened(self, broker: Broker) -> Broker:
        broker.start()
        self.stack.callback(broker.close)
        return broker

    def services(self, settings: ImageJobSettings = SETTINGS, **others: Any) -> ImageServices:
        """Return the services, some of them replaced by `others`."""
        given = ImageServices(
            ImagesSettings(images=settings, places=self.places), self.store, self.bucket, self.broker, self.table
        )
        return given._replace(**others)

    def sweeper(self, settings: ImageJobSettings = SETTINGS, **others: Any) -> Sweeper:
        services = self.services(settings, **others)
        return Sweeper(services, CleanUp(services.store, services.bucket, services.table), self.clock)

    # --- jobs -------------------------------------------------------------------------------------------------------

    def job(self, prompt: str = "a red fox", *, job_type: str = JobType.TEXT, **fields: str) -> str:
        """Create a job without a message; return its id."""
        asked = TextRequest(prompt)
        job = ImageJob(str(uuid4()), "pending", job_type, "ann", text=asked)
        return self.store.create(job, {**text_fields(asked), **fields})

    def row(self, prompt: str = "a red fox", key: str = "") -> str:
        """Create a row of jobs2 and nothing else; return its id."""
        assert self.table
        return self.table.add(ImageJob(str(uuid4()), "pending", user_id="ann", text=TextRequest(prompt)), key)

    def ready(self, job_id: str = "") -> str:
        """Make a job ready, with its picture; without `job_id`, a new one."""
        job_id = job_id or self.job()
        self.claim(job_id)
        key = f"jobs/{job_id}/output.png"
        self.bucket.write(key, b"\x89PNG\r\n\x1a\n", ANY)
        self.store.end_ready(job_id, f"token {job_id}", key, "image/png", "A @ h:1")
        return job_id

    def failed(self, error: str = "it broke") -> str:
        job_id = self.job()
        self.bucket.write(f"jobs/{job_id}/input_person.png", b"\x89PNG\r\n\x1a\n", ANY)
        self.claim(job_id)
        self.store.end_failed(job_id, f"token {job_id}", error)
        return job_id

    def claim(self, job_id: str, silence_s: float = 60.0) -> None:
        self.store.claim(job_id, f"token {job_id}", silence_s, 5)

    # --- state ------------------------------------------------------------------------------------------------------

    def sets_of(self, job_id: str) -> list[str]:
        """Return the last part of the name of each set that contains the job."""
        names = [name for name in scripts.SETS if self.store.client.sismember(name, job_id)]
        return [name.rpartition(":")[2] for name in names]

    def depths(self) -> tuple[int, int]:
        """Return the number of messages in the queues of text and outfit jobs."""
        return self.broker.depth(TEXT_QUEUE), self.broker.depth(OUTFIT_QUEUE)

    def sent(self, queue: str = TEXT_QUEUE) -> list[str | None]:
        """Take all messages of the queue; return the ids of their jobs, sorted."""
        return sorted(job_id_of(body) or "" for body in self.broker.pull(queue, lambda _: True, 10_000))

    def keys(self) -> list[str]:
        """Return the keys of Redis, without those of the sweeper's turns."""
        return sorted(key for key in self.store.client.scan_iter() if not key.startswith("jobs:alone:"))

    def files(self) -> list[str]:
        return [entry.key for entry in self.bucket.list("")]

    def status(self, job_id: str) -> str:
        job = self.store.get(job_id)
        return job.status if job else ""

    def row_status(self, job_id: str) -> str:
        assert self.table
        row = self.table.get(job_id)
        return row.status if row else ""
