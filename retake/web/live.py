"""Server-sent events that tell browsers when something has changed, from one look at the bucket for all viewers."""

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from logging import getLogger

from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from retake.alerts.board import encoded
from retake.alerts.store import BoardStore
from retake.errors import RetakeError, StateError
from retake.operations.modes import ModePanel
from retake.operations.pipelines import ROOT, Operations
from retake.operations.port import OperatedPipeline
from retake.operations.status import StatusReport
from retake.web.shelf import REST_FACTOR

COMMENT_S = 15.0
"""Seconds between comment lines, which keep proxies from closing an idle connection."""

MAX_VIEWERS = 500

_MAX_QUEUED = 8  # events per viewer; the oldest is dropped for a new one

_log = getLogger(__name__)

Fingerprint = Mapping[str, str]
"""For each thing that may change, by name, a text that changes with it."""


class Live:
    """Calls `look` every `seconds` while somebody watches. At a change it calls `on_change` and sends the viewers the
    names of what changed.

    Everything asynchronous belongs to one event loop, the server's.
    """

    def __init__(self, look: Callable[[], Fingerprint], seconds: float, on_change: Callable[[], None]) -> None:
        self._look, self._seconds, self._on_change = look, seconds, on_change
        self._viewers: set[asyncio.Queue[str | None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched = threading.Event()
        self._hurry = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None

    async def events(self) -> AsyncIterator[str]:
        """Yield events in the text/event-stream format until the dashboard stops."""
        queue: asyncio.Queue[str | None] = asyncio.Queue(_MAX_QUEUED)
        self._join(queue)
        try:
            yield "retry: 3000\n: hello\n\n"
            while not self._closing:
                try:
                    names = await asyncio.wait_for(queue.get(), COMMENT_S)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                if names is None:
                    return
                yield f"event: changed\ndata: {names}\n\n"
        finally:
            self._viewers.discard(queue)
            if not self._viewers:
                self._watched.clear()

    def look_now(self) -> None:
        """Look immediately, because an action has changed something."""
        self._hurry.set()

    def close(self) -> None:
        """End every viewer's events. May be called from any thread."""
        self._closing = True
        self._watched.set()
        self._hurry.set()
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended already
                self._loop.call_soon_threadsafe(self._notify, None)

    @property
    def full(self) -> bool:
        """Whether the maximum number of viewers is reached."""
        return len(self._viewers) >= MAX_VIEWERS

    def _join(self, queue: "asyncio.Queue[str | None]") -> None:
        self._loop = asyncio.get_running_loop()
        self._viewers.add(queue)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dashboard live", daemon=True)
            self._thread.start()
        self._watched.set()

    def _notify(self, names: str | None) -> None:
        for queue in self._viewers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(names)

    def _run(self) -> None:
        last: Fingerprint | None = None
        while not self._closing:
            self._watched.wait()
            began = time.monotonic()
            try:
                last = self._look_once(last)
            except Exception:  # noqa: BLE001  a bug in one look must not end the thread
                _log.exception("this is a bug in Retake; the dashboard continues")
            self._hurry.clear()
            self._hurry.wait(max(self._seconds, REST_FACTOR * (time.monotonic() - began)))

    def _look_once(self, last: Fingerprint | None) -> Fingerprint:
        """Look once, notify the viewers of what differs from `last`, and return the new fingerprint."""
        found = self._try_look(last)
        changed = sorted(name for name in found if last is not None and found[name] != last.get(name))
        if changed and self._loop is not None and not self._closing:
            self._on_change()
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._notify, " ".join(changed))
        return found

    def _try_look(self, last: Fingerprint | None) -> Fingerprint:
        try:
            return {**self._look(), "bucket": "there"}
        except RetakeError as error:
            if (last or {}).get("bucket") != "away":
                _log.warning("the bucket cannot be read: %s", error)
            return {**(last or {}), "bucket": "away"}


def live_routes(live: Live) -> APIRouter:
    """Return the route /events."""
    router = APIRouter()

    @router.get("/events")
    async def events() -> StreamingResponse:
        if live.full:
            return StreamingResponse(iter(["retry: 30000\n\n"]), 503, media_type="text/event-stream")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(live.events(), media_type="text/event-stream", headers=headers)

    return router


def fingerprint(operations: Operations, status: StatusReport) -> Fingerprint:
    """Return digests of what the pages show. Raises StorageError."""
    document = status.document()
    pipelines = document["pipelines"]
    board, panel = BoardStore(operations.bucket, operations.clock), ModePanel(operations)
    return {
        "status": _digest([pipelines, document["caps"]]),
        "runs": _digest([[[it["runs"], it["status"], it["attempt"]] for it in pipelines], _last_runs(operations)]),
        "dead-letters": _digest([it["dead_letters"] for it in pipelines]),
        "spend": _digest([it["spend_today"] for it in pipelines]),
        "breakers": _digest(document["breakers"]),
        "alerts": _digest(_found_or_fault(lambda: encoded(board.read()))),
        "mode": _digest(_found_or_fault(lambda: panel.document(panel.state()))),
    }


def _last_runs(operations: Operations) -> list[object]:
    """Return the last changed run of each ledger, which may be that of a worker or robot outside the pipelines.

    With several channels, the ledgers in their parts of a bucket are left out, because each takes requests of its own.
    """
    alone = len(operations.pipelines) == 1
    return [
        _last_run(operations, it)
        for it in operations.writers()
        if alone or operations.ledger_url(it) or it.name == ROOT
    ]


def _last_run(operations: Operations, pipeline: OperatedPipeline) -> object:
    try:
        return operations.ledger(pipeline).runs(limit=1)
    except RetakeError as error:  # the status shows it
        return str(error)


def _found_or_fault(read: Callable[[], object]) -> object:
    """Return what is read, or what is wrong with its document. An invalid document is a change like any other; it does
    not mean that the bucket is unreachable."""
    try:
        return read()
    except StateError as error:
        return str(error)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
