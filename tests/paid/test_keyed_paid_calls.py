"""Paid calls of a program without a pipeline: death at every operation, unknown outcomes, caps, documents."""

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from schemas import check

from retake.bucket import ANY, Bucket, Conflict, LeaseTerms
from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.clock import FakeClock
from retake.errors import (
    CapReached,
    Code,
    LeaseHeld,
    LeaseLost,
    OutcomeUnknown,
    Refused,
    StateError,
    StorageError,
    TaskFailed,
)
from retake.paid.caps import Caps
from retake.paid.day_book import Limits
from retake.paid.guard import DROP, RETRY
from retake.paid.paid_calls import BegunCall, PaidCalls
from retake.strict_json import parse
from retake.testing.logs import CapturedLogs

KEYS = ("aurora", "comet")
PRICE = 0.04


class Vendor:
    """`plan` says how the next calls end: "ok", "refused", "wasted", "cut" (billed, but the answer is lost)."""

    def __init__(self, *plan: str) -> None:
        self.plan = list(plan)
        self.billed: Counter[str] = Counter()
        self.dies: Callable[[], None] = lambda: None

    def order(self, key: str) -> dict[str, str]:
        self.dies()
        outcome = self.plan.pop(0) if self.plan else "ok"
        if outcome == "refused":
            raise Refused(Code.UNAVAILABLE, "HTTP 503")
        self.billed[key] += 1
        self.dies()
        if outcome == "wasted":
            raise TaskFailed(Code.BAD_ANSWER, "blank")
        if outcome == "cut":
            raise ConnectionError("cut")
        return {"poster": key}

    def find(self, call: BegunCall) -> dict[str, str] | None:
        return {"poster": call.key} if self.billed[call.key] else None

    @property
    def cost(self) -> float:
        return round(PRICE * self.billed.total(), 6)


class Program:
    """A user's script, which orders a poster for each key, on a bucket in memory."""

    def __init__(self, vendor: Vendor, **options: Any) -> None:
        self.vendor, self.options = vendor, options
        self.store, self.clock = MemoryStore(), FakeClock()

    @property
    def bucket(self) -> MemoryBucket:
        return MemoryBucket(self.store)

    def paid(self, bucket: Bucket | None = None) -> PaidCalls:
        return PaidCalls(bucket or self.bucket, "posters", {"poster": PRICE}, clock=self.clock, **self.options)

    def run(self, bucket: Bucket | None = None) -> list[Any]:
        with self.paid(bucket) as paid:
            return [paid.call(key, "poster", lambda key=key: self.vendor.order(key)) for key in KEYS]  # type: ignore[misc]

    def to_its_end(self) -> list[Any]:
        """Restart it until it succeeds; where nobody else can tell, a person looks at the vendor's bills."""
        for _ in range(10):
            with suppress(Refused, TaskFailed):
                try:
                    return self.run()
                except OutcomeUnknown:
                    with self.paid() as paid:
                        assert paid.pending
                        paid.resolve(DROP if self.vendor.billed[paid.pending.key] else RETRY)
        raise AssertionError("no end")

    @property
    def booked(self) -> float:
        return Caps(self.bucket, self.clock, Limits()).today("posters").book.spent

    def document(self, key: str) -> Any:
        return parse(self.bucket.read(key)[0])


def test_a_key_is_paid_for_once_whatever_is_started_how_often() -> None:
    program = Program(Vendor())
    assert program.run() == program.run() == [{"poster": "aurora"}, {"poster": "comet"}]
    assert program.vendor.billed == {"aurora": 1, "comet": 1}
    assert program.booked == program.vendor.cost == 0.08


