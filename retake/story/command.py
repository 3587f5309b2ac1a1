"""`retake tick`, the same as b2_storage_manager.py: one tick, or ticks until the current generation has ended.

Most scheduled ticks are idle, so what only a busy one needs (subprocesses, the sandbox, the progress display) is
imported where it is used.
"""

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from retake.bucket import Bucket, Lease, this_process
from retake.clock import SystemClock
from retake.errors import SettingsError
from retake.exit_codes import ExitCode
from retake.foreign_text import one_line
from retake.keys import Keys
from retake.logs import DIAGNOSE_VARIABLE, open_streams, setup_logging
from retake.story.decision import CONTENT_SCRIPT, FETCH_SCRIPT, MEDIA_SCRIPT
from retake.story.pipeline import Observer
from retake.story.runner import StoryRunner, story_watch, unobserved
from retake.story.settings import (
    CHANNEL_VARIABLE,
    SANDBOX_VARIABLE,
    Settings,
    deciding_places,
    open_storage,
    part_of,
    pipeline_of,
    settings_and_keys,
)
from retake.ticking.process import StopSignal, exit_code_of, is_terminal, leave
from retake.ticking.rest import BEGAN_AT, basis, looked_up, tick_look
from retake.ticking.tick import NO_ORDERS, Orders, ScriptResult, Tick
from retake.ticking.watch import KEY as BOARD
from retake.ticking.watch import TickWatch

if TYPE_CHECKING:
    from retake.sandbox import Sandbox
    from retake.ticking.rest import IdleLook


class Options(NamedTuple):
    """The options of the command line."""

    until_done: bool = False
    interval: float | None = None  # seconds between ticks; None: 30, or 1 in the sandbox
    dry_run: bool = False
    diagnose: bool = False
    sandbox: bool = False
    sandbox_orders: tuple[str, ...] = ()
    resolve: str | None = None
    resume: bool = False
    retake: str | None = None
    channel: str | None = None  # None: all of CHANNELS, or the only pipeline if there are none

    @property
    def orders(self) -> Orders:
        return Orders(self.resume, self.resolve, self.retake)

    @property
    def about_one(self) -> bool:
        """Whether these options are only for a single pipeline."""
        return self.until_done or self.dry_run or self.resume or bool(self.resolve) or bool(self.retake)


_GC_THRESHOLD = 10_000  # new objects between collections: a tick mostly imports, which leaves no garbage


def tick(folder: str | None, arguments: Sequence[str], program: str | None = None) -> NoReturn:
    """Run the tick that the command line asks for, and exit. Call this with the garbage collector off.

    A scheduled tick has no options, so it does not import click, which would be half of the cost of an idle tick. For
    `folder` see `manage`. `program` is the command's name in messages.
    """
    open_streams()
    if arguments:
        from retake.story.options import main as with_options

        gc.enable()
        with_options(list(arguments), prog_name=program, obj=folder)
    gc.freeze()  # modules never become garbage, not even when the process ends
    gc.set_threshold(_GC_THRESHOLD)
    gc.enable()
    leave(manage(folder, Options()))


