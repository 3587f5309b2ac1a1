"""Does the store honour conditions? Tried out, for stores differ, and some accept the headers and ignore them.

Backblaze answers 501; Amazon, R2 and MinIO answer 412; a proxy in between may drop what it does not know.
"""

import os
from contextlib import suppress
from typing import NamedTuple

from retake.bucket.s3.client import Answered, Lost, Place, Wire
from retake.errors import StorageError


class Conditions(NamedTuple):
    """What a store does with the headers of a write."""

    absent: bool  # If-None-Match: * refuses to overwrite
    match: bool  # If-Match refuses to overwrite anything else


_known: dict[Place, Conditions] = {}


def conditions(wire: Wire, place: Place) -> Conditions:
    """What the store honours, tried once in the life of the process. Raises StorageError."""
    if place not in _known:
        _known[place] = _try_out(wire, place)
    return _known[place]


def forget() -> None:
    """Try out again: for tests, which have several stores at one address."""
    _known.clear()


def _try_out(wire: Wire, place: Place) -> Conditions:
    key = f"{place.prefix}.retake/scratch/probe-{os.urandom(8).hex()}"
    try:
        wire.ask("try out the store", "put_object", Key=key, Body=b"")
        return Conditions(
            absent=_refuses(wire, key, {"IfNoneMatch": "*"}),
            match=_refuses(wire, key, {"IfMatch": '"00000000000000000000000000000000"'}),
        )
    except Answered as error:
        raise wire.failed("try out the store", error) from error
    finally:
        remove_quietly(wire, key)


def _refuses(wire: Wire, key: str, condition: dict[str, str]) -> bool:
    """Whether a write whose condition does not hold is refused, for that reason and no other."""

    def attempt() -> bool:
        try:
            wire.once("put_object", Key=key, Body=b"", **condition)
        except Answered as error:
            if error.status == 409:  # another write to the same name at the same moment: it does not say
                raise Lost(str(error)) from error
            return error.status == 412
        return False

    return wire.repeat("try out the store's conditions", attempt)


def remove_quietly(wire: Wire, key: str) -> None:
    with suppress(Answered, StorageError):
        remove(wire, key)


def remove(wire: Wire, key: str) -> None:
    """Remove the object and, where the bucket keeps versions, every version of it. Raises Answered, StorageError."""
    answer = wire.ask(f"delete {key}", "delete_object", Key=key)
    if "VersionId" not in answer and "DeleteMarker" not in answer:
        return
    versions, markers = _versions(wire, key)
    for version in [*versions, *markers]:  # what marks it as deleted goes last, or an older version would come back
        wire.ask(f"delete {key}", "delete_object", Key=key, VersionId=version)


def _versions(wire: Wire, key: str) -> tuple[list[str], list[str]]:
    versions: list[str] = []
    markers: list[str] = []
    more: dict[str, str] = {}
    while True:
        answer = wire.ask(f"list versions of {key}", "list_object_versions", Prefix=key, **more)
        versions += [it["VersionId"] for it in answer.get("Versions", []) if it["Key"] == key]
        markers += [it["VersionId"] for it in answer.get("DeleteMarkers", []) if it["Key"] == key]
        past = answer.get("NextKeyMarker", "")
        if not answer.get("IsTruncated") or past > key:
            return versions, markers
        more = {"KeyMarker": past, "VersionIdMarker": answer.get("NextVersionIdMarker", "")}
