"""`retake tick`, which is b2_storage_manager.py: one tick, or ticks until the present generation has ended.

An idle tick is most of what a schedule runs, so what only a busy one needs (subprocesses, the sandbox, the progress
display) is loaded where it is used.
"""

import gc
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from retake.bucket import Bucket, Lease
from retake.clock import SystemClock
from retake.errors import SettingsError
from retake.exit_codes import ExitCode
from retake.foreign_text import one_line
from retake.keys import Keys
from retake.logs import DIAGNOSE_VARIABLE, setup_logging
from retake.story.decision import CONTENT_SCRIPT, FETCH_SCRIPT, MEDIA_SCRIPT
from retake.story.pipeline import Observer
from retake.story.runner import StoryRunner, story_breakers, story_watch, unobserved
from retake.story.settings import (
    CHANNEL_VARIABLE,
    SANDBOX_VARIABLE,
    Settings,
    open_storage,
    part_of,
    pipeline_of,
    settings_and_keys,
)
from retake.story.spending import story_spending
from retake.ticking.process import StopSignal, exit_code_of, is_terminal, leave, owner
from retake.ticking.tick import Orders, ScriptResult, Tick
from retake.ticking.watch import TickWatch

if TYPE_CHECKING:
    from retake.sandbox import Sandbox


class Options(NamedTuple):
    """What the command line says."""

    until_done: bool = False
    interval: float | None = None  # seconds between ticks; None: 30, in the sandbox 1
    dry_run: bool = False
    diagnose: bool = False
    sandbox: bool = False
    sandbox_orders: tuple[str, ...] = ()
    resolve: str | None = None
    resume: bool = False
    retake: str | None = None
    channel: str | None = None  # None: all of CHANNELS, or the one pipeline where there are none

    @property
    def orders(self) -> Orders:
        return Orders(self.resume, self.resolve, self.retake)

    @property
    def about_one(self) -> bool:
        """What makes sense for one pipeline at a time."""
        return self.until_done or self.dry_run or self.resume or bool(self.resolve) or bool(self.retake)


def tick(folder: str | None, arguments: Sequence[str], program: str | None = None) -> NoReturn:
    """Run the tick that the command line asks for, and exit. Call it with the garbage collector off.

    A plain tick, which is what a schedule runs, has no options: so it does not load what parses them (click, half of
    what an idle tick would cost). `folder` is that of `manage`, `program` the command's name in messages.
    """
    if arguments:
        from retake.story.options import main as with_options

        gc.enable()
        with_options(list(arguments), prog_name=program, obj=folder)
    gc.freeze()  # nothing of what is loaded now is ever garbage, at the end of the process neither
    gc.enable()
    leave(manage(folder, Options()))


def manage(folder: str | None, options: Options) -> int:
    """Run the tick that the options ask for; return the exit code.

    `folder` has the four scripts. None: they are beside the package or, if it is installed, are commands of it.
    """
    environ = {**os.environ, **({DIAGNOSE_VARIABLE: "1"} if options.diagnose else {})}
    setup_logging(sys.stderr, human=is_terminal(), environ=environ)
    return exit_code_of(lambda: _manage(folder, options, environ))


def _manage(folder: str | None, options: Options, environ: dict[str, str]) -> int:
    if options.sandbox_orders and not options.sandbox:
        raise SettingsError("--order is for the sandbox: add --sandbox")
    if not options.sandbox:
        return _with_settings(folder, options, environ, None)
    with _sandbox(options, environ) as sandbox:
        environ[SANDBOX_VARIABLE] = sandbox.url
        return _with_settings(folder, options, environ, sandbox)


def _with_settings(folder: str | None, options: Options, environ: Mapping[str, str], sandbox: "Sandbox | None") -> int:
    settings, keys = settings_and_keys(environ, warn=True)
    many = bool(settings.channels) and not options.channel and not options.about_one
    bucket = open_storage(settings, dead_mans_switch=not many)  # of many leases, one that is lost ends its own work
    scripts = _LazyScripts(folder, settings.workflow.script_timeout_seconds, environ)
    if many:
        from retake.story.channels import tick_channels

        scripts.stopping()  # only the main thread can answer signals, and channels tick in others
        watch = story_watch(settings, bucket, SystemClock(), environ)
        return tick_channels(settings, keys, bucket, scripts, SystemClock(), watch)
    channel = options.channel or (environ.get(CHANNEL_VARIABLE) if settings.channels else None)
    watch = story_watch(settings, bucket, SystemClock(), environ)
    tick = _OneTick(settings, keys, bucket, channel, scripts.of(channel) if channel else scripts, watch)
    if options.until_done and not options.dry_run:
        return _until_done(options, tick, sandbox)
    runner = tick.runner()
    if options.dry_run:
        watch.begin(send=False)
        print("\n".join(map(one_line, runner.dry_run())))  # noqa: T201 (what was asked for)
        return ExitCode.OK
    return tick.watch.tick(tick.pipeline, runner, options.orders).exit_code


