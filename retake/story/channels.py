"""One tick over many channels.

A channel that has not changed since its last tick, and in which nothing is due, is not opened. Polls of vendors run in
threads of this process, so that a thousand waiting channels cost little more than their polls. Paid calls run in a
subprocess, as always.
"""

import os
from datetime import datetime
from logging import getLogger
from threading import Lock
from typing import TYPE_CHECKING, Protocol

import retake
from retake.bucket import Bucket, Lease, this_process
from retake.clock import Clock
from retake.errors import RetakeError
from retake.exit_codes import ExitCode
from retake.keys import Keys
from retake.logs import bind
from retake.settings.shared import Workflow
from retake.story.clients import LocalMedia, RealVendors, Vendors
from retake.story.decision import FETCH_SCRIPT, Act, decide, vendor_of_step
from retake.story.documents import Documents, Step
from retake.story.inprocess import InProcessScripts
from retake.story.runner import StoryRunner, story_breakers
from retake.story.script import StepContext
from retake.story.settings import Settings, deciding_places, part_of, pipeline_of, prefix_of
from retake.story.store import DocumentStore
from retake.ticking.channel_looks import ChannelLooks, ChannelRest
from retake.ticking.channels import each, worst
from retake.ticking.process import exit_code_of
from retake.ticking.rest import digest, look_file, version_of
from retake.ticking.tick import Ledgers, ScriptResult, Scripts, Tick
from retake.ticking.vendor_breakers import VendorOff
from retake.ticking.watch import TickWatch
from retake.vendors import TaskState

if TYPE_CHECKING:
    from retake.vendors.kept import KeptConnections

_log = getLogger(__name__)

_CODE = [os.path.join(os.path.dirname(retake.__file__), name) for name in ("bucket", "story", "ticking")]
"""The folders of the code that decisions depend on. An installation that replaces files changes the folder."""


class ScriptsOfChannels(Protocol):
    """Returns, for each channel, what runs its scripts."""

    def of(self, channel: str) -> Scripts: ...


def tick_channels(
    settings: Settings,
    keys: Keys,
    bucket: Bucket,
    scripts: ScriptsOfChannels,
    clock: Clock,
    watch: TickWatch,
) -> int:
    """Run one tick of each channel, `channel_concurrency` at a time. Return the most severe exit code."""
    round_ = ChannelRound(settings, keys, bucket, scripts=scripts, clock=clock, watch=watch)
    watch.begin()
    try:
        mode = watch.mode.mode
        looks = remembered(settings, bucket, clock.now(), mode)
        codes = each(settings.channels, lambda it: round_.tick(it, looks), settings.workflow.channel_concurrency)
    finally:
        round_.close()
        watch.end()
    if watch.mode.mode == mode:  # else the decisions were made in another mode
        looks.save()
    return worst(codes)


def remembered(settings: Settings, bucket: Bucket, now: datetime, mode: int) -> ChannelLooks:
    """Return the remembered looks of the channels, compared with their current versions. If the bucket does not support
    versions, all channels are opened."""
    # Another version, mode or setting may lead to other decisions.
    basis = digest((retake.__version__, *map(version_of, _CODE), str(mode), repr(settings)))
    wanted = settings.workflow.remembered_looks
    file = look_file(os.environ, "channels", bucket.url, os.path.abspath(settings.source)) if wanted else None
    looks = ChannelLooks(file, basis, now.timestamp(), settings.workflow.full_look_minutes * 60)
    places = deciding_places(settings.paths)
    try:
        looks.compare(bucket, {it: [f"{prefix_of(it)}{key}" for key in places] for it in settings.channels})
    except RetakeError as error:
        _log.warning("whether channels have changed cannot be told, so each is opened: %s", error)
    return looks


def rest_after(tick: Tick, documents: Documents, limits: Workflow, now: datetime) -> ChannelRest | None:
    """Return why a channel rests after a tick in which nothing was done, or None if it does not rest. `tick` is the
    tick's result, `documents` are as the tick left them.

    A channel that only polls a Midjourney task rests while that is running, until it has been running for too long.
    """
    if tick.exit_code != ExitCode.OK:
        return None
    if tick.resting or tick.until:
        return ChannelRest(tick.why, tick.until.timestamp() if tick.until else None)
    doc, action = documents.midjourney, decide(documents, limits, now)
    task = doc.task
    if action.act is not Act.FETCH or task is None or task.requested_at is None:
        return None
    about = (task.task_id, task.task_type, documents.gen.generation_id or "", doc.status or "")
    return ChannelRest(action.why, task.requested_at.timestamp() + limits.mj_timeout_seconds, about)


