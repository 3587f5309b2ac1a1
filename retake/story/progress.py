"""The live display of a generation on a terminal, and the summary at its end."""

import os
import sys
from collections.abc import Mapping
from datetime import datetime
from logging import getLogger
from shlex import quote
from shutil import which
from typing import TYPE_CHECKING, Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from retake.bucket import Bucket
from retake.clock import Clock
from retake.data import checkout
from retake.foreign_text import one_line
from retake.logs import setup_logging
from retake.output import NotWritten, write
from retake.story.decision import Act, Action
from retake.story.documents import IMAGINE, Documents, Step
from retake.story.settings import Settings
from retake.ticking.tick import Tick

if TYPE_CHECKING:
    from retake.sandbox import VendorBill

_log = getLogger(__name__)

ROWS = ("text", "pictures", "upscale", "video")
"""The parts of a generation that a person waits for."""

_ROW_OF_STEP = {
    Step.CONTENT: "text",
    Step.IMAGINE: "pictures",
    Step.UPSCALE: "upscale",
    Step.RUNWAY: "video",
    Step.RUNWAY_POLL: "video",
    Step.MOCK: "video",
}


def row_of(documents: Documents, step: Step) -> str:
    """Return the row that the step belongs to. A fetch belongs to the row of the task that it polls."""
    if step is Step.FETCH:
        task = documents.midjourney.task
        return "pictures" if task is None or task.task_type == IMAGINE else "upscale"
    return _ROW_OF_STEP[step]


def told(documents: Documents, action: Action) -> str | None:
    """Return what the summary says about an action, or None for routine actions."""
    doc = documents.midjourney
    message = doc.error.message
    match action.act:
        case Act.RETRY:
            twice = any(call.get("possible_duplicate") for call in doc.paid_calls[-1:])
            again = "retried, perhaps paid for twice" if twice else "retried"
            return f"{action.step} failed: {message}\n{action.why}: {again}"
        case Act.FAIL | Act.SUBSTITUTE | Act.TIME_OUT | Act.MOCK_VIDEO:
            return f"{action.act}: {action.why}\n{message}".rstrip()
        case Act.RECONCILE:
            return f"{action.why}: the vendor is asked"
        case Act.DEAD_LETTER:
            return "the generation failed for good: kept in dead_letters/"
        case Act.ORDER_UPSCALE if not doc.retries_of(Step.UPSCALE):
            return "the four pictures are ready"
        case Act.ORDER_IMAGINE if not doc.retries_of(Step.IMAGINE):
            return "the text is ready"
        case Act.ORDER_VIDEO if not doc.retries_of(Step.RUNWAY):
            return "the upscaled picture is ready"
        case Act.FINISH:
            return "the video is ready: the generation is finished"
        case _:
            return None


