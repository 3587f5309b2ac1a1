"""Claims: a worker holds a job as long as it renews its claim, and only the holder may change the job."""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from retake.images import scripts
from retake.images.jobs import JobStatus
from retake.images.redis_calls import RedisCalls, milliseconds, pairs


class ClaimResult(StrEnum):
    """The result of an attempt to claim a job."""

    CLAIMED = "claimed"
    HELD = "held"  # another worker holds it
    DONE = "done"  # it is ready
    FAILED = "failed"
    GONE = "gone"  # there is no such job
    EXHAUSTED = "exhausted"  # claimed, but too many workers died of it: the claimant must fail it


class JobClaim(NamedTuple):
    """The result of `JobStore.claim`."""

    result: ClaimResult
    held_s: float = 0.0  # seconds until the other worker's claim expires unless it is renewed


class WriteResult(StrEnum):
    """Whether the writer still holds the job."""

    DONE = "done"
    LOST = "lost"  # another worker holds it, or it has ended
    GONE = "gone"  # the job no longer exists


class JobClaims(RedisCalls):
    """A worker's operations on jobs. `token` is a fencing token, a new one for each job that the worker takes."""

    def claim(self, job_id: str, token: str, silence_s: float, deaths: int) -> JobClaim:
        """Claim the job as `token` for `silence_s` seconds; with the same token again, renew the claim.

        A job whose claim expired `deaths` times is EXHAUSTED.
        """
        result, left_ms = self.run(scripts.CLAIM, [job_id], [token, milliseconds(silence_s), deaths])
        return JobClaim(ClaimResult(result), int(left_ms) / 1000)

    def renew(self, job_id: str, token: str, silence_s: float) -> WriteResult:
        """Renew the claim for `silence_s` seconds, even an expired one, unless another worker has claimed the job."""
        return WriteResult(self.run(scripts.UPDATE, [job_id], [token, milliseconds(silence_s)]))

    def update(self, job_id: str, token: str, silence_s: float, fields: Mapping[str, str]) -> WriteResult:
        """Write fields of a claimed job, and renew the claim."""
        given = pairs({**fields, "updated_at": self.now()})
        return WriteResult(self.run(scripts.UPDATE, [job_id], [token, milliseconds(silence_s), *given]))

    def give_back(self, job_id: str, token: str) -> WriteResult:
        """Release the job to other workers: it is pending again, and what is on a ComfyUI server stays on record."""
        return WriteResult(self.run(scripts.GIVE_BACK, [job_id], [token, self.now()]))

    def end_ready(self, job_id: str, token: str, output_r2_key: str, image_type: str, executed_by: str) -> WriteResult:
        """Move the job to ready, with its picture."""
        fields = {
            "status": JobStatus.READY,
            "output_r2_key": output_r2_key,
            "image_type": image_type,
            "executed_by_comfyui_server": executed_by,
            "error": "",
        }
        return self._end(job_id, token, scripts.READY, fields)

    def end_failed(self, job_id: str, token: str, error: str) -> WriteResult:
        """Move the job to failed, with the reason."""
        return self._end(job_id, token, scripts.FAILED, {"status": JobStatus.FAILED, "error": error})

    def _end(self, job_id: str, token: str, into: str, fields: Mapping[str, str]) -> WriteResult:
        given = pairs({**fields, "ended_by": token, "updated_at": self.now()})
        return WriteResult(self.run(scripts.END, [job_id, into], [token, job_id, *given]))
