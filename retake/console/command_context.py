"""What a command works with, and how it is run: settings, bucket, ledger and clock come from the desk, its answer goes
back over it."""

import os
import sys
from collections.abc import Callable, Mapping
from functools import cached_property, wraps
from typing import Any, NamedTuple

import click

from retake.bucket import Bucket
from retake.clock import Clock, SystemClock, stamp
from retake.console import watch
from retake.console.answer import Answer, Line, Tone
from retake.console.group import AS_JSON, CHANNEL
from retake.console.rendering import abandon, complain, show
from retake.errors import RetakeError
from retake.keys import Keys
from retake.logs import setup_logging
from retake.runs import Ledger, open_ledger
from retake.story.environment import CHANNEL_VARIABLE, open_storage, part_of, read_settings
from retake.story.settings import Settings
from retake.story.store import DocumentStore


class Pipeline(NamedTuple):
    """One pipeline to look at: the part of the bucket that it lives in."""

    channel: str | None  # None where there are no CHANNELS
    bucket: Bucket

    @property
    def name(self) -> str:
        """As its runs name it: «story», «story/CHANNEL»."""
        return f"story/{self.channel}" if self.channel else "story"


class CommandContext:
    """What a command works with. Everything is opened when it is first asked for, and may then raise SettingsError or
    StorageError. Nothing here takes a lease or writes; commands that act do, by what `leasable` gives them."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        channel: str | None = None,
        clock: Clock | None = None,
        bucket: Bucket | None = None,
        settings: Settings | None = None,
        keys: Keys | None = None,
    ) -> None:
        self.environ = environ
        self.channel = channel
        self.clock: Clock = clock or SystemClock()
        self._given = bucket, settings, keys
        self._sql: Ledger | None = None

    @cached_property
    def _read(self) -> tuple[Settings, Keys]:
        _, settings, keys = self._given
        return (settings, keys or Keys()) if settings else read_settings(self.environ, warn=False)

    @property
    def settings(self) -> Settings:
        return self._read[0]

    @property
    def keys(self) -> Keys:
        return self._read[1]

    @cached_property
    def bucket(self) -> Bucket:
        """All of the bucket, whatever the channel."""
        return self._given[0] or open_storage(self.settings)

    @cached_property
    def pipeline(self) -> Pipeline:
        """The one pipeline that the command is about. Raises SettingsError where one of the CHANNELS must be named."""
        channel = self.channel or (self.environ.get(CHANNEL_VARIABLE) if self.settings.channels else None)
        return Pipeline(channel, part_of(self.bucket, self.settings, channel))

    @cached_property
    def pipelines(self) -> list[Pipeline]:
        """The one that `--channel` names; else all of the CHANNELS, or the one pipeline where there are none."""
        if self.channel or not self.settings.channels:
            return [self.pipeline]
        return [Pipeline(name, part_of(self.bucket, self.settings, name)) for name in self.settings.channels]

    def leasable(self, pipeline: Pipeline) -> Bucket:
        """The pipeline's part of the bucket, for a command that takes its lease: should this process be frozen past the
        lease's end, the kernel ends it."""
        if self._given[0]:
            return pipeline.bucket
        return part_of(open_storage(self.settings, dead_mans_switch=True), self.settings, pipeline.channel)

    def store(self, pipeline: Pipeline) -> DocumentStore:
        """The documents of a pipeline, for reading alone."""
        return DocumentStore(pipeline.bucket, self.settings.paths, None, self.clock)

    def ledger(self, pipeline: Pipeline) -> Ledger:
        """The ledger that the pipeline's runs are on, for reading alone."""
        url = self.settings.storage.ledger
        if url is None:
            return open_ledger(None, pipeline.bucket, self.clock, read_only=True)
        self._sql = self._sql or open_ledger(url, self.bucket, self.clock, read_only=True)
        return self._sql


def console_command(name: str) -> Callable[[Callable[..., Answer]], click.Command]:
    """Make a command of a function that takes a CommandContext and its own options and returns an Answer. `--json` and
    `--channel` are there for every command."""

    def decorate(work: Callable[..., Answer]) -> click.Command:
        @wraps(work)
        def run(as_json: bool, channel: str | None, **options: Any) -> None:
            context = click.get_current_context()
            as_json = as_json or bool(context.meta.get(AS_JSON))
            channel = channel or context.meta.get(CHANNEL)
            every_s = watch.seconds(context)
            if every_s is not None:
                sys.exit(_watched(lambda desk: work(desk, **options), channel, every_s, as_json=as_json))
            desk = CommandContext(dict(os.environ), channel=channel)
            sys.exit(answered(lambda: work(desk, **options), as_json=as_json))

        own = list(getattr(run, "__click_params__", []))
        with_json = click.option("--json", "as_json", is_flag=True, help="Answer with one JSON document.")
        with_channel = click.option("--channel", metavar="NAME", help="Only this one of the CHANNELS.")
        run.__click_params__ = []  # type: ignore[attr-defined]
        with_json(with_channel(run))
        run.__click_params__ += own  # type: ignore[attr-defined]
        return click.command(name, context_settings=CONTEXT)(run)

    return decorate


def _watched(work: Callable[[CommandContext], Answer], channel: str | None, every_s: float, *, as_json: bool) -> int:
    """Answer again and again, each time from a desk of its own: settings may change, a connection may be lost."""
    looks = 0

    def answer() -> Answer:
        nonlocal looks
        found = work(CommandContext(dict(os.environ), channel=channel))
        if not as_json:
            watch.make_room(sys.stdout, first=not looks)
        looks += 1
        told = Line(f"looked at {stamp(SystemClock().now())}, again every {every_s:g} s; Ctrl-C ends it", Tone.FAINT)
        return found._replace(blocks=[*found.blocks, told])

    return watch.repeated(lambda: answered(answer, as_json=as_json, indent=None), every_s)


CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
"""What each command tells click."""


def answered(work: Callable[[], Answer], *, as_json: bool, indent: int | None = 2) -> int:
    """Show what `work` answers; the exit code. What a person can mend is told in a sentence, never a traceback; in JSON
    it is a document too: {"error", "exit_code"}."""
    setup_logging(sys.stderr, human=True, level="WARNING")
    try:
        answer = work()
    except RetakeError as error:
        complain(str(error), sys.stderr)
        answer = Answer({"error": str(error), "exit_code": error.exit_code}, [], error.exit_code)
    except KeyboardInterrupt:
        return 130
    except Exception:
        from logging import getLogger

        getLogger("retake.console").exception("this is a bug in Retake; nothing is lost")
        return 70
    try:
        show(answer, sys.stdout, as_json=as_json, indent=indent)
    except BrokenPipeError:  # nobody reads any more, which click takes care of
        raise
    except OSError as error:
        abandon(sys.stdout)
        complain(f"the answer could not be written: {error.strerror}", sys.stderr)
        return 75
    return answer.exit_code
