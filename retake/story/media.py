"""generate_media.py: the picture, its upscale, the video; or, when the vendors were given up on, the mock.

One call does one thing: what the documents say is next.
"""

from collections.abc import Mapping
from datetime import timedelta
from logging import getLogger
from typing import Any

from retake.errors import (
    CapReached,
    Code,
    LinkExpired,
    OutcomeUnknown,
    PollFailed,
    Refused,
    SettingsError,
    StateError,
    TaskFailed,
    VendorError,
)
from retake.media import MediaError
from retake.story import transitions
from retake.story.documents import IMAGINE, UNKNOWN, Results, Status, Step, Task
from retake.story.intent import conclude, fail, pay, settle
from retake.story.stage import Stage

_log = getLogger(__name__)


def make_media(stage: Stage, generation_id: str, *, use_mock: bool = False) -> None:
    """Do what is next for the generation under way. On a failure the document says so, and the error is raised."""
    _check_generation(stage, generation_id)
    doc = stage.store.documents.midjourney
    if use_mock:
        make_mock(stage, generation_id)
    elif doc.pending:
        settle(stage)
    elif doc.runway_task:
        _await_video(stage, generation_id, doc.runway_task)
    elif doc.task:
        _log.info("a Midjourney task is in flight: fetch_media.py asks for it")
    elif doc.results and doc.results.task_type == IMAGINE:
        _order_upscale(stage, doc.results)
    elif doc.results:
        _film(stage, generation_id, doc.results)
    elif doc.generation:
        _order_pictures(stage, generation_id)
    else:
        _log.info("nothing to do for %s", generation_id)


def _check_generation(stage: Stage, generation_id: str) -> None:
    if generation_id != stage.generation_id:
        present = stage.generation_id or "none"
        raise StateError(
            f"generation {generation_id} is not under way: {stage.store.paths.config_gen} names {present}. "
            "Nothing was changed"
        )


# --- the picture ------------------------------------------------------------------------------------------------


def _order_pictures(stage: Stage, generation_id: str) -> None:
    content = _content(stage, generation_id, Status.IMAGINE_TRIGGER_FAILED, "midjourney_prompt")
    prompt, nonce = content["midjourney_prompt"], stage.random_nonce()
    midjourney = stage.vendors.midjourney()
    _pay(stage, Step.IMAGINE, {"nonce": nonce, "prompt": prompt}, lambda: midjourney.imagine(prompt, nonce))


def _order_upscale(stage: Stage, results: Results) -> None:
    index = _pick(stage, results)
    midjourney = stage.vendors.midjourney()
    facts = {"origin_task_id": results.task_id, "index": index}
    _pay(stage, Step.UPSCALE, facts, lambda: midjourney.upscale(results.task_id, index))


def _pay(stage: Stage, step: Step, facts: Mapping[str, Any], ask: Any) -> None:
    pay(stage, step, facts, ask, transitions.picture_ordered)
    task = stage.store.documents.midjourney.task
    _log.info("ordered the %s: task %s", step, task and task.task_id, extra={"step": step.value})


def _pick(stage: Stage, results: Results) -> int:
    """Which of the four is to be upscaled: 1–4. A choice that was begun once is not paid for again."""
    if stage.settings.image.pick != "vision":
        return 1
    if results.picked is not None:
        return results.picked or 1
    try:
        reservation = stage.reserve(Step.CONTENT)
    except CapReached:
        return 1
    now, price = stage.clock.now(), stage.price(Step.CONTENT)
    begun = transitions.choice_begun(stage.store.documents.midjourney, now, price, reservation)
    doc = stage.store.save_midjourney(begun)
    index, outcome = _chosen(stage, results)
    stage.store.save_midjourney(transitions.choice_made(doc, index, outcome))
    return index


