"""The jobs in Redis."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from secrets import token_hex
from typing import NamedTuple

from redis import Redis

from retake.clock import Clock
from retake.images import scripts
from retake.images.claims import JobClaims
from retake.images.jobs import ImageJob, JobStatus, is_job_id, iso, job_of, text_fields
from retake.images.redis_calls import WrongType, milliseconds, pairs
from retake.images.rows import AHEAD_S

IDEMPOTENCY_S = 86_400
"""Seconds for which an idempotency key counts."""
_RATE_MS = 60_000
_PAGE = 500  # members of a set per call


class JobSummary(NamedTuple):
    """The data of a job that a sweep needs."""

    job_id: str
    status: str  # empty: there is no such job
    type: str
    updated_at: str
    delivered_at: str
    in_table: bool  # whether it has a row in jobs2


class JobSets(JobClaims):
    """Lookup of jobs: by id, and page by page in the sets of their statuses; and locks, held by this object."""

    def __init__(self, client: Redis, clock: Clock) -> None:
        super().__init__(client, clock)
        self._holder = token_hex(16)

    def get(self, job_id: str) -> ImageJob | None:
        """Return the job, or None."""
        fields = self.fields(job_id)
        return job_of(job_id, fields) if fields else None

    def fields(self, job_id: str) -> dict[str, str]:
        """Return the hash of the job, or {} if there is none or the key has another type. `job_id` may be any text."""
        if not is_job_id(job_id):
            return {}
        try:
            return dict(self.ask(lambda: self.client.hgetall(job_id)))
        except WrongType:
            return {}

    def members(
        self, of: str, *, calm: Iterable[str] = (), changed: str = "", answered: str = ""
    ) -> Iterator[JobSummary]:
        """Yield the jobs of a set (see scripts.SETS), page by page. A job that moves in the meantime may be yielded
        twice.

        Redis leaves out jobs with one of the statuses `calm` that a worker holds, or that were last changed after
        `changed` (unless by a clock far ahead) and, if at all, answered after `answered`.
        """
        statuses = f" {' '.join(calm)} "
        ahead = iso(self.clock.now() + timedelta(seconds=AHEAD_S))
        cursor = "0"
        while True:
            cursor, rows = self.run(scripts.PEEK, [of], [cursor, _PAGE, statuses, changed, answered, ahead])
            for at in range(0, len(rows), 6):
                yield JobSummary._make([*rows[at : at + 5], rows[at + 5] == "1"])
            if str(cursor) == "0":
                return

    def counts(self) -> dict[str, int]:
        """Return the number of jobs in each set."""
        with self.client.pipeline(transaction=False) as pipe:
            for name in scripts.SETS:
                pipe.scard(name)
            return dict(zip(scripts.SETS, self.ask(pipe.execute), strict=True))

    def settle(self, job_id: str) -> None:
        """Move the job to the set of its status and out of the others; remove what is not a job from all sets."""
        self.run(scripts.SETTLE, [job_id if is_job_id(job_id) else ""], [job_id])

    def touch(self, summary: JobSummary) -> bool:
        """Set the job's last change to now; return whether this caller, of several at once, was the one that did."""
        return self.done(scripts.TOUCH, [summary.job_id], [summary.updated_at, self.now()])

    def uncache(self, job_id: str, dispatcher: str = "") -> bool:
        """Move the job back to ready, out of this dispatcher's cache or, with "", out of any whose time is up."""
        return self.done(scripts.UNCACHE, [job_id], [job_id, dispatcher])

    def statuses(self, job_ids: Sequence[str]) -> list[str | None]:
        """Return the status of each job, or None if there is no such key."""
        return [it if there else None for there, it in self.run(scripts.STATUSES, job_ids, [])] if job_ids else []

    def take_lock(self, what: str, seconds: float) -> bool:
        """Take the lock `what` for `seconds`; return whether this caller, of all processes, got it."""
        name, ms = _lock(what), milliseconds(seconds)
        return bool(self.ask(lambda: self.client.set(name, self._holder, nx=True, px=ms)))

    def renew_lock(self, what: str, seconds: float) -> bool:
        """Renew the lock `what` for `seconds` from now; return False if it had expired, and may be another's now."""
        return self.done(scripts.RENEW_LOCK, [_lock(what)], [self._holder, milliseconds(seconds)])

    def release_lock(self, what: str) -> None:
        """Release the lock `what`, unless it had expired and is another's now."""
        self.run(scripts.RELEASE_LOCK, [_lock(what)], [self._holder])


