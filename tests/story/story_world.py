"""The pipeline with everything real but the vendors, the studio and the clock: a bucket in memory, scripts in process.

world = World()
world.vendors.plan("upscale", "refused", "refused")   # the first two upscales are refused, all else goes well
tick = world.tick()
assert world.status == "upscale_trigger_failed"
"""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from story_runs import check_agreement

from retake.bucket import ANY, Lease, NotFound
from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock
from retake.errors import Code, LinkExpired, OutcomeUnknown, PollFailed, Refused, TaskFailed
from retake.keys import Keys
from retake.media import MediaError
from retake.story.content import Prompt
from retake.story.documents import Documents, MidjourneyDocument, parse_gen, parse_midjourney, parse_public
from retake.story.environment import LEASE
from retake.story.inprocess import InProcessScripts
from retake.story.runner import StoryRunner
from retake.story.settings import Settings
from retake.story.step_context import StepContext
from retake.story.store import DocumentStore
from retake.ticking.process import Process
from retake.ticking.scripts import ScriptResult
from retake.ticking.tick import NO_ORDERS, Orders, Tick
from retake.vendors import TaskState

KEYS = Keys("key", "key", "key")

CONTENT = {
    "topic": "A lighthouse that nobody lit",
    "short_topic": "Lighthouse",
    "text": "It stood there all the same.",
    "sarcasm": {"comment": "Of course it did.", "poll": {"question": "Lit?", "options": ["yes", "no"]}},
    "script": "The camera climbs.",
    "first_frame_description": "A lighthouse in fog.",
    "midjourney_prompt": "a lighthouse in fog",
    "runway_prompt": "the fog drifts",
}

PROMPTS = [Prompt("all", tuple(CONTENT), "Answer in JSON.", "Avoid: $used_topics", 0.5, 500)]

PAID = ("write", "imagine", "upscale", "create")


class Died(BaseException):
    """The script's process is gone, between two instructions."""


class FakeVendors:
    """Plays what is planned, kind by kind, and «ok» once the plan is used up; counts what is billed.

    Kinds and outcomes: the paid ones (write, imagine, upscale, create): ok, refused, rejected (class B), key (class C),
    unknown (carried out, answer lost), lost (not carried out, answer lost), dies (carried out, then the script is
    killed). fetch and poll: ok, running, failed, failed_b, error, key. download: ok, error, expired. write: wasted.
    """

    min_poll_s = 0.0

    def __init__(self) -> None:
        self.plans: dict[str, deque[str]] = defaultdict(deque)
        self.choose_next: Callable[[str], str] | None = None
        self.billed: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.counts: Callable[[int], dict[str, int]] | None = None
        self.findable: dict[str, str] = {}
        self.last_id = 0

    def plan(self, kind: str, *outcomes: str) -> None:
        self.plans[kind].extend(outcomes)

    def next(self, kind: str) -> str:
        self.asked[kind] += 1
        if self.choose_next:
            return self.choose_next(kind)
        return self.plans[kind].popleft() if self.plans[kind] else "ok"

    def pay(self, kind: str) -> str:
        outcome = self.next(kind)
        if outcome == "refused":
            raise Refused(Code.UNAVAILABLE, f"{kind}: HTTP 500")
        if outcome == "rejected":
            raise Refused(Code.REJECTED, f"{kind}: banned prompt")
        if outcome == "key":
            raise Refused(Code.UNAUTHORIZED, f"{kind}: HTTP 401")
        if outcome == "lost":
            raise OutcomeUnknown(Code.NETWORK, f"{kind}: cut before")
        self.billed[kind] += 1
        self.last_id += 1
        if outcome == "unknown":
            raise OutcomeUnknown(Code.TIMEOUT, f"{kind}: no answer")
        if outcome == "wasted":
            raise TaskFailed(Code.BAD_ANSWER, f"{kind}: not what was asked for")
        if outcome == "dies":
            raise Died
        return f"{kind}-{self.last_id}"

    def look(self, kind: str, result: dict[str, Any]) -> TaskState:
        outcome = self.next(kind)
        if outcome == "error":
            raise PollFailed(Code.NETWORK, f"{kind}: connection reset")
        if outcome == "key":
            raise PollFailed(Code.UNAUTHORIZED, f"{kind}: HTTP 401")
        if outcome == "running":
            return TaskState(progress="half")
        if outcome == "failed":
            return TaskState(failure=TaskFailed(Code.TASK_FAILED, f"{kind}: it just failed"))
        if outcome == "failed_b":
            return TaskState(failure=TaskFailed(Code.REJECTED, f"{kind}: moderation"))
        return TaskState(result=result)

    # the protocols of retake.vendors, all in one

    def midjourney(self) -> FakeVendors:
        return self

    video_generator = writer = downloader = midjourney

    def write(self, system: str, user: str, *, temperature: float, max_tokens: int) -> dict[str, Any]:
        self.pay("write")
        return CONTENT

    def choose(self, question: str, images: Sequence[str]) -> int:
        self.pay("choose")
        return 3

    def imagine(self, prompt: str, nonce: int) -> str:
        return self.pay("imagine")

    def upscale(self, task_id: str, index: int) -> str:
        return self.pay("upscale")

    def fetch(self, task_id: str) -> TaskState:
        singles = [f"https://cdn/{n}.png" for n in range(4)] if task_id.startswith("imagine") else []
        return self.look("fetch", {"image_url": "https://cdn/grid.png", "temporary_image_urls": singles})

    def find(self, asked: Mapping[str, Any]) -> str | None:
        return self.findable.get(asked["step"])

    def create(self, image: str, prompt: str) -> str:
        return self.pay("create")

    def usage(self) -> dict[str, int] | None:
        return self.counts(self.billed["create"]) if self.counts else None

    def poll(self, task_id: str) -> TaskState:
        return self.look("poll", {"output": ["https://cdn/film.mp4"]})

    def download(self, url: str, max_bytes: int | None = None) -> bytes:
        outcome = self.next("download")
        if outcome == "error":
            raise PollFailed(Code.NETWORK, "download: cut")
        if outcome == "expired":
            raise LinkExpired(Code.BAD_ANSWER, "download: HTTP 403")
        return b"bytes of " + url.encode()


