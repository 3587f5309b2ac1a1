"""`retake images api` as a process: its start, its checks, its logs, its end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from images_world import ALICE, PNG, pictured
from local_servers import RunningServer
from waiting import eventually

from retake.bucket import ANY, open_bucket
from retake.clock import SystemClock
from retake.images import scripts
from retake.images.redis_calls import open_redis
from retake.images.store import JobStore

KEYS = f"alice={ALICE},*=another-key-of-all"


class ApiProcess:
    """The command, started in a folder of its own."""

    def __init__(self, folder: Path, environ: Mapping[str, str], *options: str) -> None:
        whole = {**{name: it for name, it in os.environ.items() if not name.startswith("RETAKE")}, **environ}
        command = [sys.executable, "-m", "retake", "images", "api", "--port", "0", *options]
        root = str(Path(__file__).parents[2])
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**whole, "PYTHONPATH": root},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def listening(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line.startswith("Listening on http://127.0.0.1:"), self.end()
        return line.split()[-1]

    def end(self, number: int = 0) -> tuple[int, str, str]:
        """Send a signal; return the exit code and both outputs."""
        if number:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


def configure(folder: Path, **images: float) -> None:
    """Write the settings of whatever is started in the folder from now on."""
    config = {"IMAGES": {"start_seconds": 60, "active_seconds": 0.05, "cache_ttl_seconds": 60, **images}}
    (folder / "config").mkdir(exist_ok=True)
    (folder / "config/config.json").write_text(json.dumps(config))


@pytest.fixture
def environ(redis_url: str, rabbitmq_url: str, tmp_path: Path) -> dict[str, str]:
    configure(tmp_path)
    return {
        "REDIS_URL": redis_url,
        "RABBITMQ_URL": rabbitmq_url,
        "IMAGES_STORAGE_URL": f"file:{tmp_path}/pictures",
        "IMAGES_KEYS": KEYS,
    }


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ApiProcess]]:
    started: list[ApiProcess] = []

    def begin(environ: Mapping[str, str], *options: str) -> ApiProcess:
        started.append(ApiProcess(tmp_path, environ, *options))
        return started[-1]

    yield begin
    for it in started:
        if it.process.poll() is None:
            it.process.kill()
        it.process.communicate(timeout=30)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_job_through_the_process_and_a_stop(
    environ: dict[str, str], start: Callable[..., ApiProcess], tmp_path: Path, number: int
) -> None:
    (tmp_path / ".env").write_text(f"IMAGES_KEYS={KEYS}\nREDIS_URL=redis://127.0.0.1:1/0\n")
    api = start({name: it for name, it in environ.items() if name != "IMAGES_KEYS"})  # the file has it
    store = JobStore(open_redis(environ["REDIS_URL"]), SystemClock())
    with httpx.Client(base_url=api.listening(), headers={"Authorization": f"Bearer {ALICE}"}, timeout=30) as client:
        made = [client.post("/jobsRedis", json={"userId": "alice", "prompt": "a fox"}) for _ in range(2)]
        first, second = (it.json()["jobId"] for it in made)
        bucket = open_bucket(environ["IMAGES_STORAGE_URL"])
        for job_id in (first, second):
            bucket.write(f"jobs/{job_id}/output.png", PNG, ANY)
            store.claim(job_id, "worker", 60, 5)
            store.end_ready(job_id, "worker", f"jobs/{job_id}/output.png", "image/png", "W @ 127.0.0.1:8188")
        assert pictured(client.get("/jobResult", params={"jobId": first})) == PNG
        eventually(lambda: client.get("/health").json()["dispatcher"]["cached"] == 2)
        code, _, err = api.end(number)
    assert code == 0, err
    assert set(store.client.smembers(scripts.READY)) == {first, second}  # type: ignore[arg-type]
    assert store.client.scard(scripts.CACHED) == 0
    assert ALICE not in err
    store.client.close()


def test_a_check_and_what_is_missing(environ: dict[str, str], start: Callable[..., ApiProcess], tmp_path: Path) -> None:
    code, out, err = start(environ, "--check").end()
    assert (code, out) == (0, ""), err
    code, _, err = start({}, "--check").end()
    assert code == 78
    for name in ("REDIS_URL", "RABBITMQ_URL", "IMAGES_STORAGE_URL", "IMAGES_KEYS"):
        assert name in err
    away = {
        **environ,
        "REDIS_URL": "redis://:secret-password@127.0.0.1:1/0",
        "RABBITMQ_URL": "amqp://user:secret-password@127.0.0.1:1/",
        "DATABASE_URL": "postgresql://user:secret-password@127.0.0.1:1/x",
    }
    configure(tmp_path, start_seconds=1)  # do not wait for what is away
    for options in (["--check"], []):
        code, out, err = start(away, *options).end()
        assert (code, out) == (75, "")
        for name in ("Redis", "RabbitMQ", "pg_isready"):
            assert name in err
        assert "secret-password" not in err


def test_a_check_makes_no_tables(environ: dict[str, str], start: Callable[..., ApiProcess], database_url: str) -> None:
    code, _, err = start({**environ, "DATABASE_URL": database_url}, "--check").end()
    assert code == 0, err
    with psycopg.connect(database_url) as database:
        assert database.execute("SELECT to_regclass('jobs2')").fetchone() == (None,)


def test_a_second_one_has_a_port_of_its_own(environ: dict[str, str], start: Callable[..., ApiProcess]) -> None:
    first = start(environ)
    port = first.listening().rpartition(":")[2]
    code, _, err = start(environ, "--port", port).end()
    assert code == 75
    assert "--port" in err


def test_logs_go_into_files_too(
    environ: dict[str, str], start: Callable[..., ApiProcess], redis_server: RunningServer, tmp_path: Path
) -> None:
    api = start(environ, "--logs", str(tmp_path / "logs"))
    base = api.listening()
    redis_server.kill()
    with httpx.Client(base_url=base, headers={"Authorization": f"Bearer {ALICE}"}, timeout=30) as client:
        job_id = "0b8f8a52-9d0b-4b53-9f5f-0242ac120002"
        assert client.get("/jobResult", params={"jobId": job_id}).status_code == 503
    redis_server.start()
    code, _, err = api.end(signal.SIGTERM)
    assert code == 0
    written = (tmp_path / "logs/combined.log").read_text()
    lines: list[dict[str, Any]] = [json.loads(line) for line in written.splitlines()]
    assert [it for it in lines if "Redis" in it["message"]]
    assert (tmp_path / "logs/error.log").exists()
    assert len(lines) == len(err.splitlines())
    assert ALICE not in written


def test_a_folder_for_logs_that_cannot_be_written_is_78(
    environ: dict[str, str], start: Callable[..., ApiProcess], tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("")
    code, _, err = start(environ, "--logs", str(tmp_path / "taken" / "logs")).end()
    assert code == 78
    assert "--logs" in err
