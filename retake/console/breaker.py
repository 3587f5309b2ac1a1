"""`python -m retake breaker show|probe|reset`: the circuit breakers, which all channels share."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import click

from retake.clock import stamp
from retake.console.answer import Answer, Block, Cell, Facts, Heading, Line, Tone
from retake.console.command_context import CONTEXT, CommandContext, console_command
from retake.console.group import CommandGroup
from retake.errors import SettingsError
from retake.operations.words import ago, code_of, moment, span
from retake.retrying.breaker import Breaker, BreakerPolicy, BreakerState, Phase, breakers_of, within
from retake.retrying.vendor_breakers import vendor_policy
from retake.story.operator_rules import Refusal
from retake.story.settings import Settings
from retake.ticking.process import owner

_TONES = {Phase.CLOSED: Tone.GOOD, Phase.OPEN: Tone.BAD, Phase.HALF_OPEN: Tone.WARN}


@click.group("breaker", cls=CommandGroup, context_settings=CONTEXT)
def command() -> None:
    """Circuit breakers: what has failed again and again is left alone for a while, then tried by one call alone."""


@console_command("show")
@click.argument("name", required=False)
def show_breakers(desk: CommandContext, name: str | None) -> Answer:
    """How the breakers stand, or the one called NAME: open or closed, what failed lately, and who is trying."""
    names = [_known(desk, name)] if name else breakers_of(desk.bucket, desk.clock).names()
    if not names:
        return Answer({"breakers": []}, [Line("No breaker is on record: nothing has failed that one counts.")])
    found = [_breaker(desk, it) for it in names]
    now = desk.clock.now()
    states = [(breaker, breaker.state()) for breaker in found]
    blocks: list[Block] = []
    for breaker, state in states:
        blocks += [Heading(f"breaker {breaker.name}"), Facts(_facts(state, breaker.policy, now))]
    return Answer({"breakers": [_document(breaker, state, now) for breaker, state in states]}, blocks)


@console_command("probe")
@click.argument("name")
def probe(desk: CommandContext, name: str) -> Answer:
    """Let one call through a breaker that is open, at the next tick. Its result closes the breaker or opens it anew."""
    breaker, now = _breaker(desk, _known(desk, name)), desk.clock.now()
    state = breaker.state()
    phase = state.phase(now)
    if phase is Phase.CLOSED:
        raise Refusal(f"the breaker {name} is closed: every call is let through, there is nothing to probe")
    if (prober := _prober(state, breaker.policy, now)) is not None:
        raise Refusal(f"{prober} is trying already; wait for what comes of it, or reset {name}")
    if phase is Phase.HALF_OPEN or state.probe_ordered:
        why = "its time is over" if phase is Phase.HALF_OPEN else "a probe is ordered"
        raise Refusal(f"the next call is let through the breaker {name} anyway: {why}")
    after = breaker.probe()
    what = f"one call is let through the breaker {name}"
    return _done(breaker, after, "probe", what, "the next call, at the next tick, is the one; its result decides", now)


@console_command("reset")
@click.argument("name")
def reset(desk: CommandContext, name: str) -> Answer:
    """Close a breaker: every call is let through again, and what failed before does not count any more."""
    breaker, now = _breaker(desk, _known(desk, name)), desk.clock.now()
    state = breaker.state()
    if state.phase(now) is Phase.CLOSED and not within(state, breaker.policy, now):
        raise Refusal(f"the breaker {name} is closed and nothing failed lately: there is nothing to reset")
    after = breaker.reset()
    then = f"{breaker.policy.failures} failures within {span(breaker.policy.window_s)} open it again"
    return _done(breaker, after, "reset", f"the breaker {name} is closed", then, now)


for each in (show_breakers, probe, reset):
    command.add_command(each)


def _known(desk: CommandContext, name: str) -> str:
    """Raises Refusal for a breaker that is not on record."""
    names = breakers_of(desk.bucket, desk.clock).names()
    if name not in names:
        there = ", ".join(names) or "none: nothing has failed that one counts"
        raise Refusal(f"there is no breaker {name!r} on record; there are: {there}")
    return name


def _breaker(desk: CommandContext, name: str) -> Breaker:
    register = breakers_of(desk.bucket, desk.clock)
    otherwise = _vendor_policy(desk.settings)
    return Breaker(name, register, _policies().get(name, otherwise), clock=desk.clock, owner=owner())


def _vendor_policy(settings: Settings) -> BreakerPolicy:
    if settings.breaker.failures is None:
        return BreakerPolicy()
    return vendor_policy(settings.breaker, settings.workflow.script_timeout_seconds)


def _policies() -> Mapping[str, BreakerPolicy]:
    """The numbers of the robots' breakers, by name. A policy file with a fault is no reason not to reset a breaker."""
    from retake.robots.policies import load_policies

    with suppress(SettingsError):
        return {robot.breaker.name: robot.breaker.policy for robot in load_policies().values() if robot.breaker}
    return {}


