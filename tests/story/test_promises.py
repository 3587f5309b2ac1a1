"""Statements to people in the worlds of the simulation: what the next tick does, in `--dry-run` and `status`; until
when there is nothing to do, in a tick; and which command helps. All of them are tested.

RETAKE_SEEDS sets how many worlds are tried; RETAKE_SEED replays one.
"""

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from seeds import wanted
from test_simulation import Simulation

from retake.bucket import ANY
from retake.bucket.memory import MemoryBucket
from retake.degraded.mode import Hand, Mode
from retake.degraded.store import ModeStore
from retake.errors import RetakeError
from retake.exit_codes import ExitCode
from retake.operations.breakers import breaker_states
from retake.operations.port import ItemOrder, Verb
from retake.operations.status import PipelineStatus, statuses
from retake.story.decision import Act, Action
from retake.story.documents import Documents
from retake.story.operations import open_operations
from retake.story.runner import StoryRunner, unobserved
from retake.ticking.tick import NO_ORDERS, Orders, Tick

BREAKER_OPEN = "failed too often"
ADVICE = re.compile(r"\b(retry|skip) (\d{8}-\d{4})")


class Promise:
    """What is said about the next tick."""

    def __init__(self, world: "PromisingWorld", orders: Orders = NO_ORDERS) -> None:
        bucket = MemoryBucket(world.memory.store)  # nothing happens in between
        runner = StoryRunner(
            world.settings, bucket, world, world.keys, world.clock, owner="dry", mode=lambda: world.mode
        )
        self.dry = runner.dry_run(orders)
        self.status = "" if orders != NO_ORDERS else world.status_of(bucket).next_tick

    @property
    def rests(self) -> bool:
        return ": would wait (" in self.dry[0] or any("would begin nothing" in it for it in self.dry)

    def check(self, action: Action, tick: Tick, world: "PromisingWorld") -> None:
        """Check that the tick decided and did what was said."""
        if BREAKER_OPEN in self.dry[0]:
            assert BREAKER_OPEN in tick.why
            return
        assert f": would {action.act} (" in self.dry[0], (self.dry, action)
        if self.status:
            words = {Act.WAIT: "waits: ", Act.BEGIN: "begin "}.get(action.act, f"{action.act} (")
            assert words in self.status, (self.status, action)
        if action.act is Act.BEGIN:
            self._check_begun(tick, world)

    def _check_begun(self, tick: Tick, world: "PromisingWorld") -> None:
        moves = [it.removeprefix("would move ").split(" to ") for it in self.dry if it.startswith("would move ")]
        sources, targets = ({it[end] for it in moves} for end in (0, 1))
        present = set(world.keys_of())
        assert not sources & present, self.dry
        assert targets - sources <= present, self.dry
        new = tick.generation_id or world.generation_id
        if "would begin nothing" in self.dry[-1]:
            assert new is None, self.dry
        elif tick.exit_code is ExitCode.OK:
            assert self.dry[-1].startswith(f"would begin {new}"), (self.dry, new)


class PromisingWorld(Simulation):
    """A simulation in which each undisturbed tick is compared with what was said about it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        if seed % 3 == 0:
            self.settings = self.settings._replace(breaker=self.settings.breaker._replace(failures=2))
        self.compared, self.undisturbed = 0, True
        self.chance.happens = [(share, self._disturbing(it)) for share, it in self.chance.happens]
        self.observe: Callable[[Documents, Action], None] = unobserved

    def _disturbing(self, happen: Callable[[], object]) -> Callable[[], None]:
        def disturb() -> None:
            self.undisturbed = False
            happen()

        return disturb

    def manager(self, **given: Any) -> StoryRunner:
        return super().manager(observe=self.observe, **given)

    def tick(self, orders: Orders = NO_ORDERS) -> Tick:
        actions: list[Action] = []
        self._keep_mode()
        self._take_advice()
        promise, self.undisturbed = self._promise(orders), True
        self.observe = lambda documents, action: actions.append(action)
        tick = super().tick(orders)
        if self.undisturbed and actions:
            self.compared += 1
            assert promise, "the tick did what --dry-run refused to say"
            promise.check(actions[0], tick, self)
            if tick.exit_code is ExitCode.OK and not tick.ended and (tick.resting or tick.until):
                self._check_rest(tick)
        return tick

    def _promise(self, orders: Orders) -> Promise | None:
        try:
            return Promise(self, orders)
        except RetakeError:
            return None

    def _keep_mode(self) -> None:
        """Keep the mode of the simulation where `status` reads it."""
        hand = Hand(self.mode.mode, "", "2026-01-01T00:00:00Z")
        store = ModeStore(MemoryBucket(self.memory.store), self.clock)
        if self.mode != Mode() or store.read().hand:
            store.change(lambda state: state._replace(hand=hand))

    def status_of(self, bucket: MemoryBucket) -> PipelineStatus:
        operations = open_operations(self.settings, self.clock, bucket=bucket)
        return statuses(operations, breaker_states(operations))[0]

    def _take_advice(self) -> None:
        """Check that each advised command is accepted and ends the need for it, in a copy of the bucket."""
        for need in self.status_of(MemoryBucket(self.memory.store)).needs:
            for verb, name in ADVICE.findall(need):
                copy = MemoryBucket()
                for entry in self.memory.list(""):
                    copy.write(entry.key, self.memory.read(entry.key)[0], ANY)
                pipeline = open_operations(self.settings, self.clock, bucket=copy).pipelines[0]
                try:
                    plan = pipeline.plan(ItemOrder(Verb(verb), name))
                    pipeline.carry_out(plan.order, plan.lost)
                except RetakeError as error:
                    raise AssertionError(f"{need}: {error}") from error
                assert need not in self.status_of(copy).needs

    def _check_rest(self, tick: Tick) -> None:
        """Check that until the tick is due, and not longer, another one would find nothing to do."""
        now = self.clock.moment
        end = tick.until or now + timedelta(days=40)
        if end - now < timedelta(seconds=2):
            return
        for share in (self.random.random(), self.random.random() ** 3, 1):
            at = now + share * (end - now - timedelta(seconds=1))
            assert self._said_at(at).rests, (tick, at)
        assert not (tick.until and self._said_at(end).rests), tick

    def _said_at(self, moment: datetime) -> Promise:
        now, self.clock.moment = self.clock.moment, moment
        try:
            return Promise(self)
        finally:
            self.clock.moment = now


@pytest.mark.parametrize("seed", wanted(600, 20))
def test_the_next_tick_does_what_is_said_of_it(seed: int) -> None:
    world = PromisingWorld(seed)
    world.play(ticks=25)
    assert world.compared, "nothing was compared"
