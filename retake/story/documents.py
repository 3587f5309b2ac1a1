"""The state documents of a generation, as stored in the bucket.

A document wraps the JSON object that was read: typed properties read from it, `updated` returns a changed copy, and
unknown keys are kept. Parsing validates a document against its schema (retake/schemas/config_*.json), which covers
every key that is read later, so that no property of a parsed document can fail. A missing document is an empty one.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, Self

from retake.clock import parse_stamp
from retake.document_schema import WHOLE, InvalidDocument, schema_named
from retake.errors import ErrorRecord
from retake.strict_json import encode, parse, what_is_wrong


class Step(StrEnum):
    """The parts of a generation that are retried, each with a counter of its own."""

    CONTENT = "content"  # the texts
    IMAGINE = "imagine"  # four pictures, from their order until they are there
    UPSCALE = "upscale"  # the chosen one in full size, from its order until it is there
    FETCH = "fetch"  # polling the Midjourney task
    RUNWAY = "runway"  # the video, from its order until it is there
    RUNWAY_POLL = "runway_poll"  # polling the Runway task
    MOCK = "mock"  # the substitute made on this machine


PAID_STEPS = (Step.CONTENT, Step.IMAGINE, Step.UPSCALE, Step.RUNWAY)
"""The steps that pay, in the order of their results."""


class Status(StrEnum):
    """`status` in config_midjourney.json. If it is null, nothing is wrong and nothing is awaited."""

    WAITING_FOR_IMAGINE = "waiting_for_imagine"
    WAITING_FOR_UPSCALE = "waiting_for_upscale"
    WAITING_FOR_RUNWAY = "waiting_for_runway"
    CONTENT_FAILED = "content_failed"
    IMAGINE_TRIGGER_FAILED = "imagine_trigger_failed"
    UPSCALE_TRIGGER_FAILED = "upscale_trigger_failed"
    MJ_FETCH_FAILED = "mj_fetch_failed"
    RUNWAY_TRIGGER_FAILED = "runway_trigger_failed"
    RUNWAY_POLL_FAILED = "runway_poll_failed"
    RUNWAY_POLL_TIMEOUT = "runway_poll_timeout"
    TIMED_OUT_MOCK_NEEDED = "timed_out_mock_needed"
    TASK_FAILED_MAX_RETRIES = "task_failed_max_retries"


FAILED_STEP: Mapping[Status, Step] = {
    Status.CONTENT_FAILED: Step.CONTENT,
    Status.IMAGINE_TRIGGER_FAILED: Step.IMAGINE,
    Status.UPSCALE_TRIGGER_FAILED: Step.UPSCALE,
    Status.MJ_FETCH_FAILED: Step.FETCH,
    Status.RUNWAY_TRIGGER_FAILED: Step.RUNWAY,
    Status.RUNWAY_POLL_FAILED: Step.RUNWAY_POLL,
    Status.RUNWAY_POLL_TIMEOUT: Step.RUNWAY_POLL,
}
"""The error statuses, and the step whose attempts each of them uses up."""

FAILURE_STATUS: Mapping[Step, Status] = {
    step: status for status, step in FAILED_STEP.items() if status is not Status.RUNWAY_POLL_TIMEOUT
}
"""The error status of each step (for RUNWAY_POLL that of a failed poll, not of the timeout)."""

GROUP = ("json", "png", "mp4")
"""The files of a finished group, by suffix."""

IMAGINE = "imagine"
UPSCALE = "upscale"

UNKNOWN = "unknown"
"""`pending_call.outcome` of a call that may or may not have been carried out, about which the operator decides."""


class Task(NamedTuple):
    """A paid task in flight at a vendor."""

    task_id: str
    task_type: str  # IMAGINE, UPSCALE, or "image_to_video"
    requested_at: datetime | None  # None if the document does not say


class Results(NamedTuple):
    """The results of a Midjourney task."""

    task_id: str
    task_type: str  # IMAGINE or UPSCALE
    task_result: dict[str, Any]  # the vendor's own object; has image_url
    picked: int | None  # 1–4: the picture chosen for the upscale; 0: a choice was begun
    link_expired: bool  # whether its image_url had expired when it was last tried


class PendingCall(NamedTuple):
    """A paid call that was about to be made, and has no result on record yet."""

    step: Step
    attempt: int  # 1 for the first
    requested_at: datetime | None
    outcome: str | None  # None: not looked up yet; "unknown": held for the operator
    failed_reconciles: int  # how many times reconciling it has failed
    raw: dict[str, Any]

    @property
    def in_text(self) -> bool:
        """Whether the generation's text, once it exists, is the record of the answer."""
        return "answer_in" in self.raw


class Spend(NamedTuple):
    """The spending of a day so far, in US dollars. An intent reserves its price; its result settles or releases it."""

    day: str  # "2026-01-31", UTC
    reserved: float
    settled: float

    def on(self, day: str) -> "Spend":
        """Return what counts on `day`: settled amounts belong to their own day, reserved amounts are still open."""
        return self if self.day == day else Spend(day, self.reserved, 0.0)


