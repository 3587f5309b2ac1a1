"""The image-job service from POST to result, and a bare loop of the same calls. python -m bench images

python -m bench.images loop PARAMETERS runs one bare loop: the calls of API and worker to Redis, RabbitMQ, ComfyUI and
the bucket, for one job after another, with the same libraries but without anything that makes them safe.
"""

import base64
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.pipelines import ROOT
from bench.table import markdown

if TYPE_CHECKING:
    from retake.images.up.servers import LocalServer

WORKERS = (1, 2, 4)
JOBS = 40  # per worker or loop
PACE_S = 0.1  # how long one execution takes on the stand-in for ComfyUI
SIZE = 256  # pixels
POLL_S = 0.02  # between a client's requests for its result
KEY = "bench-key"


class Rates(NamedTuple):
    """The results of one measurement."""

    jobs_per_s: float
    p50_s: float
    p99_s: float


class Services(NamedTuple):
    """The servers' URLs."""

    redis: str
    rabbitmq: str
    comfyui: Sequence[str]  # one for each worker: a server executes one prompt at a time


def images_table(folder: Path) -> str:
    rows = []
    with services(folder, max(WORKERS)) as places:
        for workers in WORKERS:
            bare = bare_rates(folder, places, workers)
            ours = service_rates(folder, places, workers)
            rows.append(
                (
                    str(workers),
                    *(f"{rate.jobs_per_s:.1f}" for rate in (ours, bare)),
                    f"{ours.jobs_per_s / bare.jobs_per_s:.2f}",
                    *(f"{1000 * rate.p50_s:,.0f} ms" for rate in (ours, bare)),
                    *(f"{1000 * rate.p99_s:,.0f} ms" for rate in (ours, bare)),
                )
            )
    title = (
        f"Image jobs from POST to result: {JOBS} per client, with as many clients and stand-ins for ComfyUI "
        f"({PACE_S:g} s per execution, {SIZE} × {SIZE} pixels) as workers; the reference is as many bare loops of the "
        "same calls, including ComfyUI's, in processes of their own. One API, a bucket in a directory."
    )
    head = ("workers", "jobs/s", "bare", "÷ bare", "p50", "bare", "p99", "bare")
    return markdown(title, head, rows)


# --- the service ----------------------------------------------------------------------------------------------------


def service_rates(folder: Path, places: Services, workers: int) -> Rates:
    """Return the rates of the real API and workers."""
    config = folder / "config.json"
    config.write_text(json.dumps({"IMAGES": {"rate_per_minute": 1_000_000, "result_grace_seconds": 1}}))
    environ = {
        "RETAKE_CONFIG": str(config),
        "REDIS_URL": places.redis,
        "RABBITMQ_URL": places.rabbitmq,
        "IMAGES_STORAGE_URL": f"file:{folder}/bucket-{workers}",
        "IMAGES_KEYS": f"*={KEY}",
    }
    with ExitStack() as stack:
        api = stack.enter_context(started(environ, "-m", "retake", "images", "api", "--port", "0"))
        url = str(api.stdout.readline()).split()[-1] if api.stdout else ""
        for number in range(workers):
            mine = {**environ, "RETAKE_COMFYUI_URLS": places.comfyui[number]}
            name = ("--queue", "TextQueue", "--name", f"bench-{number}", "--port", "0")
            worker = stack.enter_context(started(mine, "-m", "retake", "images", "worker", *name))
            assert worker.stdout
            worker.stdout.readline()
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(lambda it: client(url, it, 2), range(workers)))  # warm up
            began = time.perf_counter()
            seconds = [it for each in pool.map(lambda it: client(url, it, JOBS), range(workers)) for it in each]
        return rates(seconds, time.perf_counter() - began)


def client(url: str, number: int, jobs: int) -> list[float]:
    """Do one job after another; return each one's seconds from POST to result."""
    import requests

    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {KEY}"
    seconds = []
    for count in range(jobs):
        began = time.perf_counter()
        asked = {"userId": f"user-{number}", "prompt": f"Job {count}", "width": SIZE, "height": SIZE, "seed": count}
        job_id = session.post(f"{url}/jobsRedis", json=asked, timeout=30).json()["jobId"]
        while (answer := session.get(f"{url}/jobResult", params={"jobId": job_id}, timeout=30)).status_code == 202:
            time.sleep(POLL_S)
        result = answer.json()
        assert result["status"] == "completed", result
        base64.b64decode(result["image_data_base64"])
        seconds.append(time.perf_counter() - began)
    return seconds


# --- the bare loop --------------------------------------------------------------------------------------------------


def bare_rates(folder: Path, places: Services, loops: int) -> Rates:
    """Return the rates of bare loops, each in a process of its own."""
    with ExitStack() as stack:
        processes = []
        for number in range(loops):
            parameters = json.dumps(
                {"redis": places.redis, "rabbitmq": places.rabbitmq, "comfyui": places.comfyui[number],
                 "folder": str(folder / f"bare-{loops}-{number}"), "number": number}
            )  # fmt: skip
            processes.append(stack.enter_context(started({}, "-m", "bench.images", "loop", parameters)))
        for process in processes:
            assert process.stdout
            process.stdout.readline()  # it has warmed up
        began = time.perf_counter()
        for process in processes:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        lists = [json.loads(process.stdout.readline()) for process in processes if process.stdout]
        return rates([it for seconds in lists for it in seconds], time.perf_counter() - began)


