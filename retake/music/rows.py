"""The rows of the music database as typed values."""

from datetime import datetime
from typing import Any, NamedTuple

from retake.clock import exact_stamp
from retake.music.states import MusicStep, Standing, step_of
from retake.strict_json import parse


class PipelineRow(NamedTuple):
    """A track on its way to a video, a row of `pipelines`: docs/music.md, section "Tables"."""

    id: int
    track_title: str
    audio: str
    style: str | None
    state: str
    cover_url: str | None
    video_url: str | None
    thumbnail_url: str | None
    metadata_json: str | None
    review_json: str | None
    youtube_video_id: str | None
    failed_reason: str | None
    warning: str | None
    upload_session: str | None
    created_at: datetime
    updated_at: datetime
    idempotency_key: str | None
    run_number: int
    take: int
    note: str | None
    current_job: int | None
    nonce: str | None
    last_chunk_begun: bool

    @property
    def step(self) -> MusicStep | None:
        """The step that is running or pending."""
        return step_of(self.state)

    @property
    def task_id(self) -> str:
        """The task of its runs on the ledger: "music-7"."""
        return task_of(self.id)

    @property
    def run_key(self) -> str:
        """The idempotency key of the current run: "music/7/3"."""
        return f"music/{self.id}/{self.run_number}"

    def is_at(self, other: "PipelineRow") -> bool:
        """Return whether it is in the same run of the same step as `other`, an earlier reading of the row."""
        return (self.state, self.run_number) == (other.state, other.run_number)

    def standing(self, failed_step: str | None = None) -> Standing:
        """Return the input of the rules; `failed_step` is the step of the last failed attempt."""
        return Standing(self.state, self.youtube_video_id, failed_step, self.failed_reason)

    def shown(self) -> dict[str, Any]:
        """Return the row as the API shows it."""
        return {
            "id": self.id,
            "track_title": self.track_title,
            "audio": self.audio,
            "style": self.style,
            "state": self.state,
            "cover_url": self.cover_url,
            "video_url": self.video_url,
            "thumbnail_url": self.thumbnail_url,
            "metadata_json": as_object(self.metadata_json),
            "review_json": as_object(self.review_json),
            "youtube_video_id": self.youtube_video_id,
            "failed_reason": self.failed_reason,
            "warning": self.warning,
            "created_at": exact_stamp(self.created_at),
            "updated_at": exact_stamp(self.updated_at),
        }


class Job(NamedTuple):
    """An attempt at a step, a row of `pipeline_jobs`."""

    id: int
    pipeline_id: int
    step: str
    attempt: int  # from 1 in each run of a step
    status: str
    error: str | None
    error_code: str | None
    feedback: str | None
    started_at: datetime
    finished_at: datetime | None
    run_number: int

    def shown(self) -> dict[str, Any]:
        """Return the row as the API shows it."""
        ended = exact_stamp(self.finished_at) if self.finished_at else None
        hidden = {"started_at": exact_stamp(self.started_at), "finished_at": ended}
        return {**{name: value for name, value in self._asdict().items() if name != "run_number"}, **hidden}


class PaidCall(NamedTuple):
    """A paid call, a row of `paid_calls`."""

    id: int
    pipeline_id: int
    step: str
    take: int
    job_id: int
    facts: str
    price_usd: float
    day: str
    requested_at: datetime
    outcome: str
    answer: str | None
    error: str | None
    error_code: str | None
    settled_at: datetime | None


def as_object(text: str | None) -> Any:
    """Return the object in a JSON column, or None if it is null or not a JSON object."""
    if text is None:
        return None
    try:
        found = parse(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def task_of(pipeline_id: int) -> str:
    """Return the task id of a pipeline's runs on the ledger: "music-7"."""
    return f"music-{pipeline_id}"


def pipeline_of_task(task_id: str) -> int | None:
    """Return the pipeline id in the task id "music-7", or None."""
    number = task_id.removeprefix("music-")
    known = task_id != number and number.isascii() and number.isdecimal() and len(number) <= 10
    return int(number) if known else None
