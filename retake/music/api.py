"""The API of the music pipelines: docs/music.md, section "API"."""

import re
from collections.abc import Callable
from logging import getLogger
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.security import HTTPBearer
from sqlalchemy import literal, select
from starlette.exceptions import HTTPException

from retake.bucket import Bucket
from retake.bucket.contract import NotFound
from retake.bucket.ranged_reads import read_range
from retake.errors import RetakeError, StorageError, in_words
from retake.exit_codes import ExitCode
from retake.music import api_schema as schema
from retake.music.actions import PipelineActions
from retake.music.context import FOLDER
from retake.music.gatekeeper import Gatekeeper
from retake.music.rows import PipelineRow
from retake.music.states import step_of
from retake.music.store import MAX_LISTED, NewPipeline, UnknownPipeline
from retake.operations.port import Refusal
from retake.serving.answers import MAX_FAULTS, answer, fault, refused, unusable
from retake.serving.application import described_app
from retake.serving.file_answer import file_answer
from retake.strict_json import parse

PREFIX = "/api/music/pipeline"
WEBHOOK = "/telegram/webhook"
THREADS = 16
"""Maximum number of requests answered concurrently; each may hold a database connection."""

_ALIVE = select(literal(1))
_OF_FILES = {
    "x-content-type-options": "nosniff",
    "cache-control": "private, max-age=86400, immutable",  # each take has its own name
}
_ID = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)
_NAME = re.compile(r"[a-z0-9.-]{1,80}", re.ASCII)

_log = getLogger(__name__)


class Webhook(NamedTuple):
    """Telegram updates by HTTP: the secret that proves where they come from, and the function that takes each of
    them."""

    secret: str
    on_update: Callable[[object], None]


def music_app(
    store: PipelineActions,
    bucket: Bucket,
    api_key: str,
    *,
    wake: Callable[[], None] = lambda: None,
    webhook: Webhook | None = None,
) -> FastAPI:
    """Return the service as an ASGI application.

    `bucket` is the whole bucket; files are below "music/". `wake` is called whenever a step has been started. `webhook`
    is None if Telegram's updates do not arrive by HTTP.
    """
    app = described_app(
        "Retake: music",
        "From a track to a published video on YouTube, with a person's yes after each step.",
        threads=THREADS,
    )
    app.add_middleware(
        Gatekeeper,
        prefix="/api",
        key=api_key,
        hook=WEBHOOK if webhook else None,
        hook_secret=webhook.secret if webhook else "",
    )
    router = _router()
    _add_queries(router, store, bucket)
    _add_creation(router, store, wake)
    _add_actions(router, store, wake)
    app.include_router(router)
    _add_health(app, store)
    if webhook:
        _add_webhook(app, webhook)
    _add_errors(app)
    return app


# --- routes ---------------------------------------------------------------------------------------------------------

Responses = dict[int | str, dict[str, Any]]

_REFUSED: Responses = {
    404: {"model": schema.RefusalAnswer, "description": "no such pipeline"},
    409: {"model": schema.RefusalAnswer, "description": "not as things stand; nothing is changed"},
}
_UNKNOWN: Responses = {404: _REFUSED[404]}
_KNOWN: Responses = {200: {"model": schema.CreatedAnswer, "description": "known by its Idempotency-Key"}}


def _router() -> APIRouter:
    common: Responses = {
        401: {"model": schema.RefusalAnswer, "description": "the key is missing or wrong"},
        413: {"model": schema.RefusalAnswer, "description": "the body is larger than 64 KiB"},
        422: {"model": schema.FaultsAnswer, "description": "the request is not as described"},
        503: {"model": schema.RefusalAnswer, "description": "database or bucket are unreachable"},
    }
    # This only describes the key: the gatekeeper checks it.
    bearer = Depends(HTTPBearer(auto_error=False, description="the key of MUSIC_API_KEY"))
    return APIRouter(prefix=PREFIX, responses=common, dependencies=[bearer], tags=["pipelines"])


