"""The requests and responses of the API, as pydantic models: its validation and its description."""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    WithJsonSchema,
)

from retake.foreign_text import storable
from retake.music.states import STATES, MusicStep

MAX_FILE_NAME_BYTES = 255  # bytes


def _nonblank(text: str) -> str:
    """Return `text` if a database can store it and it is not blank. Raises ValueError."""
    if not storable(text).strip():
        raise ValueError("is empty")
    return text


def _text_or_empty(text: str) -> str:
    return storable(text) if text.strip() else ""


def _file_name(text: str) -> str:
    if any(sign in "/\\" or not sign.isprintable() for sign in text) or text.startswith("."):
        raise ValueError("is not the plain name of a file in the audio folder")
    if len(_nonblank(text).encode()) > MAX_FILE_NAME_BYTES:
        raise ValueError(f"is longer than {MAX_FILE_NAME_BYTES} bytes")
    return text


def _exactly_true(value: object) -> object:
    if value is not True:  # 1 is equal to it
        raise ValueError("is not true")
    return value


def _known_state(text: str) -> str:
    if text not in STATES:
        raise ValueError(f"is not one of {', '.join(STATES)}")
    return text


Title = Annotated[str, Field(min_length=1, max_length=100, examples=["Night Drive"]), AfterValidator(_nonblank)]
Audio = Annotated[
    str,
    Field(
        min_length=1, max_length=MAX_FILE_NAME_BYTES, description="a file in the audio folder", examples=["night.wav"]
    ),
    AfterValidator(_file_name),
]
Style = Annotated[
    str,
    Field(max_length=1000, description="goes into the prompts", examples=["synthwave, neon"]),
    AfterValidator(_text_or_empty),
]
Note = Annotated[str, Field(min_length=1, max_length=1000, examples=["darker"]), AfterValidator(_nonblank)]
VideoId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,100}$", examples=["dQw4w9WgXcQ"])]
IdempotencyKey = Annotated[str, Field(pattern=r"^[ -~]{1,200}$")]
Id = Annotated[str, WithJsonSchema({"type": "integer", "minimum": 1})]  # text: what is not a number is not found
StateName = Annotated[str, AfterValidator(_known_state), WithJsonSchema({"type": "string", "enum": list(STATES)})]


class CreateBody(BaseModel):
    """The input of a new pipeline."""

    track_title: Title
    audio: Audio
    style: Style | None = None


class ResultBody(BaseModel):
    """The attempt whose result the caller has seen, by its id; it is refused if there has been another one since."""

    job: Annotated[StrictInt, Field(ge=1)] | None = None


class StepBody(ResultBody):
    """The step that the caller means; it is refused unless it is the pending one."""

    step: MusicStep | None = None


class FeedbackBody(StepBody):
    """The requested change."""

    feedback: Note


class RetryBody(BaseModel):
    """Whether to repeat the paid call of the step, even though its vendor may still carry out the last one."""

    again: StrictBool = False


class ResolvedBody(BaseModel):
    """The video that the upload has made."""

    model_config = ConfigDict(extra="forbid")
    youtube_video_id: VideoId


class AgainBody(BaseModel):
    """Nothing was made: do the step from scratch."""

    model_config = ConfigDict(extra="forbid")
    again: Annotated[Literal[True], BeforeValidator(_exactly_true)]


class CreatedAnswer(BaseModel):
    """A pipeline, new or already there."""

    id: int
    state: str


class JobAnswer(BaseModel):
    """An attempt at a step."""

    id: int
    pipeline_id: int
    step: str
    attempt: int
    status: str
    error: str | None
    error_code: str | None
    feedback: str | None
    started_at: str
    finished_at: str | None


class PipelineAnswer(BaseModel):
    """A pipeline."""

    id: int
    track_title: str
    audio: str
    style: str | None
    state: str
    cover_url: str | None
    video_url: str | None
    thumbnail_url: str | None
    metadata_json: dict[str, Any] | None
    review_json: dict[str, Any] | None
    youtube_video_id: str | None
    failed_reason: str | None
    warning: str | None
    created_at: str
    updated_at: str


class ShownAnswer(PipelineAnswer):
    """A pipeline with its attempts, in order."""

    jobs: list[JobAnswer]


class ListAnswer(BaseModel):
    """Pipelines, newest first."""

    pipelines: list[PipelineAnswer]


class ActionAnswer(BaseModel):
    """The action is done or has started."""

    ok: Literal[True]
    state: str


class RetryAnswer(BaseModel):
    """The failed step is being redone."""

    ok: Literal[True]
    retrying_step: MusicStep


class HealthAnswer(BaseModel):
    """The service and its database answer."""

    ok: Literal[True]


class RefusalAnswer(BaseModel):
    """The reason for a refusal."""

    detail: str


class FaultAnswer(BaseModel):
    """What is wrong with a request, and where."""

    loc: list[str | int]
    msg: str
    type: str


class FaultsAnswer(BaseModel):
    """What is wrong with a request."""

    detail: str | list[FaultAnswer]
