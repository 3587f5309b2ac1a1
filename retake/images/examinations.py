"""What `retake check` examines of the image-job service: jobs in Redis, their files in the bucket, their rows in jobs2.

Sets, hashes and files are compared with one another. What a sweeper corrects in its next pass is at most a note; it
becomes a warning once it has been wrong for so long that no sweeper seems to be running.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple
from uuid import UUID

from retake.bucket import Bucket, open_configured
from retake.bucket.contract import is_key
from retake.checking import Check, CheckFinding, CheckReport, CheckView, Examination, Scope, Severity, found
from retake.checking.codes import NOTHING_HERE
from retake.checking.engine import Progress
from retake.checking.examination import LockFree
from retake.clock import Clock
from retake.foreign_text import plain
from retake.images import scripts
from retake.images.jobs import ImageJob, JobStatus, age_s, is_job_id, iso, job_of
from retake.images.objects import FOLDER
from retake.images.redis_calls import open_redis
from retake.images.redis_clock import RedisClock
from retake.images.rows import TableRow
from retake.images.settings import ImageJobSettings, is_user, load_images_settings
from retake.images.store import JobStore
from retake.images.table import JobTable
from retake.logs import mask
from retake.plural import count
from retake.serving.environment import load_environment

_PAGE = 500
_PATIENCE = 10
"""Multiple of a sweeper's waiting time after which it is certain that no sweeper is running."""


class CheckedServices(NamedTuple):
    """What a check examines."""

    settings: ImageJobSettings
    store: JobStore
    bucket: Bucket
    table: JobTable | None


def check_images(
    services: CheckedServices,
    clock: Clock,
    *,
    repair: bool = False,
    progress: Progress = lambda title, number: None,
) -> CheckReport:
    """Check Redis, the bucket and the table of an image-job service. Raises RedisAway, StorageError."""
    settings, store, bucket, table = services
    store.ask(store.client.ping)
    examinations: list[Examination] = [JobHashes(store, settings, clock, table), JobFolders(store, settings, clock)]
    if table is not None:
        examinations.append(JobRows(table, store, settings, clock))
    report = Check(examinations, Scope(bucket, clock), progress).run(repair=repair)
    # An empty bucket is fine: jobs need not have files yet, and a missing file is a finding of its own.
    return report._replace(findings=[it for it in report.findings if it.code != NOTHING_HERE])


def serves_images(environ: Mapping[str, str]) -> bool:
    """Return whether `environ` or .env names an image-job service."""
    return bool({**load_environment(), **environ}.get("REDIS_URL"))


def check_images_of_operator(
    environ: Mapping[str, str], clock: Clock, *, repair: bool = False, progress: Progress = lambda title, number: None
) -> CheckReport:
    """Check the image-job service that `environ` and .env name. Raises SettingsError, RedisAway, StorageError."""
    settings = load_images_settings({**load_environment(), **environ}, ("REDIS_URL", "IMAGES_STORAGE_URL"))
    mask([*settings.places.passwords(), *(key for _, key in settings.keys)])
    redis = open_redis(settings.places.redis)
    store = JobStore(redis, RedisClock(redis, clock))
    table = JobTable(settings.places.database, store.clock) if settings.places.database else None
    try:
        bucket = open_configured(settings.storage, settings.workflow)
        services = CheckedServices(settings.images, store, bucket, table)
        return check_images(services, store.clock, repair=repair, progress=progress)
    finally:
        store.client.close()
        if table is not None:
            table.close()


