"""Death, or a failing store, at every operation of a bucket's ledger: nothing is lost, and the names recover.

A life takes some runs through every transition to their ends, over several days. The bucket's state is recorded before
and after each operation; from each state that differs from the previous one another process continues. Where the store
fails, or two deaths follow each other, the life is repeated for each operation.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

import pytest

from retake.bucket import Bucket
from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.bucket.wrappers import Wrapper
from retake.clock import FakeClock
from retake.errors import StorageError
from retake.runs.bucket_index import (
    ENDED,
    OPEN,
    TALLY,
    closed_counts,
    ended,
    ended_key,
    open_key,
    opened,
    read_tally,
    tag_of,
    uncounted,
)
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.run import CHANGED, Run, StaleRun
from retake.runs.run_document import MAX_EVENTS
from retake.runs.states import FINAL, START, TRANSITIONS, RunStatus, Trigger

ENDS = {
    "story-1": Trigger.COMPLETED,
    "story-2": Trigger.NON_RETRYABLE_ERROR,
    "music-1": Trigger.CANCEL_COMMAND,
}
DAY = timedelta(days=1)
T = TypeVar("T")


class Moment(NamedTuple):
    """All that outlives a process at a point of its life. Deaths at equal moments have equal futures."""

    objects: dict[str, Any]
    time: datetime


class World:
    """A bucket, and a clock that outlives every process."""

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.max_events = max_events  # in a run's document, before older ones go into a segment

    def bucket(self) -> MemoryBucket:
        return MemoryBucket(self.store)

    def moment(self) -> Moment:
        return Moment(dict(self.store.objects), self.clock.moment)

    def die_at(self, moment: Moment) -> None:
        """Go back to a moment at which the process dies."""
        self.store.objects, self.clock.moment = dict(moment.objects), moment.time
        self.store.end_leases()

    def live(self, bucket: Bucket, *, own_lease: bool) -> None:
        """Bring every run to its end, one per day. Can be called again after any death."""
        lease = None if own_lease else bucket.lease("story", "a tick")
        ledger = BucketLedger(bucket, self.clock, lease=lease, max_events=self.max_events)
        for name, end in ENDS.items():
            task = name.partition("-")[0]
            run = ledger.create_for_task(task, name, actor="cron", pipeline=f"of/{task}")
            while not run.ended:
                self.clock.sleep(60)
                run = self._next(ledger, run, end)
            self.clock.sleep(DAY.total_seconds())

    def _next(self, ledger: BucketLedger, run: Run, end: Trigger) -> Run:
        match run.status:
            case RunStatus.RUNNING if run.error_code is None:
                due = self.clock.now() + timedelta(seconds=5)
                code = "ERR_TEMPORARY_NETWORK"
                return ledger.move(run, Trigger.RETRYABLE_ERROR, actor="cron", next_retry_at=due, error_code=code)
            case RunStatus.RUNNING if not run.resumes:
                ledger.note(run, "run.step.done", {"step": "imagine"}, actor="cron")
                ledger.heartbeat(run)
                return ledger.move(run, Trigger.PROCESS_RESTART, actor="recovery")
            case RunStatus.RUNNING:
                return ledger.move(run, end, actor="cron")
            case _:
                claimed = ledger.claim("w")
                assert claimed, f"{run} is open, but no worker gets it"
                assert claimed.run_id == run.run_id
                return claimed


def check_reading(world: World) -> None:
    """Check that every existing document is found and counted once, at any moment and after any deaths."""
    ledger = BucketLedger(world.bucket(), world.clock)
    there = {
        key.removeprefix("runs/").removesuffix(".json") for key in world.store.objects if key.startswith("runs/run-")
    }
    runs = {run_id: ledger.get(run_id) for run_id in there}
    assert ledger.counts() == {status: Counter(it.status for it in runs.values())[status] for status in RunStatus}
    for pipeline in ("of/story", "of/music"):
        of_it = Counter(it.status for it in runs.values() if it.pipeline == pipeline)
        assert ledger.counts(pipeline=pipeline) == {status: of_it[status] for status in RunStatus}
    assert sorted(ledger.runs()) == sorted(runs.values())
    assert sorted(ledger.runs(status=FINAL)) == sorted(run for run in runs.values() if run.ended)
    assert sorted(ledger.silent(world.clock.now() + DAY)) == sorted(
        run for run in runs.values() if run.status is RunStatus.RUNNING
    )
    by_task = [run for task in ("story", "music") for run in ledger.of_task(task)]
    assert sorted(by_task) == sorted(runs.values())
    assert len({(run.task_id, run.attempt) for run in by_task}) == len(by_task)
    for run in runs.values():
        check_history(ledger, run)


def check_history(ledger: BucketLedger, run: Run) -> None:
    """Check that each transition has its event, and that the events lead from the start to the run's state."""
    status: RunStatus | None = None
    events = ledger.events(run.run_id)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    changes = [event.payload for event in events if event.kind == CHANGED]
    for payload in changes:
        before, after = payload["previous_status"], RunStatus(payload["status"])
        assert before == (status.value if status else None)
        assert after in {it for (start, _), it in TRANSITIONS.items() if start is status} or after is START
        status = after
    assert (status, len(changes)) == (run.status, run.version)
    retried = [it for it in changes if it["status"] == RunStatus.RETRY_SCHEDULED]
    cut = [it for it in changes if it["status"] == RunStatus.INTERRUPTED]
    assert (run.retries, run.crashes) == (len(retried), len(cut))


