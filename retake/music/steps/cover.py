"""The cover: one imagine, polled until its picture is ready, which is then saved at once.

A task that the vendor has accepted is polled by every later attempt. Another one is ordered only after it has failed or
a person has given it up.
"""

from collections.abc import Callable, Mapping
from logging import getLogger
from typing import Any

from retake.attempts import countdown
from retake.errors import Code, LinkExpired, OutcomeUnknown, PollFailed
from retake.media.picture import Size, fit, quarters
from retake.music.calls import MusicJournal, facts_of
from retake.music.context import JobContext
from retake.music.rows import PaidCall
from retake.music.texts import cover_prompt
from retake.paid.guard import HOLD, PaidCallGuard
from retake.strict_json import parse
from retake.vendors.pictures import first_picture

SIZE = Size(1280, 720)

_log = getLogger(__name__)


class AwaitsPerson(Exception):
    """The outcome of a call is unknown; a person has to decide."""

    def __init__(self, error: OutcomeUnknown | PollFailed) -> None:
        super().__init__(str(error))
        self.error = error


def make_cover(context: JobContext) -> Mapping[str, Any]:
    """Return the cover's path once it is in the bucket. Raises VendorError (if the track is missing, before anything is
    paid for), CapReached, AwaitsPerson, Stopped."""
    calls, latest = context.shared.calls, context.shared.calls.latest(context.attempt)
    if latest and latest.outcome in ("pending", "held"):  # left by an attempt that died
        call = _guarded(context, PaidCallGuard.reconcile)
    elif calls.answered(context.attempt) or _listed_late(context):
        call = _accepted(context)
    else:
        call = _ordered(context)
    result = _awaited(context, call)
    picture = _downloaded(context, call, result)
    return {"cover_url": context.keep("cover", "png", fit(picture, SIZE))}


def _ordered(context: JobContext) -> PaidCall:
    context.audio()  # a cover for a missing track would be paid for in vain
    row, midjourney = context.row, context.shared.vendors.midjourney()
    prompt, nonce = cover_prompt(row.track_title, row.style, row.note), context.shared.random.randrange(2**32)
    facts = {"nonce": nonce, "prompt": prompt}
    return _guarded(context, lambda guard: guard.call("cover", facts, lambda: midjourney.imagine(prompt, nonce)))


def _guarded(context: JobContext, work: Callable[[PaidCallGuard], None]) -> PaidCall:
    """Run `work` and return the call whose answer is on record: this one, or an earlier one of a worker that was
    suspended during it and has resumed."""
    journal = MusicJournal(context.shared.calls, context.attempt, context.shared.vendors.midjourney().find)
    on_unknown = context.settings.workflow.on_unknown_outcome
    try:
        work(context.guard(journal, on_unknown))
    except OutcomeUnknown as error:
        if context.shared.calls.answered(context.attempt) is None:
            raise (AwaitsPerson(error) if on_unknown == HOLD else error) from None
    return _accepted(context)


def _listed_late(context: JobContext) -> bool:
    """Return whether the vendor's history now has an order that it did not have when the answer was lost."""
    for call in context.shared.calls.lost(context.attempt):
        task = context.shared.vendors.midjourney().find(facts_of(call))
        if task is not None:
            context.shared.calls.settle(call, "accepted", answer=task)
            return True
    return False


def _accepted(context: JobContext) -> PaidCall:
    call = context.shared.calls.answered(context.attempt)
    assert call is not None, "the guard has recorded the answer"
    _log.info("%s: the cover is ordered: task %s", context.row.task_id, _task_of(call), extra={"step": "cover"})
    return call


def _awaited(context: JobContext, call: PaidCall) -> Mapping[str, Any]:
    """Return the task's result. Raises PollFailed, and TaskFailed, after which it is ordered again."""
    music, midjourney, task_id = context.settings.music, context.shared.vendors.midjourney(), _task_of(call)
    left = countdown(music.image_timeout_seconds, context.clock)
    while True:
        context.check()
        state = midjourney.fetch(task_id)
        if state.failure:
            context.shared.calls.settle(call, "wasted", state.failure, task_id)
            raise state.failure
        if state.result is not None:
            return state.result
        if (left_s := left()) <= 0:
            late = f"task {task_id} has no picture after {music.image_timeout_seconds:g} s; a retry polls it again"
            give_up = f"to give it up and order another: retake music retry {context.row.id} --again"
            raise PollFailed(Code.POLL_TIMEOUT, f"{late} ({give_up})")
        context.pause(min(music.poll_seconds, max(0.05, left_s)))


def _downloaded(context: JobContext, call: PaidCall, result: Mapping[str, Any]) -> bytes:
    downloader, most = context.shared.vendors.downloader(), context.settings.workflow.max_picture_bytes
    try:
        return first_picture(result, downloader, most, quarters)
    except LinkExpired:  # polled again, the vendor returns a new link
        return first_picture(_awaited(context, call), downloader, most, quarters)


def _task_of(call: PaidCall) -> str:
    return str(parse(call.answer or ""))
