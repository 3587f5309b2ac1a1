"""The API of the image-job service: docs/images.md, section "API"."""

import json
import math
from base64 import b64encode
from collections.abc import Callable, Iterator
from itertools import chain
from logging import getLogger
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, FastAPI, Header, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.security import HTTPBearer
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException

from retake.errors import RetakeError, in_words
from retake.images import api_schema as schema
from retake.images.access import AccessGate, acts_for, check_acts_for
from retake.images.dispatcher import Dispatcher
from retake.images.forms import PictureForm, check_names, read_form
from retake.images.health import ServiceHealth
from retake.images.intake import JobIntake, JobPicture, RateReached
from retake.images.objects import media_type_of
from retake.images.results import JobResults, UnknownJob
from retake.images.settings import ImagesSettings
from retake.images.start import SERVICES, service_of
from retake.images.uploads import Uploads
from retake.logs import bind
from retake.serving.answers import MAX_FAULTS, answer, fault, refused, unusable
from retake.serving.application import described_app
from retake.serving.streamed_answer import StreamedAnswer

if TYPE_CHECKING:
    from retake.images.table import JobTable

THREADS = 32
"""Maximum number of requests answered concurrently."""

RETRY_AFTER_S = 5
"""Seconds that a client is told to wait while a service is unreachable."""

_log = getLogger(__name__)

BEARER = Depends(HTTPBearer(auto_error=False, description="a key of IMAGES_KEYS"))
"""The description of the key in the API docs. The gate checks the key."""

Acting = Annotated[str, Depends(acts_for)]
Key = Annotated[schema.IdempotencyKey | None, Header()]


class ApiParts(NamedTuple):
    """What the routes use."""

    settings: ImagesSettings
    intake: JobIntake
    results: JobResults
    uploads: Uploads
    dispatcher: Dispatcher
    health: ServiceHealth
    table: "JobTable | None"


def images_app(parts: ApiParts) -> FastAPI:
    """Return the service as an ASGI application."""
    app = described_app(
        "Retake: images",
        "Pictures from prompts and of outfits: jobs in a queue, executed on ComfyUI.",
        threads=THREADS,
    )
    app.add_middleware(AccessGate, keys=parts.settings.keys)
    router = APIRouter(responses=_COMMON, dependencies=[BEARER], tags=["images"])
    _add_jobs(router, parts)
    _add_outfit(router, parts)
    _add_results(router, parts)
    _add_uploads(router, parts)
    _add_images(router, parts)
    app.include_router(router)
    _add_health(app, parts.health)
    add_refusals(app)
    return app


# --- responses ------------------------------------------------------------------------------------------------------

Responses = dict[int | str, dict[str, Any]]


def denied(why: str, *headers: str) -> dict[str, Any]:
    """Return the description of a refusal with these headers."""
    described = {it: {"schema": {"type": "string"}} for it in headers}
    return {"model": schema.DeniedAnswer, "description": why, **({"headers": described} if described else {})}


_COMMON: Responses = {
    400: denied("the body cannot be read"),
    401: denied("the key is missing or wrong", "WWW-Authenticate"),
    408: denied("the body came too slowly"),
    413: denied("the body, a file of it or their number is too large"),
    422: {"model": schema.InvalidAnswer, "description": "the request is not as described"},
    503: denied("a service that is needed is unreachable; try again", "Retry-After"),
}
_MAKING: Responses = {
    403: denied("the key belongs to another userId"),
    429: denied("too many jobs and uploads of this user", "Retry-After"),
}
_PICTURES: Responses = {415: denied("a file is not a PNG, JPEG or WebP, judging by its first bytes")}
_UNKNOWN: Responses = {404: denied("there is none, or it is another user's")}


# --- jobs -----------------------------------------------------------------------------------------------------------


def _add_jobs(router: APIRouter, parts: ApiParts) -> None:
    def made(job_id: str) -> Response:
        parts.dispatcher.wake()
        return answer({"jobId": job_id}, 201)

    @router.post("/jobsRedis", status_code=201, response_model=schema.MadeAnswer, responses=_MAKING)
    def make_job(body: schema.JobBody, acting: Acting, idempotency_key: Key = None) -> Response:
        """Order a picture from a prompt."""
        check_acts_for(acting, body.userId)
        return made(parts.intake.text(body.userId, body.request(), idempotency_key or ""))

    @router.post("/jobs", status_code=201, response_model=schema.MadeAnswer, responses=_MAKING)
    def make_job_in_table(body: schema.JobBody, acting: Acting, idempotency_key: Key = None) -> Response:
        """Order a picture from a prompt, and record the job in PostgreSQL too."""
        check_acts_for(acting, body.userId)
        if parts.table is None:
            return _later(503, "there is no PostgreSQL: DATABASE_URL is not set")
        return made(parts.intake.in_table(parts.table, body.userId, body.request(), idempotency_key or ""))


