"""The ComfyUI servers: which exist, which answer, and which is next."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from logging import getLogger
from threading import Lock

from retake.errors import RetakeError, SettingsError, in_words
from retake.settings.schema import ENDPOINT, Field, read_field
from retake.strict_json import parse
from retake.vendors import ImageServer
from retake.vendors.answers import NoReply, Reply
from retake.vendors.comfyui import ComfyUI
from retake.vendors.http import bare, exchange

MAX_SERVERS = 200
MAX_MISSES = 2
"""Failed checks in a row after which a server counts as unreachable: a loaded one may miss a single check."""

_LIST_BYTES = 64 * 2**10
_LIST_S = 10.0
_CHECKS_AT_ONCE = 8

_log = getLogger(__name__)


class ComfyServers:
    """The servers at `urls`, and those in the JSON list at `discovery_url`. Thread-safe.

    None counts as alive before the first `check`.
    """

    def __init__(
        self,
        urls: Sequence[str],
        discovery_url: str | None = None,
        *,
        client: Callable[[str], ImageServer] = ComfyUI,
    ) -> None:
        self._urls, self._discovery_url, self._client = _plain(urls), discovery_url, client
        self._clients: dict[str, ImageServer] = {}
        self._misses: dict[str, int] = {}  # failed checks in a row, of every known server
        self._found: list[str] = []  # by the last list that could be read
        self._answered: list[str] = []  # those that were alive after the last check
        self._turn = 0
        self._faults: set[str] = set()  # of the last check; each is logged once while it lasts
        self._lock = Lock()

    def check(self) -> None:
        """Find the servers and check which of them answer. Does not raise for servers that are unreachable."""
        faults: set[str] = set()
        if self._discovery_url:
            self._discover(self._discovery_url, faults)
        urls = list(dict.fromkeys([*self._urls, *self._found]))[:MAX_SERVERS]
        with ThreadPoolExecutor(_CHECKS_AT_ONCE, "comfyui check") as pool:
            answers = dict(zip(urls, pool.map(lambda url: self._answers(url, faults), urls), strict=True))
        for fault in sorted(faults - self._faults):
            _log.warning("%s", fault)
        self._faults = faults
        with self._lock:
            before = self._answered
            self._misses = {
                url: 0 if answers[url] else min(MAX_MISSES, self._misses.get(url, MAX_MISSES) + 1) for url in urls
            }
            now = self._answered = self._alive()
        for url in now:
            if url not in before:
                _log.info("ComfyUI at %s answers", bare(url))
        for url in before:
            if url not in now:
                _log.warning("ComfyUI at %s does not answer", bare(url))

    @property
    def alive(self) -> list[str]:
        """The URLs of the servers that answer."""
        with self._lock:
            return self._alive()

    def next(self, avoid: str = "") -> ImageServer | None:
        """Return the next server that answers, round-robin, or None. `avoid` is returned only if there is no other."""
        with self._lock:
            alive = self._alive()
            others = [url for url in alive if url != avoid] or alive
            if not others:
                return None
            self._turn += 1
            chosen = others[self._turn % len(others)]
        return self.at(chosen)

    def at(self, url: str) -> ImageServer:
        """Return the server at a URL, even one that does not answer.

        Raises SettingsError for a proxy or certificates that cannot be used.
        """
        with self._lock:
            known = self._clients.get(url)
        if known is None:
            known = self._client(url)
            with self._lock:
                known = self._clients.setdefault(url, known)
        return known

    def missed(self, url: str) -> None:
        """Note that a server did not answer: it is not chosen until it has answered a check."""
        with self._lock:
            if url in self._misses:
                self._misses[url] = MAX_MISSES

    def _alive(self) -> list[str]:
        return [url for url, misses in self._misses.items() if misses < MAX_MISSES]

    def _answers(self, url: str, faults: set[str]) -> bool:
        try:
            return self.at(url).alive()
        except RetakeError as error:
            faults.add(in_words(error))
            return False

    def _discover(self, place: str, faults: set[str]) -> None:
        """Fetch the list of servers; if that fails, keep the previous one."""
        try:
            reply = exchange(None, "GET", place, timeout_s=_LIST_S, limit=_LIST_BYTES)
            self._found = read_list(reply)
        except (NoReply, ValueError, SettingsError) as error:
            faults.add(f"the list of ComfyUI servers at {bare(place)} cannot be used: {error}")


def read_list(reply: Reply) -> list[str]:
    """Return the URLs in a JSON list. Raises ValueError."""
    if not reply.ok:
        raise ValueError(f"it was answered with HTTP {reply.status}")
    found = parse(reply.body)
    if not isinstance(found, list) or len(found) > MAX_SERVERS:
        raise ValueError(f"it is not a JSON list of at most {MAX_SERVERS} URLs")
    faults: list[str] = []
    rule = Field(ENDPOINT, "", "")
    urls = [str(read_field(rule, url, f"entry {n}", faults)) for n, url in enumerate(found, 1)]
    if faults:
        raise ValueError(faults[0])
    return _plain(urls)


def _plain(urls: Iterable[str]) -> list[str]:
    return [url.rstrip("/") for url in urls]
