"""`retake images worker`: one worker as a process, with its HTTP API."""

import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import click

from retake.images.process import logs_option, run_process
from retake.option_values import Seconds
from retake.ticking.process import StopSignal

QUEUES = ("TextQueue", "OutfitQueue")
DRAIN_S = 60.0

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)


class WorkerOptions(NamedTuple):
    """The command-line options."""

    queue: str
    name: str
    host: str = "127.0.0.1"
    port: int = 8090
    drain: float = DRAIN_S  # seconds


@click.command("worker", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--queue", type=click.Choice(QUEUES), help="Which jobs it takes: pictures from text, or changed outfits.")
@click.option("--name", metavar="NAME", help="Its name, in results and logs; each worker needs its own.")
@click.option("--host", metavar="HOST", default="127.0.0.1", show_default=True, help="Where its HTTP API listens.")
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", default=8090, show_default=True, help="0 is any free one."
)
@click.option(
    "--drain",
    type=Seconds(0, 86_400),
    metavar="SECONDS",
    default=DRAIN_S,
    show_default=True,
    help="How long a job may still take after a signal, until it is given back.",
)
@logs_option
def worker(*, logs: Path | None, **options: Any) -> None:
    """Take image jobs of a queue and execute them on ComfyUI, one at a time, until a signal.

    Asks for --queue and --name at a terminal. Services and keys come from the environment or .env (REDIS_URL,
    RABBITMQ_URL, IMAGES_STORAGE_URL, IMAGES_KEYS), everything else from config/config.json, section IMAGES. A second
    signal gives the job back at once.

    \b
    Exit codes:
        0   a signal ended it; its job has ended, or is given back
        2   --queue or --name is missing or wrong
        75  a service or the bucket did not answer, or the port is taken
        78  settings, a password or a graph are wrong
        70  a bug
        130 Ctrl-C at the question for --queue or --name
    """
    options["queue"] = options["queue"] or _asked("queue", type=click.Choice(QUEUES), default=QUEUES[0])
    options["name"] = options["name"] or _asked("name", default="Worker-A")
    if not _NAME.fullmatch(options["name"]):
        raise click.BadParameter('1 to 64 of A-Z, a-z, 0-9, "_", "." and "-"', param_hint="--name")

    def run(environ: dict[str, str]) -> int:
        from retake.images.worker_process import run_worker

        stopping = StopSignal()
        return run_worker(WorkerOptions(**options), environ, signals=lambda: stopping.count)

    sys.exit(run_process("the worker", logs, run))


def _asked(name: str, **how: Any) -> str:
    """Ask for an option at a terminal. Raises UsageError without one, and Abort at Ctrl-C or the end of the input."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"Missing option '--{name}'.")
    return str(click.prompt(name.capitalize(), err=True, **how))
