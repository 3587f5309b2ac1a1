"""The sandbox that programs use: stand-ins for the vendors on a loopback port, their records, and ordered faults."""

import json
import secrets
import sqlite3
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from retake.clock import Clock, SystemClock
from retake.errors import SettingsError, StorageError
from retake.sandbox.billing import VendorBill, bill
from retake.sandbox.database import RecordedCall, SandboxDatabase
from retake.sandbox.orders import parse_order
from retake.sandbox.people import TelegramPhone, YouTubeStudio
from retake.sandbox.request_handler import RequestHandler
from retake.sandbox.server import HOST, Server
from retake.sandbox.task import Pace, VendorTask
from retake.sandbox.task_service import TaskService

ENVIRONMENT = "RETAKE_SANDBOX_URL"  # where the scripts look for a sandbox's address
DEMO_PACE = Pace()
_JOIN_TIMEOUT_S = 10.0  # how long to wait for a sandbox that is just starting


def endpoints(url: str, provider: str = "piapi") -> dict[str, dict[str, str]]:
    """Return the settings section API_KEYS that makes the program use the sandbox at `url`.

    `provider` is the seller of Midjourney's pictures: piapi or legnext.
    """
    sellers = {
        "piapi": {"endpoint": f"{url}/piapi/api/v1/task", "task_endpoint": f"{url}/piapi/mj/v2/fetch"},
        "legnext": {"endpoint": f"{url}/legnext/api"},
    }
    return {
        "midjourney": {"provider": provider, **sellers[provider]},
        "runwayml": {"endpoint": f"{url}/runway"},
        "openai": {"endpoint": f"{url}/openai/v1"},
    }


def music_endpoints(url: str) -> dict[str, dict[str, str]]:
    """Return what API_KEYS needs for music in addition to `endpoints`: the addresses of Telegram and YouTube."""
    return {
        "telegram": {"endpoint": f"{url}/telegram"},
        "youtube": {"endpoint": url, "token_endpoint": f"{url}/youtube/token"},
    }


