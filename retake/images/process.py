"""What a process of the service does before anything else: its environment, and its logs."""

import sys
from pathlib import Path

from retake.logs import log_into, setup_logging
from retake.ticking.process import is_terminal


def prepared(what: str, logs: Path | None) -> dict[str, str]:
    """Return the environment, with that of `.env`, and log to stderr, also into the folder `logs` if that is given.

    Raises SettingsError if the libraries are missing that `what` needs.
    """
    from retake.extras import require

    require("images", what)
    from retake.serving.environment import load_environment

    environ = load_environment()
    setup_logging(sys.stderr, human=is_terminal(), environ=environ)
    if logs is not None:
        log_into(logs, environ=environ)
    return environ
