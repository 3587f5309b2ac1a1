"""A tick over many channels that all wait for a vendor, against the time that their polls alone need."""

import json
import subprocess
import sys
import time
from pathlib import Path

from bench.pipelines import MANAGER, ROOT, environment, waiting
from bench.table import markdown
from retake.sandbox import Pace, Sandbox

ANSWER_S = 0.2  # how long the vendor takes to answer a poll
CONCURRENCY = 16


def channels_table(folder: Path, channels: tuple[int, ...] = (100, 1000)) -> str:
    with Sandbox(pace=Pace(0, 0, 0), quick=True) as sandbox:
        sandbox.order(f"fetch=slow={ANSWER_S}")
        rows = [measured(folder / str(number), number, sandbox) for number in channels]
    title = (
        f"A tick over channels that all wait for a vendor answering in {ANSWER_S * 1000:.0f} ms, {CONCURRENCY} at a "
        "time, as a whole process, the second of two (the first puts them on the ledger); and the same polls by the "
        "bare client in as many threads."
    )
    return markdown(title, ("channels", "polls alone s", "tick s", "× polls alone", "CPU s", "peak MB"), rows)


def measured(folder: Path, number: int, sandbox: Sandbox) -> tuple[str, ...]:
    folder.mkdir()
    names = [f"channel-{n:04d}" for n in range(number)]
    ids = [waiting(folder / "bucket" / name, sandbox) for name in names]
    environ = environment(folder / "bucket", sandbox) | {"RETAKE_CONFIG": settings_file(folder, names)}
    polls = [sys.executable, "-m", "bench.polls", sandbox.url, str(CONCURRENCY), *ids]
    began = time.perf_counter()
    subprocess.run(polls, env=environ, cwd=ROOT, check=True)
    alone = time.perf_counter() - began
    spawn = [sys.executable, "-S", str(ROOT / "bench" / "spawn.py"), "1", sys.executable, MANAGER]
    ((cpu, wall, peak),) = json.loads(subprocess.run(spawn, env=environ, check=True, capture_output=True).stdout)
    return str(number), f"{alone:.1f}", f"{wall:.1f}", f"{wall / alone:.2f}", f"{cpu:.1f}", f"{peak:.0f}"


def settings_file(folder: Path, names: list[str]) -> str:
    file = folder / "config.json"
    file.write_text(json.dumps({"CHANNELS": names, "WORKFLOW": {"channel_concurrency": CONCURRENCY}}))
    return str(file)
