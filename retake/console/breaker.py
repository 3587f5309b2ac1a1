"""`retake breaker show|probe|reset`: the circuit breakers, which all channels share."""

from collections.abc import Mapping
from contextlib import suppress

import click

from retake.bucket import this_process
from retake.console.answer import Answer, Block, Cell, Facts, Heading, Sentence, Tone, done_answer
from retake.console.command_context import CommandContext
from retake.console.group import CommandGroup
from retake.console.invocation import CONTEXT, console_command
from retake.errors import SettingsError
from retake.operations.breakers import BreakerPanel, BreakerView
from retake.operations.words import ago, code_of, moment, span
from retake.option_values import not_empty
from retake.retrying.breaker import BreakerPolicy, Phase

_TONES = {Phase.CLOSED: Tone.GOOD, Phase.OPEN: Tone.BAD, Phase.HALF_OPEN: Tone.WARN}


@click.group("breaker", cls=CommandGroup, context_settings=CONTEXT)
def command() -> None:
    """Circuit breakers: a vendor that keeps failing is left alone for a while, then tried with a single call."""


@console_command("show")
@click.argument("name", required=False, callback=not_empty)
def show_breakers(context: CommandContext, name: str | None) -> Answer:
    """Show the breakers, or the one called NAME: open or closed, recent failures, and who is probing."""
    panel = _panel(context)
    found = [panel.view(name)] if name else panel.views()
    if not found:
        return Answer(
            {"breakers": []},
            [Sentence("No breaker is on record: none has counted a failure yet (BREAKER.failures turns them on).")],
        )
    blocks: list[Block] = []
    for it in found:
        blocks += [Heading(f"breaker {it.breaker.name}"), Facts(_facts(it))]
    return Answer({"breakers": [it.document() for it in found]}, blocks)


@console_command("probe")
@click.argument("name")
def probe(context: CommandContext, name: str) -> Answer:
    """Let one call through an open breaker at the next tick. Its result closes the breaker or opens it again."""
    return done_answer(_panel(context).change("probe", name))


@console_command("reset")
@click.argument("name")
def reset(context: CommandContext, name: str) -> Answer:
    """Close a breaker: every call is let through again, and earlier failures no longer count."""
    return done_answer(_panel(context).change("reset", name))


for each in (show_breakers, probe, reset):
    command.add_command(each)


def _panel(context: CommandContext) -> BreakerPanel:
    return BreakerPanel(context.operations, robots_policies(), this_process())


def robots_policies() -> Mapping[str, BreakerPolicy]:
    """Return the policies of the robots' breakers, by name; none if a policy file is invalid, so that a breaker can
    still be reset."""
    from retake.robots.policies import load_policies

    with suppress(SettingsError):
        return {robot.breaker.name: robot.breaker.policy for robot in load_policies().values() if robot.breaker}
    return {}


def _facts(it: BreakerView) -> list[tuple[str, str | Cell]]:
    state, recent, now = it.state, it.recent, it.now
    if it.fault:
        return [("state", Cell(it.words, Tone.BAD))]
    facts: list[tuple[str, str | Cell]] = [("state", Cell(it.words, _TONES[it.phase]))]
    if state.open_until is None:
        counted = f"{len(recent)} within {span(it.policy.window_s)}; {it.policy.failures} open it"
        facts.append(("failures", f"{counted}, the last one {ago(recent[-1], now)}" if recent else counted))
    else:
        facts.append(("open until", f"{moment(state.open_until, now)} ({ago(state.open_until, now)})"))
    if state.opened_at:
        facts.append(("opened", f"{moment(state.opened_at, now)} ({ago(state.opened_at, now)})"))
    if state.probe:
        facts.append(("probe", f"{state.probe.who.partition('#')[0]}, begun {ago(state.probe.since, now)}"))
    return [*facts, ("last error", code_of(state.code))] if state.code else facts
