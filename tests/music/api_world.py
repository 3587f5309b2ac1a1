"""The API over real HTTP on an empty database, and a person's view of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from served_app import served_app
from sqlalchemy import delete, insert, text, update

from retake.bucket import ANY
from retake.bucket.memory import MemoryBucket
from retake.clock import SystemClock
from retake.music.actions import PipelineActions
from retake.music.api import PREFIX, Webhook, music_app
from retake.music.database import open_music_database
from retake.music.tables import metadata, pipeline_jobs, pipelines
from retake.runs.tables import events, task_runs

KEY = "a-key-for-the-api"
HOOK_SECRET = "a-secret-of-the-hook"


class ApiWorld:
    """A service without workers, called over HTTP. `woken` counts how often workers would have been woken."""

    def __init__(self, url: str) -> None:
        self.database = open_music_database(url, SystemClock())
        self.store = PipelineActions(self.database, uploads_per_day=100)
        self.bucket = MemoryBucket()
        self.woken = 0
        self.updates: list[object] = []
        self.on_update: Callable[[object], None] = self.updates.append
        self.base = ""

    def wake(self) -> None:
        self.woken += 1

    def app(self, *, hook: bool = True) -> Any:
        webhook = Webhook(HOOK_SECRET, lambda update: self.on_update(update)) if hook else None
        return music_app(self.store, self.bucket, KEY, wake=self.wake, webhook=webhook)

    @contextmanager
    def serving(self, *, hook: bool = True) -> Iterator["ApiWorld"]:
        headers = {"Authorization": f"Bearer {KEY}"}
        with (
            served_app(self.app(hook=hook)) as self.base,
            httpx.Client(base_url=self.base, headers=headers, timeout=30) as self.http,
        ):
            yield self

    def close(self) -> None:
        self.database.close()

    def begin_anew(self) -> None:
        """Delete everything, for the next test."""
        self.woken, self.store._uploads_per_day, self.on_update = 0, 100, self.updates.append
        self.updates.clear()
        for entry in self.bucket.list(""):
            self.bucket.delete(entry.key)
        tables = [*reversed(metadata.sorted_tables), events, task_runs]
        with self.database.transaction() as cursor:
            if self.database.database.dialect.name == "postgresql":
                cursor.change(text(f"TRUNCATE {', '.join(it.name for it in tables)} RESTART IDENTITY"))
                return
            for table in tables:
                cursor.change(delete(table))
            cursor.change(text("DELETE FROM sqlite_sequence"))

    # --- requests -----------------------------------------------------------------------------------------------

    def get(self, path: object = "", **options: Any) -> httpx.Response:
        return self.http.get(_path(path), **options)

    def post(self, path: object = "", body: Any = None, **options: Any) -> httpx.Response:
        return self.http.post(_path(path), **({} if body is None else {"json": body}), **options)

    def begin(self, **fields: Any) -> int:
        """Begin a pipeline and return its id."""
        found = self.post(body={"track_title": "Night Drive", "audio": "night.wav", **fields})
        assert found.status_code == 201, found.text
        return int(found.json()["id"])

    def shown(self, number: int) -> dict[str, Any]:
        return dict(self.get(number).json())

    # --- what other programs do -------------------------------------------------------------------------------------

    def put(self, state: str, **columns: Any) -> int:
        """Create a pipeline in this state, as if it had come that far; return its id."""
        with self.database.transaction() as cursor:
            values = {"track_title": "Night Drive", "audio": "night.wav", "state": state, "run_number": 1, **columns}
            row = cursor.row(insert(pipelines).values(values).returning(pipelines.c.id))
        assert row
        return int(row[0])

    def job(self, number: int, step: str, status: str = "succeeded", **columns: Any) -> int:
        """Create an attempt; return its id."""
        with self.database.transaction() as cursor:
            values = {"pipeline_id": number, "step": step, "status": status, **columns}
            row = cursor.row(insert(pipeline_jobs).values(values).returning(pipeline_jobs.c.id))
        assert row
        return int(row[0])

    def set(self, number: int, **columns: Any) -> None:
        with self.database.transaction() as cursor:
            cursor.change(update(pipelines).where(pipelines.c.id == number).values(columns))

    def keep(self, number: int, name: str, data: bytes) -> None:
        self.bucket.write(f"music/{number}/{name}", data, ANY)


@contextmanager
def served(url: str) -> Iterator[ApiWorld]:
    """Serve the API over HTTP with its database at `url`."""
    world = ApiWorld(url)
    try:
        with world.serving():
            yield world
    finally:
        world.close()


def _path(path: object) -> str:
    return f"{PREFIX}/{path}" if path != "" else PREFIX
