"""The degraded modes of the bucket: what they hold back of a music pipeline, and what continues."""

from collections.abc import Callable
from itertools import count
from typing import NoReturn

import pytest
from rig import Rig

from retake.alerts.hours import WorkingHours
from retake.bucket import ANY
from retake.degraded.mode import EMERGENCY, FULL, MINIMAL, REDUCED, Hand, ModeState
from retake.degraded.settings import ModeSettings, Scheduled
from retake.degraded.store import ModeStore
from retake.errors import StorageError
from retake.operations.timeline import timeline
from retake.runs.worker import MODE_WAIT_S
from retake.testing.logs import CapturedLogs

Rigs = Callable[..., Rig]

HELD = (1, "interrupted", "ERR_TEMPORARY_DEGRADED")


def set_mode(rig: Rig, mode: int) -> None:
    hand = Hand(mode, "the vendor is down", "2026-01-01T00:00:00Z")
    ModeStore(rig.bucket, rig.clock).change(lambda state: state._replace(hand=hand))


@pytest.mark.parametrize(("step", "kind"), [("cover", "imagine"), ("meta", "chat"), ("review", "chat")])
def test_in_mode_2_nothing_is_paid_for_and_no_attempt_is_used_up(rig: Rig, step: str, kind: str) -> None:
    before = rig.billed(kind)
    set_mode(rig, MINIMAL)
    row = rig.begun(step)
    assert rig.work() == 1
    assert (rig.get(row).state, rig.attempts(row), rig.billed(kind)) == (f"{step}_running", [HELD], before)
    rig.later(seconds=MODE_WAIT_S)
    assert rig.work() == 1
    assert (rig.attempts(row), rig.billed(kind)) == ([HELD], before), "checking is no attempt"
    set_mode(rig, FULL)
    rig.later(seconds=MODE_WAIT_S)
    assert rig.work() == 1
    assert (rig.get(row).state, rig.billed(kind)) == (f"{step}_pending", before + 1)
    assert rig.attempts(row) == [(1, "succeeded", None)]


@pytest.mark.parametrize("step", ["thumb", "publish"])
def test_in_mode_2_what_costs_nothing_goes_on(rig: Rig, step: str) -> None:
    set_mode(rig, MINIMAL)
    row = rig.begun(step)
    rig.settle()
    assert rig.get(row).state == ("published" if step == "publish" else f"{step}_pending")


def test_in_mode_2_a_picture_that_is_ordered_is_fetched(rig: Rig) -> None:
    rig.sandbox.order("fetch#1=500")
    before = rig.billed("imagine")
    row = rig.begun("cover")
    assert rig.work() == 1
    assert rig.get(row).state == "cover_running"
    set_mode(rig, MINIMAL)
    rig.settle()
    assert (rig.get(row).state, rig.billed("imagine")) == ("cover_pending", before + 1)


def test_in_mode_3_no_step_begins(rig: Rig) -> None:
    set_mode(rig, EMERGENCY)
    row = rig.begun("thumb")
    assert rig.work() == 1
    assert (rig.get(row).state, rig.attempts(row)) == ("thumb_running", [])
    set_mode(rig, MINIMAL)
    rig.settle()
    assert rig.get(row).state == "thumb_pending"


def test_in_mode_1_every_step_runs(rig: Rig) -> None:
    set_mode(rig, REDUCED)
    row = rig.begun("meta")
    rig.settle()
    assert rig.get(row).state == "meta_pending"


def test_the_schedule_holds_back_like_an_operator(rig: Rig) -> None:
    around_noon = Scheduled(WorkingHours("mon-sun", "11:00", "13:00"), MINIMAL)
    rig.settings = rig.settings._replace(modes=ModeSettings(schedule=(around_noon,)))
    rig.begin()
    row = rig.begun("meta")
    rig.work()
    assert rig.attempts(row) == [HELD]


def test_a_mode_that_cannot_be_read_holds_back_too(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    row = rig.begun("meta")
    with monkeypatch.context() as patch:
        patch.setattr(ModeStore, "read", _unreachable)
        rig.work()
    rig.bucket.write("mode/state.json", b"{", ANY)
    rig.later(seconds=MODE_WAIT_S)
    with CapturedLogs() as log:
        rig.work()
    [told] = [it.getMessage() for it in log.records if it.levelname == "ERROR"]
    assert told.startswith("nothing is begun or paid for, since the degraded mode cannot be read: mode/state.json: not")
    assert (rig.get(row).state, rig.attempts(row)) == ("meta_running", [])
    rig.bucket.delete("mode/state.json")
    rig.settle()
    assert rig.get(row).state == "meta_pending"


def test_a_mode_that_cannot_be_read_before_a_payment_uses_up_no_attempt(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, row, read, looks = rig.billed("chat"), rig.begun("meta"), ModeStore.read, count()

    def gone_at_the_payment(store: ModeStore) -> ModeState:
        return _unreachable(store) if next(looks) else read(store)

    monkeypatch.setattr(ModeStore, "read", gone_at_the_payment)
    assert rig.work() == 1
    assert (rig.get(row).state, rig.attempts(row), rig.billed("chat")) == ("meta_running", [HELD], before)


def _unreachable(_: ModeStore) -> NoReturn:
    raise StorageError("the bucket is unreachable")


def test_each_time_that_a_step_is_put_off_is_one_entry_of_its_history(rig: Rig) -> None:
    set_mode(rig, EMERGENCY)
    row = rig.begun("thumb")
    for _ in range(3):
        assert rig.work() == 1
        rig.later(seconds=MODE_WAIT_S)
    set_mode(rig, FULL)
    assert rig.work() == 1
    ledger = rig.database.ledger
    events = [event for run in ledger.of_task(row.task_id) for event in ledger.events(run.run_id)]
    held = "postponed (degraded mode 3 (nothing runs) holds it back), to be resumed later"
    assert [it.description for it in timeline(events)] == [
        "created",
        "work began",
        *[held] * 3,
        "resumed",
        "thumb is done",
        "done",
    ]
