"""`retake alerts`: what is wrong, who was notified, and what an operator can do about it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from getpass import getuser
from typing import Any

import click

from retake.alerts.board import ACKNOWLEDGED, Alert
from retake.alerts.outbox import being_sent
from retake.alerts.reports import WINDOWS
from retake.alerts.settings import why_no_channel
from retake.alerts.wording import lines
from retake.clock import parse_stamp
from retake.console.answer import Answer, Block, Cell, Facts, Heading, Sentence, Table, Tone, done_answer, done_lines
from retake.console.command_context import CommandContext
from retake.console.group import CommandGroup
from retake.console.invocation import CONTEXT, console_command
from retake.exit_codes import ExitCode
from retake.operations.alerts import AlertPanel, change_alert
from retake.operations.reports import make_report
from retake.operations.words import ago
from retake.option_values import not_empty

TONES = {"warning": Tone.WARN, "error": Tone.BAD, "critical": Tone.BAD}


@click.group("alerts", cls=CommandGroup, context_settings=CONTEXT)
def command() -> None:
    """Alerts: what is wrong now. Each is open while its cause lasts, is sent to the channels, and closes by itself."""


@console_command("list")
@click.option("--all", "ended", is_flag=True, help="Also those that ended within the last 30 days.")
def list_alerts(context: CommandContext, ended: bool) -> Answer:
    """List the alerts, the most severe first, and the state of the channels."""
    panel = _panel(context)
    alerts, channels = panel.alerts(ended=ended), panel.channels()
    document = {"alerts": [panel.document(it) for it in alerts], "channels": channels}
    now = context.clock.now()
    blocks: list[Block] = []
    if alerts:
        rows: list[list[str | Cell]] = [
            [
                Cell(it.id, Tone.STRONG),
                Cell(it.level, TONES[it.level] if it.active else Tone.FAINT),
                _state(it),
                str(it.occurrences),
                ago(parse_stamp(it.last_at), now),
                it.title,
            ]
            for it in alerts
        ]
        blocks.append(Table(("id", "level", "state", "times", "last", "what"), rows, right=("times",), brief=("what",)))
    else:
        blocks.append(Sentence("No alert is open.", Tone.GOOD))
    if channels:
        blocks += [Heading("Channels"), _channels(channels, now)]
    else:
        blocks.append(
            Sentence(f"No channel is notified: {why_no_channel(context.environ)} (docs/alerts.md).", Tone.FAINT)
        )
    return Answer(document, blocks)


@console_command("show")
@click.argument("alert_id", metavar="ID")
def show_alert(context: CommandContext, alert_id: str) -> Answer:
    """Show one alert: where, what, since when, how often, what happens automatically, and what you can do."""
    panel = _panel(context)
    alert = panel.find(alert_id)
    heading = Heading(f"alert {alert.id}: {alert.title}")
    rows: list[tuple[str, str | Cell]] = [("state", _state(alert))]
    rows += [(name.lower(), value) for name, value in lines(alert, context.settings.alerts.web_url)]
    untold = panel.untold(alert)
    told = [
        ("notified", ", ".join(it for it in alert.told if it not in untold)),
        ("not notified yet", ", ".join(untold)),
    ]
    rows += [(name, names) for name, names in told if names]
    return Answer(panel.document(alert, whole=True), [heading, Facts(rows)])


@console_command("ack")
@click.argument("alert_id", metavar="ID")
@click.option("--by", metavar="NAME", help="Who acknowledges it; by default the name of your account.")
def acknowledge(context: CommandContext, alert_id: str, by: str | None) -> Answer:
    """Acknowledge an alert: no more messages are sent about it unless it gets worse."""
    return done_answer(change_alert(_panel(context), "ack", alert_id, by or _user()))


@console_command("close")
@click.argument("alert_id", metavar="ID")
def close(context: CommandContext, alert_id: str) -> Answer:
    """Close an alert. It is raised again when its cause occurs again."""
    return done_answer(change_alert(_panel(context), "close", alert_id, _user()))


@console_command("test")
@click.argument("name", required=False, callback=not_empty)
def test(context: CommandContext, name: str | None) -> Answer:
    """Send a test message to each channel, or to the one called NAME, and time it. Exits with 75 if one fails."""
    found = _panel(context).test(name)
    document = {
        "channels": [
            {
                "name": it.channel.name,
                "kind": it.channel.kind,
                "delivered": it.delivered,
                "seconds": round(it.seconds, 3),
                "error": None if it.delivered else it.outcome.why,
            }
            for it in found
        ]
    }
    rows: list[list[str | Cell]] = [
        [
            it.channel.name,
            it.channel.kind,
            Cell("delivered", Tone.GOOD) if it.delivered else Cell("not delivered", Tone.BAD),
            f"{it.seconds:.1f} s",
            it.outcome.why,
        ]
        for it in found
    ]
    failed = not all(it.delivered for it in found)
    table = Table(("name", "kind", "result", "took", "why"), rows, right=("took",))
    return Answer(document, [table], ExitCode.TRY_LATER if failed else ExitCode.OK)


@console_command("deliver")
def deliver(context: CommandContext) -> Answer:
    """Send the messages that are due or waiting, as a tick does. Exits with 75 if a channel did not take one."""
    panel = _panel(context)
    failed, board = panel.deliver()
    channels = panel.channels(board)
    waiting = sum(it["waiting"] for it in channels)
    blocks: list[Block] = [Sentence(_waiting(waiting))]
    if failed:
        blocks.append(Sentence(f"These channels did not accept what they were sent: {', '.join(failed)}.", Tone.BAD))
    later = [it["name"] for it in channels if it["waiting"] and it["name"] not in failed]
    claimed = being_sent(board, context.operations.terms.alerts, context.operations.clock.now())
    if busy := [name for name in claimed if name in later]:
        blocks.append(Sentence(f"Another process is sending to these just now: {', '.join(busy)}."))
    if later := [name for name in later if name not in busy]:
        blocks.append(Sentence(f"These failed recently and wait for their next attempt: {', '.join(later)}."))
    document = {"waiting": waiting, "failed": failed, "channels": channels}
    return Answer(document, blocks, ExitCode.TRY_LATER if failed else ExitCode.OK)


@console_command("report")
@click.argument("kind", type=click.Choice([*WINDOWS]))
@click.option("--send", is_flag=True, help="Also send it to the channels that take it.")
def report(context: CommandContext, kind: str, send: bool) -> Answer:
    """Show what was made, what failed and what it cost: in the last day, or in the last week and the one before."""
    now, panel = context.clock.now(), _panel(context)
    made = make_report(context.operations, kind, now)
    title, _, rest = made.words().partition("\n")
    rows = [(name, value) for name, _, value in (line.partition(": ") for line in rest.splitlines())]
    blocks: list[Block] = [Heading(title), Facts(rows)]
    failed = panel.send_report(made, now) if send else []
    if send:
        if failed:
            blocks.append(Sentence(f"These channels have not accepted it yet: {', '.join(failed)}.", Tone.BAD))
        else:
            blocks += done_lines(f"the {kind} report was sent")
    document = {**made.document(), "not_taken_by": failed}
    return Answer(document, blocks, ExitCode.TRY_LATER if failed else ExitCode.OK)


for each in (list_alerts, show_alert, acknowledge, close, test, deliver, report):
    command.add_command(each)


def _panel(context: CommandContext) -> AlertPanel:
    return AlertPanel(context.operations, context.environ)


def _waiting(number: int) -> str:
    if not number:
        return "No message waits."
    return "1 message waits." if number == 1 else f"{number} messages wait."


def _user() -> str:
    try:
        return getuser()
    except (OSError, KeyError):  # an account without a name, in a container
        return "operator"


def _state(alert: Alert) -> str:
    by = f" by {alert.acknowledged_by}" if alert.state == ACKNOWLEDGED and alert.acknowledged_by else ""
    return f"{alert.state}{by}"


def _channels(channels: Sequence[Mapping[str, Any]], now: datetime) -> Table:
    rows: list[list[str | Cell]] = []
    for it in channels:
        last, why = it["last_delivered_at"], it["last_error"]
        delivered = ago(parse_stamp(last), now) if last else "never"
        trouble = Cell(why, Tone.BAD) if why else Cell("none", Tone.FAINT)
        rows.append([it["name"], it["kind"], str(it["waiting"]), delivered, trouble])
    return Table(("name", "kind", "waiting", "delivered", "trouble"), rows, right=("waiting",), brief=("trouble",))
