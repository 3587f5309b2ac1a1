"""A pipeline of your own as the console and the dashboard call it: a bug in it does not affect the other pipelines, nor
does a method that hangs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from retake.bucket import Bucket
from retake.errors import RetakeError
from retake.operations.examinations import OwnDocuments
from retake.operations.finding import Finding, of_error
from retake.operations.foreign_calls import PipelineFault, asked, state_told
from retake.operations.pipelines import OwnLedger
from retake.operations.port import (
    Bill,
    Evidence,
    ItemOrder,
    OperatedPipeline,
    OrderPlan,
    OrderResult,
    PaidWork,
    PipelineState,
    Present,
)
from retake.operations.read_limit import read_within, told_if_slow

if TYPE_CHECKING:
    from retake.checking import Examination
    from retake.errors import StateError
    from retake.paid.caps import Today


_T = TypeVar("_T")

_MAX_PRESENT = 1000  # items under way


class GuardedPipeline:
    """Wraps the pipeline `made`. Its methods raise PipelineFault for a bug; `state` and `check` report it instead.

    A method that takes longer than READ_S seconds counts as a bug, too, unless it is one that writes (`carry_out` and
    `lower_flag`). Attributes are read once. Raises PipelineFault for one that cannot be read or has the wrong type.
    """

    def __init__(self, made: OperatedPipeline) -> None:
        self._made = made

        def read(name: str, wanted: Any) -> Any:
            return asked(made, name, wanted, lambda: getattr(made, name, None))

        self.name: str = read("name", str)
        self.channel: str | None = read("channel", str | None)
        self.prefix: str = read("prefix", str)
        self.bucket: Bucket = read("bucket", Any)
        self.lease_name: str | None = read("lease_name", str | None)
        self.vendors: Mapping[str, str] = read("vendors", Mapping)
        self.recovered_by: Mapping[str, frozenset[str]] = read("recovered_by", Mapping)
        self.holds_unknown: bool = read("holds_unknown", bool)
        self.own_ledger: OwnLedger | None = read("own_ledger", OwnLedger | None)

    def has_setting(self, name: str) -> bool:
        return self._asked("has_setting", bool, lambda: self._made.has_setting(name))

    def leasable(self) -> Bucket:
        return self._asked("leasable", Any, self._made.leasable)

    def state(self, today: "Today | StateError | None", vendor_off: Callable[[str], str]) -> PipelineState:
        return state_told(
            self._made, "state", today, lambda: self._read("state", lambda: self._made.state(today, vendor_off))
        )

    def present(self) -> Sequence[Present]:
        return self._asked("present", Sequence[Present], self._made.present)[:_MAX_PRESENT]

    def evidence(self, item_id: str) -> Evidence:
        return self._asked("evidence", Evidence, lambda: self._made.evidence(item_id))

    def paid_since(self, day: str) -> PaidWork:
        paid = self._asked("paid_since", PaidWork, lambda: self._made.paid_since(day))
        months = [it._replace(bills=partial(self._asked, "paid_since", list[Bill], it.bills)) for it in paid.months]
        return paid._replace(months=months)

    def check(self) -> Iterator[Finding]:
        try:
            yield from self._asked("check", list[Finding], lambda: [*self._made.check()])
        except RetakeError as error:  # `check` must raise nothing
            yield of_error(self.name, error)

    def examinations(self) -> "Sequence[Examination]":
        from retake.operations.guarded_examination import GuardedExamination

        try:
            return [*map(GuardedExamination, self._asked("examinations", Sequence[Any], self._made.examinations))]
        except RetakeError as error:
            return [OwnDocuments(self, error)]

    def plan(self, order: ItemOrder) -> OrderPlan:
        return self._asked("plan", OrderPlan, lambda: self._made.plan(order))

    def carry_out(self, order: ItemOrder, agreed: str = "") -> OrderResult:
        try:
            return self._ordered("carry_out", OrderResult, lambda: self._made.carry_out(order, agreed))
        except PipelineFault as error:
            raise PipelineFault(f"{error}. Look whether {order.item_id} was changed all the same") from error

    def lower_flag(self) -> bool:
        return self._ordered("lower_flag", bool, self._made.lower_flag)

    def _asked(self, method: str, wanted: Any, call: Callable[[], _T]) -> _T:
        return asked(self._made, method, wanted, lambda: self._read(method, call))

    def _read(self, method: str, call: Callable[[], _T]) -> _T:
        kind = type(self._made)
        return read_within((kind, self.name), f"{kind.__name__}.{method}", call)

    def _ordered(self, method: str, wanted: Any, call: Callable[[], _T]) -> _T:
        with told_if_slow(f"{type(self._made).__name__}.{method}"):
            return asked(self._made, method, wanted, call)
