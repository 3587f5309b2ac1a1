"""How each event changes config_midjourney.json. Pure: each function takes a document and returns a document.

The rule of counting: a failure does not change the counter, a retry adds one, and a counter is cleared when the
*result* of its step is there. "The vendor took the order" is not a result: otherwise a task that is always accepted and
then fails would be paid for forever.
"""

from collections.abc import Collection, Container, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from retake.clock import stamp
from retake.errors import ErrorClass, escalate, retry_in
from retake.story.decision import ASK_TO_RESOLVE
from retake.story.documents import (
    FAILED_STEP,
    FAILURE_STATUS,
    IMAGINE,
    PAID_STEPS,
    UNKNOWN,
    MidjourneyDocument,
    PendingCall,
    Spend,
    Status,
    Step,
    Task,
)

if TYPE_CHECKING:
    from retake.paid.caps import Reservation

_OWN_KEYS = (
    *("retries", "runway_task", "pending_call", "last_error", "content_draft", "paid_calls", "failed_step"),
    *("cancelled", "skipped", "rolled_back", "discard", "requeued"),
)

_LASTING_KEYS = ("rolled_back", "requeued")

_CALL_KEYS = ("step", "attempt", "requested_at_utc", "counted_on", "price_usd", "call")

PICK = "pick"
"""`call` of the paid call by which the chat API chooses one of four pictures."""

_WAITING = {Step.IMAGINE: Status.WAITING_FOR_IMAGINE, Step.UPSCALE: Status.WAITING_FOR_UPSCALE}


def clean(doc: MidjourneyDocument) -> MidjourneyDocument:
    """Return the document with nothing under way. Unknown keys are kept."""
    return doc.without(*_OWN_KEYS).updated(midjourney_task=None, midjourney_results={}, generation=False, status=None)


def content_ready(doc: MidjourneyDocument) -> MidjourneyDocument:
    """Record that the text is saved, so the pictures are next. The paid calls stay on record."""
    return clean(doc).updated(generation=True, **_lasting(doc))


def picture_next(doc: MidjourneyDocument) -> MidjourneyDocument:
    """Raise the flag that a crash between the text and the pictures has lost."""
    return doc.updated(generation=True, status=None)


def flag_lowered(doc: MidjourneyDocument) -> MidjourneyDocument:
    return doc.updated(generation=False)


# --- paid calls -------------------------------------------------------------------------------------------------


def intended(
    doc: MidjourneyDocument,
    step: Step,
    now: datetime,
    facts: Mapping[str, Any],
    price: float = 0.0,
    reservation: "Reservation | None" = None,
) -> MidjourneyDocument:
    """Record that a paid call is about to be made: what is asked, when, and at what price."""
    call = _call(doc, step, now, price, reservation)
    spend = doc.spend.on(str(call.get("counted_on") or day_of(now)))
    kept = _reserved(doc, reservation, "open")
    return doc.updated(pending_call={**call, **facts}, spend=_spend(spend, kept, reserved=price))


def day_of(now: datetime) -> str:
    """Return the day (UTC) that a payment at `now` belongs to."""
    return stamp(now)[:10]


def begun(doc: MidjourneyDocument, generation_id: str) -> MidjourneyDocument:
    """Begin a generation: nothing is under way, and an account distinguishes this document, in the day's book, from one
    that was removed (`retake.paid.day_book`)."""
    if isinstance(doc.reservation.get("account"), str):
        return clean(doc)
    return clean(doc).updated(spend={**(doc.raw.get("spend") or {}), "reservation": {"account": generation_id}})


def abandoned(doc: MidjourneyDocument) -> MidjourneyDocument:
    """Count a pending call, which will not be reconciled any more, as billed."""
    return doc.updated(**_billed(doc, "unknown")) if doc.pending else doc


def answered(doc: MidjourneyDocument, partial: Mapping[str, Any]) -> MidjourneyDocument:
    """Record an answer of the chat API."""
    after = doc.updated(content_draft={**doc.draft, **partial}, **_billed(doc, "done"))
    return after.without("pending_call", "last_error")


