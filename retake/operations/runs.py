"""The runs on record that match a filter, and the current attempts of those under way."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from retake.errors import RetakeError
from retake.operations import attempts
from retake.operations.attempts import StepAttempt
from retake.operations.pipelines import Operations, of_readable
from retake.operations.status import run_document
from retake.operations.words import code_of
from retake.runs import Ledger
from retake.runs.run import Run
from retake.runs.states import RunStatus

_MAX_READ = 20_000
"""Maximum number of recent runs that are read to find one with a certain error."""


class RunFilter(NamedTuple):
    """A filter of runs."""

    statuses: Sequence[RunStatus] = ()
    pipeline: str | None = None
    since: datetime | None = None
    code: str | None = None  # of the last error: in full, without its prefix, or as tables show it; in any case

    def holds_for(self, run: Run) -> bool:
        recent = self.since is None or run.updated_at >= self.since
        return recent and (self.code is None or _is_code(self.code, run.error_code))


class RunList(NamedTuple):
    """Runs, the last changed first, and the current attempts of those under way, by run id.

    `unreadable` says what is wrong with runs and ledgers that are left out because they cannot be read.
    """

    runs: list[Run]
    steps: dict[str, StepAttempt]
    unreadable: list[str]

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "runs": [{**run_document(run), **attempts.as_document(self.steps.get(run.run_id))} for run in self.runs],
            "unreadable": self.unreadable,
        }


def list_runs(operations: Operations, wanted: RunFilter, limit: int) -> RunList:
    """Return up to `limit` runs that match. Raises SettingsError, StateError, StorageError if no ledger can be read."""

    def read(readable: Operations) -> tuple[list[Run], list[str]]:
        ledgers = [ledger for _, ledger in readable.ledgers()]
        found = [run for ledger in ledgers for run in _matching(ledger, wanted, limit)]
        return found, [it for ledger in ledgers for it in ledger.unreadable]

    (found, unreadable), wrong = of_readable(operations, read)
    runs = sorted(found, key=lambda run: (run.updated_at, run.run_id), reverse=True)[:limit]
    return RunList(runs, steps_of(operations, runs), [*wrong, *unreadable])


def _is_code(wanted: str, code: str | None) -> bool:
    known = (code or "").upper()
    shown = code_of(known)
    return wanted.strip().upper() in {known, shown, shown.partition(" ")[2]}


def _matching(ledger: Ledger, wanted: RunFilter, limit: int) -> list[Run]:
    """Return up to `limit` runs of a ledger that match, the last changed first. A ledger has no index of errors: if one
    is wanted, more and more runs are read until enough are found."""
    reach = limit
    while True:
        read = ledger.runs(status=wanted.statuses, pipeline=wanted.pipeline, limit=reach)
        found = [run for run in read if wanted.holds_for(run)]
        older = wanted.since is not None and bool(read) and read[-1].updated_at < wanted.since
        if len(found) >= limit or len(read) < reach or older or reach >= _MAX_READ:
            return found[:limit]
        reach = min(4 * reach, _MAX_READ)


def steps_of(operations: Operations, runs: Sequence[Run]) -> dict[str, StepAttempt]:
    """Return the current attempts of the runs under way, by run id, if their pipelines' documents have them."""
    going: dict[str, list[Run]] = {}
    for run in runs:
        if not run.ended:
            going.setdefault(run.pipeline, []).append(run)
    found: dict[str, StepAttempt] = {}
    for pipeline in operations.pipelines:
        if pipeline.name not in going:
            continue
        try:
            steps = {it.item_id: it.step for it in pipeline.present()}
        except RetakeError:
            continue  # `status` says what is wrong with it
        items = {run.run_id: run.task_id.rpartition("/")[2] for run in going[pipeline.name]}
        found |= {run_id: steps[item_id] for run_id, item_id in items.items() if item_id in steps}
    return found
