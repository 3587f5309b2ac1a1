"""`retake music serve`, which is music_service.py: the API, the workers and Telegram in one process."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging import getLogger
from pathlib import Path
from typing import Any, NamedTuple

import click

from retake.errors import SettingsError, StorageError
from retake.logs import mask, open_streams, setup_logging
from retake.music.settings import (
    SANDBOX_KEYS,
    MusicKeys,
    MusicSettings,
    load_music_settings,
    read_music_keys,
    sandboxed,
)
from retake.settings.shared import SANDBOX_VARIABLE
from retake.ticking.process import StopSignal, exit_code_of, is_terminal

DEMO_TRACK = "demo.wav"
DEMO_CHAT, DEMO_USER = 1, 1
"""The chat that gets messages on the sandbox's Telegram, and the user there whose taps count."""

_log = getLogger(__name__)


class ServiceOptions(NamedTuple):
    """The command-line options."""

    sandbox: bool = False
    host: str | None = None
    port: int | None = None


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--sandbox", is_flag=True, help="Use stand-ins for the vendors on this machine: no account, no cost.")
@click.option("--host", metavar="HOST", help="Where to listen [MUSIC.host].")
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", help="The port to listen on; 0 is any free one [MUSIC.port]."
)
def main(**options: Any) -> None:
    """Serve the music pipeline: its API, its workers, Telegram. SIGTERM ends it within ten seconds.

    Settings come from config/config.json (or the file that RETAKE_CONFIG names), keys from the environment:
    MUSIC_API_KEY, OPENAI_API_KEY, MIDJOURNEY_API_KEY, YOUTUBE_CLIENT_ID, YOUTUBE_CLIENT_SECRET, YOUTUBE_REFRESH_TOKEN,
    and for Telegram TELEGRAM_BOT_TOKEN, TELEGRAM_WEBHOOK_SECRET. docs/music.md explains all of them.

    \b
    Exit codes:
        0   a signal ended it; work in progress continues at the next start
        75  the port is taken, or database or bucket are unreachable
        65  the database is of another version
        78  settings or a key are missing or wrong
        70  a bug
    """
    sys.exit(serve(ServiceOptions(**options)))


def serve(options: ServiceOptions) -> int:
    """Run the service and return the exit code."""
    open_streams()
    environ = dict(os.environ)
    setup_logging(sys.stderr, human=is_terminal(), environ=environ)
    return exit_code_of(lambda: _serve(options, environ))


def _serve(options: ServiceOptions, environ: Mapping[str, str]) -> int:
    from retake.extras import require

    stopping = StopSignal()
    require("music", "the music service")
    settings = _with_options(load_music_settings(environ), options)
    for warning in settings.warnings:
        _log.warning("%s", warning)
    mask(environ.get(channel.env, "") for channel in settings.alerts.channels)
    from retake.music.service import run_service

    if not options.sandbox and not environ.get(SANDBOX_VARIABLE):
        keys = read_music_keys(environ, settings.music.telegram)
        mask(key for key in keys if key)
        return run_service(settings, keys, signals=lambda: stopping.count)
    with _sandbox(settings, options, environ) as (settings, keys):
        return run_service(settings, keys, signals=lambda: stopping.count)


def _with_options(settings: MusicSettings, options: ServiceOptions) -> MusicSettings:
    music = settings.music
    host = music.host if options.host is None else options.host
    port = music.port if options.port is None else options.port
    return settings._replace(music=music._replace(host=host, port=port))


@contextmanager
def _sandbox(
    settings: MusicSettings, options: ServiceOptions, environ: Mapping[str, str]
) -> Iterator[tuple[MusicSettings, MusicKeys]]:
    """Yield settings and keys for a sandbox: the one in the environment, or one whose state is beside the bucket."""
    api_key = environ.get("MUSIC_API_KEY", "").strip()
    keys = SANDBOX_KEYS._replace(api=api_key or SANDBOX_KEYS.api)
    mask([api_key])
    if not options.sandbox:
        yield sandboxed(settings, environ[SANDBOX_VARIABLE]), keys
        return
    from retake.sandbox import sandbox_of_command, state_folder

    state = state_folder(settings.storage.url)
    _check_database(settings.music.database)
    _make_track(Path(settings.music.audio_folder))
    music = settings.music
    if music.telegram == "off":
        music = music._replace(telegram="poll", telegram_chat_id=DEMO_CHAT, telegram_allowed_users=(DEMO_USER,))
    with sandbox_of_command(state) as sandbox:
        yield sandboxed(settings._replace(music=music), sandbox.url), keys


def _check_database(database: str) -> None:
    """Raise SettingsError if the sandbox's data would end up among real data."""
    if database.startswith("postgresql:") and "127.0.0.1" not in database:
        raise SettingsError(
            "MUSIC.database is on a live server, where what the sandbox makes does not belong. Name a file for this "
            "run (sqlite:PATH), or a server on 127.0.0.1"
        )


def _make_track(folder: Path) -> None:
    from retake.media.audio import demo_track

    track = folder / DEMO_TRACK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not track.exists():
            demo_track(track)
    except OSError as error:
        raise StorageError(
            f"MUSIC.audio_folder: {track} cannot be written ({error.strerror}); check its permissions"
        ) from error
