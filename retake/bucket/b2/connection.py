"""The connection to one bucket on B2: authorised on first use, with calls repeated within a deadline.

b2sdk itself makes up to 20 attempts and pauses up to 64 s between them (`B2Http._translate_and_retry`), so an outage of
B2 would keep a tick busy for many minutes. `open_session` overrides this by b2sdk's class attributes and
`B2Session.B2HTTP_CLASS`: a call is one attempt within the time that the caller has left.
tests/bucket/test_bucket_b2_calls.py fails if a release of b2sdk ignores the overrides.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from retake.attempts import attempts
from retake.bucket.b2.authorization import KeptAuthorization, account_info
from retake.bucket.b2.errors import (
    call_errors,
    explain,
    is_gone,
    is_key_refused,
    is_no_bucket,
    is_transient,
    retry_after_s,
)
from retake.bucket.contract import CHUNK_SIZE
from retake.clock import Clock, SystemClock
from retake.errors import StorageError, StorageKeyRefused

T = TypeVar("T")


MIN_BYTES_PER_S = 256 * 1024  # a slower connection cannot carry videos
CONNECT_S, READ_S = 10.0, 20.0  # seconds to connect, and between two packets


class DateWatch:
    """A callback for b2sdk that records the date of each answer."""

    def __init__(self) -> None:
        self._seen = threading.local()

    @property
    def date(self) -> float | None:
        """The date of this thread's latest answer, in seconds since the epoch, or None."""
        return getattr(self._seen, "date", None)

    def pre_request(self, method: str, url: str, headers: Mapping[str, str]) -> None:
        """Do nothing: part of b2sdk's protocol."""

    def post_request(self, method: str, url: str, headers: Mapping[str, str], response: Any) -> None:
        from email.utils import parsedate_to_datetime

        try:
            self._seen.date = parsedate_to_datetime(response.headers["Date"]).timestamp()
        except (KeyError, TypeError, ValueError):
            self._seen.date = None


def open_session(account: Any, left: Callable[[], float], watch: DateWatch) -> Any:
    """Return a `B2Session` for the account info `account`. `left()` returns the seconds that the current call may
    take."""
    from b2sdk.v3 import B2Http, B2HttpApiConfig, B2Session, DummyCache

    class SingleAttemptHttp(B2Http):  # type: ignore[misc]  # b2sdk has no types
        CONNECTION_TIMEOUT = CONNECT_S

        def request(self, *args: Any, **kwargs: Any) -> Any:
            kwargs["_timeout"] = max(0.1, min(READ_S, left()))
            return super().request(*args, **kwargs)

        @classmethod
        def _translate_and_retry(cls, call: Callable[[], Any], tries: int, params: Any = None) -> Any:
            return cls._translate_errors(call, params)

    class Session(B2Session):  # type: ignore[misc]
        B2HTTP_CLASS = staticmethod(SingleAttemptHttp)

    session = Session(account, DummyCache(), B2HttpApiConfig(user_agent_append="retake"))
    session.raw_api.b2_http.add_callback(watch)
    return session


PAUSES_S = (1.0, 1.5, 2.25, 3.375)
TRIES = len(PAUSES_S) + 1


class Gone(Exception):
    """The requested file version no longer exists. Not a RetakeError, because callers expect it."""


class B2Connection:
    """Calls to the bucket named `bucket`. Thread safe. Nothing is sent to B2 before the first call."""

    def __init__(
        self,
        bucket: str,
        key_id: str,
        key: str,
        *,
        realm: str = "production",
        clock: Clock | None = None,
        deadline_s: float = 60.0,
        kept: KeptAuthorization | None = None,
    ) -> None:
        self.bucket_id = ""
        """B2's id of the bucket, known once a call has a session."""
        self._bucket, self._key_id, self._key, self._realm = bucket, key_id, key, realm
        self._clock = clock or SystemClock()
        self._deadline_s = deadline_s
        self._kept, self._resumed = kept, False
        self._present = threading.local()
        self._watch = DateWatch()
        self._lock = threading.Lock()
        self._session: Any = None
        self._process = os.getpid()  # the process that opened the session

    @contextmanager
    def within(self, seconds: float | None = None, *, size: int = 0) -> Iterator[None]:
        """Give all calls in the block one deadline, counted from now. A nested block keeps the outer deadline.

        A file of `size` bytes adds the time that it takes at `MIN_BYTES_PER_S`, without the first MiB.
        """
        if self._until is not None:
            yield
            return
        more = max(0, size - CHUNK_SIZE) / MIN_BYTES_PER_S
        self._present.until = self._now() + (self._deadline_s if seconds is None else seconds) + more
        try:
            yield
        finally:
            self._present.until = None

    def left(self) -> float:
        """Return the seconds until the deadline of this thread's block."""
        return self._deadline_s if self._until is None else self._until - self._now()

    @property
    def part_size(self) -> int:
        """B2's recommended part size in bytes. A larger file is stored in parts of this size."""
        with self._lock:
            session = self._session
        if session is None:
            session = self.call("ask for the part size", lambda session: session)
        return int(session.account_info.get_recommended_part_size())

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

        `what` completes "cannot …". `pauses` are the seconds between attempts, unless B2 asks for more. `again` says
        whether an error permits another attempt.
        """
        with self.within():
            for attempt in attempts(pauses, self._clock.sleep, left=self.left):
                try:
                    return call(self._connected())
                except call_errors() as error:
                    if is_gone(error):
                        raise Gone(what) from error
                    forgotten = is_no_bucket(error) and self._forget_kept()  # the bucket may have been recreated
                    attempt.wait_at_least(retry_after_s(error))
                    if attempt.last or not (forgotten or again(error)):
                        problem = f"cannot {what} in the bucket {self._bucket}: {explain(error, self._bucket)}"
                        raise (StorageKeyRefused if is_key_refused(error) else StorageError)(problem) from error
        raise AssertionError("the last attempt returns or raises")

    @property
    def _until(self) -> float | None:
        return getattr(self._present, "until", None)

    def _now(self) -> float:
        return self._clock.now().timestamp()

    def _connected(self) -> Any:
        """Return the session. The first use costs one call of class C, and one more if the key is for all buckets, or
        nothing if the authorisation was kept."""
        with self._lock:
            if self._process != os.getpid():  # after a fork, old connections would deliver the parent's answers
                self._process, self._session = os.getpid(), None
            if self._session is None:
                account = account_info(self._kept, self._now)
                session = open_session(account, self.left, self._watch)
                self._resumed = account.resume(self._realm, self._key_id, self._key)
                known = account.get_bucket_id_or_none_from_bucket_name(self._bucket)
                if not known:
                    self._resumed = False
                    session.authorize_account(self._realm, self._key_id, self._key)
                    known = self._find_bucket(session)
                    account.refresh_entire_bucket_name_cache([(self._bucket, known)])
                self.bucket_id, self._session = known, session
            return self._session

    def _forget_kept(self) -> bool:
        """Forget the kept authorisation, so that the next call signs in. Return whether this session had used it."""
        with self._lock:
            resumed, self._resumed = self._resumed, False
            if resumed and self._kept:
                self._kept.forget()
                self._session = None
            return resumed

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
