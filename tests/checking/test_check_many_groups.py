"""100,000 archived groups: memory stays flat, the bucket is listed once, and only the text of each group is read."""

import json
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator

from story_sites import MEDIA, content

from retake.bucket import Entry
from retake.bucket.memory import MemoryBucket
from retake.checking import Check, CheckReport, Scope
from retake.checking.engine import Progress
from retake.clock import FakeClock
from retake.story.documents import GROUP
from retake.story.examinations import examinations
from retake.story.settings import Settings

FEW, SOME, MANY = 1_000, 10_000, 100_000
FLAT = 200_000  # bytes that ten times as many may add to the peak; tracing 100,000 takes minutes
BLOCKS = 2_000  # blocks that 100,000 groups may add to those of the first 1,000: one for each would be 99,000


class ArchiveOf(MemoryBucket):
    """A bucket with many archived groups and none in memory: each file is created when requested."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups, self.counts = groups, Counter[str]()
        self._text = json.dumps(content("ID")).encode()

    def scan(self, prefix: str) -> Iterator[Entry]:
        self.counts["list"] += 1
        for number in range(self.groups):
            for suffix in GROUP:
                yield Entry(f"archive/{_name(number)}.{suffix}", 500, 0.0)

    def list(self, prefix: str) -> list[Entry]:
        self.counts["list"] += 1
        return []

    def read(self, key: str) -> tuple[bytes, str]:
        self.counts["read"] += 1
        name, _, suffix = key.removeprefix("archive/").rpartition(".")
        return (self._text.replace(b'"ID"', f'"{name}"'.encode()) if suffix == "json" else MEDIA[suffix]), "1"

    def read_range(self, key: str, first: int, last: int) -> bytes:
        return self.read(key)[0][first : last + 1]


def _name(number: int) -> str:
    return f"{20100101 + number // 1440:08d}-{number % 1440:04d}"


def checked(bucket: ArchiveOf, *, media: bool = False, progress: Progress = lambda title, number: None) -> CheckReport:
    those = [it for it in examinations("", Settings(), FakeClock()) if it.title == "groups of story"]
    return Check(those, Scope(bucket, FakeClock(), media=media), progress).run()


def peak(groups: int) -> int:
    """Return the peak memory of Python during a check."""
    tracemalloc.start()
    try:
        checked(ArchiveOf(groups))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_many_groups_take_one_listing_and_one_read_each() -> None:
    bucket, blocks = ArchiveOf(MANY), list[int]()

    def sample(title: str, number: int) -> None:
        if number % FEW == 0:
            blocks.append(sys.getallocatedblocks())

    report = checked(bucket, progress=sample)
    assert report.whole
    assert (report.looked_at["groups"], report.looked_at["objects"]) == (MANY, 3 * MANY)
    assert bucket.counts == {"list": 1, "read": MANY}
    assert len(blocks) == MANY // FEW
    assert max(blocks) < blocks[0] + BLOCKS


def test_with_media_each_picture_and_video_of_a_part_or_less_is_one_more_read() -> None:
    bucket = ArchiveOf(FEW)

    def scan(prefix: str) -> Iterator[Entry]:
        for entry in ArchiveOf.scan(bucket, prefix):
            yield entry._replace(size=len(MEDIA.get(entry.key.rpartition(".")[2], b"text")))

    bucket.scan = scan  # type: ignore[method-assign]
    report = checked(bucket, media=True)
    assert report.findings == []
    assert report.looked_at["media"] == 2 * FEW
    assert bucket.counts == {"list": 1, "read": 3 * FEW}


def test_memory_does_not_grow_with_the_groups() -> None:
    peak(FEW)  # loads what is loaded once
    assert peak(SOME) < peak(FEW) + FLAT
