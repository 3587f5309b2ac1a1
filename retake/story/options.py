"""The command lines of the manager and of the three scripts."""

import sys
from typing import Any

import click

from retake.option_values import Seconds, not_empty
from retake.story import script
from retake.story.command import Options, manage
from retake.story.decision import PICTURE_ONLY
from retake.ticking.process import leave

CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.command(context_settings=CONTEXT)
@click.option("--until-done", is_flag=True, help="Tick until the present generation has ended; begin one if none is.")
@click.option("--interval", type=Seconds(min=0), metavar="SECONDS", help="Between ticks [30; in the sandbox 1].")
@click.option("--dry-run", is_flag=True, help="Say what a tick would do, and change nothing.")
@click.option("--diagnose", is_flag=True, help="Log requests, bucket operations and decisions too, without secrets.")
@click.option("--sandbox", is_flag=True, help="Use stand-ins for the vendors on this machine: no account, no cost.")
@click.option(
    "--order",
    "sandbox_orders",
    multiple=True,
    metavar="ORDER",
    help="A failure for the sandbox to play, like upscale#1-2=500; may be given several times.",
)
@click.option(
    "--resolve", type=click.Choice(["retry", "skip"]), help="A paid call of unknown outcome: ask again, or not."
)
@click.option("--resume", is_flag=True, help="Go on after too many failures in a row, or after a key was fixed.")
@click.option(
    "--retake", metavar="ID", callback=not_empty, help="Take a failed generation up again, at the step that failed."
)
@click.option("--channel", metavar="NAME", callback=not_empty, help="Work on this one of the CHANNELS alone.")
@click.pass_obj
def main(folder: str, /, **options: Any) -> None:
    """Drive the story pipeline by one tick: text, picture, upscale, video, one generation after another.

    Run it every few minutes (see crontab.example). Each tick looks at the documents in the bucket, does what is next,
    and ends; a failed step is repeated in a later tick, a bounded number of times. Two ticks at once do no harm:
    the second finds the pipeline leased and leaves.

    \b
    To see a whole generation without an account:
        retake tick --sandbox --until-done   (b2_storage_manager.py in a checkout)

    Settings come from config/config.json (or the file that RETAKE_CONFIG names), keys from the environment:
    MIDJOURNEY_API_KEY, RUNWAYML_API_SECRET, OPENAI_API_KEY. All of them are explained in docs/settings.md.

    \b
    Exit codes:
        0   the tick is done (also: nothing to do, or another one is at it)
        75  a step failed and is tried again later, or is held for you; or the
            bucket is unreachable
        69  a generation failed for good, or too many in a row did
        65  a document in the bucket is invalid
        78  settings or a key are missing, wrong or refused
        70  a bug
    """
    leave(manage(folder, Options(**options)))


# --- the scripts ----------------------------------------------------------------------------------------------

_channel = click.option(
    "--channel", metavar="NAME", callback=not_empty, help="One of the CHANNELS; default: RETAKE_CHANNEL."
)


@click.command("content", context_settings=CONTEXT)
@click.option("--generation_id", "--generation-id", required=True, metavar="ID", help="Like 20260131-0930.")
@_channel
def content(generation_id: str, channel: str | None) -> None:
    """Write topic, text, sarcasm, script and prompts of generation ID, and save them as 666/ID.json.

    With no generation under way, ID is begun. The calls to the chat API are those of config/prompts.json; each answer
    is saved as it comes, so that a retry continues with the call that failed.
    """
    sys.exit(script.write(generation_id, channel))


@click.command("media", context_settings=CONTEXT)
@click.option("--generation_id", "--generation-id", required=True, metavar="ID", help="The generation under way.")
@click.option("--use-mock", is_flag=True, help="Give up on the vendors: make a placeholder and a mock video here.")
@click.option(PICTURE_ONLY, is_flag=True, help="Save the picture that is delivered, as 666/ID.png; order nothing.")
@_channel
def media(generation_id: str, use_mock: bool, picture_only: bool, channel: str | None) -> None:
    """Do what is next for generation ID: order the pictures, order the upscale of one, or download it as 666/ID.png
    and make the video, 666/ID.mp4.

    Before each paid call what is asked is saved, and right after it the task's id: a call is never made twice unseen.
    """
    if use_mock and picture_only:
        raise click.UsageError(f"--use-mock and {PICTURE_ONLY} exclude each other")
    if picture_only:
        sys.exit(script.save(generation_id, channel))
    sys.exit(script.make(generation_id, channel, use_mock=use_mock))


@click.command("fetch", context_settings=CONTEXT)
@_channel
def fetch(channel: str | None) -> None:
    """Ask Midjourney once about the task in flight. Done: its results are saved. Still running: nothing changes."""
    sys.exit(script.ask(channel))
