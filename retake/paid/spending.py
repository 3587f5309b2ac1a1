"""What one pipeline spends, held against the caps of the bucket (`retake.paid.caps`).

The books of the days are loaded only when something is about to be paid for: an idle tick asks for nothing here.
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
"""From a step to what one paid call of it costs, in US dollars."""


class Spending:
    """The payments of the pipeline called `pipeline` ("story", "story/CHANNEL").

    `bucket` is the whole bucket, whatever the channel. `bucket_usd` is what all pipelines together may spend in a day,
    `pipeline_usd` what this one may; None means no cap. What the pipeline's own record says of its last reservation is
    passed as `known`. A pipeline whose record adds up what is billed of a reservation `defers`: without a cap, the book
    is told at the end of each tick (see `Caps.defer`).
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
        """Return what the day has cost so far. Raises StateError, StorageError."""
        return self.caps().today(self.pipeline, known)

    def over(self, known: "Known", step: str) -> str:
        """Return why a paid call of the step must not be made now, or "". The bucket is read only where there is a cap.
        Raises StateError, StorageError."""
        return self.today(known).over(self.price(step)) if self.capped else ""

    def reserve(self, known: "Known", step: str, calls: int = 1) -> "Reservation":
        """Set the price of a call of the step aside, or of so many. Raises CapReached, StateError, StorageError:
        nothing may be paid for then."""
        usd = round(self.price(step) * calls, 6)
        if self._deferring:
            return self.caps().defer(self.pipeline, usd, known)
        reservation = self.caps().reserve(self.pipeline, usd, known)
        return reservation._replace(usd=usd) if calls > 1 else reservation

    def settle(self, known: "Known") -> None:
        """Bring the book in line with what became of the last reservation. Never raises: till then the price counts."""
        self._tell(lambda caps: caps.settle(self.pipeline, known))

    def heal(self, known: "Known") -> None:
        """`settle` after a crash: what was reserved for a call that never began is released too."""
        self._tell(lambda caps: caps.heal(self.pipeline, known))

    def _tell(self, tell: "Callable[[Caps], None]") -> None:
        try:
            tell(self.caps())
        except RetakeError as error:
            _log.warning("the day's book does not know what became of a call; the next payment settles it: %s", error)


class CapsBudget:
    """`retake.paid.guard.Budget` that keeps the caps. `known` returns what the pipeline's record says of its last
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
