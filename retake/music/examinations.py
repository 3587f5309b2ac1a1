"""What `retake check` examines of the music pipelines: their rows, the files named there, and the rows that belong to
them.

What upkeep repairs within moments (a row without its run) is reported only if it is older than that.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any

from sqlalchemy import Table, bindparam, func, select

from retake.checking import CheckFinding, CheckView, Examination, found
from retake.checking.examination import LockFree
from retake.clock import Clock, stamp
from retake.foreign_text import shown
from retake.music import states
from retake.music.calls import CALL
from retake.music.context import FOLDER
from retake.music.database import MusicDatabase, open_music_database
from retake.music.rows import Job, PaidCall, PipelineRow
from retake.music.settings import MusicSettings
from retake.music.store import JOB, PIPELINE
from retake.music.tables import MAX_ID, messages, paid_calls, pipeline_jobs, pipelines
from retake.plural import count
from retake.strict_json import parse

_PAGE = 500
_PATIENCE = timedelta(hours=1)
"""After this time the service would have repaired it, or sent it."""

_MADE = ("cover_url", "video_url", "thumbnail_url")
_DOCUMENTS = ("metadata_json", "review_json")

_IDS = select(pipelines.c.id).where(pipelines.c.id > bindparam("after")).order_by(pipelines.c.id).limit(_PAGE)
_ROW = select(*PIPELINE).where(pipelines.c.id == bindparam("of"))
_JOBS = select(*JOB).where(pipeline_jobs.c.pipeline_id == bindparam("of")).order_by(pipeline_jobs.c.id)
_CALLS = select(*CALL).where(paid_calls.c.pipeline_id == bindparam("of")).order_by(paid_calls.c.id)


def examinations(settings: MusicSettings, clock: Clock) -> list[Examination]:
    """Return the examinations of the music pipelines."""
    return [MusicRows(settings, clock), MusicOrphans(settings, clock), MusicFolders(settings, clock)]


class _MusicExamination(LockFree):
    """The common base: access to the database."""

    def __init__(self, settings: MusicSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock

    @cached_property
    def database(self) -> MusicDatabase:
        """The database, read-only; empty if there is none."""
        return open_music_database(self._settings.music.database, self._clock, read_only=True)


class MusicRows(_MusicExamination):
    """Each pipeline: its state, files, documents, attempts, paid calls and run."""

    title, outside = "music pipelines", "music_pipelines"

    def subjects(self, view: CheckView) -> Iterator[str]:
        last = -1
        while True:
            with self.database.reading() as cursor:
                page = [int(row[0]) for row in cursor.rows(_IDS, {"after": last}, name="check-ids")]
            yield from (str(it) for it in page)
            if len(page) < _PAGE:
                return
            last = page[-1]

    def examine(self, view: CheckView, subject: str) -> Iterator[CheckFinding]:
        of = {"of": int(subject)}
        with self.database.reading() as cursor:
            row = cursor.row(_ROW, of, name="check-row")
            jobs = [Job(*it) for it in cursor.rows(_JOBS, of, name="check-jobs")]
            calls = [PaidCall(*it) for it in cursor.rows(_CALLS, of, name="check-calls")]
        if row is None:
            return
        pipeline = PipelineRow(*row)
        view.looked_at.update(music_pipelines=1, attempts=len(jobs), paid_calls=len(calls))
        yield from _columns(pipeline)
        yield from self._files(view, pipeline)
        yield from _attempts(pipeline, jobs)
        yield from _bills(pipeline, calls)
        yield from self._run(pipeline)

    def _files(self, view: CheckView, row: PipelineRow) -> Iterator[CheckFinding]:
        for column in _MADE:
            name = str(getattr(row, column) or "").rpartition("/")[2]
            key = f"{FOLDER}{row.id}/{name}"
            if name and not any(it.size for it in view.find(key, [""])):
                yield found("music-file-missing", key, f"{row.task_id} names it in {column}, and it is gone or empty")

    def _run(self, row: PipelineRow) -> Iterator[CheckFinding]:
        if row.state not in map(states.running, states.STEPS) or self._clock.now() - row.updated_at < _PATIENCE:
            return
        run = self.database.ledger.find(row.run_key)
        if run is None or run.ended:
            stands = "it has no run" if run is None else f"its run {run.run_id} has the status {run.status}"
            yield found(
                "music-run-missing", row.task_id, f"it is {row.state} since {stamp(row.updated_at)}, and {stands}"
            )


class MusicOrphans(_MusicExamination):
    """Rows whose pipeline does not exist, and messages that were never sent."""

    title = "rows beside the music pipelines"

    def subjects(self, view: CheckView) -> Iterator[str]:
        yield from (it.name for it in (pipeline_jobs, paid_calls, messages))
        yield "unsent"

    def examine(self, view: CheckView, subject: str) -> Iterator[CheckFinding]:
        if subject == "unsent":
            yield from self._unsent()
            return
        of = next(it for it in (pipeline_jobs, paid_calls, messages) if it.name == subject)
        with self.database.reading() as cursor:
            number, first = cursor.row(_orphans(of), name=f"check-{subject}") or (0, None)
        if number:
            what = f"{count(number, 'row')} of pipelines that are not there, the first of {first}"
            yield found("music-rows-without-pipeline", subject, what)

    def _unsent(self) -> Iterator[CheckFinding]:
        late = (messages.c.created_at < self._clock.now() - _PATIENCE) & messages.c.sent_at.is_(None)
        query = select(func.count(), func.min(messages.c.created_at)).where(late & messages.c.error.is_(None))
        if self._settings.music.telegram == "off":
            return
        with self.database.reading() as cursor:
            row = cursor.row(query)
        if row and row[0]:
            yield found("music-message-not-sent", messages.name, f"{count(row[0], 'message')} not sent")


class MusicFolders(_MusicExamination):
    """The folders of files: each belongs to a pipeline."""

    title = "files of music"

    def subjects(self, view: CheckView) -> Iterator[str]:
        names = (entry.key.removeprefix(FOLDER).partition("/")[0] for entry in view.entries(FOLDER))
        yield from (name for name, _ in groupby(names) if _is_id(name))

    def examine(self, view: CheckView, subject: str) -> Iterator[CheckFinding]:
        with self.database.reading() as cursor:
            row = cursor.row(_ROW, {"of": int(subject)}, name="check-row")
        files = sum(1 for _ in view.entries(f"{FOLDER}{subject}/"))
        view.looked_at["music_files"] += files
        if row is None and files:
            yield found("music-files-without-pipeline", f"{FOLDER}{subject}/", f"{files} files, and no music-{subject}")

    def knows(self, key: str) -> bool:
        """Return whether it is a file of a pipeline, or the database itself if that is in the bucket."""
        folder, _, name = key.removeprefix(FOLDER).partition("/")
        return key.startswith(FOLDER) and _is_id(folder) and bool(name)


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) <= MAX_ID


def _orphans(table: Table) -> Any:
    """Return the query for the number of rows without a pipeline, and the lowest pipeline id that they name."""
    joined = table.outerjoin(pipelines, table.c.pipeline_id == pipelines.c.id)
    return select(func.count(), func.min(table.c.pipeline_id)).select_from(joined).where(pipelines.c.id.is_(None))


def _columns(row: PipelineRow) -> Iterator[CheckFinding]:
    if row.state not in states.STATES:
        yield found("music-pipeline-invalid", row.task_id, f"its state is {shown(row.state)}, which is unknown")
    for column in _DOCUMENTS:
        text = getattr(row, column)
        try:
            valid = text is None or isinstance(parse(text), dict)
        except ValueError:
            valid = False
        if not valid:
            yield found("music-pipeline-invalid", row.task_id, f"its {column} is not a JSON object")


def _attempts(row: PipelineRow, jobs: Sequence[Job]) -> Iterator[CheckFinding]:
    for run, group in groupby(jobs, key=lambda job: (job.run_number, job.step)):
        of_run = [*group]
        numbers = [job.attempt for job in of_run]
        failed = [0, *accumulate(job.status == "failed" for job in of_run)]  # an interrupted attempt is repeated
        if numbers != [1 + it for it in failed[:-1]]:
            what = f"the attempts of run {run[0]} at {shown(run[1])} are {', '.join(map(str, numbers[:20]))}"
            yield found("music-attempts-wrong", row.task_id, what)
    running = [job.id for job in jobs if job.status == "running"]
    if len(running) > 1:
        yield found("music-attempts-wrong", row.task_id, f"{len(running)} attempts are on record as running at once")


def _bills(row: PipelineRow, calls: Sequence[PaidCall]) -> Iterator[CheckFinding]:
    accepted: dict[tuple[str, str], int] = {}
    latest = {(call.step, call.take): call.id for call in calls}
    for call in calls:
        if call.outcome in ("pending", "held") and latest[call.step, call.take] != call.id:
            what = f"call {call.id} of {call.step} is {call.outcome}, and another was made after it"
            yield found("music-call-not-settled", row.task_id, what)
        if call.outcome == "accepted" and call.step == states.MusicStep.COVER and call.answer:
            first = accepted.setdefault((call.step, call.answer), call.id)
            if first != call.id:
                what = f"the calls {first} and {call.id} of {call.step} have the same task"
                yield found("music-call-billed-twice", row.task_id, what)
