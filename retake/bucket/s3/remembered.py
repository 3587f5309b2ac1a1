"""What a store made of conditional writes, remembered in the bucket with the date by the store's clock.

Trying a store out takes four requests and is the same for every process. So the result is kept beside the claims for
`FRESH_S`, for this bucket at this endpoint: what was copied from another store does not count.
"""

import json
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any

from retake.bucket.s3.client import RequestRefused, S3Client, S3Place
from retake.errors import StorageError

FRESH_S = 7 * 24 * 3600.0


def recall(client: S3Client, place: S3Place) -> tuple[bool, bool] | None:
    """Return whether If-None-Match and If-Match are honoured, as was found not long ago; else None. Raises
    StorageError."""
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
    found, tried = (kept.get("absent"), kept.get("match")), kept.get("tried_at")
    if not isinstance(tried, (int, float)) or not 0 <= now - tried < FRESH_S:
        return None
    return (found[0], found[1]) if isinstance(found[0], bool) and isinstance(found[1], bool) else None


def remember(client: S3Client, place: S3Place, absent: bool, match: bool, tried: float | None) -> None:
    """Keep what was found at `tried`, in seconds since the epoch by the store's clock; None: it tells no time. It does
    no harm if that fails."""
    if tried is None:
        return
    kept = {"store": _store(place), "absent": absent, "match": match, "tried_at": tried}
    with suppress(RequestRefused, StorageError):
        client.ask("keep what the store honours", "put_object", Key=_key(place), Body=json.dumps(kept).encode())


def date_of(answer: dict[str, Any]) -> float | None:
    """Return when the store answered, by its clock, in whole seconds since the epoch; None if it does not say."""
    text = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    try:
        return parsedate_to_datetime(text).timestamp() if text else None
    except ValueError:
        return None


def _key(place: S3Place) -> str:
    return f"{place.prefix}.retake/conditions.json"


def _store(place: S3Place) -> list[str | None]:
    return [place.endpoint, place.region, place.bucket]
