"""Calls to one ComfyUI server for a job: patient with a server that is silent for a while, and ended with the job."""

from collections.abc import Callable
from contextlib import suppress
from logging import getLogger
from time import monotonic
from typing import NamedTuple, TypeVar

from retake.errors import Code, CodedError, ErrorClass, OutcomeUnknown, PollFailed, TaskFailed
from retake.images import objects
from retake.images.graphs import Graph
from retake.images.held_job import HeldJob, JobLost
from retake.images.settings import ImageJobSettings
from retake.vendors import ImageFile, ImageServer, PromptEvents, PromptPhase, PromptState
from retake.vendors.http import bare

MAX_FILES = 10
"""Maximum number of a prompt's files in which a picture is looked for."""

_ASK_AGAIN_S = 1.0  # between a failed request and the next
_SLICES = 10  # checks, within an attempt's time limit, whether the prompt has left the server's queue
_MAX_QUEUE_FACTOR = 10  # maximum time in the server's queue, in multiples of an attempt's time limit

T = TypeVar("T")

_log = getLogger(__name__)


class MadePicture(NamedTuple):
    """The result of an attempt."""

    data: bytes
    kind: objects.PictureKind
    server_url: str


def affects_any_job(error: CodedError) -> bool:
    """Return whether an error is about the client or its rate: it would affect any job, until a person fixes it."""
    return error.error_class is ErrorClass.CRITICAL or error.code == Code.RATE_LIMIT


class ServerCalls:
    """Calls to `server` for the job `held`.

    Each may raise JobLost, JobInterrupted, and PollFailed after `worker_silence_seconds` without a usable answer.

    A server that answers everything else is not abandoned for another one, which would execute the prompt again: it has
    the time limit of an attempt to report the prompt's outcome; then TaskFailed is raised.
    """

    def __init__(self, server: ImageServer, held: HeldJob, settings: ImageJobSettings) -> None:
        self.server, self._held, self._settings = server, held, settings
        self._silence_s = settings.worker_silence_seconds
        self.lost: OutcomeUnknown | None = None
        """The error if the answer to the prompt was lost."""
        self.begun = False
        """Whether the server may have begun the prompt: it was sent, and has not been seen in the queue since."""

    def submit(self, graph: Graph, prompt_id: str) -> None:
        """Send the prompt. Raises Refused; if the answer is lost, sets `lost`."""
        try:
            self.server.submit(graph, prompt_id, self._held.token)
        except OutcomeUnknown as error:
            _log.warning("%s", error)
            self.lost = error
        self.begun = True

    def state(self, prompt_id: str) -> PromptState:
        """Return the state of a prompt. Raises PollFailed."""
        state = self.asked(lambda: self.server.state(prompt_id), self._is_left)
        self._seen(state)
        return state

    def followed(self, prompt_id: str, events: PromptEvents) -> PromptState:
        """Return the state of a prompt when it ends or its time is up.

        Time in the server's queue does not count, unless it gets much too long. Raises PollFailed once the server has
        been silent for too long.
        """
        limit_s = self._settings.comfyui_timeout_seconds
        began = since = heard = monotonic()
        while True:
            slice_s = max(0.0, min(limit_s / _SLICES, since + limit_s - monotonic()))
            try:
                state = self.server.wait(
                    prompt_id,
                    events,
                    timeout_s=slice_s,
                    silence_s=self._silence_s,
                    meanwhile=self._held.check,
                    seen=self._seen,
                )
            except PollFailed as error:
                if self._is_left(error, monotonic() - heard):
                    raise
                self._held.pause(min(_ASK_AGAIN_S, self._silence_s))
                continue
            except JobLost as lost:
                if lost.gone:  # its user has deleted it: nobody wants the picture
                    with suppress(PollFailed):
                        self.server.cancel(prompt_id)
                raise
            heard = monotonic()
            if state.phase is PromptPhase.WAITING and heard - began < limit_s * _MAX_QUEUE_FACTOR:
                since = heard
            if not state.running or heard - since >= limit_s:
                return state

    def cancelled(self, prompt_id: str) -> PromptState:
        """Cancel a prompt whose time is up, and return its state if it has succeeded after all. Raises TaskFailed."""
        stopped = "was stopped"
        try:
            self.asked(lambda: self.server.cancel(prompt_id))
        except PollFailed as error:
            if not self.server.alive():
                raise
            stopped = f"cannot be stopped: {error}"
        state = self.state(prompt_id)
        if state.phase is PromptPhase.DONE:
            return state
        limit_s = self._settings.comfyui_timeout_seconds
        raise TaskFailed(
            Code.TIMEOUT, f"ComfyUI at {bare(self.server.url)} took longer than {limit_s:g} s, and {stopped}"
        )

    def picture(self, files: tuple[ImageFile, ...]) -> MadePicture:
        """Return the first of the files that is a picture. Raises TaskFailed."""
        why = "made no PNG, JPEG or WebP"
        for file in files[:MAX_FILES]:
            data = self._viewed(file)
            kind = objects.picture_of(data)
            fault = objects.fault_of(data)
            if kind and not fault:
                return MadePicture(data, kind, self.server.url)
            why = f"handed out a broken picture: {fault}" if fault else why
        raise TaskFailed(Code.TASK_FAILED, f"ComfyUI at {bare(self.server.url)} {why}")

    def _is_left(self, error: PollFailed, silent_s: float) -> bool:
        """Return whether to give up a server that has been silent about a prompt for so long. Raises TaskFailed."""
        if silent_s < self._silence_s:
            return False
        if affects_any_job(error) or not self.server.alive():
            return True
        limit_s = self._settings.comfyui_timeout_seconds
        if silent_s >= limit_s:
            raise TaskFailed(
                Code.TIMEOUT, f"what became of the prompt could not be learned for {limit_s:g} s: {error}"
            ) from None
        return False

    def _seen(self, state: PromptState) -> None:
        if state.phase is not PromptPhase.GONE:
            self.begun = state.phase is not PromptPhase.WAITING

    def _viewed(self, file: ImageFile) -> bytes:
        try:
            return self.asked(lambda: self.server.view(file))
        except PollFailed as error:
            if not self.server.alive():
                raise
            raise TaskFailed(error.code, str(error)) from None  # the server answers, but not with this file

    def asked(self, work: Callable[[], T], is_left: Callable[[PollFailed, float], bool] | None = None) -> T:
        """Return the server's answer, asking again until `worker_silence_seconds` have passed or `is_left` is true.

        Raises PollFailed.
        """
        began, logged = monotonic(), ""
        while True:
            self._held.check()
            try:
                return work()
            except PollFailed as error:
                silent_s = monotonic() - began
                if is_left(error, silent_s) if is_left else silent_s >= self._silence_s:
                    raise
                if str(error) != logged:
                    logged = str(error)
                    _log.info("retrying: %s", error)
            self._held.pause(min(_ASK_AGAIN_S, self._silence_s / 5))

    def uploaded(self, name: str, data: bytes) -> str:
        """Store a picture; return the name by which a graph loads it."""
        return self.asked(lambda: self.server.upload(name, data))
