"""The job that pays in docs/library.md: a worker runs its code as written there, and is killed at every operation."""

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from retake.bucket import Bucket
from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.clock import FakeClock
from retake.errors import Code, LeaseHeld, OutcomeUnknown, Refused
from retake.paid.paid_calls import PaidCalls
from retake.retrying.backoff import Fixed
from retake.retrying.policy import RetryPolicy
from retake.runs import open_ledger
from retake.runs.recovery import Recovery
from retake.runs.run_handle import RunHandle
from retake.runs.worker import Postponed, Worker

PAGE = Path(__file__).parents[2] / "docs" / "library.md"
PRICES = {"text": 0.01, "poster": 0.04}
TITLES = ("aurora", "comet", "meteor")


class Shop:
    """Posters in a ledger and a bucket in memory; `plan` says how the next calls end: "ok", "refused", "cut"."""

    def __init__(self, *plan: str) -> None:
        self.plan, self.billed = list(plan), Counter[str]()
        self.clock = FakeClock()
        self.store, self.runs = MemoryStore(self.clock), MemoryStore(self.clock)
        for title in TITLES:
            self.ledger().create_for_task(title, f"posters/{title}", actor="shop", pipeline="posters")
            self.clock.sleep(1)

    def ledger(self) -> Any:
        return open_ledger(None, MemoryBucket(self.runs), self.clock)

    def pay(self, what: str) -> str:
        outcome = self.plan.pop(0) if self.plan else "ok"
        if outcome == "refused":
            raise Refused(Code.UNAVAILABLE, "HTTP 503")
        self.billed[what] += 1
        if outcome == "cut":
            raise ConnectionError("cut")
        return f"{what}-{self.billed[what]}"

    def work(self, bucket: Bucket | None = None, *, prices: Mapping[str, float] = PRICES) -> None:
        """Do the waiting work, as a worker that starts now and ends when nothing waits."""
        names = {
            "bucket": bucket or MemoryBucket(self.store),
            "PRICES": prices,
            "PaidCalls": partial(PaidCalls, clock=self.clock),
            "RunHandle": RunHandle,
            "Mapping": Mapping,
            "Any": Any,
            "Postponed": Postponed,
            "OutcomeUnknown": OutcomeUnknown,
            "LeaseHeld": LeaseHeld,
            "write": lambda title: self.pay(f"text of {title}"),
            "order": lambda title, text: self.pay(f"poster of {title}"),
        }
        job = the_page_s_job(names)
        recovery = Recovery(self.ledger(), self.clock)
        policy = RetryPolicy(max_retries=2, backoff=Fixed(5.0))
        Worker(self.ledger(), job, policy, self.clock, name="host:1", recovery=recovery).work(until_idle=True)

    def states(self) -> dict[str, str]:
        return {run.task_id: run.status.value for run in self.ledger().runs()}


def the_page_s_job(names: dict[str, Any]) -> Any:
    [block] = re.findall(r"^```python\n(def job\(.*?)^```", PAGE.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    exec(block, names)  # noqa: S102
    return names["job"]


def once_each() -> Counter[str]:
    return Counter(f"{what} of {title}" for what in ("text", "poster") for title in TITLES)


def test_each_step_is_paid_for_once() -> None:
    shop = Shop("refused")
    shop.work()
    shop.clock.sleep(5)
    shop.work()
    assert shop.states() == dict.fromkeys(TITLES, "succeeded")
    assert shop.billed == once_each()


def test_a_call_of_unknown_outcome_holds_up_no_other_poster_and_goes_on_when_a_person_has_decided() -> None:
    shop = Shop("ok", "cut")
    for _ in range(10):
        shop.work()
        shop.clock.sleep(600)
    assert shop.states() == {"aurora": "retry_scheduled", "comet": "succeeded", "meteor": "succeeded"}
    assert shop.billed == once_each()
    with PaidCalls(MemoryBucket(shop.store), "posters-aurora", PRICES, clock=shop.clock) as paid:
        paid.resolve("retry")
    shop.work()
    assert shop.states() == dict.fromkeys(TITLES, "succeeded")
    assert shop.billed == once_each() + Counter(["poster of aurora"])


def test_at_the_cap_every_poster_waits_for_the_next_day_and_none_fails() -> None:
    shop, dear = Shop(), {"text": 5.0, "poster": 5.0}
    for _ in range(23):
        shop.work(prices=dear)
        shop.clock.sleep(3600)
    assert shop.billed.total() == 4
    assert set(shop.states().values()) == {"succeeded", "retry_scheduled"}
    for _ in range(3):
        shop.work(prices=dear)
        shop.clock.sleep(3600)
    assert shop.states() == dict.fromkeys(TITLES, "succeeded")
    assert shop.billed == once_each()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_death_at_any_operation_of_the_bucket_pays_for_nothing_twice(after: bool) -> None:
    counted = FailingBucket(MemoryBucket(Shop().store))
    Shop().work(counted)
    for number in range(1, len(counted.operations) + 1):
        shop = Shop()
        dying = FailingBucket(MemoryBucket(shop.store), Fault(Crash, number=number, after=after))
        with suppress(Crash):
            shop.work(dying)
        dying.end_leases()
        for _ in range(3):
            shop.clock.sleep(700)
            shop.work()
            for title in TITLES:
                with PaidCalls(MemoryBucket(shop.store), f"posters-{title}", PRICES, clock=shop.clock) as paid:
                    if call := paid.pending:
                        paid.resolve("drop" if shop.billed[f"{call.key} of {title}"] else "retry")
        assert shop.states() == dict.fromkeys(TITLES, "succeeded"), number
        assert shop.billed == once_each(), number
