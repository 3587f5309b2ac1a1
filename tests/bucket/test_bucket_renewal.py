"""The thread that renews a lease: away for a moment, and never two of them at once."""

import threading
from collections.abc import Iterator

import pytest
from test_bucket_claims import TERMS, World

from retake.bucket.claims.renewal import RenewalThread

LONG_S = 60.0


class Renewals:
    """Renews without a pause; a renewal lasts until `answer` is set."""

    def __init__(self) -> None:
        self.asked, self.answer, self.at_once, self.most = threading.Semaphore(0), threading.Event(), 0, 0

    def __call__(self) -> float:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.asked.release()
        self.answer.wait(LONG_S)
        self.at_once -= 1
        return 0.001


@pytest.fixture
def renewals() -> Iterator[Renewals]:
    renewals = Renewals()
    yield renewals
    renewals.answer.set()


def living() -> int:
    return sum(thread.name == "lease" for thread in threading.enumerate())


def test_it_is_gone_during_the_block_and_goes_on_afterwards() -> None:
    renewals = Renewals()
    before = living()
    thread = RenewalThread(lambda: LONG_S, renewals)
    with thread.away():
        assert living() == before
    assert living() == before + 1
    assert thread.stop(LONG_S)
    assert living() == before


def test_one_that_waits_for_the_store_ends_by_itself_and_the_next_waits_for_it(renewals: Renewals) -> None:
    thread = RenewalThread(lambda: 0.0, renewals)
    renewals.asked.acquire(timeout=LONG_S)
    with thread.away():
        assert not renewals.asked.acquire(blocking=False)
    assert not renewals.asked.acquire(timeout=0.05), "two at once"
    renewals.answer.set()
    assert renewals.asked.acquire(timeout=LONG_S), "the next one has begun"
    assert thread.stop(LONG_S)
    assert renewals.most == 1


def test_what_was_stopped_stays_so(renewals: Renewals) -> None:
    thread = RenewalThread(lambda: LONG_S, renewals)
    thread.stop(LONG_S)
    with thread.away():
        pass
    assert thread.stop(0.0)


def test_none_ends_it() -> None:
    calls: list[int] = []
    thread = RenewalThread(lambda: 0.0, lambda: calls.append(1))
    thread._thread.join(LONG_S)
    assert calls == [1]
    again = RenewalThread(lambda: None, lambda: calls.append(2))
    again._thread.join(LONG_S)
    assert calls == [1]


def test_a_lease_that_has_run_out_meanwhile_is_not_claimed_again() -> None:
    world = World()
    lease = world.take()
    lease.keep(lambda: world.store)
    world.let_pass(TERMS.ttl_s)
    world.store.asked.clear()
    with lease.without_thread():
        pass
    lease._thread._thread.join(LONG_S)
    assert world.store.asked == []
