"""The degraded mode of the bucket, and what it holds back of the music pipelines.

docs/alerts.md, section "Degraded modes": from mode 2 on nothing is paid for, in mode 3 no step begins.
"""

from logging import getLogger

from retake.bucket import Bucket
from retake.clock import Clock
from retake.degraded.mode import EMERGENCY, MINIMAL
from retake.degraded.store import ModeStore
from retake.errors import StateError, StorageError
from retake.music.settings import MusicSettings
from retake.runs.worker import MODE_WAIT_S, Postponed

_log = getLogger(__name__)

DEGRADED = "ERR_TEMPORARY_DEGRADED"
"""The error code of an attempt that a degraded mode holds back."""


class HeldBack(Postponed):
    """The mode holds the work back. Nothing was called, and no attempt is used up."""

    def __init__(self, message: str) -> None:
        super().__init__(message, MODE_WAIT_S)


class ModeGate:
    """Holds work back according to the mode of `bucket`. Each check reads it; there is one for each attempt at a step
    and one for each paid call."""

    def __init__(self, settings: MusicSettings, bucket: Bucket, clock: Clock) -> None:
        self._modes, self._timezone = settings.modes, settings.alerts.timezone
        self._store = ModeStore(bucket, clock)

    def check_step(self) -> None:
        """Raise HeldBack if no step may begin now."""
        self._check(EMERGENCY)

    def check_payment(self) -> None:
        """Raise HeldBack if nothing may be paid for now."""
        self._check(MINIMAL)

    def _check(self, held_from: int) -> None:
        try:
            mode = self._store.mode(self._modes, self._timezone)
        except (StateError, StorageError) as error:
            _log.error("nothing is begun or paid for, since the degraded mode cannot be read: %s", error)
            raise HeldBack(f"the degraded mode cannot be read: {error}") from error
        if mode.mode >= held_from:
            raise HeldBack(f"{mode.title} holds it back")
