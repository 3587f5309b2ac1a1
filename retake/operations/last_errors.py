"""The last errors of all pipelines: those on their ledgers, and those only in a document or a dead letter."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from retake.errors import ErrorRecord, RetakeError
from retake.operations.kpi import histories
from retake.operations.pipelines import Operations, of_readable
from retake.retrying.dead_letters import DeadLetters
from retake.runs.history import UNFINISHED, BucketHistory, RunHistory
from retake.runs.run import ERROR

_MAX_BUCKET_RUNS, _MAX_DATABASE_RUNS = 2_000, 50_000
"""The number of recent runs after which the search of a ledger with few errors ends; it stops after a whole day."""

_OLDEST = datetime.min.replace(tzinfo=UTC)


class MetError(NamedTuple):
    """A standard error record, and the pipeline and item that it is about."""

    record: ErrorRecord
    pipeline: str
    item_id: str | None  # None: the record does not say

    @property
    def at(self) -> datetime:
        return self.record.at or _OLDEST

    @property
    def identity(self) -> object:
        """What identifies the error, wherever it is recorded."""
        return self.record.id or (str(self.record.raw.get("timestamp")), self.record.code, self.pipeline)

    def document(self) -> dict[str, Any]:
        """Return the JSON document: the record, with `pipeline` and `generation_id`."""
        return {**self.record.raw, "pipeline": self.pipeline, "generation_id": self.item_id}


class LastErrors(NamedTuple):
    """Errors, the newest first. `unreadable` says what is wrong with runs and ledgers whose errors are left out."""

    errors: list[MetError]
    unreadable: list[str]


def last_errors(operations: Operations, limit: int) -> LastErrors:
    """Return the last errors. Unreadable documents are skipped.

    Raises SettingsError, StateError and StorageError if no ledger can be read.
    """
    (found, unreadable), wrong = of_readable(operations, lambda it: _of_ledgers(it, limit))
    for met in (*_of_documents(operations), *_of_letters(operations, limit)):
        found.setdefault(met.identity, met)
    return LastErrors(sorted(found.values(), key=lambda it: it.at, reverse=True)[:limit], [*wrong, *unreadable])


def _of_ledgers(operations: Operations, limit: int) -> tuple[dict[object, MetError], list[str]]:
    """Return the last errors on all ledgers by their identity, and what is wrong with runs that are left out."""
    names = {it.name for it in operations.pipelines} if operations.named else None
    found: dict[object, MetError] = {}
    unreadable: list[str] = []
    for _, history in histories(operations):
        for met in _recorded(history, names, limit, isinstance(history, BucketHistory)):
            found.setdefault(met.identity, met)
        unreadable += history.unreadable
    return found, unreadable


def _recorded(history: RunHistory, names: set[str] | None, limit: int, in_bucket: bool) -> list[MetError]:
    """Return the last errors of a ledger. This reads the runs that have not ended, whose errors may date from any day
    since their last transition, and then segments, the latest first, until no older one can contain one of the last
    `limit` errors."""
    found: list[MetError] = []
    read, most = set[str](), _MAX_BUCKET_RUNS if in_bucket else _MAX_DATABASE_RUNS
    days = sorted((it for it in history.segments() if it != UNFINISHED), reverse=True)
    for segment in (UNFINISHED, *days):
        enough = len(found) >= limit and segment[:10] < f"{found[limit - 1].at:%Y-%m-%d}"
        if segment != UNFINISHED and (enough or len(read) >= most):
            break
        marks = history.unfinished() if segment == UNFINISHED else history.marks(segment)
        for run in history.read(segment, [it for it in marks if it not in read]):
            if names is None or run.pipeline in names:
                found += (_met_error(it.payload, run.pipeline) for it in run.events if it.kind == ERROR)
        read.update(marks)
        found = sorted(found, key=lambda it: it.at, reverse=True)[:limit]
    return found


def _of_documents(operations: Operations) -> Iterator[MetError]:
    for pipeline in operations.pipelines:
        try:
            state = pipeline.state(None, lambda vendor: "")
        except RetakeError:
            continue  # `status` says what is wrong with it
        if state.error:
            yield _met_error(state.error.raw, pipeline.name)


def _of_letters(operations: Operations, limit: int) -> Iterator[MetError]:
    for pipeline in operations.pipelines:
        for letter in DeadLetters(pipeline.bucket, operations.clock, counted=True).list(limit):
            if letter.error:
                yield _met_error(letter.error, pipeline.name)


def _met_error(record: Mapping[str, Any], pipeline: str) -> MetError:
    """Return the error of a record, without `actor`, which belongs to the event."""
    raw = {name: value for name, value in record.items() if name != "actor"}
    item = raw.get("correlation_id")
    return MetError(ErrorRecord(raw), pipeline, item if isinstance(item, str) else None)
