"""The sandbox as programs use it: stand-ins of the vendors on a loopback port, their books, and orders to fail."""

import json
import secrets
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from retake.clock import Clock, SystemClock
from retake.sandbox.billing import VendorBill, bill
from retake.sandbox.database import RecordedCall, SandboxDatabase
from retake.sandbox.orders import parse_order
from retake.sandbox.request_handler import RequestHandler
from retake.sandbox.server import HOST, Server
from retake.sandbox.task import Pace, VendorTask
from retake.sandbox.task_service import TaskService

ENVIRONMENT = "RETAKE_SANDBOX_URL"  # where the scripts look for a sandbox's address
DEMO_PACE = Pace()
_JOIN_PATIENCE_S = 10.0  # how long a sandbox that is just starting is waited for


def endpoints(url: str, provider: str = "piapi") -> dict[str, dict[str, str]]:
    """The section API_KEYS of the settings that points the program at the sandbox at `url`.

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


class Sandbox:
    """Stand-ins of the vendors (PiAPI, LegNext, Runway, a chat API) over HTTP on 127.0.0.1, from entering to leaving.

    state    a directory where books and media are kept; None keeps them in memory. A later sandbox with the same state
             serves the same links, on the same port if it is free. While one is running with that state, another one
             serves nothing itself: its `url` is the running one's, and orders, calls and bill are shared.
    port     0 takes the state's last port, or any free one. A port that is taken raises OSError on entering.
    seed     texts, pictures and ids follow from it; None takes the state's, or a new one.
    pace     how long tasks take, by `clock`; Pace(0, 0, 0) is done at the first poll.
    quick    tiny plain media, which cost next to nothing: for tests with hundreds of generations.
    singles  whether imagine tasks show their four pictures apart too.
    on_call  hears of every call that has ended, in the server's threads.
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
        self._database = SandboxDatabase(str(self._directory() / "books.sqlite3") if self._state else ":memory:")
        try:
            self.url = self._join() or self._serve()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving and close the books. A sandbox of another process goes on."""
        if self._server:
            self._server.close()
            self._server = None
        self._database.close()
        if self._lock:
            self._lock.close()
            self._lock = None

    @property
    def serving(self) -> bool:
        """Whether this object serves itself, rather than use one that was running already."""
        return self._server is not None

    def order(self, text: str) -> None:
        """Order a fault (see orders.py for the grammar). Raises ValueError that says what is possible."""
        self._database.place(parse_order(text))

    def withdraw_orders(self) -> None:
        """No fault from now on."""
        self._database.withdraw_orders()

    def calls(self, kind: str | None = None) -> list[RecordedCall]:
        """Every call, or those of `kind`, in the order in which they came."""
        return self._database.calls(kind)

    def tasks(self) -> list[VendorTask]:
        """Every task in the order in which they were accepted."""
        return self._database.tasks()

    def bill(self) -> VendorBill:
        """What the vendors would bill at this moment."""
        return bill(self._database.calls(), self._database.tasks(), self._clock.now().timestamp())

    def endpoints(self, provider: str = "piapi") -> dict[str, dict[str, str]]:
        """The section API_KEYS of the settings that points the program at this sandbox; see `endpoints`."""
        return endpoints(self.url, provider)

    def _directory(self) -> Path:
        assert self._state is not None
        self._state.mkdir(parents=True, exist_ok=True)
        return self._state

    def _join(self) -> str | None:
        """The address of a running sandbox with this state. None when there is none: then the state is ours."""
        if not self._state:
            return None
        import fcntl

        self._lock = (self._directory() / "server.lock").open("a")
        patience = threading.Event()
        for _ in range(int(_JOIN_PATIENCE_S / 0.1)):
            try:
                # Held by the serving process for as long as it lives, however it ends.
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                url = f"http://{HOST}:{self._database.fact('port')}"
                if _answers(url, self._database.identity):
                    self._lock.close()
                    self._lock = None
                    return url
                patience.wait(0.1)
            else:
                return None
        raise TimeoutError(f"another sandbox holds {self._state} but does not answer on its port")

    def _serve(self) -> str:
        seed = self._settled_seed()
        studio = TaskService(
            self._database, self._clock, self._pace, seed=seed, quick=self._quick, singles=self._singles
        )
        closing = threading.Event()
        desk = RequestHandler(studio, closing.wait, self._on_call)
        server = self._listen(desk, closing)
        studio.url = f"http://{HOST}:{server.port}"
        self._database.set_fact("port", str(server.port))
        server.start()
        self._server = server
        return studio.url

    def _listen(self, desk: RequestHandler, closing: threading.Event) -> Server:
        last = self._database.fact("port")
        if self._port or not last:
            return Server(self._port, desk.receive, closing)
        try:
            return Server(int(last), desk.receive, closing)
        except OSError:
            return Server(0, desk.receive, closing)

    def _settled_seed(self) -> int:
        kept = self._database.fact("seed")
        fresh = int(kept) if kept else secrets.randbelow(2**32)
        seed = fresh if self._seed is None else self._seed
        self._database.set_fact("seed", str(seed))
        return seed


def _answers(url: str, books: str) -> bool:
    """Whether a sandbox that keeps `books` answers at `url`."""
    try:
        with urllib.request.urlopen(f"{url}/sandbox/health", timeout=2) as reply:  # noqa: S310 – our own http
            health = json.load(reply)
    except (OSError, ValueError):
        return False
    return isinstance(health, dict) and health.get("books") == books
