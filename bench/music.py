"""python -m bench.music bare|URL: serve the music API, or a bare FastAPI route, until stdin is closed.

The table compares the API with the bare route.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench.ledger import servers
from bench.pipelines import ROOT
from bench.table import markdown

PIPELINES = 10_000
ROUNDS, REQUESTS, CONNECTIONS = 7, 600, 8
KEY = "bench"
SHOW, RETRY = "GET /api/music/pipeline/{}", "POST /api/music/pipeline/{}/retry"


def music_table(folder: Path) -> str:
    rows = []
    with servers(folder) as places:
        for name, urls in places.items():
            fill(urls[-1])
            with served("bare") as bare, served(urls[-1]) as music:
                rates = measure({"bare": (bare, "GET /"), "show": (music, SHOW), "retry": (music, RETRY)})
            rows += [
                (f"{name}: {what}", f"{rates[key]:,.0f}", f"{rates['bare']:,.0f}", f"{rates[key] / rates['bare']:.2f}")
                for key, what in (("show", "GET /{id}, with its 6 attempts"), ("retry", "POST /{id}/retry, refused"))
            ]
    title = (
        f"The music API with {PIPELINES:,} pipelines, called over {CONNECTIONS} connections by a separate process; the "
        "reference is a bare FastAPI route (`def`, a dict of two keys) in the same server. Interleaved, medians of "
        f"{ROUNDS} rounds."
    )
    return markdown(title, ("requests/s", "music", "bare", "÷ bare"), rows)


def measure(asked: dict[str, tuple[int, str]]) -> dict[str, float]:
    """Return the requests per second, by name; the first round only fills caches."""
    found: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(ROUNDS + 1):
        for name, (port, request) in asked.items():
            found[name].append(asyncio.run(rate(port, request)))
    return {name: median(rates[1:]) for name, rates in found.items()}


async def rate(port: int, request: str) -> float:
    async def ask(first: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in range(first, REQUESTS, CONNECTIONS):
            line = request.format(1 + number * 7919 % PIPELINES)
            writer.write(f"{line} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
        writer.close()
        await writer.wait_closed()

    began = time.perf_counter()
    await asyncio.gather(*map(ask, range(CONNECTIONS)))
    return REQUESTS / (time.perf_counter() - began)


def fill(url: str) -> None:
    from sqlalchemy import insert

    from retake.clock import SystemClock
    from retake.music.database import open_music_database
    from retake.music.states import STEPS
    from retake.music.tables import pipeline_jobs, pipelines

    database = open_music_database(url, SystemClock())
    jobs = [{"step": step.value, "status": "succeeded"} for step in STEPS]
    with database.transaction() as cursor:
        for first in range(1, PIPELINES + 1, 100):
            numbers = range(first, first + 100)
            row = {"track_title": "Night Drive", "audio": "night.wav", "state": "published"}
            row["metadata_json"] = '{"title": "Night Drive", "description": "A drive at night.", "tags": ["night"]}'
            cursor.rows(insert(pipelines).values([row] * 100))
            cursor.rows(insert(pipeline_jobs).values([{**job, "pipeline_id": it} for it in numbers for job in jobs]))
    database.close()


@contextmanager
def served(what: str) -> Iterator[int]:
    """Run a server in a process of its own; yield its port."""
    command = [sys.executable, "-m", "bench.music", what]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        yield int(process.stdout.readline())
        process.stdin.close()
        process.wait(20)


def serve(what: str) -> None:
    import threading

    from retake.serving.server import ApiServer, listen

    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        announce = lambda: print(port, flush=True)  # noqa: E731
        app = bare_app() if what == "bare" else music(what)
        ApiServer(app, listener, signals=lambda: int(ended.is_set()), on_start=announce).serve_until_stopped()


def bare_app() -> object:
    from fastapi import FastAPI

    app = FastAPI()

    @app.get("/")
    def route() -> dict[str, object]:
        return {"ok": True, "state": "published"}

    return app


def music(url: str) -> object:
    from retake.bucket.memory import MemoryBucket
    from retake.clock import SystemClock
    from retake.music.actions import PipelineActions
    from retake.music.api import music_app
    from retake.music.database import open_music_database

    return music_app(PipelineActions(open_music_database(url, SystemClock())), MemoryBucket(), KEY)


if __name__ == "__main__":
    serve(sys.argv[1])
