"""A tick that rests on B2 and S3: one listing shows that nothing has changed since the last idle one.

The listing is made only if the last tick found nothing to do, so ticks that work never pay for it. It is a tick's first
request to its bucket, so whatever changes later shows in the next tick's listing.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from logging import getLogger

from retake.bucket.scanning import PagedVersions
from retake.errors import RetakeError
from retake.ticking.channel_versions import listed_versions
from retake.ticking.rest import IdleLook, LookFile, RememberedLook, in_time, may_rest, version_of

_UNLISTED = "?"
"""The version that an idle tick remembers if it did not list the bucket."""

_MAX_REQUESTS = 3
"""Maximum number of requests for a listing. If it takes more, a full look costs no more than the listing."""

_log = getLogger(__name__)


class ListedLook(IdleLook):
    """The look of one process at a bucket, which is remembered under the name `place`.

    `keys` are the documents, and folders (which end in "/"), that ticks depend on. The other parameters are those of an
    `IdleLook`.
    """

    def __init__(
        self,
        file: LookFile,
        basis: str,
        *,
        bucket: PagedVersions,
        place: str,
        keys: Sequence[str],
        began_at: float,
        longest_s: float,
        look_up: Callable[[str], tuple[str, float]],
        sources: Iterable[str] = (),
        external_ledger: bool = False,
    ) -> None:
        super().__init__(
            file,
            basis,
            began_at=began_at,
            longest_s=longest_s,
            look_up=look_up,
            sources=sources,
            external_ledger=external_ledger,
        )
        self._bucket, self._place, self._keys = bucket, place, keys
        self._version = _UNLISTED

    def rests_now(self) -> bool:
        """Return whether the tick is over, because nothing has changed and nothing is due, and log that."""
        now, before = time.time(), self._file.read()
        if before is None or before.basis != self._basis or not in_time(before, now, self._longest_s):
            return False
        try:
            found = listed_versions(self._bucket, dict.fromkeys(self._keys, self._place), _MAX_REQUESTS)
        except RetakeError as error:  # the full look that follows says what is wrong with the bucket
            _log.info("cannot tell whether anything has changed: %s", error)
            return False
        if found is None:
            self.changed()  # the next tick does not list
            return False
        self._version = found[self._place]
        seen = {name: self._version if name == self._place else version_of(name) for name in before.seen}
        if not may_rest(before, self._basis, seen, now, self._longest_s):
            return False
        since = f"{datetime.fromtimestamp(before.looked_at, UTC):%H:%M:%S}"
        _log.info("nothing to do: nothing has changed since the full look at %s UTC, and nothing is due", since)
        return True

    def _look(self, due: Iterable[datetime]) -> RememberedLook:
        self._seen[self._place] = self._version
        return super()._look(due)
