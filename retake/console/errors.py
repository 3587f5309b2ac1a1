"""`retake errors`: the last errors of all pipelines."""

from datetime import datetime

import click

from retake.console.answer import Answer, Cell, Sentence, Table, Tone
from retake.console.command_context import CommandContext
from retake.console.invocation import console_command
from retake.errors import ErrorClass, ErrorRecord
from retake.exit_codes import ExitCode
from retake.logs import masked
from retake.operations.last_errors import MetError, last_errors
from retake.operations.timeline import step_of
from retake.operations.words import code_of, moment, one_line


@console_command("errors")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    metavar="N",
    default=100,
    show_default=True,
    help="Show at most this many.",
)
def command(context: CommandContext, limit: int) -> Answer:
    """List the last errors, the newest first: those on the ledgers, and those only in a document or a dead letter. With
    --json each is the whole error record, with the pipeline and the generation."""
    last = last_errors(context.operations, limit)
    found = [it._replace(record=ErrorRecord(masked(it.record.raw, context.environ))) for it in last.errors]
    document = {"errors": [it.document() for it in found], "unreadable": last.unreadable}
    exit_code = ExitCode.BAD_STATE if last.unreadable else ExitCode.OK
    if not found:
        return Answer(document, [Sentence("No error is on record.")], exit_code)
    now, many = context.clock.now(), len({it.pipeline for it in found}) > 1
    rows = [(*_where(it, now), *((it.pipeline,) if many else ()), *_what(it)) for it in found]
    columns = ("when", "about", *(("pipeline",) if many else ()), "step", "error", "message")
    return Answer(document, [Table(columns, rows, brief=("message",))], exit_code)


def _where(it: MetError, now: datetime) -> tuple[str, str]:
    return moment(it.record.at, now) if it.record.at else "", it.item_id or ""


def _what(it: MetError) -> tuple[str, Cell, str]:
    tone = Tone.WARN if it.record.error_class is ErrorClass.TEMPORARY else Tone.BAD
    return step_of(it.record.raw) or "", Cell(code_of(it.record.code), tone), one_line(it.record.message, 100_000)
