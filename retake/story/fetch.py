"""fetch_media.py: how does the Midjourney task in flight stand?"""

from logging import getLogger

from retake.errors import PollFailed
from retake.story import transitions
from retake.story.documents import Status, Task
from retake.story.intent import conclude, fail
from retake.story.stage import Stage

_log = getLogger(__name__)


def fetch(stage: Stage) -> None:
    """Ask once. Done: the results are saved and the task is cleared. Still running: nothing but the counter of failed
    polls changes. Raises PollFailed for no usable answer, TaskFailed for a task that ended as failed; the document
    says so before."""
    doc = stage.store.documents.midjourney
    task = doc.task
    if task is None:
        _log.info("no Midjourney task is in flight: nothing to fetch")
        return
    try:
        state = stage.vendors.midjourney().fetch(task.task_id)
    except PollFailed as error:
        raise fail(stage, Status.MJ_FETCH_FAILED, error) from error
    if state.failure:
        record = stage.record(state.failure, transitions.ordered_by(task))
        conclude(stage, transitions.picture_task_failed(doc, record), state.failure)
        raise state.failure
    if state.result is not None:
        stage.store.save_midjourney(transitions.picture_delivered(doc, state.result))
        _log.info("the %s is there", task.task_type, extra=_about(task))
        return
    stage.store.save_midjourney(transitions.picture_still_awaited(doc, stage.clock.now()))
    _log.info("still waiting for the %s (%s)", task.task_type, state.progress or "running", extra=_about(task))


def _about(task: Task) -> dict[str, str]:
    return {"step": task.task_type, "task_id": task.task_id}