async def loop(parameters: dict[str, Any]) -> None:
    """Warm up and print a line; after a line on stdin, do JOBS jobs and print their seconds as JSON."""
    import asyncio

    import aio_pika
    import redis

    store = redis.Redis.from_url(parameters["redis"], decode_responses=True)
    folder = Path(parameters["folder"])
    folder.mkdir()
    connection = await aio_pika.connect(parameters["rabbitmq"])
    channel = await connection.channel(publisher_confirms=True)
    queue = await channel.declare_queue(
        f"bench-{parameters['number']}", durable=True, arguments={"x-queue-type": "quorum"}, auto_delete=False
    )
    arrived: asyncio.Queue[Any] = asyncio.Queue()
    await channel.set_qos(prefetch_count=1)
    await queue.consume(arrived.put)

    async def one(count: int) -> float:
        began = time.perf_counter()
        job_id = str(uuid.uuid4())
        asked = {"prompt": f"Job {count}", "width": SIZE, "height": SIZE, "seed": count}
        with store.pipeline() as pipe:
            pipe.hset(job_id, mapping={"status": "pending", **asked}).sadd("bare:pending", job_id).execute()
        message = aio_pika.Message(
            json.dumps({"job_id": job_id, **asked}).encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT
        )
        await channel.default_exchange.publish(message, queue.name)
        got = await arrived.get()
        store.hset(job_id, mapping={"status": "waiting_comfyui"})
        picture = execute(
            parameters["comfyui"], job_id, asked, lambda: store.hset(job_id, "status", "processing_comfyui")
        )
        path = folder / f"{job_id}.png"
        with path.open("wb") as file:
            file.write(picture)
            os.fsync(file.fileno())
        with store.pipeline() as pipe:
            pipe.hset(job_id, "status", "ready").srem("bare:pending", job_id).sadd("bare:ready", job_id).execute()
        await got.ack()
        store.hgetall(job_id)
        json.dumps({"status": "completed", "image_data_base64": base64.b64encode(path.read_bytes()).decode()})
        with store.pipeline() as pipe:
            pipe.delete(job_id).srem("bare:ready", job_id).execute()
        path.unlink()
        return time.perf_counter() - began

    for count in range(2):
        await one(count)
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps([await one(count) for count in range(JOBS)]), flush=True)
    await queue.delete(if_empty=False, if_unused=False)
    await connection.close()


def execute(url: str, prompt_id: str, asked: dict[str, Any], before: Any) -> bytes:
    """Return the picture of one prompt: open a WebSocket, POST, wait for the end, get the history and the file."""
    import requests
    from websockets.sync.client import connect

    from retake.images.graphs import load_graphs
    from retake.images.jobs import ImageJob, TextRequest

    graph = load_graphs().of_text(ImageJob(prompt_id, "pending", text=TextRequest(**asked)), 1)
    with connect(f"ws{url.removeprefix('http')}/ws?clientId={prompt_id}") as events, requests.Session() as session:
        before()
        session.post(f"{url}/prompt", json={"prompt": graph, "prompt_id": prompt_id, "client_id": prompt_id}, timeout=9)
        while True:
            event = events.recv()
            message = json.loads(event) if isinstance(event, str) else {}
            if message.get("type") == "executing" and message["data"]["node"] is None:
                break
        entry = session.get(f"{url}/history/{prompt_id}", timeout=9).json()[prompt_id]
        file = next(it for node in entry["outputs"].values() for it in node["images"])
        return bytes(session.get(f"{url}/view", params=file, timeout=9).content)


# --- shared ---------------------------------------------------------------------------------------------------------


@contextmanager
def services(folder: Path, comfyui: int) -> Iterator[Services]:
    """Run a Redis and a RabbitMQ like those of `images up`, and `comfyui` stand-ins for ComfyUI."""
    from retake.images.up.folder import DataFolder
    from retake.images.up.programs import Programs
    from retake.images.up.rabbit_server import RabbitServer
    from retake.images.up.redis_server import RedisServer

    with ExitStack() as stack:
        place, programs = DataFolder(folder / "servers"), Programs(os.environ)
        urls = [stack.enter_context(running(kind(place, programs, os.environ))) for kind in (RedisServer, RabbitServer)]
        stand_in = ("-m", "retake.sandbox", "comfyui", "--pace", str(PACE_S))
        stand_ins = [stack.enter_context(started({"PYTHONUNBUFFERED": "1"}, *stand_in)) for _ in range(comfyui)]
        places = [it.stdout.readline().split()[-1] for it in stand_ins if it.stdout]
        for it in stand_ins:  # each prints every call, and would block once the pipe is full
            threading.Thread(target=lambda lines: deque(lines, maxlen=0), args=(it.stdout,), daemon=True).start()
        yield Services(*urls, places)


@contextmanager
def running(server: "LocalServer") -> Iterator[str]:
    """Run a server; yield its URL."""
    from retake.images.up.children import Child

    server.prepare()
    children = [Child(command) for command in server.commands()]
    try:
        for child in children:
            child.start()
            while not child.command.ready():
                time.sleep(0.05)
        yield server.url
    finally:
        for child in reversed(children):
            child.kill()


def rates(seconds: Sequence[float], wall_s: float) -> Rates:
    cuts = quantiles(seconds, n=100)
    return Rates(len(seconds) / wall_s, cuts[49], cuts[98])


@contextmanager
def started(environ: dict[str, str], *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a Python process, and end it afterwards."""
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, env={**os.environ, **environ}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=30)


if __name__ == "__main__":
    import asyncio

    asyncio.run(loop(json.loads(sys.argv[2])))
