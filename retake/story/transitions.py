"""What each event makes of config_midjourney.json. Pure: a document in, a document out.

The counting rule: a failure leaves the counter alone, a reset adds one, and a counter is cleared when the step's
*result* is there. «The vendor took the order» is no result: a task that is accepted and then always ends failed would
be paid for without end.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from retake.clock import stamp
from retake.errors import ErrorClass, retry_in
from retake.story.documents import (
    FAILED_STEP,
    FAILURE_STATUS,
    IMAGINE,
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

_OURS = (
    *("retries", "runway_task", "pending_call", "last_error", "content_draft", "paid_calls", "failed_step"),
    *("cancelled", "skipped"),
)

_RECORDED = ("step", "attempt", "requested_at_utc", "counted_on", "price_usd", "call")

PICK = "pick"
"""`call` of the paid call by which the chat API chooses one of four pictures."""

_WAITING = {Step.IMAGINE: Status.WAITING_FOR_IMAGINE, Step.UPSCALE: Status.WAITING_FOR_UPSCALE}


def clean(doc: MidjourneyDocument) -> MidjourneyDocument:
    """Nothing under way. Keys that are not ours stay."""
    return doc.without(*_OURS).updated(midjourney_task=None, midjourney_results={}, generation=False, status=None)


def content_ready(doc: MidjourneyDocument) -> MidjourneyDocument:
    """The text lies in its file: the picture is next. What the calls cost stays on record."""
    return clean(doc).updated(generation=True, paid_calls=doc.paid_calls)


def picture_next(doc: MidjourneyDocument) -> MidjourneyDocument:
    """A crash lost the flag between the text and the picture: raise it again."""
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
    """A paid call is about to be made: what is asked, when, and for how much, is on record before it goes out."""
    call = _call(doc, step, now, price, reservation)
    spend = doc.spend.on(str(call.get("counted_on") or day_of(now)))
    kept = _reserved(doc, reservation, "open")
    return doc.updated(pending_call={**call, **facts}, spend=_spend(spend, kept, reserved=price))


def day_of(now: datetime) -> str:
    """The day that a payment at `now` belongs to."""
    return stamp(now)[:10]


def begun(doc: MidjourneyDocument, generation_id: str) -> MidjourneyDocument:
    """Nothing under way, for a generation that begins. The document has an account from here on, by which the day's
    book tells it from one that was removed (`retake.paid.day_book`)."""
    if isinstance(_kept(doc).get("account"), str):
        return clean(doc)
    return clean(doc).updated(spend={**(doc.raw.get("spend") or {}), "reservation": {"account": generation_id}})


def answered(doc: MidjourneyDocument, partial: Mapping[str, Any]) -> MidjourneyDocument:
    """The writer answered one of its calls."""
    after = doc.updated(content_draft={**doc.draft, **partial}, **_billed(doc, "done"))
    return after.without("pending_call", "last_error")


def picture_ordered(doc: MidjourneyDocument, task_id: str) -> MidjourneyDocument:
    """Midjourney took the order. The results of the imagine stay until those of the upscale are there: if the upscale
    is lost, they are what it is ordered from again."""
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
    """The call was certainly not carried out: one failed attempt, or what its class says."""
    return _over(doc.updated(spend=_spend(doc.spend, _closed(doc, "released"), reserved=-_price(doc))), record)


def call_wasted(doc: MidjourneyDocument, record: Mapping[str, Any]) -> MidjourneyDocument:
    """The call was carried out and billed, and its answer is of no use."""
    return _over(doc.updated(**_billed(doc, "wasted")), record)


def call_lost(doc: MidjourneyDocument, record: Mapping[str, Any]) -> MidjourneyDocument:
    """Nobody can know whether the call was carried out, and asking again is allowed: a failed attempt like any other,
    on record as a possible duplicate."""
    return _over(doc.updated(**_billed(doc, "unknown", possible_duplicate=True)), record)


def call_held(doc: MidjourneyDocument, record: Mapping[str, Any]) -> MidjourneyDocument:
    """Nobody can know, and asking again is not allowed: everything stays as it was until the operator decides."""
    return doc.updated(pending_call={**_pending(doc).raw, "outcome": UNKNOWN}, last_error=dict(record))


def reconcile_failed(doc: MidjourneyDocument, record: Mapping[str, Any]) -> MidjourneyDocument:
    """Finding out what became of the pending call has failed once more; the call itself stays as it is."""
    pending = _pending(doc)
    call = {**pending.raw, "failed_settles": pending.failed_reconciles + 1}
    return doc.updated(pending_call=call, last_error=dict(record))


def usage_compared(doc: MidjourneyDocument) -> MidjourneyDocument:
    """The vendor's counts have moved since the held call: it may have been carried out, only a person can tell."""
    return doc.updated(pending_call={**_pending(doc).raw, "compared": True})