def _add_queries(router: APIRouter, store: PipelineActions, bucket: Bucket) -> None:
    @router.get("/", include_in_schema=False)  # what some clients request for a base URL
    @router.get("", response_model=schema.ListAnswer)
    def listing(
        state: Annotated[schema.StateName | None, Query(description="none: all but published and cancelled")] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 50,
    ) -> Response:
        """List pipelines, newest first."""
        found = store.listing((state,) if state else (), limit=limit)
        return answer({"pipelines": [row.shown() for row in found]})

    @router.get("/{pipeline_id}", response_model=schema.ShownAnswer, responses=_UNKNOWN)
    def show(pipeline_id: schema.Id) -> Response:
        """Show a pipeline and its attempts."""
        row = store.get(_number(pipeline_id))
        return answer({**row.shown(), "jobs": [job.shown() for job in store.jobs(row.id)]})

    def media(pipeline_id: schema.Id, name: str, request: Request) -> Response:
        """Return a file: the cover, the video or the thumbnail."""
        number = _number(pipeline_id)
        if not _NAME.fullmatch(name) or name.startswith("."):
            raise HTTPException(404, "there is no such file")
        key = f"{FOLDER}{number}/{name}"
        found = bucket.find(key, [""])
        if not found:
            raise HTTPException(404, "there is no such file")

        def read(first: int, last: int) -> bytes:
            try:
                return read_range(bucket, key, first, last)
            except NotFound:
                return b""

        return file_answer(request, name, found[0].size, read, _OF_FILES)

    files: Responses = {
        200: {"content": {"image/*": {}, "video/mp4": {}, "application/octet-stream": {}}, "description": "the file"},
        206: {"content": {"image/*": {}, "video/mp4": {}, "application/octet-stream": {}}, "description": "a part"},
        404: {"model": schema.RefusalAnswer, "description": "no such file"},
        416: {"model": schema.RefusalAnswer, "description": "there is no such part"},
    }
    router.get("/{pipeline_id}/media/{name}", response_class=Response, responses=files)(media)
    router.head("/{pipeline_id}/media/{name}", include_in_schema=False)(media)


def _add_creation(router: APIRouter, store: PipelineActions, wake: Callable[[], None]) -> None:
    @router.post("/", include_in_schema=False)
    @router.post(
        "",
        status_code=201,
        response_model=schema.CreatedAnswer,
        responses=_KNOWN,
    )
    def create(
        body: schema.CreateBody, idempotency_key: Annotated[schema.IdempotencyKey | None, Header()] = None
    ) -> Response:
        """Start a pipeline."""
        row, new = store.create(NewPipeline(body.track_title, body.audio, body.style, idempotency_key))
        if new:
            wake()
        return answer({"id": row.id, "state": row.state}, 201 if new else 200)


