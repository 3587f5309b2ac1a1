"""The state of the image-job service, for people: jobs, queues, workers and ComfyUI servers."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from retake.errors import RetakeError, in_words
from retake.images.comfyui_servers import ComfyServers
from retake.images.dead_messages import DeadMessages
from retake.images.messages import DEAD_QUEUE, OUTFIT_QUEUE, TEXT_QUEUE
from retake.images.presence import Presence, WorkerPresence
from retake.images.settings import ImageJobSettings
from retake.images.store import JobStore
from retake.rabbit.broker import Broker

T = TypeVar("T")


class ImageSurvey(NamedTuple):
    """The state of the service. A field is None if its service did not answer; `trouble` says which and why."""

    sets: dict[str, int] | None  # number of jobs, by the last part of the name of their set
    queues: dict[str, int] | None  # number of messages in each queue of jobs
    dead_messages: int | None
    workers: list[WorkerPresence] | None
    comfyui: dict[str, bool]  # by URL, whether it answers
    trouble: list[str]


def survey(settings: ImageJobSettings, store: JobStore, broker: Broker) -> ImageSurvey:
    """Look at everything. An unreachable service hides only its own part."""
    trouble: list[str] = []

    def look(at: Callable[[], T]) -> T | None:
        try:
            return at()
        except RetakeError as error:
            if in_words(error) not in trouble:
                trouble.append(in_words(error))
            return None

    sets = look(store.counts)
    workers = look(Presence(store).all) if sets is not None else None
    queues = look(lambda: {name: broker.depth(name) for name in (TEXT_QUEUE, OUTFIT_QUEUE)})
    letters = DeadMessages(store, broker, None)
    count_dead = letters.count if sets is not None else lambda: broker.depth(DEAD_QUEUE)  # Redis has the lock
    return ImageSurvey(
        sets={name.rpartition(":")[2]: count for name, count in sets.items()} if sets is not None else None,
        queues=queues,
        dead_messages=look(count_dead) if queues is not None else None,
        workers=workers,
        comfyui=_comfyui(settings),
        trouble=trouble,
    )


def _comfyui(settings: ImageJobSettings) -> dict[str, bool]:
    servers = ComfyServers(settings.comfyui_urls, settings.comfyui_discovery_url)
    servers.check()
    alive = servers.alive
    return {url: url in alive for url in dict.fromkeys([*(it.rstrip("/") for it in settings.comfyui_urls), *alive])}
