"""`retake images api`: the API of the image-job service, with its dispatcher and sweeper, as a process."""

import sys
from pathlib import Path
from typing import Any

import click

from retake.images.process import logs_option, run_process
from retake.ticking.process import StopSignal


@click.command("api", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--host", metavar="HOST", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", default=8080, show_default=True, help="0 is any free one."
)
@click.option("--check", is_flag=True, help="Only find out whether settings and services are well.")
@logs_option
def api(*, logs: Path | None, **options: Any) -> None:
    """Serve the API of the image-job service, until a signal. Any number may run, on any machines.

    Services and keys come from the environment or .env: REDIS_URL, RABBITMQ_URL, IMAGES_STORAGE_URL, IMAGES_KEYS, and
    DATABASE_URL for POST /jobs; everything else from config/config.json, section IMAGES. docs/images.md explains all.

    \b
    Exit codes:
        0   a signal ended it, or --check found all well
        75  a service or the bucket did not answer, or the port is taken
        78  settings, a key or a password are wrong or missing
        70  a bug
    """

    def run(environ: dict[str, str]) -> int:
        from retake.images.api_process import ApiOptions, run_api

        stopping = StopSignal()
        return run_api(ApiOptions(**options), environ, signals=lambda: stopping.count)

    sys.exit(run_process("the API of images", logs, run))
