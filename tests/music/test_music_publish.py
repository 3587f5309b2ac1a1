"""Publishing: tried once, continued where it stopped, and never done twice."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
from rig import VIDEO, Rig

from retake.clock import parse_stamp, stamp
from retake.errors import StorageError
from retake.music.actions import pacific_midnight
from retake.music.attempts import AttemptStore
from retake.music.context import JobContext
from retake.music.rows import PipelineRow
from retake.music.states import MusicStep
from retake.music.steps import STEP_WORK
from retake.music.steps.publish import UploadLog
from retake.operations.port import Refusal

sys.path.append(str(Path(__file__).parents[1]))

from together import at_once

Rigs = Callable[..., Rig]


class Tally:
    """Counts what has happened at YouTube since it was created."""

    def __init__(self, rig: Rig) -> None:
        self._rig, self._videos, self._sessions = rig, len(rig.sandbox.youtube.videos()), rig.sandbox.youtube.sessions()
        self._calls = {kind: len(rig.sandbox.calls(kind)) for kind in ("upload.start", "upload.put", "upload.ask")}

    def videos(self) -> list[dict[str, Any]]:
        return self._rig.sandbox.youtube.videos()[self._videos :]

    def sessions(self) -> int:
        return len(self._rig.sandbox.youtube.sessions()) - len(self._sessions)

    def calls(self, kind: str) -> int:
        return len(self._rig.sandbox.calls(kind)) - self._calls[kind]


def checked_published(rig: Rig, row: PipelineRow, tally: Tally) -> PipelineRow:
    """Check that it is published, as one video with all its bytes, and return the row."""
    done = rig.get(row)
    assert done.state == "published", done.failed_reason
    assert [video["id"] for video in tally.videos()] == [done.youtube_video_id]
    assert rig.sandbox.youtube.video(str(done.youtube_video_id)) == VIDEO
    return done


def failed(rig: Rig, *orders: str) -> PipelineRow:
    """Return a pipeline whose publishing failed because of these orders, which are withdrawn."""
    for order in orders:
        rig.sandbox.order(order)
    row = rig.begun("publish")
    rig.settle()
    rig.sandbox.withdraw_orders()
    assert rig.get(row).state == "failed", rig.get(row)
    return rig.get(row)


def retried(rig: Rig, row: PipelineRow) -> PipelineRow:
    rig.actions.retry(row.id)
    rig.settle()
    return rig.get(row)


def test_a_video_is_published_with_what_was_written_about_it(rig: Rig) -> None:
    tally = Tally(rig)
    row = rig.begun("publish")
    rig.settle()
    done = checked_published(rig, row, tally)
    video = tally.videos()[0]
    assert (video["title"], video["tags"], video["status"]["privacyStatus"]) == ("Paper Boats", ["music"], "private")
    assert video["description"].splitlines() == ["A song.", "", done.nonce]
    assert video["thumbnails"] == 1
    assert done.upload_session
    assert done.warning is None
    assert rig.attempts(row) == [(1, "succeeded", None)]
    assert (tally.calls("upload.start"), tally.calls("upload.put")) == (1, 3)


@pytest.mark.parametrize("meta", [None, "[]", "{}", '{"title": "", "description": null, "tags": null}'])
def test_where_nothing_was_written_about_it_a_video_has_the_title_of_its_track(rig: Rig, meta: str | None) -> None:
    tally = Tally(rig)
    row = rig.begun("publish", track_title="Tin Kites")
    rig.actions.change(row.id, lambda cursor, now: {"metadata_json": meta})
    rig.settle()
    done = checked_published(rig, row, tally)
    [video] = tally.videos()
    assert (video["title"], video["description"].strip(), video["tags"]) == ("Tin Kites", done.nonce, [])


def test_a_temporary_error_fails_at_once(rig: Rig) -> None:
    row = failed(rig, "upload.start#1=500")
    assert rig.attempts(row) == [(1, "failed", "ERR_TEMPORARY_UNAVAILABLE")]
    assert (row.failed_reason or "").startswith("publish: ")
    assert row.upload_session is None


def test_after_as_many_resumes_as_may_be_it_fails_and_the_session_is_kept(rigs: Rigs) -> None:
    rig = rigs(upload_resumes=2)
    tally = Tally(rig)
    row = failed(rig, "upload.put=500")
    assert row.upload_session
    assert (tally.calls("upload.put"), tally.calls("upload.ask")) == (3, 2)
    assert checked_published(rig, retried(rig, row), tally).upload_session == row.upload_session
    assert tally.sessions() == 1


@pytest.mark.parametrize("fault", ["cut-midway", "cut-before", "cut-after", "503", "not-json"])
@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_a_broken_chunk_is_queried_and_continued(rig: Rig, chunk: int, fault: str) -> None:
    tally = Tally(rig)
    rig.sandbox.order(f"upload.put#{chunk}={fault}")
    row = rig.begun("publish")
    rig.settle()
    checked_published(rig, row, tally)
    assert rig.attempts(row) == [(1, "succeeded", None)]
    assert tally.sessions() == 1
    assert tally.calls("upload.ask") == 1


def test_a_retry_asks_first_and_sends_nothing_if_the_video_is_there(rigs: Rigs) -> None:
    rig = rigs(upload_resumes=1)
    tally = Tally(rig)
    row = failed(rig, "upload.put#3=cut-after", "upload.ask=500")
    sent, asked = tally.calls("upload.put"), tally.calls("upload.ask")
    checked_published(rig, retried(rig, row), tally)
    assert tally.calls("upload.put") == sent
    assert tally.calls("upload.ask") == asked + 1
    assert tally.calls("upload.start") == 1


def test_a_retry_goes_on_where_the_session_stands(rigs: Rigs) -> None:
    rig = rigs(upload_resumes=1)
    tally = Tally(rig)
    row = failed(rig, "upload.put#2=cut-before", "upload.ask=500")
    sent = tally.calls("upload.put")
    checked_published(rig, retried(rig, row), tally)
    assert tally.calls("upload.put") == sent + 2
    assert tally.sessions() == 1


def test_a_session_that_is_gone_unfinished_is_replaced(rigs: Rigs) -> None:
    rig = rigs(upload_resumes=1)
    tally = Tally(rig)
    row = failed(rig, "upload.put#2=cut-before", "upload.ask=500")
    assert not row.last_chunk_begun
    rig.sandbox.youtube.expire_sessions()
    done = checked_published(rig, retried(rig, row), tally)
    assert done.upload_session != row.upload_session
    assert tally.sessions() == 2


def test_a_session_that_is_gone_after_its_last_chunk_is_looked_for(rigs: Rigs) -> None:
    rig = rigs(upload_resumes=1)
    tally = Tally(rig)
    row = failed(rig, "upload.put#3=cut-after", "upload.ask=500")
    assert row.last_chunk_begun
    rig.sandbox.youtube.expire_sessions()
    sent = tally.calls("upload.put")
    checked_published(rig, retried(rig, row), tally)
    assert (tally.sessions(), tally.calls("upload.put")) == (1, sent)


@pytest.mark.parametrize("decision", ["again", "video"])
def test_where_no_video_is_found_a_person_decides(rigs: Rigs, decision: str) -> None:
    rig = rigs(upload_resumes=1, publish_look_seconds=25)
    tally = Tally(rig)
    row = failed(rig, "upload.put#3=cut-before", "upload.ask=500")
    rig.sandbox.youtube.expire_sessions()
    began = rig.clock.now()
    asked = retried(rig, row)
    assert asked.state == "awaiting_manual"
    assert (asked.failed_reason or "").startswith("publish: ")
    assert rig.clock.now() - began == timedelta(seconds=25)
    assert tally.videos() == []
    if decision == "video":
        rig.actions.resolve(row.id, "abcdefghijk")
        assert rig.settle() is None
        assert (rig.get(row).state, rig.get(row).youtube_video_id) == ("published", "abcdefghijk")
        assert tally.videos() == []
    else:
        assert rig.actions.again(row.id).state == "publish_running"
        rig.settle()
        checked_published(rig, row, tally)
        assert tally.sessions() == 2


@pytest.mark.parametrize("status", [404, 410])
def test_a_session_that_vanishes_under_the_last_chunk_is_looked_for_at_once(rigs: Rigs, status: int) -> None:
    rig = rigs(publish_look_seconds=10)
    tally = Tally(rig)
    rig.sandbox.order(f"upload.put#3={status}")
    row = rig.begun("publish")
    rig.settle()
    assert rig.get(row).state == "awaiting_manual"
    assert tally.sessions() == 1


def test_a_session_that_vanishes_before_fails_and_the_retry_starts_another(rig: Rig) -> None:
    tally = Tally(rig)
    row = failed(rig, "upload.put#2=404")
    assert row.upload_session
    rig.sandbox.youtube.expire_sessions()
    checked_published(rig, retried(rig, row), tally)
    assert tally.calls("upload.start") == 2


def test_what_is_uploaded_is_not_retried(rig: Rig) -> None:
    row = rig.insert(track_title="x", state="failed", failed_reason="publish: no", youtube_video_id="abcdefghijk")
    with pytest.raises(Refusal, match=r"abcdefghijk.*\(state=failed\)$"):
        rig.actions.retry(row.id)


@pytest.mark.parametrize("kind", ["upload.start", "upload.put"])
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("403-quotaExceeded", "ERR_CRITICAL_OUT_OF_CREDIT"),
        ("403-dailyLimitExceeded", "ERR_CRITICAL_OUT_OF_CREDIT"),
        ("400-uploadLimitExceeded", "ERR_CRITICAL_OUT_OF_CREDIT"),
        ("401", "ERR_CRITICAL_UNAUTHORIZED"),
        ("403", "ERR_CRITICAL_UNAUTHORIZED"),
        ("403-rateLimitExceeded", "ERR_TEMPORARY_RATE_LIMIT"),
        ("403-userRateLimitExceeded", "ERR_TEMPORARY_RATE_LIMIT"),
        ("400", "ERR_BUSINESS_INVALID_INPUT"),
        ("412", "ERR_BUSINESS_INVALID_INPUT"),
    ],
)
def test_what_youtube_refuses_has_its_code(rig: Rig, kind: str, fault: str, code: str) -> None:
    row = failed(rig, f"{kind}={fault}")
    assert rig.attempts(row) == [(1, "failed", code)]
    assert (row.upload_session is None) == (kind == "upload.start")


def test_a_refresh_token_that_was_revoked_is_a_critical_error(rigs: Rigs) -> None:
    assert rigs().attempts(failed(rigs(), "token=400")) == [(1, "failed", "ERR_CRITICAL_UNAUTHORIZED")]


# --- the thumbnail --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "tries", "set_once"),
    [("thumbnail=403", 1, False), ("thumbnail=500", 3, False), ("thumbnail#1-2=500", 3, True)],
)
def test_a_thumbnail_is_repeated_like_a_step_and_never_lets_it_fail(
    rig: Rig, order: str, tries: int, set_once: bool
) -> None:
    before, tally, began = len(rig.sandbox.calls("thumbnail")), Tally(rig), rig.clock.now()
    rig.sandbox.order(order)
    row = rig.begun("publish")
    rig.settle()
    done = checked_published(rig, row, tally)
    assert len(rig.sandbox.calls("thumbnail")) - before == tries
    assert (done.warning is None) == set_once
    assert tally.videos()[0]["thumbnails"] == set_once
    assert rig.clock.now() - began == timedelta(seconds=20 if tries == 3 else 0)


@pytest.mark.parametrize("error", [StorageError("the bucket is away"), RuntimeError("a bug")])
def test_whatever_happens_to_the_thumbnail_it_is_published(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    read, tally = rig.bucket.read, Tally(rig)

    def away(name: str, *arguments: Any) -> Any:
        if name.endswith(".jpg"):
            raise error
        return read(name, *arguments)

    monkeypatch.setattr(rig.bucket, "read", away)
    row = rig.begun("publish")
    rig.settle()
    assert str(error) in (checked_published(rig, row, tally).warning or "")


def test_a_database_that_is_away_once_the_video_is_there_leaves_it_published(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = Tally(rig)

    def check(context: JobContext) -> None:
        if context.present().youtube_video_id:
            raise StorageError("the database is away")

    monkeypatch.setattr(JobContext, "check", check)
    row = rig.begun("publish")
    rig.settle()
    assert "the database is away" in (checked_published(rig, row, tally).warning or "")


# --- the day's limit ------------------------------------------------------------------------------------------------


def test_the_limit_of_a_day_ends_at_midnight_in_california(rigs: Rigs) -> None:
    rig = rigs(uploads_per_day=1)
    first, second = rig.before("publish"), rig.before("publish")
    rig.actions.publish(first.id)
    for _ in range(2):  # before a worker has begun, and afterwards
        with pytest.raises(Refusal, match=r"uploads_per_day.*\(state=review_pending\)$"):
            rig.actions.approve(second.id)
        rig.settle(hours=0)
    rig.clock.moment = (rig.clock.now() + timedelta(days=1)).replace(hour=7, minute=59)
    with pytest.raises(Refusal):
        rig.actions.publish(second.id)
    rig.later(minutes=1)
    rig.actions.publish(second.id)
    rig.settle(hours=0)
    assert rig.get(second).state == "published"


def test_uploads_that_were_begun_by_a_clock_far_ahead_count_on_no_day(rigs: Rigs) -> None:
    rig = rigs(uploads_per_day=1)
    first, second = rig.before("publish"), rig.before("publish")
    right = rig.clock.moment
    rig.clock.moment += timedelta(days=3650)
    rig.actions.publish(first.id)
    rig.settle(hours=0)
    rig.clock.moment = right
    assert rig.actions.publish(second.id).state == "publish_running"


def test_a_retry_that_goes_on_with_its_upload_begins_none(rigs: Rigs) -> None:
    rig = rigs(uploads_per_day=1, upload_resumes=0)
    assert retried(rig, failed(rig, "upload.put=500")).state == "published"
    with pytest.raises(Refusal, match="uploads_per_day"):
        rig.actions.publish(rig.before("publish").id)


def test_an_upload_that_a_person_begins_again_counts_beside_the_first(rigs: Rigs) -> None:
    rig = rigs(uploads_per_day=1, upload_resumes=1, publish_look_seconds=0)
    row = failed(rig, "upload.put#3=cut-before", "upload.ask=500")
    rig.sandbox.youtube.expire_sessions()
    assert retried(rig, row).state == "awaiting_manual"
    with pytest.raises(Refusal, match="uploads_per_day"):
        rig.actions.again(row.id)
    rig.later(days=1)
    assert rig.actions.again(row.id).state == "publish_running"


@pytest.mark.parametrize(
    ("now", "began"), [("2026-07-02T07:59:59Z", "2026-07-01T08:00:00Z"), ("2026-07-02T08:00:00Z",) * 2]
)
def test_without_a_time_zone_database_the_day_begins_by_standard_time(
    now: str, began: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> ZoneInfo:
        raise ZoneInfoNotFoundError(name)

    monkeypatch.setattr("retake.music.actions.ZoneInfo", missing)
    assert stamp(pacific_midnight(parse_stamp(now))) == began


def test_the_limit_is_kept_when_many_are_published_at_once(rigs: Rigs, url: str) -> None:
    pair = rigs(url, uploads_per_day=3), rigs(url, uploads_per_day=3)
    rows = [pair[0].before("publish") for _ in range(8)]
    refused: list[str] = []

    def publish(number: int) -> None:
        try:
            pair[number % 2].actions.publish(rows[number].id)
        except Refusal as error:
            refused.append(str(error))

    at_once([lambda number=number: publish(number) for number in range(8)])  # type: ignore[misc]
    assert sorted(pair[0].get(row).state for row in rows) == ["publish_running"] * 3 + ["review_pending"] * 5
    assert len(refused) == 5


# --- a worker that was frozen ---------------------------------------------------------------------------------------


@contextmanager
def frozen_at(point: str, meanwhile: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the first worker that reaches a point find, when it goes on, that `meanwhile` has happened."""
    waiting = [meanwhile]

    def before(function: Callable[..., Any]) -> Callable[..., Any]:
        def frozen(*arguments: Any, **named: Any) -> Any:
            if waiting:
                waiting.pop()()
            return function(*arguments, **named)

        return frozen

    with monkeypatch.context() as patch:
        if point == "begin":
            patch.setitem(STEP_WORK, MusicStep.PUBLISH, before(STEP_WORK[MusicStep.PUBLISH]))  # type: ignore[arg-type]
        elif point == "save":
            save = AttemptStore.save
            patch.setattr(
                AttemptStore,
                "save",
                lambda self, attempt, values: (before(save) if "youtube_video_id" in values else save)(
                    self, attempt, values
                ),
            )
        else:
            owner = AttemptStore if point == "save_session" else UploadLog
            patch.setattr(owner, point, before(getattr(owner, point)))
        yield


@pytest.mark.parametrize("point", ["begin", "save_session", "check", "before_last_chunk", "save"])
def test_a_worker_that_was_frozen_sends_and_saves_nothing_more(
    rigs: Rigs, url: str, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = rigs(url), rigs(url)
    second.bucket = first.bucket
    second.begin()
    tally = Tally(first)
    row = first.begun("publish")
    seen: list[Any] = []

    def taken_over() -> None:
        second.later(seconds=61)
        second.upkeep.look()
        assert second.work() == 1
        seen.extend((second.get(row), tally.calls("upload.put"), tally.calls("upload.start")))

    with frozen_at(point, taken_over, monkeypatch):
        first.work()
    done = checked_published(first, row, tally)
    assert (done, tally.calls("upload.put"), tally.calls("upload.start")) == tuple(seen)
    assert [it[:2] for it in first.attempts(row)] == [(1, "interrupted"), (1, "succeeded")]
