"""`retake images status`, `retake images dead list|requeue|drop`: the state of the image-job service, and the messages
that workers refused."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from retake.console import consent
from retake.console.answer import Answer, Block, Cell, Facts, Heading, Sentence, Table, Tone, done_lines
from retake.console.command_context import CommandContext
from retake.console.group import CommandGroup
from retake.console.invocation import CONTEXT, console_command
from retake.console.several import Item, each
from retake.exit_codes import ExitCode
from retake.foreign_text import one_line
from retake.operations.port import Refusal

if TYPE_CHECKING:
    from retake.images.dead_messages import DeadMessage, DeadMessages
    from retake.images.presence import WorkerPresence
    from retake.images.start import ImageServices

_MAX_TEXT_LENGTH = 200  # characters of a foreign text in a table
_NOTHING_MORE = "there is nothing more to do"


@console_command("status")
def status(context: CommandContext) -> Answer:
    """Show the state of the image-job service: jobs, queues, dead messages, workers, ComfyUI servers."""
    with _services(context) as services:
        from retake.images.survey import survey

        settings = services.settings.images
        found = survey(settings, services.store, services.broker)
    document = {
        "sets": found.sets,
        "queues": found.queues,
        "dead_messages": found.dead_messages,
        "workers": None if found.workers is None else [_worker_document(it) for it in found.workers],
        "comfyui": [{"url": url, "alive": alive} for url, alive in found.comfyui.items()],
        "trouble": found.trouble,
    }
    blocks: list[Block] = [Sentence(it, Tone.BAD) for it in found.trouble]
    facts: list[tuple[str, str | Cell]] = []
    if found.sets is not None:
        facts += [
            (f"jobs {name.replace('dispatcher_cache_processing', 'cached')}", str(it))
            for name, it in found.sets.items()
        ]
    facts += [(f"{name}", str(it)) for name, it in (found.queues or {}).items()]
    if found.dead_messages is not None:
        dead = Cell(str(found.dead_messages), Tone.WARN if found.dead_messages else Tone.PLAIN)
        facts.append(("dead messages", dead))
    answers = {True: Cell("answers", Tone.GOOD), False: Cell("does not answer", Tone.BAD)}
    facts += [(f"ComfyUI {one_line(url)}", answers[alive]) for url, alive in found.comfyui.items()]
    blocks += [Facts(facts), *_workers(found.workers)]
    if not found.comfyui:
        missing = (
            "IMAGES.comfyui_discovery_url leads to no ComfyUI server that answers."
            if settings.comfyui_discovery_url
            else "No ComfyUI server is named here: set IMAGES.comfyui_urls, IMAGES.comfyui_discovery_url or "
            "RETAKE_COMFYUI_URLS."
        )
        blocks.append(Sentence(missing, Tone.WARN))
    return Answer(document, blocks, ExitCode.TRY_LATER if found.trouble else ExitCode.OK)


@click.group("dead", cls=CommandGroup, context_settings=CONTEXT)
def dead() -> None:
    """Dead messages: those of jobs that failed for good, and those that name no job. JOB is a job's id, or the
    beginning of one."""


@console_command("list")
@click.option("--limit", type=click.IntRange(1, 1000), metavar="N", default=50, show_default=True,
              help="Show at most this many.")  # fmt: skip
def list_dead(context: CommandContext, limit: int = 50) -> Answer:
    """List the dead messages, the oldest first, with the status of their jobs."""
    with _dead(context) as messages:
        found = messages.all(limit)
    document = {"dead_messages": [_document(it) for it in found]}
    if not found:
        return Answer(document, [Sentence("There are no dead messages.")])
    rows = [
        (
            it.name,
            it.queue,
            Cell(it.job.status if it.job else "gone", Tone.BAD if it.job else Tone.FAINT),
            one_line(it.job.error if it.job else "")[:_MAX_TEXT_LENGTH],
        )
        for it in found
    ]
    return Answer(document, [Table(("job", "queue", "status", "error"), rows, brief=("error",))])


@console_command("requeue")
@click.argument("names", metavar="JOB...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every failed job that has a dead message, the oldest first.")
def requeue_dead(context: CommandContext, names: Sequence[str] = (), every: bool = False) -> Answer:
    """Let a failed job start over, with a full set of attempts: it is pending again, and its message is in its queue.

    Refused if the job was cleaned up, because its result was delivered or its user has deleted it.
    """
    _check_words(names, every, "--all")
    with _dead(context) as messages:
        if every:
            found = messages.requeue_all()
            return each([Item(it, None) for it in found], lambda it: _requeued(it.name, found[it.name]))
        return _for_each(names, lambda name: _requeue(messages, name))


@console_command("drop")
@click.argument("names", metavar="JOB...", nargs=-1)
@click.option("--gone", is_flag=True, help="Every message whose job is ready or was cleaned up.")
@consent.option
def drop_dead(context: CommandContext, names: Sequence[str] = (), gone: bool = False, yes: bool = False) -> Answer:
    """Remove a dead message for good. The job stays failed, so that its user is told why, and is cleaned up later; it
    can no longer be requeued."""
    _check_words(names, gone, "--gone")
    with _dead(context) as messages:
        if gone:
            return each([Item(it, None) for it in messages.drop_gone()], lambda it: _dropped(it.name, _NOTHING_MORE))
        return _for_each(names, lambda name: _drop(messages, name, yes=yes))


for of_dead in (list_dead, requeue_dead, drop_dead):
    dead.add_command(of_dead)


def _check_words(names: Sequence[str], every: bool, option: str) -> None:
    if bool(names) == every:
        raise click.UsageError(f"Name JOB or say {option}, not both." if every else f"Name JOB, or say {option}.")


def _for_each(names: Sequence[str], work: Callable[[str], Answer]) -> Answer:
    """Return the answer for one name, or the results for several."""
    several = [Item(it, None) for it in dict.fromkeys(names)]
    return work(several[0].name) if len(several) == 1 else each(several, lambda it: work(it.name))


def _requeue(messages: "DeadMessages", name: str) -> Answer:
    message = messages.find(name)
    messages.requeue(message)
    if message.job is not None and message.job.under_way:  # an earlier requeue died before it sent the message
        return _done("requeue", message.name, f"{message.name} is under way already", "its message is sent once more")
    return _requeued(message.name, None)


def _requeued(name: str, refusal: Refusal | None) -> Answer:
    if refusal:
        raise refusal
    return _done("requeue", name, f"{name} is pending again", "a worker takes it from its queue")


def _drop(messages: "DeadMessages", name: str, *, yes: bool) -> Answer:
    message = messages.find(name)
    if message.job is not None and message.job.status == "failed":
        consent.obtain(f"without its message the failed job {message.name} cannot be requeued", yes=yes)
    messages.drop(message)
    return _dropped(message.name, "the job is cleaned up automatically" if message.job else _NOTHING_MORE)


def _dropped(name: str, follows: str) -> Answer:
    return _done("drop", name, f"the message {name} is removed", follows)


@contextmanager
def _services(context: CommandContext) -> "Iterator[ImageServices]":
    """Provide the services that the commands work with. Nothing is requested yet."""
    from retake.extras import require

    require("images", "the image-job service")
    from retake.images.start import services_of_operator

    with services_of_operator(context.environ, context.clock) as services:
        yield services


@contextmanager
def _dead(context: CommandContext) -> "Iterator[DeadMessages]":
    with _services(context) as services:
        from retake.images.dead_messages import DeadMessages

        yield DeadMessages(services.store, services.broker, services.table)


def _worker_document(worker: "WorkerPresence") -> dict[str, Any]:
    told = {"job": worker.job or None, "comfyui": list(worker.comfyui), "waits": worker.waits or None}
    return {**worker._asdict(), **told}


def _workers(workers: "list[WorkerPresence] | None") -> list[Block]:
    if workers is None:
        return []
    if not workers:
        return [Sentence("No worker is running.", Tone.WARN)]
    rows: list[tuple[str | Cell, ...]] = [
        (
            one_line(it.name),
            one_line(it.queue),
            one_line(it.address),
            Cell("yes", Tone.GOOD) if it.consuming else Cell("no", Tone.WARN),
            one_line(it.job),
            str(len(it.comfyui)),
        )
        for it in workers
    ]
    table = Table(("name", "queue", "address", "consumes", "job", "ComfyUI"), rows, ("ComfyUI",))
    waiting = [it for it in workers if it.waits]
    why = [Sentence(f"The job of {one_line(it.name)} waits: {one_line(it.waits)}", Tone.BAD) for it in waiting]
    return [Heading("Workers"), table, *why]


def _document(it: "DeadMessage") -> dict[str, Any]:
    job = it.job
    return {
        "job": it.name,
        "queue": it.queue,
        "reason": it.reason,
        "status": job.status if job else None,
        "error": job.error if job else None,
        "user_id": job.user_id if job else None,
        "body": one_line(it.body.decode(errors="replace"))[:_MAX_TEXT_LENGTH],
    }


def _done(what: str, name: str, told: str, follows: str) -> Answer:
    return Answer({"done": what, "job": name, "what": told, "next": follows}, done_lines(told, follows))