class JobHashes(LockFree):
    """Each job in Redis: it is in the set of its status and in no other, and its files exist."""

    title = "jobs in Redis"

    def __init__(self, store: JobStore, settings: ImageJobSettings, clock: Clock, table: JobTable | None) -> None:
        self._store, self._settings, self._clock, self._table = store, settings, clock, table

    def subjects(self, view: CheckView) -> Iterator[str]:
        """Yield the ids of all jobs, and the members of the sets that are not ids."""
        cursor = 0
        while True:
            cursor, keys = self._store.ask(partial(self._store.client.scan, cursor, count=_PAGE))
            yield from filter(is_job_id, keys)
            if not cursor:
                break
        for name in scripts.SETS:
            yield from (it.job_id for it in self._store.members(name) if not it.status)

    def examine(self, view: CheckView, subject: str) -> Iterator[CheckFinding]:
        kind, fields, sets, now = self._looked(subject)
        if kind == "none" or not is_job_id(subject):
            for name in sets:
                yield found("set-member-without-job", f"{name} {subject}", f"{name} has it, and Redis has no such job")
            return
        view.looked_at["jobs"] += 1
        job = job_of(subject, fields)
        wanted = _set_of(job, sets)
        if kind != "hash" or wanted is None:
            what = f"it is a {kind}, not a hash" if kind != "hash" else f"its status is {job.status[:50]!r}"
            yield found("job-invalid", subject, what)
            return
        if wanted not in sets:
            yield found("job-in-no-set", subject, f"it is {job.status}, and {wanted} does not have it")
        for name in sets:
            if name != wanted:
                yield found("job-in-wrong-set", f"{name} {subject}", f"it is {job.status}, and in {name}")
        yield from self._files(view, job)
        yield from self._claim(subject, fields, now)
        if job.in_table and self._table is not None and self._table.get(subject) is None:
            yield found("job-row-missing", subject, "it was made through jobs2, and has no row there")

    def repair(self, view: CheckView, subject: str) -> Sequence[str]:
        self._store.settle(subject)
        return [f"{subject} was put where its status belongs"]

    def _looked(self, subject: str) -> tuple[str, dict[str, str], list[str], float]:
        """Return the type of the key, its fields if it is a hash, the sets that contain it, and Redis's time, all at
        one moment."""
        with self._store.client.pipeline(transaction=True) as pipe:
            pipe.type(subject)
            pipe.hgetall(subject)  # if it is not a hash, an error that leaves the other results intact
            for name in scripts.SETS:
                pipe.sismember(name, subject)
            pipe.time()
            kind, fields, *member, time = self._store.ask(lambda: pipe.execute(raise_on_error=False))
        sets = [name for name, it in zip(scripts.SETS, member, strict=True) if it is True or it == 1]
        return str(kind), fields if kind == "hash" else {}, sets, float(time[0])

    def _files(self, view: CheckView, job: ImageJob) -> Iterator[CheckFinding]:
        if job.status == JobStatus.READY:
            keys = [] if self._may_be_cleaned(job) else [job.output_r2_key]
        else:
            keys = [job.person_image_r2_key, job.garment_image_r2_key] if job.under_way else []
        for key in filter(None, keys):
            known = is_key(key)
            if not known or not view.find(key, [""]):
                gone = f"the job {job.job_id} is {job.status}, and its file is gone"
                yield found("job-file-missing", key if known else plain(key), gone)

    def _may_be_cleaned(self, job: ImageJob) -> bool:
        """Return whether clean-up may already have removed the files, which go before the hash.

        A job whose user has begun to delete it is marked as delivered (`CleanUp`).
        """
        return bool(job.delivered_at) or _older(job.updated_at, self._clock, self._settings.result_ttl_seconds)

    def _claim(self, subject: str, fields: Mapping[str, str], now: float) -> Iterator[CheckFinding]:
        until = fields.get("claim_until", "")
        if "claim" in fields and until.isdecimal() and len(until) < 15:
            ended = int(until) / 1000
            if now - ended > _PATIENCE * self._settings.resend_after_seconds:
                at = iso(datetime.fromtimestamp(ended, UTC))
                yield found("job-claim-ran-out", subject, f"its worker's claim ran out at {at}")


