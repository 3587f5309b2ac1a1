"""`retake mode`: the degraded mode, which holds paid work back while many calls fail."""

import click

from retake.console.answer import Answer, Cell, Facts, Tone, done_answer
from retake.console.command_context import CommandContext
from retake.console.group import CommandGroup
from retake.console.invocation import CONTEXT, console_command
from retake.console.since import read_window
from retake.operations.modes import SET_BY, ModePanel
from retake.percent import percent

_TONES = (Tone.GOOD, Tone.WARN, Tone.BAD, Tone.BAD)


@click.group("mode", cls=CommandGroup, context_settings=CONTEXT)
def command() -> None:
    """The degraded mode: 0 everything runs, 1 no video is ordered, 2 nothing is begun or paid for, 3 nothing runs."""


@console_command("show")
def show_mode(context: CommandContext) -> Answer:
    """Show which mode holds, since and until when, and why."""
    panel = ModePanel(context.operations)
    state = panel.state()
    mode, document = panel.mode(state), panel.document(state)
    rows: list[tuple[str, str | Cell]] = [
        ("mode", Cell(f"{mode.mode}, {mode.words}", _TONES[mode.mode])),
        ("set by", SET_BY[mode.by]),
    ]
    rows += [
        (name, value) for name, value in (("why", mode.why), ("since", mode.since), ("until", mode.until)) if value
    ]
    if state.auto.error_share is not None:
        rows.append(("failed tries", f"{percent(state.auto.error_share)} of {state.auto.tries}"))
    rows.append(("robots", ", ".join(document["robots"]) or "none"))
    return Answer(document, [Facts(rows)])


@console_command("set")
@click.argument("number", metavar="0..3", type=click.IntRange(0, 3))
@click.option(
    "--for",
    "length",
    metavar="TIME",
    callback=read_window,
    help="For how long, like 30m or 2h; without it, until it is set again.",
)
@click.option("--why", metavar="TEXT", default="", help="Why, for people who look at it.")
def set_mode(context: CommandContext, number: int, length: float | None, why: str) -> Answer:
    """Set the mode by hand. It overrides the schedule and the automatic mode, also when it is 0."""
    panel = ModePanel(context.operations)
    state = panel.set(number, length, why)
    return done_answer(panel.changed("set", state))


@console_command("auto")
def auto(context: CommandContext) -> Answer:
    """Leave the mode to the schedule and to the share of failed tries again."""
    panel = ModePanel(context.operations)
    state = panel.auto()
    return done_answer(panel.changed("auto", state))


for each in (show_mode, set_mode, auto):
    command.add_command(each)