def operator_retries(doc: MidjourneyDocument) -> MidjourneyDocument:
    """The operator lets a held call be made again; it does not use up an attempt."""
    return doc.updated(**_billed(doc, "unknown", possible_duplicate=True)).without("pending_call", "last_error")


def operator_skips(doc: MidjourneyDocument, *, mock: bool) -> MidjourneyDocument:
    """The operator does not want a held call made again: the generation ends as one whose attempts are used up."""
    rest = doc.updated(**_billed(doc, "unknown")).without("pending_call")
    return mock_instead(rest) if mock else _final(rest, _pending(doc).step)


# --- what the vendors' tasks deliver ------------------------------------------------------------------------------


def picture_delivered(doc: MidjourneyDocument, result: Mapping[str, Any]) -> MidjourneyDocument:
    """The task in flight is done: its result is there, and so its counter and that of the polls are cleared."""
    task = _task(doc)
    results = {"task_id": task.task_id, "task_type": task.task_type, "task_result": dict(result)}
    after = doc.updated(midjourney_task=None, midjourney_results=results, status=None).without("last_error")
    return _cleared(after, ordered_by(task), Step.FETCH)


def choice_begun(
    doc: MidjourneyDocument, now: datetime, price: float, reservation: "Reservation | None" = None
) -> MidjourneyDocument:
    """The chat API is about to be asked which picture to upscale: whatever comes of it, it is not paid for again. It
    counts as billed from here on, unless it turns out that it was not (`choice_made`)."""
    call = {**_call(doc, Step.UPSCALE, now, price, reservation), "call": PICK, "outcome": UNKNOWN}
    spend = doc.spend.on(str(call.get("counted_on") or day_of(now)))
    spent = _spend(spend, _reserved(doc, reservation, "billed"), settled=price)
    return picture_picked(doc, 0).updated(paid_calls=[*doc.paid_calls, call], spend=spent)


def choice_made(doc: MidjourneyDocument, index: int, outcome: str | None) -> MidjourneyDocument:
    """Which picture is to be upscaled, and what became of the call that chose it: None if it was not carried out."""
    *before, call = doc.paid_calls
    after = picture_picked(doc, index)
    if outcome is None:
        released = _spend(doc.spend, _closed(doc, "released"), settled=-float(call["price_usd"]))
        return after.updated(paid_calls=before, spend=released)
    return after.updated(paid_calls=[*before, {**call, "outcome": outcome}])


def picture_picked(doc: MidjourneyDocument, index: int) -> MidjourneyDocument:
    """Which picture is to be upscaled, 1–4, is on record."""
    return doc.updated(midjourney_results={**doc.raw["midjourney_results"], "picked": index})


def link_expired(doc: MidjourneyDocument) -> MidjourneyDocument:
    """The link to the picture leads nowhere any more: the next attempt asks for a new one first."""
    return doc.updated(midjourney_results={**doc.raw["midjourney_results"], "link_expired": True})


def link_renewed(doc: MidjourneyDocument, result: Mapping[str, Any]) -> MidjourneyDocument:
    """The task's state was asked for once more: its `result` has a new link."""
    known = {key: value for key, value in doc.raw["midjourney_results"].items() if key != "link_expired"}
    return doc.updated(midjourney_results={**known, "task_result": dict(result)})


def picture_still_awaited(doc: MidjourneyDocument, now: datetime) -> MidjourneyDocument:
    """The poll was answered. A task that does not say when it was ordered is dated from now: so it can time out."""
    task = doc.raw["midjourney_task"]
    if not task.get("requested_at_utc"):
        doc = doc.updated(midjourney_task={**task, "requested_at_utc": stamp(now)})
    return _poll_answered(doc, Step.FETCH)


def picture_task_failed(doc: MidjourneyDocument, record: Mapping[str, Any]) -> MidjourneyDocument:
    """The task itself ended as failed: it is the order that failed, whichever it was, and a new one is needed."""
    status = FAILURE_STATUS[ordered_by(_task(doc))]
    return failed(_cleared(doc.updated(midjourney_task=None), Step.FETCH), status, record)


