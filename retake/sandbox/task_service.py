"""Where the stand-ins' tasks are accepted and their pictures and videos are made: lazily, and each at most once."""

import threading
from collections.abc import Mapping
from hashlib import sha256
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import NAMESPACE_URL, uuid5

from retake.clock import Clock
from retake.sandbox import pictures
from retake.sandbox.database import SandboxDatabase
from retake.sandbox.http_messages import Request
from retake.sandbox.task import Pace, TaskStatus, VendorTask

Media = tuple[bytes, str]  # the bytes and their content type


class TaskService:
    """The back room that the vendors' stand-ins share.

    `singles`: whether an imagine task shows its four pictures apart, as PiAPI does on its better plans alone.
    `quick`: tiny plain media instead of pictures worth looking at.
    """

    def __init__(
        self, books: SandboxDatabase, clock: Clock, pace: Pace, *, seed: int, quick: bool, singles: bool
    ) -> None:
        self.database, self.pace, self.seed, self.quick, self.singles = books, pace, seed, quick, singles
        self.url = ""  # where the sandbox answers; known once it listens
        self._clock = clock
        self._lock = threading.Lock()
        self._making: dict[str, threading.Lock] = {}

    def now(self) -> float:
        """Seconds since the epoch, by the sandbox's clock."""
        return self._clock.now().timestamp()

    def stage(self, task: VendorTask) -> TaskStatus:
        return task.stage(self.now())

    def accept(
        self,
        visit: "ApiCall",
        kind: str,
        *,
        price: int,
        seed: int | None = None,
        source: str = "",
        order: Mapping[str, Any] = MappingProxyType({}),
    ) -> VendorTask:
        """Start, and bill, the task that `visit` asks for; `price` in mills.

        Pictures are made of what a request has as «input», in PiAPI's words; `order` adds that to another vendor's.
        """
        task_id = str(uuid5(NAMESPACE_URL, f"{self.database.identity}/{self.seed}/{kind}/{visit.n}"))
        own_seed = int.from_bytes(sha256(f"{self.seed}/{kind}/{visit.n}".encode()).digest()[:4])
        task = VendorTask(
            id=task_id,
            kind=kind,
            created=self.now(),
            duration=getattr(self.pace, kind),
            fate=visit.fate,
            request={**visit.request.summary(), **order},
            price=price,
            seed=own_seed if seed is None else seed,
            source=source,
        )
        self.database.add_task(task)
        return task

    def keep(self, body: bytes) -> str:
        """Keep what a customer sent; returns its key among the files."""
        key = f"sent/{sha256(body).hexdigest()}"
        self.database.keep_file(key, body)
        return key

    def link(self, task: VendorTask, name: str) -> str:
        return f"{self.url}/files/{task.id}/{name}"

    def media(self, task: VendorTask, name: str) -> Media | None:
        """The file `name` of a finished `task`; None where there is none of that name.

        imagine: grid.png (the four in a 2 × 2 grid) and 1.png … 4.png; upscale: picture.png; runway: video.mp4.
        """
        if self.stage(task).word != "completed" or name not in _names(task):
            return None
        return self._once(task, name), "video/mp4" if name.endswith(".mp4") else "image/png"

    def _once(self, task: VendorTask, name: str) -> bytes:
        key = f"made/{task.id}/{name}"
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:
            body = self.database.file(key)
            if body is None:
                body = self._make(task, name)
                self.database.keep_file(key, body)
        return body

    def _make(self, task: VendorTask, name: str) -> bytes:
        if task.kind == "runway":
            from retake.sandbox import video

            image = self.database.file(task.source) or pictures.of_prompt(
                str(task.request.get("promptText", "")), task.seed
            )
            shoot = video.make_quick_video if self.quick else video.make_video
            return shoot(image, task.request["ratio"], int(task.request.get("duration") or 10), task.seed)
        origin = self.database.task(task.request["input"]["origin_task_id"]) if task.kind == "upscale" else task
        assert origin is not None, "an upscale is only accepted with its origin in the books"
        wish = pictures.PictureSpec.of(origin, quick=self.quick)
        if task.kind == "upscale":
            return pictures.upscale(wish, int(task.request["input"]["index"]))
        return pictures.grid(wish) if name == "grid.png" else pictures.single(wish, int(name[0]))


class ApiCall(NamedTuple):
    """One call at a vendor's stand-in: what was asked, by whom it is served, and what was ordered for it."""

    request: Request
    studio: TaskService
    n: int  # the how-manieth call of its kind
    fate: str  # what its task shall come to, «» for a good end
    args: tuple[str, ...]  # the parts of the path that stand for something


def _names(task: VendorTask) -> tuple[str, ...]:
    return {
        "imagine": ("grid.png", "1.png", "2.png", "3.png", "4.png"),
        "upscale": ("picture.png",),
        "runway": ("video.mp4",),
    }[task.kind]