class JobStore(JobSets):
    """Jobs by id: the operations of the API, in addition to those of workers, dispatchers and sweepers."""

    # --- making and removing ----------------------------------------------------------------------------------------

    def create(self, job: ImageJob, fields: Mapping[str, str], idempotency_key: str = "") -> str:
        """Save a new pending job and return its id, or that of an older job that the same user made with the same key
        within a day.

        `fields` are added to the common ones.
        """
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

    def counting(self, user_id: str, idempotency_key: str, job_id: str) -> str:
        """Return the id of the job that counts for this key of the user: another one that does already, or this one,
        which counts from now on."""
        self._take_key(user_id, key_hash(idempotency_key), job_id)
        return self.known(user_id, idempotency_key) or job_id

    def _take_key(self, user_id: str, hashed_key: str, job_id: str) -> None:
        if hashed_key:
            place = _idempotency(user_id, hashed_key)
            self.ask(lambda: self.client.set(place, job_id, nx=True, ex=IDEMPOTENCY_S))

    def bring_in(self, job: ImageJob, hashed_key: str = "") -> bool:
        """Create the job of a row of jobs2; return whether it did not exist. Its idempotency key counts from now on.

        Call it through `JobTable.bring_in`.
        """
        if self.fields(job.job_id):
            return False
        self._take_key(job.user_id, hashed_key, job.job_id)
        self.create(job, {**text_fields(job.text), "in_table": "1"})
        return True

    def sent(self, job_id: str) -> bool:
        """Record that the job's message was sent, so that it is no longer withdrawn; return whether there is such a
        job."""
        return self.done(scripts.SENT, [job_id], [self.now()])

    def withdraw(self, job: ImageJob, idempotency_key: str = "") -> bool:
        """Undo `create`, unless the job was sent or claimed by a worker; return whether it is undone."""
        keys = [job.job_id, _idempotency(job.user_id, key_hash(idempotency_key))]
        return self.done(scripts.WITHDRAW, keys, [job.job_id])

    def remove(self, job_id: str, *, ended: bool = False) -> bool:
        """Remove the job from Redis, with `ended` only if it is ready or failed; return whether it was removed."""
        return self.done(scripts.REMOVE, [job_id], [job_id, "1" if ended else ""])

    def requeue(self, job_id: str) -> bool:
        """Restart a failed job; return whether the job is to be done, as one in progress is too."""
        return self.done(scripts.REQUEUE, [job_id], [job_id, self.now()])

    # --- for requests -----------------------------------------------------------------------------------------------

    def delivered(self, job_id: str, at: str, status: str) -> bool:
        """Record when the result was first delivered, if `status` is still the job's status."""
        return self.done(scripts.DELIVERED, [job_id], [at, status])

    def allow(self, user_id: str, per_minute: int) -> float:
        """Count a request of the user; return 0, or the seconds until the next one is allowed."""
        return float(self.run(scripts.ALLOW, [_rate(user_id)], [per_minute, _RATE_MS])) / 1000

    def refund(self, user_id: str) -> None:
        """Undo one `allow`, for a request that made nothing."""
        self.run(scripts.REFUND, [_rate(user_id)], [])


def _lock(what: str) -> str:
    return f"jobs:alone:{what}"


def _rate(user_id: str) -> str:
    return f"jobs:rate:{user_id}"


def key_hash(idempotency_key: str) -> str:
    """Return the form in which an idempotency key is stored, or "" for none."""
    return sha256(idempotency_key.encode("utf-8", "surrogatepass")).hexdigest() if idempotency_key else ""


def _idempotency(user_id: str, hashed_key: str) -> str:
    return f"jobs:idempotency:{user_id}:{hashed_key}" if hashed_key else ""
