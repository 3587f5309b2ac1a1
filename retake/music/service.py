"""The music service as one process: the API and the background threads."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from logging import getLogger
from random import SystemRandom
from typing import NamedTuple, TextIO

from retake.bucket import Bucket, open_configured, this_process
from retake.clock import Clock, SystemClock
from retake.errors import RetakeError, StorageError, in_words
from retake.exit_codes import ExitCode
from retake.music.actions import PipelineActions
from retake.music.alerts import MusicWatch, tell_unavailable
from retake.music.api import Webhook, music_app
from retake.music.attempts import AttemptStore
from retake.music.background import (
    alerts_loop,
    outbox_loop,
    poll_loop,
    upkeep_loop,
    webhook_loop,
    worker_loop,
)
from retake.music.calls import CallBook
from retake.music.clients import RealMusicVendors
from retake.music.context import SharedContext
from retake.music.database import MusicDatabase
from retake.music.leases import release_leases
from retake.music.operations import open_actions
from retake.music.outbox import TelegramOutbox
from retake.music.settings import MusicKeys, MusicSettings
from retake.music.telegram import TelegramInbox
from retake.music.upkeep import Upkeep
from retake.music.worker import step_prices, workers
from retake.retrying.time_limit import OutOfTime, within
from retake.serving.loop import Background
from retake.serving.server import ApiServer, address_of, announce, listen
from retake.vendors.telegram import TelegramBot

STOP_S = 8.0
"""Seconds after a signal within which the background work ends; unfinished work is resumed at the next start."""

LISTEN_S = 0.5
"""Seconds within which threads that only listen end: an update that is not taken is sent again."""

RELEASE_S = 0.5
"""Seconds within which the leases on Telegram are released; otherwise they expire by themselves."""

_log = getLogger(__name__)


class ServiceParts(NamedTuple):
    """What the parts of the service share."""

    settings: MusicSettings
    keys: MusicKeys
    database: MusicDatabase
    store: PipelineActions
    bucket: Bucket
    clock: Clock
    stopping: Callable[[], bool]


class ServiceWork(NamedTuple):
    """The background work of a service."""

    backgrounds: Sequence[Background]
    listens: Sequence[Background]  # poll for Telegram's updates, and have no work of their own to lose
    wake: Callable[[], None]  # called when a step has been started
    webhook: Webhook | None

    def begin(self) -> None:
        """Start all threads."""
        for it in (*self.backgrounds, *self.listens):
            it.start()

    def stop(self) -> None:
        """Ask all threads to stop."""
        for it in (*self.backgrounds, *self.listens):
            it.stop()

    def join(self, until: float) -> None:
        """Wait for them until this time of time.monotonic at the latest."""
        for it in self.backgrounds:
            it.join(max(0.0, until - time.monotonic()))
        for it in self.listens:
            it.join(max(0.0, min(LISTEN_S, until - time.monotonic())))


def open_parts(settings: MusicSettings, keys: MusicKeys, stopping: Callable[[], bool]) -> ServiceParts:
    """Open the bucket and the database. Raises SettingsError, StateError, StorageError."""
    bucket, clock = open_configured(settings.storage, settings.workflow), SystemClock()
    try:
        store = open_actions(settings, clock)
    except StorageError as error:
        tell_unavailable(settings, bucket, clock, os.environ, error)
        raise
    return ServiceParts(settings, keys, store.database, store, bucket, clock, stopping)


def work_of(parts: ServiceParts) -> ServiceWork:
    """Return the background work: workers, upkeep, alerts, Telegram."""
    settings = parts.settings
    shared = SharedContext(
        settings,
        parts.bucket,
        AttemptStore(parts.store),
        CallBook(parts.database, daily_cap_usd=settings.music.daily_cap_usd),
        RealMusicVendors(settings, parts.keys, parts.clock.sleep),
        step_prices(settings),
        parts.stopping,
        SystemRandom(),
    )
    make, recovery = workers(parts.database, shared, name=this_process())
    loops = [worker_loop(number, make()) for number in range(1, settings.music.workers + 1)]

    def wake() -> None:
        for loop in loops:
            loop.wake()

    watch = MusicWatch(settings, parts.database, parts.bucket, parts.clock, os.environ)
    work = ServiceWork([*loops, upkeep_loop(Upkeep(parts.store, recovery), wake), alerts_loop(watch)], [], wake, None)
    return work if settings.music.telegram == "off" else _with_telegram(work, parts)


def _with_telegram(work: ServiceWork, parts: ServiceParts) -> ServiceWork:
    """Return the same work plus the Telegram threads."""
    settings, music = parts.settings, parts.settings.music
    assert music.telegram_chat_id is not None, "the settings were checked"
    call_s = settings.workflow.call_timeout_seconds
    bot = TelegramBot(parts.keys.telegram or "", settings.telegram.endpoint, call_s)
    inbox = TelegramInbox(parts.store, bot, music.telegram_allowed_users, music.telegram_chat_id)
    outbox = TelegramOutbox(parts.database, bot, music.telegram_chat_id, this_process())
    backgrounds = [*work.backgrounds, outbox_loop(outbox, music.poll_seconds, call_s + 30, parts.stopping)]
    if music.telegram == "poll":
        return work._replace(
            backgrounds=backgrounds, listens=[poll_loop(bot, inbox, this_process(), music.telegram_poll_seconds)]
        )

    def on_update(update: object) -> None:
        inbox.take(update)
        work.wake()

    secret = parts.keys.telegram_webhook or ""
    backgrounds.append(webhook_loop(bot, inbox, music.public_url or "", secret))
    return work._replace(backgrounds=backgrounds, webhook=Webhook(secret, on_update))


def run_service(
    settings: MusicSettings, keys: MusicKeys, *, signals: Callable[[], int], out: TextIO = sys.stdout
) -> int:
    """Serve until a signal arrives, and return the exit code.

    `signals` returns the number of signals so far; the process ends within ten seconds of the first. Prints "Listening
    on URL" to `out` once requests are served. Raises PortTaken, SettingsError, StateError, StorageError.
    """
    music = settings.music
    names = ("MUSIC.host or --host", "MUSIC.port or --port")
    with listen(music.host, music.port, settings=names) as listener:
        stopped_at: list[float] = []
        parts = open_parts(settings, keys, lambda: bool(stopped_at) or signals() > 0)
        work = work_of(parts)

        def stop() -> None:
            stopped_at.append(time.monotonic())
            work.stop()

        app = music_app(parts.store, parts.bucket, keys.api or "", wake=work.wake, webhook=work.webhook)
        on_start = partial(announce, f"Listening on {address_of(listener, music.host)}", out)
        server = ApiServer(app, listener, signals=signals, on_start=on_start, on_stop=stop)
        work.begin()
        try:
            server.serve_until_stopped()
        finally:
            if not stopped_at:
                stop()
            work.join(stopped_at[0] + STOP_S)
            if music.telegram != "off":
                _release_leases(parts.database)
            parts.database.close()
    return ExitCode.OK


def _release_leases(database: MusicDatabase) -> None:
    """Let another process talk to Telegram at once, such as this service after its restart."""
    try:
        within(RELEASE_S, lambda: release_leases(database, this_process()))
    except (OutOfTime, RetakeError) as error:
        _log.warning("the leases on Telegram could not be released, and expire within minutes: %s", in_words(error))
