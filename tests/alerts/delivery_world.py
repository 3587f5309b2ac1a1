"""Shared by the delivery tests: a bucket, a clock that the test moves, and channels that behave as planned."""

from collections import deque
from collections.abc import Callable
from datetime import timedelta
from threading import Barrier, Lock, Thread
from typing import Any

from alert_world import START, alert_settings, condition

from retake.alerts.board import Alert, Board, ChannelQueue
from retake.alerts.conditions import Condition, Findings
from retake.alerts.delivery import Sender
from retake.alerts.evaluation import evaluated
from retake.alerts.message import Ending, Message, Sent
from retake.alerts.settings import AlertChannel
from retake.alerts.store import BoardStore
from retake.bucket import Bucket
from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock

DELIVERED, REFUSED, FAILED = Sent(Ending.DELIVERED), Sent(Ending.REFUSED, "HTTP 404"), Sent(Ending.FAILED, "HTTP 503")
TWO = {"one": {"kind": "webhook"}, "two": {"kind": "webhook", "env": "OTHER_URL"}}
CODES = frozenset({"step_failing", "generation_failed"})


class Service:
    """The service behind all channels. It accepts everything, unless a test plans otherwise for a channel."""

    def __init__(self) -> None:
        self.plans: dict[str, deque[Sent | Callable[[], Sent]]] = {}
        self.taken: list[tuple[str, str, str]] = []  # (channel, event, title), in the order of arrival
        self.subjects: list[tuple[str, str, str]] = []  # (channel, event, alert id), in the same order
        self.tries: list[tuple[float, str]] = []  # (seconds since START, channel)
        self.clock: FakeClock | None = None
        self._lock = Lock()

    def plan(self, channel: str, *outcomes: Sent | Callable[[], Sent]) -> None:
        self.plans.setdefault(channel, deque()).extend(outcomes)

    def send(self, channel: AlertChannel, secret: str, message: Message, seconds: float, done: tuple[str, ...]) -> Sent:
        with self._lock:
            if self.clock:
                self.tries.append(((self.clock.moment - START).total_seconds(), channel.name))
            planned = self.plans.get(channel.name)
            outcome = planned.popleft() if planned else DELIVERED
        result = outcome() if callable(outcome) else outcome
        if result.how is Ending.DELIVERED:
            with self._lock:
                self.taken.append((channel.name, message.event.value, message.title))
                self.subjects.append((channel.name, message.event.value, message.subject_id))
        return result

    def events(self, channel: str = "all") -> list[str]:
        return [event for name, event, _ in self.taken if name == channel]


class DeliveryWorld:
    """A machine that evaluates and delivers alerts."""

    def __init__(
        self, bucket: Bucket | None = None, service: Service | None = None, clock: FakeClock | None = None, **given: Any
    ) -> None:
        self.settings = alert_settings(**{"channels": {"all": {"kind": "webhook"}}, **given})
        self.bucket = bucket or MemoryBucket()
        self.clock = clock or FakeClock(START)
        self.service = service or Service()
        self.service.clock = self.clock
        self.store = BoardStore(self.bucket, self.clock)
        self.environ = {it.env: "a-secret-of-a-channel" for it in self.settings.channels}

    def sender(self) -> Sender:
        return Sender(self.store, self.settings, self.environ, self.clock, self.service.send)

    def look(self, *found: Condition, pipeline: str = "story") -> None:
        now = self.clock.now()
        findings = [Findings(pipeline, CODES, found)]
        self.store.change(lambda board: (evaluated(board, findings, self.settings, now), None))

    def deliver(self, wait_s: float = 20) -> list[str]:
        sender = self.sender()
        started = sender.start()
        sender.wait(wait_s)
        return started

    def tick(self, *found: Condition) -> None:
        self.look(*found)
        self.deliver()

    def later(self, seconds: float) -> None:
        self.clock.moment += timedelta(seconds=seconds)

    @property
    def board(self) -> Board:
        return self.store.read()

    def queue(self, channel: str = "all") -> ChannelQueue:
        return self.board.channels.get(channel, ChannelQueue())

    def active(self) -> dict[str, Alert]:
        return {it.key: it for it in self.board.alerts.values() if it.active}


def failing(number: int = 1) -> Condition:
    return condition(occurrence=str(number))


def cause(name: str, occurrence: str = "1") -> Condition:
    """Return a condition with a cause of its own."""
    return condition(occurrence=occurrence, key=f"step_failing/{name}", title=f"{name} fails")


def send_once(bucket: Callable[[], Bucket]) -> None:
    """Let four machines find the same messages at the same moment: each message is sent once."""
    service, clock = Service(), FakeClock(START)
    given = {"channels": TWO, "timeout_seconds": 300}  # a busy machine needs more time to save what was sent
    DeliveryWorld(bucket(), service, clock, **given).look(*(cause(name) for name in "abc"))
    machines = [DeliveryWorld(bucket(), service, clock, **given) for _ in range(4)]
    together = Barrier(len(machines))

    def work(machine: DeliveryWorld) -> None:
        together.wait()
        machine.deliver(wait_s=300)

    threads = [Thread(target=work, args=(it,)) for it in machines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in TWO:
        assert [title for channel, _, title in service.taken if channel == name] == [f"{it} fails" for it in "abc"]
        assert machines[0].queue(name).queue == ()
