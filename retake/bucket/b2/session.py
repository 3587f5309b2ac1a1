"""b2sdk's session as we use it: one try a call, within the time that the caller has left.

b2sdk itself tries a call up to 20 times and waits up to 64 s between (b2sdk, `B2Http._translate_and_retry`): a bucket
whose B2 is down would keep a tick for many minutes. Its class attributes and `B2Session.B2HTTP_CLASS` are how it is
told; tests/bucket/test_bucket_b2_calls.py notices should a release of b2sdk no longer listen.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

CONNECT_S, READ_S = 10.0, 20.0  # seconds for a connection, and for each silence on it


class Watch:
    """Sees the answers pass by, as b2sdk's callback. `date`: of this thread's newest one, seconds since the epoch."""

    def __init__(self) -> None:
        self._seen = threading.local()

    @property
    def date(self) -> float | None:
        return getattr(self._seen, "date", None)

    def pre_request(self, method: str, url: str, headers: Mapping[str, str]) -> None:
        """Part of b2sdk's protocol."""

    def post_request(self, method: str, url: str, headers: Mapping[str, str], response: Any) -> None:
        from email.utils import parsedate_to_datetime

        try:
            self._seen.date = parsedate_to_datetime(response.headers["Date"]).timestamp()
        except (KeyError, TypeError, ValueError):
            self._seen.date = None


def open_session(left: Callable[[], float], watch: Watch) -> Any:
    """A `B2Session` (b2sdk) that is not authorised yet. `left()` is how many seconds the present call may take."""
    from b2sdk.v3 import B2Http, B2HttpApiConfig, B2Session, DummyCache, InMemoryAccountInfo

    class OneTry(B2Http):  # type: ignore[misc]  # b2sdk has no types
        CONNECTION_TIMEOUT = CONNECT_S

        def request(self, *args: Any, **kwargs: Any) -> Any:
            kwargs["_timeout"] = max(0.1, min(READ_S, left()))
            return super().request(*args, **kwargs)

        @classmethod
        def _translate_and_retry(cls, call: Callable[[], Any], tries: int, params: Any = None) -> Any:
            return cls._translate_errors(call, params)

    class Session(B2Session):  # type: ignore[misc]
        B2HTTP_CLASS = staticmethod(OneTry)

    session = Session(InMemoryAccountInfo(), DummyCache(), B2HttpApiConfig(user_agent_append="retake"))
    session.raw_api.b2_http.add_callback(watch)
    return session