def test_a_call_that_was_billed_for_nothing_is_on_record_and_the_key_may_be_paid_for_again() -> None:
    program = Program(Vendor("wasted"))
    with program.paid() as paid:
        with pytest.raises(TaskFailed):
            paid.call("aurora", "poster", lambda: program.vendor.order("aurora"))
        assert paid.pending is None
    assert program.run() == [{"poster": "aurora"}, {"poster": "comet"}]
    assert program.booked == program.vendor.cost == 0.12
    [wasted, accepted] = program.document("paid/posters/calls/aurora.json")["calls"]
    assert (wasted["outcome"], wasted["message"], accepted["outcome"]) == ("wasted", "blank", "accepted")


def test_while_the_lease_is_lost_nothing_is_put_on_record() -> None:
    program = Program(Vendor())
    program.vendor.dies = program.store.end_leases
    with program.paid() as paid, pytest.raises(LeaseLost):
        paid.call("aurora", "poster", lambda: program.vendor.order("aurora"))
    assert program.document("paid/posters/state.json")["pending"]["key"] == "aurora"


def operations(*plan: str) -> int:
    program = Program(Vendor(*plan))
    counted = FailingBucket(program.bucket)
    with suppress(Refused, TaskFailed, OutcomeUnknown):
        program.run(counted)
    return len(counted.operations)


PLANS = [(), ("refused",), ("cut",), ("ok", "cut"), ("wasted",)]


