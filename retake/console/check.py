"""`retake check`: check that everything in a bucket is consistent."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR, getLogger
from typing import TextIO

import click

from retake.checking import CheckFinding, CheckReport, Severity
from retake.checking.engine import Progress, joined
from retake.console.answer import Answer, Block, Cell, Facts, Heading, Sentence, Tone
from retake.console.command_context import CommandContext
from retake.console.invocation import console_command
from retake.errors import StorageError
from retake.extras import is_installed, require
from retake.operations.examinations import check_bucket
from retake.plural import count

_TONES = {Severity.ERROR: Tone.BAD, Severity.WARNING: Tone.WARN, Severity.NOTE: Tone.FAINT}
IMAGES = "images"
"""The name of the image-job service for `--channel`."""

MAX_SHOWN = 20
"""Maximum number of findings of one code shown to people; programs get all of them."""


@console_command("check")
@click.option("--media", is_flag=True, help="Also check the content of each picture and video. Reads all of them.")
@click.option(
    "--repair", is_flag=True, help="Rebuild what can be derived: indexes, counts, sums, leftovers of crashes."
)
def command(context: CommandContext, media: bool, repair: bool) -> Answer:
    """Prove that everything in the bucket fits together: documents, files, runs, bills, indexes.

    Takes no lease, changes nothing, and may run while ticks run. With --repair it takes the leases that it needs; it
    never deletes media, documents or records. docs/check.md lists what it finds.

    \b
    Exit codes:
        0   everything fits together
        65  something does not; what to do is with each finding
        75  not everything could be looked at
    """
    with progress_on(sys.stderr) as progress, _without_warnings():
        reports = []
        if context.channel != IMAGES:
            with _images_hint(context):
                reports.append(check_bucket(context.operations, media=media, repair=repair, progress=progress))
        if context.channel == IMAGES or (context.channel is None and _serves_images(context)):
            reports.append(_image_jobs(context, repair=repair, progress=progress))
    return answer(joined(reports))


@contextmanager
def _images_hint(context: CommandContext) -> Iterator[None]:
    """If the pipelines' bucket, which may not exist, cannot be checked, add to the error how to check only the image
    jobs."""
    try:
        yield
    except StorageError as error:
        if context.channel is None and _serves_images(context):
            raise StorageError(f"{error}. The image jobs alone: check --channel {IMAGES}") from error
        raise


def _serves_images(context: CommandContext) -> bool:
    """Return whether an image-job service is configured, in the environment or in .env, which its extra reads."""
    if context.environ.get("REDIS_URL") or not is_installed("images"):
        return bool(context.environ.get("REDIS_URL"))
    from retake.images.examinations import serves_images

    return serves_images(context.environ)


def _image_jobs(context: CommandContext, *, repair: bool, progress: Progress) -> CheckReport:
    require("images", "the image-job service")
    from retake.images.examinations import check_images_of_operator

    return check_images_of_operator(context.environ, context.clock, repair=repair, progress=progress)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Log no warnings during the block, because each is already among the findings."""
    logger = getLogger("retake")
    before = logger.level
    logger.setLevel(ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def progress_on(stream: TextIO) -> Iterator[Progress]:
    """Provide a function that shows progress on one line of a terminal, and does nothing elsewhere."""
    if not stream.isatty():
        yield lambda title, number: None
        return

    def show(title: str, number: int) -> None:
        if number == 1 or number % 100 == 0:
            stream.write(f"\r\x1b[K{f'{title}: {number}':.79}")
            stream.flush()

    try:
        yield show
    finally:
        stream.write("\r\x1b[K")
        stream.flush()


def answer(report: CheckReport) -> Answer:
    """Return the answer for a report."""
    blocks: list[Block] = [Heading(_title(report))]
    blocks.append(Facts([("looked at", ", ".join(_counted(*it) for it in report.looked_at.items()))]))
    blocks += [Sentence(f"Repaired: {it}.", Tone.GOOD) for it in report.done]
    shown: Counter[str] = Counter()
    for it in report.findings:
        shown[it.code] += 1
        if shown[it.code] <= MAX_SHOWN:
            blocks += _blocks(it)
    blocks += [Sentence(f"… and {n - MAX_SHOWN} more {code}") for code, n in shown.items() if n > MAX_SHOWN]
    return Answer(report.document(), blocks, report.exit_code)


def _counted(name: str, number: int) -> str:
    words = name.replace("_", " ")
    return f"{number:,} {words.removesuffix('s') if number == 1 else words}"


def _title(report: CheckReport) -> str:
    levels = Counter(it.level for it in report.open)
    parts = [count(levels[it], it.value) for it in (Severity.ERROR, Severity.WARNING) if levels[it]]
    if not report.complete:
        parts.append("not everything could be checked")
    return ", ".join(parts) if parts else "Everything fits together"


def _blocks(it: CheckFinding) -> list[Block]:
    level = Cell("repaired", Tone.GOOD) if it.repaired else Cell(it.level.value, _TONES[it.level])
    return [
        Sentence(f"{level.text} {it.code}: {it.where}", level.tone),
        Sentence(it.what, indent=4),
        Sentence(f"To do: {it.todo}", Tone.FAINT, indent=4),
    ]
