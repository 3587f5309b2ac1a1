"""Where state lives: a directory, Backblaze B2, or a store that speaks S3's protocol, behind one contract.

    bucket = open_bucket("file:/srv/retake")
    version = bucket.write("config/config_gen.json", b"{}", ABSENT)

The contract is in retake.bucket.contract. Each backend is a package (directory, b2, s3); `claims` are the leases of B2
and S3. MemoryBucket and FailingBucket are for tests; other wrappers count, or act under a prefix or a lease.
"""

import os
from typing import TYPE_CHECKING

from retake.bucket.contract import (
    ABSENT,
    ANY,
    Bucket,
    Conflict,
    Entry,
    Expect,
    Handover,
    Holder,
    Lease,
    LeaseTerms,
    NotFound,
    Room,
    check_key,
    check_prefix,
)
from retake.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from retake.settings.shared import StorageSettings, Workflow

__all__ = [
    "ABSENT",
    "ANY",
    "Bucket",
    "Conflict",
    "Entry",
    "Expect",
    "Handover",
    "Holder",
    "Lease",
    "LeaseTerms",
    "NotFound",
    "Room",
    "check_key",
    "check_prefix",
    "open_bucket",
    "open_configured",
    "this_process",
]


def open_bucket(
    url: str,
    *,
    lease_terms: LeaseTerms | None = None,
    dead_mans_switch: bool = False,
    umask: int = 0o077,
    follow_links: bool = False,
    keep_authorization: bool = False,
) -> Bucket:
    """Return the bucket that `url` (the settings key `STORAGE.url`) names. Nothing is read or written yet.

    `file:PATH` is a directory. The first write creates it; its parent folder must exist.
    `b2://BUCKET/PREFIX` is a place on Backblaze B2, with the keys in the environment; `?realm=URL` names another realm.
    `s3://BUCKET/PREFIX?endpoint=URL&region=NAME` is a place in a store that speaks S3's protocol.

    With `dead_mans_switch` the kernel kills this process when a lease that it took expires (see
    retake.bucket.claims.lease). A directory's leases do not expire. `umask` restricts the files and folders that a
    directory bucket creates; `follow_links` allows its folders to be symbolic links. `keep_authorization` saves later
    processes from signing in to B2 again (retake.bucket.b2.authorization).

    Raises SettingsError for a URL that names no bucket, or one whose libraries are not installed.

    >>> bucket = open_bucket("file:posters")
    >>> version = bucket.write("aurora.txt", b"green", ABSENT)
    >>> bucket.read("aurora.txt") == (b"green", version)
    True
    """
    scheme, _, rest = url.partition(":")
    if scheme == "file" and rest:
        from retake.bucket.directory import DirectoryBucket

        return DirectoryBucket(rest, umask=umask, follow_links=follow_links)
    if scheme == "s3" and rest.startswith("//"):
        from retake.extras import require

        require("s3", "STORAGE.url: a bucket on S3")
        from retake.bucket.s3 import S3Bucket

        return S3Bucket(url, lease_terms=lease_terms, kill_timer=_kill_timer(dead_mans_switch))
    if scheme == "b2" and rest.startswith("//"):
        from retake.extras import require

        require("b2", "STORAGE.url: a bucket on B2")
        from retake.bucket.b2.bucket import open_b2

        keys = os.environ if keep_authorization else None
        return open_b2(url, environ=keys, lease_terms=lease_terms, kill_timer=_kill_timer(dead_mans_switch))
    shapes = "use file:PATH, b2://BUCKET/PREFIX or s3://BUCKET/PREFIX?endpoint=URL&region=NAME"
    raise SettingsError(f"STORAGE.url: {url!r} names no bucket; {shapes}")


def _kill_timer(dead_mans_switch: bool) -> "Callable[[float], None]":
    from retake.bucket.claims.lease import no_kill_timer, set_kill_timer

    return set_kill_timer if dead_mans_switch else no_kill_timer


def this_process() -> str:
    """Return the owner that this process names in its leases, for people to read: host:pid.

    >>> lease = open_bucket("file:posters").lease("posters", this_process())
    >>> lease.release()
    """
    return f"{os.uname().nodename}:{os.getpid()}"


def open_configured(storage: "StorageSettings", workflow: "Workflow", *, dead_mans_switch: bool = False) -> Bucket:
    """Open the bucket that STORAGE names, with the lease terms of WORKFLOW. `dead_mans_switch` is that of
    `open_bucket`. Raises SettingsError."""
    from retake.logs import diagnosing

    ttl, skew = workflow.lock_ttl_seconds, workflow.lock_skew_seconds
    skew = min(30.0, ttl / 4) if skew is None else skew
    bucket = open_bucket(
        storage.url,
        lease_terms=LeaseTerms(ttl_s=ttl, skew_s=skew, margin_s=min(5.0, ttl / 24)),
        dead_mans_switch=dead_mans_switch,
        umask=int(storage.umask, 8),
        follow_links=storage.follow_links,
        keep_authorization=storage.keep_authorization,
    )
    if diagnosing():
        from retake.bucket.diagnosed import DiagnosedBucket

        return DiagnosedBucket(bucket)
    return bucket
