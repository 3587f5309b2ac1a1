"""The jobs in Redis."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import NamedTuple

from retake.images import scripts
from retake.images.claims import JobClaims
from retake.images.jobs import ImageJob, JobStatus, is_job_id, iso, job_of, text_fields
from retake.images.redis_calls import WrongType, milliseconds, pairs
from retake.images.rows import AHEAD_S

IDEMPOTENCY_S = 86_400
_RATE_MS = 60_000
_PAGE = 500  # members of a set that are read at once


class JobGlance(NamedTuple):
    """What a sweep looks at."""

    job_id: str
    status: str  # empty: there is no such job
    type: str
    updated_at: str
    delivered_at: str
    claimed: bool  # whether a living worker has it
    cached: bool = False  # whether a living dispatcher has it in its memory
    in_table: bool = False  # whether it has a row in jobs2


class JobSets(JobClaims):
    """Jobs as they are found: by id, and by the sets of their statuses, page by page."""

    def get(self, job_id: str) -> ImageJob | None:
        """Return the job, or None."""
        fields = self.fields(job_id)
        return job_of(job_id, fields) if fields else None

    def fields(self, job_id: str) -> dict[str, str]:
        """Return the hash of the job; {} if there is none, or a key of another type. `job_id` may be any text."""
        if not is_job_id(job_id):
            return {}
        try:
            return dict(self.ask(lambda: self.client.hgetall(job_id)))
        except WrongType:
            return {}

    def members(
        self, of: str, *, calm: Iterable[str] = (), changed: str = "", answered: str = ""
    ) -> Iterator[JobGlance]:
        """Yield the jobs of a set (see scripts.SETS), page by page; one that moves meanwhile may come twice.

        Left out are those with one of the statuses `calm` that were last changed after `changed`, though not by
        a clock far ahead, and answered after `answered` if at all, or that a worker has: Redis itself passes over them.
        """
        statuses = f" {' '.join(calm)} "
        ahead = iso(self._clock.now() + timedelta(seconds=AHEAD_S))
        cursor = "0"
        while True:
            cursor, rows = self.run(scripts.PEEK, [of], [cursor, _PAGE, statuses, changed, answered, ahead])
            for at in range(0, len(rows), 8):
                yield JobGlance(*rows[at : at + 5], *(it == "1" for it in rows[at + 5 : at + 8]))
            if str(cursor) == "0":
                return

    def counts(self) -> dict[str, int]:
        """Return how many jobs are in each set."""
        with self.client.pipeline(transaction=False) as pipe:
            for name in scripts.SETS:
                pipe.scard(name)
            return dict(zip(scripts.SETS, self.ask(pipe.execute), strict=True))

    def settle(self, job_id: str) -> None:
        """Put the job into the set where its status belongs, and out of the others; what is not a job into none."""
        self.run(scripts.SETTLE, [job_id if is_job_id(job_id) else ""], [job_id])

    def touch(self, glance: JobGlance) -> bool:
        """Make a job's last change now, and return whether this caller was the one who did, of several at once."""
        return self.done(scripts.TOUCH, [glance.job_id], [glance.updated_at, self.now()])

    def uncache(self, job_id: str, dispatcher: str = "") -> bool:
        """Move the job back to ready: out of this dispatcher's cache, or out of one whose time has run out."""
        return self.done(scripts.UNCACHE, [job_id], [job_id, dispatcher])

    def statuses(self, job_ids: Sequence[str]) -> list[str | None]:
        """Return the status of each job, None where there is no such key."""
        return [it if there else None for there, it in self.run(scripts.STATUSES, job_ids, [])] if job_ids else []

    def alone(self, what: str, seconds: float) -> bool:
        """Return whether this caller, of all processes, is the first in `seconds` to begin `what`."""
        return bool(self.ask(lambda: self.client.set(f"jobs:alone:{what}", "1", nx=True, px=milliseconds(seconds))))

    def still_alone(self, what: str, seconds: float) -> None:
        """Keep others from beginning `what` for so long from now."""
        self.ask(lambda: self.client.pexpire(f"jobs:alone:{what}", milliseconds(seconds)))

    def not_alone(self, what: str) -> None:
        """Let the next one begin `what` at once."""
        self.ask(lambda: self.client.delete(f"jobs:alone:{what}"))


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
        known = _idempotency(job.user_id, key_hash(idempotency_key))
        given = [job.job_id, IDEMPOTENCY_S, *pairs({**common, **fields})]
        return str(self.run(scripts.CREATE, [job.job_id, known], given))

    def known(self, user_id: str, idempotency_key: str) -> str | None:
        """Return the id of the job that the user made with this key within a day, or None."""
        if not idempotency_key:
            return None
        found = self.ask(lambda: self.client.get(_idempotency(user_id, key_hash(idempotency_key))))
        return found if isinstance(found, str) else None

    def bring_in(self, job: ImageJob, hashed_key: str = "") -> bool:
        """Create the job of a row of jobs2, and return whether it was not there; its idempotency key counts from now
        on. Call it through `JobTable.bring_in`."""
        if self.fields(job.job_id):
            return False
        if hashed_key:
            place = _idempotency(job.user_id, hashed_key)
            self.ask(lambda: self.client.set(place, job.job_id, nx=True, ex=IDEMPOTENCY_S))
        self.create(job, {**text_fields(job.text), "in_table": "1"})
        return True

    def sent(self, job_id: str) -> bool:
        """Record that the job's message was sent; return whether there is such a job. It is not withdrawn any more."""
        return self.done(scripts.SENT, [job_id], [self.now()])

    def withdraw(self, job: ImageJob, idempotency_key: str = "") -> bool:
        """Undo `create`, unless the job was sent or a worker has it already; return whether it is undone."""
        keys = [job.job_id, _idempotency(job.user_id, key_hash(idempotency_key))]
        return self.done(scripts.WITHDRAW, keys, [job.job_id])

    def remove(self, job_id: str, *, ended: bool = False) -> bool:
        """Remove the job from Redis, whatever its status, or with `ended` only if it is ready or failed; return whether
        it was removed."""
        return self.done(scripts.REMOVE, [job_id], [job_id, "1" if ended else ""])

    def requeue(self, job_id: str) -> bool:
        """Let a failed job start over; return whether it, or one that is under way, is to be done."""
        return self.done(scripts.REQUEUE, [job_id], [job_id, self.now()])

    # --- for requests -----------------------------------------------------------------------------------------------

    def delivered(self, job_id: str, at: str, status: str) -> bool:
        """Record when the result was answered, if `status` is still the job's; only the first time counts."""
        return self.done(scripts.DELIVERED, [job_id], [at, status])

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


def _idempotency(user_id: str, hashed_key: str) -> str:
    return f"jobs:idempotency:{user_id}:{hashed_key}" if hashed_key else ""
