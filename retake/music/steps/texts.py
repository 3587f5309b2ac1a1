"""Title, description and tags, and the review: one chat call each.

An answer is recorded before it is used, so that it is not paid for again after a crash.
"""

from collections.abc import Callable, Mapping
from typing import Any

from retake.errors import Code, OutcomeUnknown, TaskFailed
from retake.music.calls import MusicJournal
from retake.music.context import JobContext
from retake.music.rows import as_object
from retake.music.store import as_text
from retake.music.texts import fit_meta, fit_review, meta_messages, review_messages

TEMPERATURE = 0.7
MAX_TOKENS = 2000

Texts = dict[str, Any]


def make_meta(context: JobContext) -> Mapping[str, Any]:
    """Return the video's metadata for YouTube. Raises VendorError, CapReached, Stopped."""
    row = context.row
    asked = meta_messages(row.track_title, row.style, row.note)
    return {"metadata_json": _written(context, asked, lambda answer: fit_meta(answer, row.track_title))}


def make_review(context: JobContext) -> Mapping[str, Any]:
    """Return the review. It only advises, and never blocks publishing. Raises the errors of `make_meta`."""
    row = context.row
    meta = as_object(row.metadata_json) or {}
    return {"review_json": _written(context, review_messages(row.track_title, row.style, meta, row.note), fit_review)}


def _written(context: JobContext, asked: tuple[str, str], fitted: Callable[[Texts], Texts]) -> str:
    calls, journal = context.shared.calls, MusicJournal(context.shared.calls, context.attempt)
    if journal.pending:  # left by an attempt that died: its answer cannot be retrieved
        journal.lost(OutcomeUnknown(Code.NETWORK, _DIED))
    if calls.answered(context.attempt) is None:
        _ask(context, asked, journal)
    call = calls.answered(context.attempt)
    assert call is not None, "the guard has recorded the answer"
    try:
        return as_text(fitted(as_object(call.answer) or {}))
    except TaskFailed as error:
        calls.settle(call, "wasted", error, as_object(call.answer))
        raise


def _ask(context: JobContext, asked: tuple[str, str], journal: MusicJournal) -> None:
    writer = context.shared.vendors.chat()
    system, user = asked

    def write() -> Texts:
        return writer.write(system, user, temperature=TEMPERATURE, max_tokens=MAX_TOKENS)

    context.guard(journal).call(context.step.value, {}, write)


_DIED = "the call was begun by an attempt that died, and its answer is not on record"
