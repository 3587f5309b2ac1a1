"""The examinations of `retake check`: of each pipeline, of the ledgers, and of what all pipelines share."""

from collections.abc import Iterator, Sequence

from retake.bucket import this_process
from retake.bucket.scanning import is_there
from retake.checking import Check, CheckFinding, CheckReport, Examination, Scope
from retake.checking.bucket_runs import BucketRuns
from retake.checking.engine import Progress
from retake.checking.keyed_calls import KeyedCalls
from retake.checking.view import CheckView
from retake.errors import RetakeError, StateError, StorageError, redact
from retake.extras import require
from retake.operations.pipelines import Operations
from retake.operations.port import OperatedPipeline
from retake.runs.bucket_ledger import LEASE


def check_bucket(
    operations: Operations,
    *,
    media: bool = False,
    repair: bool = False,
    progress: Progress = lambda title, number: None,
) -> CheckReport:
    """Check the bucket of `operations`: all of it, or only the part of the pipeline that the operator named.

    Raises StorageError if the bucket does not exist or cannot be listed, SettingsError if the client of a ledger's
    database is not installed.
    """
    if not is_there(operations.bucket):
        raise StorageError(f"{operations.bucket.url} does not exist: create it, or correct STORAGE.url")
    for url in filter(None, map(operations.ledger_url, operations.pipelines)):
        if url.startswith("postgresql:"):
            require("postgres", f"the ledger at {redact(url)}")
    prefix = operations.pipelines[0].prefix if operations.named else ""
    called = {it.name: it for it in operations.pipelines}
    scope = Scope(
        operations.bucket,
        operations.clock,
        media=media,
        prefix=prefix,
        ledger=lambda name: operations.ledger(called[name]),
    )
    return Check(examinations(operations), scope, progress).run(repair=repair)


def examinations(operations: Operations) -> list[Examination]:
    """Return all examinations in the order in which they run."""
    found = [it for pipeline in operations.pipelines for it in pipeline.examinations()]
    found += ledger_examinations(operations)
    return found if operations.named else [*found, *shared_examinations(operations, found)]


def ledger_examinations(operations: Operations) -> list[Examination]:
    """Return the examinations of each ledger: the histories of its runs, its index and counts."""
    found: list[Examination] = [*_in_the_bucket(operations)]
    for pipeline in operations.writers():
        if url := operations.ledger_url(pipeline):
            from retake.checking.sql_runs import SqlRuns

            found.append(SqlRuns(url, setting=operations.ledger_setting(pipeline), mirrored=_mirrored(operations)))
    return found


def _in_the_bucket(operations: Operations) -> Iterator[Examination]:
    """Yield the examinations of the ledgers in the bucket: one in the part of each pipeline that ticks, and the one at
    the root that other programs use."""
    places = {it.prefix: it for it in operations.pipelines if it.lease_name}
    for prefix, pipeline in places.items():
        yield BucketRuns(
            f"runs of {pipeline.name}",
            prefix,
            leasable=pipeline.leasable,
            leases=(str(pipeline.lease_name), LEASE),
            mirrored=_mirrored(operations),
            owner=this_process(),
        )
    if "" not in places and not operations.named:
        yield BucketRuns("runs", "", leasable=lambda: operations.bucket, leases=(LEASE,), owner=this_process())


def _mirrored(operations: Operations) -> list[str]:
    """Return the names of the pipelines whose runs mirror documents of items."""
    return [it.name for it in operations.pipelines if it.lease_name]


def shared_examinations(operations: Operations, others: Sequence[Examination]) -> list[Examination]:
    """Return the examinations of what all pipelines share: day books, alerts, mode, breakers, figures, leases.

    `others` are the pipelines' own examinations, some of which know the paid calls in the books.
    """
    from retake.checking.bills import BillExamination
    from retake.checking.day_books import DayBookExamination
    from retake.checking.leftovers import LeftoverExamination
    from retake.checking.reliability import AlertExamination, BreakerExamination, KpiExamination, ModeExamination
    from retake.operations.guarded_examination import GuardedExamination
    from retake.operations.kpi import counted_ledgers

    made = [it.made if isinstance(it, GuardedExamination) else it for it in others]
    terms = operations.terms
    return [
        KeyedCalls(),
        DayBookExamination(operations.caps, [it for it in made if isinstance(it, BillExamination)]),
        AlertExamination(it.name for it in terms.alerts.channels),
        ModeExamination(),
        BreakerExamination(terms.breaker.open_seconds, terms.patience_s),
        KpiExamination(lambda: counted_ledgers(operations)),
        LeftoverExamination(it.prefix for it in operations.pipelines),
    ]


class OwnDocuments(Examination):
    """The part of a pipeline of your own. Knows every key there; only the pipeline can judge its documents. With an
    `error` they cannot be judged."""

    def __init__(self, pipeline: OperatedPipeline, error: RetakeError | None = None) -> None:
        self._pipeline, self._error = pipeline, error
        self.title = f"documents of {pipeline.name}"

    def subjects(self, view: CheckView) -> Iterator[str]:
        yield self._pipeline.prefix

    def examine(self, view: CheckView, subject: str) -> Iterator[CheckFinding]:
        if self._error:
            raise self._error
        state = self._pipeline.state(None, lambda vendor: "")
        if not state.readable:
            raise StateError("; ".join(state.needs) or state.words)
        yield from ()

    def knows(self, key: str) -> bool:
        return key.startswith(self._pipeline.prefix)
