"""The requests and responses of the API, as pydantic models: its validation and its description."""

from secrets import randbelow
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from retake.foreign_text import storable
from retake.images.jobs import (
    DEFAULT_SIZE,
    DEFAULT_STEPS,
    MAX_PROMPT_LENGTH,
    MAX_SEED,
    MAX_SIZE,
    MAX_STEPS,
    MAX_STYLE_LENGTH,
    MAX_STYLES,
    MIN_SIZE,
    SIZE_STEP,
    TextRequest,
)
from retake.images.settings import check_user


def job_id_from(text: str) -> str:
    """Return a job id in its canonical form, whatever the notation of the UUID. Raises ValueError."""
    try:
        return str(UUID(text[:50]))
    except ValueError:
        raise ValueError("is not a UUID") from None


def _nonblank(text: str) -> str:
    if not storable(text).strip():
        raise ValueError("is blank")
    return text


_USER = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$", "description": 'whose it is; not "jobs"'}

UserId = Annotated[str, AfterValidator(check_user), WithJsonSchema({**_USER, "examples": ["alice"]})]
JobId = Annotated[str, AfterValidator(job_id_from), WithJsonSchema({"type": "string", "format": "uuid"})]
IdempotencyKey = Annotated[
    str,
    Field(pattern=r"^[ -~]{1,200}$", description="the same user and key within a day: the same job"),
]
Prompt = Annotated[
    str, Field(min_length=1, max_length=MAX_PROMPT_LENGTH, examples=["a fox in the snow"]), AfterValidator(_nonblank)
]
NegativePrompt = Annotated[str, Field(max_length=MAX_PROMPT_LENGTH, examples=["blurry"]), AfterValidator(storable)]
Style = Annotated[
    str, Field(min_length=1, max_length=MAX_STYLE_LENGTH, examples=["watercolor"]), AfterValidator(storable)
]
Size = Annotated[int, Field(strict=True, ge=MIN_SIZE, le=MAX_SIZE, multiple_of=SIZE_STEP)]


class JobBody(BaseModel):
    """The order of a picture."""

    model_config = ConfigDict(extra="forbid")

    userId: UserId  # noqa: N815  the contract's name, as the others below
    prompt: Prompt
    negativePrompt: NegativePrompt | None = None  # noqa: N815
    styles: Annotated[list[Style], Field(max_length=MAX_STYLES)] | None = None
    width: Size = DEFAULT_SIZE
    height: Size = DEFAULT_SIZE
    steps: Annotated[int, Field(strict=True, ge=1, le=MAX_STEPS)] = DEFAULT_STEPS
    seed: Annotated[int, Field(strict=True, ge=0, le=MAX_SEED, description="none: a random one")] | None = None

    def request(self) -> TextRequest:
        """Return the request, with a random seed if none is given."""
        return TextRequest(
            prompt=self.prompt,
            negative_prompt=self.negativePrompt or "",
            styles=tuple(self.styles or ()),
            width=self.width,
            height=self.height,
            steps=self.steps,
            seed=randbelow(MAX_SEED + 1) if self.seed is None else self.seed,
        )


class MadeAnswer(BaseModel):
    """The job, new or known by its Idempotency-Key."""

    jobId: str  # noqa: N815


class WaitingAnswer(BaseModel):
    """The job is in progress."""

    status: str
    message: str


class CompletedAnswer(BaseModel):
    """The picture."""

    status: Literal["completed"]
    jobId: str  # noqa: N815
    image_data_base64: str
    image_type: str


class FailedAnswer(BaseModel):
    """The reason why there is no picture."""

    status: Literal["failed"]
    jobId: str  # noqa: N815
    error: str


class StatusAnswer(BaseModel):
    """A status that another program wrote."""

    status: str


class UploadedFile(BaseModel):
    """A stored file."""

    key: str
    name: str
    size: int
    type: str


class UploadAnswer(BaseModel):
    """The files, in the order of the form."""

    files: list[UploadedFile]


class KeptImage(BaseModel):
    """A picture of a user."""

    key: str
    image_type: str
    image_data_base64: str


class ImagesAnswer(BaseModel):
    """All pictures that a user has uploaded."""

    userId: str  # noqa: N815
    images: list[KeptImage]


class DispatcherAnswer(BaseModel):
    """The state of this instance's dispatcher."""

    mode: Literal["active", "idle"]
    cached: int


class ServiceHealthAnswer(BaseModel):
    """Which services answer. `database` is null if there is none: POST /jobs then responds 503."""

    status: Literal["ok", "degraded"]
    redis: bool
    rabbitmq: bool
    database: bool | None
    dispatcher: DispatcherAnswer


class ServiceUnhealthyAnswer(ServiceHealthAnswer):
    """Redis is unreachable."""

    detail: str


class DeniedAnswer(BaseModel):
    """The reason for a refusal."""

    detail: str


class FieldFaultAnswer(BaseModel):
    """What is wrong with a request, and where."""

    loc: list[str | int]
    msg: str
    type: str


class InvalidAnswer(BaseModel):
    """What is wrong with a request."""

    detail: str | list[FieldFaultAnswer]


_FILE: dict[str, Any] = {"type": "string", "format": "binary", "description": "PNG, JPEG or WebP"}


def form_body(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a form with the field userId and these other fields, all of them required."""
    schema = {
        "type": "object",
        "properties": {"userId": _USER, **fields},
        "required": ["userId", *fields],
        "additionalProperties": False,
    }
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


OUTFIT_FORM = form_body({"personImage": _FILE, "garmentImage": _FILE})
UPLOAD_FORM = form_body({"imageFiles": {"type": "array", "items": _FILE, "minItems": 1}})
