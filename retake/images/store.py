"""The jobs in Redis."""

from collections.abc import Mapping
from hashlib import sha256

from retake.images import scripts
from retake.images.job_sets import JobGlance as JobGlance
from retake.images.job_sets import JobSets
from retake.images.jobs import ImageJob, JobStatus, text_fields

IDEMPOTENCY_S = 86_400
_RATE_MS = 60_000


class JobStore(JobSets):
    """Jobs by id: what the API does with them, beside what workers, dispatchers and sweepers do."""

    # --- making and removing ----------------------------------------------------------------------------------------

    def create(self, job: ImageJob, fields: Mapping[str, str], idempotency_key: str = "") -> str:
        """Save a new job, pending, and return its id: that of an older job which the same user made with the same key
        within a day. `fields` are those beside the common ones."""
        now = self.now()
        common = {
            "status": JobStatus.PENDING,
            "type": job.type,
            "user_id": job.user_id,
            "created_at": job.created_at or now,
            "updated_at": now,
        }
        given = [it for pair in {**common, **fields}.items() for it in pair]
        known = _idempotency(job.user_id, idempotency_key)
        return str(self.run(scripts.CREATE, [job.job_id, known], [job.job_id, IDEMPOTENCY_S, *given]))

    def known(self, user_id: str, idempotency_key: str) -> str | None:
        """Return the id of the job that the user made with this key within a day, or None."""
        if not idempotency_key:
            return None
        found = self.ask(lambda: self.client.get(_idempotency(user_id, idempotency_key)))
        return found if isinstance(found, str) else None

    def bring_in(self, job: ImageJob, hashed_key: str = "") -> bool:
        """Create the job of a row of jobs2, and return whether it was not there; its idempotency key counts from now
        on. Call it through `JobTable.bring_in`."""
        if self.fields(job.job_id):
            return False
        if hashed_key:
            place = f"jobs:idempotency:{job.user_id}:{hashed_key}"
            self.ask(lambda: self.client.set(place, job.job_id, nx=True, ex=IDEMPOTENCY_S))
        self.create(job, {**text_fields(job.text), "in_table": "1"})
        return True

    def sent(self, job_id: str) -> bool:
        """Record that the job's message was sent; return whether there is such a job. It is not withdrawn any more."""
        return bool(self.run(scripts.SENT, [job_id], [self.now()]) == 1)

    def withdraw(self, job: ImageJob, idempotency_key: str = "") -> bool:
        """Undo `create`, unless the job was sent or a worker has it already; return whether it is undone."""
        keys = [job.job_id, _idempotency(job.user_id, idempotency_key)]
        return bool(self.run(scripts.WITHDRAW, keys, [job.job_id]) == 1)

    def remove(self, job_id: str, *, ended: bool = False) -> bool:
        """Remove the job from Redis, whatever its status, or with `ended` only if it is ready or failed; return whether
        it was removed."""
        return bool(self.run(scripts.REMOVE, [job_id], [job_id, "1" if ended else ""]) == 1)

    # --- for requests -----------------------------------------------------------------------------------------------

    def delivered(self, job_id: str, at: str, status: str) -> bool:
        """Record when the result was answered, if `status` is still the job's; only the first time counts."""
        return bool(self.run(scripts.DELIVERED, [job_id], [at, status]) == 1)

    def allow(self, user_id: str, per_minute: int) -> float:
        """Count a request of the user; return 0, or the seconds until the next one is allowed."""
        return float(self.run(scripts.ALLOW, [_rate(user_id)], [per_minute, _RATE_MS])) / 1000

    def refund(self, user_id: str) -> None:
        """Undo one `allow`: the request made nothing."""
        self.run(scripts.REFUND, [_rate(user_id)], [])


def _rate(user_id: str) -> str:
    return f"jobs:rate:{user_id}"


def key_hash(idempotency_key: str) -> str:
    """Return the form in which an idempotency key is kept; "" for none."""
    return sha256(idempotency_key.encode("utf-8", "surrogatepass")).hexdigest() if idempotency_key else ""


def _idempotency(user_id: str, key: str) -> str:
    return f"jobs:idempotency:{user_id}:{key_hash(key)}" if key else ""
