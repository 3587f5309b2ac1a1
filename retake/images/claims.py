"""Claims: a worker has a job for as long as it shows signs of life, and only then may it change the job."""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from retake.images import scripts
from retake.images.jobs import JobStatus
from retake.images.redis_calls import RedisCalls, milliseconds, pairs


class Taken(StrEnum):
    """What became of an attempt to claim a job."""

    CLAIMED = "claimed"
    HELD = "held"  # another worker has it
    DONE = "done"  # it is ready
    FAILED = "failed"
    GONE = "gone"  # there is no such job
    EXHAUSTED = "exhausted"  # claimed, but so many workers died of it that it must be failed


class JobClaim(NamedTuple):
    """The result of `JobStore.claim`."""

    taken: Taken
    held_s: float = 0.0  # seconds until the claim of the other worker ends unless it is renewed


class Still(StrEnum):
    """Whether a job was still the writer's."""

    DONE = "done"
    LOST = "lost"  # another worker has it, or it has ended
    GONE = "gone"  # there is no such job any more


class JobClaims(RedisCalls):
    """What a worker does with jobs. `token` is its own, another one for each job that it takes."""

    def claim(self, job_id: str, token: str, silence_s: float, deaths: int) -> JobClaim:
        """Take the job for the worker `token`, for `silence_s` seconds; with the same token again it is renewed.

        A job whose claim ended `deaths` times without being given back is EXHAUSTED.
        """
        taken, left_ms = self.run(scripts.CLAIM, [job_id], [token, milliseconds(silence_s), deaths])
        return JobClaim(Taken(taken), int(left_ms) / 1000)

    def renew(self, job_id: str, token: str, silence_s: float) -> Still:
        """Keep the job for another `silence_s` seconds, also if the claim has ended but nobody else has taken it."""
        return Still(self.run(scripts.UPDATE, [job_id], [token, milliseconds(silence_s)]))

    def update(self, job_id: str, token: str, silence_s: float, fields: Mapping[str, str]) -> Still:
        """Write fields of a claimed job, and renew the claim."""
        given = pairs({**fields, "updated_at": self.now()})
        return Still(self.run(scripts.UPDATE, [job_id], [token, milliseconds(silence_s), *given]))

    def give_back(self, job_id: str, token: str) -> Still:
        """Let another worker have the job: it is pending again, and what is on a ComfyUI server stays on record."""
        return Still(self.run(scripts.GIVE_BACK, [job_id], [token, self.now()]))

    def end_ready(self, job_id: str, token: str, output_r2_key: str, image_type: str, executed_by: str) -> Still:
        """Move the job to ready, with its picture."""
        fields = {
            "status": JobStatus.READY,
            "output_r2_key": output_r2_key,
            "image_type": image_type,
            "executed_by_comfyui_server": executed_by,
            "error": "",
        }
        return self._end(job_id, token, scripts.READY, fields)

    def end_failed(self, job_id: str, token: str, error: str) -> Still:
        """Move the job to failed, with the reason."""
        return self._end(job_id, token, scripts.FAILED, {"status": JobStatus.FAILED, "error": error})

    def _end(self, job_id: str, token: str, into: str, fields: Mapping[str, str]) -> Still:
        given = pairs({**fields, "ended_by": token, "updated_at": self.now()})
        return Still(self.run(scripts.END, [job_id, into], [token, job_id, *given]))
