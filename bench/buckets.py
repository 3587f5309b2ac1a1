"""The cost of a tick on each kind of bucket: time compared with the bare client, requests, and B2's price for them."""

import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from bench.bare import Call, Calls, Recording, record_b2, record_s3, replay_b2, replay_directory, replay_s3
from bench.operations import count_operations
from bench.pipelines import MANAGER, environment, full, waiting
from bench.servers import Store, server
from bench.table import markdown
from retake.bucket import ANY, Bucket, Lease, open_bucket
from retake.bucket.b2.bucket import parse_url
from retake.bucket.b2.price import DOLLARS, FREE_A_DAY, by_class
from retake.clock import SystemClock
from retake.sandbox import Pace, Sandbox
from retake.story.runner import StoryRunner, story_watch
from retake.story.settings import SANDBOX_KEYS, Settings, sandboxed
from retake.ticking.tick import ScriptResult

ROUNDS = 6
ROUND_S = 0.4  # of ticks, and then as long of the bare client's calls
TICKS_PER_DAY = 24 * 60
DAYS = 30

KINDS: Mapping[str, tuple[str, ...]] = {
    "list": ("list", "b2_list_file_versions", "list_objects_v2"),
    "read": ("read", "b2_download_file_by_id", "get_object"),
    "look": ("find", "head_object"),
    "write": ("write", "replace", "b2_upload_file", "put_object"),
    "copy": ("copy", "b2_copy_file", "copy_object"),
    "delete": ("delete", "b2_delete_file_version", "delete_object"),
    "lease": ("lease", "join"),
    "sign in": ("b2_authorize_account", "b2_list_buckets", "b2_get_upload_url"),
}


class Spent(NamedTuple):
    """The seconds of one tick, or of the bare client making its calls."""

    wall: float
    cpu: float


class Asked(NamedTuple):
    """The names of a tick's calls to its store."""

    idle: Sequence[str]
    busy: Sequence[str]
    resting: Sequence[str] = ()


def buckets_table(folder: Path) -> str:
    with server("b2") as b2, server("s3") as s3, Sandbox(pace=Pace(0, 0, 0), quick=True) as vendors:
        places = laid_out(folder, vendors)
        speeds = [("directory", *speed(*directory_pair(places["idle"])))]
        for name, store, pair in (("B2 stand-in", b2, b2_pair), ("S3 stand-in", s3, s3_pair)):
            with keys(store):
                speeds.append((name, *speed(*pair(store, places["idle"]))))
        asked = {
            "directory": directory_asked(folder, vendors),
            "B2 stand-in": store_asked(b2, places, vendors),
            "S3 stand-in": store_asked(s3, places, vendors),
        }
    return "\n\n".join((speed_table(speeds), requests_table(asked), price_table(asked["B2 stand-in"])))


def laid_out(folder: Path, vendors: Sandbox) -> dict[str, Path]:
    """Prepare a bucket with nothing to do, and one that waits for a task."""
    waiting(folder / "busy", vendors)
    return {"idle": full(folder / "idle"), "busy": folder / "busy"}


# --- time ---------------------------------------------------------------------------------------------------------


def speed_table(rows: Sequence[Sequence[str]]) -> str:
    title = (
        "Idle ticks in one process, one after the other, each of which takes and releases the lease; the reference is "
        "the same calls to the store by the bare client: system calls, b2sdk, botocore. The stand-ins run in processes "
        f"of their own. Interleaved, medians of {ROUNDS} rounds."
    )
    head = ("bucket", "calls a tick", "ticks/s", "bare/s", "ticks/s ÷ bare", "CPU ms a tick", "× bare CPU")
    return markdown(title, head, rows)


def speed(tick: Callable[[], None], bare: Callable[[], None], calls: int) -> tuple[str, ...]:
    rounds = [(seconds_each(tick), seconds_each(bare)) for _ in range(ROUNDS)]
    ours, theirs = (Spent(*map(statistics.median, zip(*side, strict=True))) for side in zip(*rounds, strict=True))
    ratios = (f"{theirs.wall / ours.wall:.2f}", f"{ours.cpu * 1000:.1f}", f"{ours.cpu / theirs.cpu:.2f}")
    return (str(calls), f"{1 / ours.wall:.1f}", f"{1 / theirs.wall:.1f}", *ratios)


def seconds_each(work: Callable[[], None]) -> Spent:
    began, used, number = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - began < ROUND_S:
        work()
        number += 1
    return Spent((time.perf_counter() - began) / number, (time.process_time() - used) / number)


Pair = tuple[Callable[[], None], Callable[[], None], int]


def directory_pair(folder: Path) -> Pair:
    calls: Calls = []
    bucket = open_bucket(f"file:{folder}")
    idle_tick(Recording(bucket, calls))
    return (lambda: idle_tick(bucket)), replay_directory(str(folder), calls), len(calls)


def b2_pair(store: Store, folder: Path) -> Pair:
    bucket = filled(store.url("speed"), folder)
    calls = record_tick(bucket, record_b2)
    replay = replay_b2(parse_url(bucket.url).realm, calls)
    return (lambda: idle_tick(bucket)), replay, len(calls)


def s3_pair(store: Store, folder: Path) -> Pair:
    """The bare client has a folder of its own, so that its claims do not collide with those of the ticks."""
    bucket = filled(store.url("speed"), folder)
    calls = record_tick(bucket, record_s3)
    filled(store.url("bare"), folder)
    replay = replay_s3(bucket.url.partition("endpoint=")[2], [elsewhere(call) for call in calls])
    return (lambda: idle_tick(bucket)), replay, len(calls)