class FakeStudio:
    """Media in name only; `broken` makes it fail."""

    def __init__(self) -> None:
        self.broken = False

    def _made(self, what: bytes) -> bytes:
        if self.broken:
            raise MediaError("ffmpeg is not well")
        return what

    def sized(self, picture: bytes) -> bytes:
        return self._made(b"PNG " + picture)

    def quarters(self, grid: bytes) -> list[bytes]:
        return [grid] * 4

    def data_uri(self, picture: bytes) -> str:
        return "data:image/png;base64,"

    def placeholder(self, topic: str) -> bytes:
        return self._made(b"PNG " + topic.encode())

    def mock_video(self, picture: bytes) -> bytes:
        return self._made(b"MOCK")

    def check_video(self, video: bytes) -> str:
        self._made(video)
        return ""


class Heard(logging.Handler):
    """What is logged inside the `with`.

    with Heard() as log: world.tick()
    assert log.alerts == ["outcome_unknown"]
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def __enter__(self) -> Heard:
        logger = logging.getLogger("retake")
        self._level = logger.level
        logger.setLevel(logging.INFO)
        logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logger = logging.getLogger("retake")
        logger.removeHandler(self)
        logger.setLevel(self._level)

    @property
    def alerts(self) -> list[str]:
        """The codes of the alerts."""
        return [vars(record)["alert"] for record in self.records if "alert" in vars(record)]

    @property
    def warnings(self) -> list[str]:
        """The messages of warnings, alerts left out."""
        return [record.getMessage() for record in self.records if record.levelno == logging.WARNING]


class World:
    """One pipeline and all that it touches."""

    def __init__(self, bucket: MemoryBucket | None = None, **workflow: Any) -> None:
        defaults = Settings()
        self.settings = defaults._replace(workflow=defaults.workflow._replace(**workflow))
        self.bucket = bucket or MemoryBucket()
        self.clock = FakeClock()
        self.vendors = FakeVendors()
        self.media = FakeStudio()
        self.keys = KEYS
        self.interval_s = 60.0
        self.ended: list[str] = []
        self.prompts = PROMPTS
        self.stopping: Callable[[], bool] = lambda: False

    # --- running ---

    def tick(self, orders: Orders = NO_ORDERS) -> Tick:
        """One tick, and then `interval_s` passes."""
        tick = self.manager().tick(orders)
        if "is held by" not in tick.why:
            check_agreement(self)
        if tick.ended:
            self.ended.append(tick.ended)
        self.clock.sleep(self.interval_s)
        return tick

    def ticks(self, number: int) -> list[Tick]:
        return [self.tick() for _ in range(number)]

    def manager(self) -> StoryRunner:
        return StoryRunner(self.settings, self.bucket, self, self.keys, self.clock, owner="test")

    def run(self, script: str, arguments: list[str], lease: Lease) -> ScriptResult:
        """The scripts, in this process."""
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
            nonce=lambda: 7,
        )

    def by_hand(self, work: Callable[[StepContext], None]) -> None:
        """A step's work under a lease of its own, as when its script is run by hand; its errors are raised."""
        lease = self.bucket.lease(LEASE, "somebody")
        try:
            work(self.context(lease))
        finally:
            lease.release()

    # --- looking ---

    def json(self, key: str) -> dict[str, Any]:
        return dict(json.loads(self.bucket.read(key)[0]))

    def put(self, key: str, value: object) -> None:
        self.bucket.write(key, value if isinstance(value, bytes) else json.dumps(value).encode(), ANY)

    def everything(self) -> dict[str, bytes]:
        """The whole bucket."""
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
