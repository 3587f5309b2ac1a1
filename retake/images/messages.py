"""The messages of the image-job service: exchanges, queues, and message bodies (docs/images.md, "RabbitMQ").

Queue arguments must not depend on a setting: RabbitMQ refuses to redeclare a queue with other arguments.
"""

import json
from typing import NamedTuple

from retake.images.jobs import ImageJob, JobType, is_job_id
from retake.rabbit.broker import Broker
from retake.rabbit.topology import Binding, Exchange, Queue, Topology
from retake.strict_json import parse

MAX_MESSAGE_BYTES = 262_144
"""Maximum bytes of a message: the longest prompts and styles of a job, in ASCII at 12 bytes per character."""

_QUORUM = {"x-queue-type": "quorum"}
_DEAD_LETTERED = {**_QUORUM, "x-dead-letter-exchange": "DeadExchange"}

TEXT_QUEUE, OUTFIT_QUEUE, DEAD_QUEUE = "TextQueue", "OutfitQueue", "DeadQueue"

TOPOLOGY = Topology(
    exchanges=(Exchange("TextExchange"), Exchange("OutfitExchange"), Exchange("DeadExchange", "fanout")),
    queues=(Queue(TEXT_QUEUE, _DEAD_LETTERED), Queue(OUTFIT_QUEUE, _DEAD_LETTERED), Queue(DEAD_QUEUE, _QUORUM)),
    bindings=(
        Binding("TextExchange", TEXT_QUEUE, "text"),
        Binding("OutfitExchange", OUTFIT_QUEUE, "outfit"),
        Binding("DeadExchange", DEAD_QUEUE),
    ),
)


class MessageRoute(NamedTuple):
    """The route of a job type to a worker."""

    exchange: str
    key: str
    queue: str


ROUTES = {
    JobType.TEXT: MessageRoute("TextExchange", "text", TEXT_QUEUE),
    JobType.OUTFIT: MessageRoute("OutfitExchange", "outfit", OUTFIT_QUEUE),
}


def route_of(job_type: str) -> MessageRoute:
    """Return the route of a job type; an unknown type, written by another program, counts as text."""
    return ROUTES[JobType.OUTFIT if job_type == JobType.OUTFIT else JobType.TEXT]


def message_of(job: ImageJob) -> bytes:
    """Return the message for a job: its id and, for a text job, the parameters, which workers read from its hash
    instead.

    If another program's parameters are too large, the message is only the id.
    """
    fields = {"job_id": job.job_id}
    if job.type == JobType.OUTFIT:
        return json.dumps(fields).encode()
    whole = json.dumps({**fields, **job.text._asdict(), "user_id": job.user_id}).encode()
    return whole if len(whole) <= MAX_MESSAGE_BYTES else json.dumps(fields).encode()


def publish(broker: Broker, job: ImageJob, timeout_s: float | None = None) -> None:
    """Send a job to the queue of its type. Raises BrokerAway."""
    route = route_of(job.type)
    broker.publish(route.exchange, route.key, message_of(job), timeout_s=timeout_s)


def job_id_of(message: bytes) -> str | None:
    """Return the job id in a message, or None if it is not a message of ours."""
    if len(message) > MAX_MESSAGE_BYTES:
        return None
    try:
        content = parse(message.decode())
    except ValueError:
        return None
    job_id = content.get("job_id") if isinstance(content, dict) else None
    return job_id if isinstance(job_id, str) and is_job_id(job_id) else None
