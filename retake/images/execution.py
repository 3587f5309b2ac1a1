"""One job on ComfyUI, from its claim to its picture in the bucket: docs/images.md, section "Worker".

Every step is recorded in the job's hash before it begins, and before a step is repeated, the server is asked for its
outcome. So the job is executed once, even if the worker dies between any two lines of this file.
"""

from contextlib import suppress
from logging import getLogger
from random import Random
from typing import NamedTuple
from urllib.parse import urlsplit

from retake.attempts import repeating
from retake.bucket import ANY, Bucket
from retake.bucket.contract import NotFound, is_key
from retake.bucket.empty_folders import remove_folder
from retake.errors import (
    Code,
    CodedError,
    ErrorClass,
    OutcomeUnknown,
    PollFailed,
    Refused,
    StorageError,
    TaskFailed,
    beginning,
    redact,
)
from retake.foreign_text import one_line
from retake.images import objects
from retake.images.comfyui_calls import MadePicture, ServerCalls, affects_any_job
from retake.images.comfyui_servers import ComfyServers
from retake.images.graphs import Graph, Graphs
from retake.images.held_job import HeldJob, JobLost
from retake.images.jobs import ImageJob, JobStatus, JobType
from retake.images.settings import ImageJobSettings
from retake.retrying.backoff import Exponential
from retake.retrying.policy import GiveUp, RetryPolicy
from retake.vendors import ImageServer, PromptEvents, PromptPhase, PromptState
from retake.vendors.comfyui import prompt_id_of
from retake.vendors.http import bare

MAX_ERROR_LENGTH = 500  # characters

_SETTLE_S = 1.0  # how long a prompt whose answer was lost may take to show up
_NO_SERVER_S = 0.5  # between two checks for a server that answers
_GONE_PAUSES_S = (0.0, 1.0, 5.0, 15.0, 60.0)  # before a prompt that the server has forgotten is sent again

_log = getLogger(__name__)


class ExecutionContext(NamedTuple):
    """What all executions of a worker share."""

    worker: str  # its name
    settings: ImageJobSettings
    bucket: Bucket
    servers: ComfyServers
    graphs: Graphs
    random: Random

    @property
    def policy(self) -> RetryPolicy:
        """The retry policy for failed executions."""
        chosen = self.settings
        return RetryPolicy(max_retries=chosen.task_execution_max_retries, backoff=Exponential(chosen.retry_seconds))


class _Forgotten(Exception):
    """The server does not know the prompt."""


