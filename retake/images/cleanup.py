"""Clean-up: removes a job from PostgreSQL, the bucket and Redis."""

from typing import TYPE_CHECKING

from retake.bucket import Bucket
from retake.images.jobs import ImageJob, JobStatus, is_job_id
from retake.images.objects import remove_files
from retake.images.store import JobStore

if TYPE_CHECKING:
    from retake.images.table import JobTable

DELETED = "deleted by its user"


def reopen_row(table: "JobTable", store: JobStore, job_id: str) -> bool:
    """Make the job's row pending again, and return whether the job still exists.

    If its user has just deleted it, the row fails again, so that nobody brings the job back. Raises
    RedisAway, TableAway.
    """
    table.reopen(job_id)
    if store.get(job_id) is not None:
        return True
    table.failed(job_id, DELETED)
    return False


class CleanUp:
    """Removes jobs in an order that is safe at each step, even while others work on the same jobs.

    1. The row of jobs2 ends: completed, or failed with the reason. While a row is pending, a sweeper may bring its
       job in; so the row ends while the hash still exists, and nothing is executed a second time.
    2. If the job has ended, its files are removed, then its hash. A crash in between leaves the hash, and with it the
       job in a set that a sweeper reads, which cleans up again. To make that happen soon, a job that its user deletes
       is first marked as delivered.
       If it is in progress (its user deletes it), the hash is removed, then its files. Without the hash its worker can
       no longer write "ready", and removes the picture that it has just saved. A crash in between leaves files without
       a hash, which a sweeper removes once they are older than IMAGES.orphan_after_seconds, like anything that a
       worker saves at the very moment of the removal.
    3. The row is ended once more: an operator may have requeued the job in between, and a sweeper would bring it in.

    It can be repeated, and done by several processes at once.
    """

    def __init__(self, store: JobStore, bucket: Bucket, table: "JobTable | None") -> None:
        self._store, self._bucket, self._table = store, bucket, table

    def clean(self, job_id: str, *, ended: bool = False) -> bool:
        """Remove the job at once, whatever its status. Return whether it no longer exists.

        With `ended`, a job that an operator has just requeued stays. Raises RedisAway, StorageError,
        TableAway: part of the job may then remain, and is removed later.
        """
        job = self._store.get(job_id)
        if job is None:
            if is_job_id(job_id):
                self._store.settle(job_id)
            return True
        if ended and not job.ended:
            return False
        table = self._table if job.in_table else None
        if table is not None:
            self._end_row(table, job)
        if job.under_way:
            self._store.remove(job_id)
            remove_files(self._bucket, job_id)
        else:
            if not ended:
                self._store.delivered(job_id, self._store.now(), job.status)
            remove_files(self._bucket, job_id)
            if not self._store.remove(job_id, ended=ended):
                return self._store.get(job_id) is None
        if table is not None and job.status != JobStatus.READY:
            self._end_row(table, job)
        return True

    def _end_row(self, table: "JobTable", job: ImageJob) -> None:
        if job.status == JobStatus.READY:
            table.completed(job.job_id, job.output_r2_key, job.executed_by)
        else:
            table.failed(job.job_id, job.error if job.status == JobStatus.FAILED else DELETED)
