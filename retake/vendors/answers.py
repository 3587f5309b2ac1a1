"""The meaning of a vendor's answer: the only place that interprets status codes and numbers. Pure, without network
access.

Two questions are kept apart. The error *code* of an answer (rate limit, refused key, …) says whether a retry can help.
Whether the call was *refused* decides whether a retry could be billed twice: a paid call was certainly not carried out
only if the vendor itself refuses it, in JSON. A gateway that answers (HTML, an empty body) cannot know.

docs/errors.md has the resulting table, with a row for every case.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from retake.errors import (
    Code,
    OutcomeUnknown,
    PollFailed,
    Refused,
    TaskFailed,
    VendorError,
    beginning,
    redact,
    written_forms,
)
from retake.foreign_text import one_line

T = TypeVar("T")

QUOTE_LIMIT = 300  # maximum characters of a vendor's message that ours quote
SECRET_LENGTH = 6  # minimum length of a key: a shorter text would match parts of ordinary words
_WORDS_LIMIT = 64 * 2**10  # characters of a vendor's message that are searched for keywords
DATE_LIMIT = 80  # maximum characters of a date in a header
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # half of a surrogate pair, which no document can hold
NOT_JSON = object()  # what `parse` returns for bytes that are not JSON

MAX_NUMBER = 1e15
"""The largest credit, percentage or count that is believed."""

MAX_WAIT_S = 366 * 24 * 3600.0
"""Maximum wait in seconds, a year: a longer one would mean for ever, or exceed the last possible date."""


class Words(NamedTuple):
    """What the vendor itself says about an error."""

    code: str  # machine-readable, or ""
    text: str  # for people


@dataclass(frozen=True)
class Vendor:
    """The properties of a vendor that matter for its errors."""

    name: str
    key_name: str  # the environment variable that holds its key
    own_words: Callable[[object], Words | None]  # reads its own error body; returns None for any other
    secret: str = field(default="", repr=False)  # the key: never shown, even if the vendor echoes it
    forbidden: Code = Code.UNAUTHORIZED  # the meaning of a 403 to a paid call that has the vendor's own error body


class Reply(NamedTuple):
    """An HTTP response."""

    status: int
    headers: Mapping[str, str]  # case-insensitive, as in requests and httpx
    body: bytes

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


class NoReply(Exception):
    """No complete answer arrived. `sent` says whether the vendor may have received the request.

    If the body is too large or cannot be decompressed, `head` is the answer without its body.
    """

    def __init__(self, code: Code, text: str, *, sent: bool) -> None:
        super().__init__(text)
        self.code = code
        self.sent = sent
        self.head: Reply | None = None


def submitted(vendor: Vendor, what: str, reply: Reply, pick: Callable[[object], T | None]) -> T:
    """Return what `pick` finds in the answer to a paid call.

    `what` completes the sentence "VENDOR was asked to …". Raises Refused or OutcomeUnknown; the latter also for a
    success that does not name the order, because the vendor may well be working on it.
    """
    picked = pick(parse(reply.body)) if reply.ok else None
    if picked is not None:
        return picked
    parsed, own = _read(vendor, reply)
    code = Code.BAD_ANSWER if reply.ok else _submit_code(vendor, reply.status, parsed, own)
    kind = Refused if _refused(reply.status, parsed, own) else OutcomeUnknown
    message = f"{_sentence(vendor, what, reply, own)} {_advice(vendor, code, kind)}"
    raise kind(code, message, retry_after_s=retry_after_s(reply.headers))


def answered(vendor: Vendor, what: str, reply: Reply, pick: Callable[[object], T | None]) -> T:
    """Return what `pick` finds in the answer to a free call. Raises PollFailed."""
    picked = pick(parse(reply.body)) if reply.ok else None
    if picked is not None:
        return picked
    _, own = _read(vendor, reply)
    code = Code.BAD_ANSWER if reply.ok else _poll_code(reply.status, own)
    advice = _UNKNOWN_TASK if reply.status == 404 else _advice(vendor, code, PollFailed)
    message = f"{_sentence(vendor, what, reply, own)} {advice}"
    raise PollFailed(code, message, retry_after_s=retry_after_s(reply.headers))


def says_missing(vendor: Vendor, reply: Reply) -> bool:
    """Return whether the vendor itself says that the thing does not exist.

    It says so with 404, or with 400 if it treats an unknown id as a bad request (PiAPI's older API).
    """
    return reply.status in (400, 404) and vendor.own_words(parse(reply.body)) is not None


def unanswered(vendor: Vendor, what: str, trouble: NoReply, *, paid: bool) -> VendorError:
    """Return the error for a call without an answer."""
    paid_kind = OutcomeUnknown if trouble.sent else Refused
    kind = paid_kind if paid else PollFailed
    return kind(trouble.code, f"{vendor.name} was asked to {what}: {trouble}. {_advice(vendor, trouble.code, kind)}")


def ended_as_failed(vendor: Vendor, task_id: str, reasons: str) -> TaskFailed:
    """Return the error for a Midjourney task that the vendor reports as failed, with its `reasons` ("" for none)."""
    said = f': "{quote(reasons, vendor.secret)}"' if reasons else ", without a reason"
    code = Code.REJECTED if is_moderation(reasons) else Code.TASK_FAILED
    advice = _ADVICE[code] if code is Code.REJECTED else "Try it again."
    return TaskFailed(code, f"{vendor.name} ended task {task_id} as failed{said}. {advice}")


def parse(data: bytes | str) -> object:
    """Return the JSON value in `data`, or NOT_JSON.

    Lone surrogates become "?", and numbers that JSON lacks (NaN, Infinity, 1e400) become null.
    """
    try:
        text = data if isinstance(data, str) else data.decode(json.detect_encoding(data), "surrogatepass")
        value = json.loads(text, parse_constant=lambda _: None, parse_float=_finite)
        if "\\ud" in text.lower() or _LONE_SURROGATE.search(text):
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return NOT_JSON
    return value


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def as_dict(value: object) -> dict[str, Any]:
    """Return `value` if it is a JSON object, else {}: vendors send null, "" and [] where an object is expected."""
    return value if isinstance(value, dict) else {}


def number(value: object) -> float | None:
    """Return `value` as a number, also from text ("40", "40 %"); None for anything else.

    True and false, NaN, infinity, and anything larger than `MAX_NUMBER` are not numbers. An int stays an int.
    """
    if isinstance(value, str):
        value = _stated(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) <= MAX_NUMBER else None  # also None for NaN


def count(value: object) -> int | None:
    """Return `value` as a whole number, written as 12 or 12.0; None for anything else."""
    found = number(value)
    return int(found) if found is not None and found == int(found) and not isinstance(value, str) else None


def joined(reasons: Iterable[object]) -> str:
    """Return the distinct texts among `reasons`, joined."""
    texts = (reason.strip() for reason in reasons if isinstance(reason, str))
    return "; ".join(dict.fromkeys(text for text in texts if text))


def reasons_in(error: Mapping[str, Any]) -> list[object]:
    """Return the possible reasons in an error of a Midjourney reseller, for `joined`."""
    return [error.get(name) for name in ("message", "raw_message", "detail")]


def is_moderation(text: str) -> bool:
    """Return whether a vendor's message is about disallowed content."""
    return re.search(_MODERATION, text[:_WORDS_LIMIT]) is not None


def quote(text: str, secret: str = "", limit: int = QUOTE_LIMIT) -> str:
    """Return a vendor's text in a form fit for messages: on one line, short, without keys, signatures and control
    characters."""
    text = redact(" ".join(one_line(beginning(without_secrets(text, [secret]))).split()))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return `text` with "…" in the place of each secret of at least `SECRET_LENGTH` characters, also where it is
    quoted in Python, JSON or a URL."""
    forms = {form for secret in secrets if len(secret) >= SECRET_LENGTH for form in written_forms(secret)}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, "…")
    return text


def wait_asked_s(value: object) -> float | None:
    """Return `value` as the seconds that a vendor asks to wait, 0 to `MAX_WAIT_S`, or None if it is not a
    number."""
    seconds = number(value)
    return None if seconds is None else min(max(0.0, seconds), MAX_WAIT_S)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds in Retry-After (RFC 9110, 10.2.3: seconds, or an HTTP date), at most `MAX_WAIT_S`, or
    None.

    A date is compared with the answer's own Date, so that a wrong clock on this machine does not matter.
    """
    text = headers.get("Retry-After", "")[:DATE_LIMIT].strip()
    if text[:1].isdigit():
        return wait_asked_s(text)
    try:
        return wait_asked_s(_seconds_until(text, headers.get("Date", "")[:DATE_LIMIT]))
    except (ValueError, TypeError, OverflowError):  # TypeError: one date has a zone, the other has none
        return None


# Compiled on first use: most polls are not searched.
_MODERATION = (
    r"(?i)moderat(ion|or|ed)|\bbanned\b|\bsafety\b|content[ _-]?(policy|filter)|\bnsfw\b|image (denied|filters?)"
    r"|\bsensitive (content|words?|prompt)"
    r"|community (standards|guidelines)|policy[ _-]violation"
)
_CREDIT = (
    r"(?i)insufficient[ _-]?(quota|credits?|balance|funds)|(not enough|out of|no more) (credits?|quota|balance|funds)"
    r"|(quota|credits?|balance) (is |are )?(not enough|insufficient|exhausted)|billing_hard_limit|credit_?insufficient"
)
COMMON_CODES = {
    401: Code.UNAUTHORIZED,
    403: Code.UNAUTHORIZED,
    408: Code.CONFLICT,
    409: Code.CONFLICT,
    429: Code.RATE_LIMIT,
}
"""The meaning of a status from any vendor."""

_POLL_CODES = COMMON_CODES | {402: Code.OUT_OF_CREDIT}
_SUBMIT_CODES = _POLL_CODES | {404: Code.CONFIGURATION, 405: Code.CONFIGURATION}
_UNKNOWN_TASK = "It does not know the task: it was deleted, or the endpoint is wrong."
_ADVICE = {
    Code.NETWORK: "Check the network and the endpoint in the settings if this persists.",
    Code.TIMEOUT: "Look at the vendor's status page if this persists.",
    Code.UNAVAILABLE: "Look at the vendor's status page if this persists.",
    Code.RATE_LIMIT: "Poll less often, or have the vendor raise the limit.",
    Code.CONFLICT: "Look at the vendor's status page if this persists.",
    Code.BAD_ANSWER: "Check the endpoint in the settings if this persists.",
    Code.REJECTED: "Change the prompt: the same one will be refused again.",
    Code.INVALID_INPUT: "Change the request: the same one will be refused again.",
    Code.OUT_OF_CREDIT: "Top up the vendor's account.",
    Code.CONFIGURATION: "Check the endpoint and the model in the settings.",
}


def _refused(status: int, parsed: bool, own: Words | None) -> bool:
    """Return whether a paid call with this answer was certainly not carried out."""
    if status in (408, 409):
        return False
    return parsed if 400 <= status < 500 else status >= 500 and own is not None


def _submit_code(vendor: Vendor, status: int, parsed: bool, own: Words | None) -> Code:
    if own and re.search(_CREDIT, f"{own.code} {own.text}"[:_WORDS_LIMIT]):
        return Code.OUT_OF_CREDIT
    # Not 401 and 429, which are never about the prompt.
    if own and status in (400, 403, 413, 422, 451) and is_moderation(f"{own.code} {own.text}"):
        return Code.REJECTED
    if status == 403 and own and own.code:  # only the vendor's own body has a code
        return vendor.forbidden
    if status in _SUBMIT_CODES:
        return _SUBMIT_CODES[status]
    if status >= 500:
        return Code.UNAVAILABLE
    return Code.INVALID_INPUT if parsed and status >= 400 else Code.BAD_ANSWER


def _poll_code(status: int, own: Words | None) -> Code:
    """Return the code of an answer to a poll.

    Never class B: the task is paid for, and no answer to a poll is a reason to give it up.
    """
    if own and re.search(_CREDIT, f"{own.code} {own.text}"[:_WORDS_LIMIT]):
        return Code.OUT_OF_CREDIT
    return _POLL_CODES.get(status, Code.UNAVAILABLE if status >= 500 else Code.BAD_ANSWER)


def _read(vendor: Vendor, reply: Reply) -> tuple[bool, Words | None]:
    """Return whether the body is a JSON object or array, and what the vendor says in it."""
    body = parse(reply.body)
    parsed = isinstance(body, (dict, list))
    if not parsed:
        return False, None
    own = vendor.own_words(body)
    if own is None and 400 <= reply.status < 500:
        own = Words("", json.dumps(body, ensure_ascii=False))
    return True, own


def _sentence(vendor: Vendor, what: str, reply: Reply, own: Words | None) -> str:
    said = _quoted(vendor, reply, own)
    location = reply.headers.get("Location", "") if 300 <= reply.status < 400 else ""
    moved = (
        f", a redirect to {quote(location.partition('?')[0], vendor.secret)} that is not followed" if location else ""
    )
    return f"{vendor.name} was asked to {what} and answered HTTP {reply.status}{said}{moved}."


def _quoted(vendor: Vendor, reply: Reply, own: Words | None) -> str:
    if own is not None:
        text = quote(": ".join(filter(None, own)), vendor.secret)
        return f': "{text}"'
    text = quote(reply.body.decode("utf-8", "replace"), vendor.secret)
    return f' with an unexpected body: "{text}"' if text else " with an empty body"


def _advice(vendor: Vendor, code: Code, kind: type[VendorError]) -> str:
    unknown = "Whether it was carried out, and billed, is unknown. " if kind is OutcomeUnknown else ""
    if code is Code.UNAUTHORIZED:
        return f"{unknown}Check the key in {vendor.key_name}."
    return unknown + _ADVICE[code]


def _seconds_until(date: str, now: str | None) -> float:
    from email.utils import parsedate_to_datetime

    moment = parsedate_to_datetime(date)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    present = parsedate_to_datetime(now) if now else datetime.now(UTC)
    return (moment - present).total_seconds()


def _stated(text: str) -> float | None:
    if len(text) > 40:  # Python limits the digits of an int, but not of a float
        return None
    try:
        return float(text.strip().removesuffix("%"))
    except ValueError:
        return None
