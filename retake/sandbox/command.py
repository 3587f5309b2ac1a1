"""The command `python -m retake.sandbox`."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from retake.errors import SettingsError
from retake.extras import require
from retake.option_values import Seconds
from retake.sandbox import (
    ENVIRONMENT,
    FAULTS,
    KINDS,
    Pace,
    RecordedCall,
    Sandbox,
    comfyui_orders,
    endpoints,
    parse_order,
)
from retake.sandbox.orders import UPLOAD_FAULTS
from retake.sandbox.server import HOST

if TYPE_CHECKING:
    from retake.sandbox.comfyui import ComfyCall

_FAULTS = {
    **FAULTS,
    **UPLOAD_FAULTS,
    "400-599[-html]": "refused with that status; -html: with a gateway's page",
    "403-REASON": "refused with a reason of YouTube's, such as quotaExceeded",
    "slow=SECONDS": "carried out, but answered late",
}
_GRAMMAR = f"""\b
An order is KIND[#CALLS]=FAULT, such as upscale#1-2=500. Kinds:
  {", ".join(KINDS[:7])}
  {", ".join(KINDS[7:11])}
  {", ".join(KINDS[11:16])}
  {", ".join(KINDS[16:])}

\b
Faults:
""" + "\n".join(f"  {name:<15} {text}" for name, text in _FAULTS.items())

_SHARED_FAULTS = {name: text for name, text in _FAULTS.items() if name in comfyui_orders.SHARED}
_COMFY_FAULTS = {
    **{name: text.replace(" and billed", "") for name, text in _SHARED_FAULTS.items()},
    **comfyui_orders.PROMPT_FAULTS,
    **comfyui_orders.SERVER_FAULTS,
    "400-599[-html]": _FAULTS["400-599[-html]"],
    "slow=SECONDS": _FAULTS["slow=SECONDS"],
}
_COMFY_GRAMMAR = f"""\b
An order is KIND[#CALLS]=FAULT, such as comfy.prompt#1=execution-error. Kinds:
  {", ".join(comfyui_orders.KINDS[:5])}
  {", ".join(comfyui_orders.KINDS[5:])}

\b
Faults:
""" + "\n".join(f"  {name:<15} {text}" for name, text in _COMFY_FAULTS.items())


@click.group(epilog=_GRAMMAR, invoke_without_command=True)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0 takes the state's last port, or a free one.")
@click.option("--state", type=click.Path(file_okay=False), help="Keep records and media in this directory.")
@click.option("--order", "orders", multiple=True, help="Order a fault, such as upscale#1-2=500; repeatable.")
@click.option("--pace", default="3,2,4", show_default=True, help="Seconds: imagine,upscale,runway.")
@click.option("--seed", type=int, help="Determines texts, pictures and ids.")
@click.option("--quick", is_flag=True, help="Tiny plain pictures and videos.")
@click.option("--no-singles", is_flag=True, help="Imagine tasks offer only their grid.")
@click.pass_context
def main(context: click.Context, /, port: int, state: str | None, orders: tuple[str, ...], **more: Any) -> None:
    """Run stand-ins (PiAPI, LegNext, Runway, a chat API, Telegram, YouTube) on 127.0.0.1 until Ctrl-C.

    The stand-in for ComfyUI is a separate command.
    """
    if context.invoked_subcommand is None:
        _run(port, state, orders, **more)


def _run(port: int, state: str | None, orders: tuple[str, ...], pace: str, seed: int | None, **flags: bool) -> None:
    try:
        times, parsed = Pace.of(pace), [str(parse_order(order)) for order in orders]
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    quick, singles = flags["quick"], not flags["no_singles"]
    with (
        _until_interrupted("--port or --state"),
        Sandbox(state, port, seed=seed, pace=times, quick=quick, singles=singles, on_call=_show) as sandbox,
    ):
        for order in parsed:
            sandbox.order(order)
        _introduce(sandbox)
        threading.Event().wait()


@main.command(epilog=_COMFY_GRAMMAR)
@click.option("--host", default=HOST, show_default=True, help="Where to listen; 0.0.0.0 in a container.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0 takes any free port.")
@click.option("--order", "orders", multiple=True, help="Order a fault, such as comfy.prompt#1=500; repeatable.")
@click.option("--pace", type=Seconds(0, 86400), default=1.0, show_default=True, help="Seconds per execution.")
def comfyui(host: str, port: int, orders: tuple[str, ...], pace: float) -> None:
    """Run a stand-in for ComfyUI until Ctrl-C. It keeps nothing when it stops."""
    try:
        require("images", "The stand-in for ComfyUI")
        parsed = [str(comfyui_orders.parse_order(order)) for order in orders]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--order") from error
    except SettingsError as error:
        click.echo(str(error), err=True)
        sys.exit(error.exit_code)
    from retake.sandbox.comfyui import ComfySandbox

    with _until_interrupted("--port"), ComfySandbox(port, host=host, pace=pace, on_call=_show_comfy) as sandbox:
        for order in parsed:
            sandbox.order(order)
        click.echo(f"ComfyUI sandbox at {sandbox.url}\nCtrl-C stops it; it keeps nothing.")
        threading.Event().wait()


@contextmanager
def _until_interrupted(options: str) -> Iterator[None]:
    """Let a sandbox serve until Ctrl-C. If it cannot start, exit with 75 and name the options to change."""
    try:
        yield
    except OSError as error:
        click.echo(f"The sandbox cannot start: {error.strerror or error}. Try another {options}.", err=True)
        sys.exit(75)
    except KeyboardInterrupt:
        click.echo("\nThe sandbox has stopped.")


def _show_comfy(call: "ComfyCall") -> None:
    click.echo(f"{datetime.now().astimezone():%H:%M:%S}  {call.kind:<16} {call.outcome:<16} {call.path}")


def _introduce(sandbox: Sandbox) -> None:
    click.echo(f"Sandbox at {sandbox.url}" + ("" if sandbox.serving else " (already running)"))
    click.echo(f"  {ENVIRONMENT}={sandbox.url}")
    for vendor, keys in endpoints(sandbox.url).items():
        for key, value in keys.items():
            click.echo(f"  API_KEYS.{vendor}.{key} = {value}")
    other = endpoints(sandbox.url, "legnext")["midjourney"]
    click.echo(f"  or API_KEYS.midjourney.provider = legnext, API_KEYS.midjourney.endpoint = {other['endpoint']}")
    click.echo("Any key will do. Ctrl-C stops it.")


def _show(call: RecordedCall) -> None:
    when = datetime.fromtimestamp(call.when).astimezone().strftime("%H:%M:%S")
    price = f"${call.price:.3f}" if call.price else ""
    click.echo(f"{when}  {call.kind:<12} #{call.n:<4} {call.outcome:<18} {price:<8} {call.task_id}".rstrip())
