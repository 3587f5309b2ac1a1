"""Asking before something is lost for good."""

import sys

import click

from retake.story.operator import Refusal

option = click.option("--yes", is_flag=True, help="Do it without asking, also if something is lost for good.")
"""Of every command by which something can be lost."""


def obtain(lost: str, *, yes: bool) -> None:
    """Return if the operator agrees that `lost` is lost, or nothing is (""). On a terminal they are asked, elsewhere
    they must have said `--yes`. Raises Refusal if not; nothing has been changed then."""
    if not lost or yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Refusal(f"this gives up for good: {lost}. Say --yes if that is meant. Nothing was changed")
    if not click.confirm(f"This gives up for good: {lost}. Go on?", err=True):
        raise Refusal("not done, as you wished. Nothing was changed")
