"""Vendors that answer at once, in this process, and media in name only: what is left is the driver's own work."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from retake.vendors import TaskState

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


class FakeVendors:
    """The protocols of retake.vendors, all in one. Every task is done when it is first asked for."""

    min_poll_s = 0.0

    def __init__(self) -> None:
        self._ids = count(1)

    def midjourney(self) -> "FakeVendors":
        return self

    video_generator = writer = downloader = midjourney

    def write(self, system: str, user: str, *, temperature: float, max_tokens: int) -> dict[str, Any]:
        return CONTENT

    def choose(self, question: str, images: Sequence[str]) -> int:
        return 1

    def imagine(self, prompt: str, nonce: int) -> str:
        return f"imagine-{next(self._ids)}"

    def upscale(self, task_id: str, index: int) -> str:
        return f"upscale-{next(self._ids)}"

    def fetch(self, task_id: str) -> TaskState:
        return TaskState({"image_url": f"https://media.example/{task_id}.png"})

    def find(self, asked: Mapping[str, Any]) -> str | None:
        return None

    def create(self, image: str, prompt: str) -> str:
        return f"video-{next(self._ids)}"

    def usage(self) -> dict[str, int] | None:
        return None

    def poll(self, task_id: str) -> TaskState:
        return TaskState({"output": [f"https://media.example/{task_id}.mp4"]})

    def download(self, url: str) -> bytes:
        return url.encode()


class FakeStudio:
    """Takes every picture and every video as it is."""

    def sized(self, picture: bytes) -> bytes:
        return picture

    def quarters(self, grid: bytes) -> list[bytes]:
        return [grid] * 4

    def data_uri(self, picture: bytes) -> str:
        return "data:image/png;base64,"

    def placeholder(self, topic: str) -> bytes:
        return topic.encode()

    def mock_video(self, picture: bytes) -> bytes:
        return picture

    def check_video(self, video: bytes) -> str:
        return ""
