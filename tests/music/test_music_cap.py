"""The daily cap of music: steps wait for the next day, whatever a clock says, and use up no attempt."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from rig import Rig

from retake.errors import StorageError
from retake.music.attempts import AttemptStore
from retake.music.operations import open_operations
from retake.music.rows import PipelineRow
from retake.music.settings import MusicSettings
from retake.music.states import MusicStep
from retake.music.worker import step_prices
from retake.operations import status

Rigs = Callable[..., Rig]


def test_at_the_cap_steps_wait_for_the_next_day_in_every_process(rigs: Rigs, url: str) -> None:
    cap = 2 * step_prices(MusicSettings())[MusicStep.COVER]
    first, second = rigs(url, daily_cap_usd=cap), rigs(url, daily_cap_usd=cap)
    before = len(first.sandbox.calls("imagine"))
    rows = []
    for rig in (first, second, first):
        rows.append(rig.create())
        rig.work()
    held = rows.pop()
    assert [first.get(row).state for row in rows] == ["cover_pending", "cover_pending"]
    assert first.get(held).state == "cover_running"
    assert first.attempts(held) == [(1, "interrupted", "ERR_BUSINESS_CAP_REACHED")]
    second.settle(hours=11.9)
    assert len(first.sandbox.calls("imagine")) - before == 2
    first.clock.moment = first.clock.moment.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    second.settle(hours=0)
    assert first.get(held).state == "cover_pending"
    assert first.attempts(held)[-1] == (1, "succeeded", None)


@pytest.mark.parametrize("back", [timedelta(hours=20), timedelta(days=6)])
def test_a_clock_that_is_set_back_does_not_begin_with_nothing_spent(rigs: Rigs, url: str, back: timedelta) -> None:
    rig = rigs(url, daily_cap_usd=step_prices(MusicSettings())[MusicStep.COVER])
    rig.create()
    rig.work()
    latest = rig.clock.now().date()
    rig.clock.moment -= back
    held = rig.create()
    rig.work()
    assert rig.attempts(held) == [(1, "interrupted", "ERR_BUSINESS_CAP_REACHED")]
    [told] = status.status_report(open_operations(rig.settings, rig.clock, rig.bucket), None).document()["pipelines"]
    assert told["spend_today"]["settled_usd"] == told["spend_today"]["cap_usd"]
    assert f"are spent from {rig.clock.now().date()} to {latest}, " in told["notes"][0]


def test_a_clock_that_was_a_month_ahead_does_not_hold_the_cap_for_a_month(rigs: Rigs, url: str) -> None:
    rig = rigs(url, daily_cap_usd=step_prices(MusicSettings())[MusicStep.COVER])
    rig.clock.moment += timedelta(days=30)
    rig.create()
    rig.work()
    rig.clock.moment -= timedelta(days=30)
    row = rig.create()
    rig.work()
    assert rig.get(row).state == "cover_pending"


def test_waiting_for_the_next_day_uses_up_no_attempt(rigs: Rigs, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rigs(daily_cap_usd=0.01)
    row = rig.create()
    rig.settle(hours=4)
    rig.settings = rig.settings._replace(music=rig.settings.music._replace(daily_cap_usd=None))
    rig.begin()
    away = [StorageError("the database is away")] * 2  # when the result is saved, and when the failure is

    def end(*arguments: Any) -> PipelineRow:
        if away:
            raise away.pop()
        return whole(*arguments)

    whole = AttemptStore._end
    monkeypatch.setattr(AttemptStore, "_end", end)
    rig.later(hours=1)
    rig.settle()
    assert not away
    assert rig.get(row).state == "cover_pending", rig.get(row).failed_reason