def _add_outfit(router: APIRouter, parts: ApiParts) -> None:
    most = parts.settings.images.max_upload_bytes

    @router.post(
        "/jobChangeOutfit",
        status_code=201,
        response_model=schema.MadeAnswer,
        responses=_MAKING | _PICTURES,
        openapi_extra=schema.OUTFIT_FORM,
    )
    async def change_outfit(request: Request, acting: Acting, idempotency_key: Key = None) -> Response:
        """Order a picture of a person in another garment."""

        def make() -> str:
            given = PictureForm(form, ("personImage", "garmentImage"))
            check_acts_for(acting, given.user_id)
            person, garment = (
                JobPicture(it.read(), it.kind) for it in (given.one("personImage"), given.one("garmentImage"))
            )
            return parts.intake.outfit(given.user_id, person, garment, idempotency_key or "")

        async with read_form(request, files=2, file_bytes=most) as form:
            job_id = await run_in_threadpool(make)
        parts.dispatcher.wake()
        return answer({"jobId": job_id}, 201)


def _add_results(router: APIRouter, parts: ApiParts) -> None:
    answers: Responses = _UNKNOWN | {
        200: {
            "model": schema.CompletedAnswer | schema.FailedAnswer | schema.StatusAnswer,
            "description": "the picture, why there is none, or a status that another program wrote",
        },
        202: {"model": schema.WaitingAnswer, "description": "the job is under way"},
        500: denied("the job is ready without a picture; it is cleaned up"),
    }

    @router.get("/jobResult", responses=answers)
    def job_result(acting: Acting, job_id: Annotated[schema.JobId, Query(alias="jobId")]) -> Response:
        """Return the status of a job, and its picture when it is ready."""
        parts.dispatcher.wake()
        with bind(job_id=job_id):
            found = parts.results.state(job_id, acting)
        given = answer(found.body, found.status)
        if found.after is not None:
            given.background = BackgroundTask(_bound(job_id, found.after))
        return given

    @router.delete("/jobResult", status_code=204, response_class=Response, responses=_UNKNOWN)
    def delete_job(acting: Acting, job_id: Annotated[schema.JobId, Query(alias="jobId")]) -> Response:
        """Delete a job and its picture at once."""
        with bind(job_id=job_id):
            parts.results.delete(job_id, acting)
        return Response(status_code=204)


def _bound(job_id: str, work: Callable[[], None]) -> Callable[[], None]:
    def bound() -> None:
        with bind(job_id=job_id):
            work()

    return bound


# --- uploads --------------------------------------------------------------------------------------------------------


def _add_uploads(router: APIRouter, parts: ApiParts) -> None:
    settings = parts.settings.images

    @router.post(
        "/upload",
        status_code=201,
        response_model=schema.UploadAnswer,
        responses=_MAKING | _PICTURES,
        openapi_extra=schema.UPLOAD_FORM,
    )
    async def upload(request: Request, acting: Acting) -> Response:
        """Upload pictures; if one fails, none is kept."""

        def keep() -> list[dict[str, object]]:
            given = PictureForm(form, ("imageFiles",))
            check_acts_for(acting, given.user_id)
            pictures = list(given.several("imageFiles"))
            check_names(given.user_id, pictures)
            parts.intake.check_rate(given.user_id)
            return parts.uploads.keep(given.user_id, pictures)

        async with read_form(request, files=settings.max_files, file_bytes=settings.max_upload_bytes) as form:
            files = await run_in_threadpool(keep)
        return answer({"files": files}, 201)


