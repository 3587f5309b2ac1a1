"""A robot on a test clock and its surroundings, with the second of each event."""

from collections.abc import Callable
from itertools import count
from typing import Any

from protocol_robots import POLICIES

from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock
from retake.errors import RobotError
from retake.retrying.guard import Call
from retake.retrying.state_store import BucketStateStore
from retake.robots.action_sink import Record
from retake.robots.execution import Ports
from retake.robots.follow_ups import FollowUp
from retake.robots.robot import Robot

Event = tuple[float, str]


class Day:
    """A robot and its surroundings.

    `changes` are values of keys in sections of its policy; None removes a section.
    """

    def __init__(self, robot: str, mode: Callable[[], int] = lambda: 0, **changes: Any) -> None:
        self.clock = FakeClock()
        self.began = self.clock.now()
        self.bucket = MemoryBucket()
        self.states = BucketStateStore(self.bucket, "robots/", self.clock)
        self.events: list[Event] = []
        policy = POLICIES[robot]
        sections: dict[str, Any] = {
            name: None if rules is None else getattr(policy, name)._replace(**rules) for name, rules in changes.items()
        }
        policy = policy._replace(**sections)
        self.robot = Robot(policy, Ports(self.clock, lambda: 0.5, self, self.states, mode=mode))

    @property
    def second(self) -> float:
        return (self.clock.now() - self.began).total_seconds()

    def until(self, second: float) -> None:
        assert second >= self.second
        self.clock.sleep(second - self.second)

    def note(self, what: str) -> None:
        self.events.append((self.second, what))

    def carry_out(self, action: FollowUp, record: Record) -> None:
        words = [str(it) for it in (action.channel, action.recipient, action.system, action.what) if it]
        later = f" after {action.after_s:g} s" if action.after_s else ""
        self.note(" ".join([str(action.do), *words]) + later)

    def work(self, *codes: str | None) -> Callable[[Call], str]:
        """Return work whose calls fail with these codes in turn, the last one repeatedly; None succeeds."""
        numbers = count()

        def work(call: Call) -> str:
            self.note(f"call {call.attempt}")
            if code := codes[min(next(numbers), len(codes) - 1)]:
                raise RobotError(code, "failed")
            return "result"

        return work

    def take(self) -> list[Event]:
        events, self.events = self.events, []
        return events


def calls(*seconds: float) -> list[Event]:
    return [(second, f"call {number}") for number, second in enumerate(seconds, 1)]


def at(second: float, *what: str) -> list[Event]:
    return [(second, it) for it in what]
