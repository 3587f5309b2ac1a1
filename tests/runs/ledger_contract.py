"""The suite that every ledger has to pass.

A new store joins with one fixture:

    from ledger_contract import LedgerContract

    class TestMyLedger(LedgerContract):
        @pytest.fixture
        def connect(self, clock):
            store = a_new_and_empty_store()
            return lambda: MyLedger(store, clock)

`connect()` returns another client of the same store, as another process would have. Where stores may differ, a class
attribute says so, and the suite asks that; it never asks for the type.
"""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import TypeVar

import pytest
from ledger_shapes import a_record, claimed, in_state, last_changed, step, wait
from ledger_values import ValuesContract
from together import at_once

from retake.clock import FakeClock, stamp
from retake.errors import RunError
from retake.runs import Ledger
from retake.runs.run import CHANGED, ERROR, Event, Note, Run, StaleRun, UnknownRun, run_id_of
from retake.runs.states import TRANSITIONS, IllegalTransition, RunStatus, Trigger

Connect = Callable[[], Ledger]
T = TypeVar("T")

LEGAL = sorted(TRANSITIONS)
ILLEGAL = [(status, trigger) for status in RunStatus for trigger in Trigger if (status, trigger) not in TRANSITIONS]

FIELDS = (
    *("run_id", "task_id", "previous_status", "status", "attempt", "idempotency_key"),
    *("next_retry_at", "error_code", "actor"),
)
"""The fields of every event of a transition: docs/protocol.md, section "Events"."""

NAMES = ("story/канал", "作业 7", "a'b\"c;--", "%2F\\ ?#", "🎬", "x" * 900)


