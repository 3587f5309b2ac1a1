#!/usr/bin/env python3
"""Makes the picture and the video of a generation, one step a call. The manager runs it; it also works by hand."""

import sys

import click

from retake.story.script import run_script


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--generation_id", "--generation-id", required=True, metavar="ID", help="The generation under way.")
@click.option("--use-mock", is_flag=True, help="Give up on the vendors: make a placeholder and a mock video here.")
def main(generation_id: str, use_mock: bool) -> None:
    """Do what is next for generation ID: order the pictures, order the upscale of one, or download it as 666/ID.png
    and make the video, 666/ID.mp4.

    Before each paid call what is asked is saved, and right after it the task's id: a call is never made twice unseen.
    """
    from retake.story.media import make_media

    sys.exit(run_script(lambda stage: make_media(stage, generation_id, use_mock=use_mock)))


if __name__ == "__main__":
    main()
