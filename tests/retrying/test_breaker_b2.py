"""The circuit breaker on B2, which has no conditional writes, beside a pipeline that holds its lease."""

from collections.abc import Iterator
from threading import Barrier, Thread

import pytest

from retake.bucket import ABSENT
from retake.bucket.b2 import B2Bucket
from retake.bucket.b2.bucket import open_b2
from retake.clock import FakeClock
from retake.errors import RobotError
from retake.retrying.breaker import Breaker, BreakerOpen, BreakerPolicy, Phase, breakers_of
from retake.sandbox.b2 import B2Sandbox


@pytest.fixture
def sandbox() -> Iterator[B2Sandbox]:
    with B2Sandbox() as running:
        yield running


def fails() -> str:
    raise RobotError("ERR_TEMPORARY_UNAVAILABLE", "HTTP 503")


def test_a_breaker_works_beside_a_lease_that_the_same_client_holds_and_takes_none(sandbox: B2Sandbox) -> None:
    timer: list[float] = []
    bucket = open_b2(sandbox.storage_url("retake"), environ=sandbox.environment(), kill_timer=timer.append)
    lease, clock = bucket.lease("story", "here:1"), FakeClock()
    set_by_the_lease = [*timer]
    breaker = Breaker("runway", breakers_of(bucket, clock), BreakerPolicy(failures=2), clock=clock, owner="here:1")
    version = bucket.write("config/doc", b"1", ABSENT)
    for _ in range(2):
        with pytest.raises(RobotError):
            breaker.call(fails)
    with pytest.raises(BreakerOpen):
        breaker.call(fails)
    clock.sleep(60)
    assert breaker.call(lambda: "done") == "done"
    assert breaker.state().phase(clock.now()) is Phase.CLOSED
    lease.check()
    bucket.write("config/doc", b"2", version)
    assert timer == set_by_the_lease, "only the story has the kill timer"
    lease.release()


def test_one_of_two_clients_makes_the_probe(sandbox: B2Sandbox) -> None:
    clock, barrier, said = FakeClock(), Barrier(2), list[str]()
    buckets: list[B2Bucket] = [open_b2(sandbox.storage_url("retake"), environ=sandbox.environment()) for _ in range(2)]
    breakers = [
        Breaker("runway", breakers_of(bucket, clock), BreakerPolicy(failures=1), clock=clock, owner="here:1")
        for bucket in buckets
    ]
    with pytest.raises(RobotError):
        breakers[0].call(fails)
    clock.sleep(60)

    def ask(breaker: Breaker) -> None:
        barrier.wait()
        try:
            breaker.allow()
            said.append("through")
        except BreakerOpen:
            said.append("refused")

    threads = [Thread(target=ask, args=(breaker,)) for breaker in breakers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(said) == ["refused", "through"]
