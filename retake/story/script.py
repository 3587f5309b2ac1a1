"""The three scripts: how each runs, by a tick under its lease or by hand under its own, and their command lines."""

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

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
            finally:
                if not handed:  # else the tick does it
                    spending.heal(known(store.documents.midjourney))
    finally:
        lease.release()
    return ExitCode.OK


CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

_Command = Callable[..., None]


def _channel(command: _Command) -> _Command:
    option = click.option("--channel", metavar="NAME", help="Which one of the CHANNELS; RETAKE_CHANNEL says it too.")
    return option(command)


@click.command("content", context_settings=CONTEXT)
@click.option("--generation_id", "--generation-id", required=True, metavar="ID", help="Like 20260131-0930.")
@_channel
def content(generation_id: str, channel: str | None) -> None:
    """Write topic, text, sarcasm, script and prompts of generation ID, and save them as 666/ID.json.

    With no generation under way, ID is begun. The calls to the chat API are those of config/prompts.json; each answer
    is saved as it comes, so that a retry goes on with the call that failed.
    """
    from retake.story.content import load_prompts, prompts_file, write_content

    sys.exit(
        run_script(
            lambda context: write_content(context, generation_id, load_prompts(prompts_file(context.settings))), channel
        )
    )


@click.command("media", context_settings=CONTEXT)
@click.option("--generation_id", "--generation-id", required=True, metavar="ID", help="The generation under way.")
@click.option("--use-mock", is_flag=True, help="Give up on the vendors: make a placeholder and a mock video here.")
@_channel
def media(generation_id: str, use_mock: bool, channel: str | None) -> None:
    """Do what is next for generation ID: order the pictures, order the upscale of one, or download it as 666/ID.png
    and make the video, 666/ID.mp4.

    Before each paid call what is asked is saved, and right after it the task's id: a call is never made twice unseen.
    """
    from retake.story.media import make_media

    sys.exit(run_script(lambda context: make_media(context, generation_id, use_mock=use_mock), channel))


@click.command("fetch", context_settings=CONTEXT)
@_channel
def fetch(channel: str | None) -> None:
    """Ask Midjourney once about the task in flight. Done: its results are saved. Still running: nothing changes."""
    from retake.story.media import fetch as ask

    sys.exit(run_script(ask, channel))
