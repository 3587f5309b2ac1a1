"""Which costs grow with what years leave behind in a bucket: archived groups, dead letters, records of spending."""

import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench.operations import count_operations
from bench.pipelines import MANAGER, ROOT, environment, full
from bench.processes import cost
from bench.table import markdown
from retake.sandbox import Pace, Sandbox
from retake.story.documents import GROUP
from retake.story.settings import Settings, sandboxed

SIZES = (100, 1_000, 10_000, 100_000)
DAYS = 3600
REPEATS = 3

CALLS = (("content", 0.006), ("imagine", 0.045), ("upscale", 0.01), ("runway", 0.5))

HEAD = (
    *("left behind", "a generation's operations", "of an idle tick", "idle tick CPU s", "× bare Python"),
    *("status CPU s", "dead-letters list", "spend, 30 days", "spend --days 3650"),
)

COMMANDS = (["status"], ["dead-letters", "list"], ["spend"], ["spend", "--days", "3650"])


def growth_table(folder: Path) -> str:
    bare = cost([sys.executable, "-c", "pass"], environment(folder), REPEATS)
    rows = []
    for size in SIZES:
        place = full(folder / f"looked-{size}")
        fill(place, size)
        environ = {**environment(place), "PYTHONPATH": str(ROOT)}
        retake = [sys.executable, "-m", "retake"]
        idle = cost([sys.executable, MANAGER], environ, REPEATS)
        for it in COMMANDS:
            cost([*retake, *it], environ, 1)
        looks = [cost([*retake, *it], environ, REPEATS) for it in COMMANDS]
        made, idled = operations(place, folder / f"made-{size}", size)
        seconds = (f"{it.cpu_s:.2f} ({it.cpu_s / bare.cpu_s:.0f} ×)" for it in looks)
        rows.append(
            (f"{size:,}", str(made), str(idled), f"{idle.cpu_s:.3f}", f"{idle.cpu_s / bare.cpu_s:.1f}", *seconds)
        )
    title = (
        "Growth in a directory with the number of archived groups, dead letters and records in spend/ (as many of "
        f"each, spread over {DAYS} days): operations on the bucket, and CPU seconds of whole processes (× bare Python "
        f"in the same run), medians of {REPEATS}. The first commands, which count everything, are left out."
    )
    return markdown(title, HEAD, rows)


def operations(idle: Path, new: Path, size: int) -> tuple[int, int]:
    """Return how many operations a whole generation makes with `size` items left behind, and how many an idle tick."""
    with Sandbox(pace=Pace(0, 0, 0), quick=True) as sandbox:
        settings = sandboxed(Settings(), sandbox.url)
        settings = settings._replace(workflow=settings.workflow._replace(runway_polling_interval=0.01))
        fill(new, size)
        return count_operations(new, settings).total(), count_operations(idle, settings).total()


def fill(bucket: Path, size: int) -> None:
    """Leave behind what `size` successful generations and as many failed ones would."""
    for number in range(size):
        at = datetime.now(UTC) - timedelta(days=DAYS * (size - number) / size + 5)
        for key, data in leftovers(at):
            path = bucket / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            os.utime(path, (at.timestamp(), at.timestamp()))


def leftovers(at: datetime) -> Iterator[tuple[str, bytes]]:
    name, when = f"{at:%Y%m%d-%H%M}", f"{at:%Y-%m-%dT%H:%M:%SZ}"
    yield from ((f"archive/{name}.{suffix}", b"{}") for suffix in GROUP)
    calls = [{"step": step, "attempt": 1, "requested_at_utc": when, "price_usd": usd} for step, usd in CALLS]
    bill = {"generation_id": name, "outcome": "done", "ended_at_utc": when, "paid_calls": calls}
    yield f"spend/{name}.json", json.dumps(bill).encode()
    error = {"error_class": "A", "error_code": "ERR_TEMPORARY_UNAVAILABLE", "message": "PiAPI answered HTTP 500"}
    report = {"generation_id": name, "failed_at_utc": when, "failed_step": "upscale", "last_error": error, "files": []}
    yield f"dead_letters/{name}/report.json", json.dumps(report).encode()
    yield f"dead_letters/{name}/config_midjourney.json", b"{}"
