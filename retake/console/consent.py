"""Ask the operator before something is lost for good."""

import sys

import click

from retake.operations.port import Refusal

option = click.option("--yes", is_flag=True, help="Do it without asking, even if something is lost by it.")
"""The option of every command that can lose something."""


def obtain(what: str, *, yes: bool) -> None:
    """Return if the operator agrees to `what`, a sentence about what would be done and lost. On a terminal they are
    asked; elsewhere `--yes` is needed. Raises Refusal if they do not agree, and KeyboardInterrupt if they interrupt the
    question. Nothing has been changed then."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Refusal(f"{what}. Pass --yes to confirm. Nothing was changed")
    try:
        agreed = click.confirm(f"{what[0].upper()}{what[1:]}. Continue?", err=True)
    except click.Abort:  # Ctrl-C, or the end of the input
        raise KeyboardInterrupt from None
    if not agreed:
        raise Refusal("aborted. Nothing was changed")
