"""Deaths at every operation of locks, outbox, sagas, fallback stores and snapshots, and again in the second run:
nothing is lost, and nothing is repeated more often than there were deaths."""

import pytest
from crash_worlds import Process, sweep

from retake.clock import FakeClock
from retake.errors import RobotError
from retake.robots.fallback import Stores
from retake.robots.locks import Locks
from retake.robots.outbox import Outbox
from retake.robots.saga import Saga, Step
from retake.robots.snapshots import Snapshots

CIRCULAR = "ERR_BUSINESS_CIRCULAR_REFERENCE"


# --- locks -----------------------------------------------------------------------------------------------------------


class Setting:
    """Robot 6, which sets a value under a lock."""

    def __init__(self, kind: str) -> None:
        self.kind, self.inside, self.ended = kind, 0, 0

    def work(self, process: Process) -> None:
        with getattr(Locks(process.states, process.clock), self.kind)("length", "robot 6"):
            process.effect("set", self.enter)
        self.ended += 1

    def enter(self) -> None:
        self.inside += 1

    def check(self, process: Process, deaths: int) -> None:
        assert self.ended == 1
        assert 1 <= self.inside <= deaths + 1
        with Locks(process.states, process.clock).write("length", "another"):
            assert process.clock.now() == FakeClock().now()


@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_death_at_any_point_leaves_no_lock_that_its_owner_does_not_have_at_once(kind: str) -> None:
    assert sweep(lambda: Setting(kind)) >= 10


# --- outbox ----------------------------------------------------------------------------------------------------------


class Delivering:
    """Robot 8, which enqueues messages and delivers them."""

    def __init__(self) -> None:
        self.sent: list[object] = []

    def work(self, process: Process) -> None:
        outbox = Outbox(process.states, process.clock)
        for name in "ab":
            outbox.put(name, name)
        outbox.deliver(lambda message: process.effect("send", lambda: self.sent.append(message)))

    def check(self, process: Process, deaths: int) -> None:
        assert list(dict.fromkeys(self.sent)) == ["a", "b"]  # all of them, in order
        assert len(self.sent) <= 2 + deaths
        assert Outbox(process.states, process.clock).deliver(self.sent.append) == 0


def test_a_death_at_any_point_loses_no_message_and_repeats_at_most_the_one_under_way() -> None:
    assert sweep(Delivering) > 40


# --- saga ------------------------------------------------------------------------------------------------------------


class Linking:
    """Robot 8, which links by a saga of two steps; the last one may fail. Effects may come before a death."""

    def __init__(self, fails: str | None) -> None:
        self.fails, self.log, self.there = fails, list[str](), set[str]()

    def work(self, process: Process) -> None:
        def step(name: str) -> Step:
            def do() -> None:
                if name == self.fails:
                    raise RobotError(CIRCULAR, "a → b → a")
                process.effect(f"do {name}", lambda: self.there.add(name))
                self.log.append(f"do {name}")

            def undo() -> None:
                process.effect(f"undo {name}", lambda: self.there.discard(name))
                self.log.append(f"undo {name}")

            return Step(name, do, undo)

        saga = Saga(process.states, process.clock)
        if not self.fails:
            saga.run("link-7", [step(name) for name in "ab"])
            return
        with pytest.raises(RobotError) as caught:
            saga.run("link-7", [step(name) for name in "abc"])
        assert caught.value.code == CIRCULAR

    def check(self, process: Process, deaths: int) -> None:
        assert self.there == (set() if self.fails else {"a", "b"})
        for name in "ab":
            assert 1 <= self.log.count(f"do {name}") <= deaths + 1
        undone = [it for it in self.log if it.startswith("undo")]
        assert not undone if not self.fails else undone[-1] == "undo a"


@pytest.mark.parametrize("fails", [None, "c"])
def test_a_death_at_any_point_leaves_a_saga_that_is_done_or_undone_in_the_end(fails: str | None) -> None:
    assert sweep(lambda: Linking(fails)) >= 20


class Reserving:
    """Robot 8, whose steps refuse to be done twice: after a death the saga may have to undo something unknown."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.undone = False

    def work(self, process: Process) -> None:
        def step(name: str) -> Step:
            def do() -> None:
                if name in self.there:
                    raise RobotError(CIRCULAR, f"{name} is there already")
                process.effect(f"do {name}", lambda: self.there.add(name))

            return Step(name, do, lambda: process.effect(f"undo {name}", lambda: self.there.discard(name)))

        try:
            Saga(process.states, process.clock).run("link-7", [step(name) for name in "abc"])
        except RobotError:
            self.undone = True

    def check(self, process: Process, deaths: int) -> None:
        assert self.there == (set() if self.undone else set("abc"))


def test_after_a_death_at_any_point_nothing_is_half_done_even_if_no_step_can_be_repeated() -> None:
    assert sweep(Reserving) > 20


# --- fallback --------------------------------------------------------------------------------------------------------


class Storing:
    """Robot 9, which stores metrics while the first store is away, and again afterwards. It never repeats what died.

    The values of each key rise.
    """

    def __init__(self) -> None:
        self.first, self.away = dict[str, int](), False
        self.plan: list[tuple[str, int, bool]] = [("a", 1, True), ("b", 1, True), ("a", 2, False)]
        self.taken: dict[str, int] = {}  # what a store has taken, the newest by key
        self.tried: dict[str, int] = {}

    def work(self, process: Process) -> None:
        def put(key: str, value: int) -> None:
            if self.away:
                raise ConnectionError
            process.effect("put", lambda: self.first.update({key: value}))

        def put_below(key: str, value: int) -> None:
            process.effect("put below", lambda: self.taken.update({key: value}))

        stores = Stores([("InfluxDB", put), ("Redis", put_below)], buffer=process.states, clock=process.clock)
        while self.plan:
            key, value, self.away = self.plan.pop(0)
            self.tried[key] = value
            stores.put(key, value)
            self.taken[key] = value
        stores.sync()

    def check(self, process: Process, deaths: int) -> None:
        for key, value in self.taken.items():
            assert value <= self.first[key] <= self.tried[key]


def test_a_death_at_any_point_loses_no_value_that_a_store_took() -> None:
    assert sweep(Storing) > 50


# --- snapshots -------------------------------------------------------------------------------------------------------


class Copying:
    """Robot 9, which takes snapshots in two places."""

    def __init__(self) -> None:
        self.taken = self.tried = 0

    def work(self, process: Process) -> None:
        here, there = process.bucket.part("here/"), process.bucket.part("there/")
        snapshots = Snapshots(here, "kpi/", process.clock, replicas=[there])
        found = snapshots.restore()
        assert (found or 0) in range(self.taken, self.tried + 1)
        while self.taken < 2:
            self.tried = self.taken + 1
            snapshots.take(self.tried)
            assert snapshots.restore() == self.tried
            self.taken = self.tried
            process.clock.sleep(300)

    def check(self, process: Process, deaths: int) -> None:
        places = [process.bucket.part("here/"), process.bucket.part("there/")]
        both = Snapshots(places[0], "kpi/", process.clock, replicas=places[1:])
        assert both.restore() == 2
        process.clock.sleep(300)
        assert both.take(3)  # a gap in one is filled next time
        assert [Snapshots(place, "kpi/", process.clock).restore() for place in places] == [3, 3]


def test_a_death_at_any_point_loses_no_snapshot_that_was_taken() -> None:
    assert sweep(Copying) > 30
