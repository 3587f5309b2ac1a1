"""A step whose worker died is resumed once it has been silent for MUSIC.stuck_seconds, and not before."""

from collections.abc import Callable

import pytest
from rig import Rig

from retake.music.background import IDLE_S, UPKEEP_S
from retake.testing.vendors import Died


def test_it_waits_as_long_as_the_settings_say_and_goes_on_as_the_same_attempt(
    rigs: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
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


def die(*_: object) -> None:
    raise Died
