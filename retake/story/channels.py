"""Many pipelines in one tick: each channel below a prefix of its own, with its own documents and its own lease.

Channels know nothing of one another, and neither do machines: several may run the same tick over one bucket, each takes
the channels whose lease it finds free. What asks a vendor how a task stands runs in threads of this process, so that a
thousand channels which wait cost little more than their polls; what pays runs in a subprocess, as ever.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from logging import getLogger
from random import SystemRandom
from typing import Protocol

from retake.bucket import Bucket, Lease
from retake.clock import Clock
from retake.keys import Keys
from retake.logs import bind
from retake.story.breakers import Breakers
from retake.story.decision import Act
from retake.story.inprocess import InProcessScripts
from retake.story.ledgers import Ledgers
from retake.story.manager import Manager
from retake.story.settings import Settings
from retake.story.shell import guarded, part_of, pipeline_of
from retake.story.shift import Ended, Scripts
from retake.story.spending import Spending
from retake.story.stage import RealStudio, RealVendors, Stage
from retake.story.store import DocumentStore

_log = getLogger(__name__)

_GRAVITY = (70, 78, 65, 69, 75, 0)
"""Exit codes, the gravest first: a tick over many channels ends with the gravest of theirs."""


class ScriptsOfChannels(Protocol):
    """What runs the scripts that pay, for each channel."""

    def of(self, channel: str) -> Scripts: ...


def tick_channels(
    settings: Settings, keys: Keys, bucket: Bucket, scripts: ScriptsOfChannels, clock: Clock, owner: str
) -> int:
    """One tick of each channel, `channel_concurrency` at a time; returns the gravest exit code."""
    ledgers, breakers = Ledgers(settings.storage.ledger, clock), Breakers(settings, bucket, clock, owner)

    def tick(channel: str) -> int:
        part = part_of(bucket, settings, channel)
        manager = Manager(
            settings,
            part,
            PollsInProcess(settings, keys, part, clock, scripts.of(channel)),
            keys,
            clock,
            owner=owner,
            pipeline=pipeline_of(channel),
            ledgers=ledgers,
            breakers=breakers,
            spending=Spending(settings, bucket, clock, pipeline_of(channel)),
            unflagged=(Act.FETCH,),
        )
        with bind(channel=channel):
            return guarded(lambda: manager.tick().exit_code)

    return gravest(each(settings.channels, tick, settings.workflow.channel_concurrency))


def each(channels: tuple[str, ...], tick: Callable[[str], int], concurrency: int) -> dict[str, int]:
    """The exit code of each channel's tick. They are begun in an order of chance: machines that start together then
    meet at few of the leases."""
    order = SystemRandom().sample(channels, len(channels))
    with ThreadPoolExecutor(concurrency) as pool:
        return dict(zip(order, pool.map(tick, order), strict=True))


def gravest(codes: Mapping[str, int]) -> int:
    """The gravest exit code; which channels have it is said in the log."""
    for code in _GRAVITY:
        channels = sorted(channel for channel, found in codes.items() if found == code)
        if channels and code:
            _log.error("%d of %d channels ended with %d: %s", len(channels), len(codes), code, ", ".join(channels[:20]))
        if channels:
            return code
    return 0


class PollsInProcess:
    """`Scripts` that ask Midjourney in this process, and leave everything else to `others`."""

    def __init__(self, settings: Settings, keys: Keys, bucket: Bucket, clock: Clock, others: Scripts) -> None:
        self._settings = settings
        self._keys = keys
        self._bucket = bucket
        self._clock = clock
        self._others = others

    def run(self, script: str, arguments: list[str], lease: Lease) -> Ended:
        if script != "fetch_media":
            return self._others.run(script, arguments, lease)
        return InProcessScripts(self._stage, []).run(script, arguments, lease)

    def _stage(self, lease: Lease) -> Stage:
        store = DocumentStore(self._bucket, self._settings.paths, lease, self._clock)
        store.read()
        vendors, studio = RealVendors(self._settings, self._keys), RealStudio(self._settings)
        return Stage(self._settings, store, vendors, studio, self._clock)
