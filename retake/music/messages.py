"""The messages to people on Telegram: one per event, recorded together with the change that it announces.

`retake.music.outbox` sends them in order. People reply with a note to the message of a pending step.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import insert, select

from retake.music.database import Cursor
from retake.music.rows import PipelineRow, as_object
from retake.music.states import AWAITING_MANUAL, FAILED, PUBLISHED, MusicStep, resolve_command
from retake.music.store import as_text
from retake.music.tables import messages

PENDING = "pending"

Buttons = Sequence[tuple[str, str]]

_RESULTS = {
    MusicStep.COVER: "the cover is ready",
    MusicStep.VIDEO: "the video is ready",
    MusicStep.THUMB: "the thumbnail is ready",
    MusicStep.META: "title, description and tags are ready",
    MusicStep.REVIEW: "the review is in",
}

MAX_LENGTH = 3500
"""Maximum number of characters of a message; Telegram accepts 4096."""


def record(cursor: Cursor, row: PipelineRow, event: str, job_id: int, now: Any) -> None:
    """Record the message about an event that has just changed `row`, unless it is on record."""
    about = (messages.c.pipeline_id == row.id) & (messages.c.event == event)
    known = cursor.row(select(messages.c.id).where(about & (messages.c.run_number == row.run_number)))
    if known:
        return
    text, buttons = message_of(row, event, job_id)
    values = {
        "pipeline_id": row.id,
        "event": event,
        "run_number": row.run_number,
        "job_id": job_id,
        "text": text[:MAX_LENGTH],
        "buttons": as_text(buttons),
        "created_at": now,
    }
    cursor.change(insert(messages).values(values))


def message_of(row: PipelineRow, event: str, job_id: int) -> tuple[str, Buttons]:
    """Return the text of a message and its buttons: (label, callback data)."""
    what = f"{row.track_title} #{row.id}"
    if event == FAILED:
        step, _, reason = (row.failed_reason or "").partition(": ")
        return f"⚠️ {what}: {step} failed\n{reason}", [("🔄 Retry", f"ytpub_retry_{row.id}")]
    if event == PENDING and row.step:
        buttons = [("✅ Approve", f"ytpub_approve_{row.id}_{job_id}"), ("✖️ Cancel", f"ytpub_cancel_{row.id}_{job_id}")]
        head, hint = f"🎵 {what}: {_RESULTS[row.step]}", "Reply to have it done again with your note."
        return _shortened(head, "\n".join(_details(row)), hint), buttons
    if event == PUBLISHED:
        warning = f"\n⚠️ {row.warning}" if row.warning else ""
        return f"🎬 {what} is published: https://youtu.be/{row.youtube_video_id}{warning}", []
    if event == AWAITING_MANUAL:
        command = resolve_command(row.id, (row.failed_reason or "").partition(":")[0])
        return _shortened(f"❓ {what} needs your decision", row.failed_reason or "", command), []
    raise ValueError(f"{event!r} is not an event that is told")


def _shortened(head: str, middle: str, end: str) -> str:
    """Return the three below one another, with `middle` cut: `end` says what to do."""
    room = MAX_LENGTH - len(head) - len(end) - 2
    middle = middle if len(middle) <= room else f"{middle[: room - 1]}…"
    return "\n".join(filter(None, (head, middle, end)))


def _details(row: PipelineRow) -> list[str]:
    if row.step is MusicStep.META:
        meta = as_object(row.metadata_json) or {}
        return [str(meta.get("title", "")), ", ".join(map(str, meta.get("tags", [])))]
    if row.step is MusicStep.REVIEW:
        review = as_object(row.review_json) or {}
        return [f"Verdict: {review.get('verdict')}", *(f"• {note}" for note in review.get("notes", []))]
    return []
