"""Snapshots of a state, to recover from (docs/protocol.md, section "NR.NSI.9").

    snapshots = Snapshots(bucket, "kpi/snapshots", clock, replicas=[elsewhere])
    snapshots.take({"made": 12})    # True; False within the next five minutes
    snapshots.restore()             # {"made": 12}, from the bucket or a replica

Each is one document, FOLDER/YYYYMMDDTHHMMSS.FFFFFFZ.json, with a digest that reveals a truncated or damaged one. Other
files in the folder are left alone.
"""

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from logging import getLogger
from typing import Any, NamedTuple

from retake import strict_json
from retake.bucket import ABSENT, Bucket, Conflict, NotFound
from retake.clock import Clock, exact_stamp, parse_stamp
from retake.errors import StorageError

KEEP = 12
"""Number of snapshots kept in each bucket: at one every five minutes, an hour's worth."""

_NAME = "%Y%m%dT%H%M%S.%fZ.json"
_log = getLogger(__name__)


class _Place(NamedTuple):
    """A snapshot in one of the buckets."""

    at: datetime  # from its name, which sorts by time
    bucket: int  # 0: the first
    key: str


class _Snapshot(NamedTuple):
    """An intact snapshot."""

    taken_at: datetime
    state: Any


class Snapshots:
    """The snapshots in `folder` of `bucket` and of each of the `replicas`, at most one every `every_s` seconds.

    The newest is the one taken last, even if the clock was set back in the meantime: its name is then the previous name
    plus one microsecond.
    """

    def __init__(
        self, bucket: Bucket, folder: str, clock: Clock, every_s: float = 300, replicas: Sequence[Bucket] = ()
    ) -> None:
        self._buckets = (bucket, *replicas)
        self._folder = folder.rstrip("/") + "/"
        self._clock, self._every_s = clock, every_s
        self._taken_at: datetime | None = None

    def take(self, state: Any) -> bool:
        """Keep `state` in every bucket and return True; return False if it is too early.

        If a bucket is unreachable, the others still take it, and that bucket gets the next one. Older snapshots are
        removed once the new one is written. Raises StorageError if no bucket takes it, and ValueError for a state that
        is not JSON.
        """
        now, state = self._clock.now(), strict_json.as_stored(state)
        if self._is_early(self._taken_at, now):
            return False
        places, _ = self._listed()
        newest, _ = self._newest(places)
        if newest and self._is_early(newest.taken_at, now):
            self._taken_at = newest.taken_at
            return False
        at = max(now, places[0].at + timedelta(microseconds=1)) if places else now
        taken_at = exact_stamp(now)
        data = strict_json.encode({"taken_at": taken_at, "sha256": _digest(taken_at, state), "state": state})
        taken = self._write(f"{self._folder}{at.astimezone(UTC).strftime(_NAME)}", data)
        self._tidy([place for place in places if place.bucket in taken])
        self._taken_at = now
        return bool(taken)

    def restore(self) -> Any | None:
        """Return the state of the newest intact snapshot in any bucket, or None if there is none.

        Raises StorageError if none was found but a bucket was unreachable.
        """
        places, not_listed = self._listed()
        newest, not_read = self._newest(places)
        if newest:
            return newest.state
        if away := not_listed or not_read:
            raise away
        return None

    def _is_early(self, last: datetime | None, now: datetime) -> bool:
        return last is not None and last <= now < last + timedelta(seconds=self._every_s)

    def _listed(self) -> tuple[list[_Place], StorageError | None]:
        """Return all snapshots, newest first, and the error of a bucket that could not be listed, if any."""
        places, away = [], None
        for number, bucket in enumerate(self._buckets):
            try:
                entries = bucket.list(self._folder)
            except StorageError as error:
                _log.warning("the snapshots in %s%s cannot be listed: %s", bucket.url, self._folder, error)
                away = error
                continue
            named = ((_time_of(entry.key.removeprefix(self._folder)), entry.key) for entry in entries)
            places += [_Place(at, number, key) for at, key in named if at]
        return sorted(places, key=lambda place: (place.at, -place.bucket), reverse=True), away

    def _newest(self, places: Sequence[_Place]) -> tuple[_Snapshot | None, StorageError | None]:
        """Return the first intact one, and the error of an earlier one that could not be read, if any."""
        away = None
        for place in places:
            try:
                found = _snapshot(self._buckets[place.bucket].read(place.key)[0])
            except NotFound:  # another process has removed it
                continue
            except StorageError as error:
                _log.warning("the snapshot %s cannot be read: %s", place.key, error)
                away = error
                continue
            if found:
                return found, away
            _log.error("the snapshot %s%s is damaged", self._buckets[place.bucket].url, place.key)
        return None, away

    def _write(self, key: str, data: bytes) -> set[int]:
        """Return the buckets that took it. Raises StorageError if none did, unless another process was faster."""
        taken, failure = set(), None
        for number, bucket in enumerate(self._buckets):
            try:
                bucket.write(key, data, ABSENT)
            except Conflict:
                continue
            except StorageError as error:
                _log.warning("a snapshot could not be written to %s%s: %s", bucket.url, key, error)
                failure = error
            else:
                taken.add(number)
        if failure and not taken:
            raise failure
        return taken

    def _tidy(self, places: Sequence[_Place]) -> None:
        """Remove old snapshots from each bucket. `places` are those that existed before the new one, newest first."""
        for number, bucket in enumerate(self._buckets):
            for place in [it for it in places if it.bucket == number][KEEP - 1 :]:
                try:
                    bucket.delete(place.key)
                except StorageError as error:
                    _log.warning("the old snapshot %s could not be removed: %s", place.key, error)


def _time_of(name: str) -> datetime | None:
    """Return the time in a file name, or None for a file that is not a snapshot."""
    try:
        return datetime.strptime(name, _NAME).replace(tzinfo=UTC)
    except ValueError:
        return None


def _snapshot(data: bytes) -> _Snapshot | None:
    """Return the snapshot in a document, or None if it is damaged."""
    try:
        document = json.loads(data)
        taken_at, state = document["taken_at"], document["state"]
        whole = document["sha256"] == _digest(taken_at, state)
        return _Snapshot(parse_stamp(taken_at), state) if whole else None
    except (ValueError, TypeError, LookupError, RecursionError):
        return None


def _digest(taken_at: str, state: Any) -> str:
    text = json.dumps([taken_at, state], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
