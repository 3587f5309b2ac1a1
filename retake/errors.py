"""Every error that Retake raises on purpose, and the standard error record.

    RetakeError
    ├── SettingsError        settings or a key are wrong or missing            exit 78
    ├── StateError           a document in the bucket is invalid               exit 65
    ├── StorageError         the bucket is missing, full, or not writable      exit 75
    │   ├── LedgerUnavailable    the database of a ledger cannot be used       exit 75
    │   └── StorageKeyRefused    the store refuses the key                     exit 78
    ├── LeaseHeld            another process holds the pipeline's lease        exit 75
    ├── LeaseLost            the lease expired or was taken over               exit 75
    ├── Stopped              a signal asked the program to stop                exit 75
    ├── OutOfThreads         this machine cannot start another thread         exit 75
    ├── CapReached           the daily cap is reached                          exit 75
    ├── Degraded             a degraded mode forbids the paid call             exit 75
    ├── RunError             an operation does not fit the run                 exit 65
    └── CodedError           classified, with a code of the protocol           exit 75, 69 or 78
        ├── RobotError       a robot failed
        └── VendorError      a vendor refused, failed, or did not answer
            ├── Refused          the paid call was certainly not carried out
            ├── OutcomeUnknown   it cannot be known whether the paid call was carried out
            ├── PollFailed       a free call got no usable answer
            │   ├── LinkExpired      a link to a file has expired
            │   └── SessionGone      an upload session no longer exists
            └── TaskFailed       the paid task ended without a result

Refused and OutcomeUnknown are different types on purpose: the first can be retried for free, the second may have been
paid for.

The classes are A temporary, B business and C critical: docs/protocol.md, section "Error classes". The message of an
error says what happened, where, and what to do next, and is shown to people unchanged.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from retake.clock import parse_stamp, stamp
from retake.exit_codes import ExitCode


class ErrorClass(StrEnum):
    """The class of an error, which says whether a retry can help."""

    TEMPORARY = "A"  # network, unavailable, rate limit: retry, a bounded number of times
    BUSINESS = "B"  # the input or a rule: the same request fails again
    CRITICAL = "C"  # a key, credit, configuration: nothing works until a person fixes it


_PREFIXES = {
    "ERR_TEMPORARY_": ErrorClass.TEMPORARY,
    "ERR_BUSINESS_": ErrorClass.BUSINESS,
    "ERR_CRITICAL_": ErrorClass.CRITICAL,
}


def class_of(code: str) -> ErrorClass:
    """Return the class of a code, by its prefix. Raises ValueError for an unknown prefix."""
    for prefix, error_class in _PREFIXES.items():
        if code.startswith(prefix) and len(code) > len(prefix):
            return error_class
    raise ValueError(f"{code!r} is not an error code: it begins with none of {', '.join(_PREFIXES)}")


class Code(StrEnum):
    """The codes of vendors' errors. The prefix gives the class; robots have their own codes (config/policies)."""

    NETWORK = "ERR_TEMPORARY_NETWORK"  # no connection, or it was cut
    TIMEOUT = "ERR_TEMPORARY_TIMEOUT"  # connected, but no answer in time
    UNAVAILABLE = "ERR_TEMPORARY_UNAVAILABLE"  # 5xx
    RATE_LIMIT = "ERR_TEMPORARY_RATE_LIMIT"  # 429
    CONFLICT = "ERR_TEMPORARY_CONFLICT"  # 408, 409: the vendor itself does not know
    BAD_ANSWER = "ERR_TEMPORARY_BAD_ANSWER"  # not JSON, or JSON without the requested data
    TASK_FAILED = "ERR_TEMPORARY_TASK_FAILED"  # the vendor's task ended as failed, for a reason of the vendor's own
    POLL_TIMEOUT = "ERR_TEMPORARY_POLL_TIMEOUT"  # the task was still running when polling ended
    SCRIPT_DIED = "ERR_TEMPORARY_SCRIPT_DIED"  # a script was killed, hung, or ended with a bug
    MEDIA = "ERR_TEMPORARY_MEDIA"  # a picture or video could not be made or read
    REJECTED = "ERR_BUSINESS_REJECTED"  # moderation, a banned prompt
    INVALID_INPUT = "ERR_BUSINESS_INVALID_INPUT"  # 400, 413, 422
    MISSING = "ERR_BUSINESS_MISSING"  # an input of the step is missing
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
    """An error that a person can understand and fix. `exit_code` is the exit code of a command (sysexits.h)."""

    exit_code: int = ExitCode.BUG