def manage(folder: str | None, options: Options) -> int:
    """Run the tick that the options ask for, and return the exit code.

    `folder` has the four scripts. If it is None, they are next to the package or, if that is installed, its commands.
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
    bucket = open_storage(settings, dead_mans_switch=not many)  # losing one of many leases must not end the process
    look = _look(settings, bucket, environ) if options == Options() else None
    if look and look.rests_now():
        return ExitCode.OK
    forks = not options.until_done  # the code of a long-lived process may be older than the files its fork would import
    scripts = LazyScripts(folder, settings.workflow.script_timeout_seconds, environ, forks=forks)
    watch = story_watch(settings, bucket, SystemClock(), environ, look)
    if many:
        from retake.story.channels import tick_channels

        scripts.stopping()  # only the main thread can set signal handlers, and channels tick in others
        return tick_channels(settings, keys, bucket, scripts, SystemClock(), watch)
    channel = options.channel or (environ.get(CHANNEL_VARIABLE) if settings.channels else None)
    tick = OneTick(settings, keys, bucket, channel, scripts.of(channel) if channel else scripts, watch)
    if options.until_done and not options.dry_run:
        return _until_done(options, tick, sandbox)
    if options.dry_run:
        watch.begin(send=False)
        from retake.output import write

        write("".join(f"{one_line(line)}\n" for line in tick.runner().dry_run(options.orders)), sys.stdout)
        return ExitCode.OK
    return tick.run(options.orders).exit_code


def _look(settings: Settings, bucket: Bucket, environ: Mapping[str, str]) -> "IdleLook | None":
    """Return the `IdleLook` with which an idle tick lets the next one rest.

    Return None if that is turned off, if the bucket cannot show changes, or if the settings have warnings, which each
    tick must log.
    """
    observe, limits = getattr(bucket, "observe", None), settings.workflow
    if not limits.remembered_looks or settings.warnings or settings.missing_secrets:
        return None
    file = tick_look(environ)
    if file is None:
        return None
    known: dict[str, Any] = {
        "began_at": BEGAN_AT,
        "longest_s": 60 * limits.full_look_minutes,
        "look_up": looked_up,
        "sources": [settings.source],
        "external_ledger": settings.storage.ledger is not None,
    }
    if observe is None:
        from retake.bucket.scanning import PagedVersions
        from retake.ticking.listed_look import ListedLook

        if settings.channels or not isinstance(bucket, PagedVersions):
            return None  # each channel has a look of its own
        keys = (*deciding_places(settings.paths), BOARD)
        return ListedLook(file, basis(environ), bucket=bucket, place=bucket.url, keys=keys, **known)
    from retake.ticking.rest import IdleLook

    look = IdleLook(file, basis(environ), **known)
    observe(look)
    return look


class LazyScripts:
    """Runs scripts in processes of their own. The modules for that, and the signal handlers, are set up only with the
    first script.

    A process that already has signal handlers passes its `stopping`. Only a process that ends soon may run scripts as
    `forks`.
    """

    def __init__(
        self,
        folder: str | None,
        timeout_s: float,
        environ: Mapping[str, str],
        stopping: StopSignal | None = None,
        *,
        forks: bool = False,
    ) -> None:
        self._folder, self._timeout_s, self._environ, self._stopping = folder, timeout_s, environ, stopping
        self._forks = forks

    def stopping(self) -> StopSignal:
        self._stopping = self._stopping or StopSignal()
        return self._stopping

    def of(self, channel: str) -> "LazyScripts":
        """Return the same scripts for one channel."""
        environ = {**self._environ, CHANNEL_VARIABLE: channel}
        return LazyScripts(self._folder, self._timeout_s, environ, self._stopping, forks=self._forks)

    def run(self, script: str, arguments: list[str], lease: Lease) -> ScriptResult:
        from functools import partial

        from retake.ticking.subprocess_scripts import SubprocessScripts

        stopping = self.stopping()
        command_of = partial(script_command, self._folder)
        work_of = partial(script_work, self._folder) if self._forks else None
        runner = SubprocessScripts(command_of, self._timeout_s, self._environ, lambda: stopping.count, work_of)
        return runner.run(script, arguments, lease)


class OneTick(NamedTuple):
    """The ingredients of ticks of one pipeline."""

    settings: Settings
    keys: Keys
    bucket: Bucket  # the whole bucket
    channel: str | None
    scripts: LazyScripts
    watch: TickWatch

    @property
    def pipeline(self) -> str:
        return pipeline_of(self.channel)

    @property
    def part(self) -> Bucket:
        return part_of(self.bucket, self.settings, self.channel)

    def run(self, orders: Orders = NO_ORDERS) -> Tick:
        """Run one tick, within its watch. Raises StateError, StorageError, LeaseLost, SettingsError."""
        return self.watch.tick(self.pipeline, self.runner(), orders)

    def runner(self, observe: Observer = unobserved, *, one_generation: bool = False) -> StoryRunner:
        return StoryRunner(
            self.settings,
            self.part,
            self.scripts,
            self.keys,
            SystemClock(),
            owner=this_process(),
            pipeline=self.pipeline,
            whole=self.bucket,
            observe=observe,
            mode=lambda: self.watch.mode,
            confirmed_mode=self.watch.confirmed_mode,
            found_interrupted=lambda at: self.watch.interrupted(self.pipeline, at),
            one_generation=one_generation,
        )


def _until_done(options: Options, tick: OneTick, sandbox: "Sandbox | None") -> int:
    from retake.story.progress import Watch
    from retake.ticking.until_done import until_done

    interval = options.interval if options.interval is not None else (1.0 if sandbox else 30.0)
    clock, stopping = SystemClock(), tick.scripts.stopping()
    workflow = tick.settings.workflow._replace(max_tasks_per_run=1)  # end before another generation begins
    tick = tick._replace(settings=tick.settings._replace(workflow=workflow))
    with Watch(tick.settings, tick.part, clock, terminal=is_terminal()) as watch:
        runner = tick.runner(watch.observe, one_generation=True)

        def run_tick(orders: Orders) -> Tick:
            ended = tick.watch.tick(tick.pipeline, runner, orders)
            watch.ended(ended)
            return ended

        exit_code = until_done(run_tick, options.orders, interval, clock, lambda: stopping.count > 0)
    watch.print_account(sys.stdout, sandbox.bill() if sandbox else None)
    return exit_code


def script_command(folder: str | None, script: str) -> list[str]:
    """Return the command that starts a script: its file in `folder` or next to the package, else the installed one."""
    from retake.data import checkout

    if place := folder or checkout():
        return [sys.executable, os.path.join(place, f"{script}.py")]
    # -P: this package, and not another one in the current folder.
    return [sys.executable, "-P", "-m", "retake", _COMMANDS[script]]


def script_work(folder: str | None, script: str) -> Callable[[list[str]], object] | None:
    """Return the function that does in a fork of this process, given the arguments, what a script's command does, or
    None for a script that does not belong to this package."""
    from functools import partial

    from retake.data import checkout

    place = folder or checkout()
    if place is None:
        return partial(_installed_script, _COMMANDS[script])
    return partial(_script_file, place, script) if place == _BESIDE_PACKAGE else None


_BESIDE_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _installed_script(command: str, arguments: list[str]) -> None:
    from runpy import run_module

    sys.argv = ["retake", command, *arguments]
    if not sys.flags.safe_path:
        del sys.path[0]
    sys.modules.pop("retake.__main__", None)  # runpy warns of a module that is already imported
    run_module("retake", run_name="__main__", alter_sys=True)


def _script_file(folder: str, script: str, arguments: list[str]) -> None:
    path = os.path.join(folder, f"{script}.py")
    sys.argv = [path, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = folder
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    exec(code, {"__name__": "__main__", "__file__": path})  # noqa: S102  (our own script)


_COMMANDS = {CONTENT_SCRIPT: "content", MEDIA_SCRIPT: "media", FETCH_SCRIPT: "fetch"}
"""The subcommands of `retake` that are the scripts of an installed package."""


@contextmanager
def _sandbox(options: Options, environ: Mapping[str, str]) -> "Iterator[Sandbox]":
    """Run a sandbox whose tasks and links outlive this process: its state is stored next to the bucket."""
    from retake.sandbox import sandbox_of_command, state_folder
    from retake.story.settings import load_settings

    storage = load_settings(environ).storage
    state, ledger = state_folder(storage.url), storage.ledger or ""
    if ledger.startswith("postgresql:") and "127.0.0.1" not in ledger:
        raise SettingsError(
            f"STORAGE.ledger is {ledger}: what the sandbox makes does not belong on a live ledger. Take the setting "
            "out for this run, or name a server on 127.0.0.1"
        )
    with sandbox_of_command(state) as sandbox:
        try:
            for order in options.sandbox_orders:
                sandbox.order(order)
        except ValueError as error:
            raise SettingsError(f"--order: {error}") from error
        yield sandbox
