"""Does the store honour conditional writes? This is tried out: some stores accept the headers and ignore them.

Backblaze answers 501; Amazon, R2 and MinIO answer 412; a proxy in between may drop headers that it does not know.
"""

import os
from contextlib import suppress
from typing import NamedTuple

from retake.bucket.s3.client import Answered, Lost, Place, Wire
from retake.errors import StorageError


class Conditions(NamedTuple):
    """Which conditional headers a store honours."""

    absent: bool  # If-None-Match: * refuses to overwrite
    match: bool  # If-Match refuses to overwrite anything else


_known: dict[Place, Conditions] = {}


def conditions(wire: Wire, place: Place) -> Conditions:
    """Return what the store honours, tried out once per process. Raises StorageError."""
    if place not in _known:
        _known[place] = _try_out(wire, place)
    return _known[place]


def forget() -> None:
    """Forget the results: for tests, which have several stores at one address."""
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
    """Whether a write whose condition does not hold is refused for that reason."""

    def attempt() -> bool:
        try:
            wire.once("put_object", Key=key, Body=b"", **condition)
        except Answered as error:
            if error.status == 409:  # another write to the same name at the same moment: this proves nothing
                raise Lost(str(error)) from error
            return error.status == 412
        return False

    return wire.repeat("try out the store's conditions", attempt)


def remove_quietly(wire: Wire, key: str) -> None:
    """Remove the object if possible; it does no harm if it stays."""
    with suppress(Answered, StorageError):
        remove(wire, key)


def remove(wire: Wire, key: str) -> None:
    """Remove the object and, where the bucket keeps versions, every version of it. Raises Answered, StorageError."""
    answer = wire.ask(f"delete {key}", "delete_object", Key=key)
    if "VersionId" not in answer and "DeleteMarker" not in answer:
        return
    versions, markers = _versions(wire, key)
    for version in [*versions, *markers]:  # delete markers go last, or an older version would come back
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