def answered_by(doc: MidjourneyDocument, files: Container[str]) -> MidjourneyDocument:
    """Return the document as completed by the generation's files: the text may be the record of the pending call's
    answer."""
    if doc.pending and doc.pending.in_text and "json" in files:
        return content_ready(answered(doc, {}))
    return doc


def picture_ordered(doc: MidjourneyDocument, task_id: str) -> MidjourneyDocument:
    """Record that Midjourney took the order. The results of the imagine are kept until those of the upscale are there,
    so that a lost upscale can be ordered again."""
    call = _pending(doc)
    task = {"task_id": task_id, "task_type": call.step.value, "requested_at_utc": call.raw.get("requested_at_utc")}
    billed = _billed(doc, "accepted", task_id)
    after = doc.updated(midjourney_task=task, generation=False, status=_WAITING[call.step].value, **billed)
    return after.without("pending_call", "last_error")


def video_ordered(doc: MidjourneyDocument, task_id: str) -> MidjourneyDocument:
    task = {"task_id": task_id, "requested_at_utc": _pending(doc).raw.get("requested_at_utc")}
    billed = _billed(doc, "accepted", task_id)
    after = doc.updated(runway_task=task, status=Status.WAITING_FOR_RUNWAY.value, **billed)
    return after.without("pending_call", "last_error")


def call_refused(doc: MidjourneyDocument, record: Mapping[str, Any]) -> MidjourneyDocument:
    """Record that the call was certainly not carried out. What follows depends on the class of the error (`failed`)."""
    return _call_failed(doc.updated(spend=_spend(doc.spend, _closed(doc, "released"), reserved=-_price(doc))), record)


def call_wasted(doc: MidjourneyDocument, record: Mapping[str, Any]) -> MidjourneyDocument:
    """Record that the call was carried out and billed, but that its answer is useless."""
    return _call_failed(doc.updated(**_billed(doc, "wasted")), record)


def call_lost(doc: MidjourneyDocument, record: Mapping[str, Any]) -> MidjourneyDocument:
    """Record that the outcome of the call is unknown, and that it may be made again: a failed attempt, marked as a
    possible duplicate."""
    return _call_failed(doc.updated(**_billed(doc, "unknown", possible_duplicate=True)), record)


def call_held(doc: MidjourneyDocument, record: Mapping[str, Any]) -> MidjourneyDocument:
    """Record that the outcome is unknown, and that the call must not be made again until the operator decides."""
    error = {**record, "recovery_actions": [escalate("operator", ASK_TO_RESOLVE)]}
    return doc.updated(pending_call={**_pending(doc).raw, "outcome": UNKNOWN}, last_error=error)


def reconcile_failed(doc: MidjourneyDocument, record: Mapping[str, Any]) -> MidjourneyDocument:
    """Record that reconciling the pending call failed once more. The call stays pending."""
    pending = _pending(doc)
    call = {**pending.raw, "failed_settles": pending.failed_reconciles + 1}
    return doc.updated(pending_call=call, last_error=dict(record))


def usage_compared(doc: MidjourneyDocument) -> MidjourneyDocument:
    """Record that the vendor's counts have moved since the held call: it may have been carried out, and only a person
    can tell."""
    return doc.updated(pending_call={**_pending(doc).raw, "compared": True})


def operator_retries(doc: MidjourneyDocument) -> MidjourneyDocument:
    """Allow a held call to be made again, as decided by the operator. This uses up no attempt."""
    return doc.updated(**_billed(doc, "unknown", possible_duplicate=True)).without("pending_call", "last_error")


def operator_skips(doc: MidjourneyDocument, *, mock: bool) -> MidjourneyDocument:
    """Give up a held call, as decided by the operator: the generation goes on as if no attempt were left."""
    rest = doc.updated(**_billed(doc, "unknown")).without("pending_call")
    return mock_instead(rest) if mock else _failed_for_good(rest, _pending(doc).step)


