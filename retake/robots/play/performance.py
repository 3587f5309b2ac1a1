"""The play itself: pieces of work, one after another, until every ordered failure has occurred and nothing is due."""

from collections.abc import Sequence
from datetime import datetime
from random import Random
from typing import Any, NamedTuple

from retake.alerts.settings import AlertSettings
from retake.retrying.breaker import Breaker
from retake.retrying.state_store import MemoryStateStore
from retake.robots.cache import Cache
from retake.robots.execution import Ports
from retake.robots.play.orders import FailureQueue, OrderedFailure
from retake.robots.play.timeline import BEGINS, PlayedEvent, PlaySink, PlayTimeline
from retake.robots.play.worlds import CACHED, PlayStage, world_of
from retake.robots.policies import RobotPolicy
from retake.robots.robot import Result, Robot
from retake.robots.wording import action_in_words


class Played(NamedTuple):
    """A finished play."""

    robot: str
    ended: str  # "done" or "failed": how the last piece of work ended
    timeline: tuple[PlayedEvent, ...]

    def document(self) -> dict[str, Any]:
        """Return the play as JSON data."""
        return {"robot": self.robot, "ended": self.ended, "timeline": [it._asdict() for it in self.timeline]}


def play(policy: RobotPolicy, failures: Sequence[OrderedFailure], *, seed: int, alerts: AlertSettings) -> Played:
    """Have the robot of `policy` work on a test clock, and return what happened.

    Its attempts fail as ordered, one after another. If its work ends before all failures have occurred, it is given the
    next piece of work, as long as that consumes failures. Then what is due later is done: deferred work, rollbacks.
    `seed` determines the jitter: the same seed makes the same play. Alert messages go to the timeline only, one for
    each of the channels in `alerts`.
    """
    return _Play(policy, failures, seed, alerts).played()


class _Play:
    def __init__(
        self, policy: RobotPolicy, failures: Sequence[OrderedFailure], seed: int, alerts: AlertSettings
    ) -> None:
        self._policy, self._failures = policy, FailureQueue(failures)
        self._timeline = timeline = PlayTimeline(policy.retry)
        states = MemoryStateStore()
        sink = PlaySink(timeline, alerts)
        draw = Random(seed).random  # noqa: S311  for the jitter
        ports = Ports(timeline, draw, sink, states, owner="the play", noted=timeline.repeated)
        self._robot = Robot(policy, ports)
        if breaker := policy.breaker:
            timeline.watch(Breaker(breaker.name, states, breaker.policy, clock=timeline, owner="the play"))
        if policy.cache:
            Cache(states, timeline, policy.cache.ttl_s).put(CACHED, {"work": "work-0"})
        timeline.until(BEGINS)
        self._world = world_of(PlayStage(policy, self._robot, timeline, self._failures, states))
        timeline.add(f"the play begins: {BEGINS:%A, %Y-%m-%d, %H:%M} UTC, seed {seed}")

    def played(self) -> Played:
        """Play to the end."""
        last, number, left = self._piece(1), 1, -1
        while self._failures and len(self._failures) != left:  # ends when a piece of work consumes no failure
            number, left = number + 1, len(self._failures)
            last = self._piece(number)
        while due := self._next_due():
            self._timeline.until(due)
            last = self._take_up_deferred() or last
            self._world.do_due()
        return Played(self._policy.id, "done" if last.done else "failed", tuple(self._timeline.events))

    def _piece(self, number: int) -> Result[Any]:
        """Have the robot do its next piece of work, and what has become due since; return the last result."""
        last = self._with_outcome(self._world.work(number))
        return self._take_up_deferred() or last

    def _take_up_deferred(self) -> Result[Any] | None:
        results = [self._with_outcome(it) for it in self._world.take_up_deferred()]
        return results[-1] if results else None

    def _next_due(self) -> datetime | None:
        found = [it.due_at for it in self._robot.deferrals.all()]
        return min([*found, *filter(None, [self._world.next_due()])], default=None)

    def _with_outcome(self, result: Result[Any]) -> Result[Any]:
        """Add to the timeline what a piece of work leaves to people and to the program around the robot."""
        timeline, escalation = self._timeline, self._policy.escalation
        timeline.check_breaker()
        for failure in result.failures:
            if steps := failure.record["details"]["system_context"].get("recovery"):
                timeline.add(f"recovery: {', '.join(it.replace('_', ' ') for it in steps)}")
            path = [it for it in escalation.path if it.when.holds_for(failure.error)] if escalation else []
            if path:
                timeline.add(f"escalation path: {', '.join(map(action_in_words, path))}")
        return result
