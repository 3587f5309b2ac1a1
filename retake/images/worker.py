"""A worker: takes jobs from a queue, and those that arrived by HTTP, and executes one at a time.

A message is settled once its job has ended; until then RabbitMQ keeps it, and gives it to another worker if this one
dies. The claim in Redis decides who executes a job, so several messages for one job do no harm.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from logging import getLogger
from threading import Event, Lock, Timer
from typing import NamedTuple
from uuid import uuid4

from retake.attempts import repeating
from retake.errors import RetakeError, in_words
from retake.exit_codes import ExitCode
from retake.images.claims import ClaimResult
from retake.images.execution import ExecutionContext, JobExecution
from retake.images.held_job import PAUSES_S, HeldJob, JobInterrupted, JobLost
from retake.images.messages import job_id_of, publish
from retake.images.redis_calls import RedisAway
from retake.images.store import JobStore
from retake.logs import bind
from retake.rabbit.broker import Broker, Consumer, Delivery

MAX_WAITING = 1000
"""Maximum number of jobs that arrived by HTTP and wait for their turn."""

_TAKE_S = 0.25  # how long a job that arrived by HTTP may go unnoticed
_IDLE_S = 0.25  # between two checks for a ComfyUI server that answers
_HELD_S = 1.0  # between two checks of a job that another worker holds

_log = getLogger(__name__)


class LineFull(RetakeError):
    """Too many jobs are waiting to take another, or the worker is stopping."""

    exit_code = ExitCode.TRY_LATER


class JobEnd(Enum):
    """What happens to the message of a job."""

    DONE = "done"  # it is acknowledged
    FAILED = "failed"  # it is dead-lettered
    ELSEWHERE = "elsewhere"  # it is requeued, unless RabbitMQ has taken it back already


class WorkerState(NamedTuple):
    """The state of a worker."""

    consuming: bool
    job: str | None
    comfyui: list[str]  # URLs of the servers that answer
    waits: str | None  # why its job waits


class QueueWorker:
    """The worker `context.worker` on a queue. `run` works until `stop`; the other methods are for other threads."""

    def __init__(self, context: ExecutionContext, store: JobStore, broker: Broker, queue: str) -> None:
        self.context, self._store, self._broker, self.queue = context, store, broker, queue
        self._consumer: Consumer | None = None
        self._line: deque[str] = deque()
        self._stopping, self._halting = Event(), Event()
        self._held: HeldJob | None = None
        self._job: str | None = None
        self._lock = Lock()
        self._timer: Timer | None = None
        self._silence_s = context.settings.worker_silence_seconds

    def add(self, job_id: str) -> None:
        """Put a job that is in Redis in line, without a message. Raises LineFull."""
        with self._lock:
            if len(self._line) >= MAX_WAITING or self._stopping.is_set():
                raise LineFull("this worker stops, or too many jobs wait for it already")
            self._line.append(job_id)

    def state(self) -> WorkerState:
        """Return the state of the worker."""
        consumer, held = self._consumer, self._held
        waits = held.waiting.why or None if held else None
        return WorkerState(consumer is not None and consumer.consuming, self._job, self.context.servers.alive, waits)

    def stop(self, drain_s: float) -> None:
        """Take no more jobs. The one in progress is given back after `drain_s` seconds."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        if drain_s <= 0:
            self.halt()
            return
        self._timer = Timer(drain_s, self.halt)
        self._timer.daemon = True
        self._timer.start()

    def halt(self) -> None:
        """Take no more jobs, and give back the one in progress."""
        self._stopping.set()
        with self._lock:
            self._halting.set()
            if self._held:
                self._held.halt()

    def run(self) -> None:
        """Work until `stop`."""
        consumer = self._consumer = self._broker.consume(self.queue)
        try:
            while not self._stopping.is_set():
                self._turn(consumer)
        finally:
            consumer.close()
            self._hand_on()
            if self._timer:
                self._timer.cancel()

    def _turn(self, consumer: Consumer) -> None:
        """Do a job that arrived by HTTP, if there is one, then one from the queue."""
        if not self.context.servers.alive:
            consumer.pause()
            self._stopping.wait(_IDLE_S)
            return
        job_id = self._next_in_line()
        if job_id:
            consumer.pause()  # else a message would wait here while other workers are idle
            if self._do(job_id, None) is JobEnd.ELSEWHERE:
                self._send(job_id)
        delivery = None if self._stopping.is_set() else consumer.take(_TAKE_S)
        if delivery is None:
            return
        wanted = job_id_of(delivery.body)
        if wanted is None:
            _log.error("a message that is not a job's is dead-lettered: %d bytes", len(delivery.body))
            delivery.nack(requeue=False)
        else:
            self._do(wanted, delivery)

    def _do(self, job_id: str, message: Delivery | None) -> JobEnd:
        """See a job to its end, and settle its message; `message` is None for a job that arrived by HTTP."""
        with bind(job_id=job_id):
            self._job = job_id
            try:
                end = self._ended(job_id, message)
            except JobInterrupted:
                end = JobEnd.ELSEWHERE
            except Exception:  # noqa: BLE001  a bug in one job must not end the worker
                # Its claim expires, which counts as a death of its worker, so that the retries are bounded.
                _log.exception("this is a bug in Retake; the job will be retried")
                end = JobEnd.ELSEWHERE
            finally:
                self._job = None
            if message is not None:
                _SETTLE[end](message)
            return end

    def _ended(self, job_id: str, message: Delivery | None) -> JobEnd:
        """Execute the job unless another worker does; return when it has ended. Raises JobInterrupted."""
        begun = False
        while True:
            token = f"{self.context.worker}:{uuid4().hex}"
            result = self._claim(job_id, token, message)
            if result is ClaimResult.FAILED and (begun or (message is not None and message.redelivered)):
                return JobEnd.FAILED  # the worker that failed it may have died before it dead-lettered the message
            if result not in (ClaimResult.CLAIMED, ClaimResult.EXHAUSTED):
                return JobEnd.DONE
            begun = True
            try:
                return self._execute(HeldJob(self._store, job_id, token, self._silence_s), result)
            except JobLost as lost:
                _log.warning("this worker no longer holds the job: it is %s", lost)

    def _claim(self, job_id: str, token: str, message: Delivery | None) -> ClaimResult:
        """Claim the job; wait while another worker holds it or Redis is unreachable.

        A job without a message is not waited for: the worker that holds it got its message. Raises JobInterrupted if
        this worker stops, or RabbitMQ has taken the message back.
        """
        pauses, logged = repeating(*PAUSES_S), False
        while True:
            try:
                claim = self._store.claim(job_id, token, self._silence_s, self.context.settings.delivery_limit)
                if claim.result is not ClaimResult.HELD or message is None:
                    return claim.result
                pause_s, why = min(claim.held_s, _HELD_S), "another worker has the job"
            except RedisAway as error:
                pause_s, why = next(pauses), in_words(error)
            if not logged:
                logged = True
                _log.info("the job waits: %s", why)
            if self._stopping.wait(pause_s) or (message is not None and message.lost):
                raise JobInterrupted

    def _execute(self, held: HeldJob, result: ClaimResult) -> JobEnd:
        """Execute a claimed job. Raises JobLost; JobInterrupted, with the job given back."""
        with self._lock:
            self._held = held
            if self._halting.is_set():
                held.halt()
        try:
            with held:
                if result is ClaimResult.EXHAUSTED:
                    limit = self.context.settings.delivery_limit
                    _log.error("the job has failed: %d workers died of it", limit)
                    held.end_failed(f"{limit} workers died of it: it is not retried")
                    return JobEnd.FAILED
                job = held.patiently(lambda: self._store.get(held.job_id))
                if job is None:
                    return JobEnd.DONE
                return JobEnd.DONE if JobExecution(self.context, job, held).run() else JobEnd.FAILED
        except JobInterrupted:
            held.give_back()
            _log.info("the job is given back: this worker stops")
            raise
        finally:
            with self._lock:
                self._held = None

    def _next_in_line(self) -> str | None:
        with self._lock:
            return self._line.popleft() if self._line else None

    def _hand_on(self) -> None:
        """Send the jobs that are still in line to the queue; if that fails, a sweeper does it later."""
        while job_id := self._next_in_line():
            self._send(job_id)

    def _send(self, job_id: str) -> None:
        try:
            job = self._store.get(job_id)
            if job and job.under_way:
                publish(self._broker, job)
        except RetakeError as error:
            _log.warning(
                "a job that came by HTTP is left to the sweeper: %s", in_words(error), extra={"job_id": job_id}
            )


_SETTLE: dict[JobEnd, Callable[[Delivery], object]] = {
    JobEnd.DONE: lambda message: message.ack(),
    JobEnd.FAILED: lambda message: message.nack(requeue=False),
    JobEnd.ELSEWHERE: lambda message: message.nack(requeue=True),
}
