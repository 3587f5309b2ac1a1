"""The files of the B2 stand-in: b2sdk's simulator with real times, unlimited ids, and B2's order of versions.

B2 lists the versions of a name by the second of their upload, newest first, and those of the same second in any order
(rclone/rclone#2164). The simulator sorts by id, so here an id is the seconds left until the year 2286, followed by a
random number.
"""

import itertools
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from b2sdk.v3 import BucketSimulator, RawSimulator

_LAST_SECOND = 9_999_999_999


class SimulatedBucket(BucketSimulator):  # type: ignore[misc]  # b2sdk has no types
    """One bucket of the simulator."""

    MAX_SIMPLE_COPY_SIZE = 5_000_000_000  # bytes; B2's own limit

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.upload_url_counter = itertools.count()
        self.upload_timestamp_counter = self._stamps()
        self._moment = 0  # milliseconds since the epoch

    def _next_file_id(self) -> str:
        self._moment = int(self.api.now() * 1000)
        while True:
            file_id = f"{_LAST_SECOND - self._moment // 1000:010d}{self.api.rng.randrange(10**10):010d}"
            if file_id not in self.file_id_to_file:
                return file_id

    def _stamps(self) -> Iterator[int]:
        while True:
            yield self._moment

    def _simulate_chunked_post(self, stream: Any, *_: Any, **__: Any) -> bytes:
        return bytes(stream.read())


class SimulatedAccount(RawSimulator):  # type: ignore[misc]
    """b2sdk's simulator of an account. `now` returns seconds since the epoch; `rng` orders equal seconds."""

    BUCKET_SIMULATOR_CLASS = SimulatedBucket

    def __init__(self, now: Callable[[], float], rng: Random, part_size: int = 100_000_000) -> None:
        super().__init__()
        self.MIN_PART_SIZE = part_size  # bytes; B2's recommendation: smaller files are uploaded in one piece
        self.now, self.rng = now, rng
        self.bucket_id_counter = itertools.count()
        self.account, self.key = self.create_account()

    def copy_file(self, api_url: str, auth: str, source_file_id: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        copied: dict[str, Any] = super().copy_file(api_url, auth, source_file_id, *args, **kwargs)
        self.file_id_to_bucket_id[copied["fileId"]] = copied["bucketId"]  # missing in the simulator
        return copied
