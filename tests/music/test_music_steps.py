"""The steps: what is retried and when, what fails at once, and what is never paid for twice."""

import json
import subprocess
from collections.abc import Callable
from datetime import timedelta
from io import BytesIO
from typing import Any

import imageio_ffmpeg
import pytest
from PIL import Image
from rig import Rig

from retake.media import MediaError
from retake.music.calls import facts_of
from retake.music.states import MusicStep
from retake.music.steps import STEP_WORK, video
from retake.operations.port import Refusal
from retake.strict_json import parse

Rigs = Callable[..., Rig]

UNAVAILABLE = "ERR_TEMPORARY_UNAVAILABLE"


def waits(rig: Rig, seconds: float) -> None:
    """Check that the next attempt is made after so many seconds, and not before."""
    rig.later(seconds=seconds - 0.001)
    assert rig.work() == 0
    rig.later(seconds=0.001)
    assert rig.work() == 1


def test_a_step_that_fails_twice_is_done_at_the_third_attempt_after_5_and_15_seconds(rig: Rig) -> None:
    rig.sandbox.order("chat#1-2=500")
    row = rig.begun("meta")
    assert rig.work() == 1
    assert rig.get(row).state == "meta_running"
    waits(rig, 5)
    waits(rig, 15)
    assert rig.get(row).state == "meta_pending"
    assert rig.attempts(row) == [(1, "failed", UNAVAILABLE), (2, "failed", UNAVAILABLE), (3, "succeeded", None)]
    jobs = rig.actions.jobs(row.id)
    assert [job.error is not None for job in jobs] == [True, True, False]
    assert all(job.finished_at for job in jobs)


def test_the_third_failure_ends_it_and_a_retry_keeps_what_came_before(rig: Rig) -> None:
    rig.sandbox.order("chat#1-3=503")
    row = rig.begun("meta")
    rig.settle()
    failed = rig.get(row)
    assert failed.state == "failed"
    assert (failed.failed_reason or "").startswith("meta: ")
    assert [it[:2] for it in rig.attempts(row)] == [(1, "failed"), (2, "failed"), (3, "failed")]
    assert rig.actions.retry(row.id).state == "meta_running"
    with pytest.raises(Refusal, match=r"\(state=meta_running\)$"):
        rig.actions.retry(row.id)
    rig.settle()
    done = rig.get(row)
    assert done.state == "meta_pending"
    assert done.failed_reason is None
    assert rig.attempts(row)[3:] == [(1, "succeeded", None)]
    kept = ("cover_url", "video_url", "thumbnail_url")
    assert [getattr(done, name) for name in kept] == [getattr(row, name) for name in kept]


@pytest.mark.parametrize(("pauses", "waited"), [((0.25,), (0.25, 0.25, 0.25)), ((0.5, 2.5), (0.5, 2.5, 2.5))])
def test_pauses_may_be_fractions_and_the_last_one_repeats(
    rigs: Rigs, pauses: tuple[float, ...], waited: tuple[float, ...]
) -> None:
    rig = rigs(step_max_retries=3, step_retry_backoff_sec=pauses)
    rig.sandbox.order("chat=500")
    row = rig.begun("review")
    rig.work()
    for seconds in waited:
        assert rig.get(row).state == "review_running"
        waits(rig, seconds)
    assert rig.get(row).state == "failed"


@pytest.mark.parametrize(
    ("order", "code"),
    [
        ("chat=400", "ERR_BUSINESS_INVALID_INPUT"),
        ("chat=401", "ERR_CRITICAL_UNAUTHORIZED"),
        ("chat=quota", "ERR_CRITICAL_OUT_OF_CREDIT"),
    ],
)
def test_classes_b_and_c_fail_at_once(rig: Rig, order: str, code: str) -> None:
    rig.sandbox.order(order)
    row = rig.begun("meta")
    rig.settle()
    assert rig.get(row).state == "failed"
    assert rig.attempts(row) == [(1, "failed", code)]