class ChannelRound:
    """One round of ticks, one per channel, and what they share. Thread safe."""

    def __init__(
        self,
        settings: Settings,
        keys: Keys,
        bucket: Bucket,
        *,
        scripts: ScriptsOfChannels,
        clock: Clock,
        watch: TickWatch,
    ) -> None:
        self._settings, self._keys, self._bucket = settings, keys, bucket
        self._scripts, self._clock, self._watch = scripts, clock, watch
        self._owner = this_process()
        self._ledgers = Ledgers(settings.storage.ledger, clock)
        self._breakers = story_breakers(settings, bucket, clock, self._owner)
        self._kept: KeptConnections | None = None
        self._lock = Lock()
        self._vendors = RealVendors(settings, keys, self._connections)

    def tick(self, channel: str, looks: ChannelLooks) -> int:
        """Run the tick of a channel, unless it rests. Return the exit code."""
        with bind(channel=channel):
            return exit_code_of(lambda: ExitCode.OK if self._rested(channel, looks) else self._opened(channel, looks))

    def close(self) -> None:
        """Close the connections to vendors."""
        if self._kept:
            self._kept.close()

    def _connections(self) -> "KeptConnections":
        """Return the connections for polls. Their libraries take 12 MB, and are imported with the first poll."""
        from retake.vendors.kept import KeptConnections

        with self._lock:
            self._kept = self._kept or KeptConnections()
            return self._kept

    def _rested(self, channel: str, looks: ChannelLooks) -> bool:
        """Return whether the channel is unchanged and still waits, and log that. Takes no lease."""
        rest = looks.rest(channel)
        if rest is None or not self._watch.is_quiet(pipeline_of(channel), unopened=True):
            return False
        if rest.task and not self._is_running(rest.task):
            return False
        if not rest.task:
            _log.info("%s", rest.why)
        looks.rested(channel)
        return True

    def _is_running(self, awaited: tuple[str, ...]) -> bool:
        """Poll the Midjourney task, and return whether it is still running. In case of doubt return False: the channel
        is then opened, and polls again."""
        task_id, task_type, generation_id, status = awaited

        def ask() -> TaskState:
            return self._vendors.midjourney().fetch(task_id)

        try:
            permit = self._breakers.permit(vendor_of_step(Step.FETCH)) if self._breakers else None
            if isinstance(permit, VendorOff):
                return False
            state = permit.around(ask) if permit else ask()
        except RetakeError:
            return False
        if permit:
            permit.ended(None, answered=state.running)
        if state.running:
            about = {"generation_id": generation_id, "step": task_type, "task_id": task_id, "status": status or None}
            _log.info("still waiting for the %s (%s)", task_type, state.progress or "running", extra=about)
        return state.running

    def _opened(self, channel: str, looks: ChannelLooks) -> int:
        part, pipeline = part_of(self._bucket, self._settings, channel), pipeline_of(channel)
        scripts = PollsInProcess(self._settings, self._vendors, part, self._clock, self._scripts.of(channel))
        runner = StoryRunner(
            self._settings,
            part,
            scripts,
            self._keys,
            self._clock,
            owner=self._owner,
            pipeline=pipeline,
            whole=self._bucket,
            ledgers=self._ledgers,
            unflagged=(Act.FETCH,),
            mode=lambda: self._watch.mode,
            confirmed_mode=self._watch.confirmed_mode,
            found_interrupted=lambda at: self._watch.interrupted(pipeline, at),
        )
        tick = self._watch.observed(pipeline, runner)
        if runner.documents and not runner.worked and self._watch.is_quiet(pipeline):
            rest = rest_after(tick, runner.documents, self._settings.workflow, self._clock.now())
            if rest:
                looks.opened(channel, rest)
        return tick.exit_code


class PollsInProcess:
    """`Scripts` that poll Midjourney in this process, and leave everything else to `others`."""

    def __init__(self, settings: Settings, vendors: Vendors, bucket: Bucket, clock: Clock, others: Scripts) -> None:
        self._settings = settings
        self._vendors = vendors
        self._bucket = bucket
        self._clock = clock
        self._others = others

    def run(self, script: str, arguments: list[str], lease: Lease) -> ScriptResult:
        if script != FETCH_SCRIPT:
            return self._others.run(script, arguments, lease)
        return InProcessScripts(self._context, []).run(script, arguments, lease)

    def _context(self, lease: Lease) -> StepContext:
        store = DocumentStore(self._bucket, self._settings.paths, lease, self._clock)
        store.read()
        return StepContext(self._settings, store, self._vendors, LocalMedia(self._settings), self._clock)