class Watch:
    """Shows each decision on a terminal, and prints at the end what happened."""

    def __init__(self, settings: Settings, bucket: Bucket, clock: Clock, *, terminal: bool) -> None:
        self._settings = settings
        self._bucket = bucket
        self._clock = clock
        self._began = clock.now()
        self._generation_id: str | None = None
        self._retries: dict[str, int] = {}
        self._events: list[tuple[datetime, str]] = []  # the lines of the summary, with their times
        self._reached = -1  # the index of the row under way; -1: not known yet, len(ROWS): all are done
        self._last: Tick | None = None
        self._action = ""
        self._spinner = Spinner("dots")
        console = Console(stderr=True)
        self._live = Live(get_renderable=self._view, console=console, transient=True) if terminal else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
            setup_logging(sys.stderr, human=True)  # rich has replaced sys.stderr: log lines go above the display
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live:
            self._live.stop()
            setup_logging(sys.stderr, human=True)

    def observe(self, documents: Documents, action: Action) -> None:
        """Show the action that is about to be carried out."""
        if documents.gen.generation_id is None and self._generation_id:
            return
        self._generation_id = documents.gen.generation_id
        row = row_of(documents, action.step)
        self._reached = len(ROWS) if action.act is Act.FINISH else ROWS.index(row)
        self._action = action.act.value
        if action.act is Act.RETRY:
            self._retries[row] = self._retries.get(row, 0) + 1
        event = told(documents, action)
        if event:
            self._events.append((self._clock.now(), event))

    def ended(self, tick: Tick) -> None:
        """Remember how the last tick ended: the summary says why a generation is not finished."""
        self._last = tick

    # --- while it runs ---

    def _view(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_row(
            "", Text(one_line(f"generation {self._generation_id or '…'}"), style="bold"), Text(self._elapsed())
        )
        for number, row in enumerate(ROWS):
            now, done = number == self._reached, number < self._reached
            mark = self._spinner if now else Text("✓", style="green") if done else Text("·", style="dim")
            table.add_row(mark, Text(row, style="" if now or done else "dim"), self._state(row, now))
        return table

    def _state(self, row: str, now: bool) -> Text:
        retries = self._retries.get(row, 0)
        again = f"retried {retries} ×  " if retries else ""
        return Text(f"{again}{self._action if now else ''}", style="yellow" if retries else "dim")

    def _elapsed(self) -> str:
        seconds = int((self._clock.now() - self._began).total_seconds())
        return f"{seconds // 60}:{seconds % 60:02d}"

    # --- at the end ---

    def print_account(self, stream: TextIO, bill: "VendorBill | None") -> None:
        """Print what happened, where the files are, what the vendors would have billed, and what to run next.

        If that cannot be written, only log it: the generation, which is what was asked for, has still ended.
        """
        console = Console(file=stream, highlight=False, soft_wrap=True)
        with console.capture() as account:
            self._print_account(console, bill)
        try:
            write(account.get(), stream, "the summary")
        except NotWritten as error:
            _log.warning("%s", error)

    def _print_account(self, console: Console, bill: "VendorBill | None") -> None:
        about, last = one_line(self._generation_id or "no generation"), self._last
        console.print("\n[bold]What happened[/bold]", Text(f"({about}, {self._elapsed()})"))
        for when, what in self._events:
            first, *rest = what.split("\n")
            console.print(f"  {when:%H:%M:%S}  {one_line(first)}", markup=False)
            for line in rest:
                console.print(f"            {one_line(line)}", markup=False)
        if last and last.generation_id and not last.ended:
            console.print(f"  not finished: {one_line(last.why)}", markup=False)
        self._print_files(console)
        if bill:
            console.print("\n[bold]What the vendors would have billed[/bold]")
            lines = {kind: it for kind, it in bill.lines.items() if it.calls}
            width = max([10, *map(len, lines)])
            for kind, billed in lines.items():
                price = f"{billed.price:.3f} USD" if billed.price else "free"
                console.print(f"  {kind:<{width}} {billed.counts}   {price}")
            console.print(f"  {'total':<{width}} {bill.total:.3f} USD")
        console.print("\n[bold]To look closer[/bold]")
        shown = quote(one_line(self._generation_id or ""))
        for command in ("status", f"show {shown}", "--help") if self._generation_id else ("status",):
            console.print(f"  {one_line(console_command_line(command, os.environ))}", markup=False)

    def _print_files(self, console: Console) -> None:
        if not self._generation_id:
            return
        places = (f"{self._settings.paths.folder_666}{self._generation_id}.", f"dead_letters/{self._generation_id}/")
        found = [entry for place in places for entry in self._bucket.list(place)]
        if found:
            console.print("\n[bold]Files[/bold]")
        for entry in found:
            where = f"{self._bucket.url.removeprefix('file:').partition('?')[0]}/{entry.key}"
            console.print(f"  {one_line(where)}  ({_size(entry.size)})", markup=False)


def console_command_line(command: str, environ: Mapping[str, str]) -> str:
    """Return the console's `command` as a person types it in this folder to look at this bucket: with the variables
    that locate it, and with `retake` if that is this package, else with this Python."""
    variables = [f"{name}={quote(environ[name])}" for name in _LOCATING_VARIABLES if environ.get(name)]
    folder = checkout()
    if folder and os.path.relpath(folder) != ".":
        variables.insert(0, f"PYTHONPATH={quote(folder)}")
    return " ".join([*variables, _program() if folder is None else _python(), command])


def _program() -> str:
    found, ours = which("retake"), os.path.join(os.path.dirname(sys.executable), "retake")
    return "retake" if found and os.path.realpath(found) == os.path.realpath(ours) else _python()


def _python() -> str:
    python = os.path.relpath(sys.executable)
    return f"{quote(sys.executable if python.startswith('..') else python)} -m retake"


_LOCATING_VARIABLES = ("RETAKE_CONFIG", "RETAKE_STORAGE_URL")


def _size(number: int) -> str:
    return f"{number / 1e6:.1f} MB" if number >= 1_000_000 else f"{number / 1e3:.1f} kB"
