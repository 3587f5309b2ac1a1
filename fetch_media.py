#!/usr/bin/env python3
"""Asks how the Midjourney task in flight stands. The manager runs it; it also works by hand."""

import sys

import click

from retake.story.script import run_script


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Ask Midjourney once about the task in flight. Done: its results are saved. Still running: nothing changes."""
    from retake.story.fetch import fetch

    sys.exit(run_script(fetch))


if __name__ == "__main__":
    main()
