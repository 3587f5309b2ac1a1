"""The requests and responses of the API, as pydantic models: its validation and its description."""

from secrets import randbelow
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from retake.foreign_text import storable
from retake.images.jobs import (
    LARGEST_SEED,
    LARGEST_SIZE,
    LONGEST_PROMPT,
    LONGEST_STYLE,
    MOST_STEPS,
    MOST_STYLES,
    SIZE_STEP,
    SMALLEST_SIZE,
    USUAL_SIZE,
    USUAL_STEPS,
    TextRequest,
)
from retake.images.settings import check_user


def job_id_from(text: str) -> str:
    """Return a job id in its canonical form, whatever the notation of the UUID. Raises ValueError."""
    try:
        return str(UUID(text[:50]))
    except ValueError:
        raise ValueError("is not a UUID") from None


def _said(text: str) -> str:
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
    str, Field(min_length=1, max_length=LONGEST_PROMPT, examples=["a fox in the snow"]), AfterValidator(_said)
]
NegativePrompt = Annotated[str, Field(max_length=LONGEST_PROMPT, examples=["blurry"]), AfterValidator(storable)]
Style = Annotated[str, Field(min_length=1, max_length=LONGEST_STYLE, examples=["watercolor"]), AfterValidator(storable)]
Size = Annotated[int, Field(strict=True, ge=SMALLEST_SIZE, le=LARGEST_SIZE, multiple_of=SIZE_STEP)]


class JobBody(BaseModel):
    """A picture that is asked for."""

    model_config = ConfigDict(extra="forbid")

    userId: UserId  # noqa: N815  the contract's name, as the others below
    prompt: Prompt
    negativePrompt: NegativePrompt | None = None  # noqa: N815
    styles: Annotated[list[Style], Field(max_length=MOST_STYLES)] | None = None
    width: Size = USUAL_SIZE
    height: Size = USUAL_SIZE
    steps: Annotated[int, Field(strict=True, ge=1, le=MOST_STEPS)] = USUAL_STEPS
    seed: Annotated[int, Field(strict=True, ge=0, le=LARGEST_SEED, description="none: a random one")] | None = None

    def request(self) -> TextRequest:
        """Return the request, with a random seed if none is given."""
        return TextRequest(
            prompt=self.prompt,
            negative_prompt=self.negativePrompt or "",
            styles=tuple(self.styles or ()),
            width=self.width,
            height=self.height,
            steps=self.steps,
            seed=randbelow(LARGEST_SEED + 1) if self.seed is None else self.seed,
        )


class MadeAnswer(BaseModel):
    """The job, new or known by its Idempotency-Key."""

    jobId: str  # noqa: N815


class WaitingAnswer(BaseModel):
    """The job is under way."""

    status: str
    message: str


class CompletedAnswer(BaseModel):
    """The picture."""

    status: Literal["completed"]
    jobId: str  # noqa: N815
    image_data_base64: str
    image_type: str


class FailedAnswer(BaseModel):
    """Why there is no picture."""

    status: Literal["failed"]
    jobId: str  # noqa: N815
    error: str


class StatusAnswer(BaseModel):
    """A status that another program wrote."""

    status: str


class UploadedFile(BaseModel):
    """A file that is kept."""

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
    """How the dispatcher of this instance works."""

    mode: Literal["active", "idle"]
    cached: int


class ServiceHealthAnswer(BaseModel):
    """Which services answer. `database` is null where there is none: then POST /jobs answers 503."""

    status: Literal["ok", "degraded"]
    redis: bool
    rabbitmq: bool
    database: bool | None
    dispatcher: DispatcherAnswer


class ServiceUnhealthyAnswer(ServiceHealthAnswer):
    """Redis is unreachable."""

    detail: str


class DeniedAnswer(BaseModel):
    """Why not."""

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