@pytest.mark.parametrize("findable", [True, False])
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_death_at_any_operation_pays_for_nothing_twice(plan: tuple[str, ...], findable: bool) -> None:
    for number in range(1, operations(*plan) + 1):
        for after in (False, True):
            vendor = Vendor(*plan)
            program = Program(vendor, find=vendor.find if findable else None)
            dying = FailingBucket(program.bucket, Fault(Crash, number=number, after=after))
            with suppress(Crash, Refused, TaskFailed, OutcomeUnknown):
                program.run(dying)
            dying.end_leases()
            check_end(program, plan, (number, after))


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_death_around_any_call_pays_for_nothing_twice(plan: tuple[str, ...]) -> None:
    for moment in range(1, 5):
        vendor = Vendor(*plan)
        program = Program(vendor, find=vendor.find)
        left = [moment]

        def die(left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Crash("the machine died")

        vendor.dies = die
        with suppress(Crash, Refused, TaskFailed, OutcomeUnknown):
            program.run()
        program.store.end_leases()
        vendor.dies = lambda: None
        check_end(program, plan, moment)


def check_end(program: Program, plan: tuple[str, ...], where: object) -> None:
    """Check that every key has its answer, or was given up by a person who saw it billed; that the documents match
    their schemas; and that the book has no less than the bill."""
    answers = program.to_its_end()
    billed, wasted = program.vendor.billed, "wasted" in plan
    assert all(1 <= billed[key] <= 1 + wasted for key in KEYS), (where, billed)
    assert all(answer in (None, {"poster": key}) for key, answer in zip(KEYS, answers, strict=True)), where
    check("paid_calls_state", program.document("paid/posters/state.json"))
    calls = []
    for key in KEYS:
        document = program.document(f"paid/posters/calls/{key}.json")
        check("paid_calls_key", document)
        calls += document["calls"]
    assert len({call["id"] for call in calls}) == len(calls), where
    doubtful = sum(call["price_usd"] for call in calls if call["outcome"] == "unknown")
    assert program.vendor.cost <= program.booked <= round(program.vendor.cost + doubtful, 6), where


def test_the_vendor_is_asked_for_an_answer_that_was_lost() -> None:
    vendor = Vendor("cut")
    assert Program(vendor, find=vendor.find).run() == [{"poster": "aurora"}, {"poster": "comet"}]
    assert vendor.billed == {"aurora": 1, "comet": 1}


def test_nothing_more_is_paid_for_until_a_person_decides() -> None:
    program = Program(Vendor("cut"))
    for _ in range(3):
        with pytest.raises(OutcomeUnknown):
            program.run()
    with program.paid() as paid:
        with pytest.raises(OutcomeUnknown, match="aurora"):
            paid.call("comet", "poster", lambda: program.vendor.order("comet"))
        assert paid.pending
        assert paid.pending.held
    assert program.vendor.billed == {"aurora": 1}


def test_what_is_said_of_a_held_call_is_one_sentence_after_another() -> None:
    def cut() -> None:
        raise OutcomeUnknown(Code.NETWORK, "The answer was lost. Check the network.")

    with CapturedLogs() as log, Program(Vendor()).paid() as paid, pytest.raises(OutcomeUnknown):
        paid.call("aurora", "poster", cut)
    [said] = [it.getMessage() for it in log.records if "alert" in vars(it)]
    assert "Check the network; nothing more is paid for" in said


@pytest.mark.parametrize(("how", "answer", "bills"), [(RETRY, {"poster": "aurora"}, 2), (DROP, None, 1)])
def test_what_the_person_decides_is_done(how: str, answer: Any, bills: int) -> None:
    program = Program(Vendor("cut"))
    with pytest.raises(OutcomeUnknown):
        program.run()
    with program.paid() as paid:
        assert paid.resolve(how).key == "aurora"
        with pytest.raises(StateError, match="nothing to decide"):
            paid.resolve(how)
    assert program.run() == program.run() == [answer, {"poster": "comet"}]
    assert program.vendor.billed == {"aurora": bills, "comet": 1}
    assert program.booked == program.vendor.cost


@pytest.mark.parametrize(("rule", "answer", "bills"), [(RETRY, {"poster": "aurora"}, 2), (DROP, None, 1)])
def test_a_rule_may_decide_in_the_place_of_a_person(rule: str, answer: Any, bills: int) -> None:
    program = Program(Vendor("cut"), on_unknown=rule)
    with CapturedLogs() as log, pytest.raises(OutcomeUnknown):
        program.run()
    told = [it.getMessage() for it in log.records if "alert" in vars(it)]
    assert [it.endswith("; it will be made again, and may be billed twice") for it in told] == [True] * (rule == RETRY)
    assert program.run() == [answer, {"poster": "comet"}]
    assert program.vendor.billed["aurora"] == bills


def test_the_cap_of_the_bucket_and_its_own_hold_a_call_back_until_tomorrow() -> None:
    for cap in ("daily_cap_usd", "own_daily_cap_usd"):
        program = Program(Vendor(), **{cap: 0.05})
        with pytest.raises(CapReached, match=r"0\.040 of 0\.050 USD"):
            program.run()
        assert program.vendor.billed == {"aurora": 1}
        program.clock.sleep(24 * 3600)
        assert program.run()[1] == {"poster": "comet"}


def test_a_refused_call_costs_nothing_and_may_be_made_again() -> None:
    program = Program(Vendor("refused"))
    with pytest.raises(Refused):
        program.run()
    assert program.booked == 0
    program.run()
    assert program.vendor.billed == {"aurora": 1, "comet": 1}


def test_an_answer_survives_a_store_that_is_away_for_a_moment() -> None:
    program = Program(Vendor())
    away = FailingBucket(program.bucket, Fault(number=3, times=2, operation="write", key="paid/posters/state.json"))
    with suppress(StorageError):
        program.run(away)
    program.to_its_end()
    assert program.vendor.billed == {"aurora": 1, "comet": 1}


def test_a_write_whose_answer_was_lost_is_not_a_conflict() -> None:
    for number in range(1, 5):
        program = Program(Vendor())
        fault = Fault(number=number, after=True, operation="write", key="paid/posters/state.json")
        with suppress(StorageError):
            program.run(FailingBucket(program.bucket, fault))
        program.store.end_leases()
        program.to_its_end()
        assert program.vendor.billed["comet"] == 1


@pytest.mark.parametrize("number", [2, 3], ids=["intent", "answer"])
def test_after_a_write_whose_answer_was_lost_the_same_process_goes_on(number: int) -> None:
    program = Program(Vendor(), daily_cap_usd=1.0)
    fault = Fault(number=number, after=True, operation="write", key="paid/posters/state.json")
    with program.paid(FailingBucket(program.bucket, fault)) as paid:
        if number == 2:
            with pytest.raises(StorageError):
                paid.call("aurora", "poster", lambda: "never")
        assert paid.call("aurora", "poster", lambda: program.vendor.order("aurora")) == {"poster": "aurora"}
        assert paid.call("aurora", "poster", lambda: "never") == {"poster": "aurora"}
        assert paid.call("comet", "poster", lambda: program.vendor.order("comet")) == {"poster": "comet"}
    assert program.vendor.billed == {"aurora": 1, "comet": 1}
    assert program.booked == program.vendor.cost


def test_an_answer_over_a_record_that_somebody_has_edited_is_not_tried_for_as_long_as_the_lease_is_renewed() -> None:
    program = Program(Vendor())
    end = program.clock.now() + timedelta(hours=1)

    class Renewed(MemoryBucket):
        def lease(self, name: str, owner: str) -> Any:
            lease = super().lease(name, owner)
            lease.left = self.left  # type: ignore[method-assign]
            return lease

        def left(self) -> float:
            assert program.clock.now() < end, "it is retried for ever"
            return 115.0

    def edit() -> None:
        data, version = program.bucket.read("paid/posters/state.json")
        program.bucket.write("paid/posters/state.json", data + b"\n", version)

    program.vendor.dies = edit
    with pytest.raises(Conflict):
        program.run(Renewed(program.store))


def test_whoever_has_lost_the_lease_takes_nothing_of_the_next_ones_call_out_of_the_days_book() -> None:
    program = Program(Vendor(), daily_cap_usd=1.0)
    with program.paid() as late:
        late.call("aurora", "poster", lambda: program.vendor.order("aurora"))
        program.store.end_leases()
        with program.paid() as paid:

            def meanwhile() -> dict[str, str]:
                with pytest.raises(LeaseLost):
                    late.call("dawn", "poster", lambda: program.vendor.order("dawn"))
                assert program.booked == 2 * PRICE
                return program.vendor.order("comet")

            paid.call("comet", "poster", meanwhile)
    assert program.vendor.billed == {"aurora": 1, "comet": 1}
    assert program.booked == program.vendor.cost


def test_what_was_set_aside_for_an_intent_that_could_not_be_saved_is_free_again_at_once() -> None:
    program = Program(Vendor(), daily_cap_usd=1.0)
    full = FailingBucket(program.bucket, Fault(number=2, operation="write", key="paid/posters/state.json"))
    with program.paid(full) as paid:
        with pytest.raises(StorageError):
            paid.call("aurora", "poster", lambda: program.vendor.order("aurora"))
        assert program.booked == 0


def test_an_intent_that_was_saved_though_the_store_did_not_say_so_keeps_what_was_set_aside() -> None:
    """Nobody else knows that the call was not made: a person decides, and it counts as billed."""
    program = Program(Vendor(), daily_cap_usd=1.0)
    fault = Fault(number=2, after=True, operation="write", key="paid/posters/state.json")
    with program.paid(FailingBucket(program.bucket, fault)) as paid, pytest.raises(StorageError):
        paid.call("aurora", "poster", lambda: program.vendor.order("aurora"))
    with program.paid() as paid:
        assert paid.resolve(DROP).key == "aurora"
    assert program.booked == PRICE


def test_an_answer_that_is_not_json_is_kept_as_text() -> None:
    program = Program(Vendor())
    with program.paid() as paid:
        assert paid.call("aurora", "poster", lambda: {1, 2}) == "{1, 2}"


def test_one_process_at_a_time() -> None:
    program = Program(Vendor())
    with program.paid(), pytest.raises(LeaseHeld):
        program.run()
    program.run()


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b'{"account": 1}',
        b'{"account": "a", "pending": {"key": "a/b"}}',
        b'{"account": "a", "pending": {"id": "1", "key": "\\ud800", "step": "poster", "price_usd": 1, '
        b'"requested_at_utc": "2026-01-01T00:00:00Z"}}',
        b'{"account": "a", "pending": {"id": "1", "key": "a", "step": "poster", "price_usd": 1, '
        b'"requested_at_utc": ""}}',
        b'{"account": "a", "reservation": {"name": "a/b", "day": "../x", "fate": "billed"}}',
    ],
)
def test_an_invalid_document_is_left_as_it_is_and_nothing_is_paid_for(data: bytes) -> None:
    program = Program(Vendor())
    program.bucket.write("paid/posters/state.json", data, ANY)
    with pytest.raises(StateError, match=r"paid/posters/state\.json"):
        program.run()
    assert program.bucket.read("paid/posters/state.json")[0] == data
    assert not program.vendor.billed


