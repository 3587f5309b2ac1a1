"""The findings of the doctor's checks."""

from enum import StrEnum
from typing import Any, NamedTuple

from retake.errors import RetakeError
from retake.exit_codes import ExitCode


class Verdict(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    WARN = "warn"  # it works, but somebody should look
    FAULT = "fault"  # generations fail because of it


class Finding(NamedTuple):
    """The result of one check. For a fault, `exit_code` is the exit code of `doctor`."""

    check: str  # "bucket", "Runway"
    verdict: Verdict
    found: str
    do: str = ""  # what to do about it
    exit_code: int = ExitCode.FAILED
    facts: dict[str, Any] = {}  # noqa: RUF012  never changed; only shown as JSON


def ok(check: str, found: str, **facts: Any) -> Finding:
    return Finding(check, Verdict.OK, found, facts=facts)


def warn(check: str, found: str, do: str = "", **facts: Any) -> Finding:
    return Finding(check, Verdict.WARN, found, do, facts=facts)


def fault(check: str, found: str, do: str = "", exit_code: int = ExitCode.FAILED, **facts: Any) -> Finding:
    return Finding(check, Verdict.FAULT, found, do, exit_code, facts)


def of_error(check: str, error: RetakeError, do: str = "") -> Finding:
    """Return an error as a fault. Its message says what to do; a message of several lines lists faults, and the advice
    then refers to them."""
    if "\n" in str(error):
        do = do or "correct what is named above"
    return fault(check, str(error), do, ExitCode.CONFIG if error.exit_code == ExitCode.CONFIG else ExitCode.FAILED)


def named(check: str, channel: str | None) -> str:
    """Return the name of a check, with its channel if there is one."""
    return f"{check} of {channel}" if channel else check
