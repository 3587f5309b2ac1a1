"""A process of the service as a command: its environment, logs and exit code."""

import sys
from collections.abc import Callable
from pathlib import Path

import click

from retake.logs import log_into, setup_logging
from retake.ticking.process import exit_code_of, is_terminal

logs_option = click.option(
    "--logs",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Also write the log to DIR/combined.log, and errors to DIR/error.log.",
)


def run_process(what: str, logs: Path | None, run: Callable[[dict[str, str]], int]) -> int:
    """Call `run` with the environment and the variables in `.env`, and return the exit code.

    It logs to stderr and, if given, to the folder `logs`. `what` needs the libraries of the extra "images".
    """
    setup_logging(sys.stderr, human=is_terminal())
    return exit_code_of(lambda: run(_prepared(what, logs)))


def _prepared(what: str, logs: Path | None) -> dict[str, str]:
    from retake.extras import require

    require("images", what)
    from retake.serving.environment import load_environment

    environ = load_environment()
    setup_logging(sys.stderr, human=is_terminal(), environ=environ)
    if logs is not None:
        log_into(logs, environ=environ)
    return environ
