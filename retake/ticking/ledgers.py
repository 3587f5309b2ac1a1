"""The ledgers of several pipelines: in each one's part of the bucket, or one database that all share."""

from threading import Lock
from typing import TYPE_CHECKING

from retake.bucket import Bucket, Lease
from retake.clock import Clock

if TYPE_CHECKING:
    from retake.runs import Ledger


class Ledgers:
    """Opens ledgers. `url` is the settings key `STORAGE.ledger`. Thread safe, since channels tick in parallel.

    Ledgers are imported only when needed: an idle tick needs none.
    """

    def __init__(self, url: str | None, clock: Clock) -> None:
        self.apart = url is not None  # runs are not in the bucket
        self._url = url
        self._clock = clock
        self._shared: Ledger | None = None
        self._lock = Lock()

    def of(self, bucket: Bucket, lease: Lease) -> "Ledger":
        """Return the ledger of the pipeline in `bucket`. A ledger in the bucket makes its changes under `lease`.

        Raises SettingsError, StorageError.
        """
        from retake.runs import open_ledger

        if self._url is None:
            return open_ledger(None, bucket, self._clock, lease=lease)
        with self._lock:
            self._shared = self._shared or open_ledger(self._url, bucket, self._clock)
            return self._shared