class Sandbox:
    """Stand-ins for the vendors (PiAPI, LegNext, Runway, a chat API, Telegram, YouTube) over HTTP on 127.0.0.1, as a
    context manager. Inside it, `telegram` acts as a user, and `youtube` shows what the channel's owner sees.

    state    a directory for records and media; None keeps them in memory. A later sandbox with the same state serves
             the same links, on the same port if it is free. While one is running with that state, another serves
             nothing itself: its `url` is that of the running one, and orders, calls and bill are shared.
    port     0 takes the state's last port, or any free one. Entering raises OSError if the port is taken.
    seed     determines texts, pictures and ids; None takes the state's seed, or a new one.
    pace     how long tasks take, by `clock`; with Pace(0, 0, 0) they are done at the first poll.
    quick    makes tiny plain media in almost no time, for tests with hundreds of generations.
    singles  whether imagine tasks also offer their four pictures one by one.
    on_call  is called with every call that has ended, in the server's threads.
    """

    def __init__(
        self,
        state: str | Path | None = None,
        port: int = 0,
        *,
        seed: int | None = None,
        pace: Pace = DEMO_PACE,
        quick: bool = False,
        singles: bool = True,
        clock: Clock | None = None,
        on_call: Callable[[RecordedCall], object] = lambda call: None,
    ) -> None:
        self._state = None if state is None else Path(state)
        self._port, self._seed, self._pace, self._quick, self._singles = port, seed, pace, quick, singles
        self._clock, self._on_call = clock or SystemClock(), on_call
        self._server: Server | None = None
        self._lock: Any = None
        self.url = ""

    def __enter__(self) -> Self:
        if self._state:
            self._state.mkdir(parents=True, exist_ok=True)
        self._database = SandboxDatabase(str(self._state / "books.sqlite3") if self._state else ":memory:")
        try:
            self.url = self._join() or self._serve()
            self.telegram, self.youtube = TelegramPhone(self.url), YouTubeStudio(self.url)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving and close the database. A sandbox in another process keeps running."""
        if self._server:
            self._server.close()
            self._server = None
        self._database.close()
        self._unlock()

    @property
    def serving(self) -> bool:
        """Whether this object serves, rather than sharing a sandbox that was already running."""
        return self._server is not None

    def order(self, text: str) -> None:
        """Order a fault (grammar: orders.py). Raises ValueError, which says what is possible."""
        self._database.add_order(parse_order(text))

    def withdraw_orders(self) -> None:
        """Drop all orders: no fault from now on."""
        self._database.clear_orders()

    def calls(self, kind: str | None = None) -> list[RecordedCall]:
        """Return every call, or those of `kind`, in the order of their arrival."""
        return self._database.calls(kind)

    def tasks(self) -> list[VendorTask]:
        """Return every task, in the order in which they were accepted."""
        return self._database.tasks()

    def bill(self) -> VendorBill:
        """Return what the vendors would charge so far."""
        return bill(self._database.calls(), self._database.tasks(), self._clock.now().timestamp())

    def endpoints(self, provider: str = "piapi") -> dict[str, dict[str, str]]:
        """Return the settings section API_KEYS for this sandbox; see the function `endpoints`."""
        return endpoints(self.url, provider)

    def _join(self) -> str | None:
        """Return the URL of a running sandbox with this state. If there is none, lock the state and return None."""
        if not self._state:
            return None
        import fcntl

        self._lock = (self._state / "server.lock").open("a")
        for _ in range(int(_JOIN_TIMEOUT_S / 0.1)):
            try:
                # The serving process holds this lock until it ends, even if it is killed.
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                url = f"http://{HOST}:{self._database.get('facts', 'port')}"
                if _answers(url, self._database.identity):
                    self._unlock()
                    return url
                time.sleep(0.1)
            else:
                return None
        raise TimeoutError(f"another sandbox holds {self._state} but does not answer on its port")

    def _unlock(self) -> None:
        if self._lock:
            self._lock.close()
            self._lock = None

    def _serve(self) -> str:
        kept = self._database.get("facts", "seed") or secrets.randbelow(2**32)
        seed = int(kept) if self._seed is None else self._seed
        self._database.put("facts", "seed", str(seed))
        service = TaskService(
            self._database, self._clock, self._pace, seed=seed, quick=self._quick, singles=self._singles
        )
        handler = RequestHandler(service, service.closing.wait, self._on_call)
        server = self._listen(handler, service.closing)
        service.url = f"http://{HOST}:{server.port}"
        self._database.put("facts", "port", str(server.port))
        server.start()
        self._server = server
        return service.url

    def _listen(self, handler: RequestHandler, closing: threading.Event) -> Server:
        if not self._port:
            with suppress(OSError):  # the last port is only a preference
                return Server(int(self._database.get("facts", "port") or 0), handler.receive, closing)
        return Server(self._port, handler.receive, closing)


def state_folder(bucket_url: str) -> str:
    """Return the folder for the state of a command's sandbox, next to the bucket. Raises SettingsError for a live
    bucket, because the sandbox's results would mix with real ones."""
    directory = bucket_url.startswith("file:")
    if not directory and "127.0.0.1" not in bucket_url:
        raise SettingsError(
            f"STORAGE.url is {bucket_url}: what the sandbox makes does not belong in a live bucket. "
            "Set RETAKE_STORAGE_URL=file:PATH for this run, or name a stand-in on 127.0.0.1"
        )
    return f"{bucket_url.removeprefix('file:').rstrip('/') if directory else 'bucket'}.sandbox"


@contextmanager
def sandbox_of_command(state: str) -> Iterator[Sandbox]:
    """Run a command's sandbox with its state in the folder `state`. Raises StorageError if that fails."""
    with ExitStack() as stack:
        try:
            sandbox = stack.enter_context(Sandbox(state))
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            raise StorageError(
                f"the sandbox cannot keep its state in {state} ({reason}): make the folder writable, free some space, "
                "or name another place in RETAKE_STORAGE_URL"
            ) from error
        yield sandbox


def _answers(url: str, identity: str) -> bool:
    """Return whether a sandbox with the database `identity` answers at `url`."""
    try:
        with urllib.request.urlopen(f"{url}/sandbox/health", timeout=2) as reply:  # noqa: S310 – our own http
            health = json.load(reply)
    except (OSError, ValueError):
        return False
    return isinstance(health, dict) and health.get("books") == identity