def elsewhere(call: Call) -> Call:
    moved = {name: call.named[name].replace("speed/", "bare/", 1) for name in {"Key", "Prefix"} & call.named.keys()}
    return call._replace(named={**call.named, **moved})


def record_tick(bucket: Bucket, recorder: Callable[[Calls], AbstractContextManager[None]]) -> Calls:
    """Return the calls of an idle tick other than the first: a process signs in and probes the store only once."""
    calls: Calls = []
    idle_tick(bucket)
    with recorder(calls):
        idle_tick(bucket)
    return calls


def idle_tick(bucket: Bucket) -> None:
    runner = StoryRunner(Settings(), bucket, NoScripts(), SANDBOX_KEYS, SystemClock(), owner="bench")
    tick = story_watch(Settings(), bucket, SystemClock(), {}).tick("story", runner)
    if not tick.resting or tick.exit_code:
        raise RuntimeError(f"the tick was not idle: {tick}")


class NoScripts:
    """Scripts that cannot be run: an idle tick runs none."""

    def run(self, script: str, arguments: list[str], lease: Lease) -> ScriptResult:
        raise NotImplementedError(script)


# --- requests -----------------------------------------------------------------------------------------------------


def requests_table(asked: Mapping[str, Asked]) -> str:
    title = (
        "Calls to the store per tick: operations on a directory, requests to the stand-ins. Whole ticks as cron starts "
        "them; the busy one polls a task. A resting tick makes none on a directory."
    )
    rows = []
    for kind, (idle, busy, resting) in asked.items():
        rows += [(f"{kind}, {which}", *by_kind(names)) for which, names in (("idle", idle), ("busy", busy))]
        rows += [(f"{kind}, resting", *by_kind(resting))] if resting else []
    return markdown(title, ("tick", *KINDS, "all"), rows)


def by_kind(names: Sequence[str]) -> tuple[str, ...]:
    kinds = {name: kind for kind, known in KINDS.items() for name in known}
    counts = Counter(kinds[name] for name in names)
    return (*(str(counts[kind]) for kind in KINDS), str(len(names)))


def directory_asked(folder: Path, vendors: Sandbox) -> Asked:
    settings = sandboxed(Settings(), vendors.url)
    waiting(folder / "counted-busy", vendors)
    full(folder / "counted-idle")
    calls = {}
    for name in ("idle", "busy"):
        for _ in range(2):  # the second tick counts: the first notes what later ones need
            calls[name] = list(count_operations(folder / f"counted-{name}", settings).elements())
    return Asked(calls["idle"], calls["busy"])


def store_asked(store: Store, places: Mapping[str, Path], vendors: Sandbox) -> Asked:
    calls = {}
    for name, folder in places.items():
        url = store.url(f"asked-{name}")
        with keys(store):
            filled(url, folder)
        cache = {"XDG_CACHE_HOME": f"{folder}.cache"}  # for the authorisation
        environ = {**environment(folder, vendors), **store.environ, **cache, "RETAKE_STORAGE_URL": url}
        # In a different environment, a tick does not know of the one before, so each looks at everything.
        for number in (1, 2):
            calls[name] = tick_asked(store, {**environ, "BENCH_TICK": str(number)})
        if name == "idle":
            calls["resting"] = [tick_asked(store, {**environ, "BENCH_TICK": "2"}) for _ in range(2)][-1]
    return Asked(calls["idle"], calls["busy"], calls["resting"])


def tick_asked(store: Store, environ: Mapping[str, str]) -> list[str]:
    """Run a tick; return the names of its calls to its store."""
    store.calls()
    subprocess.run([sys.executable, MANAGER], env=environ, check=True, capture_output=True)
    return store.calls()


def filled(url: str, folder: Path) -> Bucket:
    """Return the bucket at `url`, after uploading everything in `folder`."""
    bucket = open_bucket(url)
    for path in sorted(folder.rglob("*")):
        key = path.relative_to(folder).as_posix()
        if path.is_file() and not key.startswith(".retake"):
            bucket.write(key, path.read_bytes(), ANY)
    return bucket


@contextmanager
def keys(store: Store) -> Iterator[None]:
    with patch.dict(os.environ, store.environ):
        yield


# --- price --------------------------------------------------------------------------------------------------------


def price_table(asked: Asked) -> str:
    title = (
        f"What B2 charges for a tick a minute during {DAYS} days, by its price list: calls of class A are free, and so "
        f"are the first {FREE_A_DAY} a day of class B and of class C. Without STORAGE.keep_authorization each process "
        "signs in, which takes two more calls of class C, or one with a key that is restricted to this bucket."
    )
    head = ("every tick", *(f"class {name}" for name in DOLLARS), "US$ a month")
    ticks = (("resting", asked.resting), ("idle", asked.idle), ("busy", asked.busy))
    return markdown(title, head, [(name, *priced(names)) for name, names in ticks])


def priced(names: Sequence[str]) -> tuple[str, ...]:
    classes = by_class(names)
    dollars = sum(max(0, classes[name] * TICKS_PER_DAY - FREE_A_DAY) * price for name, price in DOLLARS.items()) * DAYS
    return (*(str(number) for number in classes.values()), f"{dollars:.2f}")
