"""How the three scripts run: by a tick under its lease, or by hand under their own."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from retake.clock import SystemClock
from retake.exit_codes import ExitCode
from retake.logs import bind, diagnosing, setup_logging
from retake.story.clients import LocalMedia, RealVendors
from retake.story.settings import CHANNEL_VARIABLE, LEASE, open_storage, part_of, pipeline_of, settings_and_keys
from retake.story.spending import known, story_spending
from retake.story.step_context import StepContext
from retake.story.store import DocumentStore
from retake.ticking.process import LEASE_VARIABLE, KillTimer, Process, StopSignal, exit_code_of, is_terminal, owner

_GRACE_S = 30.0  # after the tick would have killed the script


def run_script(work: Callable[[StepContext], None], channel: str | None = None) -> int:
    """Do a step's work with the world set up around it; return the exit code. Messages go to the log. `channel` takes
    the place of the one that the environment names."""
    environ = {**os.environ, **({CHANNEL_VARIABLE: channel} if channel else {})}
    setup_logging(sys.stderr, human=is_terminal(), environ=environ)
    return exit_code_of(lambda: _work(work, environ), part_of_a_run=LEASE_VARIABLE in environ)


def _work(work: Callable[[StepContext], None], environ: Mapping[str, str]) -> int:
    handed = environ.get(LEASE_VARIABLE)
    settings, keys = settings_and_keys(environ, warn=not handed)
    channel = environ.get(CHANNEL_VARIABLE)
    whole, clock = open_storage(settings), SystemClock()
    bucket, spending = part_of(whole, settings, channel), story_spending(settings, whole, clock, pipeline_of(channel))
    lease = bucket.join(LEASE, handed) if handed else bucket.lease(LEASE, owner())
    stop, timer = StopSignal(), KillTimer(settings.workflow.script_timeout_seconds + _GRACE_S if handed else None)
    process = Process(clock, stopping=lambda: stop.count > 0, kill_after=timer.kill_after)
    try:
        store = DocumentStore(bucket, settings.paths, lease, clock)
        store.read()
        if diagnosing():
            from retake.story.decision import next_step
            from retake.story.diagnosis import log_decision

            log_decision(store.documents, next_step(store.documents))
        vendors, media = RealVendors(settings, keys), LocalMedia(settings)
        context = StepContext(settings, store, vendors, media, clock, process=process, spending=spending)
        with bind(generation_id=context.generation_id or None, channel=channel):
            try:
                work(context)
                if not handed:  # else the tick does it, unless it goes on with another step
                    store.save_midjourney(store.documents.midjourney)
            finally:
                if not handed:
                    spending.heal(known(store.documents.midjourney))
    finally:
        lease.release()
    return ExitCode.OK


def write(generation_id: str, channel: str | None = None) -> int:
    """Do generate_content.py's work; return the exit code."""
    from retake.story.content import load_prompts, prompts_file, write_content

    return run_script(
        lambda context: write_content(context, generation_id, load_prompts(prompts_file(context.settings))), channel
    )


def make(generation_id: str, channel: str | None = None, *, use_mock: bool = False) -> int:
    """Do generate_media.py's work; return the exit code."""
    from retake.story.media import make_media

    return run_script(lambda context: make_media(context, generation_id, use_mock=use_mock), channel)


def ask(channel: str | None = None) -> int:
    """Do fetch_media.py's work; return the exit code."""
    from retake.story.media import fetch

    return run_script(fetch, channel)


# --- command lines: those that a tick gives are understood without loading what parses options ----------------------


def content(arguments: Sequence[str], program: str | None = None) -> NoReturn:
    """Run generate_content.py with the command line's arguments, and exit. `program` is its name in messages."""
    match arguments:
        case ["--generation_id", generation_id] if not generation_id.startswith("-"):
            sys.exit(write(generation_id))
    _with_options("content", arguments, program)


def media(arguments: Sequence[str], program: str | None = None) -> NoReturn:
    """Run generate_media.py with the command line's arguments, and exit. `program` is its name in messages."""
    match arguments:
        case ["--generation_id", generation_id] if not generation_id.startswith("-"):
            sys.exit(make(generation_id))
    _with_options("media", arguments, program)


def fetch(arguments: Sequence[str], program: str | None = None) -> NoReturn:
    """Run fetch_media.py with the command line's arguments, and exit. `program` is its name in messages."""
    if not arguments:
        sys.exit(ask())
    _with_options("fetch", arguments, program)


def _with_options(command: str, arguments: Sequence[str], program: str | None) -> NoReturn:
    from retake.story import options

    getattr(options, command)(list(arguments), prog_name=program)
    raise AssertionError("click ends the process")
