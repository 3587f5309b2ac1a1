"""`PaidCalls` and the degraded mode that an operator has set in their bucket."""

from collections import Counter
from typing import Any

import pytest

from retake.bucket import ANY
from retake.bucket.failing import FailingBucket
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.clock import FakeClock, stamp
from retake.degraded.mode import EMERGENCY, FULL, MINIMAL, REDUCED, Auto, Hand, ModeState
from retake.degraded.store import ModeStore
from retake.errors import Degraded, OutcomeUnknown, StateError
from retake.exit_codes import ExitCode
from retake.paid.caps import Caps
from retake.paid.day_book import Limits
from retake.paid.guard import RETRY
from retake.paid.paid_calls import PaidCalls
from retake.retrying.guard import Guard
from retake.retrying.policy import RetryPolicy

MODE = "mode/state.json"


class Shop:
    """A program that pays, on a bucket in memory, and what it was billed for."""

    def __init__(self) -> None:
        self.clock, self.billed = FakeClock(), Counter[str]()
        self.bucket = FailingBucket(MemoryBucket(MemoryStore(self.clock)))

    def paid(self, **options: Any) -> PaidCalls:
        return PaidCalls(self.bucket, "posters", {"poster": 0.04}, clock=self.clock, **options)

    def call(self, key: str, **options: Any) -> Any:
        with self.paid(**options) as paid:
            return paid.call(key, "poster", lambda: self.order(key))

    def order(self, key: str) -> str:
        self.billed[key] += 1
        return f"{key}.png"

    def set_mode(self, mode: int, until: str | None = None) -> None:
        hand = Hand(mode, "the vendor is down", stamp(self.clock.now()), until)
        ModeStore(self.bucket, self.clock).change(lambda state: state._replace(hand=hand))

    @property
    def booked(self) -> float:
        """What is spent or reserved."""
        return Caps(self.bucket, self.clock, Limits()).today("posters").book.spent

    def looks_at_the_mode(self) -> int:
        return self.bucket.operations.count(("read", MODE))


@pytest.mark.parametrize("mode", [MINIMAL, EMERGENCY])
@pytest.mark.parametrize("cap", [None, 1.0])
def test_nothing_new_is_paid_for_in_a_mode_that_forbids_it(mode: int, cap: float | None) -> None:
    shop = Shop()
    assert shop.call("aurora", daily_cap_usd=cap) == "aurora.png"
    shop.set_mode(mode)
    with pytest.raises(Degraded, match=f"posters: the poster call is not made: degraded mode {mode}") as told:
        shop.call("comet", daily_cap_usd=cap)
    assert "the vendor is down" in str(told.value)
    assert told.value.exit_code == ExitCode.TRY_LATER
    assert shop.call("aurora", daily_cap_usd=cap) == "aurora.png", "what is on record still answers"
    assert (shop.billed, shop.booked) == ({"aurora": 1}, 0.04)
    with shop.paid() as paid:
        assert paid.pending is None
    shop.set_mode(FULL)
    assert shop.call("comet", daily_cap_usd=cap) == "comet.png"


def test_the_reason_that_an_operator_gave_is_told_on_one_line_that_can_be_read() -> None:
    shop = Shop()
    hand = Hand(MINIMAL, "down\x1b[2J\nagain" + "!" * 9999, stamp(shop.clock.now()))
    ModeStore(shop.bucket, shop.clock).change(lambda state: state._replace(hand=hand))
    with pytest.raises(Degraded) as told:
        shop.call("aurora")
    assert str(told.value).isprintable()
    assert len(str(told.value)) < 500


def test_a_mode_that_forbids_only_videos_or_is_over_forbids_nothing() -> None:
    shop = Shop()
    shop.set_mode(REDUCED)
    shop.call("aurora")
    shop.set_mode(MINIMAL, until=stamp(shop.clock.now()))
    shop.call("comet")
    assert shop.billed == {"aurora": 1, "comet": 1}


def test_an_automatic_mode_counts_only_with_the_settings_that_switch_it_on() -> None:
    shop = Shop()
    ModeStore(shop.bucket, shop.clock).change(lambda state: ModeState(auto=Auto(MINIMAL)))
    assert shop.call("aurora") == "aurora.png"


def test_a_paid_call_reads_the_mode_once_and_a_known_answer_never() -> None:
    shop = Shop()
    shop.call("aurora")
    assert shop.looks_at_the_mode() == 1
    shop.call("aurora")
    assert shop.looks_at_the_mode() == 1


def test_an_invalid_mode_lets_nothing_new_be_paid_for() -> None:
    shop = Shop()
    shop.call("aurora")
    shop.bucket.write(MODE, b"{", ANY)
    with pytest.raises(StateError, match=MODE):
        shop.call("comet")
    assert shop.call("aurora") == "aurora.png"
    assert (shop.billed, shop.booked) == ({"aurora": 1}, 0.04)


def test_a_call_left_pending_is_looked_for_in_any_mode_and_not_made_again() -> None:
    shop = Shop()

    def cut() -> str:
        shop.order("aurora")
        raise ConnectionError("cut")

    with shop.paid(on_unknown=RETRY) as paid, pytest.raises(OutcomeUnknown):
        paid.call("aurora", "poster", cut)
    shop.set_mode(EMERGENCY)
    with pytest.raises(Degraded):
        shop.call("aurora", on_unknown=RETRY)
    assert shop.billed == {"aurora": 1}


def test_a_guard_around_it_does_not_try_again() -> None:
    shop = Shop()
    shop.set_mode(MINIMAL)
    guard = Guard(RetryPolicy(max_retries=3), shop.clock, lambda: 0.5)
    began = shop.clock.now()
    with pytest.raises(Degraded):
        guard.call(lambda call: shop.call("aurora"))
    assert shop.clock.now() == began
