"""The sweeper: finds what a crash, a lost message or an unreachable service has left behind, and corrects it
(docs/images.md, "Sweeper and clean-up").

Every instance of the API runs one, and all may work at the same time: a Redis script, a row lock, or a Redis key with a
time to live decides which of them does what must happen only once.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice
from logging import getLogger
from typing import TYPE_CHECKING

from retake.bucket import Entry
from retake.bucket.empty_folders import remove_folder
from retake.clock import Clock
from retake.errors import RetakeError, StorageError
from retake.images import scripts
from retake.images.cleanup import CleanUp, reopen_row
from retake.images.clock_steps import ClockSteps
from retake.images.jobs import UNDER_WAY, ImageJob, JobStatus, age_s, is_job_id, iso
from retake.images.messages import publish, route_of
from retake.images.objects import FOLDER, folder_of
from retake.images.redis_calls import RedisAway
from retake.images.rows import AHEAD_S, TableAway, TableRow
from retake.images.start import SERVICES, ImageServices, service_of
from retake.images.store import JobSummary
from retake.images.turns import Turns
from retake.rabbit.broker import BrokerAway

if TYPE_CHECKING:
    from retake.images.table import JobTable

MAX_SENT = 1000
"""Maximum number of messages that one pass resends."""

MAX_CLEANED = 1000
"""Maximum number of jobs that one pass cleans up, and of files without a job that it removes."""

MAX_ROWS = 2000
"""Maximum number of rows of jobs2 that one pass examines; the next pass continues after them."""

LOST = "its result was lost: Redis no longer has the job"

_PAGE = 500
_MAX_PASS_S = 20.0  # seconds after which a pass cleans up no further jobs
_ORPHANS = "orphans"  # name of the lock on listing the bucket
_MIN_LISTING_S = 1.0  # minimum seconds between two listings of the bucket

_log = getLogger(__name__)


class Sweeper:
    """Makes passes, in one thread at a time."""

    def __init__(self, services: ImageServices, cleanup: CleanUp, clock: Clock) -> None:
        self._settings, self._store = services.settings.images, services.store
        self._bucket, self._broker, self._table = services.bucket, services.broker, services.table
        self._cleanup, self._clock = cleanup, clock
        self._outages, self._turns, self._turns_of_files = _Outages(), Turns(), Turns()
        self._steps = ClockSteps(services.store, clock)
        self._behind = ""  # the cursor of the next pass in jobs2: an id

    def sweep(self) -> None:
        """Make one pass. An unreachable service is logged once, not raised; what does not need it is done."""
        self._outages.begin()
        with self._outages.noted(RedisAway):
            self._send_again()
        if self._outages.has(RedisAway):
            return
        with self._outages.noted():
            self._steps.follow()
            self._clean_up()
        if self._table is not None:
            with self._outages.noted(TableAway):
                self._follow_rows(self._table)
                self._table.forget_keys()
        with self._outages.noted():
            self._remove_orphans()

    # --- messages that were lost ------------------------------------------------------------------------------------

    def _send_again(self) -> None:
        now, left = self._clock.now(), MAX_SENT
        empty: dict[str, bool] = {}
        before = _before(now, self._settings.resend_after_seconds)
        for summary in self._store.members(scripts.PENDING, calm=UNDER_WAY, changed=before):
            if summary.status not in UNDER_WAY or not is_job_id(summary.job_id):
                self._store.settle(summary.job_id)
            elif left and self._is_old(summary, now, self._settings.resend_after_seconds):
                queue = route_of(summary.type).queue
                if queue not in empty:
                    empty[queue] = self._is_empty(queue)
                if empty[queue]:
                    left -= 1
                    empty[queue] = self._send(summary)

    def _is_empty(self, queue: str) -> bool:
        with self._outages.noted(BrokerAway):
            return self._broker.depth(queue) == 0
        return False

    def _send(self, summary: JobSummary) -> bool:
        """Resend the job's message, unless another sweeper does; return whether RabbitMQ accepts messages."""
        if not self._store.touch(summary):
            return True
        job = self._store.get(summary.job_id)
        if job is None or not job.under_way:
            return True
        if job.in_table and self._table is not None and not self._outages.has(TableAway):  # its requeue may have died
            with self._outages.noted(TableAway):
                if not reopen_row(self._table, self._store, job.job_id):
                    return True
        return self._publish(job)

    def _publish(self, job: ImageJob) -> bool:
        with self._outages.noted(BrokerAway):
            publish(self._broker, job)
            _log.info("sent to %s: no worker has the job", route_of(job.type).queue, extra={"job_id": job.job_id})
            return True
        return False

    # --- jobs that are no longer needed -----------------------------------------------------------------------------

    def _clean_up(self) -> None:
        """Clean up jobs that are over. A job with a file that cannot be deleted does not hold up the others."""
        begun, cleaned = self._clock.now(), False
        for summary in islice(self._turns.ordered(self._over(begun), lambda it: it.job_id), MAX_CLEANED):
            if (self._clock.now() - begun).total_seconds() > _MAX_PASS_S:
                break
            if summary.in_table and self._outages.has(TableAway):
                continue
            with self._outages.noted(), self._turns.processing(summary.job_id):
                if self._cleanup.clean(summary.job_id, ended=True):
                    cleaned = True
                    _log.info("cleaned up: its result is no longer needed", extra={"job_id": summary.job_id})
            if self._outages.has(RedisAway):
                break
        if cleaned:
            with self._outages.noted(StorageError):  # the bucket has answered
                pass

    def _over(self, now: datetime) -> Iterator[JobSummary]:
        """Yield the jobs to clean up. Jobs in a wrong set are moved to the right one on the way."""
        changed = _before(now, self._settings.result_ttl_seconds)
        answered = _before(now, self._settings.result_grace_seconds)
        for name in (scripts.READY, scripts.CACHED, scripts.FAILED):
            belongs = JobStatus.FAILED if name == scripts.FAILED else JobStatus.READY
            for summary in self._store.members(name, calm=(belongs,), changed=changed, answered=answered):
                if summary.status != belongs or not is_job_id(summary.job_id):
                    self._store.settle(summary.job_id)
                elif name == scripts.CACHED:
                    self._store.uncache(summary.job_id)
                if summary.status in (JobStatus.READY, JobStatus.FAILED) and self._is_over(summary, now):
                    yield summary

    def _is_over(self, summary: JobSummary, now: datetime) -> bool:
        answered = age_s(summary.delivered_at, now)
        if answered is not None and answered >= self._settings.result_grace_seconds:
            return True
        return self._is_old(summary, now, self._settings.result_ttl_seconds)

    def _is_old(self, summary: JobSummary, now: datetime, seconds: float) -> bool:
        """Return whether the last change is at least that long ago. A time that is unreadable or far ahead is set to
        now."""
        age = age_s(summary.updated_at, now)
        if age is None or age <= -AHEAD_S:
            self._store.touch(summary)
        return age is not None and age >= seconds

    # --- rows of jobs2 ----------------------------------------------------------------------------------------------

    def _follow_rows(self, table: "JobTable") -> None:
        """Update the next rows that have not ended from the state of their jobs."""
        before = _before(self._clock.now(), self._settings.resend_after_seconds)
        for _ in range(MAX_ROWS // _PAGE):
            rows = table.open_rows(before, self._behind, _PAGE)
            statuses = self._store.statuses([row.job_id for row in rows])
            for row, status in zip(rows, statuses, strict=True):
                self._follow(table, row, status)
            self._behind = rows[-1].job_id if len(rows) == _PAGE else ""
            if not self._behind:
                return

    def _follow(self, table: "JobTable", row: TableRow, status: str | None) -> None:
        if status is None:
            if row.old:
                self._bring_in(table, row)
            return
        if status == row.status or status not in (JobStatus.READY, JobStatus.FAILED):
            return
        job = self._store.get(row.job_id)
        if job and job.status == JobStatus.READY:
            table.ready(job.job_id, job.output_r2_key, job.executed_by)
        elif job and job.status == JobStatus.FAILED:
            table.failed(job.job_id, job.error)

    def _bring_in(self, table: "JobTable", row: TableRow) -> None:
        """Create a job that is not in Redis. It was never there, or Redis has lost it: clean-up ends the row before it
        removes the job."""
        if row.status == JobStatus.READY:
            table.failed(row.job_id, LOST)
            return
        if table.bring_in(row.job_id, self._store.bring_in):
            _log.info("brought in from jobs2", extra={"job_id": row.job_id})
            job = self._store.get(row.job_id)
            if job is not None and not self._outages.has(BrokerAway):
                self._publish(job)

    # --- files without a job ----------------------------------------------------------------------------------------

    def _remove_orphans(self) -> None:
        """Remove files whose job is not in Redis. Listing a bucket costs money: one process does it, now and then."""
        old = self._settings.orphan_after_seconds
        if not self._store.take_lock(_ORPHANS, max(_MIN_LISTING_S, old / 4)):
            return
        with self._outages.noted(StorageError):
            now = (self._bucket.now() or self._clock.now().astimezone(UTC)).timestamp()
            entries = [it for it in self._bucket.list(FOLDER) if now - it.modified >= old]
            begun, removed = self._clock.now(), 0
            for orphans in self._turns_of_files.ordered(self._without_job(entries), lambda it: _folder(it[0])):
                with self._outages.noted(), self._turns_of_files.processing(_folder(orphans[0])):
                    for it in orphans:
                        self._bucket.delete(it.key)
                    remove_folder(self._bucket, folder_of(_folder(orphans[0])))
                    removed += len(orphans)
                if self._outages.has(StorageError) and (self._clock.now() - begun).total_seconds() > _MAX_PASS_S:
                    break
                if removed >= MAX_CLEANED:
                    self._store.release_lock(_ORPHANS)  # the next pass continues
                    break
            if removed:
                _log.warning("removed %d files below %s whose job Redis does not have", removed, FOLDER)

    def _without_job(self, entries: Sequence[Entry]) -> Iterator[list[Entry]]:
        """Yield the files of each job that does not exist."""
        jobs = groupby(entries, _folder)
        files = ((name, list(group)) for name, group in jobs)
        while page := list(islice(files, _PAGE)):
            known = self._store.statuses([name if is_job_id(name) else "" for name, _ in page])
            yield from (group for (_, group), status in zip(page, known, strict=True) if status is None)


class _Outages:
    """The unreachable services, each logged once when it goes and once when it is back."""

    def __init__(self) -> None:
        self._logged: set[type[RetakeError]] = set()
        self._away: set[type[RetakeError]] = set()

    def begin(self) -> None:
        """Begin a pass."""
        self._away.clear()

    def has(self, kind: type[RetakeError]) -> bool:
        """Return whether this service was unreachable in this pass."""
        return kind in self._away

    @contextmanager
    def noted(self, *needed: type[RetakeError]) -> Iterator[None]:
        """Record an error of an unreachable service. If nothing is raised, the `needed` services have answered."""
        try:
            yield
        except RetakeError as error:
            kind = service_of(error)
            if kind is None:
                raise
            self._away.add(kind)
            if kind not in self._logged:
                self._logged.add(kind)
                _log.warning("%s; the sweeper does what it can without %s", error, SERVICES[kind])
        else:
            for kind in self._logged & set(needed) - self._away:
                self._logged.discard(kind)
                _log.info("%s answers again", SERVICES[kind])


def _folder(entry: Entry) -> str:
    """Return the name of a file's folder, which is the id of its job."""
    return entry.key.removeprefix(FOLDER).partition("/")[0]


def _before(now: datetime, seconds: float) -> str:
    """Return the time `seconds` ago, as stored in hashes."""
    return iso(now - timedelta(seconds=seconds))
