"""Read-only mode: after too many failed creations in a row, items are looked up and no longer created.

docs/protocol.md, section "NR.NSI.4". An operator ends it by a reset, or by ordering a probe: one creation that is let
through and ends the mode if it succeeds.
"""

from datetime import datetime
from typing import NamedTuple

from retake.clock import parse_stamp, stamp
from retake.errors import CodedError
from retake.retrying.state_store import Raw


class ReadOnly(CodedError):
    """Too many creations in a row have failed: nothing is created until an operator intervenes; existing items are
    returned."""

    def __init__(self, message: str) -> None:
        super().__init__("ERR_CRITICAL_READ_ONLY", message)


class CreationMode(NamedTuple):
    """Whether items are still created."""

    failed_in_a_row: int = 0
    read_only_since: datetime | None = None
    code: str | None = None  # of the last failure
    probe_ordered: bool = False  # by an operator: one creation is let through

    def after_failure(self, limit: int | None, code: str, now: datetime) -> "CreationMode":
        failed = self.failed_in_a_row + 1
        since = now if limit is not None and failed >= limit else None
        return CreationMode(failed, self.read_only_since or since, code)


def encoded(mode: CreationMode) -> Raw:
    since = mode.read_only_since
    return {**mode._asdict(), "read_only_since": stamp(since) if since else None}


def decoded(raw: Raw | None) -> CreationMode:
    """Decode a stored state. Raises ValueError, naming the field."""
    raw = raw or {}
    failed, since, code = raw.get("failed_in_a_row", 0), raw.get("read_only_since"), raw.get("code")
    if type(failed) is not int or failed < 0:
        raise ValueError(f"failed_in_a_row: {failed!r} is not a number of failures")
    if not isinstance(code, str | None):
        raise ValueError("code: is not text")  # noqa: TRY004  a document's fault, not a caller's
    try:
        moment = None if since is None else parse_stamp(since)
    except (TypeError, ValueError) as error:
        raise ValueError(f"read_only_since: {since!r} is not a time") from error
    return CreationMode(failed, moment, code, raw.get("probe_ordered") is True)