def _prober(state: BreakerState, policy: BreakerPolicy, now: datetime) -> str | None:
    """Who has a probe under way; None if nobody, or nothing was heard of it for too long."""
    if state.probe is None or now >= state.probe.since + timedelta(seconds=policy.probe_s):
        return None
    return state.probe.who.partition("#")[0]


def _words(state: BreakerState, policy: BreakerPolicy, now: datetime) -> str:
    match state.phase(now):
        case Phase.CLOSED:
            return "closed: calls are let through"
        case Phase.OPEN if state.probe_ordered:
            return "open, and the next call is let through: the operator ordered a probe"
        case Phase.OPEN:
            return "open: no call is made"
        case _ if (prober := _prober(state, policy, now)) is not None:
            return f"half-open: {prober} is trying, other calls wait for what comes of it"
        case _:
            return "half-open: the next call is let through, alone"


def _facts(state: BreakerState, policy: BreakerPolicy, now: datetime) -> list[tuple[str, str | Cell]]:
    recent = within(state, policy, now)
    facts: list[tuple[str, str | Cell]] = [("state", Cell(_words(state, policy, now), _TONES[state.phase(now)]))]
    if state.open_until is None:
        counted = f"{len(recent)} within {span(policy.window_s)}; {policy.failures} open it"
        facts.append(("failures", f"{counted}, the last one {ago(recent[-1], now)}" if recent else counted))
    else:
        facts.append(("open until", f"{moment(state.open_until, now)} ({ago(state.open_until, now)})"))
    if state.opened_at:
        facts.append(("opened", f"{moment(state.opened_at, now)} ({ago(state.opened_at, now)})"))
    if state.probe:
        facts.append(("probe", f"{state.probe.who.partition('#')[0]}, begun {ago(state.probe.since, now)}"))
    return [*facts, ("last error", code_of(state.code))] if state.code else facts


def _document(breaker: Breaker, state: BreakerState, now: datetime) -> dict[str, Any]:
    policy = breaker.policy
    return {
        "name": breaker.name,
        "state": state.phase(now),
        "in_words": _words(state, policy, now),
        "failures": len(within(state, policy, now)),
        "opens_at_failures": policy.failures,
        "window_s": policy.window_s,
        "open_until": stamp(state.open_until) if state.open_until else None,
        "opened_at": stamp(state.opened_at) if state.opened_at else None,
        "last_error_code": state.code,
        "probing": _prober(state, policy, now),
        "probe_ordered": state.probe_ordered,
    }


def _done(breaker: Breaker, state: BreakerState, verb: str, what: str, then: str, now: datetime) -> Answer:
    document = {"done": verb, "what": what, "next": then, "breaker": _document(breaker, state, now)}
    return Answer(document, [Line(f"Done: {what}.", Tone.GOOD), Line(f"{then[0].upper()}{then[1:]}.")])
