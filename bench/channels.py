"""A tick over many channels: all waiting for a vendor, compared with the polls alone; and on B2, where each request has
a price."""

import json
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path

from bench.buckets import DAYS, priced
from bench.pipelines import MANAGER, ROOT, environment, full, in_flight, waiting
from bench.servers import Store, server
from bench.table import markdown
from retake.bucket.b2.bucket import parse_url
from retake.bucket.b2.calls import B2Calls
from retake.bucket.b2.connection import B2Connection
from retake.sandbox import Pace, Sandbox

ANSWER_S = 0.2  # how long the vendor takes to answer a poll
CONCURRENCY = 16
TICKS_TO_SETTLE = 2  # one that puts the channels on the ledger, and one that notes their state after that
PAUSE_S = 2.5  # because a tick does not trust changes made in the last two seconds


def channels_table(folder: Path, channels: tuple[int, ...] = (100, 1000, 10_000)) -> str:
    return "\n\n".join((waiting_table(folder, channels), far_table(folder)))


def waiting_table(folder: Path, channels: tuple[int, ...]) -> str:
    rows = []
    for number in channels:
        with Sandbox(pace=Pace(0, 0, 0), quick=True) as sandbox:
            rows.append(measure(folder / str(number), number, sandbox))
    title = (
        "A tick, as a whole process, over channels that all wait for a vendor that answers in "
        f"{ANSWER_S * 1000:.0f} ms, {CONCURRENCY} at a time, after two earlier ticks; the reference is the same polls "
        "by the bare client in as many threads. The first tick of all puts each channel on the ledger."
    )
    times = ("polls alone s", "tick s", "× polls alone", "CPU s", "CPU ms a channel")
    head = ("channels", *times, "peak MB", "of the first tick")
    return markdown(title, head, rows)


def measure(folder: Path, number: int, sandbox: Sandbox) -> tuple[str, ...]:
    folder.mkdir()
    names = [f"channel-{n:04d}" for n in range(number)]
    sandbox.order("imagine=never-ends")  # only once: the stand-in compares each request with each order
    ids = [in_flight(folder / "bucket" / name, sandbox) for name in names]
    environ = environment(folder / "bucket", sandbox)
    environ |= {"RETAKE_CONFIG": settings_file(folder, names), "XDG_CACHE_HOME": str(folder)}
    before = [tick(environ) for _ in range(TICKS_TO_SETTLE)]  # while the vendor answers at once
    sandbox.order(f"fetch=slow={ANSWER_S}")
    began = time.perf_counter()
    polls = [sys.executable, "-m", "bench.polls", sandbox.url, str(CONCURRENCY), *ids]
    subprocess.run(polls, env=environ, cwd=ROOT, check=True)
    alone = time.perf_counter() - began
    cpu, wall, peak = tick(environ)
    times = (f"{alone:.1f}", f"{wall:.1f}", f"{wall / alone:.2f}", f"{cpu:.1f}", f"{cpu / number * 1000:.1f}")
    return str(number), *times, f"{peak:.0f}", f"{before[0][-1]:.0f}"


def tick(environ: dict[str, str]) -> tuple[float, float, float]:
    """Return the CPU seconds, wall seconds and peak memory in MB of one tick."""
    time.sleep(PAUSE_S)
    spawn = [sys.executable, "-S", str(ROOT / "bench" / "spawn.py"), "0", sys.executable, MANAGER]
    ((cpu, wall, peak),) = json.loads(subprocess.run(spawn, env=environ, check=True, capture_output=True).stdout)
    return cpu, wall, peak


def settings_file(folder: Path, names: list[str]) -> str:
    file = folder / "config.json"
    file.write_text(json.dumps({"CHANNELS": names, "WORKFLOW": {"channel_concurrency": CONCURRENCY}}))
    return str(file)


# --- in a far bucket ------------------------------------------------------------------------------------------------


def far_table(folder: Path, channels: tuple[int, ...] = (100, 1000), waiting_channels: int = 100) -> str:
    title = (
        "Requests to B2 of a tick over channels after two earlier ticks, without the polls, and the price of a tick a "
        f"minute during {DAYS} days. Looking at all channels again every WORKFLOW.full_look_minutes costs extra."
    )
    rows = []
    with server("b2") as store, Sandbox(pace=Pace(0, 0, 0), quick=True) as vendors:
        idle = full(folder / "idle-channel")
        for number in channels:
            places = dict.fromkeys(_channel_names(number), idle)
            rows.append((f"{number} idle", *far_row(folder / f"idle-{number}", store, places, vendors)))
        places = {name: folder / "waiting" / name for name in _channel_names(waiting_channels)}
        for place in places.values():
            waiting(place, vendors)
        rows.append(
            (f"{waiting_channels} waiting", *far_row(folder / f"far-{waiting_channels}", store, places, vendors))
        )
    return markdown(title, ("far channels", "requests", "class B", "class C", "US$ a month"), rows)


def _channel_names(number: int) -> list[str]:
    return [f"channel-{n:04d}" for n in range(number)]


def far_row(folder: Path, store: Store, places: dict[str, Path], vendors: Sandbox) -> tuple[str, ...]:
    """Return the requests of one tick, in all, of class B and of class C, and their price."""
    folder.mkdir()
    url = store.url(folder.name)
    upload_channels(url, store, places)
    environ = {**environment(folder, vendors), **store.environ, "RETAKE_STORAGE_URL": url}
    environ |= {"RETAKE_CONFIG": settings_file(folder, [*places]), "XDG_CACHE_HOME": str(folder)}
    for _ in range(TICKS_TO_SETTLE + 1):
        store.calls()
        subprocess.run([sys.executable, MANAGER], env=environ, check=True, capture_output=True)
    names = store.calls()
    _, b, c, dollars = priced(names)
    return str(len(names)), b, c, dollars


def upload_channels(url: str, store: Store, places: dict[str, Path]) -> None:
    """Upload the files in each channel's folder, with one request per file."""
    place = parse_url(url)
    keys = (store.environ[name] for name in ("B2_APPLICATION_KEY_ID", "B2_APPLICATION_KEY"))
    calls = B2Calls(B2Connection(place.bucket, *keys, realm=place.realm))
    for channel, folder in places.items():
        for path in folder.rglob("*.*"):
            if path.is_file():
                name = f"{place.prefix}{channel}/{path.relative_to(folder).as_posix()}"
                calls.upload(name, BytesIO(path.read_bytes()), {})