# --- the vendors' tasks -------------------------------------------------------------------------------------------


def picture_delivered(doc: MidjourneyDocument, result: Mapping[str, Any]) -> MidjourneyDocument:
    """Record the result of the Midjourney task in flight, and clear the counters of its step and of its polls."""
    task = _task(doc)
    results = {"task_id": task.task_id, "task_type": task.task_type, "task_result": dict(result)}
    after = doc.updated(midjourney_task=None, midjourney_results=results, status=None).without("last_error")
    return _cleared(after, ordered_by(task), Step.FETCH)


def choice_begun(
    doc: MidjourneyDocument, now: datetime, price: float, reservation: "Reservation | None" = None
) -> MidjourneyDocument:
    """Record that the chat API is about to be asked which picture to upscale. This call is never made again, and counts
    as billed from now on, unless `choice_made` says that it was not carried out."""
    call = {**_call(doc, Step.UPSCALE, now, price, reservation), "call": PICK, "outcome": UNKNOWN}
    spend = doc.spend.on(str(call.get("counted_on") or day_of(now)))
    spent = _spend(spend, _billing(_reserved(doc, reservation, "billed"), price), settled=price)
    return picture_picked(doc, 0).updated(paid_calls=[*doc.paid_calls, call], spend=spent)


def choice_made(doc: MidjourneyDocument, index: int, outcome: str | None) -> MidjourneyDocument:
    """Record which picture is upscaled, and the outcome of the call that chose it (None: it was not carried out)."""
    *before, call = doc.paid_calls
    after = picture_picked(doc, index)
    if outcome is None:
        price = float(call["price_usd"])
        released = _spend(doc.spend, _billing(_closed(doc, "released"), -price), settled=-price)
        return after.updated(paid_calls=before, spend=released)
    return after.updated(paid_calls=[*before, {**call, "outcome": outcome}])


def picture_picked(doc: MidjourneyDocument, index: int) -> MidjourneyDocument:
    """Record which picture is upscaled, 1–4."""
    return doc.updated(midjourney_results={**doc.raw["midjourney_results"], "picked": index})


def link_expired(doc: MidjourneyDocument) -> MidjourneyDocument:
    """Record that the link to the picture has expired: the next attempt asks for a new one first."""
    return doc.updated(midjourney_results={**doc.raw["midjourney_results"], "link_expired": True})


def link_renewed(doc: MidjourneyDocument, result: Mapping[str, Any]) -> MidjourneyDocument:
    """Record the task's result with a new link."""
    known = {key: value for key, value in doc.raw["midjourney_results"].items() if key != "link_expired"}
    return doc.updated(midjourney_results={**known, "task_result": dict(result)})


def picture_still_awaited(doc: MidjourneyDocument, now: datetime) -> MidjourneyDocument:
    """Record an answered poll."""
    return _poll_answered(_dated(doc, "midjourney_task", doc.task, now), Step.FETCH)


def picture_task_failed(doc: MidjourneyDocument, record: Mapping[str, Any]) -> MidjourneyDocument:
    """Record that the Midjourney task failed. The step that ordered it has failed, and a new order is needed."""
    status = FAILURE_STATUS[ordered_by(_task(doc))]
    return failed(_cleared(doc.updated(midjourney_task=None), Step.FETCH), status, record)


def video_polled(doc: MidjourneyDocument, now: datetime) -> MidjourneyDocument:
    """Record an answered poll."""
    return _poll_answered(_dated(doc, "runway_task", doc.runway_task, now), Step.RUNWAY_POLL)


def polls_counted(doc: MidjourneyDocument, polls_failed: int) -> MidjourneyDocument:
    """Reset the counter of failed polls, which answered polls have cleared, to what it was when polling began."""
    return doc.updated(retries={**doc.retries, Step.RUNWAY_POLL.value: polls_failed})


