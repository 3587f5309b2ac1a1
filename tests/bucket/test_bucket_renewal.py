"""The thread that renews a lease: it survives a brief outage, and never runs two renewals at once."""

import threading
from collections.abc import Iterator

import pytest
from test_bucket_claims import TERMS, World

from retake.bucket.claims.renewal import RenewalThread
from retake.bucket.claims.store import ClaimStore
from retake.errors import LeaseLost, StorageError

LONG_S = 60.0


class Term:
    """A `Renewable` that is due after `pause` seconds each time. A renewal lasts until `answer` is set, and ends as the
    next of `ends` says."""

    def __init__(self, pause: float | None, *ends: Exception) -> None:
        self.pause, self.ends = pause, list(ends)
        self.asked, self.answer = threading.Semaphore(0), threading.Event()
        self.at_once = self.most = self.renewals = 0

    def due(self) -> float | None:
        return self.pause

    def left(self) -> float:
        return 1.0

    def renew(self, store: ClaimStore) -> None:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.renewals += 1
        self.asked.release()
        assert self.answer.wait(LONG_S)
        self.at_once -= 1
        if self.ends:
            raise self.ends.pop(0)


@pytest.fixture
def busy() -> Iterator[Term]:
    """Yield a term that is always due, and whose store has not answered yet."""
    term = Term(0.001)
    yield term
    term.pause = None
    term.answer.set()


def started(term: Term) -> RenewalThread:
    store = World().store
    return RenewalThread(term, lambda: store, retry_s=0.001)


def living() -> int:
    return sum(thread.name == "lease" for thread in threading.enumerate())


def test_it_is_gone_during_the_block_and_goes_on_afterwards() -> None:
    before = living()
    thread = started(Term(LONG_S))
    with thread.away():
        assert living() == before
    assert living() == before + 1
    assert thread.stop(LONG_S)
    assert living() == before


def test_one_that_waits_for_the_store_ends_by_itself_and_the_next_waits_for_it(busy: Term) -> None:
    thread = started(busy)
    assert busy.asked.acquire(timeout=LONG_S)
    with thread.away():
        assert not busy.asked.acquire(blocking=False)
    assert not busy.asked.acquire(timeout=0.05), "two at once"
    busy.answer.set()
    assert busy.asked.acquire(timeout=LONG_S), "the next one has begun"
    assert thread.stop(LONG_S)
    assert busy.most == 1


def test_one_that_was_stopped_stays_so() -> None:
    thread = started(Term(LONG_S))
    assert thread.stop(LONG_S)
    with thread.away():
        pass
    assert thread.join(0.0)


def test_a_renewal_that_failed_is_tried_again_until_the_lease_is_lost() -> None:
    term = Term(0.001, StorageError("no answer"), StorageError("no answer"), LeaseLost("somebody took over"))
    term.answer.set()
    assert started(term).join(LONG_S)
    assert term.renewals == 3


def test_a_renewal_that_failed_with_a_bug_is_tried_again_too() -> None:
    term = Term(0.001, RuntimeError("can't start new thread"), LeaseLost("somebody took over"))
    term.answer.set()
    assert started(term).join(LONG_S)
    assert term.renewals == 2


def test_a_lease_that_is_not_due_any_more_is_not_renewed() -> None:
    term = Term(None)
    assert started(term).join(LONG_S)
    assert term.renewals == 0


def test_a_lease_that_has_run_out_meanwhile_is_not_claimed_again() -> None:
    world = World()
    lease = world.take()
    lease.keep(lambda: world.store)
    world.let_pass(TERMS.ttl_s)
    world.store.asked.clear()
    with lease.without_thread():
        pass
    assert lease._thread.join(LONG_S)
    assert world.store.asked == []