def video_polled(doc: MidjourneyDocument, now: datetime) -> MidjourneyDocument:
    """The poll was answered. A task that does not say when it was ordered is dated from now: so it can be overdue."""
    task = doc.raw.get("runway_task")
    if task and not task.get("requested_at_utc"):
        doc = doc.updated(runway_task={**task, "requested_at_utc": stamp(now)})
    return _poll_answered(doc, Step.RUNWAY_POLL)


def polls_counted(doc: MidjourneyDocument, polls_failed: int) -> MidjourneyDocument:
    """Set the counter of failed polls, which answered polls have cleared, to what it was when the polling began."""
    return doc.updated(retries={**doc.retries, Step.RUNWAY_POLL.value: polls_failed})


def video_task_failed(doc: MidjourneyDocument, record: Mapping[str, Any]) -> MidjourneyDocument:
    after = _cleared(doc.updated(runway_task=None), Step.RUNWAY_POLL)
    return failed(after, Status.RUNWAY_TRIGGER_FAILED, record)


def video_delivered(doc: MidjourneyDocument) -> MidjourneyDocument:
    """The files are all there: nothing is under way."""
    return clean(doc).updated(paid_calls=doc.paid_calls)


# --- failures, retries, ends --------------------------------------------------------------------------------------


def failed(doc: MidjourneyDocument, status: Status, record: Mapping[str, Any]) -> MidjourneyDocument:
    """A step failed. What comes of it depends on the class of the error:

    A: the error status, to be retried. B: no retry can mend it, the generation fails. C: everything stays as it is
    until a person has mended what the record says.
    """
    doc = doc.updated(last_error=dict(record))
    if record["error_class"] == ErrorClass.CRITICAL:
        return doc
    if record["error_class"] == ErrorClass.BUSINESS:
        return _final(doc, FAILED_STEP[status])
    return doc.updated(status=status.value)


def retried(doc: MidjourneyDocument) -> MidjourneyDocument:
    """One more attempt is granted: the status goes back to what stood before the failed step."""
    assert doc.status is not None
    step = FAILED_STEP[doc.status]
    after = doc.updated(status=_before(doc, doc.status), retries={**doc.retries, step.value: doc.retries_of(step) + 1})
    return after.updated(generation=True) if step is Step.IMAGINE else after


def exhausted(doc: MidjourneyDocument) -> MidjourneyDocument:
    """No attempt is left: the generation failed for good."""
    return _final(doc, doc.present_step)


def mock_instead(doc: MidjourneyDocument) -> MidjourneyDocument:
    """The vendors are given up on: a substitute is made on this machine."""
    dropped = doc.updated(midjourney_task=None, midjourney_results={}, generation=False).without("runway_task")
    return dropped.updated(status=Status.TIMED_OUT_MOCK_NEEDED.value)


def skipped(doc: MidjourneyDocument, by: str, now: datetime) -> MidjourneyDocument:
    """Somebody does without what the failed step was to make: a mock takes its place. The error stays on record."""
    entry = {"step": doc.present_step.value, "by": by, "at_utc": stamp(now), "error": doc.error.raw or None}
    return mock_instead(doc.without("last_error").updated(skipped=[*doc.skipped, entry]))


def cancelled(doc: MidjourneyDocument, by: str, now: datetime) -> MidjourneyDocument:
    """Nobody wants the generation any more. It ends as one that failed, and says that it did not. A call that was under
    way counts as billed: nobody asks what became of it."""
    step = doc.present_step
    rest = doc.updated(**_billed(doc, "unknown")).without("pending_call") if doc.pending else doc
    return _final(rest.updated(generation=False), step).updated(cancelled={"by": by, "at_utc": stamp(now)})


def mock_failed(doc: MidjourneyDocument) -> MidjourneyDocument:
    return doc.updated(retries={**doc.retries, Step.MOCK.value: doc.retries_of(Step.MOCK) + 1})


def alerted(doc: MidjourneyDocument) -> MidjourneyDocument:
    """The operator was told of the last error: once is enough."""
    return doc.updated(last_error={**doc.error.raw, "alerted": True})


def hold_lifted(doc: MidjourneyDocument) -> MidjourneyDocument:
    """The operator says that what the last error asked for is mended."""
    return doc.without("last_error")


def wait_lifted(doc: MidjourneyDocument) -> MidjourneyDocument:
    """The operator says that what failed is to be tried again at once."""
    return doc.updated(last_error={**doc.error.raw, "recovery_actions": [retry_in(0)]})