def video_task_failed(doc: MidjourneyDocument, record: Mapping[str, Any]) -> MidjourneyDocument:
    after = _cleared(doc.updated(runway_task=None), Step.RUNWAY_POLL)
    return failed(after, Status.RUNWAY_TRIGGER_FAILED, record)


def video_delivered(doc: MidjourneyDocument) -> MidjourneyDocument:
    """Record that all files are there, and nothing is under way. A pending call that was replaced by a mock made by
    hand counts as billed: it will not be reconciled any more."""
    doc = abandoned(doc)
    return clean(doc).updated(**_lasting(doc))


# --- failures, retries, ends --------------------------------------------------------------------------------------


def failed(doc: MidjourneyDocument, status: Status, record: Mapping[str, Any]) -> MidjourneyDocument:
    """Record that a step failed. What follows depends on the class of the error.

    Class A sets the error status, to be retried. Class B cannot be fixed by a retry, and fails the generation. After
    class C everything waits until a person has fixed what the record names.
    """
    doc = doc.updated(last_error=dict(record))
    if record["error_class"] == ErrorClass.CRITICAL:
        return doc
    if record["error_class"] == ErrorClass.BUSINESS:
        return _failed_for_good(doc, FAILED_STEP[status])
    return doc.updated(status=status.value)


def retried(doc: MidjourneyDocument) -> MidjourneyDocument:
    """Grant one more attempt: the status goes back to what it was before the failed step."""
    assert doc.status is not None
    step = FAILED_STEP[doc.status]
    after = doc.updated(
        status=_status_before(doc, doc.status), retries={**doc.retries, step.value: doc.retries_of(step) + 1}
    )
    return after.updated(generation=True) if step is Step.IMAGINE else after


def exhausted(doc: MidjourneyDocument) -> MidjourneyDocument:
    """Fail the generation for good: no attempt is left."""
    return _failed_for_good(doc, doc.present_step)


def mock_instead(doc: MidjourneyDocument) -> MidjourneyDocument:
    """Give up on the vendors: a mock is made on this machine."""
    dropped = doc.updated(midjourney_task=None, midjourney_results={}, generation=False).without("runway_task")
    return dropped.updated(status=Status.TIMED_OUT_MOCK_NEEDED.value)


def video_mocked(doc: MidjourneyDocument) -> MidjourneyDocument:
    """Replace the video, which is not ordered, by a mock made of the picture, which is paid for."""
    return doc.without("last_error").updated(generation=False, status=Status.TIMED_OUT_MOCK_NEEDED.value)


def skipped(doc: MidjourneyDocument, by: str, now: datetime) -> MidjourneyDocument:
    """Replace the result of the failed step by a mock. The error stays on record."""
    entry = {"step": doc.present_step.value, "by": by, "at_utc": stamp(now), "error": doc.error.raw or None}
    return mock_instead(doc.without("last_error").updated(skipped=[*doc.skipped, entry]))


def cancelled(doc: MidjourneyDocument, by: str, now: datetime) -> MidjourneyDocument:
    """End the generation because somebody cancelled it. It ends like a failed one, but is marked as cancelled. A
    pending call counts as billed: it will not be reconciled any more."""
    step = doc.present_step
    rest = abandoned(doc).without("pending_call")
    return _failed_for_good(rest, step).updated(cancelled={"by": by, "at_utc": stamp(now)})


def mock_failed(doc: MidjourneyDocument) -> MidjourneyDocument:
    return doc.updated(retries={**doc.retries, Step.MOCK.value: doc.retries_of(Step.MOCK) + 1})


def alerted(doc: MidjourneyDocument) -> MidjourneyDocument:
    """Record that the operator has been alerted of the last error, which is done only once."""
    return doc.updated(last_error={**doc.error.raw, "alerted": True})


def hold_lifted(doc: MidjourneyDocument) -> MidjourneyDocument:
    """Record that the operator has fixed what the last error asked for."""
    return doc.without("last_error")


