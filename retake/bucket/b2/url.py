"""URLs of buckets on B2: b2://BUCKET/PREFIX?realm=URL."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from retake.bucket import LeaseTerms, check_key
from retake.bucket.b2 import B2Bucket
from retake.bucket.b2.calls import B2Calls
from retake.bucket.kill_timer import KillTimer, no_kill_timer
from retake.clock import Clock
from retake.errors import SettingsError

_KEYS = ("B2_APPLICATION_KEY_ID", "B2_APPLICATION_KEY")
_LONGEST_PREFIX = 100  # bytes; a name on B2 has at most 1,024, a key 900


class B2Place(NamedTuple):
    """Where a bucket's objects are."""

    bucket: str
    prefix: str  # "" or ending in "/"
    realm: str  # "production", or a URL


def parse_url(url: str) -> B2Place:
    """Parse b2://BUCKET[/PREFIX][?realm=URL]. Raises SettingsError."""
    from urllib.parse import parse_qsl, unquote, urlsplit

    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    prefix = unquote(parts.path).strip("/")
    if parts.scheme != "b2" or not parts.netloc or parts.fragment or not options.keys() <= {"realm"}:
        raise SettingsError(f"STORAGE.url: {url!r} names no B2 bucket; use b2://BUCKET/PREFIX, perhaps with ?realm=URL")
    if "@" in parts.netloc:
        raise SettingsError(f"STORAGE.url: keys do not belong in it; set {' and '.join(_KEYS)} in the environment")
    if prefix and not _is_short_key(prefix):
        raise SettingsError(f"STORAGE.url: names on B2 cannot begin with {prefix!r}")
    return B2Place(parts.netloc, f"{prefix}/" if prefix else "", options.get("realm") or "production")


def open_b2(
    url: str,
    *,
    environ: Mapping[str, str] | None = None,
    lease_terms: LeaseTerms | None = None,
    kill_timer: KillTimer = no_kill_timer,
    clock: Clock | None = None,
    deadline_s: float = 60.0,
) -> B2Bucket:
    """Return the bucket that `url` names, with the keys in `environ`. Nothing is sent to B2 yet.

    No operation takes longer than `deadline_s`, including pauses, except for one call that is being answered then.
    Raises SettingsError.
    """
    place, environ = parse_url(url), os.environ if environ is None else environ
    missing = [name for name in _KEYS if not environ.get(name)]
    if missing:
        raise SettingsError(f"{' and '.join(missing)} must be set in the environment to use {url}")
    key_id, key = (environ[name] for name in _KEYS)
    calls = B2Calls(place.bucket, key_id, key, realm=place.realm, clock=clock, deadline_s=deadline_s)
    return B2Bucket(url, calls, place.prefix, lease_terms=lease_terms, kill_timer=kill_timer)


def _is_short_key(prefix: str) -> bool:
    try:
        return len(check_key(prefix).encode()) <= _LONGEST_PREFIX
    except ValueError:
        return False
