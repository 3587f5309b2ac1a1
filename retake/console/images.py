"""`retake images`: run the image-job service, and look at it."""

import sys
from pathlib import Path
from typing import Any

import click

from retake.console.group import CommandGroup
from retake.console.image_jobs import dead, status
from retake.console.invocation import CONTEXT
from retake.images.api_command import api
from retake.images.worker_command import worker


@click.group("images", cls=CommandGroup, context_settings=CONTEXT)
def command() -> None:
    """The image-job service: run all of it or one part, see its state, and deal with messages that workers refused.
    docs/images.md explains it."""


@click.command("up", context_settings=CONTEXT)
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", default=8080, show_default=True,
              help="The API's port on 127.0.0.1; 0 picks a free one and keeps it.")  # fmt: skip
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", default=Path("images"),
              show_default=True, help="Where data, logs, ports and keys are kept.")  # fmt: skip
@click.option("--text-workers", type=click.IntRange(0, 64), metavar="N", default=1, show_default=True,
              help="How many workers take text jobs.")  # fmt: skip
@click.option("--outfit-workers", type=click.IntRange(0, 64), metavar="N", default=1, show_default=True,
              help="How many workers take outfit changes.")  # fmt: skip
def up(**options: Any) -> None:
    """Run the whole image-job service on this machine, until Ctrl-C: no account, no Docker.

    Starts, on free ports of 127.0.0.1, each of Redis, RabbitMQ and PostgreSQL whose URL is not set (REDIS_URL,
    RABBITMQ_URL, DATABASE_URL, in the environment or .env), a stand-in for ComfyUI unless a setting names a real one,
    the API and the workers. A part that ends is started again. With the same DIR it continues where it stopped.

    \b
    Exit codes:
        0   a signal ended it
        65  secrets.json or ports.json in DIR cannot be used
        69  a server is not installed; the message has the command to type
        75  DIR is in use, the port is taken, or a part did not start
        78  settings or a key are wrong
        70  a bug
    """
    from retake.images.up.command import UpOptions
    from retake.images.up.command import up as run

    sys.exit(run(UpOptions(**options)))


for each in (up, api, worker, status, dead):
    command.add_command(each)