def _add_actions(router: APIRouter, store: PipelineActions, wake: Callable[[], None]) -> None:
    def begun(row: PipelineRow) -> Response:
        wake()
        return _done(row)

    @router.post("/{pipeline_id}/approve", response_model=schema.ActionAnswer, responses=_REFUSED)
    def approve(pipeline_id: schema.Id, body: schema.StepBody | None = None) -> Response:
        """Approve the pending step: the next one starts."""
        asked = body or schema.StepBody()
        return begun(store.approve(_number(pipeline_id), asked.step, job=asked.job))

    @router.post("/{pipeline_id}/feedback", response_model=schema.ActionAnswer, responses=_REFUSED)
    def feedback(pipeline_id: schema.Id, body: schema.FeedbackBody) -> Response:
        """Redo the pending step with a note on what to change."""
        return begun(store.feedback(_number(pipeline_id), body.feedback, body.step, job=body.job))

    @router.post("/{pipeline_id}/publish", response_model=schema.ActionAnswer, responses=_REFUSED)
    def publish(pipeline_id: schema.Id, body: schema.ResultBody | None = None) -> Response:
        """Publish a reviewed pipeline."""
        return begun(store.publish(_number(pipeline_id), job=body.job if body else None))

    @router.post("/{pipeline_id}/cancel", response_model=schema.ActionAnswer, responses=_REFUSED)
    def cancel(pipeline_id: schema.Id) -> Response:
        """Cancel a pipeline; nothing is paid for afterwards."""
        return _done(store.cancel(_number(pipeline_id)))

    @router.post("/{pipeline_id}/retry", response_model=schema.RetryAnswer, responses=_REFUSED)
    def retry(pipeline_id: schema.Id, body: schema.RetryBody | None = None) -> Response:
        """Redo the failed step, keeping everything before it."""
        row = store.retry(_number(pipeline_id), again=body is not None and body.again)
        wake()
        return answer({"ok": True, "retrying_step": step_of(row.state)})

    @router.post("/{pipeline_id}/resolve", response_model=schema.ActionAnswer, responses=_REFUSED)
    def resolve(pipeline_id: schema.Id, body: schema.ResolvedBody | schema.AgainBody) -> Response:
        """Decide on a call of unknown outcome."""
        if isinstance(body, schema.AgainBody):
            return begun(store.again(_number(pipeline_id)))
        return _done(store.resolve(_number(pipeline_id), body.youtube_video_id))


def _add_health(app: FastAPI, store: PipelineActions) -> None:
    away: Responses = {503: {"model": schema.RefusalAnswer, "description": "the database is unreachable"}}

    @app.get("/health", response_model=schema.HealthAnswer, responses=away)
    def health() -> Response:
        """Report whether the service and its database answer."""
        try:
            with store.database.reading() as cursor:
                cursor.rows(_ALIVE, name="alive")
        except RetakeError as error:
            _log.error("%s", error)  # it may name the database and its folder, which callers must not see
            return refused(503, "the database does not answer; the log of the service says why")
        return answer({"ok": True})


def _add_webhook(app: FastAPI, webhook: Webhook) -> None:
    @app.post(WEBHOOK, include_in_schema=False)
    async def update(request: Request) -> Response:
        try:
            found = parse(await request.body())
        except ValueError:  # not from Telegram, and a refusal would help nobody
            return answer({"ok": True})
        await run_in_threadpool(webhook.on_update, found)
        return answer({"ok": True})


# --- answers --------------------------------------------------------------------------------------------------------


def _done(row: PipelineRow) -> Response:
    return answer({"ok": True, "state": row.state})


def _number(text: str) -> int:
    if not _ID.fullmatch(text):
        raise UnknownPipeline(f"there is no pipeline {text}"[:80])
    return int(text)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(UnknownPipeline)
    async def unknown(request: Request, error: UnknownPipeline) -> Response:
        return refused(404, in_words(error))

    @app.exception_handler(Refusal)
    async def not_now(request: Request, error: Refusal) -> Response:
        return refused(409, in_words(error))

    @app.exception_handler(StorageError)
    async def away(request: Request, error: StorageError) -> Response:
        _log.error("%s", error)
        return refused(503, unusable("the database or the bucket"))

    @app.exception_handler(RetakeError)
    async def failed(request: Request, error: RetakeError) -> Response:
        _log.error("%s", error)
        later = error.exit_code in (ExitCode.TRY_LATER, ExitCode.CONFIG)
        return refused(503 if later else 500, in_words(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return answer({"detail": [fault(it) for it in error.errors()[:MAX_FAULTS]]}, 422)

    @app.exception_handler(HTTPException)
    async def turned_away(request: Request, error: HTTPException) -> Response:
        if error.status_code == 400:  # FastAPI's status for a body that cannot be parsed
            return refused(422, "the body is not JSON that can be read")
        refusal = refused(error.status_code, str(error.detail))
        refusal.headers.update(error.headers or {})
        return refusal

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        return refused(500, "this is a bug in Retake; its log has the details")
