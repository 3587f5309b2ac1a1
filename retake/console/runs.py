"""`python -m retake runs`: the runs on record, the last changed first."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import click

from retake.console.answer import Answer, Block, Cell, Heading, Line, Table, Tone
from retake.console.command_context import CommandContext, console_command
from retake.console.since import moment_of, read_since
from retake.errors import RetakeError
from retake.operations.attempts import Attempt, present
from retake.operations.lookup import SHOWN, ledgers
from retake.operations.status import run_document
from retake.operations.words import ago, code_of, moment
from retake.runs import Ledger
from retake.runs.run import Run
from retake.runs.states import RunStatus

TONES = {
    RunStatus.SUCCEEDED: Tone.GOOD,
    RunStatus.FAILED: Tone.BAD,
    RunStatus.RETRY_SCHEDULED: Tone.WARN,
    RunStatus.INTERRUPTED: Tone.WARN,
    RunStatus.CANCELLED: Tone.FAINT,
}
"""How each state is shown."""


@console_command("runs")
@click.option(
    "--status", "statuses", multiple=True, type=click.Choice([*map(str, RunStatus)]),
    help="Only runs in this state; may be given several times.",
)  # fmt: skip
@click.option(
    "--limit", type=click.IntRange(1, 10_000), metavar="N", default=20, show_default=True, help="How many at most."
)
@click.option("--pipeline", metavar="NAME", help="Only runs of this pipeline, like story or story/CHANNEL.")
@click.option(
    "--since",
    callback=read_since,
    metavar="WHEN",
    help="Only runs that changed since: 30m, 2h or 2d ago, or a date.",
)
@click.option("--error", "code", metavar="CODE", help="Only runs with this last error, like RATE_LIMIT.")
def command(
    desk: CommandContext,
    statuses: tuple[str, ...],
    limit: int,
    pipeline: str | None,
    since: timedelta | datetime | None = None,
    code: str | None = None,
) -> Answer:
    """The runs on record, the last changed first. Each is found again by its id, its beginning, or its generation."""
    named = pipeline or (desk.pipeline.name if desk.channel else None)
    after = moment_of(since, desk.clock.now()) if since is not None else None
    asked = _Asked([RunStatus(status) for status in statuses], named, after, code)
    found = [run for _, ledger in ledgers(desk) for run in _matching(ledger, asked, limit)]
    runs = sorted(found, key=lambda run: (run.updated_at, run.run_id), reverse=True)[:limit]
    at = _attempts(desk, runs)
    document = {"runs": [{**run_document(run), **_at_document(at.get(run.run_id))} for run in runs]}
    return Answer(document, _blocks(runs, at, desk) if runs else [Line(_nothing(asked))])


class _Asked(NamedTuple):
    """Which runs are asked for."""

    statuses: Sequence[RunStatus]
    pipeline: str | None
    since: datetime | None
    code: str | None

    def holds_for(self, run: Run) -> bool:
        recent = self.since is None or run.updated_at >= self.since
        return recent and (self.code is None or _is_code(self.code, run.error_code))


def _is_code(asked: str, code: str | None) -> bool:
    """Whether `asked` names the code: in full, without its prefix, or as the table shows it; in any case."""
    known = code or ""
    return asked.strip().upper() in {known.upper(), code_of(known).upper(), code_of(known).upper().partition(" ")[2]}


def _matching(ledger: Ledger, asked: _Asked, limit: int) -> list[Run]:
    """The last changed first. A ledger knows nothing of errors: where one is asked for, more and more of the last runs
    are read until enough are found."""
    reach = limit
    while True:
        read = ledger.runs(status=asked.statuses, pipeline=asked.pipeline, limit=reach)
        found = [run for run in read if asked.holds_for(run)]
        older = asked.since is not None and bool(read) and read[-1].updated_at < asked.since
        if len(found) >= limit or len(read) < reach or older or reach >= _FURTHEST:
            return found[:limit]
        reach = min(4 * reach, _FURTHEST)


_FURTHEST = 20_000
"""So many of the last runs are read at most."""


def _attempts(desk: CommandContext, runs: Sequence[Run]) -> dict[str, Attempt]:
    """At which attempt the generations under way are, by the ids of their runs, as far as their documents tell."""
    going = {run.pipeline: run for run in runs if not run.ended}
    found = {}
    for pipeline in desk.pipelines if going else ():
        run = going.get(pipeline.name)
        if run is None:
            continue
        try:
            documents = desk.store(pipeline).read()
        except RetakeError:
            continue  # `status` says what is wrong with it
        if documents.gen.generation_id == run.task_id.rpartition("/")[2]:
            found[run.run_id] = present(documents.midjourney, desk.settings.workflow)
    return found


def _at_document(at: Attempt | None) -> dict[str, Any]:
    return at.document() if at else {"step": None, "step_attempt": None, "max_attempts": None}


def _nothing(asked: _Asked) -> str:
    if any(asked):
        return "There is no such run on record."
    return (
        "No run is on record yet. A tick begins the first: python b2_storage_manager.py, or --until-done to see it "
        "through. `make run` plays one in a sandbox, which costs nothing."
    )


def _blocks(runs: Sequence[Run], at: Mapping[str, Attempt], desk: CommandContext) -> list[Block]:
    now = desk.clock.now()
    names = {run.pipeline for run in runs}
    several = len(names) > 1
    rows = [
        (
            run.run_id[:SHOWN],
            run.task_id,
            *((run.pipeline,) if several else ()),
            _state(run, at.get(run.run_id), now),
            moment(run.updated_at, now),
            code_of(run.error_code),
        )
        for run in runs
    ]
    columns = ("run", "task", *(("pipeline",) if several else ()), "status", "changed", "error")
    title = "Runs" if several else f"Runs of {names.pop() or 'no pipeline'}"
    return [Heading(title), Table(columns, rows)]


def _state(run: Run, at: Attempt | None, now: datetime) -> Cell:
    """Where a run stands: its state, when it is due again, and at which attempt its step is."""
    due = run.next_retry_at
    when = ([f"due {ago(due, now)}"] if due > now else ["due now"]) if due else []
    return Cell(", ".join([run.status, *when, *([at.short] if at else [])]), TONES.get(run.status, Tone.PLAIN))
