"""`retake runs`: the runs on record, the last changed first."""

from datetime import datetime, timedelta

import click

from retake.console.answer import RUN_TONES, Answer, Block, Cell, Heading, Sentence, Table, Tone
from retake.console.command_context import CommandContext
from retake.console.invocation import console_command
from retake.console.since import moment_of, read_since
from retake.data import checkout
from retake.exit_codes import ExitCode
from retake.operations.attempts import StepAttempt
from retake.operations.lookup import SHORT_ID_LENGTH
from retake.operations.runs import RunFilter, RunList, list_runs
from retake.operations.words import ago, code_of, moment
from retake.option_values import not_empty
from retake.runs.run import Run
from retake.runs.states import RunStatus


@console_command("runs")
@click.option(
    "--status", "statuses", multiple=True, type=click.Choice([*map(str, RunStatus)]), metavar="STATE",
    help=f"Only runs in this state ({', '.join(RunStatus)}); may be given several times.",
)  # fmt: skip
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    metavar="N",
    default=20,
    show_default=True,
    help="Show at most this many.",
)
@click.option(
    "--pipeline", metavar="NAME", callback=not_empty, help="Only runs of this pipeline, like story or story/CHANNEL."
)
@click.option(
    "--since",
    callback=read_since,
    metavar="WHEN",
    help="Only runs that changed since: 30m, 2h or 2d ago, or a date.",
)
@click.option(
    "--error", "code", metavar="CODE", callback=not_empty, help="Only runs with this last error, like RATE_LIMIT."
)
def command(
    context: CommandContext,
    statuses: tuple[str, ...],
    limit: int,
    pipeline: str | None,
    since: timedelta | datetime | None = None,
    code: str | None = None,
) -> Answer:
    """List the runs on record, the last changed first. Each has an id, whose beginning is enough."""
    named = pipeline or (context.pipeline.name if context.channel else None)
    after = moment_of(since, context.clock.now()) if since is not None else None
    wanted = RunFilter([RunStatus(status) for status in statuses], named, after, code)
    found = list_runs(context.operations, wanted, limit)
    blocks = _blocks(found, context.clock.now()) if found.runs else [Sentence(_nothing(wanted, found))]
    return Answer(found.document(), blocks, ExitCode.BAD_STATE if found.unreadable else ExitCode.OK)


def _nothing(wanted: RunFilter, found: RunList) -> str:
    if any(wanted):
        return "There is no such run on record."
    if found.unreadable:
        return "No run on record can be read."
    if checkout():
        return (
            "No run is on record yet. A tick begins the first: python b2_storage_manager.py, or --until-done to see it "
            "through. `make run` plays one in a sandbox, which costs nothing."
        )
    return (
        "No run is on record yet. A tick begins the first: retake tick, or --until-done to see it through. "
        "`RETAKE_STORAGE_URL=file:demo retake tick --sandbox --until-done` plays one in a sandbox, which costs nothing."
    )


def _blocks(found: RunList, now: datetime) -> list[Block]:
    names = {run.pipeline for run in found.runs}
    several = len(names) > 1
    rows = [
        (
            run.run_id[:SHORT_ID_LENGTH],
            run.task_id,
            *((run.pipeline,) if several else ()),
            _state(run, found.steps.get(run.run_id), now),
            moment(run.updated_at, now),
            code_of(run.error_code),
        )
        for run in found.runs
    ]
    columns = ("run", "task", *(("pipeline",) if several else ()), "status", "changed", "error")
    title = "Runs" if several else f"Runs of {names.pop() or 'no pipeline'}"
    return [Heading(title), Table(columns, rows)]


def _state(run: Run, at: StepAttempt | None, now: datetime) -> Cell:
    """Return a run's state, when it is due again, and the current attempt of its step."""
    due = run.next_retry_at
    when = ([f"due {ago(due, now)}"] if due > now else ["due now"]) if due else []
    return Cell(", ".join([run.status, *when, *([at.short] if at else [])]), RUN_TONES.get(run.status, Tone.PLAIN))