class JobFolders(LockFree):
    """The files of jobs in the bucket: each belongs to a job in Redis."""

    title = "files of jobs"

    def __init__(self, store: JobStore, settings: ImageJobSettings, clock: Clock) -> None:
        self._store, self._settings, self._clock = store, settings, clock

    def subjects(self, view: CheckView) -> Iterator[str]:
        last = ""
        for entry in view.entries(FOLDER):
            name = entry.key.removeprefix(FOLDER).partition("/")[0]
            if name != last:
                last = name
                yield name

    def examine(self, view: CheckView, subject: str) -> Iterator[CheckFinding]:
        files = [*view.entries(f"{FOLDER}{subject}/")]
        view.looked_at["files"] += len(files)
        if not files or (is_job_id(subject) and self._store.statuses([subject]) != [None]):
            return
        now = (view.bucket.now() or self._clock.now()).timestamp()
        age = now - max(it.modified for it in files)
        if age > self._settings.orphan_after_seconds:
            level = Severity.WARNING if age > _PATIENCE * self._settings.orphan_after_seconds else Severity.NOTE
            what = f"{count(len(files), 'file')} of a job that Redis does not have"
            yield found("job-files-without-job", f"{FOLDER}{subject}/", what, level=level)

    def knows(self, key: str) -> bool:
        """Return whether it is a file of a job or an upload of a user."""
        folder, _, name = key.partition("/")
        return bool(name) and (key.startswith(FOLDER) or is_user(folder))


class JobRows(LockFree):
    """The rows of jobs2 that have not ended: their jobs are in Redis."""

    title = "rows of jobs2"

    def __init__(self, table: JobTable, store: JobStore, settings: ImageJobSettings, clock: Clock) -> None:
        self._table, self._store, self._settings, self._clock = table, store, settings, clock

    def subjects(self, view: CheckView) -> Iterator[str]:
        after = ""
        while rows := self._table.open_rows(self._before(), after, _PAGE):
            yield from (row.job_id for row in rows)
            after = rows[-1].job_id

    def examine(self, view: CheckView, subject: str) -> Iterator[CheckFinding]:
        view.looked_at["rows"] += 1
        row = self._table.get(subject)
        if row is None or row.status not in ("pending", "ready"):
            return
        (status,) = self._store.statuses([subject])
        if not self._is_behind(row, status) or not self._has_been(subject):
            return
        stands = "Redis does not have the job" if status is None else f"the job is {status}"
        yield found("job-row-left-behind", f"jobs2 {subject}", f"its row is {row.status}, and {stands}")

    def _is_behind(self, row: TableRow, status: str | None) -> bool:
        return status is None or (status in (JobStatus.READY, JobStatus.FAILED) and status != row.status)

    def _has_been(self, job_id: str) -> bool:
        """Return whether a sweeper had time to correct it: neither row nor job has changed for long."""
        pages = self._table.open_rows(self._before(), _just_before(job_id), 1)
        job = self._store.get(job_id)
        long = _PATIENCE * self._settings.resend_after_seconds
        return bool(pages and pages[0].job_id == job_id and pages[0].old) and (
            job is None or _older(job.updated_at, self._clock, long)
        )

    def _before(self) -> str:
        return iso(self._clock.now() - timedelta(seconds=_PATIENCE * self._settings.resend_after_seconds))


def _set_of(job: ImageJob, sets: Sequence[str]) -> str | None:
    """Return the set that the job belongs in (see scripts.SETTLE); None for a status without a set."""
    if job.under_way:
        return scripts.PENDING
    if job.status == JobStatus.READY and job.output_r2_key:
        return scripts.CACHED if scripts.CACHED in sets else scripts.READY
    return scripts.FAILED if job.ended else None


def _older(stamp: str, clock: Clock, seconds: float) -> bool:
    age = age_s(stamp, clock.now())
    return age is not None and age >= seconds


def _just_before(job_id: str) -> str:
    """Return the id that precedes this one in the order of ids."""
    return str(UUID(int=max(0, UUID(job_id).int - 1)))