@pytest.mark.parametrize("outcome", [None, "", "acepted", 7])
def test_a_key_whose_record_says_nothing_of_its_outcome_is_not_paid_for_again(outcome: object) -> None:
    program = Program(Vendor())
    program.run()
    [key] = [it.key for it in program.bucket.list("paid/posters/calls/")][:1]
    record = json.loads(program.bucket.read(key)[0])
    record["calls"][0]["outcome"] = outcome
    broken = json.dumps(record).encode()
    program.bucket.write(key, broken, ANY)
    billed = dict(program.vendor.billed)
    with pytest.raises(StateError, match=rf"{key}: calls\.outcome"):
        program.run()
    assert (program.bucket.read(key)[0], program.vendor.billed) == (broken, billed)


def test_a_key_no_file_can_have_and_a_step_without_a_price_are_refused() -> None:
    with Program(Vendor()).paid() as paid:
        for key in ("a/b", "", "..", "a\n"):
            with pytest.raises(ValueError, match="key"):
                paid.call(key, "poster", lambda: "never")
        with pytest.raises(ValueError, match="price"):
            paid.call("aurora", "banner", lambda: "never")
        with pytest.raises(ValueError, match="neither"):
            paid.resolve("maybe")
    with pytest.raises(ValueError, match="on_unknown"):
        Program(Vendor(), on_unknown="again").paid()


