"""The doctor's checks of music: keys, folder, ffmpeg, database, stuck steps, vendors."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta
from typing import Any

from retake.clock import Clock
from retake.errors import RetakeError
from retake.exit_codes import ExitCode
from retake.extras import require
from retake.music import states
from retake.music.database import MusicDatabase, open_music_database
from retake.music.rows import PipelineRow
from retake.music.settings import MUSIC_KEYS, MusicKeys, MusicSettings, is_needed
from retake.music.store import NAME, PipelineStore
from retake.music.tables import SCHEMA
from retake.operations.finding import Finding, fault, of_error, ok, warn
from retake.operations.host_checks import key_check
from retake.operations.vendor_checks import VendorClient, patient
from retake.plural import count
from retake.runs.run import Run
from retake.runs.schema import version
from retake.runs.states import FINAL, RunStatus

MAX_CHECKED = 50
"""Maximum number of running steps checked, newest first."""


def key_checks(environ: Mapping[str, str], music: str, checked: Collection[str] = ()) -> Iterator[Finding]:
    """Yield which keys are set, never their values.

    `music` is MUSIC.telegram; `checked` are variables that the story's checks have already reported.
    """
    for name, (variable, purpose) in MUSIC_KEYS.items():
        is_set = bool(environ.get(variable, "").strip())
        if variable not in checked and (is_set or is_needed(name, music)):
            yield key_check(variable, variable, purpose, is_set=is_set)


def machine_checks(settings: MusicSettings) -> Iterator[Finding]:
    """Check what the service needs on this machine: its libraries, ffmpeg, the audio folder."""
    try:
        require("music", "The music service")
        yield ok("music libraries", "the extra retake[music] is installed")
    except RetakeError as error:
        yield of_error("music libraries", error)
    folder = settings.music.audio_folder
    if not os.path.isdir(folder):
        yield warn("audio folder", f"{folder}: there is no such folder", "make it, and put the tracks there")
    elif not os.access(folder, os.R_OK | os.X_OK):
        yield fault("audio folder", f"{folder} cannot be read", "let the service read it", ExitCode.CONFIG)
    else:
        yield ok("audio folder", f"{folder} is there")
    yield _ffmpeg()


def _ffmpeg() -> Finding:
    from retake.media import ffmpeg

    try:
        return ok("ffmpeg of music", f"{ffmpeg.find()} is there")
    except RetakeError as error:
        return of_error("ffmpeg of music", error, "without it no video is made")


def checks(settings: MusicSettings, clock: Clock) -> Iterator[Finding]:
    """Check the database, and that running steps have workers. Raises nothing."""
    check = "music database"
    try:
        database = open_music_database(settings.music.database, clock, read_only=True)
        yield _tables(settings, database)
        yield _at_work(settings, database)
    except RetakeError as error:
        yield of_error(check, error)


def _tables(settings: MusicSettings, database: MusicDatabase) -> Finding:
    found = version(database.database, SCHEMA)
    counts = PipelineStore(database).counts()
    if found is None and not counts:
        return ok("music database", f"{settings.music.database} has no tables yet: the service makes them")
    summary = ", ".join(f"{number} {state}" for state, number in sorted(counts.items())) or "no pipeline yet"
    return ok("music database", f"{database.name}: version {SCHEMA.newest}, the newest; {summary}")


def _at_work(settings: MusicSettings, database: MusicDatabase) -> Finding:
    """Return whether the running steps have a worker, or will get one: a step waits while all workers are busy."""
    store, ledger, now = PipelineStore(database), database.ledger, database.clock.now()
    running = store.listing([states.running(step) for step in states.STEPS], limit=MAX_CHECKED)
    patience = timedelta(seconds=settings.music.stuck_seconds + 5)

    def silent(run: Run) -> bool:
        return now - (run.heartbeat_at or run.updated_at) > patience

    busy = not all(map(silent, ledger.runs(status=[RunStatus.RUNNING], pipeline=NAME, limit=MAX_CHECKED)))

    def stuck(row: PipelineRow) -> bool:
        run = ledger.find(row.run_key)
        if run is None or run.status in FINAL:
            return now - row.updated_at > patience
        if run.status is RunStatus.RUNNING:
            return silent(run)
        return not busy and now - (run.next_retry_at or run.updated_at) > patience

    left = [row.task_id for row in running if stuck(row)]
    if left:
        few = ", ".join(left[:5]) + (", …" if len(left) > 5 else "")
        found = f"{count(len(left), 'step')} with no worker: {few}"
        return warn("music service", found, "see that the service runs: retake music serve", stuck=left)
    return ok("music service", f"{count(len(running), 'step')} at work" if running else "no step is at work")


def keys_set(environ: Mapping[str, str]) -> MusicKeys:
    """Return the keys that are set."""
    found = {name: environ.get(variable, "").strip() for name, (variable, _) in MUSIC_KEYS.items()}
    return MusicKeys(**{name: key for name, key in found.items() if key})


def clients_of(settings: MusicSettings, keys: MusicKeys, pause: Callable[[float], object]) -> list[VendorClient]:
    """Return the vendors whose keys are set."""
    from retake.music.clients import RealMusicVendors

    workflow = patient(settings.workflow)
    vendors = RealMusicVendors(settings._replace(workflow=workflow), keys, pause)

    def telegram() -> Any:
        from retake.vendors.telegram import TelegramBot

        return TelegramBot(keys.telegram or "", settings.telegram.endpoint, workflow.call_timeout_seconds)

    published = keys.youtube_client_id and keys.youtube_client_secret and keys.youtube_refresh_token
    found = [
        (keys.midjourney, VendorClient(f"covers ({settings.midjourney.provider})", vendors.midjourney)),
        (keys.openai, VendorClient("meta and review (chat API)", vendors.chat)),
        (published, VendorClient("publishing (YouTube)", vendors.youtube)),
        (keys.telegram if settings.music.telegram != "off" else None, VendorClient("Telegram", telegram)),
    ]
    return [client for key, client in found if key]