def _chosen(stage: Stage, results: Results) -> tuple[int, str | None]:
    """What the chat API chooses, the first on any trouble; and the outcome of the call, None if it was not billed."""
    singles = results.task_result.get("temporary_image_urls") or []
    try:
        if len(singles) != 4:
            most = stage.settings.workflow.max_picture_bytes
            grid = stage.vendors.downloader().download(results.task_result["image_url"], most)
            singles = [stage.studio.data_uri(quarter) for quarter in stage.studio.quarters(grid)]
        question = "Which of these four pictures is the best first frame of a video?"
        index = stage.vendors.writer().choose(question, singles)
    except (VendorError, SettingsError, MediaError, KeyError) as error:  # SettingsError: no key
        _log.warning("the choice of a picture failed (%s): the first is taken", error)
        return 1, UNKNOWN if isinstance(error, OutcomeUnknown) else "wasted" if isinstance(error, TaskFailed) else None
    _log.info("picture %d of 4 was chosen", index, extra={"step": Step.UPSCALE.value})
    return index, "done"


# --- the video --------------------------------------------------------------------------------------------------


def _film(stage: Stage, generation_id: str, results: Results) -> None:
    content = _content(stage, generation_id, Status.RUNWAY_TRIGGER_FAILED, "runway_prompt")
    picture = _picture(stage, generation_id, results)
    try:
        image = stage.studio.data_uri(picture)
    except MediaError as error:  # an attempt is used up, or the same picture would be looked at for ever
        raise fail(stage, Status.RUNWAY_TRIGGER_FAILED, _as_vendor_error(error)) from error
    prompt = content["runway_prompt"]
    filmmaker = stage.vendors.filmmaker()
    facts: dict[str, Any] = {"model": stage.settings.runwayml.model_name, "prompt": prompt}
    if stage.settings.workflow.on_unknown_outcome == "hold":
        facts["usage"] = filmmaker.usage()
    pay(stage, Step.RUNWAY, facts, lambda: filmmaker.create(image, prompt), transitions.video_ordered)
    task = stage.store.documents.midjourney.runway_task
    assert task is not None
    _log.info("ordered the video: task %s", task.task_id, extra={"step": Step.RUNWAY.value})
    _await_video(stage, generation_id, task)


def _picture(stage: Stage, generation_id: str, results: Results) -> bytes:
    """The generation's picture, sized and saved. Links expire, so it is fetched as soon as the link is there, once; for
    one that has expired the next attempt asks the vendor for a new one."""
    key = stage.store.file_key(generation_id, "png")
    if "png" in stage.store.files(generation_id):
        return stage.store.bucket.read(key)[0]
    url = (_renewed(stage, results) if results.link_expired else results.task_result).get("image_url")
    if not url:
        error = PollFailed(Code.BAD_ANSWER, "the upscale's result on record has no image_url")
        raise fail(stage, Status.RUNWAY_TRIGGER_FAILED, error)
    try:
        most = stage.settings.workflow.max_picture_bytes
        picture = stage.studio.sized(stage.vendors.downloader().download(url, most))
    except LinkExpired as error:
        expired = transitions.link_expired(stage.store.documents.midjourney)
        conclude(stage, transitions.failed(expired, Status.RUNWAY_TRIGGER_FAILED, stage.record(error)), error)
        raise
    except (PollFailed, MediaError) as error:
        failure = _as_vendor_error(error)
        raise fail(stage, Status.RUNWAY_TRIGGER_FAILED, failure) from error
    stage.store.save_file(key, picture)
    _log.info("the picture is saved as %s", key, extra={"step": Step.UPSCALE.value})
    return picture


def _renewed(stage: Stage, results: Results) -> Mapping[str, Any]:
    """The upscale's result as the vendor gives it now, with a link that is new. Free. Raises (and saves) the failure
    of a task that the vendor no longer knows, or calls failed by now."""
    try:
        state = stage.vendors.midjourney().fetch(results.task_id)
    except PollFailed as error:
        raise fail(stage, Status.RUNWAY_TRIGGER_FAILED, error) from error
    if state.result is None:
        running = PollFailed(Code.BAD_ANSWER, f"task {results.task_id} was done, and is said to be running")
        raise fail(stage, Status.RUNWAY_TRIGGER_FAILED, state.failure or running)
    stage.store.save_midjourney(transitions.link_renewed(stage.store.documents.midjourney, state.result))
    _log.info("the link to the picture had expired: the vendor gave a new one", extra={"step": Step.UPSCALE.value})
    return state.result


