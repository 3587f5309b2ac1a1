"""The spending of one pipeline, kept within the caps of the bucket (`retake.paid.caps`).

`caps` is imported only when something is about to be paid for: an idle tick does not need it.
"""

from collections.abc import Callable
from logging import getLogger
from typing import TYPE_CHECKING

from retake.bucket import Bucket
from retake.clock import Clock
from retake.errors import RetakeError

if TYPE_CHECKING:
    from retake.paid.caps import Caps, Reservation, Today
    from retake.paid.day_book import Known

_log = getLogger(__name__)

Price = Callable[[str], float]
"""Returns the price of one paid call of a step, in US dollars."""


class Spending:
    """The payments of the pipeline called `pipeline` ("story", "story/CHANNEL").

    `bucket` is the whole bucket, not a channel's part. `bucket_usd` is what all pipelines together may spend in a day,
    `pipeline_usd` what this one may; None means no cap. Methods take as `known` what the pipeline's own record says of
    its last reservation. `defers` is for a pipeline whose record adds up how much of a reservation is billed: without a
    cap, its book is updated only at the end of each tick (see `Caps.defer`).
    """

    def __init__(
        self,
        bucket: Bucket,
        clock: Clock,
        pipeline: str,
        price: Price,
        *,
        bucket_usd: float | None = None,
        pipeline_usd: float | None = None,
        defers: bool = False,
    ) -> None:
        self.price = price
        self.pipeline = pipeline
        self._bucket = bucket
        self._clock = clock
        self._limits = (bucket_usd, pipeline_usd)
        self._deferring = defers and not self.capped

    @property
    def capped(self) -> bool:
        """Whether there is a cap that a payment could exceed."""
        return self._limits != (None, None)

    def caps(self) -> "Caps":
        """Return the books of the bucket's days."""
        from retake.paid.caps import Caps
        from retake.paid.day_book import Limits

        return Caps(self._bucket, self._clock, Limits(*self._limits))

    def today(self, known: "Known") -> "Today":
        """Return the spending of the current day. Raises StateError, StorageError."""
        return self.caps().today(self.pipeline, known)

    def over(self, known: "Known", step: str) -> str:
        """Return why a paid call of the step must not be made now, or "". Reads the bucket only if there is a cap.
        Raises StateError, StorageError."""
        return self.today(known).over(self.price(step)) if self.capped else ""

    def reserve(self, known: "Known", step: str, calls: int = 1) -> "Reservation":
        """Reserve the price of `calls` calls of the step. Raises CapReached, StateError or StorageError, and then
        nothing may be paid for."""
        usd = round(self.price(step) * calls, 6)
        if self._deferring:
            return self.caps().defer(self.pipeline, usd, known)
        reservation = self.caps().reserve(self.pipeline, usd, known)
        return reservation._replace(usd=usd) if calls > 1 else reservation

    def settle(self, known: "Known") -> None:
        """Update the book with what became of the last reservation. Never raises: until this succeeds, the price stays
        reserved."""
        self._update_book(lambda caps: caps.settle(self.pipeline, known))

    def heal(self, known: "Known") -> None:
        """Do what `settle` does, after a crash, and also release what was reserved for a call that never began."""
        self._update_book(lambda caps: caps.heal(self.pipeline, known))

    def _update_book(self, update: "Callable[[Caps], None]") -> None:
        try:
            update(self.caps())
        except RetakeError as error:
            _log.warning("the day's book does not know what became of a call; the next payment settles it: %s", error)


class CapsBudget:
    """A `retake.paid.guard.Budget` that enforces the caps. `known` returns what the pipeline's record says of its last
    reservation."""

    def __init__(self, spending: Spending, known: "Callable[[], Known]") -> None:
        self.spending, self._known = spending, known

    def price(self, step: str) -> float:
        return self.spending.price(step)

    def reserve(self, step: str) -> "Reservation":
        return self.spending.reserve(self._known(), step)

    def reserve_all(self, step: str, calls: int) -> "Reservation":
        """See `retake.paid.guard.SeriesBudget`."""
        return self.spending.reserve(self._known(), step, calls)
