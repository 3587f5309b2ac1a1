"""Every error that Retake raises on purpose, and the record that is kept of one.

    RetakeError
    ├── SettingsError        settings or a key are wrong or missing            exit 78
    ├── StateError           a document in the bucket cannot be made sense of  exit 65
    ├── StorageError         the bucket is not there, full, or not writable    exit 75
    │   └── StorageKeyRefused    the store does not take the key               exit 78
    ├── LeaseHeld            somebody else is at work on this pipeline         exit 75
    ├── LeaseLost            the lease ran out or was taken over               exit 75
    ├── Stopped              a signal asked the program to stop                exit 75
    ├── CapReached           what may be spent in a day is spent               exit 75
    ├── RunError             a run cannot do what it was asked to do           exit 65
    └── CodedError           classified, with a code of the protocol           exit 75, 69 or 78
        ├── RobotError       a robot's work came to nothing
        └── VendorError      a vendor said no, or said nothing
            ├── Refused          the paid call was certainly not carried out
            ├── OutcomeUnknown   nobody can know whether the paid call was carried out
            ├── PollFailed       a question that costs nothing got no answer
            │   └── LinkExpired      a link to a file leads nowhere any more
            └── TaskFailed       the paid task itself ended without a result

«Refused» and «cannot know» are different types on purpose: the first may be asked again for nothing, the second may
already have been paid for. They stay apart all the way up.

Classes and codes are those of the error protocol: A temporary, B business, C critical (seed 003, «Классификация
ошибок»). The message of an error says what happened, where, and what to do next; it is shown to people as it stands.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from retake.clock import parse_stamp, stamp
from retake.exit_codes import ExitCode


class ErrorClass(StrEnum):
    """What kind of trouble it is, and so whether trying again can help."""

    TEMPORARY = "A"  # network, unavailable, rate limit: try again, a bounded number of times
    BUSINESS = "B"  # the input or a rule: the same request will fail the same way
    CRITICAL = "C"  # a key, credit, configuration: nothing works until a person mends it


_PREFIXES = {
    "ERR_TEMPORARY_": ErrorClass.TEMPORARY,
    "ERR_BUSINESS_": ErrorClass.BUSINESS,
    "ERR_CRITICAL_": ErrorClass.CRITICAL,
}


def class_of(code: str) -> ErrorClass:
    """The class that a code's prefix tells (seed 003, «Классификация ошибок»). Raises ValueError for no such prefix."""
    for prefix, error_class in _PREFIXES.items():
        if code.startswith(prefix) and len(code) > len(prefix):
            return error_class
    raise ValueError(f"{code!r} is no error code: it begins with none of {', '.join(_PREFIXES)}")


class Code(StrEnum):
    """The codes of vendors' errors. The prefix tells the class; robots have codes of their own (config/policies)."""

    NETWORK = "ERR_TEMPORARY_NETWORK"  # no connection, or it was cut
    TIMEOUT = "ERR_TEMPORARY_TIMEOUT"  # connected, but no answer in time
    UNAVAILABLE = "ERR_TEMPORARY_UNAVAILABLE"  # 5xx
    RATE_LIMIT = "ERR_TEMPORARY_RATE_LIMIT"  # 429
    CONFLICT = "ERR_TEMPORARY_CONFLICT"  # 408, 409: the vendor itself does not know
    BAD_ANSWER = "ERR_TEMPORARY_BAD_ANSWER"  # not JSON, or JSON without what was asked for
    TASK_FAILED = "ERR_TEMPORARY_TASK_FAILED"  # the vendor's task ended as failed, for a reason of the vendor's own
    POLL_TIMEOUT = "ERR_TEMPORARY_POLL_TIMEOUT"  # the task is still running at the end of the polling time
    SCRIPT_DIED = "ERR_TEMPORARY_SCRIPT_DIED"  # a script was killed, hung, or ended with a bug
    MEDIA = "ERR_TEMPORARY_MEDIA"  # a picture or video could not be made or read
    REJECTED = "ERR_BUSINESS_REJECTED"  # moderation, a banned prompt
    INVALID_INPUT = "ERR_BUSINESS_INVALID_INPUT"  # 400, 413, 422
    MISSING = "ERR_BUSINESS_MISSING"  # something the step needs is not there
    UNAUTHORIZED = "ERR_CRITICAL_UNAUTHORIZED"  # 401, 403
    OUT_OF_CREDIT = "ERR_CRITICAL_OUT_OF_CREDIT"  # 402, insufficient quota
    CONFIGURATION = "ERR_CRITICAL_CONFIGURATION"  # an endpoint or model that does not exist

    @property
    def error_class(self) -> ErrorClass:
        return class_of(self.value)


