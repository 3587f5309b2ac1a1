"""Job intake: into Redis, the bucket, jobs2 and the queue, in an order that loses no job and leaves nothing behind."""

from logging import getLogger
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from retake.bucket import ANY
from retake.errors import RetakeError
from retake.exit_codes import ExitCode
from retake.images.jobs import ImageJob, JobStatus, JobType, TextRequest, text_fields
from retake.images.messages import publish
from retake.images.objects import PictureKind, input_key, remove_files
from retake.images.redis_calls import RedisAway
from retake.images.rows import TableAway
from retake.images.start import ImageServices
from retake.images.unfinished import Unfinished
from retake.logs import bind
from retake.rabbit.broker import BrokerAway
from retake.serving.bounded_calls import BoundedCalls

if TYPE_CHECKING:
    from retake.images.table import JobTable

PUBLISH_S = 3.0
"""Seconds that a request waits for RabbitMQ to confirm its message."""
UNDO_S = 2.0
"""Seconds that a failed request spends on removing the files it has saved; the rest is removed later."""

_log = getLogger(__name__)


class RateReached(RetakeError):
    """The user has made too many requests; the next one is allowed in `seconds`."""

    exit_code = ExitCode.TRY_LATER

    def __init__(self, seconds: float) -> None:
        super().__init__("too many jobs and uploads within a minute (IMAGES.rate_per_minute)")
        self.seconds = seconds


class JobPicture(NamedTuple):
    """A picture that comes with a job."""

    data: bytes
    kind: PictureKind


class JobIntake:
    """Makes jobs. Every method may raise RateReached and RedisAway.

    Each returns the id of the job that counts, which is an older one if the user made it with the same idempotency key
    ("" for none) within a day.
    """

    def __init__(self, services: ImageServices, files: BoundedCalls, unfinished: Unfinished) -> None:
        self._store, self._bucket, self._broker = services.store, services.bucket, services.broker
        self._per_minute = services.settings.images.rate_per_minute
        self._files, self._unfinished = files, unfinished

    def check_rate(self, user_id: str) -> None:
        """Count a request of the user. Raises RateReached."""
        if wait_s := self._store.allow(user_id, self._per_minute):
            raise RateReached(wait_s)

    def text(self, user_id: str, asked: TextRequest, key: str) -> str:
        """Make a job in Redis and send it. If RabbitMQ is unreachable, the sweeper sends it."""
        if known := self._store.known(user_id, key):
            return known
        self.check_rate(user_id)
        job = _new(user_id, JobType.TEXT)._replace(text=asked)
        with bind(job_id=job.job_id):
            try:
                made = self._store.create(job, text_fields(asked), key)
            except RedisAway:
                if not key:  # with a key, the client may retry and get this very job
                    self._unfinished.add(f"withdraw {job.job_id}", lambda: self._store.withdraw(job))
                raise
            if made == job.job_id:
                self._send(job)
            else:
                self._store.refund(user_id)
            return made

    # --- jobs of jobs2 ----------------------------------------------------------------------------------------------

    def in_table(self, table: "JobTable", user_id: str, asked: TextRequest, key: str) -> str:
        """Make a row of jobs2, then the job as `text` does; without Redis the sweeper makes it. Raises TableAway."""
        try:
            if known := self._store.known(user_id, key):
                return known
            self.check_rate(user_id)
        except RedisAway as error:
            _log.info("the rate of %s is not checked: %s", user_id, error)
        job = _new(user_id, JobType.TEXT)._replace(text=asked, in_table=True)
        with bind(job_id=job.job_id):
            made = table.add(job, key)
            ours = made == job.job_id
            if not ours:
                self._unfinished.attempt(f"refund {job.job_id}", lambda: self._store.refund(user_id))
            try:
                # While its row is locked: a job brought in, finished and cleaned up in the meantime is not made again.
                brought = ours and table.bring_in(job.job_id, self._store.bring_in)
                counts = self._store.counting(user_id, key, made)
            except (RedisAway, TableAway) as error:
                _log.warning("the sweeper brings the job in: %s", error)
                return made
            if ours and counts != made:  # the same key was used for POST /jobsRedis at the same time
                table.failed(made, f"already made as {counts}")
                self._store.withdraw(job)
            elif brought:
                self._send(job)
            return counts

    # --- jobs with pictures -----------------------------------------------------------------------------------------

    def outfit(self, user_id: str, person: JobPicture, garment: JobPicture, key: str) -> str:
        """Save the pictures, make the job and send it; if anything fails, nothing remains.

        Raises BrokerAway, StorageError, NotInTime.
        """
        if (known := self._store.known(user_id, key)) and self._is_sent(known):
            return known
        if not self._broker.connected:
            raise BrokerAway("RabbitMQ is unreachable: the job cannot be sent")
        self.check_rate(user_id)
        job = _new(user_id, JobType.OUTFIT)
        job = job._replace(
            person_image_r2_key=input_key(job.job_id, "person", person.kind),
            garment_image_r2_key=input_key(job.job_id, "garment", garment.kind),
        )
        with bind(job_id=job.job_id):
            try:
                for where, picture in ((job.person_image_r2_key, person), (job.garment_image_r2_key, garment)):
                    self._save(where, picture.data)
                made = self._make_and_send(job, key)
            except RetakeError:
                if self._undo(job, key):
                    raise
                return job.job_id  # another request with the same key has sent it
            if made != job.job_id:
                self._undo(job, "")
                self._unfinished.attempt(f"refund {job.job_id}", lambda: self._store.refund(user_id))
            return made

    def _save(self, key: str, data: bytes) -> None:
        self._files.run(lambda: self._bucket.write(key, data, ANY))

    def _make_and_send(self, job: ImageJob, key: str) -> str:
        keys = {
            "person_image_r2_key": job.person_image_r2_key,
            "garment_image_r2_key": job.garment_image_r2_key,
        }
        made = self._store.create(job, keys, key)
        if made == job.job_id:
            self._publish(job)
            self._store.sent(made)
        elif not self._is_sent(made):
            raise BrokerAway("the same job was just withdrawn, since RabbitMQ was unreachable")
        return made

    def _is_sent(self, job_id: str) -> bool:
        """Return whether another request's job counts. It may still be withdrawn unless it was sent, so it is sent now.

        Raises BrokerAway.
        """
        fields = self._store.fields(job_id)
        if fields.get("type") != JobType.OUTFIT or fields.get("status") != JobStatus.PENDING or "sent_at" in fields:
            return True  # sent before, or ended
        self._publish(ImageJob(job_id, JobStatus.PENDING, JobType.OUTFIT))
        return self._store.sent(job_id)

    def _undo(self, job: ImageJob, key: str) -> bool:
        """Remove the job and its pictures, now or later; return False if it stays, since it already counts."""

        def undo() -> None:
            if not self._store.withdraw(job, key) and self._store.get(job.job_id) is not None:
                stays.append(True)
                return
            self._files.run(lambda: remove_files(self._bucket, job.job_id), UNDO_S)

        stays: list[bool] = []
        self._unfinished.attempt(f"undo {job.job_id}", undo)
        return not stays

    # --- RabbitMQ ---------------------------------------------------------------------------------------------------

    def _send(self, job: ImageJob) -> None:
        """Send a job that already counts."""
        try:
            self._publish(job)
        except BrokerAway as error:
            _log.warning("the sweeper sends the job: %s", error)

    def _publish(self, job: ImageJob) -> None:
        publish(self._broker, job, PUBLISH_S)


def _new(user_id: str, job_type: JobType) -> ImageJob:
    return ImageJob(str(uuid4()), JobStatus.PENDING, job_type, user_id)
