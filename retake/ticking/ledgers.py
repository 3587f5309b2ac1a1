"""Where runs are kept: in the pipeline's own part of the bucket, or on one ledger that all pipelines share."""

from threading import Lock
from typing import TYPE_CHECKING

from retake.bucket import Bucket, Lease
from retake.clock import Clock

if TYPE_CHECKING:
    from retake.runs import Ledger


class Ledgers:
    """Opens ledgers. `url` is the setting `STORAGE.ledger`. Thread safe: channels tick side by side.

    Nothing of it is loaded before it is needed: a tick that finds nothing to do needs none.
    """

    def __init__(self, url: str | None, clock: Clock) -> None:
        self.apart = url is not None  # runs are kept elsewhere than the documents
        self._url = url
        self._clock = clock
        self._shared: Ledger | None = None
        self._lock = Lock()

    def of(self, bucket: Bucket, lease: Lease) -> "Ledger":
        """The ledger of the pipeline that lives in `bucket`; in the bucket it is changed under its `lease`. Raises
        SettingsError, StorageError."""
        from retake.runs import open_ledger

        if self._url is None:
            return open_ledger(None, bucket, self._clock, lease=lease)
        with self._lock:
            self._shared = self._shared or open_ledger(self._url, bucket, self._clock)
            return self._shared