_EXIT_CODES = {
    ErrorClass.TEMPORARY: ExitCode.TRY_LATER,
    ErrorClass.BUSINESS: ExitCode.FAILED,
    ErrorClass.CRITICAL: ExitCode.CONFIG,
}


class RetakeError(Exception):
    """Something that a person can understand and mend. `exit_code` is what a command ends with (sysexits.h)."""

    exit_code: int = ExitCode.BUG


class SettingsError(RetakeError):
    """The settings, or a key in the environment, are wrong or missing. Nothing has been changed."""

    exit_code = ExitCode.CONFIG


class StateError(RetakeError):
    """A document in the bucket is unreadable or makes no sense. It is never overwritten."""

    exit_code = ExitCode.BAD_STATE


class StorageError(RetakeError):
    """The bucket is not there, not writable, full, or does not answer."""

    exit_code = ExitCode.TRY_LATER


class StorageKeyRefused(StorageError):
    """The store does not take the key: nothing works until a person mends that."""

    exit_code = ExitCode.CONFIG


class LeaseHeld(RetakeError):
    """Somebody else holds the lease. Not a fault: the next tick will find it free."""

    exit_code = ExitCode.TRY_LATER


class LeaseLost(RetakeError):
    """The lease ran out or was taken over: no further write, no further payment."""

    exit_code = ExitCode.TRY_LATER


class Stopped(RetakeError):
    """Asked to stop by a signal, between two pieces of work: nothing is half done, the next tick goes on."""

    exit_code = ExitCode.TRY_LATER


class CapReached(RetakeError):
    """What may be spent in a day is spent. Tasks that are paid for are still polled; the rest waits for tomorrow."""

    exit_code = ExitCode.TRY_LATER


class RunError(RetakeError):
    """A run cannot do what it was asked to do: it is unknown, moved on meanwhile, or has no such transition. Nothing
    has been changed."""

    exit_code = ExitCode.BAD_STATE


