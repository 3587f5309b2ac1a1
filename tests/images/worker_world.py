"""Workers in this process: real Redis and RabbitMQ, stand-ins for ComfyUI over HTTP, and a bucket in a directory."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BytesIO
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any
from uuid import uuid4

import waiting
from PIL import Image

from retake.bucket import ANY, Bucket
from retake.bucket.directory import DirectoryBucket
from retake.clock import SystemClock
from retake.images.comfyui_servers import ComfyServers
from retake.images.execution import ExecutionContext
from retake.images.graphs import load_graphs
from retake.images.jobs import ImageJob, JobStatus, JobType, TextRequest, text_fields
from retake.images.messages import DEAD_QUEUE, TEXT_QUEUE, TOPOLOGY, publish
from retake.images.redis_calls import RedisAway, open_redis
from retake.images.settings import ImageJobSettings
from retake.images.store import JobStore
from retake.images.worker import QueueWorker
from retake.rabbit.broker import Broker, BrokerAway
from retake.sandbox.comfyui import ComfySandbox
from retake.vendors.comfyui import ComfyUI

LONG_S = 120.0  # a guard against hanging, not a measurement
SMALL = {"width": 64, "height": 64}

QUICK = ImageJobSettings(
    comfyui_check_seconds=0.2,
    comfyui_timeout_seconds=20,
    worker_silence_seconds=2,
    retry_seconds=0.05,
    task_execution_max_retries=2,
    delivery_limit=3,
)


def eventually(look: Callable[[], Any]) -> Any:
    """Wait like `waiting.eventually`, but ask a server that is away again."""

    def patient() -> Any:
        with suppress(RedisAway, BrokerAway):
            return look()

    return waiting.eventually(patient)


def picture(colour: str = "red") -> bytes:
    out = BytesIO()
    Image.new("RGB", (32, 32), colour).save(out, "PNG")
    return out.getvalue()


class WorkerWorld:
    """Shared by workers and the creators of jobs. `comfyui` starts ComfyUI servers."""

    def __init__(self, redis_url: str, rabbitmq_url: str, folder: Path) -> None:
        self.redis_url, self.rabbitmq_url, self.folder = redis_url, rabbitmq_url, folder
        self.stack = ExitStack()
        self.store = JobStore(open_redis(redis_url), SystemClock())
        self.stack.callback(self.store.client.close)
        self.bucket: Bucket = DirectoryBucket(str(folder / "bucket"))
        self.broker = self.connected("tests")
        self.sandboxes: list[ComfySandbox] = []

    def connected(self, name: str) -> Broker:
        broker = Broker(self.rabbitmq_url, TOPOLOGY, name=name)
        broker.start()
        self.stack.callback(broker.close)
        broker.connect(LONG_S)
        return broker

    def comfyui(self, pace: float = 0.0) -> ComfySandbox:
        """Start a stand-in for ComfyUI."""
        sandbox = self.stack.enter_context(ComfySandbox(pace=pace))
        self.sandboxes.append(sandbox)
        return sandbox

    def executions(self) -> dict[str, int]:
        """Return how often each prompt was executed, on all servers."""
        counted: dict[str, int] = {}
        for sandbox in self.sandboxes:
            for prompt_id, n in sandbox.executions().items():
                counted[prompt_id] = counted.get(prompt_id, 0) + n
        return counted

    # --- jobs -------------------------------------------------------------------------------------------------------

    def job(self, prompt: str = "a red fox", *, send: int = 1, **asked: Any) -> str:
        """Create a text job and send so many messages for it; return its id."""
        text = TextRequest(prompt, **{**SMALL, **asked})
        job = ImageJob(str(uuid4()), JobStatus.PENDING, JobType.TEXT, "alice", text=text)
        self.store.create(job, text_fields(text))
        for _ in range(send):
            self.send(job)
        return job.job_id

    def outfit(self, *, person: bytes | None = None, garment: bytes | None = None, send: bool = True) -> str:
        """Create an outfit job with the given pictures and send it; return its id."""
        job_id = str(uuid4())
        fields = {f"{it}_image_r2_key": f"jobs/{job_id}/input_{it}.png" for it in ("person", "garment")}
        for which, data in (("person", person), ("garment", garment)):
            if data is not None:
                self.bucket.write(fields[f"{which}_image_r2_key"], data, ANY)
        job = ImageJob(job_id, JobStatus.PENDING, JobType.OUTFIT, "alice")
        self.store.create(job, fields)
        if send:
            self.send(job)
        return job_id

    def send(self, job: ImageJob) -> None:
        publish(self.broker, job)

    def sent(self, job: ImageJob) -> bool:
        self.send(job)
        return True

    def stands(self, job_id: str) -> str:
        job = self.store.get(job_id)
        return job.status if job else "gone"

    def ended(self, job_id: str) -> ImageJob:
        """Wait until the job is ready or failed."""
        eventually(lambda: self.stands(job_id) in (JobStatus.READY, JobStatus.FAILED))
        found = self.store.get(job_id)
        assert found
        return found

    def output(self, job_id: str) -> Any:
        """Return the graph that produced the job's picture."""
        job = self.store.get(job_id)
        assert job
        assert job.status == JobStatus.READY, job
        data, _ = self.bucket.read(job.output_r2_key)
        with Image.open(BytesIO(data)) as opened:
            return json.loads(opened.text["prompt"])  # type: ignore[attr-defined]

    def dead(self) -> int:
        return self.broker.depth(DEAD_QUEUE)

    # --- workers ----------------------------------------------------------------------------------------------------

    def servers(self, *urls: str, **more: Any) -> ComfyServers:
        servers = ComfyServers(urls or [it.url for it in self.sandboxes], client=_client, **more)
        servers.check()
        return servers

    def context(self, name: str = "Worker-A", servers: ComfyServers | None = None, **settings: Any) -> ExecutionContext:
        chosen = QUICK._replace(**settings)
        return ExecutionContext(name, chosen, self.bucket, servers or self.servers(), load_graphs(), Random(7))

    def worker(
        self, name: str = "Worker-A", queue: str = TEXT_QUEUE, context: ExecutionContext | None = None, **settings: Any
    ) -> QueueWorker:
        """Return a worker that is not running yet."""
        return QueueWorker(context or self.context(name, **settings), self.store, self.connected(name), queue)

    @contextmanager
    def running(self, *arguments: Any, drain_s: float = 0.0, **settings: Any) -> Iterator[QueueWorker]:
        """Run a worker during the block, and what looks for servers."""
        worker = self.worker(*arguments, **settings)
        with running(worker, drain_s):
            yield worker

    def close(self) -> None:
        self.stack.close()


@contextmanager
def running(worker: QueueWorker, drain_s: float = 0.0) -> Iterator[None]:
    """Run a worker during the block."""
    checking = [True]

    def check() -> None:
        while checking:
            worker.context.servers.check()
            time.sleep(0.1)

    threads = [Thread(target=worker.run, daemon=True), Thread(target=check, daemon=True)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        worker.stop(drain_s)
        checking.clear()
        for thread in threads:
            thread.join(LONG_S)
            assert not thread.is_alive()


def _client(url: str) -> ComfyUI:
    return ComfyUI(url, timeout_s=3.0)
