"""`retake robots list|show|check|play`: the robots' protocols, and playing one robot on a test clock."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom

import click

from retake.alerts.settings import ALERTS, AlertSettings
from retake.console.answer import Answer, Block, Cell, Facts, Heading, Sentence, Table, Tone
from retake.console.command_context import CommandContext
from retake.console.group import CommandGroup
from retake.console.invocation import CONTEXT, console_command
from retake.console.robot_protocol import blocks_of
from retake.foreign_text import plain
from retake.operations.words import code_of
from retake.plural import count
from retake.robots.play import PlayedEvent, play, read_failures
from retake.robots.play.performance import Played
from retake.robots.policies import POLICIES, RobotPolicy, load_policies, policy_files, read_document, read_policies
from retake.robots.wording import modes_of, repeats_in_brief, waits_of
from retake.settings.reader import DEFAULT_FILE, no_such_file
from retake.settings.schema import closest, did_you_mean, read_table

_MAX_FAULTS = 100
_PROTOCOL_CHANNELS = {
    "slack": {"kind": "slack"},
    "email": {"kind": "email", "host": "localhost", "from": "retake", "to": ["operators"]},
    "pagerduty": {"kind": "pagerduty"},
    "sms": {"kind": "sms", "account": "account", "from": "retake", "to": ["operators"]},
}
"""The channels of a play if the settings have none: docs/protocol.md, section "Notification channels"."""


@click.group("robots", cls=CommandGroup, context_settings=CONTEXT)
def command() -> None:
    """The robots: their error protocols, and how one of them works when calls fail. They are read from policies/ beside
    the settings file, or else from the package. docs/robots.md explains them."""


@console_command("list")
def list_robots(context: CommandContext) -> Answer:
    """List the robots: what each retries, its circuit breaker, and the degraded modes in which it runs."""
    policies = load_policies(_folder(context))
    document = {
        "robots": [
            {
                "id": it.id,
                "name": it.name,
                "role": it.role,
                "max_retries": it.retry.max_retries,
                "intervals_s": waits_of(it.retry),
                "jitter_percent": it.retry.jitter_percent,
                "breaker": it.breaker.name if it.breaker else None,
                "modes": modes_of(it.id),
            }
            for it in policies.values()
        ]
    }
    rows = [_row(it) for it in policies.values()]
    return Answer(document, [Table(("id", "name", "retries after", "breaker", "modes"), rows)])


def _row(it: RobotPolicy) -> Sequence[str]:
    modes = " ".join(map(str, modes_of(it.id)))
    return it.id, it.name, repeats_in_brief(it.retry), it.breaker.name if it.breaker else "", modes


@console_command("show")
@click.argument("robot", metavar="ID")
def show_robot(context: CommandContext, robot: str) -> Answer:
    """Show a robot's whole protocol: errors, retries, breaker, locks, compensation, and what follows a failure."""
    folder = _folder(context)
    policies = load_policies(folder)
    policy = _robot(policies, robot)
    tables = {name: it for name, it in read_document(folder / f"{policy.id}.toml").items() if isinstance(it, dict)}
    document = {
        "id": policy.id,
        "name": policy.name,
        "role": policy.role,
        "modes": modes_of(policy.id),
        "policy": tables,
    }
    return Answer(document, blocks_of(policy, [it for it in policies.values() if it.id != policy.id]))


@console_command("check")
@click.argument("files", metavar="[FILE...]", nargs=-1)
def check_files(context: CommandContext, files: Sequence[str]) -> Answer:
    """Check all policy files, or each FILE. Every fault is shown with its file, its field or line, and what is allowed.
    Exits with 65 if there is one."""
    paths = [Path(it) for it in dict.fromkeys(files)] or policy_files(_folder(context))
    _, faults = read_policies(paths)
    document = {"files": [str(it) for it in paths], "faults": [it._asdict() for it in faults]}
    if not faults:
        return Answer(document, [Sentence(f"{count(len(paths), 'policy file')} checked: no fault.", Tone.GOOD)])
    blocks: list[Block] = [Sentence(str(it), Tone.BAD) for it in faults[:_MAX_FAULTS]]
    if more := len(faults) - _MAX_FAULTS:
        blocks += [Sentence(f"and {more} more; --json has all of them")] if more > 0 else []
    blocks.append(Heading(f"{count(len(faults), 'fault')} in {len({it.file for it in faults})} of {len(paths)} files."))
    return Answer(document, blocks, 65)


