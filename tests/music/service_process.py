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
import time
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from served_program import ROOT, Answer, ServedProgram
from sqlalchemy import update

from retake.clock import SystemClock
from retake.media.audio import demo_track
from retake.music.database import open_music_database
from retake.music.settings import MUSIC_KEYS
from retake.runs.tables import task_runs
from retake.sandbox import endpoints, music_endpoints

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


class ServiceProcess(ServedProgram):
    """A process of the service; several may share a folder, a sandbox and a database."""

    def __init__(self, folder: Path, sandbox_url: str, database: str, **music: Any) -> None:
        self._database = database
        # On a busy machine a living step may send no heartbeat for seconds; for a dead one nobody waits (see `kill`).
        quick = {"stuck_seconds": 20, "poll_seconds": 0.2, "step_retry_backoff_sec": [0.1], "step_max_retries": 20}
        own = {"database": database, "audio_folder": str(folder), "port": 0, "upload_chunk_bytes": 262_144, **quick}
        document = {
            "STORAGE": {"url": f"file:{folder / 'bucket'}"},
            "API_KEYS": {**endpoints(sandbox_url), **music_endpoints(sandbox_url)},
            "MUSIC": {**own, **music},
        }
        config = folder / f"config-{time.monotonic_ns()}.json"
        config.write_text(json.dumps(document))
        environ = {variable: "key-for-tests" for variable, _ in MUSIC_KEYS.values()}
        environ |= {"PATH": os.environ["PATH"], "RETAKE_CONFIG": str(config), "TELEGRAM_BOT_TOKEN": "1:token"}
        super().__init__([str(ROOT / "music_service.py")], folder, environ, log="service.log", key="key-for-tests")
        if not (folder / "demo.wav").exists():
            demo_track(folder / "demo.wav", seconds=1)

    def kill(self) -> None:
        """Kill it, as the kernel does when memory is short. All running steps then count as long silent, so the next
        service resumes them at once."""
        super().kill()
        self._fall_silent()

    def freeze(self) -> None:
        """Freeze it between two of its transactions: within one it would keep SQLite's lock from everybody. Its steps
        then count as long silent, as after `kill`."""
        assert self.process
        database = Path(self._database.removeprefix("sqlite:"))
        while True:
            self.signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)
            with closing(sqlite3.connect(database, timeout=0)) as other, suppress(sqlite3.OperationalError):
                other.execute("BEGIN EXCLUSIVE")
                break
            self.thaw()
        self._fall_silent()

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def _fall_silent(self) -> None:
        database = open_music_database(self._database, SystemClock())
        try:
            with database.transaction() as cursor:
                heard = task_runs.c.heartbeat_at
                cursor.change(update(task_runs).where(heard.is_not(None)).values(heartbeat_at=LONG_AGO))
        finally:
            database.close()

    def end(self) -> None:
        super().kill()

    def get(self, path: str) -> Any:
        return self.ask("GET", path).body

    def post(self, path: str, **body: Any) -> Answer:
        return self.ask("POST", path, body)

    def pipeline(self, number: int) -> dict[str, Any]:
        return dict(self.get(f"/api/music/pipeline/{number}"))