class _Document:
    """A JSON object, immutable by convention: changes are made by `updated`."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = dict(raw)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.raw == self.raw

    def __hash__(self) -> int:
        return hash(self.encode())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.raw!r})"

    def encode(self) -> bytes:
        """Return the document as stored."""
        return encode(self.raw)

    def updated(self, **changes: Any) -> Self:
        """Return a copy with these keys changed."""
        return type(self)({**self.raw, **changes})

    def without(self, *keys: str) -> Self:
        """Return a copy without these keys."""
        return type(self)({key: value for key, value in self.raw.items() if key not in keys})


class PublicDocument(_Document):
    """config_public.json, shared with the publisher, which appends to `generation_id`."""

    @property
    def processing_lock(self) -> bool:
        return bool(self.raw.get("processing_lock"))

    @property
    def published(self) -> list[str]:
        """The published ids that are to be archived, in the publisher's order."""
        return list(self.raw.get("generation_id") or [])

    @property
    def empty(self) -> list[str] | None:
        return self.raw.get("empty")


class GenDocument(_Document):
    """config_gen.json: the generation under way, and what outlasts a generation."""

    @property
    def generation_id(self) -> str | None:
        return self.raw.get("generation_id") or None

    @property
    def failed_in_a_row(self) -> int:
        return int(self.raw.get("failed_in_a_row") or 0)

    @property
    def last_failure(self) -> dict[str, Any]:
        """The last failed generation: its id, the step, and the parts of its error that alerts need."""
        return dict(self.raw.get("last_failure") or {})

    @property
    def warned(self) -> list[str]:
        """Published ids whose missing files were already warned about."""
        return list(self.raw.get("warned") or [])

    @property
    def remembered(self) -> list[str]:
        """Published ids that were seen during a write that the publisher disturbed, and must not get lost."""
        return list(self.raw.get("remembered") or [])


class MidjourneyDocument(_Document):
    """config_midjourney.json: the state of the generation."""

    @property
    def status(self) -> Status | None:
        value = self.raw.get("status")
        return Status(value) if value else None

    @property
    def generation(self) -> bool:
        return bool(self.raw.get("generation"))

    @property
    def task(self) -> Task | None:
        return _task(self.raw.get("midjourney_task"), UPSCALE if self.results else IMAGINE)

    @property
    def runway_task(self) -> Task | None:
        return _task(self.raw.get("runway_task"), "image_to_video")

    @property
    def results(self) -> Results | None:
        raw = self.raw.get("midjourney_results")
        if not raw:
            return None
        result = raw.get("task_result") or {}
        kind = raw.get("task_type") or (IMAGINE if len(result.get("temporary_image_urls") or []) > 1 else UPSCALE)
        return Results(raw.get("task_id") or "", kind, result, raw.get("picked"), bool(raw.get("link_expired")))

    @property
    def pending(self) -> PendingCall | None:
        raw = self.raw.get("pending_call")
        if not raw:
            return None
        step, attempt, failed = Step(raw["step"]), raw.get("attempt") or 1, raw.get("failed_settles") or 0
        return PendingCall(step, attempt, _requested_at(raw), raw.get("outcome"), failed, raw)

    @property
    def error(self) -> ErrorRecord:
        """The last failure; an empty record if there is none."""
        return ErrorRecord(self.raw.get("last_error"))

    @property
    def failed_step(self) -> Step | None:
        """The step at which the generation failed for good."""
        value = self.raw.get("failed_step")
        return Step(value) if value else None

    @property
    def cancelled(self) -> dict[str, Any] | None:
        """Who cancelled the generation, and when, or None."""
        return self.raw.get("cancelled") or None

    @property
    def skipped(self) -> list[dict[str, Any]]:
        return list(self.raw.get("skipped") or [])

    @property
    def rolled_back(self) -> list[dict[str, Any]]:
        """The rollbacks of the generation: step, by, at_utc, letter, paid_calls."""
        return list(self.raw.get("rolled_back") or [])

    @property
    def requeued(self) -> str | None:
        """The id of the generation, if it was brought back from its dead letter."""
        value = self.raw.get("requeued") or ""
        return value if safe_id(value) else None

    @property
    def discard(self) -> frozenset[str]:
        """The suffixes of files that a rollback gave up and that are still to be deleted."""
        return frozenset(self.raw.get("discard") or [])

    @property
    def draft(self) -> dict[str, Any]:
        """The writer's answers so far, from which a retry of the content continues."""
        return dict(self.raw.get("content_draft") or {})

    @property
    def paid_calls(self) -> list[dict[str, Any]]:
        return list(self.raw.get("paid_calls") or [])

    @property
    def spend(self) -> Spend:
        raw = self.raw.get("spend") or {}
        return Spend(raw.get("day") or "", raw.get("reserved_usd") or 0.0, raw.get("settled_usd") or 0.0)

    @property
    def reservation(self) -> dict[str, Any]:
        """The last reservation, or {}, without a `usd` or `billed_usd` that is not an amount."""
        from retake.paid.day_book import is_amount

        kept = (self.raw.get("spend") or {}).get("reservation")
        if not isinstance(kept, dict):
            return {}
        amounts = {name: it for name, it in kept.items() if name in ("usd", "billed_usd")}
        odd = {name for name, it in amounts.items() if type(it) not in (int, float) or not is_amount(it)}
        return {name: it for name, it in kept.items() if name not in odd}

    @property
    def present_step(self) -> Step:
        """The current step of the generation, whose attempts `retry_count` shows."""
        status, results = self.status, self.results
        if status is not None and status in FAILED_STEP:
            return FAILED_STEP[status]
        if status is Status.TASK_FAILED_MAX_RETRIES:
            return self.failed_step or Step.CONTENT
        if status is Status.TIMED_OUT_MOCK_NEEDED:
            return Step.MOCK
        if self.pending:
            return self.pending.step
        if self.runway_task:
            return Step.RUNWAY_POLL
        if self.task:
            return Step.FETCH
        if results:
            return Step.UPSCALE if results.task_type == IMAGINE else Step.RUNWAY
        return Step.IMAGINE if self.generation else Step.CONTENT

    @property
    def retries(self) -> dict[str, int]:
        """The number of retries by step, without steps that have none."""
        return {step: n for step, n in (self.raw.get("retries") or {}).items() if n}

    def retries_of(self, step: Step) -> int:
        return self.retries.get(step.value, 0)

    def updated(self, **changes: Any) -> Self:
        """Return a changed copy, in which `retry_count` is the counter of its current step."""
        return super().updated(**changes)._shown()

    def without(self, *keys: str) -> Self:
        return super().without(*keys)._shown()

    def _shown(self) -> Self:
        if "retries" in self.raw:
            self.raw["retries"] = self.retries
        self.raw["retry_count"] = self.retries_of(self.present_step)
        return self

    @property
    def blank(self) -> bool:
        """Whether there is nothing in it that was paid for or is awaited."""
        return not (self.task or self.runway_task or self.results or self.pending or self.draft)


