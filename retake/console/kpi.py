"""`retake kpi`: the figures of pipelines and robots: success and retry rates, durations, errors, levels, targets."""

from pathlib import Path

import click

from retake.console.answer import Answer, Block, Cell, Heading, Sentence, Table, Tone
from retake.console.command_context import CommandContext
from retake.console.invocation import console_command
from retake.console.since import read_window
from retake.kpi.figures import (
    RETRY_TARGET,
    ROBOT_MEAN_TARGET_S,
    SUCCESS_TARGET,
    Figures,
    KpiLevel,
    PipelineFigures,
    StepFigures,
)
from retake.kpi.metrics import replace_file
from retake.operations.kpi import KpiReader
from retake.operations.words import span, window_length
from retake.option_values import not_empty
from retake.percent import percent
from retake.plural import count

NONE = "–"

_TONES = {KpiLevel.OK: Tone.GOOD, KpiLevel.WARNING: Tone.WARN, KpiLevel.ERROR: Tone.BAD, KpiLevel.CRITICAL: Tone.BAD}


def _png(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse a file name with the suffix of another format, which would be misleading. A click callback."""
    not_empty(ctx, param, value)
    if value and Path(value).suffix.lower() not in ("", ".png"):
        raise click.BadParameter("the picture is a PNG: name it FILE.png.", ctx, param)
    return value


@console_command("kpi")
@click.option(
    "--window",
    callback=read_window,
    metavar="LENGTH",
    help="How far to look back: 90m, 24h, 7d.  [default: KPI.window_seconds]",
)
@click.option(
    "--plot", metavar="FILE.png", callback=_png, help="Also draw the rates and runs of the window as a picture."
)
@click.option(
    "--prometheus", metavar="FILE", callback=not_empty, help="Also write the metrics in the text format of Prometheus."
)
@click.option("--rebuild", is_flag=True, help="Count every run again from the ledger, and replace the snapshots.")
def command(
    context: CommandContext,
    window: float | None = None,
    plot: str | None = None,
    prometheus: str | None = None,
    rebuild: bool = False,
) -> Answer:
    """Show how well each pipeline and each robot works, according to the ledger: success and retry rates by step, mean
    duration, errors by class, the level, and missed targets. docs/kpi.md explains each figure.
    """
    reader = KpiReader(context.operations)
    report = reader.report(window, rebuild=rebuild)
    blocks = _blocks(report.figures)
    if plot:
        from retake.kpi.plot import draw

        replace_file(plot, draw(report.figures, report.since, report.facts()), "the picture")
        blocks.append(Sentence(f"The picture is in {plot}.", Tone.FAINT))
    if prometheus:
        replace_file(prometheus, reader.metrics().encode(), "the metrics")
        blocks.append(Sentence(f"The metrics are in {prometheus}.", Tone.FAINT))
    return Answer(report.figures.document(), blocks)


def _blocks(figures: Figures) -> list[Block]:
    told = [it for it in figures.pipelines if not it.silent]
    length = window_length(figures.window_seconds)
    if not told:
        return [Sentence(f"No run ended and nothing was tried in the last {length}.")]
    blocks: list[Block] = [Heading(f"The last {length}: {figures.level}")]
    for it in told:
        blocks += _pipeline(it)
    silent = len(figures.pipelines) - len(told)
    if silent:
        blocks.append(Sentence(f"Nothing happened in {count(silent, 'other pipeline')}.", Tone.FAINT))
    return blocks


def _pipeline(it: PipelineFigures) -> list[Block]:
    stopped = ["It has stopped: too many failed in a row."] if it.stopped else []
    missed = [f"Target missed: {_TARGETS[name](it)}." for name in it.targets_missed]
    few = f" The rates count from {count(it.min_runs, 'run')} on." if it.ended < it.min_runs else ""
    return [
        Heading(f"{it.pipeline or 'no pipeline'}: {it.level}"),
        Sentence(_runs(it) + few),
        *(Sentence(text, Tone.BAD) for text in stopped),
        *(Sentence(text, Tone.WARN) for text in missed),
        *([_steps(it)] if it.steps else []),
    ]


def _runs(it: PipelineFigures) -> str:
    runs = ", ".join(f"{number} {status}" for status, number in it.runs.items() if number)
    parts = [
        f"{count(it.ended, 'run')} ended" + (f": {runs}" if runs else ""),
        f"success {percent(it.success_rate)}",
        f"retries {percent(it.retry_rate)}",
        f"mean {NONE if it.mean_seconds is None else _duration(it.mean_seconds)}",
    ]
    errors = it.errors_in_words
    return "; ".join([*parts, *([f"errors by class: {errors}"] if errors else [])]) + "."


def _steps(it: PipelineFigures) -> Table:
    columns = ("step", "done", "failed", "tries", "given up", "success", "retries")
    return Table(columns, [_step(step) for step in it.steps], columns[1:], ("step",))


def _step(step: StepFigures) -> list[str | Cell]:
    given_up = Cell(str(step.given_up), Tone.BAD if step.given_up else Tone.PLAIN)
    rates = (percent(step.success_rate), percent(step.retry_rate))
    return [step.step, str(step.done), str(step.failed_tries), str(step.tries), given_up, *rates]


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else span(seconds)


_TARGETS = {
    "success_rate": lambda it: f"success {percent(it.success_rate)}, to be above {100 * SUCCESS_TARGET:g} %",
    "retry_rate": lambda it: f"retries {percent(it.retry_rate)}, to be {100 * RETRY_TARGET:g} % at most",
    "mean_seconds": lambda it: f"mean {_duration(it.mean_seconds)}, to be below {ROBOT_MEAN_TARGET_S:g} s",
}
