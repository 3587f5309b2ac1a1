"""Write ahead of every paid call.

The order is the whole point: room for the answer is set aside, what is about to be asked is saved, then it is asked,
once, then the answer is saved. A crash between the second and the last leaves a `pending_call` without a result, which
is a state with a name: whoever finds it asks the vendor what became of the call, and where the vendor cannot tell, the
operator's rule decides (`WORKFLOW.on_unknown_outcome`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from logging import getLogger
from typing import Any, NoReturn, TypeVar

from retake.bucket import Room
from retake.errors import (
    Code,
    ErrorClass,
    OutcomeUnknown,
    Refused,
    StorageError,
    TaskFailed,
    VendorError,
    escalate,
)
from retake.logs import alert
from retake.story import transitions
from retake.story.decision import ASK_TO_RESOLVE, comparable
from retake.story.documents import UNKNOWN, MidjourneyDocument, PendingCall, Status, Step
from retake.story.stage import Stage

_log = getLogger(__name__)
_Answer = TypeVar("_Answer")

_SAVE_PAUSES_S = (1, 2, 4, 8, 15)  # the store may be away for a moment just after the vendor took the order


def pay(
    stage: Stage,
    step: Step,
    facts: Mapping[str, Any],
    ask: Callable[[], _Answer],
    accepted: Callable[[MidjourneyDocument, _Answer], MidjourneyDocument],
) -> None:
    """Make a paid call. `facts` are what the vendor could be asked by, should the answer get lost; `accepted` makes
    of the document what it is with the answer. Raises the VendorError once the document says what became of it."""
    store = stage.store
    stage.check_stop()
    with _set_aside(stage) as room:
        reservation = stage.reserve(step)
        now, price = stage.clock.now(), stage.price(step)
        doc = transitions.intended(store.documents.midjourney, step, now, facts, price, reservation)
        intent = store.save_midjourney(doc)
        try:
            with stage.ended_after(_term(stage)):
                answer = ask()
        except VendorError as error:
            _not_accepted(stage, error)
        else:
            _save_whatever_it_takes(stage, accepted(intent, answer), answer, room)


@contextmanager
def _set_aside(stage: Stage) -> Iterator[Room]:
    """Room on the disk for the answer. Raises LeaseLost, StorageError, before anything is on record."""
    room = stage.store.set_aside()
    try:
        yield room
    finally:
        room.release()


def _term(stage: Stage) -> float | None:
    """For how many seconds the lease is surely ours: longer than the call can take, which is waited for (the settings
    see to it that a renewed lease lasts that long). None where it does not run out. Raises LeaseLost.

    A process that is frozen between this look and the call would make the call when it wakes, however late, beside
    whoever holds the lease by then. With this term set, the kernel ends it instead.
    """
    workflow = stage.settings.workflow
    call_s = workflow.call_timeout_seconds
    while True:
        stage.store.check_lease()
        left = stage.store.lease_left()
        if left is None:
            return None
        if left > call_s:
            return left
        stage.pause(1)


def settle(stage: Stage) -> None:
    """Find out what became of a pending call that a crash left. Raises OutcomeUnknown unless its task is found."""
    pending = _pending(stage)
    if pending.outcome == UNKNOWN and comparable(pending, stage.clock.now()):
        _compare_usage(stage, pending)
    _unknown(stage, OutcomeUnknown(Code.NETWORK, f"the {pending.step} call was begun, and its answer is not on record"))


def _compare_usage(stage: Stage, pending: PendingCall) -> NoReturn:
    """A held call: where the vendor's counts are what they were before it, it was not carried out after all."""
    doc, counted = stage.store.documents.midjourney, stage.vendors.filmmaker().usage()
    if counted is None or counted != pending.raw["usage"]:
        stage.store.save_midjourney(transitions.usage_compared(doc))
        raise OutcomeUnknown(Code.NETWORK, f"the vendor's counts have moved since the {pending.step} call")
    error = Refused(Code.NETWORK, f"by the vendor's counts the {pending.step} call was not carried out")
    conclude(stage, transitions.call_refused(doc, stage.record(error)), error)
    raise error


def conclude(stage: Stage, doc: MidjourneyDocument, error: VendorError) -> None:
    """Save what a failure makes of the document. One that a person must mend is told of once, not at each try."""
    before = stage.store.documents.midjourney.last_error or {}
    if error.error_class is ErrorClass.CRITICAL:
        doc = transitions.alerted(doc)
        if not (before.get("alerted") and before.get("error_code") == error.code):
            alert(error.code.value, f"{error}. Everything waits until it is mended", step=doc.present_step.value)
    stage.store.save_midjourney(doc)


def _not_accepted(stage: Stage, error: VendorError) -> None:
    doc, record = stage.store.documents.midjourney, stage.record(error)
    if isinstance(error, OutcomeUnknown):
        return _unknown(stage, error)
    if isinstance(error, Refused):
        conclude(stage, transitions.call_refused(doc, record), error)
    elif isinstance(error, TaskFailed):
        conclude(stage, transitions.call_wasted(doc, record), error)
    raise error


def _unknown(stage: Stage, error: OutcomeUnknown) -> None:
    """Nobody here can know whether the call was carried out. The vendor may; else the operator's rule decides."""
    pending, doc = _pending(stage), stage.store.documents.midjourney
    task_id = _found(stage, pending)
    if task_id:
        _log.info("the vendor knows the %s call: task %s", pending.step, task_id, extra={"step": pending.step.value})
        stage.store.save_midjourney(transitions.picture_ordered(doc, task_id))
        return
    if stage.settings.workflow.on_unknown_outcome == "hold":
        ask = escalate("operator", ASK_TO_RESOLVE)
        record = {**stage.record(error), "recovery_actions": [ask]}
        stage.store.save_midjourney(transitions.call_held(doc, record))
        what = "nothing more is paid for until you say --resolve retry or --resolve skip"
    else:
        stage.store.save_midjourney(transitions.call_lost(doc, stage.record(error)))
        what = "it will be asked again, and may be billed twice"
    alert("outcome_unknown", f"{pending.step}: {error}; {what}", step=pending.step.value)
    raise error


def _found(stage: Stage, pending: PendingCall) -> str | None:
    if pending.step in (Step.IMAGINE, Step.UPSCALE):
        return stage.vendors.midjourney().find(pending.raw)
    return None


def _pending(stage: Stage) -> PendingCall:
    pending = stage.store.documents.midjourney.pending
    assert pending is not None, "no paid call is pending"
    return pending


def _save_whatever_it_takes(stage: Stage, doc: MidjourneyDocument, answer: object, room: Room) -> None:
    """Save what the vendor answered: it must not get lost to a full disk, or to a store that is away.

    After the first try the room that was set aside is used. It is tried for as long as the lease lasts; where that
    does not run out, for half a minute. Raises LeaseLost, StorageError.
    """
    tries = 0
    while True:
        try:
            stage.store.save_midjourney(doc, room if tries else None)
        except StorageError as error:
            left = stage.store.lease_left() or 0.0
            if tries >= len(_SAVE_PAUSES_S) and left <= 0:
                raise
            _log.error("the answer to a paid call cannot be saved yet (%s); it was: %s", error, answer)
            stage.clock.sleep(_SAVE_PAUSES_S[min(tries, len(_SAVE_PAUSES_S) - 1)])
            tries += 1
        else:
            return


def fail(stage: Stage, status: Status, error: VendorError) -> VendorError:
    """Save that a step failed without a paid call being pending; returns the error, to be raised."""
    conclude(stage, transitions.failed(stage.store.documents.midjourney, status, stage.record(error)), error)
    return error
