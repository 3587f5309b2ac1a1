"""Alerts in random worlds: causes come and go, channels fail, machines die; in the end every receiver knows the truth.

RETAKE_SEED replays one world, RETAKE_SEEDS sets how many are tried.
"""

from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from alert_world import START, alert_settings, condition
from seeds import wanted

from retake.alerts.conditions import Condition, Findings
from retake.alerts.delivery import Sender
from retake.alerts.evaluation import acknowledged, closed, evaluated
from retake.alerts.message import AlertEvent, Ending, Message, Sent
from retake.alerts.settings import AlertChannel
from retake.alerts.store import BoardStore
from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock
from retake.testing.vendors import Died

TURNS = 60
CHANNELS: dict[str, Any] = {
    "all": {"kind": "webhook"},
    "desk": {"kind": "webhook", "env": "DESK", "hours": "work", "levels": ["warning", "error"]},
    "page": {"kind": "pagerduty", "levels": ["error", "critical"], "hours": "any"},
}
CAUSES, PIPELINES = ("imagine", "upscale", "runway"), ("story/a", "story/b")
CODES = frozenset({"step_failing", "generation_failed"})
DEATH, FAILURE = 0.02, 0.3
PAUSES_S = (0, 1, 20, 100, 299, 300, 900, 5000, 40_000)


class InlineThread:
    """Replaces `threading.Thread`: channels are served one after another, so that a seed determines everything."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], name: str, daemon: bool) -> None:
        self._work = lambda: target(*args)

    def start(self) -> None:
        self._work()

    def join(self, timeout: float) -> None:
        """Do nothing: it has already ended."""

    def is_alive(self) -> bool:
        return False


class MortalBucket(MemoryBucket):
    """A bucket whose process may die before and after each write."""

    def __init__(self, point: Callable[[], None]) -> None:
        super().__init__()
        self._point = point

    def write(self, key: str, data: bytes, *condition: Any, **more: Any) -> str:
        self._point()
        version = super().write(key, data, *condition, **more)
        self._point()
        return version


class Simulation:
    """Pipelines with conditions, machines that report them, and what the receivers believe."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock = FakeClock(START)
        self.calm = False
        self.store = BoardStore(MortalBucket(self.point), self.clock)
        self.settings = alert_settings(channels=CHANNELS, escalate=self.random.choice([[], ["page"]]))
        self.environ = {it.env: "a-secret-of-a-channel" for it in self.settings.channels}
        self.wrong: dict[str, dict[str, Condition]] = {pipeline: {} for pipeline in PIPELINES}
        self.occurrences = 0
        self.believed: dict[str, dict[str, AlertEvent]] = defaultdict(dict)  # by channel: the last event of each alert

    def point(self) -> None:
        if not self.calm and self.random.random() < DEATH:
            raise Died

    # --- what happens ---------------------------------------------------------------------------------------------

    def play(self) -> None:
        steps = [self.change_cause, self.change_cause, self.tick, self.tick, self.tick, self.order]
        for _ in range(TURNS):
            self.clock.sleep(self.random.choice(PAUSES_S))
            with suppress(Died):
                self.random.choice(steps)()
        self.calm = True

    def change_cause(self) -> None:
        now, cause = self.wrong[self.random.choice(PIPELINES)], self.random.choice(CAUSES)
        if cause in now and self.random.random() < 0.5:
            del now[cause]
            return
        self.occurrences += 1
        level = self.random.choice(["warning", "error", "critical"])
        key = f"step_failing/{cause}"
        now[cause] = condition(occurrence=str(self.occurrences), key=key, level=level, title=f"{cause} fails")

    def tick(self) -> None:
        """Run one tick of one pipeline: send what waits, evaluate what it found, and send what is new."""
        pipeline = self.random.choice(PIPELINES)
        self.deliver()
        self.look(pipeline)
        self.deliver()

    def look(self, pipeline: str) -> None:
        findings = [Findings(pipeline, CODES, tuple(self.wrong[pipeline].values()))]
        self.store.change(lambda board: (evaluated(board, findings, self.settings, self.clock.now()), None))

    def deliver(self) -> None:
        sender = Sender(self.store, self.settings, self.environ, self.clock, self.send)
        sender.start()
        sender.wait(20)

    def order(self) -> None:
        """Acknowledge or close an alert, as a person would."""
        active = [it.id for it in self.store.read().alerts.values() if it.active]
        if not active:
            return
        chosen, change = self.random.choice(active), self.random.choice([acknowledged, closed])

        def step(board: Any) -> tuple[Any, None]:
            alert = board.find(chosen)
            return change(board, alert, "ann", self.settings, self.clock.now()), None

        self.store.change(step)

    def send(self, channel: AlertChannel, secret: str, message: Message, seconds: float, done: tuple[str, ...]) -> Sent:
        self.point()
        if not self.calm and self.random.random() < FAILURE:
            return Sent(Ending.FAILED, "HTTP 503", self.random.choice([None, None, 50.0]))
        believed = self.believed[channel.name]
        if message.event is AlertEvent.RESOLVE:
            assert message.subject_id in believed, f"{channel.name} is told of the end of an alert it never heard of"
        if message.event is not AlertEvent.ACKNOWLEDGE:
            believed[message.subject_id] = message.event
        self.point()
        return Sent(Ending.DELIVERED)

    # --- what must hold -------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let machines and channels work again, and tick for as long as the longest pause between two tries."""
        for _ in range(6):
            self.clock.sleep(601)
            for pipeline in PIPELINES:
                self.look(pipeline)
            self.deliver()

    def check(self) -> None:
        """Check that each cause has an open alert unless a person closed it, and that each channel that was told
        anything believes the truth about present and earlier alerts."""
        board = self.store.read()
        assert not any(it.queue for it in board.channels.values()), board.channels
        present = {it.key for found in self.wrong.values() for it in found.values()}
        active = {it.key: it for it in board.alerts.values() if it.active}
        assert active.keys() <= present, "an alert is open although its cause is gone"
        for key in present - active.keys():
            assert board.alerts[key].closed_by, "a cause has no open alert, and nobody closed one"
        ids = {it.id for it in active.values()}
        for alert in active.values():
            assert alert.told_at, alert
            for name in alert.told:
                assert self.believed[name].get(alert.id) in (AlertEvent.TRIGGER, AlertEvent.REPEAT), (name, alert)
        for name, believed in self.believed.items():
            open_there = {it for it, event in believed.items() if event is not AlertEvent.RESOLVE}
            assert open_there <= ids, f"{name} was not told of the end of {open_there - ids}"


@pytest.mark.search
@pytest.mark.parametrize("seed", wanted(600, 10))
def test_in_the_end_every_channel_knows_what_is_wrong(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retake.alerts.delivery.Thread", InlineThread)
    world = Simulation(seed)
    world.play()
    world.settle()
    world.check()
    for found in world.wrong.values():
        found.clear()
    world.settle()
    world.check()
