"""Whole generations in one process, compared with as many bare durable writes as they make."""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import NamedTuple

from bench.pipelines import ROOT, full, published
from bench.table import markdown
from retake.bucket import Lease
from retake.bucket.directory import DirectoryBucket
from retake.bucket.wrappers import CountingBucket
from retake.clock import SystemClock
from retake.story.content import Prompt, load_prompts
from retake.story.inprocess import InProcessScripts
from retake.story.runner import StoryRunner, story_watch
from retake.story.script import StepContext
from retake.story.settings import SANDBOX_KEYS, Settings
from retake.story.store import DocumentStore
from retake.testing import FakeMedia, FakeVendors

ROUNDS = 5  # each of a few generations, then of as many bare writes
GENERATIONS_PER_ROUND = 4
STEPS = 6  # text, picture ordered, picture ready, upscale ordered, upscale ready, video
WRITES = ("write", "replace", "copy", "delete", "move")
BODY = b"{}\n".ljust(1000)  # about the size of a document


class Pace(NamedTuple):
    """Medians of the rounds."""

    generation_s: float
    writes: float  # durable ones per generation
    bare_s: float  # of one bare write


def generations_table(folder: Path) -> str:
    first = measure(folder / "first", (folder / "first" / f"bucket-{n}" for n in count()))
    steady = measure(folder / "steady", steady_bucket(folder / "steady" / "bucket"))
    title = (
        "Whole generations in a directory, one after the other in one process, with vendors that answer immediately: "
        "one tick each, every step on the disk before the next. The reference is bare durable writes of 1 kB in the "
        "same file system (temp file, write, fsync, rename, fsync of the folder). Durable writes include copies, "
        "deletes and moves; in an empty bucket two of them are the first figures in kpi/. The last column counts only "
        f"{STEPS}, one per step, as the minimum."
    )
    head = (
        "generation",
        "generations/s",
        "durable writes each",
        "bare writes/s",
        "its writes/s ÷ bare",
        f"{STEPS} steps/s ÷ bare",
    )
    rows = [
        ("into an empty bucket", *cells(first)),
        ("one published, two moved up, one made", *cells(steady)),
    ]
    return markdown(title, head, rows)


def cells(pace: Pace) -> tuple[str, ...]:
    share = pace.bare_s / pace.generation_s
    return (
        f"{1 / pace.generation_s:.1f}",
        f"{pace.writes:.0f}",
        f"{1 / pace.bare_s:.0f}",
        f"{share * pace.writes:.2f}",
        f"{share * STEPS:.2f}",
    )


def measure(folder: Path, buckets: Iterator[Path]) -> Pace:
    """Make generations in `buckets`, one in each, and as many bare writes. The first round only fills caches."""
    folder.mkdir(exist_ok=True)
    rounds = [run_round(folder, buckets) for _ in range(ROUNDS + 1)]
    return Pace(*(statistics.median(values) for values in zip(*rounds[1:], strict=True)))


def run_round(folder: Path, buckets: Iterator[Path]) -> Pace:
    spent, writes = 0.0, 0
    for _ in range(GENERATIONS_PER_ROUND):
        path = next(buckets)  # its preparation is not measured
        bucket = CountingBucket(DirectoryBucket(str(path)))
        spent += seconds(lambda bucket=bucket: generate(bucket))  # type: ignore[misc]
        writes += sum(bucket.counts[kind] for kind in WRITES)
    bare = seconds(lambda: bare_writes(folder / "bare", writes))
    return Pace(spent / GENERATIONS_PER_ROUND, writes / GENERATIONS_PER_ROUND, bare / writes)


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def generate(bucket: CountingBucket) -> None:
    """Run one tick that makes a whole generation."""
    settings, vendors, media = Settings(), FakeVendors(), FakeMedia()

    def context(lease: Lease) -> StepContext:
        store = DocumentStore(bucket, settings.paths, lease, SystemClock())
        store.read()
        return StepContext(settings, store, vendors, media, SystemClock())

    scripts = InProcessScripts(context, prompts())
    runner = StoryRunner(settings, bucket, scripts, SANDBOX_KEYS, SystemClock(), owner="bench")
    tick = story_watch(settings, bucket, SystemClock(), {}).tick("story", runner)
    if tick.ended != "done":
        raise RuntimeError(f"no generation was made: {tick}")


@cache
def prompts() -> list[Prompt]:
    return load_prompts(str(ROOT / "config" / "prompts.json"))


def steady_bucket(bucket: Path) -> Iterator[Path]:
    """Yield one bucket again and again, each time in its usual state: three ready groups, the last just published."""
    full(bucket)
    while True:
        published(bucket)
        yield bucket


def bare_writes(folder: Path, number: int) -> None:
    folder.mkdir(exist_ok=True)
    for n in range(number):
        durable_write(str(folder), f"{n % 3}.json", BODY)


def durable_write(folder: str, name: str, data: bytes) -> None:
    """Make the cheapest write that survives a power cut."""
    draft = os.path.join(folder, "draft")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    os.write(file, data)
    os.fsync(file)
    os.close(file)
    os.rename(draft, os.path.join(folder, name))
    names = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(names)
    os.close(names)