def _await_video(stage: Stage, generation_id: str, task: Task) -> None:
    """Poll until the video is there or `runway_polling_timeout` is over. The task stays paid for: it is polled again
    in a later tick, never ordered again."""
    workflow = stage.settings.workflow
    filmmaker = stage.vendors.filmmaker()
    polls_failed = stage.store.documents.midjourney.retries_of(Step.RUNWAY_POLL)
    interval = max(workflow.runway_polling_interval, filmmaker.min_poll_s)
    end = stage.clock.now() + timedelta(seconds=workflow.runway_polling_timeout)
    while True:
        try:
            state = filmmaker.poll(task.task_id)
        except PollFailed as error:
            raise fail(stage, Status.RUNWAY_POLL_FAILED, error) from error
        polled = transitions.video_polled(stage.store.documents.midjourney, stage.clock.now())
        doc = stage.store.save_midjourney(polled)
        if state.failure:
            record = stage.record(state.failure, Step.RUNWAY)
            conclude(stage, transitions.video_task_failed(doc, record), state.failure)
            raise state.failure
        if state.result is not None:
            return _save_video(stage, generation_id, state.result, polls_failed)
        _log.info("still waiting for the video (%s)", state.progress or "running", extra={"step": Step.RUNWAY.value})
        if stage.clock.now() + timedelta(seconds=interval) > end:
            late = PollFailed(Code.POLL_TIMEOUT, f"no video after {workflow.runway_polling_timeout:g} s of polling")
            raise _not_had(stage, Status.RUNWAY_POLL_TIMEOUT, polls_failed, late)
        stage.pause(interval)


def _save_video(stage: Stage, generation_id: str, result: Mapping[str, Any], polls_failed: int) -> None:
    try:
        most = stage.settings.workflow.max_video_bytes
        video = stage.vendors.downloader().download(result["output"][0], most)
        doubt = stage.studio.check_video(video)
    except (PollFailed, MediaError) as error:
        raise _not_had(stage, Status.RUNWAY_POLL_FAILED, polls_failed, _as_vendor_error(error)) from error
    if doubt:  # it is paid for, and a player may know better than the ffmpeg at hand
        _log.warning("the video is saved, but look at it: %s", doubt, extra={"step": Step.RUNWAY.value})
    key = stage.store.file_key(generation_id, "mp4")
    stage.store.save_file(key, video)
    stage.store.save_midjourney(transitions.video_delivered(stage.store.documents.midjourney))
    _log.info("the video is saved as %s", key, extra={"step": Step.RUNWAY.value})


def _not_had(stage: Stage, status: Status, polls_failed: int, error: VendorError) -> VendorError:
    doc = stage.store.documents.midjourney
    conclude(stage, transitions.video_not_had(doc, status, polls_failed, stage.record(error)), error)
    return error


# --- the mock ---------------------------------------------------------------------------------------------------


def make_mock(stage: Stage, generation_id: str) -> None:
    """A placeholder picture where there is none, and a video of the picture made on this machine. Raises MediaError."""
    store = stage.store
    key = store.file_key(generation_id, "png")
    if "png" in store.files(generation_id):
        picture = store.bucket.read(key)[0]
    else:
        content = store.read_object(store.file_key(generation_id, "json")) or {}
        picture = stage.studio.placeholder(str(content.get("topic") or generation_id))
        store.save_file(key, picture)
    store.save_file(store.file_key(generation_id, "mp4"), stage.studio.mock_video(picture))
    store.save_midjourney(transitions.video_delivered(store.documents.midjourney))
    _log.info("the mock is saved", extra={"step": Step.MOCK.value})


def _content(stage: Stage, generation_id: str, status: Status, field: str) -> dict[str, Any]:
    """The generation's text. Raises (and saves) a failure that no retry can mend where it lacks what the step needs."""
    key = stage.store.file_key(generation_id, "json")
    content = stage.store.read_object(key)
    if content is None or not isinstance(content.get(field), str) or not content[field].strip():
        what = f"{key} has no {field}" if content is not None else f"{key} is not there"
        raise fail(stage, status, Refused(Code.MISSING, what))
    return content


def _as_vendor_error(error: PollFailed | MediaError) -> VendorError:
    return error if isinstance(error, PollFailed) else PollFailed(Code.MEDIA, str(error))