def wait_lifted(doc: MidjourneyDocument) -> MidjourneyDocument:
    """Make the failed step due now, as decided by the operator."""
    return doc.updated(last_error={**doc.error.raw, "recovery_actions": [retry_in(0)]})


def rolled_back(
    doc: MidjourneyDocument,
    step: Step,
    results: Mapping[str, Any],
    entry: Mapping[str, Any],
    discard: Collection[str],
) -> MidjourneyDocument:
    """Have a step run again, with `results` as its input: what it and later steps have made is given up. The paid calls
    stay on record. `discard` are the suffixes of files to delete afterwards."""
    kept = {it: n for it, n in doc.retries.items() if it in PAID_STEPS[: PAID_STEPS.index(step)]}
    after = doc.without("runway_task", "last_error", "skipped", "content_draft").updated(
        midjourney_task=None, midjourney_results=dict(results), generation=step is Step.IMAGINE, status=None
    )
    gone = {"discard": sorted(discard)} if discard else {}
    return after.updated(retries=kept, rolled_back=[*doc.rolled_back, dict(entry)], **gone)


def requeued(doc: MidjourneyDocument, present: MidjourneyDocument) -> MidjourneyDocument:
    """Bring back a generation that failed for good, at its failed step, with that step's attempts unused and everything
    before it kept.

    The day's spending is taken from the `present` document, since the day of the old one is over. A task in flight
    loses its date, so that it is polled before it can be given up for its age.
    """
    step = doc.present_step
    doc = doc.without("spend").updated(**({"spend": present.raw["spend"]} if "spend" in present.raw else {}))
    for name in ("midjourney_task", "runway_task"):
        if task := doc.raw.get(name):
            doc = doc.updated(**{name: {key: it for key, it in task.items() if key != "requested_at_utc"}})
    after = _cleared(
        doc.updated(status=_before_step(doc, step)).without("failed_step", "last_error", "cancelled"), step
    )
    return after.updated(generation=True) if step is Step.IMAGINE else after


def ordered_by(task: Task) -> Step:
    """Return the step that ordered a Midjourney task."""
    return Step.IMAGINE if task.task_type == IMAGINE else Step.UPSCALE


def _status_before(doc: MidjourneyDocument, status: Status) -> str | None:
    if status is Status.MJ_FETCH_FAILED and doc.task:
        return _WAITING[ordered_by(doc.task)].value
    if status in (Status.RUNWAY_POLL_FAILED, Status.RUNWAY_POLL_TIMEOUT) and doc.runway_task:
        return Status.WAITING_FOR_RUNWAY.value
    return None


def _before_step(doc: MidjourneyDocument, step: Step) -> str | None:
    if step is Step.MOCK:
        return Status.TIMED_OUT_MOCK_NEEDED.value
    status = FAILURE_STATUS.get(step)
    return _status_before(doc, status) if status else None


def _lasting(doc: MidjourneyDocument) -> dict[str, Any]:
    """Return the keys that outlast a step: the paid calls, the rollbacks, and the letter of a requeued generation."""
    return {"paid_calls": doc.paid_calls, **{key: doc.raw[key] for key in _LASTING_KEYS if doc.raw.get(key)}}


def _failed_for_good(doc: MidjourneyDocument, step: Step) -> MidjourneyDocument:
    return doc.updated(status=Status.TASK_FAILED_MAX_RETRIES.value, failed_step=step.value, generation=False)


def _cleared(doc: MidjourneyDocument, *steps: Step) -> MidjourneyDocument:
    return doc.updated(retries={step: n for step, n in doc.retries.items() if step not in steps})


def _dated(doc: MidjourneyDocument, key: str, task: Task | None, now: datetime) -> MidjourneyDocument:
    """Date a task now if it has no date, or one in the future, so that it can become overdue."""
    if task is None or (task.requested_at and task.requested_at <= now):
        return doc
    return doc.updated(**{key: {**doc.raw[key], "requested_at_utc": stamp(now)}})


