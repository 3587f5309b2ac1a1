"""The real service as a subprocess, against a sandbox in this process.

service = ServiceProcess(folder, sandbox.url, database_url)
service.start()
service.post("/api/music/pipeline", track_title="Paper Boats", audio="demo.wav")
service.kill()                          # SIGKILL; its work is resumed as soon as a service runs again
service.freeze()                        # SIGSTOP; the same, although it will wake (`thaw`)
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import update

from retake.clock import SystemClock
from retake.media.audio import demo_track
from retake.music.database import open_music_database
from retake.music.settings import MUSIC_KEYS
from retake.runs.tables import task_runs
from retake.sandbox import endpoints, music_endpoints

ROOT = Path(__file__).parents[2]
LONG_S = 60.0
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


class Answer(NamedTuple):
    status: int
    body: Any


class ServiceProcess:
    """A process of the service; several may share a folder, a sandbox and a database."""

    def __init__(self, folder: Path, sandbox_url: str, database: str, **music: Any) -> None:
        self.folder, self.url = folder, ""
        self.process: subprocess.Popen[str] | None = None
        self._database = database
        # On a busy machine a living step may send no heartbeat for seconds; for a dead one nobody waits (see `kill`).
        quick = {"stuck_seconds": 20, "poll_seconds": 0.2, "step_retry_backoff_sec": [0.1], "step_max_retries": 20}
        own = {"database": database, "audio_folder": str(folder), "port": 0, "upload_chunk_bytes": 262_144, **quick}
        document = {
            "STORAGE": {"url": f"file:{folder / 'bucket'}"},
            "API_KEYS": {**endpoints(sandbox_url), **music_endpoints(sandbox_url)},
            "MUSIC": {**own, **music},
        }
        self._config = folder / f"config-{time.monotonic_ns()}.json"
        self._config.write_text(json.dumps(document))
        keys = {variable: "key-for-tests" for variable, _ in MUSIC_KEYS.values()}
        self.environ = {"PATH": os.environ["PATH"], "RETAKE_CONFIG": str(self._config), **keys}
        self.environ["TELEGRAM_BOT_TOKEN"] = "1:token"
        if not (folder / "demo.wav").exists():
            demo_track(folder / "demo.wav", seconds=1)

    def start(self) -> "ServiceProcess":
        """Start it, and return when it serves."""
        log = (self.folder / "service.log").open("a")
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "music_service.py")],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        log.close()
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line.startswith("Listening on http://"), (line, self.log())
        self.url = line.split()[-1]
        return self

    def kill(self) -> None:
        """Kill it, as the kernel does when memory is short. All running steps then count as long silent, so the next
        service resumes them at once."""
        assert self.process
        self.process.kill()
        self._ended()
        self._fall_silent()

    def freeze(self) -> None:
        """Freeze it between two of its transactions: within one it would keep SQLite's lock from everybody. Its steps
        then count as long silent, as after `kill`."""
        assert self.process
        database = Path(self._database.removeprefix("sqlite:"))
        while True:
            self.process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)
            with closing(sqlite3.connect(database, timeout=0)) as other, suppress(sqlite3.OperationalError):
                other.execute("BEGIN EXCLUSIVE")
                break
            self.thaw()
        self._fall_silent()

    def thaw(self) -> None:
        assert self.process
        self.process.send_signal(signal.SIGCONT)

    def _fall_silent(self) -> None:
        database = open_music_database(self._database, SystemClock())
        try:
            with database.transaction() as cursor:
                heard = task_runs.c.heartbeat_at
                cursor.change(update(task_runs).where(heard.is_not(None)).values(heartbeat_at=LONG_AGO))
        finally:
            database.close()

    def stop(self) -> int:
        """Ask it to end; return its exit code."""
        assert self.process
        self.process.send_signal(signal.SIGTERM)
        return self._ended()

    def _ended(self) -> int:
        assert self.process
        code = self.process.wait(LONG_S)
        if self.process.stdout:
            self.process.stdout.close()
        return code

    def end(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.kill()
            self._ended()

    def get(self, path: str) -> Any:
        return self.ask("GET", path).body

    def post(self, path: str, **body: Any) -> Answer:
        return self.ask("POST", path, body)

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        headers = {"Authorization": "Bearer key-for-tests", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)  # noqa: S310  (our own http)
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(request, timeout=30) as reply:
                return Answer(reply.status, json.load(reply))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, json.load(error))

    def pipeline(self, number: int) -> dict[str, Any]:
        return dict(self.get(f"/api/music/pipeline/{number}"))

    def log(self) -> str:
        return (self.folder / "service.log").read_text()
