"""What every command does around its work: settings and keys, the exit code, the signals, who it is."""

import os
import sys
from collections.abc import Callable, Mapping
from logging import getLogger
from types import FrameType

from retake.bucket import Bucket, LeaseTerms, open_bucket
from retake.errors import RetakeError, SettingsError
from retake.keys import Keys, read_keys
from retake.logs import bind
from retake.story.settings import Settings, load_settings, sandboxed

LEASE = "story"
"""The name of the pipeline's lease in its bucket."""

LEASE_VARIABLE = "RETAKE_LEASE"
"""The environment variable by which a manager hands its lease to a script."""

SANDBOX_VARIABLE = "RETAKE_SANDBOX_URL"
"""The environment variable that points every vendor at a sandbox."""

CHANNEL_VARIABLE = "RETAKE_CHANNEL"
"""The environment variable that tells a script which channel it is about."""

SANDBOX_KEYS = Keys("sandbox", "key_sandbox", "sandbox")

_log = getLogger(__name__)


def read_settings(environ: Mapping[str, str], *, warn: bool) -> tuple[Settings, Keys]:
    """The settings and keys, pointed at the sandbox where the environment says so: its keys are never real ones.
    Raises SettingsError."""
    settings = load_settings(environ)
    if warn:
        for warning in settings.warnings:
            _log.warning("%s", warning)
    url = environ.get(SANDBOX_VARIABLE)
    return (sandboxed(settings, url), SANDBOX_KEYS) if url else (settings, read_keys(environ))


def open_storage(settings: Settings, *, dead_mans_switch: bool = False) -> Bucket:
    """The bucket that the settings name. With the switch, the kernel ends this process when its lease has run out."""
    workflow = settings.workflow
    ttl, skew = workflow.lock_ttl_seconds, workflow.lock_skew_seconds
    skew = min(30.0, ttl / 4) if skew is None else skew
    terms = LeaseTerms(ttl_s=ttl, skew_s=skew, margin_s=min(5.0, ttl / 24))
    storage = settings.storage
    return open_bucket(
        storage.url,
        lease_terms=terms,
        dead_mans_switch=dead_mans_switch,
        umask=int(storage.umask, 8),
        follow_links=storage.follow_links,
    )


def part_of(bucket: Bucket, settings: Settings, channel: str | None) -> Bucket:
    """The part of the bucket that the channel's pipeline lives in; all of it where there are no channels. Raises
    SettingsError for a channel that is not one, or none where one must be named."""
    if not settings.channels and not channel:
        return bucket
    if channel not in settings.channels:
        if not settings.channels:
            raise SettingsError(f"{channel!r} is named as the channel, but the settings have no CHANNELS: leave it out")
        what = f"{channel!r} is none of the" if channel else "this is about one of the"
        named = ", ".join(settings.channels)
        raise SettingsError(f"{what} CHANNELS ({named}): name it by --channel NAME, or in {CHANNEL_VARIABLE}")
    return bucket.part(f"{channel}/")


def pipeline_of(channel: str | None) -> str:
    """What the runs of a pipeline are called on the ledger."""
    return f"story/{channel}" if channel else "story"


def guarded(work: Callable[[], int], *, alone: bool = True) -> int:
    """`work`'s exit code; that of the error if it raises one. A bug keeps its traceback, in the log.

    All its log lines have one `run_id`. Work that is not done `alone`, but as a part of another program's run, has none
    of its own: the other program adds its own as it passes the lines on.
    """
    with bind(run_id=os.urandom(6).hex() if alone else None):
        return _guarded(work)


def _guarded(work: Callable[[], int]) -> int:
    try:
        return work()
    except RetakeError as error:
        _log.error("%s", error, extra={"exit_code": error.exit_code})
        return error.exit_code
    except KeyboardInterrupt:  # Ctrl-C before a paid call could be under way: everything has been given back
        _log.warning("interrupted; nothing was begun that is not on record", extra={"exit_code": 130})
        return 130
    except Exception:  # noqa: BLE001 (the last door: whatever it is goes into the log, with its traceback)
        _log.exception("this is a bug in Retake; nothing was lost, the next tick goes on from what is on record")
        return 70


def is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def owner() -> str:
    """Who asks for a lease, for people: host:pid."""
    return f"{os.uname().nodename}:{os.getpid()}"


class StopSignal:
    """Counts SIGTERM and SIGINT instead of dying of them: a paid call that is under way comes to its end, and its
    answer is saved, before anything stops."""

    def __init__(self) -> None:
        import signal

        self.count = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._count)

    def _count(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