class JobExecution:
    """Executes `job`, which is claimed as `held`."""

    def __init__(self, context: ExecutionContext, job: ImageJob, held: HeldJob) -> None:
        self._context, self._job, self._held = context, job, held
        self._inputs: dict[str, bytes] = {}
        self._avoid = ""  # the server that was given up last
        self._recorded = job.attempt if job.comfyui_server else 0  # the last attempt that may be on a server
        self._deaths = max(0, job.comfyui_deaths)
        self._gone: ImageServer | None = None  # a server that may have begun the prompt before it went away

    def run(self) -> bool:
        """Make the picture; return True if the job is ready, False if it has failed.

        Raises JobLost and JobInterrupted: another worker then continues.
        """
        attempt = max(1, self._job.attempt)
        before = min(max(0, self._job.attempts_before), attempt - 1)  # another program may have written any number
        while True:
            try:
                made = self._made(attempt)
            except CodedError as error:
                decision = self._context.policy.decide(error, attempt - before, self._context.random.random)
                if isinstance(decision, GiveUp):
                    return self._fail(error, attempt)
                _log.warning("attempt %d failed, the next one comes in %g s: %s", attempt, decision.after_s, error)
                self._held.update({"status": JobStatus.WAITING})
                self._held.pause(decision.after_s)
                attempt = decision.attempt + before
            else:
                self._keep(made)
                return True

    # --- one attempt ------------------------------------------------------------------------------------------------

    def _made(self, attempt: int) -> MadePicture:
        """Return the picture of an attempt, from whichever server makes it.

        Raises TaskFailed and other errors if the attempt failed. A server that is unreachable or was restarted is not a
        failure. A server that answers everything else but keeps losing the answer to the prompt or an upload is one,
        and so is one death too many of a server that executed the job.
        """
        url = self._job.comfyui_server if attempt == self._recorded == self._job.attempt else ""
        pauses, losses, self._gone = repeating(*_GONE_PAUSES_S), 0, None
        while True:
            server = self._context.servers.at(url) if url else self._next_server()
            calls = ServerCalls(server, self._held, self._context.settings)
            try:
                return self._on(calls, attempt)
            except _Forgotten:
                losses += calls.lost is not None
                if calls.lost and losses > len(_GONE_PAUSES_S):
                    raise calls.lost from None
                if calls.begun and not calls.lost:
                    self._gone = server
                _log.info("%s does not know the prompt: it is sent again", bare(server.url))
                self._held.pause(next(pauses))
                url = server.url
                continue
            except PollFailed as error:
                if calls.begun:
                    self._gone = server
                elif not affects_any_job(error) and server.alive():  # it answers everything except what this job needs
                    losses += 1
                    if losses > len(_GONE_PAUSES_S):
                        raise
                self._leave(server, error)
            except Refused as error:
                losses += error.code == Code.BAD_ANSWER
                if error.error_class is ErrorClass.BUSINESS or losses > len(_GONE_PAUSES_S):
                    raise
                self._leave(server, error)
            url, self._avoid = "", server.url

    def _next_server(self) -> ImageServer:
        """Return the next server; wait while there is none."""
        self._held.update({"status": JobStatus.WAITING})
        while (server := self._context.servers.next(self._avoid)) is None:
            if not self._held.waiting.why:
                self._held.waiting.note("no ComfyUI server answers", "no ComfyUI server answers: the job waits")
            self._held.pause(_NO_SERVER_S)
        return server

    def _leave(self, server: ImageServer, error: CodedError) -> None:
        """Give up a server. What is on it stays on record until another one is asked."""
        self._held.check()
        message = f"ComfyUI at {bare(server.url)} is given up for now: {error}"
        self._held.waiting.note(stored_error(str(error)), message, server.url, error.code)
        self._context.servers.missed(server.url)

    def _count_death(self, server: ImageServer) -> None:
        """Record that a server went away while it executed the job, which must be started again.

        Raises TaskFailed if that happened too often: the job may be the cause.
        """
        self._gone = None
        self._deaths += 1
        times = "once" if self._deaths == 1 else f"{self._deaths} times"
        message = f"ComfyUI went away {times} while it executed this job, the last time at {bare(server.url)}"
        _log.warning("%s", message)
        self._held.update({"comfyui_deaths": str(self._deaths)})
        if self._deaths >= self._context.settings.comfyui_death_limit:
            raise TaskFailed(Code.TASK_FAILED, f"{message}: look there why, the job may be what ends it")

    def _on(self, calls: ServerCalls, attempt: int) -> MadePicture:
        """Return the picture of an attempt from one server. Raises _Forgotten if the server does not know the
        prompt."""
        prompt_id, server = prompt_id_of(self._job.job_id, attempt), calls.server
        with server.listen(self._held.token) as events:
            state = calls.state(prompt_id) if attempt <= self._recorded else _UNKNOWN
            if state.running:
                self._record(server, attempt)
            if state.phase is not PromptPhase.GONE:
                self._gone = None  # the server was only silent
            elif self._gone:
                self._count_death(self._gone)
            if state.phase is PromptPhase.GONE:
                self._submit(calls, attempt)
                state = _BEGUN
            self._held.waiting.over()
            if state.running:
                state = calls.followed(prompt_id, events)
        if state.phase is PromptPhase.GONE and calls.lost:
            state = self._settled(calls, prompt_id, events, calls.lost)
        if state.phase is PromptPhase.GONE:
            raise _Forgotten
        if state.running:
            state = calls.cancelled(prompt_id)
        if state.failure:
            raise state.failure
        return calls.picture(state.files)

    def _record(self, server: ImageServer, attempt: int) -> None:
        """Record where the prompt is, or is about to be."""
        prompt_id = prompt_id_of(self._job.job_id, attempt)
        self._held.update(
            {
                "status": JobStatus.PROCESSING,
                "attempt": str(attempt),
                "prompt_id": prompt_id,
                "comfyui_server": server.url,
            }
        )
        self._recorded = attempt

    def _submit(self, calls: ServerCalls, attempt: int) -> None:
        """Send the prompt."""
        prompt_id, graph = prompt_id_of(self._job.job_id, attempt), self._graph(calls, attempt)
        self._record(calls.server, attempt)  # directly before the call: it ensures that this worker holds the job
        calls.submit(graph, prompt_id)

    def _settled(self, calls: ServerCalls, prompt_id: str, events: PromptEvents, lost: OutcomeUnknown) -> PromptState:
        """Return the state of a prompt whose answer was lost and which was not found: it may still show up."""
        self._held.pause(_SETTLE_S)
        state = calls.state(prompt_id)
        if state.phase is PromptPhase.GONE and lost.error_class is ErrorClass.CRITICAL:
            raise lost  # sending it again would meet the same error
        return calls.followed(prompt_id, events) if state.running else state

    # --- inputs and output ------------------------------------------------------------------------------------------

    def _graph(self, calls: ServerCalls, attempt: int) -> Graph:
        job, graphs = self._job, self._context.graphs
        if job.type != JobType.OUTFIT:
            return graphs.of_text(job, attempt)
        person = self._uploaded(calls, "person", job.person_image_r2_key)
        garment = self._uploaded(calls, "garment", job.garment_image_r2_key)
        return graphs.of_outfit(job, attempt, person, garment)

    def _uploaded(self, calls: ServerCalls, which: str, key: str) -> str:
        """Upload an input picture; return the name by which the graph loads it. Raises Refused if it is unusable."""
        data = self._inputs.get(which)
        if data is None:
            data = self._inputs[which] = self._input(which, key)
        kind = objects.picture_of(data)
        if kind is None:
            raise Refused(Code.INVALID_INPUT, f"the picture of the {which} is not a PNG, JPEG or WebP")
        return calls.uploaded(f"{self._job.job_id}_{which}.{kind.ending}", data)

    def _input(self, which: str, key: str) -> bytes:
        missing = Refused(Code.MISSING, f"the picture of the {which} is gone: make a new job")
        if not is_key(key) or not key.startswith(objects.folder_of(self._job.job_id)):
            raise missing
        try:
            return self._held.patiently(lambda: self._context.bucket.read(key), StorageError)[0]
        except NotFound:
            raise missing from None

    def _keep(self, made: MadePicture) -> None:
        """Save the picture, then mark the job as ready. If the job is gone, remove the picture again."""
        key, bucket = objects.output_key(self._job.job_id, made.kind), self._context.bucket
        try:
            self._held.patiently(lambda: bucket.write(key, made.data, ANY), StorageError)
            executed_by = f"{self._context.worker} @ {place_of(made.server_url)}"
            self._held.end_ready(key, made.kind.media_type, executed_by)
        except JobLost as lost:
            if lost.gone:
                with suppress(StorageError):  # then the sweeper removes it
                    bucket.delete(key)
                    remove_folder(bucket, objects.folder_of(self._job.job_id))
            raise
        _log.info("the picture is saved as %s", key)

    def _fail(self, error: CodedError, attempt: int) -> bool:
        _log.error("the job has failed: %s", error)
        tried = f" (attempt {attempt})" if attempt > 1 else ""
        self._held.end_failed(stored_error(str(error)) + tried)
        return False


def stored_error(error: str) -> str:
    """Return an error as stored in a job's hash: bounded, on one line, without secrets."""
    return one_line(redact(beginning(error)))[:MAX_ERROR_LENGTH]


def place_of(url: str) -> str:
    """Return host:port of a server."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


_UNKNOWN, _BEGUN = PromptState(PromptPhase.GONE), PromptState(PromptPhase.WAITING)
