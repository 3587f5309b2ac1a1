"""The states of a music pipeline and the rules by which it changes: docs/music.md, section "States".

All functions are pure. A refusal says why, and names the state: "… (state=cover_running)".
"""

from enum import StrEnum
from typing import NamedTuple

from retake.operations.port import Refusal


class MusicStep(StrEnum):
    """The steps, in order."""

    COVER = "cover"
    VIDEO = "video"
    THUMB = "thumb"
    META = "meta"
    REVIEW = "review"
    PUBLISH = "publish"


STEPS = tuple(MusicStep)

PUBLISHED, CANCELLED, FAILED, AWAITING_MANUAL = "published", "cancelled", "failed", "awaiting_manual"

STATES = (
    *(f"{step}_{phase}" for step in STEPS[:-1] for phase in ("running", "pending")),
    "publish_running",
    *(PUBLISHED, CANCELLED, FAILED, AWAITING_MANUAL),
)
"""All states. `<step>_pending` waits for a person's approval, `awaiting_manual` for a person's decision."""

ENDED = frozenset({PUBLISHED, CANCELLED})
"""The final states."""


class Standing(NamedTuple):
    """The input of the rules."""

    state: str
    youtube_video_id: str | None = None
    failed_step: str | None = None  # of the last failed attempt
    failed_reason: str | None = None


def running(step: str) -> str:
    """Return the state in which the step is being worked on."""
    return f"{step}_running"


def pending(step: str) -> str:
    """Return the state in which the step's result waits for a person's approval."""
    return f"{step}_pending"


def step_of(state: str) -> MusicStep | None:
    """Return the step that is running or pending in a state, or None."""
    name, _, phase = state.rpartition("_")
    return MusicStep(name) if phase in ("running", "pending") and name in STEPS else None


def approved(now: Standing, step: str | None = None) -> MusicStep:
    """Return the step that starts when a person approves the pending one. Raises Refusal."""
    return STEPS[STEPS.index(_pending(now, step, "approved")) + 1]


def sent_back(now: Standing, step: str | None = None) -> MusicStep:
    """Return the step to redo with a person's note. Raises Refusal."""
    return _pending(now, step, "sent back")


def publishable(now: Standing) -> MusicStep:
    """Return the publishing step, which only follows a review. Raises Refusal."""
    if now.state != pending(MusicStep.REVIEW):
        raise Refusal(f"it can be published only after its review (state={now.state})")
    return MusicStep.PUBLISH


def cancellable(now: Standing) -> None:
    """Raise Refusal if the pipeline has ended, or may be published at any moment."""
    if now.state in ENDED or now.state == running(MusicStep.PUBLISH):
        raise Refusal(f"it can no longer be cancelled (state={now.state})")


def retried(now: Standing, *, again: bool = False) -> MusicStep:
    """Return the failed step, to be redone with everything before it kept.

    With `again` its paid call is repeated; for publishing that is refused, since an upload is only ever continued.
    Raises Refusal.
    """
    if now.state != FAILED:
        way = "; this one waits for your decision: resolve it" if now.state == AWAITING_MANUAL else ""
        raise Refusal(f"only a failed pipeline can be retried{way} (state={now.state})")
    named = now.failed_step or (now.failed_reason or "").partition(":")[0].strip()
    if named not in STEPS:
        raise Refusal(f"it is not on record which step failed, so it can only be cancelled (state={now.state})")
    if named == MusicStep.PUBLISH and now.youtube_video_id:
        twice = f"it is uploaded already as {now.youtube_video_id}, and would be published twice"
        raise Refusal(f"{twice} (state={now.state})")
    if named == MusicStep.PUBLISH and again:
        raise Refusal(f"an upload is not started over: retry continues it (state={now.state})")
    return MusicStep(named)


def resolvable(now: Standing) -> MusicStep:
    """Return the step that a person decides on: the one that the reason names, else publishing. Raises Refusal."""
    if now.state != AWAITING_MANUAL:
        raise Refusal(f"nothing waits for a decision (state={now.state})")
    named = (now.failed_reason or "").partition(":")[0].strip()
    return MusicStep(named) if named in STEPS else MusicStep.PUBLISH


def retry_command(pipeline_id: int, step: str) -> str:
    """Return the command by which a failed pipeline continues. If `step` is "" (not on record), it cannot be
    retried."""
    return f"retake music {'retry' if step else 'cancel'} {pipeline_id}"


def resolve_command(pipeline_id: int, step: str) -> str:
    """Return the command with which a person decides on a step of unknown outcome. As in `resolvable`, any text that is
    not the name of a step means publishing."""
    if step in STEPS and step != MusicStep.PUBLISH:
        return f"retake music resolve {pipeline_id} --again"
    return f"retake music resolve {pipeline_id} VIDEO_ID, or {pipeline_id} --again"


def _pending(now: Standing, step: str | None, done: str) -> MusicStep:
    at = step_of(now.state)
    if at is None or now.state != pending(at):
        raise Refusal(f"nothing is pending that could be {done} (state={now.state})")
    if step is not None and step != at:
        raise Refusal(f"{step} is not what is pending (state={now.state})")
    return at
