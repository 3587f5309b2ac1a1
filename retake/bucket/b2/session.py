"""A b2sdk session that makes one attempt per call, within the time that the caller has left.

b2sdk itself makes up to 20 attempts and pauses up to 64 s between them (`B2Http._translate_and_retry`): an outage of B2
would keep a tick busy for many minutes. This is changed by its class attributes and `B2Session.B2HTTP_CLASS`;
tests/bucket/test_bucket_b2_calls.py notices if a release of b2sdk ignores them.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

CONNECT_S, READ_S = 10.0, 20.0  # seconds to connect, and between two packets


class DateWatch:
    """Note the date of each answer, as a callback of b2sdk."""

    def __init__(self) -> None:
        self._seen = threading.local()

    @property
    def date(self) -> float | None:
        """The date of this thread's latest answer, in seconds since the epoch; None if there is none."""
        return getattr(self._seen, "date", None)

    def pre_request(self, method: str, url: str, headers: Mapping[str, str]) -> None:
        """Do nothing: part of b2sdk's protocol."""

    def post_request(self, method: str, url: str, headers: Mapping[str, str], response: Any) -> None:
        from email.utils import parsedate_to_datetime

        try:
            self._seen.date = parsedate_to_datetime(response.headers["Date"]).timestamp()
        except (KeyError, TypeError, ValueError):
            self._seen.date = None


def open_session(left: Callable[[], float], watch: DateWatch) -> Any:
    """Return a `B2Session` that is not authorised yet. `left()` returns how many seconds the present call may take."""
    from b2sdk.v3 import B2Http, B2HttpApiConfig, B2Session, DummyCache, InMemoryAccountInfo

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

    session = Session(InMemoryAccountInfo(), DummyCache(), B2HttpApiConfig(user_agent_append="retake"))
    session.raw_api.b2_http.add_callback(watch)
    return session
