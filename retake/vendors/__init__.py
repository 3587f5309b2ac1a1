"""One client a vendor. Each speaks its vendor's wire protocol and maps its vendor's errors; outside this room nobody
looks at a status code.

Three kinds of call, three ways to fail (see retake/errors.py):

    submit  (paid)   returns the task's id   or raises Refused (not carried out) or OutcomeUnknown (cannot know)
    poll    (free)   returns a TaskState     or raises PollFailed
    fetch   (free)   returns bytes           or raises PollFailed

No client retries a call by itself: how often something is asked is decided once, by whoever drives the pipeline.
The story knows the protocols below and nothing else about a vendor.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from retake.errors import TaskFailed


class TaskState(NamedTuple):
    """How a paid task stands. Exactly one of: still running (both None), done (`result`), failed (`failure`)."""

    result: dict[str, Any] | None = None  # the vendor's result object, as it came
    failure: TaskFailed | None = None
    progress: str = ""  # for people, in the vendor's words: «processing 40 %»

    @property
    def running(self) -> bool:
        return self.result is None and self.failure is None


class Midjourney(Protocol):
    """Pictures from a prompt, through whichever vendor sells them."""

    def imagine(self, prompt: str, nonce: int) -> str:
        """Order four pictures; returns the task's id. Paid. `nonce` (0 … 2**32-1) goes along as Midjourney's seed,
        so that the order can be recognised in the vendor's history. Raises Refused, OutcomeUnknown."""
        ...

    def upscale(self, task_id: str, index: int) -> str:
        """Order picture `index` (1–4) of an imagine task in full size; returns the task's id. Paid. Same errors."""
        ...

    def fetch(self, task_id: str) -> TaskState:
        """How the task stands. Free. A result has `image_url`. Raises PollFailed."""
        ...

    def find(self, asked: Mapping[str, Any]) -> str | None:
        """The id of the task that a call of unknown outcome made, if the vendor can tell. Free.

        `asked` is what was saved before the call: `step` («imagine»/«upscale»), `requested_at_utc`, and `nonce` or
        `origin_task_id` and `index`. None means «not found», which is no proof that it was not carried out. Never
        raises a VendorError: a vendor that does not answer cannot tell.
        """
        ...


class VideoGenerator(Protocol):
    """A video from a picture (Runway)."""

    @property
    def min_poll_s(self) -> float:
        """The vendor wants no poll sooner than so many seconds after the last."""
        ...

    def create(self, image: str, prompt: str) -> str:
        """Order a video of `image` (a data URI that fits the vendor's limits); returns the task's id. Paid.
        Raises Refused, OutcomeUnknown."""
        ...

    def usage(self) -> dict[str, int] | None:
        """What the vendor has counted for the account so far; None where it cannot tell. Free; never raises.

        Saved before a call and compared some minutes after it, equal counts say that a call whose answer was lost was
        not carried out.
        """
        ...

    def poll(self, task_id: str) -> TaskState:
        """How the task stands. Free. A result has `output`: a list of URLs. Raises PollFailed."""
        ...


class ChatModel(Protocol):
    """Texts from an OpenAI-compatible chat API."""

    def write(self, system: str, user: str, *, temperature: float, max_tokens: int) -> dict[str, Any]:
        """The JSON object that the model answers with. Paid (a little). Raises Refused, OutcomeUnknown, and TaskFailed
        for an answer that was billed and is of no use."""
        ...

    def choose(self, question: str, images: Sequence[str]) -> int:
        """Which of `images` (URLs or data URIs) the model likes best: 1 … len(images). Raises VendorError."""
        ...


class Downloader(Protocol):
    """Files behind links that expire."""

    def download(self, url: str, max_bytes: int | None = None) -> bytes:
        """The whole file, if it has at most `max_bytes`; None is what the client was made for. Free. Raises
        PollFailed."""
        ...
