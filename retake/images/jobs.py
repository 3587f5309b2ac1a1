"""Jobs: the request, the status, and the Redis hash of a job (docs/images.md, "Redis")."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

from retake.clock import parse_stamp
from retake.strict_json import parse

DEFAULT_SIZE = 1024  # pixels
DEFAULT_STEPS = 20
MIN_SIZE, MAX_SIZE, SIZE_STEP = 64, 2048, 8  # pixels
MAX_STEPS = 150
MAX_SEED = 2**53 - 1  # the largest integer that every JSON parser keeps exactly
MAX_PROMPT_LENGTH = 4000  # characters
MAX_STYLES, MAX_STYLE_LENGTH = 50, 200


class JobStatus(StrEnum):
    """The status of a job. Other programs may write other values, which are shown as they are."""

    PENDING = "pending"  # in its queue, or given back
    WAITING = "waiting_comfyui"  # with a worker that looks for a ComfyUI server
    PROCESSING = "processing_comfyui"  # on a ComfyUI server
    READY = "ready"
    FAILED = "failed"


UNDER_WAY = (JobStatus.PENDING, JobStatus.WAITING, JobStatus.PROCESSING, "processing")
"""The statuses of a job that is neither ready nor failed."""


class JobType(StrEnum):
    """What a job makes. Each type has its own queue."""

    TEXT = "text"
    OUTFIT = "outfit_change"


class TextRequest(NamedTuple):
    """The parameters of a picture made from text."""

    prompt: str
    negative_prompt: str = ""
    styles: tuple[str, ...] = ()
    width: int = DEFAULT_SIZE  # pixels
    height: int = DEFAULT_SIZE
    steps: int = DEFAULT_STEPS
    seed: int = 0


class ImageJob(NamedTuple):
    """A job as stored in its hash. Missing texts are empty, missing numbers 0."""

    job_id: str
    status: str
    type: str = JobType.TEXT
    user_id: str = ""
    created_at: str = ""  # ISO 8601, UTC
    updated_at: str = ""
    text: TextRequest = TextRequest("")
    person_image_r2_key: str = ""
    garment_image_r2_key: str = ""
    attempt: int = 0  # 1 or more once a prompt has been sent
    attempts_before: int = 0  # attempts before the last requeue by an operator, which no longer count
    prompt_id: str = ""
    comfyui_server: str = ""  # URL of the server that has the prompt
    output_r2_key: str = ""
    image_type: str = ""
    executed_by: str = ""  # "Worker-A @ host:port"
    error: str = ""
    delivered_at: str = ""  # when its result was first delivered to a client
    in_table: bool = False  # whether it has a row in jobs2
    comfyui_deaths: int = 0  # how often a ComfyUI server went away while it executed the job

    @property
    def ended(self) -> bool:
        """Whether it is ready or failed."""
        return self.status in (JobStatus.READY, JobStatus.FAILED)

    @property
    def under_way(self) -> bool:
        """Whether it is neither ready nor failed."""
        return self.status in UNDER_WAY


def text_fields(asked: TextRequest) -> dict[str, str]:
    """Return the hash fields of a request; they are named like those of TextRequest."""
    return {name: json.dumps(it) if isinstance(it, tuple) else str(it) for name, it in asked._asdict().items()}


def job_of(job_id: str, fields: Mapping[str, str]) -> ImageJob:
    """Return the job in a hash, whichever program wrote it."""
    return ImageJob(
        job_id=job_id,
        status=fields.get("status", ""),
        type=fields.get("type", JobType.TEXT),
        user_id=fields.get("user_id", ""),
        created_at=fields.get("created_at", ""),
        updated_at=fields.get("updated_at", ""),
        text=TextRequest(
            prompt=fields.get("prompt", ""),
            negative_prompt=fields.get("negative_prompt", ""),
            styles=_styles(fields.get("styles", "")),
            width=_number(fields.get("width"), DEFAULT_SIZE),
            height=_number(fields.get("height"), DEFAULT_SIZE),
            steps=_number(fields.get("steps"), DEFAULT_STEPS),
            seed=_number(fields.get("seed"), 0),
        ),
        person_image_r2_key=fields.get("person_image_r2_key", ""),
        garment_image_r2_key=fields.get("garment_image_r2_key", ""),
        attempt=_number(fields.get("attempt"), 0),
        attempts_before=_number(fields.get("attempts_before"), 0),
        prompt_id=fields.get("prompt_id", ""),
        comfyui_server=fields.get("comfyui_server", ""),
        output_r2_key=fields.get("output_r2_key", ""),
        image_type=fields.get("image_type", ""),
        executed_by=fields.get("executed_by_comfyui_server", ""),
        error=fields.get("error", ""),
        delivered_at=fields.get("delivered_at", ""),
        in_table=fields.get("in_table", "") == "1",
        comfyui_deaths=_number(fields.get("comfyui_deaths"), 0),
    )


def is_job_id(text: str) -> bool:
    """Return whether this is a job id: a UUID as Python and PostgreSQL write it. Anything else may be another Redis
    key."""
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def iso(moment: datetime) -> str:
    """Return a time as stored in hashes: all have the same length, so that they compare as text."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def age_s(stamp: str, now: datetime) -> float | None:
    """Return how many seconds ago a time in a hash was, or None if it is not a time."""
    try:
        return (now - parse_stamp(stamp)).total_seconds()
    except ValueError:
        return None


def _number(text: str | None, usual: int) -> int:
    bare = (text or "").removeprefix("-")
    return int(text or "") if bare.isascii() and bare.isdecimal() and len(bare) <= 18 else usual


def _styles(text: str) -> tuple[str, ...]:
    try:
        found: Any = parse(text)
    except ValueError:
        return ()
    return tuple(it for it in found if isinstance(it, str)) if isinstance(found, list) else ()
