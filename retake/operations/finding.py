"""What a check of the doctor's found."""

from enum import StrEnum
from typing import Any, NamedTuple

from retake.errors import RetakeError
from retake.exit_codes import ExitCode


class Verdict(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"  # it works, and somebody should look
    FAULT = "fault"  # a generation fails of it


class Finding(NamedTuple):
    """One check, and what it came to. `exit_code` is what `doctor` ends with for a fault."""

    check: str  # "bucket", "Runway"
    verdict: Verdict
    found: str
    do: str = ""  # what to do about it
    exit_code: int = ExitCode.FAILED
    facts: dict[str, Any] = {}  # noqa: RUF012  never changed; for JSON alone


def ok(check: str, found: str, **facts: Any) -> Finding:
    return Finding(check, Verdict.OK, found, facts=facts)


def warn(check: str, found: str, do: str = "", **facts: Any) -> Finding:
    return Finding(check, Verdict.WARN, found, do, facts=facts)


def fault(check: str, found: str, do: str = "", exit_code: int = ExitCode.FAILED, **facts: Any) -> Finding:
    return Finding(check, Verdict.FAULT, found, do, exit_code, facts)


def of_error(check: str, error: RetakeError, do: str = "") -> Finding:
    """Return an error as a fault; its message says what to do. One of several lines names what is wrong, one a line,
    and is not told again as what to do."""
    if "\n" in str(error):
        do = do or "correct what is named above"
    return fault(check, str(error), do, ExitCode.CONFIG if error.exit_code == ExitCode.CONFIG else ExitCode.FAILED)


def named(check: str, channel: str | None) -> str:
    """Return a check's name with the channel that it is about."""
    return f"{check} of {channel}" if channel else check
