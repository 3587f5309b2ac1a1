"""`retake web`: the dashboard."""

import os
import sys
from typing import Any

import click

from retake.console.group import AS_JSON, CHANNEL
from retake.console.invocation import CONTEXT


@click.command("web", context_settings=CONTEXT)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Where to listen.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, metavar="N",
              help="The port to listen on; 0 is any free one.")  # fmt: skip
@click.option("--read-only", is_flag=True, help="Show everything, and change nothing.")
def command(**options: Any) -> None:
    """Serve the dashboard: everything that the other commands show, in a browser, and what they can do, as buttons.

    RETAKE_WEB_TOKEN signs people and programs in. SIGTERM ends it. docs/web.md explains it.
    """
    context = click.get_current_context()
    if context.meta.get(CHANNEL) or context.meta.get(AS_JSON):
        context.fail("web serves all channels, and has no --json")
    from retake.logs import setup_logging
    from retake.ticking.process import exit_code_of, is_terminal

    setup_logging(sys.stderr, human=is_terminal(), environ=os.environ)
    sys.exit(exit_code_of(lambda: _serve(options)))


def _serve(options: dict[str, Any]) -> int:
    from retake.console.breaker import robots_policies
    from retake.console.command_context import CommandContext
    from retake.extras import require
    from retake.logs import mask
    from retake.operations.events import WEB
    from retake.ticking.process import StopSignal

    stopping = StopSignal()
    require("web", "The dashboard")
    from retake.web.command import WebOptions, serve
    from retake.web.settings import load_web_settings, read_token

    environ = dict(os.environ)
    settings, token = load_web_settings(environ), read_token(environ)
    mask([token])
    context = CommandContext(environ, actor=WEB)
    told = WebOptions(
        **options,
        token=token,
        cap_usd=context.settings.workflow.daily_cap_usd,
        environ=environ,
        policies=robots_policies(),
    )
    return serve(context.operations, settings, told, signals=lambda: stopping.count)
