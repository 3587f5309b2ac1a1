"""The cost of a tick as a whole process, as a multiple of `python3 -c pass` with the same interpreter."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.pipelines import MANAGER, ROOT, environment, full, waiting
from bench.table import markdown
from retake.sandbox import Pace, Sandbox

RUNS = 25

BARE = "python3 -c pass"


class Cost(NamedTuple):
    """Medians of several runs."""

    cpu_s: float
    wall_s: float
    peak_mb: float  # of the largest process


def processes_table(folder: Path) -> str:
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(ROOT / "retake"), MANAGER], check=True)
    with Sandbox(pace=Pace(0, 0, 0), quick=True) as sandbox:
        waiting(folder / "busy", sandbox)
        commands = {
            BARE: ([sys.executable, "-c", "pass"], environment(folder)),
            "python3 -c 'import click'": ([sys.executable, "-c", "import click"], environment(folder)),
            "idle tick": ([sys.executable, MANAGER], environment(full(folder / "idle"))),
            "resting tick": ([sys.executable, MANAGER], resting(folder / "resting")),
            "busy tick": ([sys.executable, MANAGER], environment(folder / "busy", sandbox)),
        }
        rounds = [{name: cost(*it, runs=1) for name, it in commands.items()} for _ in range(RUNS)]
    title = (
        f"Whole processes, interleaved, medians of {RUNS} rounds; each ratio is to bare Python in the same round. The "
        "busy tick polls a task in flight; it includes the forked script."
    )
    head = ("process", "CPU s", "× bare Python", "wall s", "peak MB")
    return markdown(title, head, [(name, *compared(name, rounds)) for name in commands])


def compared(name: str, rounds: Sequence[Mapping[str, Cost]]) -> tuple[str, ...]:
    ratio = statistics.median(it[name].cpu_s / it[BARE].cpu_s for it in rounds)
    cpu_s, wall_s, peak_mb = (statistics.median(values) for values in zip(*(it[name] for it in rounds), strict=True))
    return (f"{cpu_s:.3f}", f"{ratio:.1f}", f"{wall_s:.3f}", f"{peak_mb:.0f}")


def resting(folder: Path) -> dict[str, str]:
    """Return an environment in which ticks rest: there is nothing to do, and an earlier tick has noted that. The ticks
    in the row "idle tick" have no cache, and look at everything."""
    environ = {**environment(full(folder)), "XDG_CACHE_HOME": str(folder.parent / "cache")}
    for _ in range(100):  # the documents must be at least two seconds old
        ended = subprocess.run([sys.executable, MANAGER], env=environ, check=True, capture_output=True, text=True)
        if "nothing has changed" in ended.stderr:
            return environ
        time.sleep(0.1)
    raise RuntimeError("ticks do not rest")


def cells(spent: Cost, bare: Cost) -> tuple[str, ...]:
    ratio = spent.cpu_s / bare.cpu_s
    return (f"{spent.cpu_s:.3f}", f"{ratio:.1f}", f"{spent.wall_s:.3f}", f"{spent.peak_mb:.0f}")


def cost(command: Sequence[str], environ: Mapping[str, str], runs: int = RUNS) -> Cost:
    """Return the cost of a command. Raises CalledProcessError if it fails: a failure is not a measurement."""
    spawn = [sys.executable, "-S", str(ROOT / "bench" / "spawn.py"), str(runs), *command]
    costs = json.loads(subprocess.run(spawn, env=dict(environ), check=True, capture_output=True, text=True).stdout)
    return Cost(*(statistics.median(values) for values in zip(*costs, strict=True)))
