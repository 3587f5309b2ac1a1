"""generate_media.py: the picture, its upscale, the video; or the mock, if the vendors were given up on. One run
carries out one action of the decision.

fetch_media.py: polls the Midjourney task in flight once.
"""

from collections.abc import Callable, Mapping
from logging import getLogger
from typing import Any

from retake.attempts import countdown
from retake.errors import (
    CapReached,
    Code,
    LinkExpired,
    PollFailed,
    Refused,
    SettingsError,
    StateError,
    TaskFailed,
    VendorError,
)
from retake.media import MediaError
from retake.paid.guard import DROP, HOLD
from retake.story import transitions
from retake.story.decision import MEDIA_SCRIPT, Act, next_step, script_of
from retake.story.documents import FAILED_STEP, UPSCALE, Results, Status, Step
from retake.story.script import PickJournal, StepContext, conclude
from retake.vendors import OrderPreparation, save
from retake.vendors.pictures import single_links

_log = getLogger(__name__)

_QUESTION = "Which of these four pictures is the best first frame of a video?"


def make_media(context: StepContext, generation_id: str, *, use_mock: bool = False) -> None:
    """Carry out the next action for the generation under way, or make a mock. A failure is recorded in the document and
    raised. Raises StateError if a mock would replace a video."""
    context.check_under_way(generation_id)
    action = next_step(context.store.documents)
    if use_mock and action.act is Act.FINISH:
        raise StateError(
            f"the video of {generation_id} is there, and a mock would replace it; the next tick finishes. Nothing was "
            "changed"
        )
    if use_mock:
        make_mock(context)
    elif script_of(action) == MEDIA_SCRIPT:
        _CARRY_OUT[action.act](context)
    elif action.act is Act.WRITE and context.store.documents.midjourney.generation:
        _content(context, Status.IMAGINE_TRIGGER_FAILED, "midjourney_prompt")  # raises: there is no text
    else:
        _log.info("nothing to do for %s here; next: %s (%s)", generation_id, action.act, action.why)