@console_command("play")
@click.argument("robot", metavar="ID")
@click.argument("more", metavar="", nargs=-1)
@click.option(
    "--fail",
    "orders",
    metavar="CODE[xN]",
    multiple=True,
    help="Let the next attempt, or N in a row, fail with this error. Several: --fail CODE CODExN, or --fail again.",
)
@click.option("--seed", type=click.IntRange(0, 2**63), metavar="N", help="The seed of the jitter; random by default.")
def play_robot(
    context: CommandContext,
    robot: str,
    more: Sequence[str] = (),
    orders: Sequence[str] = (),
    seed: int | None = None,
) -> Answer:
    """Play one robot at work, on a test clock, while calls fail as ordered: attempts, waits, breaker, locks, what
    follows the last failure, and which channels alerts would reach. Nothing waits, and nothing is sent.

    If its work has failed for good and ordered failures are left, the robot gets its next piece of work. CODE@finishxN
    and CODE@itemxN order later failures: after an item was created (NR.NSI.4), and of one item of a batch (NR.NSI.5).
    """
    if more and len(orders) != 1:
        raise click.UsageError(f"Got unexpected extra argument ({more[0]}).")
    policy = _robot(load_policies(_folder(context)), robot)
    try:
        failures = read_failures([*orders, *more], policy)
    except ValueError as error:
        raise click.UsageError(f"--fail {error}") from None
    chosen = SystemRandom().randrange(1_000_000) if seed is None else seed
    alerts = _alerts(context)
    with _quiet():
        played = play(policy, failures, seed=chosen, alerts=alerts or _protocol_channels())
    return Answer(played.document(), _blocks(policy, played, chosen, own_channels=alerts is not None))


for each in (list_robots, show_robot, check_files, play_robot):
    command.add_command(each)


def _folder(context: CommandContext) -> Path:
    """Return the folder of the policies. Raises SettingsError if RETAKE_CONFIG names a missing file."""
    named = context.environ.get("RETAKE_CONFIG")
    if named and not os.path.exists(named):
        raise no_such_file(named)
    own = Path(named or DEFAULT_FILE).parent / "policies"
    return own if own.is_dir() else POLICIES


def _robot(policies: dict[str, RobotPolicy], name: str) -> RobotPolicy:
    if name in policies:
        return policies[name]
    meant = did_you_mean(closest(name, list(policies)))
    raise click.UsageError(f"There is no robot {plain(name)!r}. Use one of: {', '.join(policies)}{meant}")


def _alerts(context: CommandContext) -> AlertSettings | None:
    """Return the section ALERTS of the settings, or None if it has no channels or there is no settings file."""
    if not context.environ.get("RETAKE_CONFIG") and not os.path.exists(DEFAULT_FILE):
        return None
    alerts = context.settings.alerts
    return alerts if alerts.channels else None


def _protocol_channels() -> AlertSettings:
    settings: AlertSettings = read_table(ALERTS, {"channels": _PROTOCOL_CHANNELS}, "ALERTS", [])
    return settings


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the robot's log during the block, because the timeline shows the same."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _blocks(policy: RobotPolicy, played: Played, seed: int, *, own_channels: bool) -> list[Block]:
    channels = "those of ALERTS.channels" if own_channels else "Slack, e-mail, PagerDuty, SMS: ALERTS.channels has none"
    rows = [_event_row(it) for it in played.timeline]
    took = clock_of(played.timeline[-1].at_s)
    tone = Tone.GOOD if played.ended == "done" else Tone.BAD
    return [
        Heading(f"{policy.id} {policy.name}"),
        Facts([("seed", str(seed)), ("channels", channels)]),
        Table(("at", "attempt", "what"), rows, right=("attempt",)),
        Sentence(f"Ended after {took}: {played.ended}.", tone),
    ]


def _event_row(it: PlayedEvent) -> Sequence[str | Cell]:
    code = f" ({code_of(it.error_code)})" if it.error_code else ""
    tone = Tone.PLAIN
    if it.error_code:
        tone = Tone.BAD
    elif it.action:
        tone = Tone.WARN
    elif it.attempt is not None:
        tone = Tone.GOOD
    elif it.wait_s is not None:
        tone = Tone.FAINT
    attempt = "" if it.attempt is None else str(it.attempt)
    return clock_of(it.at_s), attempt, Cell(f"{it.what}{code}", tone)


def clock_of(seconds: float) -> str:
    """Return the seconds since the beginning of a play in clock format: "00:00:42", "1 d 00:02:00"."""
    days, rest = divmod(round(seconds), 86400)
    return f"{f'{days} d ' if days else ''}{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
