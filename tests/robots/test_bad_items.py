"""A piece of work that always ends with a bug keeps no other from being done."""

import pytest
from protocol_robots import POLICIES, Workshop

from retake.clock import FakeClock
from retake.errors import Stopped
from retake.retrying.guard import Call
from retake.retrying.state_store import MemoryStateStore
from retake.robots.compensation import Unconfirmed
from retake.robots.deferred import Deferred


def test_deferred_work_that_ends_with_a_bug_lets_what_is_due_pass(clock: FakeClock) -> None:
    policy = POLICIES["NR.NSI.2"]._replace(breaker=None)
    shop = Workshop(policy, states=MemoryStateStore(), clock=clock)
    for name in ("bad", "good 1", "good 2"):
        result = shop.robot.run(shop.failing("ERR_TEMPORARY_API_TIMEOUT"), correlation_id=name)
        assert not result.done
    clock.sleep(1801)
    done = []

    def work(it: Deferred, call: Call) -> None:
        if it.correlation_id == "bad":
            raise KeyError("a field that this one lacks")
        done.append(it.correlation_id)

    for expected in ([], ["good 1", "good 2"]):
        with pytest.raises(KeyError):
            shop.robot.run_due(work)
        assert done == expected
    assert [it.correlation_id for it in shop.robot.due()] == ["bad"]


@pytest.mark.parametrize(
    ("error", "undone"), [(KeyError("a field that this one lacks"), ["b", "c"]), (Stopped("asked to"), [])]
)
def test_an_item_whose_undoing_ends_with_a_bug_lets_the_others_be_rolled_back(
    clock: FakeClock, error: Exception, undone: list[str]
) -> None:
    unconfirmed = Unconfirmed(MemoryStateStore(), "items", clock, 60)
    for key in "abc":
        unconfirmed.begun(key)
        clock.sleep(1)
    clock.sleep(60)
    found = []

    def undo(key: str) -> None:
        if key == "a":
            raise error
        found.append(key)

    with pytest.raises(type(error)):
        unconfirmed.roll_back_due(undo)
    assert found == undone
    assert "a" in [doubt.key for doubt in unconfirmed.due()]
