"""`python -m retake runs`: the runs on record, the last changed first."""

from collections.abc import Sequence

import click

from retake.console.answer import Answer, Block, Cell, Heading, Line, Table, Tone
from retake.console.desk import Desk, console_command
from retake.console.lookup import SHOWN, ledgers
from retake.console.overview import run_document
from retake.console.words import ago, code_of, moment
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
def command(desk: Desk, statuses: tuple[str, ...], limit: int, pipeline: str | None) -> Answer:
    """The runs on record, the last changed first. Each is found again by its id, its beginning, or its generation."""
    wanted = [RunStatus(status) for status in statuses]
    named = pipeline or (desk.pipeline.name if desk.channel else None)
    found = [
        run for _, ledger in ledgers(desk) for run in ledger.runs(status=wanted, pipeline=named, limit=limit)
    ]  # fmt: skip
    runs = sorted(found, key=lambda run: (run.updated_at, run.run_id), reverse=True)[:limit]
    return Answer({"runs": [run_document(run) for run in runs]}, _blocks(runs, desk))


def _blocks(runs: Sequence[Run], desk: Desk) -> list[Block]:
    if not runs:
        return [Line("There is no such run on record.")]
    now = desk.clock.now()
    names = {run.pipeline for run in runs}
    several = len(names) > 1
    rows = [
        (
            run.run_id[:SHOWN],
            run.task_id,
            *((run.pipeline,) if several else ()),
            str(run.attempt),
            Cell(run.status, TONES.get(run.status, Tone.PLAIN)),
            moment(run.updated_at, now),
            f"again {ago(run.next_retry_at, now)}" if run.next_retry_at else code_of(run.error_code),
        )
        for run in runs
    ]
    columns = ("run", "task", *(("pipeline",) if several else ()), "attempt", "status", "changed", "error")
    title = "Runs" if several else f"Runs of {names.pop() or 'no pipeline'}"
    return [Heading(title), Table(columns, rows, ("attempt",))]
