"""Probes whether the store honours conditional writes: some stores accept the headers and ignore them.

Backblaze answers 501; Amazon, R2 and MinIO answer 412; a proxy in between may drop headers that it does not know.

A probe takes four requests, and the result is the same for every process. So it is kept beside the claims for
`FRESH_S`, with the date by the store's clock and the address of this bucket: a result that was copied from another
store does not count.
"""

import json
import os
from contextlib import suppress
from typing import NamedTuple

from retake.bucket.s3.client import AnswerLost, RequestRefused, S3Client, S3Place, date_of
from retake.bucket.s3.removal import remove_quietly
from retake.errors import StorageError

FRESH_S = 7 * 24 * 3600.0


class Conditions(NamedTuple):
    """Which conditional headers a store honours."""

    absent: bool  # If-None-Match: * refuses to overwrite
    match: bool  # If-Match refuses to overwrite anything else


_known: dict[S3Place, Conditions] = {}


def conditions(client: S3Client, place: S3Place) -> Conditions:
    """Return what the store honours, as remembered in the bucket or else by a probe. Raises StorageError."""
    if place not in _known:
        _known[place] = _recall(client, place) or _try_out(client, place)
    return _known[place]


def forget() -> None:
    """Forget the results: for tests, which have several stores at one address."""
    _known.clear()


def _recall(client: S3Client, place: S3Place) -> Conditions | None:
    """Return the remembered result, or None if there is none or it is too old. Raises StorageError."""
    try:
        answer = client.ask("read what the store honours", "get_object", Key=_key(place))
    except RequestRefused:
        return None
    try:
        kept, now = json.loads(answer["Body"]), date_of(answer)
    except (ValueError, RecursionError):
        return None
    if not isinstance(kept, dict) or now is None or kept.get("store") != _store(place):
        return None
    absent, match, tried = kept.get("absent"), kept.get("match"), kept.get("tried_at")
    if not isinstance(tried, (int, float)) or not 0 <= now - tried < FRESH_S:
        return None
    return Conditions(absent, match) if isinstance(absent, bool) and isinstance(match, bool) else None


def _remember(client: S3Client, place: S3Place, found: Conditions, tried: float) -> None:
    """Keep the result of a probe at `tried`, in seconds since the epoch by the store's clock. Failure does no harm."""
    kept = {"store": _store(place), **found._asdict(), "tried_at": tried}
    with suppress(RequestRefused, StorageError):
        client.ask("keep what the store honours", "put_object", Key=_key(place), Body=json.dumps(kept).encode())


def _key(place: S3Place) -> str:
    return f"{place.prefix}.retake/conditions.json"


def _store(place: S3Place) -> list[str | None]:
    return [place.endpoint, place.region, place.bucket]


def _try_out(client: S3Client, place: S3Place) -> Conditions:
    key = f"{place.prefix}.retake/scratch/probe-{os.urandom(8).hex()}"
    try:
        tried = date_of(client.must("try out the store", "put_object", Key=key, Body=b""))
        found = Conditions(
            absent=_refuses(client, key, {"IfNoneMatch": "*"}),
            match=_refuses(client, key, {"IfMatch": '"00000000000000000000000000000000"'}),
        )
        if tried is not None:
            _remember(client, place, found, tried)
        return found
    finally:
        remove_quietly(client, key)


def _refuses(client: S3Client, key: str, condition: dict[str, str]) -> bool:
    """Return whether the store refuses a write for its unmet condition."""

    def attempt() -> bool:
        try:
            client.once("put_object", Key=key, Body=b"", **condition)
        except RequestRefused as error:
            if error.status == 409:  # another write to the same name at the same moment: this proves nothing
                raise AnswerLost(str(error)) from error
            return error.status == 412
        return False

    return client.repeat("try out the store's conditions", attempt)