def requeued(doc: MidjourneyDocument, present: MidjourneyDocument) -> MidjourneyDocument:
    """A generation that failed for good goes on at its failed step, with that step's attempts unused and everything
    before it kept. What the day has cost is what the `present` document says: the old one's day is over."""
    step = doc.present_step
    doc = doc.without("spend").updated(**({"spend": present.raw["spend"]} if "spend" in present.raw else {}))
    after = _cleared(
        doc.updated(status=_before_step(doc, step)).without("failed_step", "last_error", "cancelled"), step
    )
    return after.updated(generation=True) if step is Step.IMAGINE else after


def ordered_by(task: Task) -> Step:
    """The step that ordered a Midjourney task."""
    return Step.IMAGINE if task.task_type == IMAGINE else Step.UPSCALE


def _before(doc: MidjourneyDocument, status: Status) -> str | None:
    if status is Status.MJ_FETCH_FAILED and doc.task:
        return _WAITING[ordered_by(doc.task)].value
    if status in (Status.RUNWAY_POLL_FAILED, Status.RUNWAY_POLL_TIMEOUT) and doc.runway_task:
        return Status.WAITING_FOR_RUNWAY.value
    return None


def _before_step(doc: MidjourneyDocument, step: Step) -> str | None:
    if step is Step.MOCK:
        return Status.TIMED_OUT_MOCK_NEEDED.value
    status = FAILURE_STATUS.get(step)
    return _before(doc, status) if status else None


def _final(doc: MidjourneyDocument, step: Step) -> MidjourneyDocument:
    return doc.updated(status=Status.TASK_FAILED_MAX_RETRIES.value, failed_step=step.value)


def _cleared(doc: MidjourneyDocument, *steps: Step) -> MidjourneyDocument:
    return doc.updated(retries={step: n for step, n in doc.retries.items() if step not in steps})


def _poll_answered(doc: MidjourneyDocument, step: Step) -> MidjourneyDocument:
    """A vendor that answers no longer needs mending: should it refuse again, that is to be told anew."""
    return _cleared(hold_lifted(doc) if doc.error.critical else doc, step)


def _over(doc: MidjourneyDocument, record: Mapping[str, Any]) -> MidjourneyDocument:
    """The pending call has come to nothing."""
    return failed(doc.without("pending_call"), FAILURE_STATUS[_pending(doc).step], record)


def _billed(doc: MidjourneyDocument, outcome: str, task_id: str | None = None, **facts: Any) -> dict[str, Any]:
    """The spend record and the day's sum, with the pending call counted as billed."""
    asked = _pending(doc).raw
    call = {key: asked[key] for key in _RECORDED if key in asked}
    paid = [*doc.paid_calls, {**call, "outcome": outcome, **({"task_id": task_id} if task_id else {}), **facts}]
    spend = _spend(doc.spend, _closed(doc, "billed"), reserved=-_price(doc), settled=_price(doc))
    return {"paid_calls": paid, "spend": spend}


def _call(
    doc: MidjourneyDocument, step: Step, now: datetime, price: float, reservation: "Reservation | None"
) -> dict[str, Any]:
    """What is on record of a call before it is made. It counts on the day of its time, unless `counted_on` says that
    the book of the day says otherwise."""
    call = {
        "step": step.value,
        "attempt": doc.retries_of(step) + 1,
        "requested_at_utc": stamp(now),
        "price_usd": price,
    }
    return {**call, "counted_on": reservation.day} if reservation and reservation.day != day_of(now) else call


def _kept(doc: MidjourneyDocument) -> dict[str, Any]:
    """The document's word on its last reservation, for the book of the day (`retake.story.spending.known`)."""
    kept = (doc.raw.get("spend") or {}).get("reservation")
    return kept if isinstance(kept, dict) else {}


def _reserved(doc: MidjourneyDocument, reservation: "Reservation | None", fate: str) -> dict[str, Any]:
    return {**reservation._asdict(), "fate": fate} if reservation else _kept(doc)


def _closed(doc: MidjourneyDocument, fate: str) -> dict[str, Any]:
    """The last reservation, now that it is known what became of its call. One of an older document has none."""
    kept = _kept(doc)
    return {**kept, "fate": fate} if "fate" in kept else kept


def _price(doc: MidjourneyDocument) -> float:
    return float(_pending(doc).raw.get("price_usd") or 0.0)


def _spend(
    spend: Spend, reservation: Mapping[str, Any], *, reserved: float = 0.0, settled: float = 0.0
) -> dict[str, Any]:
    """`spend` with these amounts added, to a millionth of a dollar. What the caps are held against is the book of the
    day (`retake.paid.caps`); these sums are what it goes by where it is not there."""
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
