"""A catalogue in which items are created, and which fails as planned."""

from collections.abc import Mapping
from typing import Any

import pytest

from retake.clock import FakeClock
from retake.errors import CodedError, ErrorClass, RobotError
from retake.retrying.backoff import Exponential
from retake.retrying.breaker import Breaker
from retake.retrying.guard import Call, Guard
from retake.retrying.policy import RetryIf, RetryPolicy
from retake.retrying.state_store import MemoryStateStore, StateStore
from retake.robots.creation import CreationPolicy, Creator, Parts
from retake.robots.idempotency import key_of

DATA = {"вид": "Лист", "толщина": 2.5}
KEY = key_of(DATA)
DUPLICATE, CONFLICT = "ERR_BUSINESS_DUPLICATE_ITEM", "ERR_TEMPORARY_DB_CONFLICT"
ROBOT_4 = RetryPolicy(
    4, Exponential(3, 3), retry_if=RetryIf(frozenset(ErrorClass), except_codes=frozenset({DUPLICATE}))
)

Item = dict[str, Any]


class Catalogue:
    """The other side. It fails with the planned codes: before it creates the item, or after it if the code starts with
    "made, then "."""

    def __init__(self) -> None:
        self.items: dict[str, Item] = {}
        self.log: list[str] = []
        self.plan: list[str | Exception] = []
        self.finishing: list[str] = []

    def find(self, key: str, data: Mapping[str, Any]) -> Item | None:
        self.log.append("find")
        return self.items.get(key)

    def make(self, key: str, data: Mapping[str, Any], call: Call) -> Item:
        self.log.append(f"make {call.attempt}")
        planned = self.plan.pop(0) if self.plan else ""
        if isinstance(planned, Exception):
            raise planned
        if planned and not planned.startswith("made, then "):
            raise RobotError(planned, "it failed")
        assert key not in self.items, "created twice"
        self.items[key] = {**data, "correct": True}
        if planned:
            raise RobotError(planned.removeprefix("made, then "), "no answer")
        return self.items[key]

    def finish(self, item: Item, data: Mapping[str, Any]) -> None:
        self.log.append("finish")
        if self.finishing:
            raise RobotError(self.finishing.pop(0), "it could not be finished")

    def mark(self, item: Item, error: CodedError) -> None:
        self.log.append(f"mark {error.code}")
        item["correct"] = False

    def undo(self, key: str) -> None:
        self.log.append("undo")
        self.items.pop(key, None)


class Scene:
    def __init__(self, states: StateStore | None = None, *, finish: bool = False) -> None:
        self.clock = FakeClock()
        self.there = Catalogue()
        self.states = states or MemoryStateStore()
        self.breaker: Breaker | None = None
        self.policy = CreationPolicy()
        self.parts: Parts[Item] = Parts(self.there.find, self.there.make)
        if finish:
            self.parts = Parts(self.there.find, self.there.make, self.there.finish, self.there.mark)

    @property
    def creator(self) -> Creator[Item]:
        """A new creator each time, as after a restart."""
        guard = Guard(ROBOT_4, self.clock, lambda: 0.5, breaker=self.breaker, deadline_s=200)
        return Creator("заготовки", self.parts, guard, self.clock, self.policy, self.states)

    def fail(self, times: int = 1) -> None:
        for _ in range(times):
            self.there.plan = [CONFLICT] * 5
            with pytest.raises(RobotError):
                self.creator.create({"number": self.clock.now().timestamp()})