class SettingsError(RetakeError):
    """The settings, or a key in the environment, are wrong or missing. Nothing has been changed."""

    exit_code = ExitCode.CONFIG


class StateError(RetakeError):
    """A document in the bucket is unreadable or invalid. It is never overwritten."""

    exit_code = ExitCode.BAD_STATE


class StorageError(RetakeError):
    """The bucket is missing, not writable, full, or does not answer."""

    exit_code = ExitCode.TRY_LATER


class LedgerUnavailable(StorageError):
    """The database of a ledger does not answer, is full, or is not writable. The bucket may be fine."""


class StorageKeyRefused(StorageError):
    """The store refuses the key: nothing works until a person fixes that."""

    exit_code = ExitCode.CONFIG


class LeaseHeld(RetakeError):
    """Another process holds the lease. Not a fault: a later tick will get it."""

    exit_code = ExitCode.TRY_LATER


class LeaseLost(RetakeError):
    """The lease expired or was taken over: no further write, no further payment."""

    exit_code = ExitCode.TRY_LATER


class Stopped(RetakeError):
    """A signal stopped the program between two steps: nothing is half done, and the next tick continues."""

    exit_code = ExitCode.TRY_LATER


class OutOfThreads(RetakeError):
    """This machine cannot start another thread. No more is left half done than after a crash."""

    exit_code = ExitCode.TRY_LATER


class CapReached(RetakeError):
    """The daily cap is reached. Tasks that are paid for are still polled; everything else waits until tomorrow."""

    exit_code = ExitCode.TRY_LATER


class Degraded(RetakeError):
    """An operator has set a degraded mode in which nothing is paid for. The call was not made."""

    exit_code = ExitCode.TRY_LATER


class RunError(RetakeError):
    """The run is unknown, has changed meanwhile, or does not allow the transition. Nothing has been changed."""

    exit_code = ExitCode.BAD_STATE


