"""Programs that die at each of their operations on a bucket, and are restarted."""

import os
from collections.abc import Callable, Iterator
from itertools import product
from typing import Protocol

import pytest

from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.clock import FakeClock
from retake.retrying.state_store import BucketStateStore


class Process:
    """One run of a program: its bucket, and its effects on the outside world, at which it may die, too."""

    def __init__(self, store: MemoryStore, clock: FakeClock, *faults: Fault) -> None:
        self.bucket = FailingBucket(MemoryBucket(store), *faults)
        self.states = BucketStateStore(self.bucket, "robots/", clock)
        self.clock = clock

    def effect(self, name: str, call: Callable[[], object]) -> None:
        """Do something outside of the bucket. The process may die before and after it."""
        self.bucket.around("effect", name, call)


class World(Protocol):
    """What a program works on, and what must be true of it in the end."""

    def work(self, process: Process) -> None:
        """Run the program, also again after its death."""
        ...

    def check(self, process: Process, deaths: int) -> None:
        """Check what must be true once it has run to its end."""
        ...


PAIRS_EVERY = int(os.environ.get("RETAKE_PAIRS_EVERY", "7"))


def sweep(make: Callable[[], World]) -> int:
    """Let the program die before and after each operation, and in its second run again, at every PAIRS_EVERYth point.

    Return how often the first run died.
    """
    ways = list(_ways_to_die(make))
    for number, first in enumerate(ways):
        seconds = list(_ways_to_die(make, first))[number % PAIRS_EVERY :: PAIRS_EVERY]
        for deaths in [[first], *([first, second] for second in seconds)]:
            world, store, clock = _after(make, *deaths)
            process = Process(store, clock)
            world.work(process)
            world.check(process, len(deaths))
    return len(ways)


def _ways_to_die(make: Callable[[], World], *before: Fault) -> Iterator[Fault]:
    world, store, clock = _after(make, *before)
    counted = Process(store, clock)
    world.work(counted)
    for number, after in product(range(1, len(counted.bucket.operations) + 1), (False, True)):
        yield Fault(Crash, number=number, after=after)


def _after(make: Callable[[], World], *deaths: Fault) -> tuple[World, MemoryStore, FakeClock]:
    world, store, clock = make(), MemoryStore(), FakeClock()
    for fault in deaths:
        with pytest.raises(Crash):
            world.work(Process(store, clock, fault))
    return world, store, clock