@pytest.mark.parametrize("usd", [-0.04, float("nan"), float("inf"), 1e9, Decimal("0.04"), "0.04", None])
def test_a_price_that_no_book_can_hold_is_refused_before_it_is_in_the_book_of_all(usd: Any) -> None:
    program = Program(Vendor(), daily_cap_usd=1.0)
    with pytest.raises(ValueError, match="'banner' is not an amount"):
        PaidCalls(program.bucket, "banners", {"banner": usd}, clock=program.clock, daily_cap_usd=2e9)


@pytest.mark.parametrize("cap", ["daily_cap_usd", "own_daily_cap_usd"])
@pytest.mark.parametrize("usd", [float("nan"), "1"])
def test_a_cap_that_nothing_could_reach_is_refused(cap: str, usd: Any) -> None:
    with pytest.raises(ValueError, match=r"a daily cap is not an amount: (nan|'1')"):
        Program(Vendor(), **{cap: usd}).paid()


def test_a_key_that_is_a_number_is_refused_with_what_it_has_to_be() -> None:
    with Program(Vendor()).paid() as paid, pytest.raises(TypeError, match="a key is a text; found 42"):
        paid.call(42, "poster", lambda: "never")  # type: ignore[arg-type]


def test_a_call_may_not_take_longer_than_the_lease() -> None:
    class Short(MemoryBucket):
        def lease(self, name: str, owner: str) -> Any:
            lease = super().lease(name, owner)
            lease.left = lambda: LeaseTerms().ttl_s - LeaseTerms().margin_s  # type: ignore[method-assign]
            return lease

        def part(self, prefix: str) -> Any:
            return self

    with (
        pytest.raises(ValueError, match="the lease ends in 115 s"),
        Program(Vendor(), call_timeout_s=120).paid(Short()),
    ):
        pass
