"""What the stand-in of B2 keeps: b2sdk's own simulator, with real times, ids without end, and B2's order of versions.

B2 lists the versions of a name by the second of their upload; those of one second come in any order
(rclone/rclone#2164). The simulator sorts by id, so an id here begins with what is left until the year 2286, in seconds,
and goes on with chance.
"""

import itertools
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from b2sdk.v3 import BucketSimulator, RawSimulator

_LAST_SECOND = 9_999_999_999


class SimulatedBucket(BucketSimulator):  # type: ignore[misc]  # b2sdk has no types
    """One bucket of the simulator's."""

    MAX_SIMPLE_COPY_SIZE = 5_000_000_000  # bytes; B2's own limit

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.upload_url_counter = itertools.count()
        self.upload_timestamp_counter = self._stamps()
        self._moment = 0  # milliseconds since the epoch

    def _next_file_id(self) -> str:
        self._moment = int(self.api.now() * 1000)
        while True:
            file_id = f"{_LAST_SECOND - self._moment // 1000:010d}{self.api.chance.randrange(10**10):010d}"
            if file_id not in self.file_id_to_file:
                return file_id

    def _stamps(self) -> Iterator[int]:
        while True:
            yield self._moment

    def _simulate_chunked_post(self, stream: Any, *_: Any, **__: Any) -> bytes:
        return bytes(stream.read())


class SimulatedAccount(RawSimulator):  # type: ignore[misc]
    """b2sdk's simulator of a whole account. `now()` gives seconds since the epoch, `chance` orders equal seconds."""

    BUCKET_SIMULATOR_CLASS = SimulatedBucket
    MIN_PART_SIZE = 100_000_000  # bytes; what B2 recommends: below it a file goes up in one piece

    def __init__(self, now: Callable[[], float], chance: Random) -> None:
        super().__init__()
        self.now, self.chance = now, chance
        self.bucket_id_counter = itertools.count()
        self.account, self.key = self.create_account()

    def copy_file(self, api_url: str, auth: str, source_file_id: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        copied: dict[str, Any] = super().copy_file(api_url, auth, source_file_id, *args, **kwargs)
        self.file_id_to_bucket_id[copied["fileId"]] = copied["bucketId"]  # the simulator forgets to
        return copied
