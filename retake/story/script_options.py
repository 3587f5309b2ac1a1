"""The command lines of the three scripts that do a step's work. The manager runs them; they also work by hand."""

import sys
from collections.abc import Callable
from typing import Any

import click

from retake.story.script import run_script

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
    from retake.story.fetch import fetch as ask

    sys.exit(run_script(ask, channel))
