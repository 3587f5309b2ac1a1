"""One tick of many channels. What asks a vendor how a task stands runs in threads of this process, so that a thousand
channels which wait cost little more than their polls; what pays runs in a subprocess, as ever."""

from typing import Protocol

from retake.bucket import Bucket, Lease
from retake.clock import Clock
from retake.keys import Keys
from retake.logs import bind
from retake.story.clients import LocalMedia, RealVendors
from retake.story.decision import FETCH_SCRIPT, Act
from retake.story.inprocess import InProcessScripts
from retake.story.runner import StoryRunner, story_breakers
from retake.story.settings import Settings, part_of, pipeline_of
from retake.story.spending import story_spending
from retake.story.step_context import StepContext
from retake.story.store import DocumentStore
from retake.ticking.channels import each, worst
from retake.ticking.process import exit_code_of, owner
from retake.ticking.tick import Ledgers, ScriptResult, Scripts
from retake.ticking.watch import TickWatch


class ScriptsOfChannels(Protocol):
    """What runs the scripts that pay, for each channel."""

    def of(self, channel: str) -> Scripts: ...


def tick_channels(
    settings: Settings,
    keys: Keys,
    bucket: Bucket,
    scripts: ScriptsOfChannels,
    clock: Clock,
    watch: TickWatch,
) -> int:
    """Run one tick of each channel, `channel_concurrency` at a time; return the most severe exit code."""
    name = owner()
    ledgers, breakers = Ledgers(settings.storage.ledger, clock), story_breakers(settings, bucket, clock, name)

    def tick(channel: str) -> int:
        part, pipeline = part_of(bucket, settings, channel), pipeline_of(channel)
        runner = StoryRunner(
            settings,
            part,
            PollsInProcess(settings, keys, part, clock, scripts.of(channel)),
            keys,
            clock,
            owner=name,
            pipeline=pipeline,
            ledgers=ledgers,
            breakers=breakers,
            spending=story_spending(settings, bucket, clock, pipeline),
            unflagged=(Act.FETCH,),
            mode=lambda: watch.mode,
            found_interrupted=lambda at: watch.interrupted(pipeline, at),
        )
        with bind(channel=channel):
            return exit_code_of(lambda: watch.observed(pipeline, runner).exit_code)

    watch.begin()
    try:
        return worst(each(settings.channels, tick, settings.workflow.channel_concurrency))
    finally:
        watch.end()


class PollsInProcess:
    """`Scripts` that ask Midjourney in this process, and leave everything else to `others`."""

    def __init__(self, settings: Settings, keys: Keys, bucket: Bucket, clock: Clock, others: Scripts) -> None:
        self._settings = settings
        self._keys = keys
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
        vendors, media = RealVendors(self._settings, self._keys), LocalMedia(self._settings)
        return StepContext(self._settings, store, vendors, media, self._clock)
