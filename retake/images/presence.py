"""The presence of workers: each sends heartbeats to a Redis key that expires when the worker is silent."""

import json
from typing import NamedTuple

from retake.images.redis_calls import RedisCalls, milliseconds
from retake.strict_json import parse

_PREFIX = "jobs:worker:"


class WorkerPresence(NamedTuple):
    """What a worker reports about itself."""

    name: str
    queue: str
    address: str  # host:port of its HTTP API
    consuming: bool = False
    job: str = ""  # the id of the job in progress
    since: str = ""  # when it started; ISO 8601, UTC
    comfyui: tuple[str, ...] = ()  # URLs of the servers that answer it
    waits: str = ""  # why its job waits


class Presence:
    """The workers by name. Every method may raise RedisAway.

    presence = Presence(store)
    presence.tell(WorkerPresence("A", "TextQueue", "127.0.0.1:8090"), ttl_s=30)
    """

    def __init__(self, calls: RedisCalls) -> None:
        self._calls = calls

    def tell(self, worker: WorkerPresence, ttl_s: float) -> None:
        """Record that this worker is present, for `ttl_s` seconds."""
        report = json.dumps(worker._asdict())
        self._calls.ask(lambda: self._calls.client.set(_PREFIX + worker.name, report, px=milliseconds(ttl_s)))

    def forget(self, name: str) -> None:
        """Record that this worker has ended."""
        self._calls.ask(lambda: self._calls.client.delete(_PREFIX + name))

    def all(self) -> list[WorkerPresence]:
        """Return the workers, by name. It scans all keys of Redis, so it is for people, not for each request."""
        client = self._calls.client
        names = sorted(self._calls.ask(lambda: list(client.scan_iter(match=f"{_PREFIX}*", count=1000))))
        reports = self._calls.ask(lambda: client.mget(names)) if names else []
        return [worker for text in reports if (worker := _worker(text))]


def _worker(text: str | None) -> WorkerPresence | None:
    """Parse a worker's report; None if it has expired in the meantime, or is not ours."""
    try:
        report = parse(text or "")
    except ValueError:
        return None
    if not isinstance(report, dict) or not isinstance(report.get("name"), str):
        return None
    texts = {name: str(report.get(name) or "") for name in ("name", "queue", "address", "job", "since", "waits")}
    alive = report.get("comfyui")
    servers = tuple(str(it) for it in alive) if isinstance(alive, list) else ()
    return WorkerPresence(**texts, consuming=report.get("consuming") is True, comfyui=servers)
