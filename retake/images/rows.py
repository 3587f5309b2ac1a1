"""What jobs2 tells and how it fails, apart from `table`: a process without PostgreSQL need not load SQLAlchemy."""

from typing import NamedTuple

from retake.errors import RetakeError
from retake.exit_codes import ExitCode

AHEAD_S = 3600.0
"""A change that is further ahead than this was made by a wrong clock: the job counts as if it had not changed."""


class TableAway(RetakeError):
    """PostgreSQL did not answer as it should. Whether what was asked for was done is unknown; every call can be
    repeated."""

    exit_code: int = ExitCode.TRY_LATER


class TableRow(NamedTuple):
    """A row of jobs2, without the prompt and its parameters. Texts that are null are empty."""

    job_id: str
    user_id: str
    status: str
    error: str
    output_r2_key: str
    executed_by: str
    old: bool = False  # whether it was last changed before the time that was asked about, or far ahead
