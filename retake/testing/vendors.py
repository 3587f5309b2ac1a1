"""Fake vendors and media tools, in this process, with the outcomes that a test plans."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from retake.errors import Code, LinkExpired, OutcomeUnknown, PollFailed, Refused, TaskFailed
from retake.keys import Keys
from retake.media import MediaError
from retake.story.content import Prompt
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
    """The script's process was killed between two instructions."""


class FakeVendors:
    """Answers calls of each kind with the outcomes planned for it, and with "ok" after that; counts what is billed.

    Kinds and outcomes: the paid ones (write, imagine, upscale, create): ok, refused, rejected (class B), key (class C),
    unknown (carried out, answer lost), lost (not carried out, answer lost), dies (carried out, then the script is
    killed). fetch and poll: ok, running, failed, failed_b, error, key. download: ok, error, expired. Also for write:
    wasted.
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
        self.midjourney = self.video_generator = self.writer = self.downloader = lambda: self

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

    # all the protocols of retake.vendors in one class

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


class FakeMedia:
    """Media tools that return a few bytes; `broken` makes them fail."""

    def __init__(self) -> None:
        self.broken = False

    def _result(self, content: bytes) -> bytes:
        if self.broken:
            raise MediaError("ffmpeg failed")
        return content

    def sized(self, picture: bytes) -> bytes:
        return self._result(b"PNG " + picture)

    def quarters(self, grid: bytes) -> list[bytes]:
        return [grid] * 4

    def data_uri(self, picture: bytes) -> str:
        return "data:image/png;base64,"

    def placeholder(self, topic: str) -> bytes:
        return self._result(b"PNG " + topic.encode())

    def mock_video(self, picture: bytes) -> bytes:
        return self._result(b"MOCK")

    def check_video(self, video: bytes | Path) -> str:
        self._result(b"")
        return ""
