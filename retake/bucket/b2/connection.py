"""The connection to one bucket on B2: authorised on first use, with calls repeated within a deadline."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from retake.attempts import attempts
from retake.bucket.b2.errors import call_errors, explain, is_gone, is_key_refused, is_transient, retry_after_s
from retake.bucket.b2.session import DateWatch, open_session
from retake.clock import Clock, SystemClock
from retake.errors import StorageError, StorageKeyRefused

T = TypeVar("T")

PAUSES_S = (1.0, 1.5, 2.25, 3.375)
TRIES = len(PAUSES_S) + 1


class Gone(Exception):
    """The file version that was asked for is no longer there. Callers expect this: it is not a RetakeError."""


class B2Connection:
    """Calls to the bucket named `bucket`. Thread safe. Nothing is sent to B2 before the first call."""

    def __init__(
        self, bucket: str, key_id: str, key: str, *, realm: str, clock: Clock | None, deadline_s: float
    ) -> None:
        self.bucket_id = ""
        """B2's id of the bucket, known once a call has a session."""
        self._bucket, self._key_id, self._key, self._realm = bucket, key_id, key, realm
        self._clock = clock or SystemClock()
        self._deadline_s = deadline_s
        self._present = threading.local()
        self._watch = DateWatch()
        self._lock = threading.Lock()
        self._session: Any = None

    @contextmanager
    def within(self, seconds: float | None = None) -> Iterator[None]:
        """Give all calls in the block one deadline, counted from here. In a block within another, the outer one's."""
        if self._until is not None:
            yield
            return
        self._present.until = self._now() + (self._deadline_s if seconds is None else seconds)
        try:
            yield
        finally:
            self._present.until = None

    def left(self) -> float:
        """Return the seconds until the deadline of this thread's block."""
        return self._deadline_s if self._until is None else self._until - self._now()

    @property
    def date(self) -> float | None:
        """The date of B2's latest answer to this thread, by B2's clock; seconds since the epoch, in whole seconds."""
        return self._watch.date

    def call(
        self,
        what: str,
        call: Callable[[Any], T],
        *,
        pauses: Sequence[float] = PAUSES_S,
        again: Callable[[Exception], bool] = is_transient,
    ) -> T:
        """Return the result of `call`, which gets an authorised session. Raises Gone, StorageError.

        `what` completes "cannot …". `pauses` are the seconds between attempts, unless B2 asks for more; `again` tells
        whether an error permits another attempt.
        """
        with self.within():
            for attempt in attempts(pauses, self._clock.sleep, left=self.left):
                try:
                    return call(self._connected())
                except call_errors() as error:
                    if is_gone(error):
                        raise Gone(what) from error
                    attempt.wait_at_least(retry_after_s(error))
                    if attempt.last or not again(error):
                        problem = f"cannot {what} in the bucket {self._bucket}: {explain(error, self._bucket)}"
                        raise (StorageKeyRefused if is_key_refused(error) else StorageError)(problem) from error
        raise AssertionError("the last attempt returns or raises")

    @property
    def _until(self) -> float | None:
        return getattr(self._present, "until", None)

    def _now(self) -> float:
        return self._clock.now().timestamp()

    def _connected(self) -> Any:
        """Return the session. The first use costs one call of class C, and one more if the key is for all buckets."""
        with self._lock:
            if self._session is None:
                session = open_session(self.left, self._watch)
                session.authorize_account(self._realm, self._key_id, self._key)
                self.bucket_id = self._find_bucket(session)
                self._session = session
            return self._session

    def _find_bucket(self, session: Any) -> str:
        from b2sdk.v3.exception import NonExistentBucket

        allowed = session.account_info.get_allowed().get("buckets") or []
        found = [bucket["id"] for bucket in allowed if bucket["name"] == self._bucket]
        if not found and not allowed:
            account = session.account_info.get_account_id()
            found = [it["bucketId"] for it in session.list_buckets(account, bucket_name=self._bucket)["buckets"]]
        if not found:
            raise NonExistentBucket(self._bucket)
        return str(found[0])
