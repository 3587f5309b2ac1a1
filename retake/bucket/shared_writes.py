"""Replacing an object that a program without Retake's locks writes too.

This is no part of the contract: one document needs it, config_public.json, which the publisher writes. Every backend
offers it, and tests/bucket/contract.py checks it with the rest:

    shared_writes(bucket).replace(key, data, version, aside=f"{key}.displaced-0")
"""

from typing import Protocol, runtime_checkable

from retake.bucket.contract import Bucket, Expect


@runtime_checkable
class SharedWrites(Protocol):
    """What a bucket offers besides the contract."""

    def replace(self, key: str, data: bytes, expect: str | Expect, aside: str) -> str:
        """Write like `Bucket.write`, without losing anything that a program without our locks writes meanwhile.

        Such a program can write between any two of our steps. So the write is an exchange: if what it displaced is not
        what was expected, that is put back immediately, and Conflict is raised. Everything of the other program's that
        was displaced, however briefly, is then kept under the key `aside` or one that begins with it, even if it was
        put back: a program that read our `data` in between may write that back, without what was added before.

        A successful call leaves nothing under `aside`. A crash leaves what was displaced, or `data` itself, or nothing:
        merge it before you delete it. Raises Conflict if `aside` exists. Only the holder of the lease may call this.
        """
        ...


def shared_writes(bucket: Bucket) -> SharedWrites:
    """Return `bucket` as one that can replace shared objects. Raises TypeError if it cannot."""
    if not isinstance(bucket, SharedWrites):
        raise TypeError(f"{bucket.url}: {type(bucket).__name__} cannot replace objects that other programs write too")
    return bucket
