"""Session cookies for browsers that have sent the token, and the CSRF fields of their forms.

Nothing is stored on the server, so a restart signs nobody out; a new token does.
"""

import hmac
import secrets
from collections import deque
from collections.abc import Callable
from hashlib import sha256

SESSION_S = 12 * 3600
COOKIE = "retake_session"

MAX_WRONG_PER_MINUTE = 10
"""Maximum number of wrong tokens per minute from one address; after that it must wait."""

_MAX_LENGTH = 200  # characters of a cookie or a field that are read


class Sessions:
    """Creates and checks session cookies and their `csrf` fields. `now` returns seconds since the epoch."""

    def __init__(self, token: str, now: Callable[[], float]) -> None:
        self._token, self._now = token.encode(), now
        self._key = hmac.digest(self._token, b"retake session", "sha256")

    def is_token(self, given: str) -> bool:
        """Return whether this is the token, in constant time."""
        return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self._token)

    def begin(self) -> str:
        """Return the cookie of a new session."""
        body = f"{int(self._now() + SESSION_S)}.{secrets.token_urlsafe(12)}"
        return f"{body}.{self._signed('cookie', body)}"

    def holds(self, cookie: str) -> bool:
        """Return whether the cookie is one of ours and has not expired."""
        body, _, signature = cookie[:_MAX_LENGTH].rpartition(".")
        until = body.partition(".")[0]
        if not hmac.compare_digest(signature.encode(), self._signed("cookie", body).encode()):
            return False
        return until.isascii() and until.isdecimal() and self._now() < int(until)

    def csrf(self, cookie: str) -> str:
        """Return the CSRF field of a session's forms."""
        return self._signed("csrf", cookie)

    def is_csrf(self, cookie: str, given: str) -> bool:
        """Return whether the CSRF field of a form belongs to this session."""
        return hmac.compare_digest(given[:_MAX_LENGTH].encode("utf-8", "surrogatepass"), self.csrf(cookie).encode())

    def _signed(self, what: str, text: str) -> str:
        return hmac.new(self._key, f"{what} {text}".encode("utf-8", "surrogatepass"), sha256).hexdigest()


class WrongTokens:
    """Counts the wrong tokens of each address, to slow down guessing. Not thread safe."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._wrong: dict[str, deque[float]] = {}

    def wait_s(self, address: str) -> float:
        """Return the seconds until this address may send another token; 0 if it may now."""
        times = self._recent(address)
        return max(0.0, times[0] + 60 - self._monotonic()) if len(times) >= MAX_WRONG_PER_MINUTE else 0.0

    def add(self, address: str) -> float:
        """Count a wrong token, and return the seconds by which to delay its answer, longer each time."""
        times = self._recent(address)
        times.append(self._monotonic())
        self._wrong[address] = times
        return float(min(2.0, 0.05 * 2 ** len(times)))

    def _recent(self, address: str) -> deque[float]:
        since = self._monotonic() - 60
        for known in [known for known, times in self._wrong.items() if times[-1] <= since]:
            del self._wrong[known]
        times = self._wrong.get(address) or deque(maxlen=MAX_WRONG_PER_MINUTE)
        while times and times[0] <= since:
            times.popleft()
        return times
