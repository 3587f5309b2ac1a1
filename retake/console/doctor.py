"""`retake doctor`: try everything that a generation needs."""

from collections.abc import Iterator, Sequence
from datetime import datetime

import click

from retake.clock import stamp
from retake.console.answer import Answer, Block, Cell, Heading, Sentence, Table, Tone
from retake.console.command_context import CommandContext
from retake.console.invocation import console_command
from retake.errors import RetakeError, SettingsError
from retake.exit_codes import ExitCode
from retake.keys import KEYS
from retake.operations.breakers import breaker_states, open_breakers
from retake.operations.finding import Finding, Verdict, of_error, ok, warn
from retake.operations.host_checks import alert_checks, disk_checks, key_checks, settings_checks
from retake.operations.loader import PipelineNotLoaded
from retake.operations.pipelines import MUSIC, Operations
from retake.operations.store_checks import (
    bucket_checks,
    day_check,
    document_checks,
    error_checks,
    holder_check,
    ledger_checks,
    shared_checks,
)
from retake.operations.vendor_checks import vendor_checks
from retake.plural import count
from retake.story.operator_checks import clients_of, ffmpeg_check, prompts_check
from retake.story.settings import SANDBOX_VARIABLE

_MARKS = {Verdict.OK: ("ok", Tone.GOOD), Verdict.WARN: ("warn", Tone.WARN), Verdict.FAULT: ("fault", Tone.BAD)}


@console_command("doctor")
@click.option("--offline", is_flag=True, help="Ask no vendor.")
@click.option(
    "--test-request", is_flag=True, help="Also make each vendor's call of a tick, for a task that nobody made (free)."
)
def command(context: CommandContext, offline: bool, test_request: bool) -> Answer:
    """Try everything that a generation needs: settings, keys, bucket, lease, clock, ledger, documents, vendors, disk,
    ffmpeg, the last errors.

    Nothing is paid for. In the bucket a scratch object is written and deleted, and a lease of the doctor's own is taken
    and released. Exits with 78 if settings or a key are at fault, 69 for any other fault.
    """
    findings = [*examine(context, offline=offline, test_request=test_request)]
    return answer(findings, context.clock.now())


def examine(context: CommandContext, *, offline: bool, test_request: bool) -> Iterator[Finding]:
    """Run the checks, each after those that it depends on, and yield their findings."""
    try:
        settings, keys = context.settings, context.keys
    except SettingsError as error:
        yield of_error("settings", error)
        return
    story = not context.without_story
    yield from settings_checks(settings.source, settings.warnings)
    if story:
        yield from key_checks(keys, context.environ, SANDBOX_VARIABLE)
    yield from alert_checks(settings.alerts.channels, settings.missing_secrets, context.environ)
    if story:
        yield prompts_check(settings)
    yield from disk_checks(settings.storage.url, settings.workflow.channel_concurrency if settings.channels else 0)
    if story:
        yield ffmpeg_check(settings)
    music = _with_music(context)
    unusable = [*_music_settings(context)] if music else []
    yield from unusable or _store_findings(context)  # this opens music's stores too, so its settings must be valid
    if offline:
        yield ok("vendors", f"not asked (--offline{', and so without --test-request' if test_request else ''})")
    elif story:
        yield from vendor_checks(clients_of(settings, keys), test_request=test_request)
    if music and not unusable:
        yield from _music(context, offline=offline, test_request=test_request)


def _with_music(context: CommandContext) -> bool:
    return context.music_in_use and context.channel in (None, MUSIC)


def _music_settings(context: CommandContext) -> Iterator[Finding]:
    """Yield the fault in the settings of music, if there is one."""
    try:
        _ = context.music
    except SettingsError as error:
        yield of_error("settings of music", error)


def _music(context: CommandContext, *, offline: bool, test_request: bool) -> Iterator[Finding]:
    """Check what only the music service needs. Its database is checked with the documents of the other pipelines."""
    from retake.music import operator_checks as checks
    from retake.music.settings import SANDBOX_KEYS

    settings, environ = context.music, context.environ
    sandbox = environ.get(SANDBOX_VARIABLE)
    if not sandbox:
        of_story = [name for names, _ in KEYS.values() for name in names]
        yield from checks.key_checks(environ, settings.music.telegram, () if context.music_alone else of_story)
    yield from checks.machine_checks(settings)
    if not offline:
        keys = SANDBOX_KEYS if sandbox else checks.keys_set(environ)
        clients = checks.clients_of(settings, keys, context.clock.sleep)
        yield from vendor_checks(clients, test_request=test_request)


def _store_findings(context: CommandContext) -> Iterator[Finding]:
    """Check the bucket, and what is in it and on the ledger. If the bucket does not answer, nothing else is checked."""
    try:
        operations = context.operations
    except PipelineNotLoaded as error:
        yield of_error("pipelines", error)
        return
    except RetakeError as error:
        yield of_error("bucket", error)
        return
    for finding in bucket_checks(operations.bucket, context.clock):
        yield finding
        if finding.check == "bucket" and finding.verdict is Verdict.FAULT:
            return
    if len(operations.pipelines) == 1:
        yield holder_check(operations, operations.pipelines[0])
    yield from document_checks(operations)
    if not context.music_alone:  # music counts in its database
        yield from day_check(operations)
    yield from shared_checks(operations)
    yield from ledger_checks(operations)
    yield from error_checks(operations)
    yield from _breakers(operations)


def _breakers(operations: Operations) -> Iterator[Finding]:
    try:
        states = breaker_states(operations)
    except RetakeError as error:
        yield of_error("breakers", error)
        return
    for it in open_breakers(states, operations.clock.now()):
        since = f" since {it['opened_at']}" if it["opened_at"] else ""
        why = f": {it['code']}" if it["code"] else ""
        do = "do what the message says" if it["phase"] == "unreadable" else "see `breaker show`"
        yield warn(f"breaker {it['name']}", f"{it['phase']}{since}{why}", do)


def answer(findings: Sequence[Finding], now: datetime) -> Answer:
    """Return the answer for the findings."""
    faults = [it for it in findings if it.verdict is Verdict.FAULT]
    warnings = [it for it in findings if it.verdict is Verdict.WARN]
    code = max((it.exit_code for it in faults), default=ExitCode.OK)
    document = {
        "at": stamp(now),
        "healthy": not faults,
        "faults": len(faults),
        "warnings": len(warnings),
        "checks": [it._asdict() for it in findings],
    }
    rows = [row for it in findings for row in _rows(it)]
    blocks: list[Block] = [
        Heading(_title(len(findings), len(faults), len(warnings))),
        Table(("", "check", "found"), rows),
    ]
    if faults or warnings:
        blocks.append(Heading("What to do"))
        blocks += [Sentence(f"{it.check}: {it.do or it.found}", _MARKS[it.verdict][1]) for it in (*faults, *warnings)]
    return Answer(document, blocks, code)


def _rows(finding: Finding) -> Iterator[tuple[Cell, str, str]]:
    """Return the rows of a finding, one for each line of its text."""
    first, *others = finding.found.splitlines() or [""]
    yield Cell(*_MARKS[finding.verdict]), finding.check, first
    for line in others:
        yield Cell(""), "", line


def _title(checks: int, faults: int, warnings: int) -> str:
    if not faults and not warnings:
        return f"All is well: {count(checks, 'check')}"
    return f"{count(checks, 'check')}: {count(faults, 'fault')}, {count(warnings, 'warning')}"
