"""The messages in DeadQueue, their jobs, and what an operator can do with them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from time import monotonic, sleep
from typing import TYPE_CHECKING, NamedTuple

from retake.errors import LeaseHeld
from retake.images.cleanup import reopen_row
from retake.images.jobs import ImageJob, JobStatus
from retake.images.messages import DEAD_QUEUE, job_id_of, publish
from retake.images.redis_calls import RedisAway
from retake.images.store import JobStore
from retake.operations.port import Refusal
from retake.rabbit.broker import Broker
from retake.serving.loop import Loop

if TYPE_CHECKING:
    from retake.images.table import JobTable

MAX_EXAMINED = 1000
"""Maximum number of dead messages examined; further ones are reached once these are gone."""

_MIN_PREFIX = 4  # minimum length of a prefix in characters
_LOCK, _LOCK_S = "dead messages", 10.0  # name of the lock on the queue, and its time to live, which is renewed
_PATIENCE_S, _PAUSE_S = 60.0, 0.1  # how long a command waits for the lock, and between attempts


class DeadMessage(NamedTuple):
    """A message that a worker rejected.

    `name` is the id of its job or, for a message without one, a part of its checksum: message-1f2e3d4c5b6a.
    """

    name: str
    reason: str  # "rejected": refused by a worker
    queue: str  # the queue it came from
    job: ImageJob | None  # None: the job is gone, or never existed
    body: bytes


class DeadMessages:
    """The messages in DeadQueue.

    Every method may raise BrokerAway, RedisAway, TableAway, and LeaseHeld if another command holds the queue too long.
    """

    def __init__(self, store: JobStore, broker: Broker, table: "JobTable | None") -> None:
        self._store, self._broker, self._table = store, broker, table

    def all(self, limit: int = MAX_EXAMINED, prefix: str = "") -> list[DeadMessage]:
        """Return those of the oldest `limit` messages whose names begin with `prefix`."""
        with self._locked():
            found = self._broker.browse(DEAD_QUEUE, limit)
        wanted = ((name, it) for it in found if (name := _name(it.body)).startswith(prefix))
        return [DeadMessage(name, it.reason, it.origin, self._job_of(it.body), it.body) for name, it in wanted]

    def count(self) -> int:
        """Return how many there are. RabbitMQ does not count those that a command holds, so this waits for it."""
        with self._locked():
            return self._broker.depth(DEAD_QUEUE)

    def find(self, name: str) -> DeadMessage:
        """Return the message with this name, or with an unambiguous prefix of it. Raises Refusal."""
        if len(name) < _MIN_PREFIX:
            raise Refusal(
                f"{name!r} is too short for the beginning of an id: give {_MIN_PREFIX} characters, or all of it"
            )
        behind = self._behind()
        found = {it.name: it for it in self.all(MAX_EXAMINED, name)}
        if not found:
            raise Refusal(f"no dead message is of a job {name[:80]!r}; {behind or 'see images dead list'}")
        if len(found) > 1:
            raise Refusal(f"several dead messages begin with {name!r}: {', '.join(sorted(found)[:5])}. Give more of it")
        return next(iter(found.values()))

    def requeue(self, message: DeadMessage) -> None:
        """Restart the job with all attempts, and send its message. Raises Refusal if there is nothing to do.

        A crash in between leaves a job that a sweeper sends, or a message that is acknowledged without effect.
        """
        job = message.job
        if job is None or job.status == JobStatus.READY:
            what = "no longer has a job" if job is None else "is of a job that is ready"
            raise Refusal(f"the message {message.name} {what}: nothing is left to do. Drop it with images dead drop")
        self._begin_anew(job)
        sent = False

        def take(body: bytes) -> bool:
            nonlocal sent
            if _name(body) != message.name:
                return False
            if not sent:  # a job may have several dead messages: one is enough
                publish(self._broker, job)
                sent = True
            return True

        self._pull(take)
        if not sent:  # somebody else has removed it in the meantime
            publish(self._broker, job)

    def requeue_all(self) -> dict[str, Refusal | None]:
        """Requeue all failed jobs that have a dead message, oldest first. Return each with its refusal, or None.

        A job that fails again in the meantime is left. Raises Refusal if there is none among the oldest messages, but
        there are more messages.
        """
        outcomes: dict[str, Refusal | None] = {}
        behind = self._behind()
        while self._requeue_some(outcomes):
            pass
        if behind and not outcomes:
            raise Refusal(f"no dead message is of a failed job; {behind}")
        return outcomes

    def _requeue_some(self, outcomes: dict[str, Refusal | None]) -> bool:
        """Requeue the jobs of the oldest messages, and return whether there were any."""
        before = frozenset(outcomes)

        def take(body: bytes) -> bool:
            name, job = _name(body), self._job_of(body)
            if job is None or job.status == JobStatus.READY or name in before:
                return False
            if name not in outcomes:
                try:
                    self._begin_anew(job)
                    publish(self._broker, job)
                    outcomes[name] = None
                except Refusal as refusal:
                    outcomes[name] = refusal
            return outcomes[name] is None

        return bool(self._pull(take))

    def drop(self, message: DeadMessage) -> int:
        """Remove all messages with this name and return how many there were. The job is unchanged."""
        return len(self._pull(lambda body: _name(body) == message.name))

    def drop_gone(self) -> list[str]:
        """Remove the messages whose job is ready or was cleaned up, and return their names.

        They need no action, and too many of them would hide later messages.
        """

        def is_gone(body: bytes) -> bool:
            job = self._job_of(body)
            return job_id_of(body) is not None and (job is None or job.status == JobStatus.READY)

        gone: dict[str, None] = {}
        while found := self._pull(is_gone):
            gone |= dict.fromkeys(map(_name, found))
        return [*gone]

    def _pull(self, take: Callable[[bytes], bool]) -> list[bytes]:
        """Call `Broker.pull` while no other command holds the queue."""
        with self._locked():
            return self._broker.pull(DEAD_QUEUE, take, MAX_EXAMINED)

    def _behind(self) -> str:
        """Return what to do about messages beyond the limit, or "".

        Call it before the messages are examined: RabbitMQ takes a moment to count those that are given back.
        """
        if self._broker.depth(DEAD_QUEUE) <= MAX_EXAMINED:
            return ""
        return f"only the oldest {MAX_EXAMINED:,} were looked at: remove those of no use with images dead drop --gone"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the queue, after waiting for others: messages that one command browses are invisible to the others.

        The lock is renewed from a thread, since a thousand messages may take a minute to arrive from afar. If the
        holder dies, it expires after a moment. Raises LeaseHeld.
        """

        def renew() -> float:
            self._store.renew_lock(_LOCK, _LOCK_S)
            return _LOCK_S / 3

        begun = monotonic()
        while not self._store.take_lock(_LOCK, _LOCK_S):
            if monotonic() - begun > _PATIENCE_S:
                raise LeaseHeld("another command has the dead messages in hand: try again in a moment")
            sleep(_PAUSE_S)
        renewal = Loop("the lock on the dead messages", renew, error_pause_s=_LOCK_S / 3)
        try:
            renewal.start()
            try:
                yield
            finally:
                renewal.stop()
                renewal.join(_LOCK_S)  # the command closes its Redis client next
        finally:
            with suppress(RedisAway):  # then it expires
                self._store.release_lock(_LOCK)

    def _begin_anew(self, job: ImageJob) -> None:
        """Make the job and its row in jobs2 pending again. Raises Refusal."""
        table = self._table if job.in_table else None
        if job.in_table and table is None:
            raise Refusal(f"the job {job.job_id} has a row in jobs2, which would stay failed: set DATABASE_URL")
        if table is not None:
            table.ping()  # nothing changes while PostgreSQL is unreachable
        # The row comes second: if it came first, a sweeper would fail it again, or bring in a job that was cleaned up.
        if not self._store.requeue(job.job_id) or (table and not reopen_row(table, self._store, job.job_id)):
            raise Refusal(f"the job {job.job_id} has changed in the meantime; see images dead list")

    def _job_of(self, body: bytes) -> ImageJob | None:
        job_id = job_id_of(body)
        return self._store.get(job_id) if job_id else None


def _name(body: bytes) -> str:
    return job_id_of(body) or f"message-{sha256(body).hexdigest()[:12]}"