def _add_images(router: APIRouter, parts: ApiParts) -> None:
    @router.get(
        "/images/{user_id}",
        response_model=schema.ImagesAnswer,
        responses={403: denied("the key belongs to another userId")},
    )
    def images(acting: Acting, user_id: Annotated[schema.UserId, Path()]) -> Response:
        """Return all pictures of a user. Each is deleted after the grace period, unless it is uploaded again."""
        check_acts_for(acting, user_id)
        pieces = _images_answer(user_id, parts.uploads)
        first = next(pieces)  # raises if the bucket is unreachable, before the status is sent
        return StreamedAnswer(chain([first], pieces), media_type="application/json")

    raw: Responses = _UNKNOWN | {
        200: {"content": {"image/*": {}, "application/octet-stream": {}}, "description": "the file"}
    }

    @router.get("/image/raw/{key:path}", response_class=Response, responses=raw)
    def raw_image(acting: Acting, key: Annotated[str, Path()]) -> Response:
        """Return a file of the user's uploads or jobs."""
        data, media_type = parts.results.file(key, acting)
        headers = {"x-content-type-options": "nosniff", "cache-control": "private, no-cache"}
        return Response(data, headers=headers, media_type=media_type)


def _images_answer(user_id: str, uploads: Uploads) -> Iterator[str]:
    """Yield the answer in pieces: a user's pictures may not fit into memory.

    What was answered is recorded once the last piece is sent.
    """
    versions: dict[str, str] = {}
    before = f'{{"userId":{json.dumps(user_id)},"images":['
    for name, data, version in uploads.read(user_id):
        shown = {
            "key": f"{user_id}/{name}",
            "image_type": media_type_of(name, data),
            "image_data_base64": b64encode(data).decode(),
        }
        yield before + json.dumps(shown)
        versions[name] = version
        before = ","
    yield before.removesuffix(",") + "]}"
    uploads.answered(user_id, versions)


# --- health ---------------------------------------------------------------------------------------------------------


def _add_health(app: FastAPI, health: ServiceHealth) -> None:
    away: Responses = {503: {"model": schema.ServiceUnhealthyAnswer, "description": "Redis is unreachable"}}

    @app.get("/health", response_model=schema.ServiceHealthAnswer, responses=away)
    def check() -> Response:
        """Report which services answer."""
        found = health.now()
        if found["redis"]:
            return answer(found)
        given = answer({**found, "detail": "Redis does not answer"}, 503)
        given.headers["retry-after"] = str(RETRY_AFTER_S)
        return given


# --- refusals and errors --------------------------------------------------------------------------------------------


def _later(status: int, detail: str, seconds: float = RETRY_AFTER_S) -> Response:
    refusal = refused(status, detail)
    refusal.headers["retry-after"] = str(max(1, math.ceil(seconds)))
    return refusal


def _fault_of(found: dict[str, Any]) -> dict[str, Any]:
    """Return a validation error. A body that is still bytes was not parsed, because its Content-Type is not
    application/json."""
    of_type = "the body is not sent as JSON: send it with the header Content-Type: application/json"
    return fault({**found, "msg": of_type} if isinstance(found.get("input"), bytes) else found)


def add_refusals(app: FastAPI) -> None:
    """Add the responses to requests that are refused, and to those that fail through no fault of their own."""

    @app.exception_handler(UnknownJob)
    async def unknown(request: Request, error: UnknownJob) -> Response:
        return refused(404, str(error))

    @app.exception_handler(RateReached)
    async def too_many(request: Request, error: RateReached) -> Response:
        return _later(429, in_words(error), error.seconds)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        found = error.errors()
        if any(it.get("type") == "json_invalid" for it in found):
            return refused(400, "the body is not JSON that can be read")
        return answer({"detail": [_fault_of(it) for it in found[:MAX_FAULTS]]}, 422)

    @app.exception_handler(HTTPException)
    async def turned_away(request: Request, error: HTTPException) -> Response:
        refusal = refused(error.status_code, str(error.detail))
        refusal.headers.update(error.headers or {})
        return refusal

    @app.exception_handler(RetakeError)
    async def away(request: Request, error: RetakeError) -> Response:
        _log.warning("%s", error)
        detail = in_words(error)
        if service := service_of(error):
            detail = unusable(SERVICES[service])
        return _later(503, detail)

    @app.exception_handler(OSError)
    async def no_room(request: Request, error: OSError) -> Response:
        _log.error("a request body could not be stored: %s", error)
        return _later(503, "this machine cannot store the body (is its disk full?); try again")

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        return refused(500, "this is a bug in Retake; its log has the details")
