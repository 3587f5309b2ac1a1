"""A small pipeline of your own for tests: a poem, whose document tests write. PIPELINES names it "own_poems:Poems"."""

from collections.abc import Callable
from typing import Any

from retake.bucket import ANY, Bucket, NotFound
from retake.bucket.memory import MemoryBucket
from retake.clock import Clock, FakeClock, stamp
from retake.errors import StateError
from retake.operations.attempts import StepAttempt
from retake.operations.guarded_pipeline import GuardedPipeline
from retake.operations.own_pipeline import OwnPipeline
from retake.operations.port import (
    Bill,
    Evidence,
    ItemOrder,
    OrderPlan,
    OrderResult,
    PaidWork,
    PipelineState,
    Refusal,
    Verb,
)
from retake.paid.caps import Today
from retake.paid.day_book import Known
from retake.strict_json import encode, parse

POEM = "poem-1"
NAMED = {"poems": "own_poems:Poems"}
KEY = "poem.json"


class Poems(OwnPipeline):
    """It can be retried while it is "stuck", and rolled back to the verse. It has paid for a rhyme."""

    vendors = {"rhyme": "the muse"}  # noqa: RUF012

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        super().__init__("poems", bucket, clock)

    def read(self) -> Any:
        try:
            return parse(self.bucket.read(KEY)[0])
        except NotFound:
            return {}
        except ValueError as error:
            raise StateError(f"poems/{KEY}: {error}") from None

    def describe(self, today: Today | StateError | None, vendor_off: Callable[[str], str]) -> PipelineState:
        stuck = self.read().get("stuck")
        seen = today.seen_by(self.name, Known()) if isinstance(today, Today) else None
        needs = ("the muse is silent: retry poem-1",) if stuck else ()
        return PipelineState("rhyming", item_id=POEM, step=StepAttempt("rhyme", 1, 3), today=seen, needs=needs)

    def evidence(self, item_id: str) -> Evidence:
        return super().evidence(item_id)._replace(files=self.bucket.list("poem-1."))

    def paid_since(self, day: str) -> PaidWork:
        at = stamp(self.clock.now())
        call = {"step": "rhyme", "attempt": 1, "price_usd": 0.25, "outcome": "accepted", "requested_at_utc": at}
        return PaidWork([Bill(POEM, "under way", [call])], Known())

    def plan(self, order: ItemOrder) -> OrderPlan:
        if order.verb is Verb.ROLLBACK and order.step == "verse":
            return OrderPlan(order, lost="the rhyme")
        if order.verb is not Verb.RETRY:
            return super().plan(order)
        if not self.read().get("stuck"):
            raise Refusal("the poem is not stuck")
        return OrderPlan(order)

    def carry_out(self, order: ItemOrder, agreed: str = "") -> OrderResult:
        if order.verb not in (Verb.RETRY, Verb.ROLLBACK):
            return super().carry_out(order, agreed)
        with self.leased() as lease:
            self.plan(order)
            lease.check()
            self.bucket.write(KEY, encode({}), ANY)
        return OrderResult(order, "the muse sings again", "the poem goes on")


class Draft(Poems):
    """One whose methods have bugs."""

    def _bug(self, *_: object) -> Any:
        raise KeyError("verse")

    describe = evidence = paid_since = plan = _bug


def guarded(**methods: Any) -> GuardedPipeline:
    """Return the poems as the console has them, with these methods of their own."""
    made = Poems(MemoryBucket(), FakeClock())
    for name, it in methods.items():
        setattr(made, name, it)
    return GuardedPipeline(made)