class LedgerContract(ValuesContract):
    threads = 4
    """The number of concurrent clients; each of them makes `rounds` requests."""
    rounds = 6

    busy: tuple[type[Exception], ...] = ()
    """What the store may raise, having done nothing, while another client is at work; the request is then repeated."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock(datetime(2026, 2, 7, 12, 0, 0, 123_456, tzinfo=UTC))

    @pytest.fixture
    def connect(self, clock: FakeClock) -> Connect:
        raise NotImplementedError

    @pytest.fixture
    def ledger(self, connect: Connect) -> Ledger:
        return connect()

    def insist(self, call: Callable[[], T]) -> T:
        while True:
            try:
                return call()
            except self.busy:
                continue

    # --- creating -----------------------------------------------------------------------------------------------

    def test_a_new_run_is_queued_and_seen_by_another_client(self, connect: Connect, clock: FakeClock) -> None:
        run = connect().create_for_task("t", "t#1", actor="cron", pipeline="story")
        now = clock.now()
        assert run == Run(run_id_of("t#1"), "t", 1, "t#1", RunStatus.QUEUED, now, now, pipeline="story")
        assert connect().get(run.run_id) == connect().find("t#1") == run
        assert connect().of_task("t") == [run]

    def test_a_run_that_is_begun_at_once_never_waits_for_a_worker(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its process may die at any moment, and a queued run of it would wait for ever."""
        ledger = connect()
        monkeypatch.setattr(ledger, "_move", None)
        run = ledger.create_for_task("t", "t#1", actor="robot", pipeline="p", trace_id="tr", worker="host:1")
        assert (run.status, run.worker, run.heartbeat_at) == (RunStatus.RUNNING, "host:1", run.created_at)
        assert connect().get(run.run_id) == run
        found = [(event.seq, event.trace_id, event.payload["status"]) for event in connect().events(run.run_id)]
        assert found == [(1, "tr", "queued"), (2, "tr", "running")]
        assert connect().counts()[RunStatus.RUNNING] == 1
        done = connect().move(run, Trigger.COMPLETED, actor="robot")
        assert connect().events(done.run_id)[-1].seq == 3

    def test_a_known_key_gives_the_run_that_is_there_as_it_stands(self, connect: Connect, clock: FakeClock) -> None:
        run = step(connect(), connect().create_for_task("t", "key", actor="cron"), Trigger.WORKER_CLAIM)
        before = connect().events(run.run_id)
        clock.sleep(60)
        for task in ("t", "another"):
            assert connect().create_for_task(task, "key", actor="worker", pipeline="elsewhere") == run
        assert connect().events(run.run_id) == before
        assert connect().of_task("another") == []

    def test_each_run_of_a_task_is_its_next_attempt(self, ledger: Ledger) -> None:
        created = [ledger.create_for_task(task, f"{task}#{n}", actor="cron") for n in (1, 2, 3) for task in "ab"]
        assert [(run.task_id, run.attempt) for run in created] == [(task, n) for n in (1, 2, 3) for task in "ab"]
        assert [run.attempt for run in ledger.of_task("a")] == [1, 2, 3]

    @pytest.mark.parametrize(("task", "key"), [("", "k"), ("t", ""), (" ", "k"), ("t", "\t")])
    def test_a_run_needs_a_task_and_a_key(self, ledger: Ledger, task: str, key: str) -> None:
        with pytest.raises(RunError):
            ledger.create_for_task(task, key, actor="cron")
        assert ledger.runs() == []

    @pytest.mark.parametrize("name", NAMES)
    def test_names_are_kept_as_they_are(self, connect: Connect, name: str) -> None:
        run = connect().create_for_task(name, f"{name}#1", actor=name, pipeline=name, trace_id=name)
        run = connect().move(run, Trigger.WORKER_CLAIM, actor=name, worker=name)
        connect().note(run, name, {name: name}, actor=name)
        assert connect().find(f"{name}#1") == connect().of_task(name)[0] == connect().runs(pipeline=name)[0] == run
        assert run.worker == name
        first, _, last = connect().events(run.run_id)
        assert (first.trace_id, first.payload["actor"]) == (name, name)
        assert (last.kind, last.payload) == (name, {name: name, "actor": name})

    def test_of_many_who_create_with_one_key_all_get_the_same_run(self, connect: Connect) -> None:
        create = lambda: self.insist(lambda: connect().create_for_task("t", "key", actor="cron"))  # noqa: E731
        assert at_once([create] * self.threads) == [connect().get(run_id_of("key"))] * self.threads
        assert len(connect().events(run_id_of("key"))) == 1
        begin = lambda: self.insist(lambda: connect().create_for_task("t", "key", actor="cron", worker="w"))  # noqa: E731
        assert at_once([begin] * self.threads) == [connect().get(run_id_of("key"))] * self.threads
        assert len(connect().events(run_id_of("key"))) == 2

    def test_many_who_create_runs_of_one_task_at_once_get_an_attempt_each(self, connect: Connect) -> None:
        def create(name: int) -> None:
            ledger = connect()
            for n in range(self.rounds):
                self.insist(lambda n=n: ledger.create_for_task("t", f"{name}/{n}", actor="cron"))

        at_once([lambda name=name: create(name) for name in range(self.threads)])
        runs = connect().of_task("t")
        assert [run.attempt for run in runs] == list(range(1, self.threads * self.rounds + 1))
        assert all(connect().events(run.run_id)[0].payload["attempt"] == run.attempt for run in runs)

    # --- what is not there --------------------------------------------------------------------------------------

    def test_a_missing_run_is_unknown_to_everything(self, ledger: Ledger, clock: FakeClock) -> None:
        ledger.create_for_task("t", "t#1", actor="cron")
        now = clock.now()
        stranger = Run("run-0", "s", 1, "s#1", RunStatus.RUNNING, now, now)
        for call in (
            lambda: ledger.get("run-0"),
            lambda: ledger.events("run-0"),
            lambda: ledger.move(stranger, Trigger.COMPLETED, actor="worker"),
            lambda: ledger.move(stranger, Trigger.WORKER_CLAIM, actor="worker"),
            lambda: ledger.note(stranger, "run.note", {}, actor="worker"),
            lambda: ledger.heartbeat(stranger),
        ):
            with pytest.raises(UnknownRun, match="run-0"):
                call()
        assert ledger.find("s#1") is None
        assert ledger.of_task("s") == []
        assert len(ledger.runs()) == 1

    def test_an_empty_ledger_is_empty_and_not_an_error(self, ledger: Ledger, clock: FakeClock) -> None:
        assert (ledger.runs(), ledger.silent(clock.now()), ledger.claim("w")) == ([], [], None)
        assert ledger.counts() == dict.fromkeys(RunStatus, 0)

    # --- transitions --------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(("status", "trigger"), LEGAL)
    def test_every_transition_of_the_diagram_is_kept_with_its_event(
        self, connect: Connect, clock: FakeClock, status: RunStatus, trigger: Trigger
    ) -> None:
        before = in_state(connect(), status)
        clock.sleep(1.5)
        after = step(connect(), before, trigger, trace_id="trace-1", error_code="ERR_TEMPORARY_X")
        assert connect().get(before.run_id) == after
        assert (after.status, after.updated_at, after.version) == (
            TRANSITIONS[status, trigger],
            clock.now(),
            before.version + 1,
        )
        event = connect().events(after.run_id)[-1]
        assert event == Event(after.run_id, before.version + 1, CHANGED, clock.now(), "trace-1", event.payload)
        due = after.next_retry_at
        values = ("t", status.value, after.status.value, after.attempt, "t#1", stamp(due) if due else None)
        assert event.payload == dict(zip(FIELDS, (after.run_id, *values, "ERR_TEMPORARY_X", "worker"), strict=True))

    @pytest.mark.parametrize(("status", "trigger"), ILLEGAL)
    def test_everything_else_is_refused_and_changes_nothing(
        self, connect: Connect, status: RunStatus, trigger: Trigger
    ) -> None:
        before = in_state(connect(), status)
        events = connect().events(before.run_id)
        with pytest.raises(IllegalTransition):
            step(connect(), before, trigger)
        assert (connect().get(before.run_id), connect().events(before.run_id)) == (before, events)

    def test_the_first_event_has_no_previous_state(self, ledger: Ledger) -> None:
        run = ledger.create_for_task("t", "t#1", actor="operator")
        (event,) = ledger.events(run.run_id)
        values = (run.run_id, "t", None, "queued", 1, "t#1", None, None, "operator")
        assert (event.seq, event.kind) == (1, CHANGED)
        assert event.payload == dict(zip(FIELDS, values, strict=True))

    def test_a_trace_id_that_nobody_gave_is_made_from_the_run(self, ledger: Ledger) -> None:
        run = step(ledger, ledger.create_for_task("t", "t#1", actor="cron", trace_id="mine"), Trigger.WORKER_CLAIM)
        step(ledger, run, Trigger.COMPLETED)
        given, first, second = (event.trace_id for event in ledger.events(run.run_id))
        assert given == "mine"
        assert first.startswith(f"trace-run-{run.run_id}-")
        assert first != second

    def test_the_next_retry_is_there_if_and_only_if_one_is_scheduled(self, ledger: Ledger, clock: FakeClock) -> None:
        run = in_state(ledger, RunStatus.RUNNING)
        for trigger, due in ((Trigger.RETRYABLE_ERROR, None), (Trigger.COMPLETED, clock.now())):
            with pytest.raises(RunError, match="next_retry_at"):
                ledger.move(run, trigger, actor="worker", next_retry_at=due)
        assert ledger.get(run.run_id) == run
        due = clock.now() + timedelta(seconds=8)
        scheduled = ledger.move(run, Trigger.RETRYABLE_ERROR, actor="worker", next_retry_at=due)
        assert scheduled.next_retry_at == due
        for trigger in (Trigger.RETRY_DUE, Trigger.PROCESS_RESTART, Trigger.RECOVERY_ABORT):
            scheduled = step(ledger, scheduled, trigger)
            assert scheduled.next_retry_at is ledger.get(run.run_id).next_retry_at is None

    def test_times_are_kept_to_the_microsecond_and_come_back_in_utc(self, connect: Connect, clock: FakeClock) -> None:
        far = datetime(2026, 3, 1, 5, 0, 0, 7, tzinfo=timezone(timedelta(hours=5)))
        run = in_state(connect(), RunStatus.RUNNING)
        connect().move(run, Trigger.RETRYABLE_ERROR, actor="worker", next_retry_at=far)
        read = connect().get(run.run_id)
        assert read.next_retry_at == datetime(2026, 3, 1, 0, 0, 0, 7, tzinfo=UTC)
        for moment in (read.next_retry_at, read.created_at, read.updated_at, connect().events(run.run_id)[0].at):
            assert moment is not None
            assert moment.utcoffset() == timedelta(0)
        assert read.created_at.microsecond == clock.now().microsecond

    def test_a_retry_is_the_next_attempt_of_its_task_and_a_resume_goes_on_with_its_own(self, ledger: Ledger) -> None:
        first = in_state(ledger, RunStatus.RETRY_SCHEDULED)
        second = ledger.create_for_task("t", "t#2", actor="cron")
        first = step(ledger, first, Trigger.RETRY_DUE)
        assert (second.attempt, first.attempt) == (2, 3)
        first = step(ledger, step(ledger, first, Trigger.PROCESS_RESTART), Trigger.RECOVERY_RESUME)
        assert (first.attempt, first.resumes) == (3, 1)
        assert ledger.create_for_task("t", "t#3", actor="cron").attempt == 4
        assert [(run.idempotency_key, run.attempt) for run in ledger.of_task("t")] == [
            ("t#2", 2),
            ("t#1", 3),
            ("t#3", 4),
        ]

    def test_a_failure_leaves_its_record_and_its_code(self, ledger: Ledger, clock: FakeClock) -> None:
        record = a_record(clock)
        run = step(ledger, in_state(ledger, RunStatus.RUNNING), Trigger.RETRYABLE_ERROR, error=record, trace_id="tr")
        changed, error = ledger.events(run.run_id)[-2:]
        assert run.error_code == changed.payload["error_code"] == record["error_code"]
        assert error == Event(run.run_id, changed.seq + 1, ERROR, clock.now(), "tr", record)
        run = step(ledger, run, Trigger.RETRY_DUE)
        assert run.error_code == record["error_code"]
        run = step(ledger, run, Trigger.COMPLETED)
        assert run.error_code is ledger.get(run.run_id).error_code is None
        assert [event.seq for event in ledger.events(run.run_id)] == [1, 2, 3, 4, 5, 6]

    def test_whoever_holds_an_older_run_has_lost_it(self, connect: Connect) -> None:
        zombie = in_state(connect(), RunStatus.RUNNING)
        taken = step(connect(), zombie, Trigger.PROCESS_RESTART)
        taken = step(connect(), taken, Trigger.RECOVERY_RESUME)
        before = connect().events(taken.run_id)
        for trigger in (Trigger.COMPLETED, Trigger.WORKER_CLAIM):  # of what it holds, the second is illegal, too
            with pytest.raises(StaleRun, match=taken.run_id):
                step(connect(), zombie, trigger)
        assert (connect().get(taken.run_id), connect().events(taken.run_id)) == (taken, before)

    def test_of_many_who_move_one_run_at_once_one_does(self, connect: Connect) -> None:
        run = in_state(connect(), RunStatus.RUNNING)
        outcomes: list[str] = []

        def move(name: str) -> None:
            ledger = connect()
            try:
                self.insist(lambda: ledger.move(run, Trigger.COMPLETED, actor=name))
                outcomes.append(name)
            except StaleRun:
                outcomes.append("stale")

        at_once([lambda name=f"w{n}": move(name) for n in range(self.threads)])
        (winner,) = (name for name in outcomes if name != "stale")
        assert [event.payload["actor"] for event in connect().events(run.run_id)] == ["cron", "worker", winner]

    # --- notes --------------------------------------------------------------------------------------------------

    def test_a_note_is_an_event_that_changes_no_state(self, connect: Connect, clock: FakeClock) -> None:
        stale = in_state(connect(), RunStatus.RUNNING)
        run = step(connect(), stale, Trigger.COMPLETED)
        clock.sleep(1)
        payload = {"step": "video", "cost": 1.5, "list": [1, None, {"ж": "\0 \u2028"}]}
        event = connect().note(stale, "run.step.done", payload, actor="cron", trace_id="tr")
        assert event == Event(run.run_id, 4, "run.step.done", clock.now(), "tr", {**payload, "actor": "cron"})
        assert connect().note(run, "run.note", {}, actor="cron").trace_id.startswith(f"trace-run-{run.run_id}-")
        assert connect().events(run.run_id)[3] == event
        assert connect().get(run.run_id) == run

    def test_notes_given_with_a_transition_are_saved_with_it_and_come_before_it(self, connect: Connect) -> None:
        run = in_state(connect(), RunStatus.RUNNING)
        notes = [Note("run.step.done", {"step": "video"}), Note("run.note", {"text": "it took long"})]
        connect().move(run, Trigger.COMPLETED, actor="cron", notes=notes)
        done, note, changed = connect().events(run.run_id)[2:]
        assert [event.seq for event in (done, note, changed)] == [3, 4, 5]
        assert (done.kind, done.payload) == ("run.step.done", {"step": "video", "actor": "cron"})
        assert (note.kind, note.payload) == ("run.note", {"text": "it took long", "actor": "cron"})
        assert (changed.kind, done.trace_id) == (CHANGED, changed.trace_id)

    def test_a_transition_that_is_refused_leaves_no_notes(self, connect: Connect) -> None:
        run = in_state(connect(), RunStatus.RUNNING)
        with pytest.raises(IllegalTransition):
            connect().move(run, Trigger.RETRY_DUE, actor="cron", notes=[Note("run.note", {})])
        assert len(connect().events(run.run_id)) == 2

    def test_notes_at_once_are_all_there_in_one_order(self, connect: Connect) -> None:
        run = in_state(connect(), RunStatus.RUNNING)

        def write(name: int) -> None:
            ledger = connect()
            for n in range(self.rounds):
                self.insist(lambda n=n: ledger.note(run, "run.note", {"n": n}, actor=f"w{name}"))

        at_once([lambda name=name: write(name) for name in range(self.threads)])
        events = connect().events(run.run_id)
        assert [event.seq for event in events] == list(range(1, 3 + self.threads * self.rounds))
        for name in range(self.threads):
            mine = [event.payload["n"] for event in events if event.payload["actor"] == f"w{name}"]
            assert mine == list(range(self.rounds))

    # --- claiming -----------------------------------------------------------------------------------------------

    def test_interrupted_runs_are_claimed_first_then_due_retries_then_new_ones(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        wait(ledger, clock, "q1", RunStatus.QUEUED)
        wait(ledger, clock, "r1", RunStatus.RETRY_SCHEDULED, due_s=50)
        wait(ledger, clock, "i1", RunStatus.INTERRUPTED)
        wait(ledger, clock, "r2", RunStatus.RETRY_SCHEDULED, due_s=20)
        wait(ledger, clock, "q2", RunStatus.QUEUED)
        wait(ledger, clock, "i2", RunStatus.INTERRUPTED)
        for ended in (RunStatus.RUNNING, RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED):
            wait(ledger, clock, f"e-{ended}", ended)
        clock.sleep(60)
        assert claimed(ledger) == ["i1", "i2", "r2", "r1", "q1", "q2"]

    def test_a_retry_is_claimed_when_it_is_due_and_not_before(self, ledger: Ledger, clock: FakeClock) -> None:
        run = wait(ledger, clock, "r", RunStatus.RETRY_SCHEDULED, due_s=10)
        assert run.next_retry_at is not None
        clock.moment = run.next_retry_at - timedelta(microseconds=1)
        assert ledger.claim("w") is None
        clock.moment = run.next_retry_at
        again = ledger.claim("w")
        assert again == ledger.get(run.run_id)
        assert again is not None
        assert (again.status, again.attempt, again.next_retry_at) == (RunStatus.RUNNING, 2, None)

    @pytest.mark.parametrize(
        ("status", "attempt", "resumes"),
        [(RunStatus.QUEUED, 1, 0), (RunStatus.RETRY_SCHEDULED, 2, 0), (RunStatus.INTERRUPTED, 1, 1)],
    )
    def test_whoever_claims_has_the_run_and_an_event_says_so(
        self, connect: Connect, clock: FakeClock, status: RunStatus, attempt: int, resumes: int
    ) -> None:
        before = in_state(connect(), status)
        clock.sleep(3600)
        run = connect().claim("host:7", actor="recovery")
        assert run == connect().get(before.run_id)
        now = clock.now()
        assert run == before._replace(
            status=RunStatus.RUNNING, version=before.version + 1, updated_at=now, heartbeat_at=now, worker="host:7",
            attempt=attempt, resumes=resumes, next_retry_at=None,
        )  # fmt: skip
        payload = connect().events(before.run_id)[-1].payload
        assert (payload["previous_status"], payload["status"], payload["attempt"]) == (status, "running", attempt)
        assert payload["actor"] == "recovery"

    def test_a_worker_of_one_pipeline_leaves_the_others_alone(self, ledger: Ledger, clock: FakeClock) -> None:
        for status in (RunStatus.QUEUED, RunStatus.INTERRUPTED, RunStatus.RETRY_SCHEDULED):
            for pipeline in ("music", "story", "story/a"):
                wait(ledger, clock, f"{pipeline}-{status}", status, pipeline=pipeline)
        clock.sleep(3600)
        assert claimed(ledger, "story") == ["story-interrupted", "story-retry_scheduled", "story-queued"]
        assert ledger.counts(pipeline="story/a")[RunStatus.QUEUED] == 1
        assert len(claimed(ledger)) == 6

    def test_of_many_who_ask_at_once_one_gets_the_run(self, connect: Connect) -> None:
        connect().create_for_task("t", "t#1", actor="cron")
        got: list[Run | None] = []

        def ask(name: str) -> None:
            ledger = connect()
            got.append(self.insist(lambda: ledger.claim(name)))

        at_once([lambda name=f"w{n}": ask(name) for n in range(self.threads + 1)])
        (run,) = (run for run in got if run)
        assert connect().get(run.run_id) == run
        assert len(connect().events(run.run_id)) == 2

    def test_many_workers_take_every_run_once_and_lose_none(self, connect: Connect, clock: FakeClock) -> None:
        """Retries of one task are among them, and compete for its next attempt, too."""
        statuses = (RunStatus.QUEUED, RunStatus.RETRY_SCHEDULED, RunStatus.INTERRUPTED)
        waiting = {wait(connect(), clock, f"{n}", statuses[n % 3], task="t").run_id for n in range(self.rounds * 3)}
        clock.sleep(3600)
        got: list[Run] = []

        def work(name: str) -> None:
            ledger = connect()
            while run := self.insist(lambda: ledger.claim(name)):
                got.append(run)

        at_once([lambda name=f"w{n}": work(name) for n in range(self.threads)])
        assert Counter(run.run_id for run in got) == Counter(waiting)
        runs = connect().of_task("t")
        assert sorted(runs) == sorted(got)
        assert len({run.attempt for run in runs}) == len(runs)

    # --- signs of life ------------------------------------------------------------------------------------------

    def test_a_sign_of_life_changes_nothing_else(self, connect: Connect, clock: FakeClock) -> None:
        run = in_state(connect(), RunStatus.RUNNING)
        clock.sleep(30)
        alive = connect().heartbeat(run)
        assert alive == connect().get(run.run_id) == run._replace(heartbeat_at=clock.now())
        assert step(connect(), run, Trigger.COMPLETED).status is RunStatus.SUCCEEDED  # it needs no newer copy for that
        assert len(connect().events(run.run_id)) == 3

    def test_whoever_lost_the_run_is_told_at_the_next_sign_of_life(self, connect: Connect) -> None:
        run = in_state(connect(), RunStatus.RUNNING)
        interrupted = step(connect(), run, Trigger.PROCESS_RESTART)
        for lost in (run, interrupted):  # nobody has an interrupted run, whoever knows of it
            with pytest.raises(StaleRun, match=run.run_id):
                connect().heartbeat(lost)
        resumed = step(connect(), interrupted, Trigger.RECOVERY_RESUME)
        with pytest.raises(StaleRun):
            connect().heartbeat(run)
        assert connect().get(run.run_id) == resumed

    def test_the_silent_are_the_running_whose_last_sign_is_older(self, ledger: Ledger, clock: FakeClock) -> None:
        begun = clock.now()
        for name in ("quiet", "alive", "done", "newer"):
            wait(ledger, clock, name, RunStatus.RUNNING)
        wait(ledger, clock, "queued", RunStatus.QUEUED)
        of = {run.task_id: run for run in ledger.runs()}
        step(ledger, of["done"], Trigger.COMPLETED)
        clock.sleep(60)
        ledger.heartbeat(of["alive"])
        assert [run.task_id for run in ledger.silent(clock.now())] == ["quiet", "newer"]
        assert [run.task_id for run in ledger.silent(of["newer"].updated_at)] == ["quiet"]
        assert ledger.silent(begun) == []
        assert of["newer"] in ledger.silent(of["newer"].updated_at + timedelta(microseconds=1))

    # --- lists and counts ---------------------------------------------------------------------------------------

    def test_runs_are_listed_by_state_and_pipeline_the_last_changed_first(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        for number, status in enumerate(RunStatus):
            wait(ledger, clock, f"{status}-a", status, pipeline="a" if number % 2 else "b")
            wait(ledger, clock, f"{status}-b", status, pipeline="b" if number % 2 else "a")
        every = sorted((run for status in RunStatus for run in ledger.runs(status=[status])), key=last_changed)
        every.reverse()
        assert len(every) == 14
        assert ledger.runs() == every
        assert ledger.runs(limit=3) == every[:3]
        for pipeline in ("a", "b", "c"):
            assert ledger.runs(pipeline=pipeline) == [run for run in every if run.pipeline == pipeline]
        some = (RunStatus.QUEUED, RunStatus.FAILED)
        assert ledger.runs(status=some) == [run for run in every if run.status in some]
        assert ledger.runs(status=some, pipeline="a") == [r for r in every if r.status in some and r.pipeline == "a"]
        assert ledger.runs(status=some, limit=1) == [run for run in every if run.status in some][:1]

    def test_runs_that_changed_in_the_same_moment_are_listed_by_id(self, ledger: Ledger) -> None:
        created = [ledger.create_for_task(f"t{n}", f"t{n}#1", actor="cron") for n in range(9)]
        assert ledger.runs() == sorted(created, key=last_changed, reverse=True)
        assert ledger.runs(limit=4) == ledger.runs()[:4]

    def test_a_short_list_of_runs_that_ended_together_has_the_first_by_id(self, ledger: Ledger) -> None:
        for key, pipeline in (("k0", "music"), ("k1", "story")):  # the smallest case that the histories found
            step(ledger, ledger.create_for_task("t", key, actor="cron", pipeline=pipeline), Trigger.CANCEL_COMMAND)
        assert ledger.runs(limit=1) == ledger.runs()[:1]

    def test_counts_tell_how_many_are_in_each_state(self, ledger: Ledger, clock: FakeClock) -> None:
        for number, status in enumerate(RunStatus):
            for n in range(number):
                wait(ledger, clock, f"{status}-{n}", status, pipeline="ab"[n % 2])
        assert ledger.counts() == {status: number for number, status in enumerate(RunStatus)}
        assert ledger.counts(pipeline="b") == {status: number // 2 for number, status in enumerate(RunStatus)}
        assert ledger.counts(pipeline="c") == dict.fromkeys(RunStatus, 0)
