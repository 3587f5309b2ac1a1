"""The messages of the image-job service: exchanges, queues, and what a message says (docs/images.md, "RabbitMQ").

No setting may stand in a queue's arguments: RabbitMQ refuses a queue that is declared otherwise than it was.
"""

import json
from typing import NamedTuple

from retake.images.jobs import ImageJob, JobType, is_job_id
from retake.rabbit.broker import Broker
from retake.rabbit.topology import Binding, Exchange, Queue, Topology
from retake.strict_json import parse

LARGEST_MESSAGE = 262_144
"""Bytes of a message: the longest prompts and styles of a job, written in ASCII with 12 bytes for a character."""

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


class Way(NamedTuple):
    """How the jobs of a type reach a worker."""

    exchange: str
    key: str
    queue: str


WAYS = {
    JobType.TEXT: Way("TextExchange", "text", TEXT_QUEUE),
    JobType.OUTFIT: Way("OutfitExchange", "outfit", OUTFIT_QUEUE),
}


def way_of(job_type: str) -> Way:
    """Return the way of a type; what other programs wrote there is text."""
    return WAYS[JobType.OUTFIT if job_type == JobType.OUTFIT else JobType.TEXT]


def message_of(job: ImageJob) -> bytes:
    """Return the message for a job: its id, and the parameters of a text job, which workers read in its hash. Those of
    another program's job may be too large: then it is the id alone."""
    told = {"job_id": job.job_id}
    if job.type == JobType.OUTFIT:
        return json.dumps(told).encode()
    whole = json.dumps({**told, **job.text._asdict(), "user_id": job.user_id}).encode()
    return whole if len(whole) <= LARGEST_MESSAGE else json.dumps(told).encode()


def publish(broker: Broker, job: ImageJob, timeout_s: float | None = None) -> None:
    """Send a job to the queue of its type. Raises BrokerAway."""
    way = way_of(job.type)
    broker.publish(way.exchange, way.key, message_of(job), timeout_s=timeout_s)


def job_id_of(message: bytes) -> str | None:
    """Return the id of the job that a message is about, or None: no JSON, or none of ours."""
    if len(message) > LARGEST_MESSAGE:
        return None
    try:
        told = parse(message.decode())
    except ValueError:
        return None
    job_id = told.get("job_id") if isinstance(told, dict) else None
    return job_id if isinstance(job_id, str) and is_job_id(job_id) else None