class CodedError(RetakeError):
    """An error that is classified: its code is one of the protocol's. A command that ends with it exits 75, 69 or 78.

    `retry_after_s` is how long the other side asks to be left alone, in seconds, where it said so. Raises ValueError
    for a code whose prefix tells no class.
    """

    def __init__(self, code: str, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code: str = code
        self.error_class = class_of(code)
        self.retry_after_s = retry_after_s
        self.exit_code = _EXIT_CODES[self.error_class]


class RobotError(CodedError):
    """A robot's work came to nothing; the code is one of those that its policy file lists, or another of the kind."""


class VendorError(CodedError):
    """A vendor's error, classified at the vendor's door."""

    code: Code

    def __init__(self, code: Code, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(code, message, retry_after_s=retry_after_s)


class Refused(VendorError):
    """The vendor certainly did not carry the call out: never connected, or it said no itself."""


class OutcomeUnknown(VendorError):
    """The call may or may not have been carried out, and billed."""


class PollFailed(VendorError):
    """A question that costs nothing (state of a task, a download) got no usable answer."""


class LinkExpired(PollFailed):
    """A link to a file leads nowhere any more (403, 404, 410). The vendor gives a new one with the task's state."""


class TaskFailed(VendorError):
    """The vendor took the task, worked on it, and ended it without a result."""


_USER = r"(\w://)[^\s/\"'<>]+@"
_URL = r"(?i)https?://[^\s\"'<>]*"
_CREDENTIAL = r"(?i)\b(bearer(?=\s)|basic(?=\s)|x-api-key[\"']?\s*[:=])\s*[\"']?[^\s\"',}]+"
_VENDOR_KEY = r"\b(key_|sk-)[0-9A-Za-z_-]{8,}"
# Each takes time in proportion to the text, whatever it is made of: what one attempt reads, no other reads again.

_BEGINNING = 8192  # characters of a foreign text that are looked at
_LONGEST_SECRET = 2048  # characters, of one piece
_ENDS = " \n\r\t\"'<>"  # what no secret goes beyond


def redact(text: str) -> str:
    """`text` without credentials and without the query part of URLs (that is where signatures are)."""
    # Most lines hold nothing of the kind, and an idle tick writes one line: patterns are compiled when they are needed.
    if "://" in text:
        text = re.sub(_USER, r"\1…@", text)
        text = re.sub(_URL, _without_query, text)
    if any(word in text.lower() for word in ("bearer", "basic", "x-api-key")):
        text = re.sub(_CREDENTIAL, r"\1 …", text)
    if "key_" in text or "sk-" in text:
        text = re.sub(_VENDOR_KEY, r"\1…", text)
    return text


def beginning(text: str) -> str:
    """The first 8192 characters of `text` at most, and no part of a secret at their end that `redact` would not know
    for one. Take this of what may be of any length, then `redact`, then shorten."""
    if len(text) <= _BEGINNING:
        return text
    end = max(text.rfind(sign, _BEGINNING - _LONGEST_SECRET, _BEGINNING) for sign in _ENDS)
    return text[: end if end >= 0 else _BEGINNING - _LONGEST_SECRET]


def _without_query(url: re.Match[str]) -> str:
    place, mark, query = url[0].partition("?")
    return f"{place}?…" if mark and query else url[0]


class ErrorRecord:
    """A standard error record (`error_record`), as it was read from a document.

    Documents may be edited by hand or written by other programs, so every property tolerates a missing or malformed
    field. A record that is not there is an empty one, and false. `raw` is the JSON object, unknown keys included.
    """

    def __init__(self, raw: Mapping[str, Any] | None = None) -> None:
        self.raw: dict[str, Any] = dict(raw or {})

    def __bool__(self) -> bool:
        return bool(self.raw)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ErrorRecord) and other.raw == self.raw

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ErrorRecord({self.raw!r})"

    @property
    def id(self) -> str | None:
        return self._text("error_id")

    @property
    def code(self) -> str | None:
        return self._text("error_code")

    @property
    def message(self) -> str:
        return self._text("message") or ""

    @property
    def error_class(self) -> ErrorClass | None:
        text = self._text("error_class")
        return ErrorClass(text) if text in list(ErrorClass) else None

    @property
    def critical(self) -> bool:
        """Whether nothing works until a person has fixed what the record names."""
        return self.error_class is ErrorClass.CRITICAL

    @property
    def alerted(self) -> bool:
        """Whether the operator has been told of it."""
        return bool(self.raw.get("alerted"))

    @property
    def at(self) -> datetime | None:
        """When it happened."""
        try:
            return parse_stamp(self._text("timestamp") or "")
        except (ValueError, OverflowError):
            return None

    @property
    def retry_at(self) -> datetime | None:
        """When the recovery action RETRY is due; None if the record has no such action."""
        at = self.at
        try:
            delays = [it["delay_seconds"] for it in self.raw["recovery_actions"] if it["action"] == "RETRY"]
            return at + timedelta(seconds=delays[0]) if at else None
        except (KeyError, TypeError, ValueError, IndexError, OverflowError):
            return None

    @property
    def advice(self) -> str:
        """What somebody has to do, by the recovery action ESCALATE; "" if nobody has to do anything."""
        actions = self.raw.get("recovery_actions")
        found = [it for it in actions if isinstance(it, dict)] if isinstance(actions, list) else []
        return next((str(it.get("what") or "") for it in found if it.get("action") == "ESCALATE"), "")

    def _text(self, key: str) -> str | None:
        value = self.raw.get(key)
        return value if isinstance(value, str) else None


def retry_in(delay_s: float) -> dict[str, Any]:
    """Return the recovery action "try again in so many seconds"."""
    return {"action": "RETRY", "delay_seconds": delay_s}


def escalate(recipient: str, what: str) -> dict[str, Any]:
    """The recovery action «somebody has to do something»: who, and what."""
    return {"action": "ESCALATE", "recipient": recipient, "what": what}


def error_record(
    error: CodedError,
    *,
    now: datetime,
    robot_id: str,
    correlation_id: str,
    retry_count: int,
    input_data: Mapping[str, Any] | None = None,
    system_context: Mapping[str, Any] | None = None,
    recovery_actions: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The standard error record (seed 003, «Стандартный формат ошибки») of `error`, ready for JSON.

    `correlation_id` ties together what belongs together: the generation's id, the run's. `robot_id` names who met the
    error. `retry_count` is how often it was tried again before. Recovery actions: see `retry_in`, `escalate`.
    """
    from uuid import uuid4

    return {
        "error_id": str(uuid4()),
        "correlation_id": correlation_id,
        "timestamp": stamp(now),
        "robot_id": robot_id,
        "error_class": error.error_class.value,
        "error_code": str(error.code),
        "message": redact(str(error)),
        "details": {
            "input_data": _redacted(input_data),
            "system_context": {"error": type(error).__name__, **_redacted(system_context)},
            "retry_count": retry_count,
            "last_attempt": stamp(now),
        },
        "recovery_actions": [dict(action) for action in recovery_actions],
    }


def _redacted(values: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: redact(it) if isinstance(it, str) else it for key, it in (values or {}).items()}