def _missing(rig: Rig) -> str:
    return "missing.wav"


def _folder(rig: Rig) -> str:
    (rig.folder / "folder.wav").mkdir()
    return "folder.wav"


def _text(rig: Rig) -> str:
    (rig.folder / "text.wav").write_text("no sound at all")
    return "text.wav"


def _large(rig: Rig) -> str:
    with (rig.folder / "large.wav").open("wb") as file:
        file.truncate(200 * 10**6 + 1)
    return "large.wav"


@pytest.mark.parametrize(
    ("audio", "code"),
    [
        (_missing, "ERR_BUSINESS_MISSING"),
        (_folder, "ERR_BUSINESS_MISSING"),
        (_text, "ERR_BUSINESS_INVALID_INPUT"),
        (_large, "ERR_BUSINESS_INVALID_INPUT"),
    ],
)
def test_a_track_that_cannot_be_used_fails_at_once(rig: Rig, audio: Callable[[Rig], str], code: str) -> None:
    row = rig.begun("video", audio=audio(rig))
    rig.settle()
    assert rig.attempts(row) == [(1, "failed", code)]
    assert (rig.get(row).failed_reason or "").startswith("video: ")


def test_no_cover_is_paid_for_while_its_track_is_missing_and_the_nearest_names_are_reported(rig: Rig) -> None:
    row = rig.create(audio="Dmo.wav")
    rig.settle()
    assert rig.attempts(row) == [(1, "failed", "ERR_BUSINESS_MISSING")]
    said = "cover: MUSIC.audio_folder has no Dmo.wav; put it there and retry; if demo.wav is meant, cancel it"
    assert (rig.get(row).failed_reason or "").startswith(said)
    assert rig.billed("imagine") == 0
    (rig.folder / "Dmo.wav").write_bytes((rig.folder / "demo.wav").read_bytes())
    rig.actions.retry(row.id)
    rig.settle()
    assert rig.get(row).state == "cover_pending"


