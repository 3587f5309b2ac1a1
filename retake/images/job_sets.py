"""Jobs as dispatchers and sweepers see them: by the sets of their statuses, page by page."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import NamedTuple

from retake.images import scripts
from retake.images.claims import JobClaims
from retake.images.jobs import ImageJob, is_job_id, iso, job_of
from retake.images.redis_calls import WrongType, milliseconds
from retake.images.rows import AHEAD_S

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
    """Jobs as they are found: by id, and by the sets that they are in."""

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
        return bool(self.run(scripts.TOUCH, [glance.job_id], [glance.updated_at, self.now()]) == 1)

    def uncache(self, job_id: str, dispatcher: str = "") -> bool:
        """Move the job back to ready: out of this dispatcher's cache, or out of one whose time has run out."""
        return bool(self.run(scripts.UNCACHE, [job_id], [job_id, dispatcher]) == 1)

    def requeue(self, job_id: str) -> bool:
        """Let a failed job start over; return whether it, or one that is under way, is to be done."""
        return bool(self.run(scripts.REQUEUE, [job_id], [job_id, self.now()]) == 1)

    def statuses(self, job_ids: Sequence[str]) -> list[str | None]:
        """Return the status of each job, None where there is no such key."""
        return [it if there else None for there, it in self.run(scripts.STATUSES, job_ids, [])] if job_ids else []

    def alone(self, what: str, seconds: float) -> bool:
        """Return whether this caller, of all processes, is the first in `seconds` to begin `what`."""
        return bool(self.ask(lambda: self.client.set(f"jobs:alone:{what}", "1", nx=True, px=milliseconds(seconds))))

    def not_alone(self, what: str) -> None:
        """Let the next one begin `what` at once."""
        self.ask(lambda: self.client.delete(f"jobs:alone:{what}"))
