"""What `retake check` examines of a story pipeline: its documents, groups, dead letters, bills and runs. Runs must
agree with the documents (`retake.story.run_mirror`)."""

from collections.abc import Iterator

from retake.checking import CheckFinding, CheckView, Examination, found
from retake.checking.bills import BillExamination, BillPlaces
from retake.clock import Clock
from retake.errors import StateError
from retake.runs.run import Run
from retake.runs.run_document import run_key
from retake.runs.states import OPEN
from retake.story.checked_part import CheckedPart
from retake.story.decision import decide
from retake.story.document_examination import StoryDocuments
from retake.story.documents import Documents, MidjourneyDocument
from retake.story.group_examination import StoryGroups
from retake.story.kept_examination import BillCounts, LetterCounts
from retake.story.letter_examination import StoryLetters
from retake.story.run_mirror import RunTarget, expected, route, task_of
from retake.story.settings import LEASE, Settings, pipeline_of
from retake.story.spending import known
from retake.story.store import DocumentStore

_MAX_OPEN_RUNS = 1000


def examinations(prefix: str, settings: Settings, clock: Clock) -> list[Examination]:
    """Return the examinations of the pipeline whose part of the bucket begins with `prefix`."""
    paths = settings.paths
    bills = BillPlaces(
        pipeline_of(prefix.rstrip("/") or None),
        prefix,
        LEASE,
        document=paths.config_midjourney,
        present=paths.config_gen,
        flag=paths.config_public,
        known=lambda raw: known(MidjourneyDocument(raw)),
    )
    return [
        StoryDocuments(prefix, settings, clock),
        StoryGroups(prefix, settings, clock),
        StoryLetters(prefix, settings, clock),
        LetterCounts(prefix, settings, clock),
        BillCounts(prefix, settings, clock),
        RunAgreement(prefix, settings, clock),
        BillExamination(bills),
    ]


class RunAgreement(CheckedPart):
    """Examines the run of the generation under way, and any other open run. The next tick repairs them."""

    things = "run under way"

    def subjects(self, view: CheckView) -> Iterator[str]:
        """Yield the document that names the generation under way."""
        yield self.prefix + self.paths.config_gen

    def examine(self, view: CheckView, subject: str) -> Iterator[CheckFinding]:
        part = view.below(self.prefix)
        store = DocumentStore(part.bucket, self.paths, None, self.clock)
        try:
            documents = store.read()
            name = documents.gen.generation_id
            task = task_of(self.pipeline, name) if name else None
            opened, last = self._runs(part, task)
        except StateError:
            return  # a finding about the document, the run or the database says so
        for run in opened:
            if run.task_id != task:
                what = f"{run.run_id} of {run.task_id} is {run.status}, and {task or 'no generation'} is under way"
                yield found("run-without-generation", self._where(part, run), what)
        if last:
            action = decide(documents, self.settings.workflow, self.clock.now())
            yield from self._behind(part, last, expected(documents, action), documents)

    def knows(self, key: str) -> bool:
        """Return False: the objects that are compared here are examined elsewhere."""
        return False

    def _runs(self, part: CheckView, task: str | None) -> tuple[list[Run], Run | None]:
        """Return the open runs of the pipeline, and the last run of the task."""
        ledger = part.scope.ledger(self.pipeline)
        opened = ledger.runs(status=OPEN, pipeline=self.pipeline, limit=_MAX_OPEN_RUNS)
        return opened, next(iter(ledger.of_task(task)[-1:]), None) if task else None

    def _behind(self, part: CheckView, run: Run, wanted: RunTarget, documents: Documents) -> Iterator[CheckFinding]:
        """Yield a finding if the run is more than one transition behind its documents. A tick that died leaves it one
        behind."""
        if wanted.met_by(run.status) or len(route(run.status, wanted.status)) == 1:
            return
        name = documents.gen.generation_id
        what = f"{run.run_id} is {run.status}, and by the documents of {name} it is to be {wanted.status}"
        yield found("run-behind", self._where(part, run), what)

    def _where(self, part: CheckView, run: Run) -> str:
        return run.run_id if self.settings.storage.ledger else part.where(run_key(run.run_id))