@pytest.mark.parametrize(
    ("error", "code"),
    [(MediaError("ffmpeg failed"), "ERR_TEMPORARY_MEDIA"), (KeyError("x"), "ERR_TEMPORARY_SCRIPT_DIED")],
)
def test_ffmpeg_errors_and_bugs_are_repeated(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(video, "waveform_video", broken)
    row = rig.begun("video")
    rig.settle()
    assert rig.attempts(row) == [(1, "failed", code), (2, "failed", code), (3, "failed", code)]


# --- paid calls -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["meta", "review"])
def test_a_chat_answer_that_is_lost_is_a_temporary_error(rig: Rig, step: str) -> None:
    rig.sandbox.order("chat#1=cut-after")
    row = rig.begun(step)
    rig.settle()
    assert rig.get(row).state == f"{step}_pending"
    assert [it[:2] for it in rig.attempts(row)] == [(1, "failed"), (2, "succeeded")]
    assert [call.outcome for call in rig.calls.of_pipeline(row.id)] == ["lost", "accepted"]


def test_an_order_whose_answer_is_lost_is_found_in_the_history_and_polled(rig: Rig) -> None:
    before = rig.billed("imagine")
    rig.sandbox.order("imagine#1=cut-after")
    row = rig.create()
    rig.settle()
    assert rig.get(row).state == "cover_pending"
    assert rig.attempts(row) == [(1, "succeeded", None)]
    assert rig.billed("imagine") - before == 1


def test_an_order_that_the_history_does_not_have_counts_as_temporary(rig: Rig) -> None:
    before = rig.billed("imagine")
    rig.sandbox.order("imagine#1=cut-before")
    row = rig.create()
    rig.settle()
    assert rig.get(row).state == "cover_pending"
    assert [it[:2] for it in rig.attempts(row)] == [(1, "failed"), (2, "succeeded")]
    assert rig.billed("imagine") - before == 1


def test_an_order_that_the_history_lists_late_is_not_made_again(rig: Rig) -> None:
    before = len(rig.sandbox.calls("imagine"))
    rig.sandbox.order("imagine#1=cut-after")
    rig.sandbox.order("histories#1=500")
    row = rig.create()
    rig.settle()
    assert rig.get(row).state == "cover_pending"
    assert [it[:2] for it in rig.attempts(row)] == [(1, "failed"), (2, "succeeded")]
    assert len(rig.sandbox.calls("imagine")) - before == 1


def test_an_order_that_is_listed_only_after_another_one_was_refused_is_not_made_again(rig: Rig) -> None:
    before = rig.billed("imagine")
    for order in ("imagine#1=cut-after", "histories#1=500", "histories#2=500", "imagine#2=429"):
        rig.sandbox.order(order)
    row = rig.create()
    rig.settle()
    assert rig.get(row).state == "cover_pending"
    assert [call.outcome for call in rig.calls.of_pipeline(row.id)] == ["accepted", "refused"]
    assert rig.billed("imagine") - before == 1


def test_where_the_history_has_none_retry_orders_again(rigs: Rigs) -> None:
    rig = rigs(provider="legnext", workflow={"on_unknown_outcome": "retry"})
    rig.sandbox.order("imagine#1=cut-after")
    row = rig.create()
    rig.settle()
    assert rig.get(row).state == "cover_pending"
    assert [it[:2] for it in rig.attempts(row)] == [(1, "failed"), (2, "succeeded")]
    assert [call.outcome for call in rig.calls.of_pipeline(row.id)] == ["lost", "accepted"]


def test_where_the_history_has_none_hold_waits_for_a_person(rigs: Rigs) -> None:
    rig = rigs(provider="legnext", workflow={"on_unknown_outcome": "hold"})
    before = rig.billed("imagine")
    rig.sandbox.order("imagine#1=cut-after")
    row = rig.create()
    rig.settle()
    held = rig.get(row)
    assert held.state == "awaiting_manual"
    assert (held.failed_reason or "").startswith("cover: ")
    with pytest.raises(Refusal, match=r"\(state=awaiting_manual\)$"):
        rig.actions.retry(row.id)
    with pytest.raises(Refusal, match=r"\(state=awaiting_manual\)$"):
        rig.actions.resolve(row.id, "abcdefghijk")
    assert rig.actions.again(row.id).state == "cover_running"
    rig.settle()
    assert rig.get(row).state == "cover_pending"
    assert rig.billed("imagine") - before == 2


def test_an_order_that_a_person_has_made_anew_keeps_the_note(rigs: Rigs) -> None:
    rig = rigs(provider="legnext", workflow={"on_unknown_outcome": "hold"})
    row = rig.create()
    rig.settle()
    rig.sandbox.order("imagine#1=cut-after")
    rig.actions.feedback(row.id, "more blue")
    rig.settle()
    assert rig.actions.again(row.id).note == "more blue"
    rig.settle()
    assert rig.get(row).state == "cover_pending"
    assert "more blue" in json.dumps(rig.sandbox.calls("imagine")[-1].request)


def test_a_task_that_takes_too_long_is_polled_by_every_later_attempt(rigs: Rigs) -> None:
    rig = rigs(image_timeout_seconds=32)
    before = rig.billed("imagine")
    rig.sandbox.order("imagine#1=never-ends")
    row = rig.create()
    began = rig.clock.now()
    rig.settle()
    late = "ERR_TEMPORARY_POLL_TIMEOUT"
    assert rig.attempts(row) == [(1, "failed", late), (2, "failed", late), (3, "failed", late)]
    first = rig.actions.jobs(row.id)[0]
    assert first.finished_at
    assert first.finished_at - began == timedelta(seconds=32)
    rig.actions.retry(row.id)
    rig.work()
    assert rig.get(row).state == "cover_running"
    assert rig.billed("imagine") - before == 1


def test_a_task_that_never_ends_is_given_up_by_a_person_alone_and_another_is_ordered(rigs: Rigs) -> None:
    rig = rigs(image_timeout_seconds=32, step_max_retries=0)
    row = rig.create()
    rig.settle()
    rig.sandbox.order("imagine#1=never-ends")
    rig.actions.feedback(row.id, "more blue")
    rig.settle()
    late = rig.get(row)
    assert late.state == "failed"
    assert f"retake music retry {row.id} --again" in str(late.failed_reason)
    before = rig.billed("imagine")
    assert rig.actions.retry(row.id, again=True).state == "cover_running"
    rig.settle()
    assert rig.get(row).state == "cover_pending"
    assert rig.billed("imagine") - before == 1
    assert [call.outcome for call in rig.calls.of_pipeline(row.id)] == ["accepted", "wasted", "accepted"]
    assert "more blue" in json.dumps(rig.sandbox.calls("imagine")[-1].request), "the note still holds"
    nonces = {facts_of(call)["nonce"] for call in rig.calls.of_pipeline(row.id)}
    assert len(nonces) == 3, "each order has a seed of its own, the only way to find it in the history"


def test_a_task_that_ended_as_failed_is_ordered_anew(rig: Rig) -> None:
    before = rig.billed("imagine")
    rig.sandbox.order("imagine#1=task-failed")
    row = rig.create()
    rig.settle()
    assert rig.get(row).state == "cover_pending"
    assert [it[:2] for it in rig.attempts(row)] == [(1, "failed"), (2, "succeeded")]
    assert rig.billed("imagine") - before == 2


def test_a_task_that_moderation_rejects_fails_at_once_and_a_retry_orders_anew(rig: Rig) -> None:
    rig.sandbox.order("imagine#1=task-rejected")
    row = rig.create()
    rig.settle()
    assert rig.attempts(row) == [(1, "failed", "ERR_BUSINESS_REJECTED")]
    rig.actions.retry(row.id)
    rig.settle()
    assert rig.get(row).state == "cover_pending"
    assert [call.outcome for call in rig.calls.of_pipeline(row.id)] == ["wasted", "accepted"]


def test_a_link_that_has_expired_is_asked_for_anew(rig: Rig) -> None:
    before = rig.billed("imagine")
    rig.sandbox.order("download#1=403")
    row = rig.create()
    rig.settle()
    assert rig.attempts(row) == [(1, "succeeded", None)]
    assert rig.billed("imagine") - before == 1


def test_a_poll_that_fails_orders_nothing(rig: Rig) -> None:
    before = rig.billed("imagine")
    rig.sandbox.order("fetch#1=500")
    row = rig.create()
    rig.settle()
    assert rig.attempts(row) == [(1, "failed", UNAVAILABLE), (2, "succeeded", None)]
    assert rig.billed("imagine") - before == 1


def test_legnext_makes_covers_too(rigs: Rigs) -> None:
    rig = rigs(provider="legnext")
    row = rig.create()
    rig.settle()
    assert rig.get(row).state == "cover_pending"
    assert rig.bucket.read(f"music/{row.id}/cover-1.png")[0].startswith(b"\x89PNG")


def test_no_paid_call_begins_after_a_cancellation(rig: Rig) -> None:
    before = len(rig.sandbox.calls("imagine"))
    row = rig.create()
    rig.actions.cancel(row.id)
    rig.settle()
    assert rig.get(row).state == "cancelled"
    assert len(rig.sandbox.calls("imagine")) == before
    assert {run.status for run in rig.database.ledger.of_task(row.task_id)} == {"cancelled"}


def test_a_step_that_is_cancelled_while_it_runs_pays_for_nothing_more(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The person's no comes after the worker has begun, just before it would pay."""
    before = len(rig.sandbox.calls("chat"))
    row = rig.begun("meta")
    work = STEP_WORK[MusicStep.META]

    def cancelled(context: Any) -> Any:
        rig.actions.cancel(row.id)
        return work(context)

    monkeypatch.setitem(STEP_WORK, MusicStep.META, cancelled)
    rig.settle()
    assert rig.get(row).state == "cancelled"
    assert len(rig.sandbox.calls("chat")) == before
    assert rig.attempts(row) == [(1, "cancelled", None)]


# --- texts for people -----------------------------------------------------------------------------------------------


def test_feedback_reaches_the_prompts_and_a_redo_has_a_name_of_its_own(rig: Rig) -> None:
    row = rig.create(style="slow jazz")
    rig.settle()
    first = rig.get(row).cover_url
    rig.actions.feedback(row.id, "more blue in it")
    rig.settle()
    again = rig.get(row)
    assert again.cover_url != first
    for url in (first, again.cover_url):
        assert rig.bucket.read(f"music/{row.id}/{str(url).rpartition('/')[2]}")[0]
    prompts = [parse(call.facts)["prompt"] for call in rig.calls.of_pipeline(row.id)]
    assert ["more blue in it" in prompt for prompt in prompts] == [False, True]
    assert all("slow jazz" in prompt for prompt in prompts)
    assert [job.feedback for job in rig.actions.jobs(row.id)] == [None, "more blue in it"]


@pytest.mark.parametrize("step", ["meta", "review"])
def test_feedback_reaches_the_chat_api(rig: Rig, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = rig.begun(step, style="slow jazz")
    rig.settle()
    asked: list[str] = []
    chat = rig.vendors.chat()
    write = type(chat).write

    def noted(self: Any, system: str, user: str, **named: Any) -> Any:
        asked.append(user)
        return write(self, system, user, **named)

    monkeypatch.setattr(type(chat), "write", noted)
    rig.actions.feedback(row.id, "name the violin")
    rig.settle()
    assert rig.get(row).state == f"{step}_pending"
    assert "name the violin" in asked[0]
    assert "slow jazz" in asked[0]


def test_feedback_is_the_words_of_the_thumbnail(rig: Rig) -> None:
    row = rig.begun("thumb")
    rig.settle()
    first = rig.bucket.read(f"music/{row.id}/{str(rig.get(row).thumbnail_url).rpartition('/')[2]}")[0]
    rig.actions.feedback(row.id, "OUT NOW")
    rig.settle()
    second = rig.bucket.read(f"music/{row.id}/{str(rig.get(row).thumbnail_url).rpartition('/')[2]}")[0]
    assert first != second
    assert first[:3] == second[:3] == b"\xff\xd8\xff"
    assert max(len(first), len(second)) < 2 * 10**6


def test_a_colour_in_the_feedback_colours_the_waveform(rig: Rig) -> None:
    row = rig.begun("video")
    rig.settle()
    rig.actions.feedback(row.id, "make it #ff2200, please")
    rig.settle()
    assert rig.get(row).state == "video_pending"
    names = [f"video-{take}.mp4" for take in (2, 3)]
    white, red = (_loudest_colour(rig, rig.bucket.read(f"music/{row.id}/{name}")[0]) for name in names)
    assert min(white) > 180
    assert red[0] > 180
    assert max(red[1:]) < 110


def _loudest_colour(rig: Rig, video: bytes) -> tuple[int, int, int]:
    """Return the brightest pixel of a frame in the middle."""
    file = rig.folder / "look.mp4"
    file.write_bytes(video)
    still = ["-ss", "0.5", "-i", str(file), "-frames:v", "1", "-f", "image2pipe", "-c:v", "png", "-"]
    frame = subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", *still], capture_output=True, check=True)
    pixels = Image.open(BytesIO(frame.stdout)).convert("RGB").crop((0, 480, 1280, 700))
    found = max(pixels.getcolors(maxcolors=1_000_000) or [], key=lambda it: sum(it[1]) if it[0] > 50 else 0)
    return found[1]
