"""What every command of the story sets up: settings and keys, the bucket, the channel."""

from collections.abc import Mapping
from logging import getLogger

from retake.bucket import Bucket, LeaseTerms, open_bucket
from retake.errors import SettingsError
from retake.keys import Keys, read_keys
from retake.story.settings import Settings, load_settings, sandboxed

LEASE = "story"
"""The name of the pipeline's lease in its bucket."""

SANDBOX_VARIABLE = "RETAKE_SANDBOX_URL"
"""The environment variable that points every vendor at a sandbox."""

CHANNEL_VARIABLE = "RETAKE_CHANNEL"
"""The environment variable that names the channel to a script."""

SANDBOX_KEYS = Keys("sandbox", "key_sandbox", "sandbox")

_log = getLogger(__name__)


def read_settings(environ: Mapping[str, str], *, warn: bool) -> tuple[Settings, Keys]:
    """Return the settings and keys, pointed at the sandbox where the environment says so: its keys are never real ones.
    Raises SettingsError."""
    settings = load_settings(environ)
    if warn:
        for warning in settings.warnings:
            _log.warning("%s", warning)
    url = environ.get(SANDBOX_VARIABLE)
    return (sandboxed(settings, url), SANDBOX_KEYS) if url else (settings, read_keys(environ))


def open_storage(settings: Settings, *, dead_mans_switch: bool = False) -> Bucket:
    """Open the bucket that the settings name. With the switch, the kernel ends this process when its lease runs out."""
    workflow = settings.workflow
    ttl, skew = workflow.lock_ttl_seconds, workflow.lock_skew_seconds
    skew = min(30.0, ttl / 4) if skew is None else skew
    storage = settings.storage
    return open_bucket(
        storage.url,
        lease_terms=LeaseTerms(ttl_s=ttl, skew_s=skew, margin_s=min(5.0, ttl / 24)),
        dead_mans_switch=dead_mans_switch,
        umask=int(storage.umask, 8),
        follow_links=storage.follow_links,
    )


def part_of(bucket: Bucket, settings: Settings, channel: str | None) -> Bucket:
    """Return the part of the bucket that the channel's pipeline lives in; all of it where there are no channels.

    Raises SettingsError for a channel that is not one of CHANNELS, or for none where one must be named.
    """
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
    """Return what the runs of a channel's pipeline are called on the ledger."""
    return f"story/{channel}" if channel else "story"