def _poll_answered(doc: MidjourneyDocument, step: Step) -> MidjourneyDocument:
    """Clear the counter, and a class C error, after an answered poll, so that another refusal alerts again."""
    return _cleared(hold_lifted(doc) if doc.error.critical else doc, step)


def _call_failed(doc: MidjourneyDocument, record: Mapping[str, Any]) -> MidjourneyDocument:
    """Record the failure of the pending call, which is no longer pending."""
    return failed(doc.without("pending_call"), FAILURE_STATUS[_pending(doc).step], record)


def _billed(doc: MidjourneyDocument, outcome: str, task_id: str | None = None, **facts: Any) -> dict[str, Any]:
    """Return `paid_calls` and `spend` with the pending call counted as billed."""
    asked = _pending(doc).raw
    call = {key: asked[key] for key in _CALL_KEYS if key in asked}
    paid = [*doc.paid_calls, {**call, "outcome": outcome, **({"task_id": task_id} if task_id else {}), **facts}]
    spend = _spend(doc.spend, _closed(doc, "billed"), reserved=-_price(doc), settled=_price(doc))
    return {"paid_calls": paid, "spend": spend}


def _call(
    doc: MidjourneyDocument, step: Step, now: datetime, price: float, reservation: "Reservation | None"
) -> dict[str, Any]:
    """Return the record of a call before it is made. It has `counted_on` if the day's book counts it on another day
    than that of its time."""
    call = {
        "step": step.value,
        "attempt": doc.retries_of(step) + 1,
        "requested_at_utc": stamp(now),
        "price_usd": price,
    }
    return {**call, "counted_on": reservation.day} if reservation and reservation.day != day_of(now) else call


def _reserved(doc: MidjourneyDocument, reservation: "Reservation | None", fate: str) -> dict[str, Any]:
    """Return the record of the reservation for a call that is about to be made. A reservation for several calls keeps
    how much of it is already billed."""
    kept = doc.reservation
    if reservation is None:
        return kept
    record = {**reservation._asdict(), "fate": fate}
    if not reservation.deferred:
        del record["deferred"]
    if reservation.usd is None:
        del record["usd"]
        return record
    return {**record, "billed_usd": kept.get("billed_usd", 0.0) if kept.get("name") == reservation.name else 0.0}


def _billing(kept: dict[str, Any], usd: float) -> dict[str, Any]:
    """Return a reservation with `usd` more billed. For a single call its fate is enough to say that."""
    return {**kept, "billed_usd": round(kept["billed_usd"] + usd, 6)} if "billed_usd" in kept else kept


def _closed(doc: MidjourneyDocument, fate: str) -> dict[str, Any]:
    """Return the last reservation with the fate of its call. A document of an older version has none."""
    kept = doc.reservation
    if "fate" not in kept:
        return kept
    if "billed_usd" not in kept:
        return {**kept, "fate": fate}
    after = _billing(kept, _price(doc)) if fate == "billed" else kept
    return {**after, "fate": "billed" if after["billed_usd"] else fate}


def _price(doc: MidjourneyDocument) -> float:
    return float(_pending(doc).raw.get("price_usd") or 0.0)


def _spend(
    spend: Spend, reservation: Mapping[str, Any], *, reserved: float = 0.0, settled: float = 0.0
) -> dict[str, Any]:
    """Return `spend` with these amounts added, to a millionth of a dollar. Caps are checked against the day's book
    (`retake.paid.caps`); these sums replace it if it is missing."""
    return {
        "day": spend.day,
        "reserved_usd": max(0.0, round(spend.reserved + reserved, 6)),
        "settled_usd": max(0.0, round(spend.settled + settled, 6)),
        **({"reservation": dict(reservation)} if reservation else {}),
    }


def _pending(doc: MidjourneyDocument) -> PendingCall:
    assert doc.pending is not None, "no paid call is pending"
    return doc.pending


def _task(doc: MidjourneyDocument) -> Task:
    assert doc.task is not None, "no Midjourney task is in flight"
    return doc.task
