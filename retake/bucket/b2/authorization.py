"""A cache of B2's authorisation for later processes, in a file that only its user can read.

Signing in costs one call of class C, or two with a key for all buckets, and each tick starts one or more processes.
B2's answer is valid for 24 hours, so it is kept for nearly as long. The file holds the token, which lets anyone who
reads it act as the key until it expires, but never the key itself. The file's name is a digest of the key, so each key
has its own file. A file that other users could have read or written is ignored. b2sdk signs in again when B2 refuses
the token.
"""

import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from logging import getLogger
from typing import Any

_log = getLogger(__name__)

KEPT_S = 23 * 3600.0  # an hour less than B2's authorisation holds
_MAX_FILE_BYTES = 64 * 1024  # read from the file; ours are smaller
_ACCOUNT = (
    "account_id",
    "auth_token",
    "api_url",
    "download_url",
    "recommended_part_size",
    "absolute_minimum_part_size",
    "s3_api_url",
    "allowed",
)
"""The arguments of `AbstractAccountInfo.set_auth_data` except the key and the realm."""


def cache_folder(environ: Mapping[str, str]) -> str | None:
    """Return the user's cache folder, $XDG_CACHE_HOME/retake or ~/.cache/retake, or None if the environment names
    neither.

    >>> cache_folder({"HOME": "/srv/ann"})
    '/srv/ann/.cache/retake'
    """
    named, home = environ.get("XDG_CACHE_HOME", ""), environ.get("HOME", "")
    if os.path.isabs(named):
        return os.path.join(named, "retake")
    return os.path.join(home, ".cache", "retake") if os.path.isabs(home) else None


class KeptAuthorization:
    """The cache file in `folder` for the key `key_id`, `key` at `realm`. No method raises if the disk fails."""

    def __init__(self, folder: str, realm: str, key_id: str, key: str) -> None:
        from hashlib import sha256

        self._folder = folder
        digest = sha256("\n".join((realm, key_id, key)).encode()).hexdigest()
        self.path = os.path.join(folder, f"b2-{digest[:40]}.json")

    def read(self, now: float) -> dict[str, Any] | None:
        """Return what `write` stored. None if there is nothing, if it is too old at `now` (seconds since the epoch), or
        if other users could have read it."""
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with open(file, "rb") as opened:
                about = os.fstat(file)
                private = stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077
                kept = json.loads(opened.read(_MAX_FILE_BYTES)) if private else None
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(kept, dict) or not isinstance(account := kept.get("account"), dict):
            return None
        at, names = kept.get("signed_in_at"), kept.get("buckets")
        fresh = isinstance(at, (int, float)) and 0 <= now - at < KEPT_S
        return kept if fresh and isinstance(names, dict) and account.keys() == set(_ACCOUNT) else None

    def write(self, kept: Mapping[str, Any]) -> None:
        """Replace the file with `kept`."""
        draft = f"{self.path}.{os.getpid()}"
        try:
            os.makedirs(self._folder, 0o700, exist_ok=True)
            with suppress(FileNotFoundError):  # left by a dead process with our id
                os.unlink(draft)
            file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(file, "wb") as opened:
                opened.write(json.dumps(kept).encode())
            os.replace(draft, self.path)
        except OSError as error:
            _log.debug("the authorisation is not kept: %s", error)

    def forget(self) -> None:
        """Delete the file."""
        with suppress(OSError):
            os.unlink(self.path)


def account_info(kept: KeptAuthorization | None, now: Callable[[], float]) -> Any:
    """Return an account info for b2sdk that stores B2's answer to signing in, and the ids of buckets, in `kept`.

    Its `resume(realm, key_id, key)` restores them and returns whether that worked, without a call to B2. `now()` is in
    seconds since the epoch.
    """
    from b2sdk.v3 import InMemoryAccountInfo

    class AccountInfo(InMemoryAccountInfo):  # type: ignore[misc]  # b2sdk has no types
        answered: Mapping[str, Any] | None = None

        def set_auth_data(self, **data: Any) -> None:
            super().set_auth_data(**data)
            self.answered = {"signed_in_at": now(), "account": {name: data[name] for name in _ACCOUNT}}
            self.keep()

        def refresh_entire_bucket_name_cache(self, name_id_iterable: Iterable[tuple[str, str]]) -> None:
            super().refresh_entire_bucket_name_cache(name_id_iterable)
            self.keep()

        def keep(self) -> None:
            ids = dict(self.list_bucket_names_ids())
            if kept and self.answered and ids:
                kept.write({**self.answered, "buckets": ids})

        def resume(self, realm: str, key_id: str, key: str) -> bool:
            found = kept.read(now()) if kept else None
            if found is None:
                return False
            named = {"realm": realm, "application_key_id": key_id, "application_key": key}
            try:
                super().set_auth_data(**found["account"], **named)
            except (AssertionError, TypeError):
                return False
            super().refresh_entire_bucket_name_cache(found["buckets"].items())
            return True

    return AccountInfo()
