"""Accepts the tasks of all stand-ins, and makes each picture or video when it is first downloaded."""

import threading
from collections.abc import Callable, Mapping
from hashlib import sha256
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import NAMESPACE_URL, uuid5

from retake.clock import Clock
from retake.sandbox import pictures, video
from retake.sandbox.database import SandboxDatabase
from retake.sandbox.http_messages import Request, Response
from retake.sandbox.task import Pace, TaskStatus, VendorTask

_FILES = {
    "imagine": ("grid.png", "1.png", "2.png", "3.png", "4.png"),  # the grid shows the four, 1 2 above 3 4
    "upscale": ("picture.png",),
    "runway": ("video.mp4",),
}


class ApiCall(NamedTuple):
    """One call of a vendor's API, as its stand-in handles it."""

    request: Request
    service: "TaskService"
    n: int  # its number among the calls of its kind, from 1
    fault: str  # how the task is to fail; "" for success
    args: tuple[str, ...]  # the variable parts of the path


class TaskService:
    """Tasks and files in `database`, timed by `clock` and `pace`.

    `singles` says whether an imagine task offers its four pictures one by one, as PiAPI does only on its better plans.
    With `quick`, media are tiny and plain.
    """

    def __init__(
        self, database: SandboxDatabase, clock: Clock, pace: Pace, *, seed: int, quick: bool, singles: bool
    ) -> None:
        self.database, self.pace, self.seed, self.quick, self.singles = database, pace, seed, quick, singles
        self.url = ""  # of the sandbox; set once it listens
        self.closing = threading.Event()  # set when the sandbox closes, for code that waits on behalf of a client
        self.guard = threading.RLock()  # held by a stand-in while it reads and changes its data
        self._clock = clock
        self._lock = threading.Lock()
        self._file_locks: dict[str, threading.Lock] = {}

    def now(self) -> float:
        """Return the sandbox's time in seconds since the epoch."""
        return self._clock.now().timestamp()

    def status(self, task: VendorTask) -> TaskStatus:
        return task.status(self.now())

    def accept(
        self,
        call: ApiCall,
        kind: str,
        *,
        price: int,
        seed: int | None = None,
        source: str = "",
        extra: Mapping[str, Any] = MappingProxyType({}),
    ) -> VendorTask:
        """Start the task that `call` asks for, and charge `price` mills.

        Pictures are made from "input" in the task's request, in PiAPI's form, and videos from "ratio", "duration" and
        "promptText", in Runway's; other vendors add these with `extra`.
        """
        own_seed = int.from_bytes(sha256(f"{self.seed}/{kind}/{call.n}".encode()).digest()[:4])
        task = VendorTask(
            id=str(uuid5(NAMESPACE_URL, f"{self.database.identity}/{self.seed}/{kind}/{call.n}")),
            kind=kind,
            created=self.now(),
            duration=getattr(self.pace, kind),
            fault=call.fault,
            request={**call.request.summary(), **extra},
            price=price,
            seed=own_seed if seed is None else seed,
            source=source,
        )
        self.database.add_task(task)
        return task

    def picture_task(self, task_id: object, seller: str = "") -> VendorTask | None:
        """Return the imagine or upscale task with that id if it was ordered from `seller` ("" is PiAPI)."""
        task = self.database.task(task_id) if isinstance(task_id, str) else None
        return task if task and is_picture_task(task, seller) else None

    def add_upload(self, body: bytes) -> str:
        """Store an image that a client sent, and return its key in the table of files."""
        key = f"sent/{sha256(body).hexdigest()}"
        self.database.put("files", key, body)
        return key

    def link(self, task: VendorTask, name: str) -> str:
        return f"{self.url}/files/{task.id}/{name}"

    def singles_of(self, task: VendorTask) -> list[str] | None:
        """Return the links to the four pictures of an imagine task, or None if they are not offered."""
        return [self.link(task, f"{index}.png") for index in (1, 2, 3, 4)] if self.singles else None

    def media(self, task: VendorTask, name: str) -> tuple[bytes, str] | None:
        """Return the file `name` of a completed task and its content type, or None if it has no such file."""
        if not self.status(task).completed or name not in _FILES[task.kind]:
            return None
        key = f"made/{task.id}/{name}"
        with self._lock:
            file_lock = self._file_locks.setdefault(key, threading.Lock())
        with file_lock:
            body = self.database.get("files", key)
            if body is None:
                body = self._make(task, name)
                self.database.put("files", key, body)
        return body, "video/mp4" if name.endswith(".mp4") else "image/png"

    def _make(self, task: VendorTask, name: str) -> bytes:
        if task.kind == "runway":
            prompt = str(task.request.get("promptText", ""))
            image = self.database.get("files", task.source) or pictures.from_prompt(prompt, task.seed)
            make = video.make_quick_video if self.quick else video.make_video
            return make(image, task.request["ratio"], int(task.request.get("duration") or 10), task.seed)
        origin = self.database.task(task.request["input"]["origin_task_id"]) if task.kind == "upscale" else task
        assert origin is not None, "an upscale is accepted only if its origin is in the database"
        spec = pictures.PictureSpec.of(origin, quick=self.quick)
        if task.kind == "upscale":
            return pictures.upscale(spec, int(task.request["input"]["index"]))
        return pictures.grid(spec) if name == "grid.png" else pictures.single(spec, int(name[0]))


def is_picture_task(task: VendorTask, seller: str = "") -> bool:
    """Return whether `task` is an imagine or upscale task ordered from `seller` ("" is PiAPI)."""
    return task.kind in ("imagine", "upscale") and task.request.get("seller", "") == seller


Control = Callable[[TaskService, Request], Response]
"""Answers a test's request below /sandbox/."""
