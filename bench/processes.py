"""What a tick costs as a whole process, as a multiple of `python3 -c pass` with the same interpreter."""

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


class Cost(NamedTuple):
    """Medians of several runs."""

    cpu_s: float
    wall_s: float
    peak_mb: float  # of the largest process


def processes_table(folder: Path) -> str:
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(ROOT / "retake"), MANAGER], check=True)
    bare = cost([sys.executable, "-c", "pass"], environment(folder))
    with Sandbox(pace=Pace(0, 0, 0), quick=True) as sandbox:
        waiting(folder / "busy", sandbox)
        rows = [
            ("python3 -c pass", bare),
            ("python3 -c 'import click'", cost([sys.executable, "-c", "import click"], environment(folder))),
            ("idle tick", cost([sys.executable, MANAGER], environment(full(folder / "idle")))),
            ("resting tick", cost([sys.executable, MANAGER], resting(folder / "resting"))),
            ("busy tick", cost([sys.executable, MANAGER], environment(folder / "busy", sandbox))),
        ]
    title = (
        f"Whole processes, medians of {RUNS} runs. The busy tick polls a task in flight: manager and script, two "
        "processes."
    )
    head = ("process", "CPU s", "× bare Python", "wall s", "peak MB")
    return markdown(title, head, [(name, *shown(spent, bare)) for name, spent in rows])


def resting(folder: Path) -> dict[str, str]:
    """Return the environment of ticks that rest: there is nothing to do, and a tick before them has seen so. Those of
    the row "idle tick" have no cache, and look at everything."""
    environ = {**environment(full(folder)), "XDG_CACHE_HOME": str(folder.parent / "cache")}
    for _ in range(100):  # the documents must have been there for two seconds
        ended = subprocess.run([sys.executable, MANAGER], env=environ, check=True, capture_output=True, text=True)
        if "nothing has changed" in ended.stderr:
            return environ
        time.sleep(0.1)
    raise RuntimeError("ticks do not rest")


def shown(spent: Cost, bare: Cost) -> tuple[str, ...]:
    ratio = spent.cpu_s / bare.cpu_s
    return (f"{spent.cpu_s:.3f}", f"{ratio:.1f}", f"{spent.wall_s:.3f}", f"{spent.peak_mb:.0f}")


def cost(command: Sequence[str], environ: Mapping[str, str], runs: int = RUNS) -> Cost:
    """Raises CalledProcessError where the command fails: what fails is no measurement."""
    spawn = [sys.executable, "-S", str(ROOT / "bench" / "spawn.py"), str(runs), *command]
    costs = json.loads(subprocess.run(spawn, env=dict(environ), check=True, capture_output=True, text=True).stdout)
    return Cost(*(statistics.median(values) for values in zip(*costs, strict=True)))