def fetch(context: StepContext) -> None:
    """Poll the task once. If it is done, save the results and clear the task. If it is still running, only the counter
    of failed polls changes.

    Raises PollFailed if there is no usable answer, and TaskFailed if the task has failed; both are recorded in the
    document first.
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
        delivered = transitions.picture_delivered(doc, state.result)
        context.store.save_midjourney(delivered, synced=False)  # if a power cut undoes it, the task is polled again
        _log.info("the %s is ready", task.task_type, extra=about)
        return
    awaited = transitions.picture_still_awaited(doc, context.clock.now())
    context.store.save_midjourney(awaited, synced=False)
    _log.info("still waiting for the %s (%s)", task.task_type, state.progress or "running", extra=about)


# --- the picture ------------------------------------------------------------------------------------------------


def _order_pictures(context: StepContext) -> None:
    content = _content(context, Status.IMAGINE_TRIGGER_FAILED, "midjourney_prompt")
    prompt, nonce = content["midjourney_prompt"], context.nonce()
    midjourney = context.vendors.midjourney()
    _pay(context, Step.IMAGINE, {"nonce": nonce, "prompt": prompt}, lambda: midjourney.imagine(prompt, nonce))


def _order_upscale(context: StepContext) -> None:
    results = _results(context)
    index = _picked(context, results)
    midjourney = context.vendors.midjourney()
    facts = {"origin_task_id": results.task_id, "index": index}
    _pay(context, Step.UPSCALE, facts, lambda: midjourney.upscale(results.task_id, index))


def _picked(context: StepContext, results: Results) -> int:
    """Return which of the four pictures to upscale, 1–4: the first, or the one that the chat API chooses
    (IMAGE_GENERATION.pick).

    The choice is a paid call like any other, but not worth a second call: if anything goes wrong, the first picture is
    taken. A choice on record is kept, and a call that was begun is never made again.
    """
    if context.settings.image.pick == "vision" and results.picked is None:
        _choose(context, results)
        results = context.store.documents.midjourney.results or results
    return results.picked or 1


def _choose(context: StepContext, results: Results) -> None:
    journal = PickJournal(context.store, context.clock)
    try:
        pictures, writer = _pictures(context, results), context.vendors.writer()
        guard = context.guard(journal, DROP)
        guard.call(Step.CONTENT, {}, lambda: writer.choose(_QUESTION, pictures))
    except CapReached:
        return
    except (VendorError, SettingsError, MediaError) as error:  # SettingsError: no key
        _log.warning("the choice of a picture failed (%s): the first is taken", error)
        if not isinstance(error, VendorError) or not journal.ended:  # no call was made
            journal.not_made()
        return
    doc = context.store.documents.midjourney
    index = doc.results and doc.results.picked
    _log.info("picture %s of 4 was chosen", index, extra={"step": Step.UPSCALE.value})


def _pictures(context: StepContext, results: Results) -> list[str]:
    """Return the four pictures as links, or as data URIs that are cut from their grid."""
    if results.link_expired:
        results = _renewed(context, results)
    if singles := single_links(results.task_result):
        return singles
    grid = _download(context, results)
    return [context.media.data_uri(quarter) for quarter in context.media.quarters(grid)]


def _download(context: StepContext, results: Results) -> bytes:
    """Return the picture at the link in the results. Raises PollFailed."""
    if not (url := results.task_result.get("image_url")):
        raise PollFailed(Code.BAD_ANSWER, f"the {results.task_type}'s result on record has no image_url")
    return context.vendors.downloader().download(url, context.settings.workflow.max_picture_bytes)


def _renewed(context: StepContext, results: Results) -> Results:
    """Return the results with new links from the vendor, for free. Raises PollFailed if the vendor no longer knows the
    task, and TaskFailed if it now says that the task failed."""
    state = context.vendors.midjourney().fetch(results.task_id)
    if state.result is None:
        running = PollFailed(Code.BAD_ANSWER, f"task {results.task_id} was done, and is said to be running")
        raise state.failure or running
    context.store.save_midjourney(transitions.link_renewed(context.store.documents.midjourney, state.result))
    _log.info(
        "the links to the %s had expired: the vendor gave new ones",
        results.task_type,
        extra={"step": results.task_type},
    )
    return _results(context)


def _pay(context: StepContext, step: Step, facts: Mapping[str, Any], ask: Callable[[], str]) -> None:
    context.paid.call(step, facts, ask)
    task = context.store.documents.midjourney.task
    _log.info("ordered the %s: task %s", step, task and task.task_id, extra={"step": step.value})


# --- the video --------------------------------------------------------------------------------------------------


def _order_video(context: StepContext) -> None:
    results = _results(context)
    content = _content(context, Status.RUNWAY_TRIGGER_FAILED, "runway_prompt")
    picture = _picture(context, results)
    try:
        image = context.media.data_uri(picture)
    except MediaError as error:  # use up an attempt, or the same picture would be tried forever
        raise context.fail(Status.RUNWAY_TRIGGER_FAILED, _as_vendor_error(error)) from error
    prompt = content["runway_prompt"]
    generator = context.vendors.video_generator()
    facts: dict[str, Any] = {"model": context.settings.runwayml.model_name, "prompt": prompt}
    if context.settings.workflow.on_unknown_outcome == HOLD:
        facts["usage"] = generator.usage()
    if isinstance(generator, OrderPreparation):
        generator.prepare()
    context.paid.call(Step.RUNWAY, facts, lambda: generator.create(image, prompt))
    task = context.store.documents.midjourney.runway_task
    _log.info("ordered the video: task %s", task and task.task_id, extra={"step": Step.RUNWAY.value})
    _poll_video(context)


def _picture(context: StepContext, results: Results) -> bytes:
    """Return the generation's picture, resized and saved. Links expire, so it is downloaded as soon as there is one.
    After a link has expired, the next attempt asks the vendor for a new one."""
    key = context.store.file_key(context.generation_id, "png")
    if "png" in context.store.files(context.generation_id):
        return context.store.bucket.read(key)[0]
    try:
        picture = _resized_picture(context, results)
    except LinkExpired as error:
        expired = transitions.link_expired(context.store.documents.midjourney)
        context.fail(Status.RUNWAY_TRIGGER_FAILED, error, doc=expired)
        raise
    except (PollFailed, TaskFailed, MediaError) as error:
        raise context.fail(Status.RUNWAY_TRIGGER_FAILED, _as_vendor_error(error)) from error
    context.store.save_file(key, picture)
    _log.info("the picture is saved as %s", key, extra={"step": Step.UPSCALE.value})
    return picture


def save_picture(context: StepContext, generation_id: str) -> None:
    """Save the picture of the generation under way if it is delivered and not saved yet.

    Raises VendorError and SettingsError if it cannot be downloaded now. That is not recorded, since the order of the
    video tries again.
    """
    context.check_under_way(generation_id)
    if "png" in context.store.files(generation_id):
        _log.info("the picture is saved already")
        return
    try:
        picture = _paid_picture(context)
    except MediaError as error:
        raise _as_vendor_error(error) from error
    if picture is None:
        _log.info("the upscaled picture is not delivered yet: nothing to save")
        return
    context.store.save_file(context.store.file_key(generation_id, "png"), picture)
    _log.info("the picture is saved; its video has to wait", extra={"step": Step.UPSCALE.value})


def _resized_picture(context: StepContext, results: Results) -> bytes:
    """Return the picture of the results in the size of the settings, from a new link if theirs is known to have
    expired. Raises PollFailed, TaskFailed, MediaError."""
    if results.link_expired:
        results = _renewed(context, results)
    return context.media.sized(_download(context, results))


def _poll_video(context: StepContext) -> None:
    """Poll until the video is there or `runway_polling_timeout` is over. The task is paid for, so later ticks poll it
    again, and never order it again."""
    workflow = context.settings.workflow
    task = context.store.documents.midjourney.runway_task
    assert task is not None, "no Runway task is in flight"
    video_generator = context.vendors.video_generator()
    polls_failed = context.store.documents.midjourney.retries_of(Step.RUNWAY_POLL)
    interval = max(workflow.runway_polling_interval, video_generator.min_poll_s)
    left = countdown(workflow.runway_polling_timeout, context.clock)
    while True:
        try:
            state = video_generator.poll(task.task_id)
        except PollFailed as error:
            raise context.fail(Status.RUNWAY_POLL_FAILED, error) from error
        polled = transitions.video_polled(context.store.documents.midjourney, context.clock.now())
        doc = context.store.save_midjourney(polled)
        if state.failure:
            record = context.record(state.failure, Step.RUNWAY)
            conclude(context.store, transitions.video_task_failed(doc, record), state.failure)
            raise state.failure
        if state.result is not None:
            return _save_video(context, state.result, polls_failed)
        _log.info("still waiting for the video (%s)", state.progress or "running", extra={"step": Step.RUNWAY.value})
        if left() < interval:
            late = PollFailed(Code.POLL_TIMEOUT, f"no video after {workflow.runway_polling_timeout:g} s of polling")
            raise _polling_failed(context, Status.RUNWAY_POLL_TIMEOUT, polls_failed, late)
        context.process.pause(interval)


def _save_video(context: StepContext, result: Mapping[str, Any], polls_failed: int) -> None:
    """Save the video. Memory never holds all of it: it goes from the link to a local file, and from there to the
    bucket."""
    from retake.media.ffmpeg import scratch

    key = context.store.file_key(context.generation_id, "mp4")
    most = context.settings.workflow.max_video_bytes
    try:
        with scratch() as folder:
            path = folder / "film"
            with path.open("wb") as file:
                save(context.vendors.downloader(), result["output"][0], file, most)
            doubt = context.media.check_video(path)
            if doubt:  # the video is paid for, and a player may play what this ffmpeg cannot
                _log.warning("the video is saved, but look at it: %s", doubt, extra={"step": Step.RUNWAY.value})
            with path.open("rb") as file:
                context.store.save_file(key, file)
    except (PollFailed, MediaError) as error:
        raise _polling_failed(context, Status.RUNWAY_POLL_FAILED, polls_failed, _as_vendor_error(error)) from error
    doc = context.store.documents.midjourney
    if doc.status in FAILED_STEP:  # otherwise the files are enough: a generation that has them all is finished
        context.store.save_midjourney(transitions.video_delivered(doc))
    _log.info("the video is saved as %s", key, extra={"step": Step.RUNWAY.value})


def _polling_failed(context: StepContext, status: Status, polls_failed: int, error: VendorError) -> VendorError:
    """Save that polling ended without the video. The counter, which answered polls have cleared, is set back to
    `polls_failed`, or else a task that is "still running" forever would be polled forever."""
    doc = transitions.polls_counted(context.store.documents.midjourney, polls_failed)
    return context.fail(status, error, Step.RUNWAY_POLL, doc)


# --- the mock ---------------------------------------------------------------------------------------------------


def make_mock(context: StepContext) -> None:
    """Make a video from the picture on this machine, or from a placeholder if there is no picture. Raises
    MediaError."""
    store, generation_id = context.store, context.generation_id
    key = store.file_key(generation_id, "png")
    if "png" in store.files(generation_id):
        picture = store.bucket.read(key)[0]
    else:
        picture = _picture_for_mock(context)
        store.save_file(key, picture)
    store.save_file(store.file_key(generation_id, "mp4"), context.media.mock_video(picture))
    store.save_midjourney(transitions.video_delivered(store.documents.midjourney))
    _log.info("the mock is saved", extra={"step": Step.MOCK.value})


def _picture_for_mock(context: StepContext) -> bytes:
    try:
        return _paid_picture(context) or _placeholder(context)
    except (VendorError, SettingsError, MediaError) as error:  # SettingsError: no key
        _log.warning("the picture cannot be downloaded (%s): a placeholder takes its place", error)
        return _placeholder(context)


def _placeholder(context: StepContext) -> bytes:
    content = context.store.read_object(context.store.file_key(context.generation_id, "json")) or {}
    return context.media.placeholder(str(content.get("topic") or context.generation_id))


def _paid_picture(context: StepContext) -> bytes | None:
    """Return the upscaled picture, or None if none is delivered yet. Raises VendorError, MediaError, and SettingsError
    if a key is missing to renew its link."""
    results = context.store.documents.midjourney.results
    if results is None or results.task_type != UPSCALE:
        return None
    try:
        return _resized_picture(context, results)
    except LinkExpired:
        return _resized_picture(context, _renewed(context, results))


def _content(context: StepContext, status: Status, field: str) -> dict[str, Any]:
    """Return the generation's text. If it lacks `field`, save and raise a failure that no retry can fix."""
    key = context.store.file_key(context.generation_id, "json")
    content = context.store.read_object(key)
    if content is None or not isinstance(content.get(field), str) or not content[field].strip():
        what = f"{key} has no {field}" if content is not None else f"{key} is not there"
        raise context.fail(status, Refused(Code.MISSING, what))
    return content


def _as_vendor_error(error: VendorError | MediaError) -> VendorError:
    return error if isinstance(error, VendorError) else PollFailed(Code.MEDIA, str(error))


def _results(context: StepContext) -> Results:
    results = context.store.documents.midjourney.results
    assert results is not None, "Midjourney has delivered nothing yet"
    return results


_CARRY_OUT: Mapping[Act, Callable[[StepContext], None]] = {
    Act.RECONCILE: lambda context: context.paid.reconcile(),
    Act.ORDER_IMAGINE: _order_pictures,
    Act.ORDER_UPSCALE: _order_upscale,
    Act.ORDER_VIDEO: _order_video,
    Act.POLL_VIDEO: _poll_video,
}
