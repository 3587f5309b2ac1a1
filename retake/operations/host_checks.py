"""The doctor's checks of this machine: settings, keys, prompts, ffmpeg, disk, limits."""

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator, Mapping

from retake.errors import RetakeError, SettingsError
from retake.keys import KEYS, Keys
from retake.operations.finding import Finding, fault, of_error, ok, warn
from retake.operations.words import size
from retake.story.content import load_prompts, prompts_file
from retake.story.environment import SANDBOX_VARIABLE
from retake.story.settings import Settings

ROOM = 10**9
"""Bytes that should be free where videos are made and kept: some hundred of them."""

LITTLE = 10**8
"""Bytes below which the next generation may already fail."""

FILES = 256
"""Descriptors that one tick needs at most, with the channels that it works on at a time (see `_limits`)."""


def settings_checks(settings: Settings) -> Iterator[Finding]:
    """The settings were read, so they make sense; what they may still be doubted for."""
    yield ok("settings", f"{settings.source} is readable and makes sense", source=settings.source)
    for warning in settings.warnings:
        yield warn("settings", warning, "mend the name if it is misspelt; else leave it")


def key_checks(keys: Keys, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Which keys are there, never what they are."""
    if environ.get(SANDBOX_VARIABLE):
        yield ok("keys", f"{SANDBOX_VARIABLE} is set: the sandbox's keys are used, no real one is")
        return
    for name, (variables, purpose) in KEYS.items():
        named = " or ".join(variables)
        if getattr(keys, name):
            yield ok(f"key {name}", f"{named} is set, {purpose}")
        else:
            yield fault(f"key {name}", f"{named} is not set; it is needed {purpose}", "put it in the environment", 78)


def prompts_check(settings: Settings) -> Finding:
    path = prompts_file(settings)
    try:
        return ok("prompts", f"{path}: {len(load_prompts(path))} calls to the writer")
    except SettingsError as error:
        return of_error("prompts", error, "mend the file, or name another in FILE_PATHS.prompts")


def ffmpeg_check(settings: Settings) -> Finding:
    """A mock video, small and short, with the encoder of the settings, made and looked at."""
    from retake.settings.rules import PictureSize
    from retake.story.clients import LocalMedia

    small = settings._replace(
        image=settings.image._replace(output_size=PictureSize(64, 64)),
        video=settings.video._replace(mock_duration=0.2, mock_fps=10),
    )
    try:
        studio = LocalMedia(small)
        doubtful = studio.check_video(studio.mock_video(studio.placeholder("doctor")))
    except RetakeError as error:
        return of_error("ffmpeg", error, "without it no mock is made and no video is checked")
    if doubtful:
        return warn("ffmpeg", doubtful, "look at VIDEO.mock_codec")
    return ok("ffmpeg", f"made and read a video with {settings.video.mock_codec}")


def disk_checks(settings: Settings) -> Iterator[Finding]:
    """Where videos are made, and where a bucket in a directory keeps them."""
    yield _room("temporary folder", tempfile.gettempdir())
    path = settings.storage.url.removeprefix("file:")
    if path != settings.storage.url:
        yield _room("disk of the bucket", path)
        yield from _inodes(path)
    yield _limits(settings)


def _room(check: str, path: str) -> Finding:
    try:
        free = shutil.disk_usage(_existing(path)).free
    except OSError as error:
        return fault(check, f"{path} cannot be looked at: {error.strerror}", "see that its disk is there")
    found = f"{size(free)} free at {path}"
    if free < LITTLE:
        return fault(check, found, "make room: the next generation may fail", free_bytes=free)
    if free < ROOM:
        return warn(check, found, "make room soon", free_bytes=free)
    return ok(check, found, free_bytes=free)


def _inodes(path: str) -> Iterator[Finding]:
    try:
        stat = os.statvfs(_existing(path))
    except OSError:
        return
    if stat.f_files and stat.f_favail < 1000:
        do = "remove files, or use a file system that has room for more"
        yield warn("disk of the bucket", f"{stat.f_favail} more files can be made", do)


def _limits(settings: Settings) -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    largest, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    needed = FILES + (8 * settings.workflow.channel_concurrency if settings.channels else 0)
    facts = {"open_files": soft, "file_size": largest}
    if soft != resource.RLIM_INFINITY and soft < needed:
        return warn("limits", f"{soft} open files are allowed, {needed} may be needed", "raise it: ulimit -n", **facts)
    if largest != resource.RLIM_INFINITY and largest < LITTLE:
        return fault("limits", f"no file may be larger than {size(largest)}", "raise it: ulimit -f", **facts)
    return ok("limits", "enough open files and large enough files are allowed", **facts)


def _existing(path: str) -> str:
    """`path`, or the folder above it where a bucket's first write makes it."""
    return path if os.path.exists(path) else os.path.dirname(os.path.abspath(path))