def check_names(world: World) -> None:
    """Check that the names say what the documents say, and nothing else, once the next segment is opened."""
    bucket = world.bucket()
    ledger = BucketLedger(bucket, world.clock)
    world.clock.sleep(3 * DAY.total_seconds())
    last = ledger.create_for_task("story", "the last", actor="cron", pipeline="of/story")
    last = ledger.move(last, Trigger.CANCEL_COMMAND, actor="operator")
    runs = ledger.runs()
    assert len(runs) == len(ENDS) + 1
    assert opened(bucket.list(OPEN)) == []
    names = ended(bucket.list(ENDED))
    assert {ended_key(run, "") for run in runs} == {f"{ENDED}/{it.name}" for _, it in names}
    assert len(names) == len(runs)
    tally = read_tally(bucket)
    assert [it.run_id for it in uncounted(bucket, tally)] == [last.run_id]
    assert closed_counts(tally, None) == Counter(run.status for run in runs if run != last)
    assert closed_counts(tally, tag_of("of/music")) == {RunStatus.CANCELLED: 1}


class WatchedBucket(Wrapper):
    """Records the world before and after each operation."""

    def __init__(self, world: World) -> None:
        super().__init__(world.bucket())
        self.moments: dict[str, Moment] = {}
        self._world = world

    def around(self, operation: str, key: str, call: Callable[[], T]) -> T:
        number = len(self.moments) // 2 + 1
        self.moments[f"before operation {number}, {operation} {key}"] = self._world.moment()
        try:
            return call()
        finally:
            self.moments[f"after operation {number}, {operation} {key}"] = self._world.moment()


READING = ("read", "list")


def points(*, own_lease: bool, max_events: int = MAX_EVENTS) -> Iterator[tuple[int, bool]]:
    """Yield every operation of a life, before and after its effect; for reads both are the same."""
    world = World(max_events)
    counted = FailingBucket(world.bucket())
    world.live(counted, own_lease=own_lease)
    counted.end_leases()
    check_reading(world)
    check_names(world)
    for number, (operation, _) in enumerate(counted.operations, 1):
        yield number, False
        if operation not in READING:
            yield number, True


