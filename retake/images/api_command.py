"""`retake images api`: the API of the image-job service, with its dispatcher and sweeper, as a process."""

import sys
from pathlib import Path
from typing import Any

import click

from retake.images.process import prepared
from retake.logs import setup_logging
from retake.ticking.process import StopSignal, exit_code_of, is_terminal


@click.command("api", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--host", metavar="HOST", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", default=8080, show_default=True, help="0 is any free one."
)
@click.option("--check", is_flag=True, help="Only find out whether settings and services are well.")
@click.option(
    "--logs",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Also write the log to DIR/combined.log, and errors to DIR/error.log.",
)
def api(**options: Any) -> None:
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
    sys.exit(_serve(**options))


def _serve(*, logs: Path | None, **options: Any) -> int:
    """Run the API and return the exit code."""
    setup_logging(sys.stderr, human=is_terminal())

    def run() -> int:
        environ = prepared("the API of images", logs)
        from retake.images.api_process import ApiOptions, run_api

        stopping = StopSignal()
        return run_api(ApiOptions(**options), environ, signals=lambda: stopping.count)

    return exit_code_of(run)
