"""A step whose worker died is resumed once it was silent for MUSIC.stuck_seconds, not before. It may only be frozen."""

from collections.abc import Callable
from typing import Any

import pytest
from rig import Rig

from retake.music.attempts import AttemptStore, JobAttempt
from retake.music.background import IDLE_S, UPKEEP_S
from retake.music.calls import CallBook, MusicJournal
from retake.music.context import JobContext
from retake.music.rows import PaidCall
from retake.music.states import MusicStep
from retake.music.steps import STEP_WORK
from retake.music.store import NAME
from retake.runs.run import Run
from retake.testing.vendors import Died

Rigs = Callable[..., Rig]


def test_it_waits_as_long_as_the_settings_say_and_goes_on_as_the_same_attempt(
    rigs: Rigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rigs(stuck_seconds=60)
    row = rig.create()
    with monkeypatch.context() as patched:
        patched.setattr("retake.music.steps.cover.fit", die)
        with pytest.raises(Died):
            rig.work()
    rig.later(seconds=59)
    rig.upkeep.look()
    assert rig.work() == 0
    rig.later(seconds=2)
    rig.upkeep.look()
    assert rig.work() == 1
    assert rig.get(row).state == "cover_pending"
    assert [(job.attempt, job.status) for job in rig.actions.jobs(row.id)] == [(1, "interrupted"), (1, "succeeded")]


def test_nothing_that_looks_for_it_pauses_longer_than_the_contract_allows() -> None:
    assert UPKEEP_S + IDLE_S < 5


def test_a_clock_that_is_set_back_meanwhile_makes_no_pause_longer(rigs: Rigs, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, slept = rigs(), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        rig.later(seconds=seconds if slept[1:] else -3 * 3600)

    def paused(context: JobContext) -> dict[str, str]:
        context.pause(5)
        return {}

    monkeypatch.setattr(rig.clock, "sleep", sleep)
    monkeypatch.setitem(STEP_WORK, MusicStep.COVER, paused)
    rig.create()
    assert rig.work() == 1
    assert sum(slept) == 5


def test_a_clock_that_is_set_back_meanwhile_moves_no_end_of_a_poll(rigs: Rigs, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, slept = rigs(image_timeout_seconds=32, step_max_retries=0), list[float]()
    rig.sandbox.order("imagine#1=never-ends")

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert sum(slept) < 100
        rig.later(seconds=seconds if slept[1:] else -3 * 3600)

    monkeypatch.setattr(rig.clock, "sleep", sleep)
    row = rig.create()
    rig.work()
    assert "no picture after 32 s" in str(rig.get(row).failed_reason)


@pytest.mark.parametrize(("step", "kind"), [("cover", "imagine"), ("meta", "chat")])
def test_an_answer_that_a_frozen_worker_records_late_is_not_paid_for_again(
    rigs: Rigs, step: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that takes over declares the first one's call lost, and its own call is refused."""
    first = rigs(provider="legnext", workflow={"on_unknown_outcome": "retry"})
    second = rigs(provider="legnext", workflow={"on_unknown_outcome": "retry"})
    second.bucket = first.bucket
    second.begin()
    row = first.create() if step == "cover" else first.begun(step)
    before, accepted = first.billed(kind), MusicJournal.accepted

    def frozen(journal: MusicJournal, *answer: Any) -> None:
        monkeypatch.setattr(MusicJournal, "accepted", accepted)
        second.later(seconds=61)
        second.upkeep.look()
        second.sandbox.order(f"{kind}#1=429")
        while "refused" not in (call.outcome for call in second.calls.of_pipeline(row.id)):
            second.work()
            second.later(seconds=16)
        journal.accepted(*answer)

    monkeypatch.setattr(MusicJournal, "accepted", frozen)
    first.work()
    second.settle()
    assert second.get(row).state == f"{step}_pending"
    assert first.billed(kind) - before == 1
    assert [(call.outcome, call.error_code) for call in second.calls.of_pipeline(row.id)] == [
        ("accepted", None),
        ("refused", "ERR_TEMPORARY_RATE_LIMIT"),
    ]


@pytest.mark.parametrize("unknown", ["retry", "hold"])
@pytest.mark.parametrize(("step", "kind"), [("cover", "imagine"), ("meta", "chat")])
def test_an_answer_that_a_frozen_worker_records_meanwhile_is_not_called_lost(
    rigs: Rigs, step: str, kind: str, unknown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes while the worker that took over is about to record that nobody can know."""
    first = rigs(provider="legnext", workflow={"on_unknown_outcome": unknown})
    second = rigs(provider="legnext", workflow={"on_unknown_outcome": unknown}, bucket=first.bucket)
    row = first.create() if step == "cover" else first.begun(step)
    before, accepted, settle = first.billed(kind), MusicJournal.accepted, CallBook.settle

    def frozen(journal: MusicJournal, *answer: Any) -> None:
        def woken(book: CallBook, call: PaidCall, outcome: str, *told: Any, **named: Any) -> None:
            monkeypatch.setattr(CallBook, "settle", settle)
            journal.accepted(*answer)
            settle(book, call, outcome, *told, **named)

        monkeypatch.setattr(MusicJournal, "accepted", accepted)
        monkeypatch.setattr(CallBook, "settle", woken)
        second.later(seconds=61)
        second.upkeep.look()
        second.work()

    monkeypatch.setattr(MusicJournal, "accepted", frozen)
    first.work()
    second.settle()
    assert second.get(row).state == f"{step}_pending"
    assert first.billed(kind) - before == 1
    assert [call.outcome for call in second.calls.of_pipeline(row.id)] == ["accepted"]


def test_a_worker_that_was_frozen_before_its_attempt_begins_none_beside_that_of_another(
    rigs: Rigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = rigs()
    second = rigs(bucket=first.bucket)
    row, before = first.create(), first.billed("imagine")
    begin, begun = AttemptStore.begin, list[JobAttempt | None]()

    def frozen(store: AttemptStore, run: Run) -> JobAttempt | None:
        second.later(seconds=61)
        second.upkeep.look()
        taken = second.database.ledger.claim("other", pipeline=NAME)
        assert taken
        begun.append(begin(AttemptStore(second.actions), taken))
        return begin(store, run)

    monkeypatch.setattr(AttemptStore, "begin", frozen)
    first.work()
    [of_other] = begun
    assert of_other
    assert first.get(row).current_job == of_other.job.id
    assert first.attempts(row) == [(1, "running", None)]
    assert first.billed("imagine") == before


@pytest.mark.parametrize("unknown", ["retry", "hold"])
def test_a_stop_between_the_record_of_a_call_and_the_call_leaves_nobody_in_doubt(
    rigs: Rigs, unknown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rigs(workflow={"on_unknown_outcome": unknown})
    row, before, begin = rig.create(), rig.billed("imagine"), CallBook.begin

    def stopped(*call: Any) -> PaidCall:
        rig.stopping = True
        return begin(*call)

    with monkeypatch.context() as patched:
        patched.setattr(CallBook, "begin", stopped)
        rig.worker.work_once()
    rig.stopping = False
    rig.begin()
    rig.settle()
    assert rig.get(row).state == "cover_pending"
    assert rig.attempts(row) == [(1, "interrupted", None), (1, "succeeded", None)]
    assert [call.outcome for call in rig.calls.of_pipeline(row.id)] == ["accepted"]
    assert rig.billed("imagine") - before == 1


def die(*_: object) -> None:
    raise Died
