"""A circuit breaker for each vendor: one that keeps failing is left alone for a while (settings: BREAKER).

All channels and machines share them, at the root of the bucket. Nothing is imported unless BREAKER.failures is set.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from retake.bucket import Bucket
from retake.clock import Clock
from retake.errors import Code, CodedError
from retake.settings.shared import BreakerSettings

if TYPE_CHECKING:
    from retake.retrying.breaker import Breaker, BreakerPolicy, BreakerState, Permit

T = TypeVar("T")


class VendorBreakers:
    """The breakers of the vendors.

    `bucket` is the whole bucket, not a channel's part. `owner` names the caller. `probe_s` is the longest time, in
    seconds, that a probe of an open breaker may take.
    """

    def __init__(self, chosen: BreakerSettings, bucket: Bucket, clock: Clock, owner: str, probe_s: float) -> None:
        self._chosen = chosen
        self._bucket = bucket
        self._clock = clock
        self._owner = owner
        self._probe_s = probe_s

    def permit(self, vendor: str | None) -> "VendorPermit | VendorOff | None":
        """Return the permit for one call to the vendor, or why it is not called now, or None if it has no breaker.
        Raises StateError."""
        if vendor is None or self._chosen.failures is None:
            return None
        from retake.retrying.breaker import BreakerOpen

        breaker = self._breaker(vendor)
        try:
            return VendorPermit(breaker, breaker.allow())
        except BreakerOpen as error:
            why = f"{error}; it is not called. To try it at once: python -m retake breaker probe {vendor}"
            return VendorOff(why, self._clock.now() + timedelta(seconds=error.retry_after_s))

    def off(self, vendor: str | None) -> str:
        """Return why the vendor would not be called now, or "". Changes nothing. Raises StateError, StorageError."""
        if vendor is None or self._chosen.failures is None:
            return ""
        return refusal(self._chosen, self._breaker(vendor).state(), vendor, self._clock.now(), self._probe_s)

    def _breaker(self, vendor: str) -> "Breaker":
        from retake.retrying.breaker import Breaker, breakers_of

        states, policy = breakers_of(self._bucket, self._clock), vendor_policy(self._chosen, self._probe_s)
        return Breaker(vendor, states, policy, clock=self._clock, owner=self._owner)


class VendorOff(NamedTuple):
    """The vendor's breaker is open."""

    why: str
    until: datetime  # when to look again


class VendorPermit:
    """A permit to call a vendor once. How the call ends must be reported by `ended`."""

    def __init__(self, breaker: "Breaker", permit: "Permit") -> None:
        self._breaker = breaker
        self._permit = permit

    def ended(self, error: Mapping[str, Any] | None, *, answered: bool) -> None:
        """Report to the breaker that the call ended with this error record, or `answered`, or in a way that says
        nothing about the vendor. Never raises."""
        if error:
            self._breaker.failed(self._permit, CodedError(error["error_code"], error.get("message", "")))
        elif answered:
            self._breaker.succeeded(self._permit)
        else:
            self._breaker.release(self._permit)

    def around(self, work: Callable[[], T]) -> T:
        """Return what `work` returns. If it raises, give the permit back: that says nothing about the vendor."""
        try:
            return work()
        except BaseException:
            self._breaker.release(self._permit)
            raise


def refusal(chosen: BreakerSettings, state: "BreakerState", vendor: str, now: datetime, probe_s: float) -> str:
    """Return why a tick would not call the vendor with its breaker in this `state`, or "". Changes nothing."""
    if chosen.failures is None:
        return ""
    from retake.retrying.breaker import allow

    _, refused = allow(state, vendor_policy(chosen, probe_s), now, "nobody")
    return f"{vendor} has failed too often: {refused.why}" if refused else ""


def vendor_policy(chosen: BreakerSettings, probe_s: float) -> "BreakerPolicy":
    """Return when a vendor's breaker opens, and for how long. `BREAKER.failures` must be a number.

    Failures on this machine say nothing about a vendor's health; neither does a video that takes long.
    """
    from retake.retrying.breaker import BreakerPolicy
    from retake.retrying.policy import RetryIf

    return BreakerPolicy(
        chosen.failures or 1,
        chosen.window_seconds,
        chosen.open_seconds,
        probe_s=probe_s,
        counts=RetryIf(except_codes=frozenset({Code.SCRIPT_DIED, Code.MEDIA, Code.POLL_TIMEOUT})),
    )