@pytest.mark.parametrize("max_events", [MAX_EVENTS, 3], ids=["no segments", "segments"])
@pytest.mark.parametrize("own_lease", [True, False], ids=["a lease a change", "one lease given"])
def test_a_death_at_any_operation_loses_nothing_and_heals(own_lease: bool, max_events: int) -> None:
    world, before = World(max_events), None
    watched = WatchedBucket(world)
    world.live(watched, own_lease=own_lease)
    assert len(watched.moments) > 150
    for when, moment in watched.moments.items():
        if moment == before:  # nothing changes between two reads, so what follows would be the same
            continue
        before = moment
        world.die_at(moment)
        try:
            check_reading(world)
            world.live(world.bucket(), own_lease=own_lease)
            world.store.end_leases()
            check_names(world)
            check_reading(world)
        except AssertionError as error:
            raise AssertionError(f"death {when}: {error}") from error


PAIRS_EVERY = int(os.environ.get("RETAKE_PAIRS_EVERY", "13"))


def test_a_life_with_segments_has_some() -> None:
    world = World(3)
    world.live(world.bucket(), own_lease=True)
    assert len([key for key in world.store.objects if key.startswith("runs/events/")]) > len(ENDS)


def test_two_deaths_heal_too() -> None:
    total = len({number for number, _ in points(own_lease=False)})
    for first in range(1, total + 1, PAIRS_EVERY):
        for second in range(1 + first % PAIRS_EVERY, total + 1, PAIRS_EVERY):
            world = World()
            for number, after in ((first, True), (second, False), (second, True)):
                with suppress(Crash):
                    dying = FailingBucket(world.bucket(), Fault(Crash, number=number, after=after))
                    world.live(dying, own_lease=False)
                world.store.end_leases()
                check_reading(world)
            world.live(world.bucket(), own_lease=False)
            world.store.end_leases()
            check_reading(world)
            check_names(world)


@pytest.mark.parametrize("max_events", [MAX_EVENTS, 3], ids=["no segments", "segments"])
@pytest.mark.parametrize("own_lease", [True, False], ids=["a lease a change", "one lease given"])
def test_a_store_that_fails_once_is_asked_again_and_nothing_happens_twice(own_lease: bool, max_events: int) -> None:
    for number, after in points(own_lease=own_lease, max_events=max_events):
        world = World(max_events)
        failing = FailingBucket(world.bucket(), Fault(StorageError, number=number, after=after))
        insist(lambda: world.live(failing, own_lease=own_lease), world.store)  # noqa: B023  called at once
        world.store.end_leases()
        check_names(world)
        check_reading(world)


def test_a_tally_that_is_gone_is_counted_anew_and_nobody_is_counted_twice() -> None:
    for number in range(1, 4):
        world = World()
        dying = FailingBucket(world.bucket(), Fault(Crash, operation="delete", number=number))
        with suppress(Crash):  # its last run is among the ended ones and among the others
            world.live(dying, own_lease=False)
        world.store.end_leases()
        world.bucket().delete(TALLY)
        check_reading(world)
        world.live(world.bucket(), own_lease=False)
        world.store.end_leases()
        check_names(world)
        check_reading(world)


def insist(live: Callable[[], None], store: MemoryStore) -> None:
    for _ in range(3):
        try:
            return live()
        except (StorageError, StaleRun):  # its answer was lost: it has already moved on
            store.end_leases()
    raise AssertionError("it never came to its end")


def test_what_is_left_of_a_creation_that_died_is_swept_up_after_a_day() -> None:
    world = World()
    dying = FailingBucket(world.bucket(), Fault(Crash, operation="write", number=3))
    with suppress(Crash):
        BucketLedger(dying, world.clock).create_for_task("never", "never#1", actor="cron")
    assert len(opened(world.bucket().list(OPEN))) == 1
    world.live(world.bucket(), own_lease=True)
    assert opened(world.bucket().list(OPEN)) == []


def test_an_open_marker_says_whose_run_it_is() -> None:
    world = World()
    ledger = BucketLedger(world.bucket(), world.clock)
    run = ledger.create_for_task("t", "t#1", actor="cron", pipeline="story/en")
    assert open_key(run) == f"{OPEN}story+en.{run.run_id}"
    assert [it.pipeline for it in opened(world.bucket().list(OPEN))] == ["story+en"]
