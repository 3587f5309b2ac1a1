"""A budget that pays for nothing while a degraded mode forbids it: docs/alerts.md, section "Degraded modes"."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from retake.bucket import Bucket
from retake.clock import Clock
from retake.degraded.mode import MINIMAL
from retake.degraded.settings import ModeSettings
from retake.degraded.store import ModeStore
from retake.errors import Degraded
from retake.foreign_text import one_line
from retake.paid.spending import CapsBudget, Spending

if TYPE_CHECKING:
    from retake.paid.caps import Reservation
    from retake.paid.day_book import Known

_MAX_WHY = 300  # characters of what the operator gave as the reason
_NO_SETTINGS = ModeSettings()
"""The settings of a program without a settings file: no schedule, and no automatic mode."""


class ModeBudget(CapsBudget):
    """The budget of a program that has no settings of the modes: it obeys the mode that an operator has set.

    `bucket` is the whole bucket. Its mode is read before each reservation.
    """

    def __init__(self, spending: Spending, known: "Callable[[], Known]", bucket: Bucket, clock: Clock) -> None:
        super().__init__(spending, known)
        self._modes = ModeStore(bucket, clock)

    def reserve(self, step: str) -> "Reservation":
        """Do what `CapsBudget.reserve` does. Also raises Degraded, and StateError if the mode's document is invalid,
        since it is then unknown what may be paid for."""
        self._check(step)
        return super().reserve(step)

    def reserve_all(self, step: str, calls: int) -> "Reservation":
        """See `retake.paid.guard.SeriesBudget`. Raises what `reserve` raises."""
        self._check(step)
        return super().reserve_all(step, calls)

    def _check(self, step: str) -> None:
        mode = self._modes.mode(_NO_SETTINGS, "UTC")
        if mode.mode >= MINIMAL:
            until = f"until {mode.until}" if mode.until else "until somebody sets another one (`retake mode set`)"
            why = f" ({one_line(mode.why[:_MAX_WHY])})" if mode.why else ""
            raise Degraded(f"{self.spending.pipeline}: the {step} call is not made: {mode.title} is set, {until}{why}")
