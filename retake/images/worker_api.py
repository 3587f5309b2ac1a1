"""The HTTP API of a worker: a job without a message, the status of a job, the state of the worker."""

from typing import Any
from uuid import uuid4

from fastapi import APIRouter, FastAPI
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from retake.images import api_schema as schema
from retake.images.access import AccessGate, check_acts_for, may
from retake.images.api import BEARER, Acting, Key, Responses, add_refusals, denied
from retake.images.intake import RateReached
from retake.images.jobs import ImageJob, JobStatus, JobType, text_fields
from retake.images.settings import ImagesSettings
from retake.images.store import JobStore
from retake.images.worker import LineFull, QueueWorker
from retake.serving.answers import answer
from retake.serving.application import described_app

THREADS = 8
"""Maximum number of requests answered concurrently."""


class AcceptedAnswer(BaseModel):
    """The job is waiting for its turn."""

    status: str
    job_id: str


class JobStatusAnswer(BaseModel):
    """The state of a job."""

    job_id: str
    status: str
    type: str
    created_at: str
    updated_at: str
    attempt: int
    image_type: str
    executed_by_comfyui_server: str
    error: str


class WorkerHealthAnswer(BaseModel):
    """The state of the worker: the job in progress, the ComfyUI servers that answer, and why the job waits."""

    name: str
    queue: str
    consuming: bool
    job: str | None
    comfyui: list[str]
    waits: str | None


_COMMON: Responses = {
    401: denied("the key is missing or wrong"),
    408: denied("the body came too slowly"),
    413: denied("the body is too large"),
    503: denied("Redis is unreachable, or too many jobs wait here already"),
}
_MAKING: Responses = {
    400: {"model": schema.InvalidAnswer, "description": "the body cannot be read"},
    403: denied("the key belongs to another userId"),
    422: {"model": schema.InvalidAnswer, "description": "the request is not as described"},
    429: denied("too many jobs and uploads of this user"),
    **_COMMON,
}
_LOOKING: Responses = {
    404: denied("there is no such job, or it is another user's"),
    422: {"model": schema.InvalidAnswer, "description": "no UUID"},
    **_COMMON,
}


def worker_app(settings: ImagesSettings, store: JobStore, worker: QueueWorker) -> FastAPI:
    """Return the API of a worker as an ASGI application."""
    app = described_app(
        f"Retake: worker {worker.context.worker}",
        "Takes image jobs without a message, one after another with those of its queue.",
        threads=THREADS,
    )
    app.add_middleware(AccessGate, keys=settings.keys)
    router = APIRouter(dependencies=[BEARER])
    _add_jobs(router, store, worker, settings.images.rate_per_minute)
    app.include_router(router)

    @app.get("/health", response_model=WorkerHealthAnswer)
    def health() -> Response:
        """Report the state of the worker."""
        return answer({"name": worker.context.worker, "queue": worker.queue, **worker.state()._asdict()})

    add_refusals(app)
    return app


def _add_jobs(router: APIRouter, store: JobStore, worker: QueueWorker, per_minute: int) -> None:
    @router.post("/CreateImageFromPrompt", status_code=202, response_model=AcceptedAnswer, responses=_MAKING)
    def create(body: schema.JobBody, acting: Acting, idempotency_key: Key = None) -> Response:
        """Order a picture from this worker, which makes one at a time."""
        check_acts_for(acting, body.userId)
        key = idempotency_key or ""
        job_id = store.known(body.userId, key)
        if job_id is not None and not store.sent(job_id):  # once sent, it is no longer withdrawn
            job_id = store.known(body.userId, key)
        if job_id is None:
            if wait_s := store.allow(body.userId, per_minute):
                raise RateReached(wait_s)
            asked = body.request()
            job = ImageJob(str(uuid4()), JobStatus.PENDING, JobType.TEXT, body.userId, text=asked)
            job_id = store.create(job, text_fields(asked), key)
            if job_id != job.job_id:
                store.refund(body.userId)
            else:
                begin(job, key)
        return answer({"status": "accepted", "job_id": job_id}, 202)

    def begin(job: ImageJob, key: str) -> None:
        try:
            worker.add(job.job_id)  # if this process dies, a sweeper sends the job to its queue
        except LineFull:
            # Another request with the same key may have been answered with this job: it then stays, and a sweeper
            # sends it.
            if store.withdraw(job, key) or store.get(job.job_id) is None:
                raise

    @router.get("/status/{job_id}", response_model=JobStatusAnswer, responses=_LOOKING)
    def status(job_id: schema.JobId, acting: Acting) -> Response:
        """Return the state of a job."""
        job = store.get(job_id)
        if job is None or not may(acting, job.user_id):
            raise HTTPException(404, "there is no such job")
        return answer(shown(job))


def shown(job: ImageJob) -> dict[str, Any]:
    """Return what a client sees of a job."""
    return {
        "job_id": job.job_id,
        "status": job.status,
        "type": job.type,
        "created_at": job.created_at,
        "updated_at": job.updated_at,
        "attempt": job.attempt,
        "image_type": job.image_type,
        "executed_by_comfyui_server": job.executed_by,
        "error": job.error,
    }
