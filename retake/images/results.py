"""Answers about jobs: the status, the picture, the files, and what follows once an answer has been sent."""

from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from retake.bucket import NotFound
from retake.bucket.contract import is_key
from retake.errors import RetakeError
from retake.images.access import may
from retake.images.cleanup import DELETED, CleanUp
from retake.images.dispatcher import Dispatcher
from retake.images.jobs import ImageJob, JobStatus, is_job_id
from retake.images.objects import FOLDER, media_type_of
from retake.images.start import ImageServices
from retake.images.unfinished import Unfinished
from retake.serving.bounded_calls import BoundedCalls

_WORDS: dict[str, str] = {
    JobStatus.PENDING: "the job waits for a worker",
    JobStatus.WAITING: "a worker looks for a ComfyUI server",
    JobStatus.PROCESSING: "ComfyUI is at work",
}


class UnknownJob(Exception):
    """There is no such job or file, or it belongs to another user."""


class JobState(NamedTuple):
    """The answer about a job. Call `after` once it has been sent."""

    status: int
    body: dict[str, Any]
    after: Callable[[], None] | None = None


class JobResults:
    """Jobs as their users see them. Every method may raise UnknownJob, RedisAway, StorageError, NotInTime."""

    def __init__(
        self,
        services: ImageServices,
        files: BoundedCalls,
        cleanup: CleanUp,
        dispatcher: Dispatcher,
        unfinished: Unfinished,
    ) -> None:
        self._store, self._bucket, self._table = services.store, services.bucket, services.table
        self._grace_s = services.settings.images.result_grace_seconds
        self._files, self._cleanup, self._dispatcher, self._unfinished = files, cleanup, dispatcher, unfinished

    def state(self, job_id: str, acting: str) -> JobState:
        """Return the status of a job, with its picture if it is ready. A job cached by the dispatcher needs no call to
        Redis."""
        if (cached := self._dispatcher.cached(job_id)) is not None:
            if not may(acting, cached.user_id):
                raise UnknownJob(f"there is no job {job_id}")
            return self._completed(job_id, cached.output_r2_key, cached.image_type)
        job = self._find(job_id, acting)
        if job.under_way:
            return JobState(202, {"status": job.status, "message": _WORDS.get(job.status, "a worker is at work")})
        if job.status == JobStatus.FAILED:
            body = {"status": "failed", "jobId": job_id, "error": job.error or "no reason is known"}
            return JobState(200, body, self._delivered(job_id, JobStatus.FAILED))
        if job.status != JobStatus.READY:
            return JobState(200, {"status": job.status})
        if not job.output_r2_key:
            self._clean_soon(job_id)
            return JobState(500, {"detail": "the job is ready, but has no picture (output_r2_key); it is cleaned up"})
        return self._completed(job_id, job.output_r2_key, job.image_type)

    def delete(self, job_id: str, acting: str) -> None:
        """Clean the job up at once."""
        self._find(job_id, acting)
        self._files.run(lambda: self._clean(job_id))

    def file(self, key: str, acting: str) -> tuple[bytes, str]:
        """Return a file of a job or an upload, and its media type."""
        unknown = UnknownJob("there is no such file")
        if not is_key(key) or "/" not in key:
            raise unknown
        first, _, rest = key.partition("/")
        if key.startswith(FOLDER):
            job_id = rest.partition("/")[0]
            job = self._store.get(job_id) if is_job_id(job_id) else None
            if job is None or not may(acting, job.user_id):
                raise unknown
        elif not may(acting, first):
            raise unknown
        try:
            data, _ = self._files.run(lambda: self._bucket.read(key))
        except NotFound:
            raise unknown from None
        return data, media_type_of(key, data)

    # --- parts ------------------------------------------------------------------------------------------------------

    def _find(self, job_id: str, acting: str) -> ImageJob:
        """Return the job, or its row of jobs2 if it is yet to be brought in."""
        job = self._store.get(job_id)
        if job is None and self._table is not None:
            row = self._table.get(job_id)
            if row is not None and row.status == JobStatus.PENDING:
                job = ImageJob(job_id, JobStatus.PENDING, user_id=row.user_id, in_table=True)
        if job is None or not may(acting, job.user_id):
            raise UnknownJob(f"there is no job {job_id}")
        return job

    def _completed(self, job_id: str, key: str, image_type: str) -> JobState:
        try:
            # Another program may have written a key that no bucket can hold.
            data = self._files.run(lambda: self._bucket.read(key))[0] if is_key(key) else None
        except NotFound:
            data = None
        if data is None:
            self._clean_soon(job_id)
            raise UnknownJob(f"the picture of job {job_id} is gone")
        body = {
            "status": "completed",
            "jobId": job_id,
            "image_data_base64": b64encode(data).decode(),
            "image_type": image_type or media_type_of(key, data),
        }
        return JobState(200, body, self._delivered(job_id, JobStatus.READY))

    def _delivered(self, job_id: str, status: JobStatus) -> Callable[[], None]:
        """Return what to do once the result has been sent: start its grace period or, without one, clean the job up."""

        def note(at: str) -> None:
            if self._store.delivered(job_id, at, status) and not self._grace_s:
                with suppress(RetakeError):  # then a sweeper does it; a later retry here might hit another result
                    self._clean(job_id, ended=True)

        def after() -> None:
            at = self._store.now()
            self._unfinished.attempt(f"delivered {job_id}", lambda: note(at))

        return after

    def _clean_soon(self, job_id: str) -> None:
        """Clean up now, or later if a service is unreachable."""

        def clean() -> None:
            self._files.run(lambda: self._clean(job_id))

        self._unfinished.attempt(f"clean {job_id}", clean)

    def _clean(self, job_id: str, *, ended: bool = False) -> None:
        if self._table is not None and self._store.get(job_id) is None:
            row = self._table.get(job_id)
            if row is not None and row.status == JobStatus.PENDING:
                self._table.failed(job_id, DELETED)  # so that it is never brought in
        self._cleanup.clean(job_id, ended=ended)
        self._dispatcher.forget(job_id)
