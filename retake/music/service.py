"""The music service as one process: the API, and what works in the background."""

import sys
import time
from collections.abc import Callable, Sequence
from logging import getLogger
from typing import NamedTuple, TextIO

from retake.bucket import Bucket
from retake.bucket.configured import open_configured
from retake.clock import Clock, SystemClock
from retake.exit_codes import ExitCode
from retake.music.api import Webhook, music_app
from retake.music.background import Background
from retake.music.database import MusicDatabase, open_music_database
from retake.music.server import ApiServer, address_of, listen
from retake.music.settings import MusicKeys, MusicSettings
from retake.music.store import PipelineStore

STOP_S = 8.0
"""Seconds after a signal within which the background ends; what has not is picked up at the next start."""

_log = getLogger(__name__)


class Parts(NamedTuple):
    """What the parts of the service share."""

    settings: MusicSettings
    keys: MusicKeys
    database: MusicDatabase
    store: PipelineStore
    bucket: Bucket
    clock: Clock
    stopping: Callable[[], bool]


class Work(NamedTuple):
    """What a service does besides answering requests."""

    backgrounds: Sequence[Background] = ()
    wake: Callable[[], None] = lambda: None  # a step has been started
    webhook: Webhook | None = None


def open_parts(settings: MusicSettings, keys: MusicKeys, stopping: Callable[[], bool]) -> Parts:
    """Open the database and the bucket. Raises SettingsError, StateError, StorageError."""
    clock, music = SystemClock(), settings.music
    database = open_music_database(music.database, clock)
    store = PipelineStore(database, uploads_per_day=music.uploads_per_day, telling=music.telegram != "off")
    bucket = open_configured(settings.storage, settings.workflow)
    return Parts(settings, keys, database, store, bucket, clock, stopping)


def work_of(parts: Parts) -> Work:
    """Return what works in the background."""
    return Work()


def run_service(
    settings: MusicSettings, keys: MusicKeys, *, signals: Callable[[], int], out: TextIO = sys.stdout
) -> int:
    """Serve until a signal comes, and return the exit code.

    `signals` returns how many signals have asked the process to stop; it ends within ten seconds of the first.
    "Listening on URL" goes to `out` once requests are served. Raises PortTaken, SettingsError, StateError,
    StorageError.
    """
    music = settings.music
    listener = listen(music.host, music.port)
    stopping = False
    with listener:
        parts = open_parts(settings, keys, lambda: stopping or signals() > 0)
        work = work_of(parts)
        app = music_app(parts.store, parts.bucket, keys.api or "", wake=work.wake, webhook=work.webhook)
        begun = time.monotonic()

        def announce() -> None:
            print(f"Listening on {address_of(listener, music.host)}", file=out, flush=True)

        def stop() -> None:
            nonlocal begun, stopping
            begun, stopping = time.monotonic(), True
            for it in work.backgrounds:
                it.stop()

        server = ApiServer(app, listener, signals=signals, announce=announce, on_stop=stop)
        try:
            for it in work.backgrounds:
                it.start()
            server.serve_until_stopped()
        finally:
            if not stopping:
                stop()
            _join(work.backgrounds, begun + STOP_S)
            parts.database.close()
    return ExitCode.OK


def _join(backgrounds: Sequence[Background], until: float) -> None:
    for it in backgrounds:
        if not it.join(max(0.0, until - time.monotonic())):
            _log.warning("%s is still at work; the next start goes on from what is on record", it.name)
