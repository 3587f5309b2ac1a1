"""A story pipeline in which everything is real except the vendors, the media tools and the clock."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from retake.bucket import ANY, Lease, NotFound
from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock
from retake.paid.spending import Spending
from retake.story.documents import Documents, MidjourneyDocument, parse_gen, parse_midjourney, parse_public
from retake.story.inprocess import InProcessScripts
from retake.story.runner import StoryRunner
from retake.story.script import StepContext
from retake.story.settings import LEASE, Settings
from retake.story.store import DocumentStore
from retake.testing.vendors import KEYS, PROMPTS, Died, FakeMedia, FakeVendors
from retake.ticking.process import Process
from retake.ticking.tick import NO_ORDERS, Orders, ScriptResult, Tick


class BucketView:
    """Reads and writes the bucket of a world without a lease."""

    bucket: MemoryBucket
    clock: FakeClock
    settings: Settings

    def json(self, key: str) -> dict[str, Any]:
        return dict(json.loads(self.bucket.read(key)[0]))

    def put(self, key: str, value: object) -> None:
        self.bucket.write(key, value if isinstance(value, bytes) else json.dumps(value).encode(), ANY)

    def everything(self) -> dict[str, bytes]:
        """Return every file in the bucket, by key."""
        return {key: self.bucket.read(key)[0] for key in self.keys_of()}

    @property
    def documents(self) -> Documents:
        paths = self.settings.paths
        public, gen, doc = (self._data(key) for key in (paths.config_public, paths.config_gen, paths.config_midjourney))
        return Documents(parse_public(public), parse_gen(gen), parse_midjourney(doc))

    @property
    def doc(self) -> MidjourneyDocument:
        return self.documents.midjourney

    @property
    def status(self) -> str | None:
        return self.doc.status

    @property
    def generation_id(self) -> str | None:
        return self.documents.gen.generation_id

    def keys_of(self, prefix: str = "") -> list[str]:
        return [entry.key for entry in self.bucket.list(prefix)]

    def later(self, **delta: float) -> None:
        self.clock.moment += timedelta(**delta)

    def _data(self, key: str) -> bytes:
        try:
            return self.bucket.read(key)[0]
        except NotFound:
            return b"{}"


class World(BucketView):
    """A story pipeline and everything it touches."""

    def __init__(self, bucket: MemoryBucket | None = None, **workflow: Any) -> None:
        defaults = Settings()
        self.settings = defaults._replace(workflow=defaults.workflow._replace(**workflow))
        self.bucket = bucket or MemoryBucket()
        self.clock = FakeClock()
        self.vendors = FakeVendors()
        self.media = FakeMedia()
        self.keys = KEYS
        self.interval_s = 60.0
        self.ended: list[str] = []
        self.prompts = PROMPTS
        self.spending: Spending | None = None  # of the whole bucket, if this world uses only part of it
        self.stopping: Callable[[], bool] = lambda: False

    def after_tick(self) -> None:
        """Check what must hold after every tick that took the lease; for subclasses to override."""

    # --- running ---

    def tick(self, orders: Orders = NO_ORDERS) -> Tick:
        """Run one tick, then let `interval_s` pass."""
        tick = self.manager().tick(orders)
        if "is held by" not in tick.why:
            self.after_tick()
        if tick.ended:
            self.ended.append(tick.ended)
        self.clock.sleep(self.interval_s)
        return tick

    def ticks(self, number: int) -> list[Tick]:
        return [self.tick() for _ in range(number)]

    def manager(self, **given: Any) -> StoryRunner:
        """Return a new runner. `given` are further arguments of StoryRunner."""
        return StoryRunner(self.settings, self.bucket, self, self.keys, self.clock, owner="test", **given)

    def run(self, script: str, arguments: list[str], lease: Lease) -> ScriptResult:
        """Run a script in this process."""
        try:
            return InProcessScripts(self.context, self.prompts).run(script, arguments, lease)
        except Died:
            return ScriptResult(-9)

    def context(self, lease: Lease) -> StepContext:
        store = DocumentStore(self.bucket, self.settings.paths, lease, self.clock)
        store.read()
        return StepContext(
            self.settings,
            store,
            self.vendors,
            self.media,
            self.clock,
            process=Process(self.clock, stopping=lambda: self.stopping()),
            nonce=lambda: 7 + self.vendors.last_id,  # different for every order that was carried out
            spending=self.spending,
        )

    def by_hand(self, work: Callable[[StepContext], None]) -> None:
        """Do a step's work under a lease of its own, as its script does when run by hand. Raises what `work` raises."""
        lease = self.bucket.lease(LEASE, "somebody")
        try:
            context = self.context(lease)
            work(context)
            context.store.save_midjourney(context.store.documents.midjourney)
        finally:
            lease.release()
