"""Does the store honour conditional writes? This is tried out: some stores accept the headers and ignore them.

Backblaze answers 501; Amazon, R2 and MinIO answer 412; a proxy in between may drop headers that it does not know.
"""

import os
from contextlib import suppress
from typing import NamedTuple

from retake.bucket.s3.client import AnswerLost, RequestRefused, S3Client, S3Place
from retake.bucket.s3.remembered import date_of, recall, remember
from retake.errors import StorageError


class Conditions(NamedTuple):
    """Which conditional headers a store honours."""

    absent: bool  # If-None-Match: * refuses to overwrite
    match: bool  # If-Match refuses to overwrite anything else


_known: dict[S3Place, Conditions] = {}


def conditions(client: S3Client, place: S3Place) -> Conditions:
    """Return what the store honours, as the bucket remembers it (see remembered.py), or else tried out. Raises
    StorageError."""
    if place not in _known:
        recalled = recall(client, place)
        _known[place] = Conditions(*recalled) if recalled else _try_out(client, place)
    return _known[place]


def forget() -> None:
    """Forget the results: for tests, which have several stores at one address."""
    _known.clear()


def _try_out(client: S3Client, place: S3Place) -> Conditions:
    key = f"{place.prefix}.retake/scratch/probe-{os.urandom(8).hex()}"
    try:
        tried = date_of(client.ask("try out the store", "put_object", Key=key, Body=b""))
        found = Conditions(
            absent=_refuses(client, key, {"IfNoneMatch": "*"}),
            match=_refuses(client, key, {"IfMatch": '"00000000000000000000000000000000"'}),
        )
        remember(client, place, *found, tried)
    except RequestRefused as error:
        raise client.failed("try out the store", error) from error
    else:
        return found
    finally:
        remove_quietly(client, key)


def _refuses(client: S3Client, key: str, condition: dict[str, str]) -> bool:
    """Whether a write whose condition does not hold is refused for that reason."""

    def attempt() -> bool:
        try:
            client.once("put_object", Key=key, Body=b"", **condition)
        except RequestRefused as error:
            if error.status == 409:  # another write to the same name at the same moment: this proves nothing
                raise AnswerLost(str(error)) from error
            return error.status == 412
        return False

    return client.repeat("try out the store's conditions", attempt)


def remove_quietly(client: S3Client, key: str) -> None:
    """Remove the object if possible; it does no harm if it stays."""
    with suppress(RequestRefused, StorageError):
        remove(client, key)


def remove(client: S3Client, key: str) -> None:
    """Remove the object with every version that the store keeps, but none that somebody writes meanwhile. Raises
    RequestRefused, StorageError."""
    answer = client.ask(f"delete {key}", "delete_object", Key=key)
    if "VersionId" not in answer and "DeleteMarker" not in answer:
        return
    versions, markers = _versions(client, key)
    for version in [*versions, *markers]:  # delete markers go last, or an older version would come back
        client.ask(f"delete {key}", "delete_object", Key=key, VersionId=version)


def _versions(client: S3Client, key: str) -> tuple[list[str], list[str]]:
    """Return the versions before the last delete marker, and the markers."""
    versions: list[str] = []
    markers: list[str] = []
    more: dict[str, str] = {}
    while True:
        answer = client.ask(f"list versions of {key}", "list_object_versions", Prefix=key, **more)
        older = (it for it in answer.get("Versions", []) if not it.get("IsLatest"))
        versions += [it["VersionId"] for it in older if it["Key"] == key]
        markers += [it["VersionId"] for it in answer.get("DeleteMarkers", []) if it["Key"] == key]
        past = answer.get("NextKeyMarker", "")
        if not answer.get("IsTruncated") or past > key:
            return versions, markers
        more = {"KeyMarker": past, "VersionIdMarker": answer.get("NextVersionIdMarker", "")}
