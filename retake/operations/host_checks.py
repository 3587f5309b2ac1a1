"""The doctor's checks of a process's environment: settings, keys, disk, limits."""

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence

from retake.alerts.settings import AlertChannel, why_no_channel
from retake.exit_codes import ExitCode
from retake.extras import is_installed
from retake.keys import KEYS, Keys
from retake.operations.finding import Finding, fault, ok, warn
from retake.operations.words import size

WARN_FREE_BYTES = 10**9
"""Free bytes below which there is a warning, where videos are made and kept: room for about a hundred of them."""

FAULT_FREE_BYTES = 10**8
"""Free bytes below which the next generation may already fail."""

TICK_FILES = 256
"""File descriptors that a tick needs at most, not counting those for each concurrent channel (see `_limits`)."""


def settings_checks(source: str, warnings: Sequence[str]) -> Iterator[Finding]:
    """Yield that the settings are valid, and a warning for each oddity."""
    yield ok("settings", f"{source} is readable and valid", source=source)
    for warning in warnings:
        yield warn("settings", warning, "correct the name if it is misspelt; otherwise nothing")


def key_checks(keys: Keys, environ: Mapping[str, str], sandbox_variable: str) -> Iterator[Finding]:
    """Yield findings about which keys are set, never their values."""
    if environ.get(sandbox_variable):
        yield ok("keys", f"{sandbox_variable} is set: the sandbox's keys are used, and no real key")
        return
    for name, (variables, purpose) in KEYS.items():
        yield key_check(name, " or ".join(variables), purpose, is_set=bool(getattr(keys, name)))


def key_check(name: str, variable: str, purpose: str, *, is_set: bool) -> Finding:
    """Return a finding about whether a key is set, which is a fault if it is not."""
    if is_set:
        return ok(f"key {name}", f"{variable} is set, {purpose}")
    found = f"{variable} is not set; it is needed {purpose}"
    return fault(f"key {name}", found, f"put {variable} in the environment", ExitCode.CONFIG)


def alert_checks(
    channels: Sequence[AlertChannel], missing: Sequence[tuple[str, str]], environ: Mapping[str, str]
) -> Iterator[Finding]:
    """Check whether alerts reach anybody. `missing` has each channel that lacks its secret, with the variable."""
    if not channels:
        yield ok("alerts", f"no channel is notified: {why_no_channel(environ)}")
    for channel in channels:
        if channel.kind == "apprise" and not is_installed("apprise"):
            found = "apprise is not installed: no alert reaches this channel"
            yield warn(f"alerts {channel.name}", found, "pip install 'retake[apprise]'")
    for name, env in missing:
        found = f"{env} is not set: no alert reaches this channel"
        yield warn(f"alerts {name}", found, f"put {env} in the environment")
    if (number := len(channels)) > len(missing):
        yield ok("alerts", f"{number - len(missing)} of {number} channels have their secrets", channels=number)


def disk_checks(storage_url: str, channels: int) -> Iterator[Finding]:
    """Check the disks where videos are made and kept. `channels` is the number of channels ticked concurrently."""
    yield _temporary_folder()
    path = storage_url.removeprefix("file:")
    if path != storage_url:
        yield _room("disk of the bucket", path)
        yield from _inodes(path)
    yield _limits(channels)


def _temporary_folder() -> Finding:
    check = "temporary folder"
    try:
        return _room(check, tempfile.gettempdir())
    except OSError as error:  # none of the candidates is writable
        do = "free some space there, or set TMPDIR to a writable folder"
        return fault(check, error.strerror or str(error), do)


def _room(check: str, path: str) -> Finding:
    try:
        free = shutil.disk_usage(_existing(path)).free
    except OSError as error:
        return fault(check, f"{path} cannot be read: {error.strerror}", "check that its disk is mounted")
    found = f"{size(free)} free at {path}"
    if free < FAULT_FREE_BYTES:
        return fault(check, found, "free some space: the next generation may fail", free_bytes=free)
    if free < WARN_FREE_BYTES:
        return warn(check, found, "free some space soon", free_bytes=free)
    return ok(check, found, free_bytes=free)


def _inodes(path: str) -> Iterator[Finding]:
    try:
        stat = os.statvfs(_existing(path))
    except OSError:
        return
    if stat.f_files and stat.f_favail < 1000:
        do = "remove files, or use a file system that allows more"
        yield warn("disk of the bucket", f"{stat.f_favail} more files can be created", do)


def _limits(channels: int) -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    largest, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    needed = TICK_FILES + 8 * channels
    facts = {"open_files": soft, "file_size": largest}
    if soft != resource.RLIM_INFINITY and soft < needed:
        return warn("limits", f"{soft} open files are allowed, {needed} may be needed", "raise it: ulimit -n", **facts)
    if largest != resource.RLIM_INFINITY and largest < FAULT_FREE_BYTES:
        return fault("limits", f"no file may be larger than {size(largest)}", "raise it: ulimit -f", **facts)
    return ok("limits", "enough open files and large enough files are allowed", **facts)


def _existing(path: str) -> str:
    """Return `path`, or its parent folder if the bucket's first write will make it."""
    return path if os.path.exists(path) else os.path.dirname(os.path.abspath(path))
