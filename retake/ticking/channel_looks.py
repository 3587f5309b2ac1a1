"""Remembers how a tick over many channels found them, so that the next one opens only those that changed or are due.

A remembered look can only let a channel rest. What to do in a channel is decided anew each time, under its lease. The
looks are in one file of the user's cache (see rest.py). Without it, every channel is opened.
"""

import json
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import NamedTuple

from retake.bucket import Bucket
from retake.ticking.channel_versions import MARKED, ChannelVersion, channel_versions
from retake.ticking.rest import LookFile, RememberedLook, in_time

_LARGE = ""
"""The key, in place of a channel's name, of the time since which the bucket is too large to be listed, in UNIX
seconds."""


class ChannelRest(NamedTuple):
    """Why a channel rests until it changes."""

    why: str  # in words, for the log
    due_at: float | None = None  # when something is due in it, in UNIX seconds, or None
    task: tuple[str, ...] = ()  # the vendor's task that it waits for: it rests while that is still running


class ChannelLooks:
    """The looks of one round of ticks. Thread safe.

    `basis` is a digest of everything that ticks depend on, except the channels themselves. The round begins at `now`,
    in UNIX seconds. A look that is `longest_s` seconds old no longer counts, and its channel is opened.
    """

    def __init__(self, file: LookFile | None, basis: str, now: float, longest_s: float) -> None:
        self._file, self._basis = file, basis
        self._now, self._longest_s = now, longest_s
        before = file.read() if file else None
        self._before = before.seen if before and before.basis == basis else {}
        self._versions: Mapping[str, ChannelVersion] = {}
        self._found: dict[str, str] = {}
        self._lock = Lock()

    def compare(self, bucket: Bucket, places: Mapping[str, Sequence[str]]) -> None:
        """Find out the current versions of the channels, before any of them is opened. For the parameters see
        `channel_versions`. Raises StorageError."""
        since = self._large_since()
        self._versions = channel_versions(bucket, places, whole=since is None)
        if any(it.version.startswith(MARKED) for it in self._versions.values()):
            self._found[_LARGE] = repr(self._now if since is None else since)

    def _large_since(self) -> float | None:
        """Return since when the bucket is known to be too large to be listed, or None to try a listing."""
        try:
            since = float(self._before[_LARGE])
        except (KeyError, ValueError):
            return None
        return since if self._is_in_time(since, None) else None

    def _is_in_time(self, looked_at: float, due_at: float | None) -> bool:
        return in_time(RememberedLook(self._basis, {}, looked_at, due_at), self._now, self._longest_s)

    def rest(self, channel: str) -> ChannelRest | None:
        """Return why the channel may rest, or None if it must be opened."""
        text, there = self._before.get(channel), self._versions.get(channel)
        if text is None or there is None:
            return None
        try:
            version, looked_at, due_at, why, task = json.loads(text)
            if version == there.version and self._is_in_time(looked_at, due_at):
                return ChannelRest(str(why), due_at, tuple(map(str, task)))
        except (ValueError, TypeError):
            pass  # other code wrote it
        return None

    def rested(self, channel: str) -> None:
        """Keep the look of a channel that rested, for the next tick."""
        with self._lock:
            self._found[channel] = self._before[channel]

    def opened(self, channel: str, rest: ChannelRest) -> None:
        """Remember a channel that was opened and has nothing to do but wait."""
        there = self._versions.get(channel)
        if there is None:
            return
        look = RememberedLook(self._basis, {}, self._now, rest.due_at, there.changed_at)
        if look.settled:
            text = json.dumps([there.version, self._now, rest.due_at, rest.why, rest.task])
            with self._lock:
                self._found[channel] = text

    def save(self) -> None:
        """Save the looks for the next tick. Call this once all ticks have ended."""
        if self._file and self._versions and self._found != self._before:
            self._file.write(RememberedLook(self._basis, self._found, self._now))
