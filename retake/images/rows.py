"""The rows and errors of jobs2, apart from `table`, so that a process without PostgreSQL does not load SQLAlchemy."""

from typing import NamedTuple

from retake.errors import RetakeError
from retake.exit_codes import ExitCode

AHEAD_S = 3600.0
"""A change further ahead than this many seconds was made by a wrong clock: the job counts as unchanged."""


class TableAway(RetakeError):
    """PostgreSQL did not answer properly. The outcome of the call is unknown; every call can be repeated."""

    exit_code: int = ExitCode.TRY_LATER


class TableRow(NamedTuple):
    """A row of jobs2, without the prompt and its parameters. Texts that are null are empty."""

    job_id: str
    user_id: str
    status: str
    error: str
    output_r2_key: str
    executed_by: str
    old: bool = False  # whether it was last changed before the time in question, or far ahead of now