class _OneTick(NamedTuple):
    """What ticks of one pipeline are made of."""

    settings: Settings
    keys: Keys
    bucket: Bucket  # all of it
    channel: str | None
    scripts: "_LazyScripts"
    watch: TickWatch

    @property
    def pipeline(self) -> str:
        return pipeline_of(self.channel)

    @property
    def part(self) -> Bucket:
        return part_of(self.bucket, self.settings, self.channel)

    def runner(self, observe: Observer = unobserved) -> StoryRunner:
        clock, name = SystemClock(), owner()
        return StoryRunner(
            self.settings,
            self.part,
            self.scripts,
            self.keys,
            clock,
            owner=name,
            pipeline=self.pipeline,
            breakers=story_breakers(self.settings, self.bucket, clock, name),
            spending=story_spending(self.settings, self.bucket, clock, self.pipeline),
            observe=observe,
            mode=lambda: self.watch.mode,
            found_interrupted=lambda at: self.watch.interrupted(self.pipeline, at),
        )


def _until_done(options: Options, tick: _OneTick, sandbox: "Sandbox | None") -> int:
    from retake.story.progress import Watch
    from retake.ticking.until_done import until_done

    interval = options.interval if options.interval is not None else (1.0 if sandbox else 30.0)
    clock, stopping = SystemClock(), tick.scripts.stopping()
    with Watch(tick.settings, tick.part, clock, terminal=is_terminal()) as watch:
        runner = tick.runner(watch.observe)

        def run_tick(orders: Orders) -> Tick:
            return tick.watch.tick(tick.pipeline, runner, orders)

        exit_code = until_done(run_tick, options.orders, interval, clock, lambda: stopping.count > 0)
    watch.print_account(sys.stdout, sandbox.bill() if sandbox else None)
    return exit_code


class _LazyScripts:
    """The scripts as subprocesses. What runs them, and what answers signals, is loaded with the first one."""

    def __init__(self, folder: str | None, timeout_s: float, environ: Mapping[str, str]) -> None:
        self._folder, self._timeout_s, self._environ = folder, timeout_s, environ
        self._stopping: StopSignal | None = None

    def stopping(self) -> StopSignal:
        self._stopping = self._stopping or StopSignal()
        return self._stopping

    def of(self, channel: str) -> "_LazyScripts":
        """Return the same, for one of the channels."""
        scripts = _LazyScripts(self._folder, self._timeout_s, {**self._environ, CHANNEL_VARIABLE: channel})
        scripts._stopping = self._stopping
        return scripts

    def run(self, script: str, arguments: list[str], lease: Lease) -> ScriptResult:
        from functools import partial

        from retake.ticking.subprocess_scripts import SubprocessScripts

        stopping = self.stopping()
        command_of = partial(script_command, self._folder)
        runner = SubprocessScripts(command_of, self._timeout_s, self._environ, lambda: stopping.count)
        return runner.run(script, arguments, lease)


def script_command(folder: str | None, script: str) -> list[str]:
    """Return the command that starts a script: its file in `folder` or beside the package, else the installed one."""
    from retake.data import checkout

    if place := folder or checkout():
        return [sys.executable, os.path.join(place, f"{script}.py")]
    # -P: this package, and not another one that lies in the current folder.
    return [sys.executable, "-P", "-m", "retake", _COMMANDS[script]]


_COMMANDS = {CONTENT_SCRIPT: "content", MEDIA_SCRIPT: "media", FETCH_SCRIPT: "fetch"}
"""The commands of `retake` that are the scripts of an installed package."""


@contextmanager
def _sandbox(options: Options, environ: Mapping[str, str]) -> "Iterator[Sandbox]":
    """Run a sandbox whose tasks and links outlive this process, its state beside the bucket."""
    from retake.sandbox import Sandbox
    from retake.story.settings import load_settings

    storage = load_settings(environ).storage
    url, ledger = storage.url, storage.ledger or ""
    directory = url.startswith("file:")
    if not directory and "127.0.0.1" not in url:
        raise SettingsError(
            f"STORAGE.url is {url}: what the sandbox makes does not belong in a live bucket. "
            "Set RETAKE_STORAGE_URL=file:PATH for this run, or name a stand-in on 127.0.0.1"
        )
    if ledger.startswith("postgresql:") and "127.0.0.1" not in ledger:
        raise SettingsError(
            f"STORAGE.ledger is {ledger}: what the sandbox makes does not belong on a live ledger. Take the setting "
            "out for this run, or name a server on 127.0.0.1"
        )
    state = url.removeprefix("file:").rstrip("/") if directory else "bucket"
    with Sandbox(state=f"{state}.sandbox") as sandbox:
        try:
            for order in options.sandbox_orders:
                sandbox.order(order)
        except ValueError as error:
            raise SettingsError(f"--order: {error}") from error
        yield sandbox
