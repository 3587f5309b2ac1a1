"""fetch_media.py: ask Midjourney how the task in flight stands."""

from logging import getLogger

from retake.errors import PollFailed
from retake.story import transitions
from retake.story.decision import Act, next_step
from retake.story.documents import Status
from retake.story.journal import conclude
from retake.story.step_context import StepContext

_log = getLogger(__name__)


def fetch(context: StepContext) -> None:
    """Ask once. Done: the results are saved and the task is cleared. Still running: only the counter of failed polls
    changes.

    Raises PollFailed where there is no usable answer, TaskFailed where the task ended as failed; the document says so
    before.
    """
    doc = context.store.documents.midjourney
    if next_step(context.store.documents).act is not Act.FETCH or doc.task is None:
        _log.info("no Midjourney task is in flight: nothing to fetch")
        return
    task, about = doc.task, {"step": doc.task.task_type, "task_id": doc.task.task_id}
    try:
        state = context.vendors.midjourney().fetch(task.task_id)
    except PollFailed as error:
        raise context.fail(Status.MJ_FETCH_FAILED, error) from error
    if state.failure:
        record = context.record(state.failure, transitions.ordered_by(task))
        conclude(context.store, transitions.picture_task_failed(doc, record), state.failure)
        raise state.failure
    if state.result is not None:
        context.store.save_midjourney(transitions.picture_delivered(doc, state.result))
        _log.info("the %s is there", task.task_type, extra=about)
        return
    context.store.save_midjourney(transitions.picture_still_awaited(doc, context.clock.now()))
    _log.info("still waiting for the %s (%s)", task.task_type, state.progress or "running", extra=about)
