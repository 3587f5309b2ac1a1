"""One client per vendor. Each speaks its vendor's protocol and classifies its errors; only this package looks at status
codes.

There are three kinds of calls, one of them paid, which fail differently (see retake/errors.py):

    submit  (paid)   returns the task's id   or raises Refused (not carried out) or OutcomeUnknown (cannot know)
    poll    (free)   returns a TaskState     or raises PollFailed
    fetch   (free)   returns bytes           or raises PollFailed

No client retries a call: the pipeline's driver decides how often something is tried. Pipelines know the protocols below
and nothing else about a vendor.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Any, BinaryIO, NamedTuple, Protocol, runtime_checkable

from retake.errors import TaskFailed


class TaskState(NamedTuple):
    """The state of a paid task: running (neither is set), done (`result`), or failed (`failure`)."""

    result: dict[str, Any] | None = None  # the vendor's result object, unchanged
    failure: TaskFailed | None = None
    progress: str = ""  # for people, in the vendor's words: "processing 40 %"

    @property
    def running(self) -> bool:
        return self.result is None and self.failure is None


class Midjourney(Protocol):
    """Pictures from a prompt, from any vendor that resells Midjourney."""

    def imagine(self, prompt: str, nonce: int) -> str:
        """Order four pictures and return the task's id. Paid.

        `nonce` (0 … 2**32-1) is passed as Midjourney's --seed, so that the order can be found in the vendor's history.
        Raises Refused, OutcomeUnknown.
        """
        ...

    def upscale(self, task_id: str, index: int) -> str:
        """Order picture `index` (1–4) of an imagine task in full size and return the task's id. Paid.

        Raises Refused, OutcomeUnknown.
        """
        ...

    def fetch(self, task_id: str) -> TaskState:
        """Return the state of the task; a result has `image_url`. Free. Raises PollFailed."""
        ...

    def find(self, asked: Mapping[str, Any]) -> str | None:
        """Return the id of the task that a call of unknown outcome created, or None. Free.

        `asked` is what was saved before the call: `step` ("imagine" or "upscale"), `requested_at_utc`, and `nonce` or
        `origin_task_id` and `index`. None means that it was not found, which does not prove that the call was not
        carried out. Never raises a VendorError.
        """
        ...


class VideoGenerator(Protocol):
    """A video from a picture (Runway)."""

    @property
    def min_poll_s(self) -> float:
        """Minimum number of seconds between two polls."""
        ...

    def create(self, image: str, prompt: str) -> str:
        """Order a video of `image` and return the task's id. Paid.

        `image` is a data URI within the vendor's size limit. Raises Refused, OutcomeUnknown.
        """
        ...

    def usage(self) -> dict[str, int] | None:
        """Return the vendor's usage counters for the account, or None if it does not report any. Free; never raises.

        Equal counters before a call and some minutes after it mean that a call whose answer was lost was not carried
        out.
        """
        ...

    def poll(self, task_id: str) -> TaskState:
        """Return the state of the task; a result has `output`, a list of URLs. Free. Raises PollFailed."""
        ...


@runtime_checkable
class OrderPreparation(Protocol):
    """An optional part of a video generator: loads what an order needs before the order is recorded."""

    def prepare(self) -> None:
        """Load it. A process that fails or dies here leaves no order of unknown outcome."""
        ...


class ChatModel(Protocol):
    """Texts from an OpenAI-compatible chat API."""

    def write(self, system: str, user: str, *, temperature: float, max_tokens: int) -> dict[str, Any]:
        """Return the JSON object that the model answers with. Paid (a little).

        Raises Refused, OutcomeUnknown, and TaskFailed for an answer that was billed but is unusable.
        """
        ...

    def choose(self, question: str, images: Sequence[str]) -> int:
        """Return which of `images` (URLs or data URIs) the model prefers: 1 … len(images). Paid. Raises VendorError."""
        ...


class Downloader(Protocol):
    """Downloads of files behind links that expire."""

    def download(self, url: str, max_bytes: int | None = None) -> bytes:
        """Return the whole file, of at most `max_bytes` (None: the client's own limit). Free. Raises PollFailed."""
        ...


@runtime_checkable
class SavingDownloader(Protocol):
    """An optional part of a downloader, for files too large for memory."""

    def save(self, url: str, file: BinaryIO, max_bytes: int | None = None) -> None:
        """Download like `Downloader.download`, but into `file`, with only a small part in memory at a time."""
        ...


def save(downloader: Downloader, url: str, file: BinaryIO, max_bytes: int | None = None) -> None:
    """Download into `file`, through memory if the downloader cannot save. Raises PollFailed."""
    if isinstance(downloader, SavingDownloader):
        downloader.save(url, file, max_bytes)
    else:
        file.write(downloader.download(url, max_bytes))


class VideoDetails(NamedTuple):
    """The metadata of a video for a platform."""

    title: str
    description: str
    tags: tuple[str, ...]
    category_id: str
    privacy: str  # "private", "unlisted" or "public"
    made_for_kids: bool


class UploadSource(Protocol):
    """The bytes of a video."""

    @property
    def size(self) -> int:
        """The number of bytes, at least 1."""
        ...

    def read(self, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`."""
        ...


class UploadHooks(Protocol):
    """What the caller of an upload checks and records along the way. An exception from a method ends the upload."""

    def check(self) -> None:
        """Called before each request, so that an upload that lost its claim sends nothing more."""
        ...

    def started(self, session: str) -> None:
        """Save the URI of a new session durably. Called before the first byte of the video is sent."""
        ...

    def before_last_chunk(self) -> None:
        """Record that the last chunk is about to be sent: from now on the video may exist.

        Called before each attempt to send it.
        """
        ...


class VideoPlatform(Protocol):
    """A platform that publishes videos (YouTube)."""

    def upload(
        self, details: VideoDetails, source: UploadSource, hooks: UploadHooks, *, session: str | None = None
    ) -> str:
        """Publish a video and return its id.

        Without `session`, one session is started, with exactly one request: a session whose start got no answer has
        made no video. With `session`, that session is queried first: if it is finished, its video's id is returned and
        nothing is sent. Raises SessionGone if the session does not exist (any longer), PollFailed for anything else;
        the session then stays usable, unless the error says otherwise.
        """
        ...

    def find(self, nonce: str) -> str | None:
        """Return the id of the account's newest video whose description has `nonce` as its last line, or None.

        None does not prove that there is no such video: a new one may take a while to be listed. Raises PollFailed.
        """
        ...

    def set_thumbnail(self, video_id: str, jpeg: bytes) -> None:
        """Replace the thumbnail of a video. May be repeated. Raises PollFailed."""
        ...


class PromptPhase(StrEnum):
    """The phase of a prompt on an image server."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"  # with an error, or without a file
    INTERRUPTED = "interrupted"
    GONE = "gone"  # the server does not know it: it was never accepted, or the server was restarted


class ImageFile(NamedTuple):
    """A file that an image server has made, as the server names it."""

    filename: str
    subfolder: str
    type: str  # "output", "temp" or "input"


class PromptState(NamedTuple):
    """The state of a prompt: `files` (at least one) if it is done, `failure` if it failed or was interrupted."""

    phase: PromptPhase
    files: tuple[ImageFile, ...] = ()
    failure: TaskFailed | None = None

    @property
    def running(self) -> bool:
        """Whether the server has the prompt and has not ended it."""
        return self.phase in (PromptPhase.WAITING, PromptPhase.RUNNING)


class PromptEvents(Protocol):
    """Events that an image server pushes, for `ImageServer.wait`."""

    @property
    def open(self) -> bool:
        """Whether further events can arrive."""
        ...

    def ended(self, prompt_id: str, timeout_s: float) -> bool:
        """Return True once an event says that the prompt has ended, or False after `timeout_s` seconds or a lost
        connection."""
        ...


class ImageServer(Protocol):
    """A server that executes prompts (graphs of nodes) one after another and makes files (ComfyUI)."""

    @property
    def url(self) -> str:
        """The base URL."""
        ...

    def alive(self) -> bool:
        """Return whether the server answers now. A loaded server may miss a single check."""
        ...

    def state(self, prompt_id: str) -> PromptState:
        """Return the state of a prompt. Raises PollFailed."""
        ...

    def listen(self, client_id: str) -> AbstractContextManager[PromptEvents]:
        """Open the event stream of a client; enter it before `submit`. Never raises: without events, `wait` polls."""
        ...

    def submit(self, graph: Mapping[str, Any], prompt_id: str, client_id: str) -> None:
        """Have a graph executed as `prompt_id`. One request, never repeated.

        The server executes an id as often as it is sent: check `state` before, and after OutcomeUnknown. Raises Refused
        (class B for a graph that the server does not accept), OutcomeUnknown.
        """
        ...

    def wait(
        self,
        prompt_id: str,
        events: PromptEvents,
        *,
        timeout_s: float,
        silence_s: float = 0.0,
        meanwhile: Callable[[], object] = lambda: None,
        seen: Callable[[PromptState], object] = lambda state: None,
    ) -> PromptState:
        """Return the state of a prompt when it has ended, or after `timeout_s` seconds.

        `meanwhile` is called about once a second, between requests, and an exception from it ends the wait; `seen` is
        called with each state that the server returns. Raises PollFailed once the server has given no usable answer for
        `silence_s` seconds.
        """
        ...

    def view(self, file: ImageFile) -> bytes:
        """Return a file. Raises PollFailed, and TaskFailed if the server does not have it."""
        ...

    def upload(self, name: str, data: bytes) -> str:
        """Store a picture and return the name by which a graph loads it. May be repeated. Raises PollFailed."""
        ...

    def cancel(self, prompt_id: str) -> None:
        """Remove a prompt from the queue, or interrupt it if it is running. Raises PollFailed."""
        ...


class Quota(NamedTuple):
    """A quantity that the vendor counts."""

    name: str  # "credits", "videos of gen4_turbo today"
    left: float | None  # None: the vendor does not say
    limit: float | None = None


class Health(NamedTuple):
    """What a vendor says about the account once it answers and accepts the key."""

    says: str
    quotas: tuple[Quota, ...] = ()
    doubts: tuple[str, ...] = ()  # what will nevertheless prevent paid calls
    clock_ahead_s: float = 0.0  # how far the vendor's clock is ahead of ours; 0 if they agree to a minute


@runtime_checkable
class Healthy(Protocol):
    """A client that can check its vendor without paying."""

    def health(self) -> Health:
        """Return what the vendor says about the account. Free: nothing is ordered. Raises PollFailed."""
        ...

    def test_request(self) -> str:
        """Make the same call as a tick, about a task that does not exist, and return the result in words. Free.

        Raises PollFailed.
        """
        ...


NO_TASK = "00000000-0000-0000-0000-000000000000"
"""The id of a task that does not exist."""

NO_SUCH_TASK = "it has no such task, as expected"
