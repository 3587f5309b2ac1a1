"""Jobs: what one is asked to make, how it stands, and the Redis hash that it is kept in (docs/images.md, "Redis")."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

from retake.clock import parse_stamp
from retake.strict_json import parse

USUAL_SIZE = 1024  # pixels
USUAL_STEPS = 20
SMALLEST_SIZE, LARGEST_SIZE, SIZE_STEP = 64, 2048, 8  # pixels
MOST_STEPS = 150
LARGEST_SEED = 2**53 - 1  # what every JSON reader keeps exactly
LONGEST_PROMPT = 4000  # characters
MOST_STYLES, LONGEST_STYLE = 50, 200


class JobStatus(StrEnum):
    """How a job stands; other programs may write others, which are shown as they are."""

    PENDING = "pending"  # in its queue, or given back
    WAITING = "waiting_comfyui"  # with a worker that looks for a ComfyUI server
    PROCESSING = "processing_comfyui"  # on a ComfyUI server
    READY = "ready"
    FAILED = "failed"


UNDER_WAY = (JobStatus.PENDING, JobStatus.WAITING, JobStatus.PROCESSING, "processing")
"""What a job is until it is ready or failed."""


class JobType(StrEnum):
    """What a job makes; each type has a queue of its own."""

    TEXT = "text"
    OUTFIT = "outfit_change"


class TextRequest(NamedTuple):
    """What a picture is made of."""

    prompt: str
    negative_prompt: str = ""
    styles: tuple[str, ...] = ()
    width: int = USUAL_SIZE  # pixels
    height: int = USUAL_SIZE
    steps: int = USUAL_STEPS
    seed: int = 0


class ImageJob(NamedTuple):
    """A job as its hash has it. Texts that are missing are empty, numbers 0."""

    job_id: str
    status: str
    type: str = JobType.TEXT
    user_id: str = ""
    created_at: str = ""  # ISO 8601, UTC
    updated_at: str = ""
    text: TextRequest = TextRequest("")
    person_image_r2_key: str = ""
    garment_image_r2_key: str = ""
    attempt: int = 0  # from 1 once a prompt has been sent
    attempts_before: int = 0  # that do not count any more: it failed, and an operator let it start over
    prompt_id: str = ""
    comfyui_server: str = ""  # URL of the server that has the prompt
    output_r2_key: str = ""
    image_type: str = ""
    executed_by: str = ""  # "Worker-A @ host:port"
    error: str = ""
    delivered_at: str = ""  # when its result was answered first
    in_table: bool = False  # whether it has a row in jobs2
    comfyui_deaths: int = 0  # how often ComfyUI went away while it executed it

    @property
    def ended(self) -> bool:
        """Whether it is ready or failed."""
        return self.status in (JobStatus.READY, JobStatus.FAILED)

    @property
    def under_way(self) -> bool:
        """Whether it is not ready or failed yet."""
        return self.status in UNDER_WAY


def text_fields(asked: TextRequest) -> dict[str, str]:
    """Return the fields of the hash that say what picture is asked for; they have the names of TextRequest's."""
    return {name: json.dumps(it) if isinstance(it, tuple) else str(it) for name, it in asked._asdict().items()}


def job_of(job_id: str, fields: Mapping[str, str]) -> ImageJob:
    """Return the job that a hash holds, whichever program wrote it."""
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
            width=_number(fields.get("width"), USUAL_SIZE),
            height=_number(fields.get("height"), USUAL_SIZE),
            steps=_number(fields.get("steps"), USUAL_STEPS),
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
    """Return whether this is a job's id: a UUID as Python and PostgreSQL write it. Anything else may be another key."""
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def iso(moment: datetime) -> str:
    """Return a moment as hashes have it: of one length, so that such texts compare as the moments do."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def age_s(stamp: str, now: datetime) -> float | None:
    """Return how many seconds ago a moment was, as hashes have it; None for what is not a time."""
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
