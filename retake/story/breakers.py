"""A circuit breaker for each vendor: one that fails again and again is left alone for a while (settings: BREAKER).

All channels share them, at the root of the bucket. Nothing of it is loaded unless it is turned on.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from retake.bucket import Bucket
from retake.clock import Clock
from retake.errors import Code, CodedError
from retake.story.settings import Settings

if TYPE_CHECKING:
    from retake.retrying.breaker import Breaker, BreakerPolicy, BreakerState, Permit


class Breakers:
    """The breakers of the vendors. `bucket` is all of the bucket, whatever the channel; `owner` says who calls."""

    def __init__(self, settings: Settings, bucket: Bucket, clock: Clock, owner: str) -> None:
        self._settings = settings
        self._bucket = bucket
        self._clock = clock
        self._owner = owner

    def leave(self, vendor: str | None) -> "Leave | Shut | None":
        """Leave to ask the vendor once; None where no breaker looks after it. Raises StateError."""
        if vendor is None or self._settings.breaker.failures is None:
            return None
        from retake.retrying.breaker import Breaker, BreakerOpen, breakers_of

        register = breakers_of(self._bucket, self._clock)
        breaker = Breaker(vendor, register, policy(self._settings), clock=self._clock, owner=self._owner)
        try:
            return Leave(breaker, breaker.allow())
        except BreakerOpen as error:
            why = f"{error}; nothing is asked of it. To try it at once: python -m retake breaker probe {vendor}"
            return Shut(why, self._clock.now() + timedelta(seconds=error.retry_after_s))


def refusal(settings: Settings, state: "BreakerState", vendor: str, now: datetime) -> str:
    """Return why a tick would not ask the vendor, as its breaker stands; "" if it would. Nothing is noted."""
    if settings.breaker.failures is None:
        return ""
    from retake.retrying.breaker import allow

    _, refused = allow(state, policy(settings), now, "nobody")
    return f"{vendor} has failed too often: {refused.why}" if refused else ""


class Shut(NamedTuple):
    """The vendor is not to be asked now."""

    why: str
    until: datetime  # when to look again


class Leave:
    """Leave to ask a vendor once. How that ended is to be told."""

    def __init__(self, breaker: "Breaker", permit: "Permit") -> None:
        self._breaker = breaker
        self._permit = permit

    def ended(self, error: Mapping[str, Any] | None, *, answered: bool) -> None:
        """It ended with this error record, or with an answer, or in a way that says nothing. Never raises."""
        if error:
            self._breaker.failed(self._permit, CodedError(error["error_code"], error.get("message", "")))
        elif answered:
            self._breaker.succeeded(self._permit)
        else:
            self._breaker.release(self._permit)

    def around(self, work: Callable[[], Any]) -> Any:
        """What `work` returns; if it raises something, that says nothing of the vendor."""
        try:
            return work()
        except BaseException:
            self._breaker.release(self._permit)
            raise


def policy(settings: Settings) -> "BreakerPolicy":
    """When a vendor's breaker opens and for how long. What arises on this machine says nothing of a vendor's health,
    nor does a video that takes its time. `BREAKER.failures` must be a number."""
    from retake.retrying.breaker import BreakerPolicy
    from retake.retrying.policy import RetryIf

    chosen = settings.breaker
    return BreakerPolicy(
        chosen.failures or 1,
        chosen.window_seconds,
        chosen.open_seconds,
        probe_s=settings.workflow.script_timeout_seconds,
        counts=RetryIf(except_codes=frozenset({Code.SCRIPT_DIED, Code.MEDIA, Code.POLL_TIMEOUT})),
    )
