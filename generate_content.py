#!/usr/bin/env python3
"""Writes the texts of a generation. The manager runs it; it also works by hand."""

import sys

import click

from retake.story.script import run_script


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--generation_id", "--generation-id", required=True, metavar="ID", help="Like 20260131-0930.")
def main(generation_id: str) -> None:
    """Write topic, text, sarcasm, script and prompts of generation ID, and save them as 666/ID.json.

    With no generation under way, ID is begun. The calls to the chat API are those of config/prompts.json; each answer
    is saved as it comes, so that a retry goes on with the call that failed.
    """
    from retake.story.content import load_prompts, prompts_file, write_content

    sys.exit(run_script(lambda stage: write_content(stage, generation_id, load_prompts(prompts_file(stage.settings)))))


if __name__ == "__main__":
    main()
