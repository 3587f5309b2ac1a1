"""The authorisation of a key, kept for the processes that come later in a file that only its user can read.

Signing in is a call of class C, two with a key for all buckets, and a tick is one process or several. What B2 answers
holds for 24 hours, so it is kept for nearly as long. The file has the token, which lets whoever reads it act as the key
does until then, and never the key; its name is a digest of the key, so another key has another file. One that others
could have read or written is not used. b2sdk signs in again where B2 refuses the token.
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
_MAX_FILE_BYTES = 64 * 1024  # bytes of a file that is ours
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
"""What `AbstractAccountInfo.set_auth_data` takes besides the key and the realm."""


def cache_folder(environ: Mapping[str, str]) -> str | None:
    """Return the folder for what a user's processes keep: $XDG_CACHE_HOME/retake or ~/.cache/retake; None where the
    environment names no such place.

    >>> cache_folder({"HOME": "/srv/ann"})
    '/srv/ann/.cache/retake'
    """
    named, home = environ.get("XDG_CACHE_HOME", ""), environ.get("HOME", "")
    if os.path.isabs(named):
        return os.path.join(named, "retake")
    return os.path.join(home, ".cache", "retake") if os.path.isabs(home) else None


class KeptAuthorization:
    """The file in `folder` for the key `key_id`, `key` at `realm`. A cache: no method raises where the disk fails."""

    def __init__(self, folder: str, realm: str, key_id: str, key: str) -> None:
        from hashlib import sha256

        self._folder = folder
        digest = sha256("\n".join((realm, key_id, key)).encode()).hexdigest()
        self.path = os.path.join(folder, f"b2-{digest[:40]}.json")

    def read(self, now: float) -> dict[str, Any] | None:
        """Return what `write` was given; None if there is nothing, or it is too old by the clock `now` (seconds since
        the epoch), or others could have read it."""
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
        """Put `kept` in the place of the file."""
        draft = f"{self.path}.{os.getpid()}"
        try:
            os.makedirs(self._folder, 0o700, exist_ok=True)
            with suppress(FileNotFoundError):  # of a process that had our number and died
                os.unlink(draft)
            file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(file, "wb") as opened:
                opened.write(json.dumps(kept).encode())
            os.replace(draft, self.path)
        except OSError as error:
            _log.debug("the authorisation is not kept: %s", error)

    def forget(self) -> None:
        """Remove the file."""
        with suppress(OSError):
            os.unlink(self.path)


def account_info(kept: KeptAuthorization | None, now: Callable[[], float]) -> Any:
    """Return b2sdk's account info, which keeps what B2 answers when it signs in, and the ids of buckets by their names.

    Its `resume(realm, key_id, key)` returns whether it could sign in by what is kept, without asking B2. `now()` is in
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
