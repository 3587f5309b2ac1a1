"""Dead messages: those in DeadQueue, with the jobs that they are about, and what an operator can do with them."""

from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from retake.images.cleanup import DELETED
from retake.images.jobs import ImageJob, JobStatus
from retake.images.messages import DEAD_QUEUE, job_id_of, message_of, way_of
from retake.images.store import JobStore
from retake.operations.port import Refusal
from retake.rabbit.broker import Broker

if TYPE_CHECKING:
    from retake.images.table import JobTable

MOST = 1000
"""Dead messages that are looked through; further ones are looked at once these have gone."""

_SHORTEST = 4  # characters of a prefix


class DeadMessage(NamedTuple):
    """A message that a worker refused. `name` is the id of its job, or for one that names none a part of its checksum:
    message-1f2e3d4c5b6a."""

    name: str
    reason: str  # "rejected": refused by a worker
    queue: str  # that it was in
    job: ImageJob | None  # None: the job is gone, or never was
    body: bytes


class DeadMessages:
    """The messages in DeadQueue. Every method may raise BrokerAway, RedisAway, TableAway."""

    def __init__(self, store: JobStore, broker: Broker, table: "JobTable | None") -> None:
        self._store, self._broker, self._table = store, broker, table

    def all(self, limit: int = MOST) -> list[DeadMessage]:
        """Return the oldest messages."""
        found = self._broker.browse(DEAD_QUEUE, limit)
        return [self._seen(it.body, it.reason, it.origin) for it in found]

    def find(self, name: str) -> DeadMessage:
        """Return the message of a name, or of a beginning of it that no other has. Raises Refusal."""
        if len(name) < _SHORTEST:
            raise Refusal(
                f"{name!r} is too short for the beginning of an id: give {_SHORTEST} characters, or all of it"
            )
        found = {it.name: it for it in self.all() if it.name.startswith(name)}
        if not found:
            raise Refusal(f"no dead message is of a job {name[:80]!r}; see images dead list")
        if len(found) > 1:
            raise Refusal(f"several dead messages begin with {name!r}: {', '.join(sorted(found)[:5])}. Give more of it")
        return next(iter(found.values()))

    def requeue(self, message: DeadMessage) -> None:
        """Let the job begin anew, with all attempts, and send its message to its queue. Raises Refusal if there is
        nothing to be done; whoever dies in between leaves a job that a sweeper sends, or a message that is acknowledged
        without effect."""
        job = message.job
        if job is None or job.status == JobStatus.READY:
            what = "has no job any more" if job is None else "is of a job that is ready"
            raise Refusal(f"the message {message.name} {what}: nothing is left to do. Drop it with images dead drop")
        table = self._table if job.in_table else None
        if job.in_table and table is None:
            raise Refusal(f"the job {job.job_id} has a row in jobs2, which would stay failed: set DATABASE_URL")
        if table is not None:
            table.ping()  # nothing is begun without it
        changed = Refusal(f"the job {job.job_id} has changed meanwhile; see images dead list")
        if not self._store.requeue(job.job_id):
            raise changed
        if table is not None:
            # Not before: a sweeper would fail the row again, or bring in a job that was cleaned up.
            table.again(job.job_id)
            if self._store.get(job.job_id) is None:  # its user has deleted it in this moment
                table.failed(job.job_id, DELETED)
                raise changed
        way, left = way_of(job.type), [message_of(job)]

        def send(_body: bytes) -> None:
            while left:  # several dead messages may be of one job: one is enough
                self._broker.publish(way.exchange, way.key, left[-1])
                left.pop()

        self._broker.pull(DEAD_QUEUE, lambda body: _name(body) == message.name, MOST, send)
        send(b"")  # somebody else took it out meanwhile

    def drop(self, message: DeadMessage) -> int:
        """Remove the message, all of them if there are several of the job; return how many. The job stays as it is."""
        return len(self._broker.pull(DEAD_QUEUE, lambda body: _name(body) == message.name, MOST))

    def _seen(self, body: bytes, reason: str, origin: str) -> DeadMessage:
        job_id = job_id_of(body)
        return DeadMessage(_name(body), reason, origin, self._store.get(job_id) if job_id else None, body)


def _name(body: bytes) -> str:
    return job_id_of(body) or f"message-{sha256(body).hexdigest()[:12]}"
