"""Deaths of the service before and after each of its writes and calls, one by one.

A death raises `Died`, which no code of the package catches: the process does nothing more.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from retake.bucket.memory import MemoryBucket
from retake.media.thumbnail import thumbnail
from retake.media.waveform import waveform_video
from retake.music.steps import video
from retake.runs.database import Database
from retake.testing.vendors import Died
from retake.vendors import download, http, telegram, youtube_account


class Fate:
    """Counts the points at which a process can die, and dies at the planned ones."""

    def __init__(self) -> None:
        self.count = 0
        self.plan: frozenset[int] = frozenset()
        self.deaths = 0

    def reset(self, *plan: int) -> None:
        self.count, self.plan, self.deaths = 0, frozenset(plan), 0

    def point(self, *, inside: bool = False) -> None:
        """Die here, if that is planned. `inside` means within a transaction that is not yet committed."""
        self.count += 1
        if self.count - 1 in self.plan:
            self.deaths += 1
            raise Died


class MortalBucket(MemoryBucket):
    """A bucket whose process may die before and after each write."""

    def __init__(self, fate: Fate) -> None:
        super().__init__()
        self._fate = fate

    def write(self, *arguments: Any, **named: Any) -> Any:
        self._fate.point()
        done = super().write(*arguments, **named)
        self._fate.point()
        return done


def make_mortal(database: Database, fate: Fate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a process die before and after each transaction of the database, and before and after each HTTP request."""
    transaction, write = database.transaction, database.write

    @contextmanager
    def mortal_transaction() -> Iterator[Any]:
        with transaction() as cursor:
            yield cursor
            fate.point(inside=True)
        fate.point()

    @contextmanager
    def mortal_write() -> Iterator[Any]:
        fate.point()
        with write() as cursor:
            yield cursor
        fate.point()

    def mortal_exchange(*arguments: Any, **named: Any) -> Any:
        fate.point()
        reply = http.__dict__["_exchange_itself"](*arguments, **named)
        fate.point()
        return reply

    monkeypatch.setattr(database, "transaction", mortal_transaction)
    monkeypatch.setattr(database, "write", mortal_write)
    monkeypatch.setattr(http, "_exchange_itself", http.exchange, raising=False)
    for module in (http, download, telegram, youtube_account):
        monkeypatch.setattr(module, "exchange", mortal_exchange)


_thumbnail = cache(thumbnail)
_videos: dict[tuple[bytes, bytes, str], bytes] = {}


def make_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ffmpeg and Pillow make videos and thumbnails of the same cover, track and words only once. They would be the
    same each time, and a process cannot die in between."""

    def made_once(cover: bytes, audio: Path, out: Path, *, colour: str, **limits: Any) -> None:
        made_of = cover, audio.read_bytes(), colour
        if made_of in _videos:
            out.write_bytes(_videos[made_of])
        else:
            waveform_video(cover, audio, out, colour=colour, **limits)
            _videos[made_of] = out.read_bytes()

    monkeypatch.setattr(video, "waveform_video", made_once)
    monkeypatch.setattr(video, "thumbnail", _thumbnail)
