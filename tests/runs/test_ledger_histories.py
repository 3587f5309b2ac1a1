"""Random histories by hypothesis: each store must do and say the same as the ledger in a dict.

Every step is made on both, and compares the answers (a value, or which error) and then everything that can be read.
Some steps use the current copy of a run, others any copy that was ever returned; those are mostly stale or illegal. A
failure shows the shortest such history. `RETAKE_SEEDS` tries more of them (`make soak`).
"""

import os
import sqlite3
from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from ledger_model import ModelLedger, ModelStore
from postgres import empty

from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.clock import FakeClock
from retake.errors import RunError
from retake.runs import Ledger
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.run import Event, Note, Run
from retake.runs.sql_ledger import SqlLedger, open_sql_ledger
from retake.runs.states import TRANSITIONS, RunStatus, Trigger

HISTORIES = max(30, int(os.environ.get("RETAKE_SEEDS", "0")) // 50)

TASKS = st.sampled_from(["a", "b"])
KEYS = st.sampled_from(["k1", "k2", "k3", "k4", "k5", ""])
PIPELINES = st.sampled_from(["story", "music"])
ANY_PIPELINE = st.one_of(st.none(), PIPELINES)
WHICH = st.integers(0, 1000)
DELAYS = st.sampled_from([None, -1.0, 0.0, 0.000_001, 2.0, 30.0])
ERRORS = st.sampled_from([None, None, {"error_code": "ERR_TEMPORARY_TIMEOUT", "message": "нет ответа"}])
NOTES = st.lists(st.builds(Note, st.just("run.note"), st.dictionaries(st.text(max_size=2), st.integers())), max_size=2)

Connect = Callable[[], Ledger]


class History(RuleBasedStateMachine):
    """The events of a ledger and of its model."""

    def __init__(self, connect: Connect, clock: FakeClock) -> None:
        super().__init__()
        self.clock, self.connect = clock, connect
        clock.moment = FakeClock().moment
        self.real, self.model = connect(), ModelLedger(ModelStore(), clock)
        self.held: list[Run] = []
        self.number = 0

    def teardown(self) -> None:
        for run in self.both(lambda it: it.runs()):
            self.both(lambda it, run=run: it.events(run.run_id))
        for name in ("k1", "k4", "nothing"):
            self.both(lambda it, name=name: it.find(name))

    def both(self, call: Callable[[Ledger], Any]) -> Any:
        """Return the answer of both."""
        answers = []
        for ledger in (self.model, self.real):
            try:
                answers.append(nameless(call(ledger)))
            except RunError as error:
                answers.append(type(error))
        assert answers[1] == answers[0]
        return answers[0]

    def hold(self, call: Callable[[Ledger], Any]) -> Any:
        """Return the answer of both; if it is a run, later steps may use it."""
        answer = self.both(call)
        if isinstance(answer, Run):
            self.held.append(answer)
        return answer

    def trace(self) -> str:
        self.number += 1
        return f"trace {self.number}"

    def some(self, which: int) -> Run | None:
        """Return one of the runs seen so far, newer ones more often."""
        recent = self.held[-8:] if which % 2 else self.held
        return recent[which % len(recent)] if recent else None

    @initialize(runs=st.lists(st.tuples(TASKS, PIPELINES), min_size=2, max_size=5))
    def begin(self, runs: list[tuple[str, str]]) -> None:
        for number, (task, pipeline) in enumerate(runs):
            self._create(task, f"first {number}", pipeline)

    @rule(task=TASKS, key=KEYS, pipeline=PIPELINES)
    def create(self, task: str, key: str, pipeline: str) -> None:
        self._create(task, key, pipeline)

    def _create(self, task: str, key: str, pipeline: str) -> None:
        trace = self.trace()
        self.hold(lambda it: it.create_for_task(task, key, actor="cron", pipeline=pipeline, trace_id=trace))

    @rule(which=WHICH, choice=WHICH, delay=st.sampled_from([0.0, 0.000_001, 2.0, 30.0]), error=ERRORS, notes=NOTES)
    def go_on(self, which: int, choice: int, delay: float, error: Any, notes: list[Note]) -> None:
        """Make a step that is legal for the current copy of some run."""
        runs = [run for run in self.both(lambda it: it.runs()) if not run.ended]
        if runs:
            run = runs[which % len(runs)]
            possible = [trigger for start, trigger in TRANSITIONS if start is run.status]
            trigger = possible[choice % len(possible)]
            self._move(run, trigger, delay if trigger is Trigger.RETRYABLE_ERROR else None, error, notes)

    @rule(which=WHICH, trigger=st.sampled_from(Trigger), delay=DELAYS, error=ERRORS, notes=NOTES)
    def move(self, which: int, trigger: Trigger, delay: float | None, error: Any, notes: list[Note]) -> None:
        """Make any step, with any copy of a run."""
        if run := self.some(which):
            self._move(run, trigger, delay, error, notes)

    def _move(self, run: Run, trigger: Trigger, delay: float | None, error: Any, notes: list[Note]) -> None:
        due = None if delay is None else self.clock.now() + timedelta(seconds=delay)
        how = {"worker": "w", "next_retry_at": due, "error": error, "notes": notes, "trace_id": self.trace()}
        self.hold(lambda it: it.move(run, trigger, actor="operator", **how))

    @rule(pipeline=ANY_PIPELINE)
    def claim(self, pipeline: str | None) -> None:
        self.hold(lambda it: it.claim(f"worker {self.number}", pipeline=pipeline))

    @rule(which=WHICH)
    def heartbeat(self, which: int) -> None:
        if run := self.some(which):
            self.hold(lambda it: it.heartbeat(run))

    @rule(which=WHICH, notes=NOTES)
    def note(self, which: int, notes: list[Note]) -> None:
        run, trace = self.some(which), self.trace()
        for kind, payload in notes if run else ():
            self.hold(lambda it, kind=kind, payload=payload: it.note(run, kind, payload, actor="cron", trace_id=trace))

    @rule(seconds=st.sampled_from([0.0, 10.0]))
    def recover(self, seconds: float) -> None:
        """Do what a recovery does: interrupt silent runs, and give up those that were interrupted before."""
        since = self.clock.now() - timedelta(seconds=seconds)
        for run in self.both(lambda it: it.silent(since)):
            trace = self.trace()
            cut = self.hold(
                lambda it, run=run, trace=trace: it.move(run, Trigger.PROCESS_RESTART, actor="recovery", trace_id=trace)
            )
            if cut.resumes:
                self.hold(
                    lambda it, cut=cut, trace=trace: it.move(
                        cut, Trigger.RECOVERY_ABORT, actor="recovery", trace_id=trace
                    )
                )

    @rule(seconds=st.sampled_from([0.000_001, 1.0, 45.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.moment += timedelta(seconds=seconds)

    @rule()
    def begin_again(self) -> None:
        """Continue as another process, which has seen nothing yet."""
        self.real = self.connect()

    @invariant()
    def everything_is_the_same(self) -> None:
        for task in ("a", "b"):
            self.both(lambda it, task=task: it.of_task(task))
        self.both(lambda it: it.runs(pipeline="story", limit=2))
        self.both(lambda it: it.runs(status=[RunStatus.RUNNING, RunStatus.RETRY_SCHEDULED]))
        self.both(lambda it: it.counts())
        self.both(lambda it: it.counts(pipeline="music"))
        self.both(lambda it: it.silent(self.clock.now()))
        if self.held:
            self.both(lambda it: it.get(self.held[-1].run_id))
            self.both(lambda it: it.events(self.held[-1].run_id))


def nameless(answer: Any) -> Any:
    """Remove the trace ids that nobody gave, which are random."""
    if not isinstance(answer, list) or not all(isinstance(it, Event) for it in answer):
        return answer
    return [it._replace(trace_id="") if it.trace_id.startswith("trace-run-") else it for it in answer]


def play(begin: Callable[[], Connect], clock: FakeClock, *, phases: Iterable[Phase] = tuple(Phase)) -> None:
    """Play histories. `begin` empties the store and returns a function that connects to it."""
    limits = settings(
        max_examples=HISTORIES,
        stateful_step_count=40,
        deadline=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(lambda: History(begin(), clock), settings=limits)  # type: ignore[no-untyped-call]


def test_every_history_in_a_bucket_matches_the_model() -> None:
    clock = FakeClock()

    def begin() -> Connect:
        store = MemoryStore()
        return lambda: BucketLedger(MemoryBucket(store), clock)

    play(begin, clock)


def test_every_history_in_sqlite_matches_the_model(tmp_path: Path, opened: list[SqlLedger]) -> None:
    clock = FakeClock()
    opened += [open_sql_ledger(f"sqlite:{tmp_path}/runs.db", clock) for _ in range(2)]

    def begin() -> Connect:
        connection = sqlite3.connect(tmp_path / "runs.db")
        connection.executescript("DELETE FROM events; DELETE FROM task_runs")
        connection.close()
        return cycle(opened).__next__

    play(begin, clock)


def test_every_history_in_postgres_matches_the_model(shared_database: str, opened: list[SqlLedger]) -> None:
    clock = FakeClock()
    opened += [open_sql_ledger(shared_database, clock) for _ in range(2)]

    def begin() -> Connect:
        empty(shared_database)
        return cycle(opened).__next__

    play(begin, clock)


@pytest.mark.parametrize("broken", ["runs", "counts", "claim"])
def test_a_store_that_differs_is_found(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The histories notice when a single answer differs."""

    class Broken(ModelLedger):
        pass

    usual = getattr(ModelLedger, broken)
    wrong: Any = {
        "runs": lambda *a, **k: usual(*a, **k)[::-1],
        "counts": lambda *a, **k: {it: min(1, n) for it, n in usual(*a, **k).items()},
        "claim": lambda self, worker, **_: usual(self, worker),
    }
    monkeypatch.setattr(Broken, broken, wrong[broken])
    clock = FakeClock()

    def begin() -> Connect:
        store = ModelStore()
        return lambda: Broken(store, clock)

    with pytest.raises(AssertionError):
        play(begin, clock, phases=[Phase.generate])