class Documents(NamedTuple):
    """Everything that a decision is based on."""

    public: PublicDocument
    gen: GenDocument
    midjourney: MidjourneyDocument
    files: frozenset[str] = frozenset()  # suffixes of the current generation's files: some or all of GROUP

    @property
    def complete(self) -> bool:
        return self.files.issuperset(GROUP)


def parse_public(data: bytes) -> PublicDocument:
    """Return the document that `data` holds. Raises InvalidDocument."""
    return PublicDocument(_checked(data, "config_public"))


def parse_gen(data: bytes) -> GenDocument:
    """Return the document that `data` holds. Raises InvalidDocument."""
    return GenDocument(_checked(data, "config_gen"))


def parse_midjourney(data: bytes) -> MidjourneyDocument:
    """Return the document that `data` holds. Raises InvalidDocument."""
    return _with_edited_count(MidjourneyDocument(_checked(data, "config_midjourney")))


def _with_edited_count(doc: MidjourneyDocument) -> MidjourneyDocument:
    """Return the document with `retry_count`, which people and older programs write, merged into `retries`, over which
    it takes precedence for the current step.

    Counters that are 0 are left out, as `updated` does: equal states must be equal documents, since the comparison of
    documents shows whether a script has changed anything.
    """
    if doc.raw.get("retry_count") is not None:
        counters = {**doc.retries, doc.present_step.value: doc.raw["retry_count"]}
        left = {step: n for step, n in counters.items() if n}
        if left or "retries" in doc.raw:
            doc.raw["retries"] = left
    return doc


def safe_id(generation_id: str) -> bool:
    """Return whether an id can be part of a file name in every bucket: at most 64 letters, digits, "-", "_", "."."""
    bare = generation_id.replace("-", "").replace("_", "").replace(".", "")
    plain = (bare.isalnum() or not bare) and generation_id.isascii()
    return plain and 0 < len(generation_id) <= 64 and not generation_id.startswith(".")


_VALID: set[tuple[str, bytes]] = set()
"""(schema, content) of documents that were found valid. A tick reads each of its documents several times."""

_MAX_VALID = 64
"""Maximum size of `_VALID`. It is then cleared, since documents may be large."""


def _checked(data: bytes, name: str) -> dict[str, Any]:
    """Return the object that `data` holds, checked against the schema. Raises InvalidDocument."""
    try:
        raw = parse(data)
    except ValueError as error:
        raise InvalidDocument(WHOLE, what_is_wrong(error)) from error
    if (name, data) not in _VALID:
        schema_named(name).check(raw)
        if len(_VALID) >= _MAX_VALID:
            _VALID.clear()
        _VALID.add((name, data))
    return dict(raw)


def _task(raw: dict[str, Any] | None, default_type: str) -> Task | None:
    if not raw:
        return None
    return Task(raw["task_id"], raw.get("task_type") or default_type, _requested_at(raw))


def _requested_at(raw: dict[str, Any]) -> datetime | None:
    moment = raw.get("requested_at_utc")
    return parse_stamp(moment) if moment else None