class CodedError(RetakeError):
    """An error with a code of the protocol. A command that ends with it exits 75, 69 or 78, by its class.

    `retry_after_s` is how many seconds the server asks to wait, or None; the text of a number is one, as in a header.
    Raises ValueError for a code without a class, and for a wait that is no number.
    """

    def __init__(self, code: str, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code: str = code
        self.error_class = class_of(code)
        self.retry_after_s = None if retry_after_s is None else float(retry_after_s)
        self.exit_code = _EXIT_CODES[self.error_class]


class RobotError(CodedError):
    """A robot failed, usually with a code from its policy file."""


class VendorError(CodedError):
    """An error of a vendor, classified by the vendor's client."""

    code: Code

    def __init__(self, code: Code, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(code, message, retry_after_s=retry_after_s)


class Refused(VendorError):
    """The vendor certainly did not carry out the call: it was not reached, or it refused."""


class OutcomeUnknown(VendorError):
    """The call may or may not have been carried out, and billed."""


class PollFailed(VendorError):
    """A free call (the state of a task, a download) got no usable answer."""


class LinkExpired(PollFailed):
    """A link to a file has expired (403, 404, 410). Polling the task returns a new one."""


class SessionGone(PollFailed):
    """An upload session no longer exists (404, 410). If its last chunk may have been sent, nobody knows whether its
    video was created."""


class TaskFailed(VendorError):
    """The vendor accepted the task, worked on it, and ended it without a result."""


_USER = r"(\w://)[^\s/\"'<>]+@"
_URL = r"(?i)https?://[^\s\"'<>]*"
_CREDENTIAL = r"(?i)\b(bearer(?=\s)|basic(?=\s)|x-api-key[\"']?\s*[:=])\s*[\"']?[^\s\"',}]+"
_VENDOR_KEY = r"\b(key_|sk-)[0-9A-Za-z_-]{8,}"
# Each pattern takes linear time on any text: nothing is scanned again after a failed match.

_MAX_TEXT_LENGTH = 8192  # characters of a foreign text that are kept
_MAX_SECRET_LENGTH = 2048  # characters
_DELIMITERS = " \n\r\t\"'<>"  # no secret contains these


_hidden: set[str] = set()  # grows only


def hide(values: Iterable[str]) -> None:
    """Have `redact` remove these secrets from every text from now on, whatever they look like."""
    _hidden.update(values)


def written_forms(secret: str) -> set[str]:
    """Return the ways in which others write a secret: as it is, and as quoted in Python, JSON or a URL.

    JSON may have slashes escaped, and URLs their hexadecimal digits in either case.
    """
    if secret.isascii() and secret.replace("_", "").replace("-", "").isalnum():
        return {secret}
    import json
    from urllib.parse import quote, quote_plus

    octets = secret.encode("utf-8", "surrogateescape")
    in_json = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    in_json |= {it.replace("/", "\\/") for it in in_json}
    in_urls = {quote(octets, safe=""), quote(octets), quote_plus(octets)}
    in_urls |= {re.sub("%..", lambda it: it[0].lower(), form) for form in in_urls}
    return in_json | in_urls | {secret, repr(secret)[1:-1], repr(octets)[2:-1]}


def redact(text: str) -> str:
    """Return `text` without credentials and without the query part of URLs, which may hold signatures."""
    for secret in sorted(_hidden, key=len, reverse=True):  # one may be a prefix of another
        text = text.replace(secret, "…")
    # Patterns are compiled only when needed: most lines match none, and an idle tick writes one line.
    if "://" in text:
        text = re.sub(_USER, r"\1…@", text)
        text = re.sub(_URL, _without_query, text)
    if any(word in text.lower() for word in ("bearer", "basic", "x-api-key")):
        text = re.sub(_CREDENTIAL, r"\1 …", text)
    if "key_" in text or "sk-" in text:
        text = re.sub(_VENDOR_KEY, r"\1…", text)
    return text


@contextmanager
def naming_thread_shortage() -> Iterator[None]:
    """Raise OutOfThreads for the RuntimeError with which Python, in the block, could not start a thread."""
    try:
        yield
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        raise OutOfThreads(
            "this machine starts no further thread, since a limit on processes is reached (ulimit -u, TasksMax of "
            "systemd, pids of a container): end what is not needed, or raise the limit, and run this again"
        ) from error


def message_of(error: BaseException) -> str:
    """Return `str(error)`, or a placeholder if that raises: the exceptions of other programs may have bugs."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001
        return "its message cannot be read"


def in_words(error: BaseException) -> str:
    """Return what logs and documents may say about an exception.

    That is the redacted message of Retake's own errors, and only the type of any other: libraries quote URLs with
    secrets.
    """
    return redact(str(error)) if isinstance(error, RetakeError) else type(error).__name__


def beginning(text: str) -> str:
    """Return at most the first 8192 characters of `text`, cut where no secret is cut in two.

    `redact` could not recognise half a secret. So apply this first, then `redact`, and only then shorten further.
    """
    if len(text) <= _MAX_TEXT_LENGTH:
        return text
    end = max(text.rfind(sign, _MAX_TEXT_LENGTH - _MAX_SECRET_LENGTH, _MAX_TEXT_LENGTH) for sign in _DELIMITERS)
    return text[: end if end >= 0 else _MAX_TEXT_LENGTH - _MAX_SECRET_LENGTH]


def _without_query(url: re.Match[str]) -> str:
    place, mark, query = url[0].partition("?")
    return f"{place}?…" if mark and query else url[0]


class ErrorRecord:
    """A standard error record (`error_record`), as read from a document.

    Documents may be edited by hand or written by other programs, so every property tolerates a missing or malformed
    field. A missing record is an empty one, which is false. `raw` is the JSON object, unknown keys included.
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
        """Whether the operator has been alerted."""
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
        """What the recovery action ESCALATE asks a person to do; "" without one."""
        actions = self.raw.get("recovery_actions")
        found = [it for it in actions if isinstance(it, dict)] if isinstance(actions, list) else []
        return next((str(it.get("what") or "") for it in found if it.get("action") == "ESCALATE"), "")

    def _text(self, key: str) -> str | None:
        value = self.raw.get(key)
        return value if isinstance(value, str) else None


def retry_in(delay_s: float) -> dict[str, Any]:
    """Return the recovery action "retry after `delay_s` seconds"."""
    return {"action": "RETRY", "delay_seconds": delay_s}


def escalate(recipient: str, what: str) -> dict[str, Any]:
    """Return the recovery action "a person has to act": `recipient` is who, `what` is what to do."""
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
    """Return the standard record of `error`, ready for JSON: docs/protocol.md, section "Error record".

    `correlation_id` is the id of the generation or run. `robot_id` names the component that hit the error.
    `retry_count` is the number of retries so far. For recovery actions see `retry_in`, `escalate`.
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
