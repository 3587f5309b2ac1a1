"""Exit codes of all commands, following sysexits.h. Schedules and monitors rely on the numbers."""

import os
from collections.abc import Iterable, Sequence
from enum import IntEnum


class ExitCode(IntEnum):
    """The exit code of a command."""

    OK = os.EX_OK  # 0: done, or nothing to do
    BAD_STATE = os.EX_DATAERR  # 65: a document is invalid, or does not allow what was asked for
    FAILED = os.EX_UNAVAILABLE  # 69: a generation failed for good
    UNAVAILABLE = os.EX_UNAVAILABLE  # 69 too: a required program is not installed
    BUG = os.EX_SOFTWARE  # 70: a bug in Retake
    TRY_LATER = os.EX_TEMPFAIL  # 75: a step failed and is retried, the lease is held, or storage is unreachable
    CONFIG = os.EX_CONFIG  # 78: settings or a key are wrong, missing or refused
    INTERRUPTED = 130  # Ctrl-C


BY_SEVERITY = (
    ExitCode.INTERRUPTED,
    ExitCode.BUG,
    ExitCode.CONFIG,
    ExitCode.BAD_STATE,
    ExitCode.FAILED,
    ExitCode.TRY_LATER,
    ExitCode.OK,
)
"""The order in which exit codes of several channels outrank each other, the most severe first."""


def most_severe(codes: Iterable[int], order: Sequence[int] = BY_SEVERITY) -> int:
    """Return the most severe of the exit codes of a command's parts, or OK if there are none."""
    found = set(codes)
    return next((code for code in order if code in found), ExitCode.OK)
