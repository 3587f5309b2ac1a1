"""`retake music list|show|retry|cancel|resolve|serve`: the music pipelines, one by one."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from retake.console.answer import Answer, Block, Cell, Facts, Heading, Raw, Sentence, Table, Tone, done_lines
from retake.console.command_context import CommandContext
from retake.console.group import CommandGroup
from retake.console.invocation import CONTEXT, console_command
from retake.foreign_text import json_lines
from retake.operations.pipelines import MUSIC
from retake.operations.port import Refusal
from retake.operations.words import ago, code_of, moment, one_line, span, usd
from retake.plural import count

if TYPE_CHECKING:
    from retake.music.actions import PipelineActions
    from retake.music.operations import MusicOperations
    from retake.music.rows import Job, PipelineRow
    from retake.music.store import PipelineStore
    from retake.music.survey import TelegramMessage

_TONES = {"failed": Tone.BAD, "awaiting_manual": Tone.BAD, "published": Tone.GOOD, "cancelled": Tone.FAINT}
_JOB_TONES = {"failed": Tone.BAD, "succeeded": Tone.GOOD, "interrupted": Tone.WARN}
_URLS = ("cover_url", "video_url", "thumbnail_url")


@click.group("music", cls=CommandGroup, context_settings=CONTEXT)
def command() -> None:
    """The music pipelines: what waits for a person, what failed, and what a person can do about it. An ID is written 7
    or music-7. docs/music.md explains the pipeline."""


@console_command("list")
@click.option("--state", metavar="STATE", help="Only those in this state, like failed or cover_pending.")
@click.option("--limit", type=click.IntRange(1, 1000), metavar="N", default=50, show_default=True,
              help="Show at most this many.")  # fmt: skip
def list_pipelines(context: CommandContext, state: str | None = None, limit: int = 50) -> Answer:
    """List the pipelines, the newest first: all except the published and cancelled ones, or those in one state."""
    from retake.music.states import STATES

    if state is not None and state not in STATES:
        raise click.UsageError(f"There is no state {state!r}. Use one of: {', '.join(STATES)}.")
    found = _read(context).listing([state] if state else (), limit=limit)
    document = {"pipelines": [row.shown() for row in found]}
    if not found:
        return Answer(document, [Sentence(f"No pipeline is {state}." if state else "No pipeline is under way.")])
    now = context.clock.now()
    rows = [
        (
            str(row.id),
            row.track_title,
            Cell(row.state, _tone(row)),
            moment(row.updated_at, now),
            row.failed_reason or "",
        )
        for row in found
    ]
    return Answer(document, [Table(("id", "track", "state", "changed", "reason"), rows, ("id",), brief=("reason",))])


@console_command("show")
@click.argument("pipeline_id", metavar="ID")
def show_pipeline(context: CommandContext, pipeline_id: str) -> Answer:
    """Show one pipeline: its state, its attempts, what was paid for, and the messages on Telegram."""
    store, row = _find(context, pipeline_id)
    jobs = store.jobs(row.id)
    evidence = _operations(context).evidence(row.task_id)
    told = _messages(store, row.id)
    document = {
        **row.shown(),
        "note": row.note,
        "jobs": [job.shown() for job in jobs],
        "paid_calls": evidence.calls,
        "messages": [it.shown() for it in told],
        "files": [entry.key for entry in evidence.files],
    }
    now = context.clock.now()
    blocks: list[Block] = [Heading(f"{row.task_id}: {row.track_title}"), Facts(_facts(row, now)), *_jobs(jobs, now)]
    blocks += [*_paid(evidence.calls), *_telegram(told, now), *_texts(row)]
    return Answer(document, blocks)


@console_command("retry")
@click.argument("pipeline_id", metavar="ID")
@click.option("--again", is_flag=True, help="Make the step's paid call again: for a picture task that never ends.")
def retry_pipeline(context: CommandContext, pipeline_id: str, again: bool = False) -> Answer:
    """Retry the failed step. Everything before it is kept.

    Nothing is paid for twice: a picture task is polled again. With --again it is given up and another one is ordered.
    """
    store, number = _write(context, pipeline_id)
    row = store.retry(number, again=again)
    return _done("retry", row, f"{row.task_id} does {row.step} {'from scratch' if again else 'again'}", _GOES_ON)


@console_command("cancel")
@click.argument("pipeline_id", metavar="ID")
def cancel_pipeline(context: CommandContext, pipeline_id: str) -> Answer:
    """Cancel a pipeline: no paid call begins afterwards. What it has made stays in the bucket."""
    from retake.music.operations import after_cancel

    store, number = _write(context, pipeline_id)
    row = store.cancel(number)
    return _done("cancel", row, f"{row.task_id} is cancelled", after_cancel(store, row))


@console_command("resolve")
@click.argument("pipeline_id", metavar="ID")
@click.argument("video_id", metavar="VIDEO_ID", required=False)
@click.option("--again", is_flag=True, help="Do the step from scratch, whatever the outcome of the last call.")
def resolve_pipeline(
    context: CommandContext, pipeline_id: str, video_id: str | None = None, again: bool = False
) -> Answer:
    """Decide about a call of unknown outcome (awaiting_manual).

    VIDEO_ID says that the upload has made this video: the pipeline is published. With --again the step is done from
    scratch. First check whether the video, or the picture, exists: it may otherwise be made twice.
    """
    if bool(video_id) == again:
        raise click.UsageError("Name VIDEO_ID or say --again, not both." if again else "Name VIDEO_ID, or say --again.")
    if video_id and not re.fullmatch(r"[\w-]{1,64}", video_id, re.ASCII):
        raise Refusal(f"{video_id[:80]!r} is not a video id; in https://youtu.be/dQw4w9WgXcQ it is dQw4w9WgXcQ")
    store, number = _write(context, pipeline_id)
    if video_id:
        row = store.resolve(number, video_id)
        return _done("resolve", row, f"{row.task_id} is published as {video_id}", "there is nothing more to do")
    row = store.again(number)
    return _done("resolve", row, f"{row.task_id} does {row.step} from scratch", _GOES_ON)


@click.command("serve", context_settings={**CONTEXT, "ignore_unknown_options": True}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def serve(arguments: Sequence[str]) -> None:
    """Run the service: the API, the workers, Telegram. The same as music_service.py, with its options."""
    from retake.music.command import main

    main.main([*arguments], prog_name=click.get_current_context().command_path)


for each in (list_pipelines, show_pipeline, retry_pipeline, cancel_pipeline, resolve_pipeline, serve):
    command.add_command(each)

_GOES_ON = "the music service continues it"


def _find(context: CommandContext, text: str) -> "tuple[PipelineStore, PipelineRow]":
    """Return the pipeline that "7" or "music-7" names, and the store that it was read from. Raises Refusal, StateError,
    StorageError."""
    from retake.music.rows import pipeline_of_task, task_of
    from retake.music.store import UnknownPipeline

    bare = text.isascii() and text.isdecimal() and len(text) <= 10
    found = int(text) if bare else pipeline_of_task(text)
    if found is None:
        raise Refusal(f"{text[:80]!r} names no pipeline: an id is written 7 or {task_of(7)}; see music list")
    store = _read(context)
    try:
        return store, store.get(found)
    except UnknownPipeline as error:
        raise Refusal(f"{error}; see music list, with --state for those that have ended") from None


def _operations(context: CommandContext) -> "MusicOperations":
    from retake.music.operations import MusicOperations

    return MusicOperations(context.music, context.bucket, context.clock)


def _read(context: CommandContext) -> "PipelineStore":
    """Open the pipelines for reading; without a database there are none. Raises Refusal for one of the CHANNELS."""
    from retake.music.database import open_music_database
    from retake.music.store import PipelineStore

    if context.channel not in (None, MUSIC):
        which = "the pipelines of music are in none of the CHANNELS; leave it out, or say --channel music"
        raise Refusal(f"--channel {context.channel[:80]}: {which}")
    return PipelineStore(open_music_database(context.music.music.database, context.clock, read_only=True))


def _write(context: CommandContext, pipeline_id: str) -> "tuple[PipelineActions, int]":
    """Open the pipelines for writing, and return them with the pipeline's number. The pipeline must exist, so that a
    typing error does not create a database."""
    from retake.music.operations import open_actions

    _, row = _find(context, pipeline_id)
    return open_actions(context.music, context.clock), row.id


def _done(what: str, row: "PipelineRow", told: str, follows: str) -> Answer:
    document = {"done": what, "id": row.id, "state": row.state, "what": told, "next": follows}
    return Answer(document, done_lines(told, follows))


def _tone(row: "PipelineRow") -> Tone:
    return _TONES.get(row.state, Tone.WARN if row.state.endswith("_pending") else Tone.PLAIN)


def _facts(row: "PipelineRow", now: datetime) -> list[tuple[str, str | Cell]]:
    facts: list[tuple[str, str | Cell]] = [
        ("state", Cell(row.state, _tone(row))),
        ("audio", row.audio),
        *([("style", one_line(row.style))] if row.style else []),
        *([("note", one_line(row.note))] if row.note else []),
        ("began", f"{moment(row.created_at, now)} ({ago(row.created_at, now)})"),
        ("changed", f"{moment(row.updated_at, now)} ({ago(row.updated_at, now)})"),
    ]
    if row.failed_reason:
        facts.append(("reason", Cell(one_line(row.failed_reason, 400), Tone.BAD)))
    if row.warning:
        facts.append(("warning", Cell(one_line(row.warning, 400), Tone.WARN)))
    if row.youtube_video_id:
        facts.append(("video", f"https://youtu.be/{row.youtube_video_id}"))
    return [*facts, *((name.removesuffix("_url"), url) for name in _URLS if (url := getattr(row, name)))]


def _jobs(jobs: Sequence["Job"], now: datetime) -> list[Block]:
    if not jobs:
        return [Sentence("No attempt has begun yet.")]
    rows: list[tuple[str | Cell, ...]] = []
    for job in jobs:
        took = span((job.finished_at - job.started_at).total_seconds()) if job.finished_at else ""
        error = f"{code_of(job.error_code)} {one_line(job.error or '', 1000)}".strip()
        status = Cell(job.status, _JOB_TONES.get(job.status, Tone.PLAIN))
        rows.append((str(job.id), job.step, str(job.attempt), status, moment(job.started_at, now), took, error))
    columns = ("job", "step", "attempt", "status", "began", "took", "error")
    return [Heading("Attempts"), Table(columns, rows, ("job", "attempt", "took"))]


def _paid(calls: Sequence[dict[str, Any]]) -> list[Block]:
    if not calls:
        return []
    total = usd(sum(call["price_usd"] for call in calls))
    rows = [
        (call["requested_at_utc"], call["step"], str(call["attempt"]), call["outcome"], f"{call['price_usd']:.3f}")
        for call in calls
    ]
    title = f"Paid: {total} for {count(len(calls), 'call')}"
    return [Heading(title), Table(("asked", "step", "attempt", "outcome", "price"), rows, ("attempt", "price"))]


def _messages(store: "PipelineStore", pipeline_id: int) -> list["TelegramMessage"]:
    """Return the messages that were sent, or wait to be sent, on Telegram."""
    from retake.music.survey import messages_of

    with store.database.reading() as cursor:
        return messages_of(cursor, pipeline_id)


def _telegram(told: Sequence["TelegramMessage"], now: datetime) -> list[Block]:
    if not told:
        return []
    rows = [
        (
            moment(it.created_at, now),
            it.event,
            it.error or (moment(it.sent_at, now) if it.sent_at else "waits"),
            it.text.partition("\n")[0],
        )
        for it in told
    ]
    return [Heading("Telegram"), Table(("recorded", "event", "sent", "text"), rows, brief=("text",))]


def _texts(row: "PipelineRow") -> list[Block]:
    import json

    from retake.music.rows import as_object

    blocks: list[Block] = []
    for name, text in (("Metadata", row.metadata_json), ("Review", row.review_json)):
        if value := as_object(text):
            blocks += [Heading(name), Raw(json_lines(json.dumps(value, ensure_ascii=False, indent=2)))]
    return blocks
