import io
import logging
import socket
from collections.abc import Iterator

import pytest
from scripted_vendor import ScriptedVendor
from youtube_site import Site

from retake.logs import DIAGNOSIS, setup_logging
from retake.sandbox import Sandbox


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reach loopback without proxies, whatever the machine's own settings are."""
    monkeypatch.setenv("NO_PROXY", "*")
    for name in ("RUNWAYML_BASE_URL", "RUNWAYML_API_SECRET", "RUNWAYML_CUSTOM_HEADERS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def vendor() -> Iterator[ScriptedVendor]:
    scripted = ScriptedVendor()
    yield scripted
    scripted.close()


@pytest.fixture
def deaf_url() -> Iterator[str]:
    """Yield an address that neither accepts nor refuses connections: its backlog is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for caller in waiting:
            caller.setblocking(False)
            caller.connect_ex(address)
        yield f"http://127.0.0.1:{address[1]}"
        for caller in waiting:
            caller.close()


@pytest.fixture
def diagnosed() -> Iterator[io.StringIO]:
    """Yield all records from level DEBUG, as logged in the diagnostic mode."""
    root, stream = logging.getLogger(), io.StringIO()
    handlers, level, raising = root.handlers[:], root.level, logging.raiseExceptions
    setup_logging(stream, human=False, level="DEBUG", environ={"RETAKE_DIAGNOSE": "1"})
    yield stream
    logging.captureWarnings(False)
    logging.getLogger(DIAGNOSIS).setLevel(logging.NOTSET)
    root.handlers[:], logging.raiseExceptions = handlers, raising
    root.setLevel(level)


@pytest.fixture
def site(shared_sandbox: Sandbox) -> Iterator[Site]:
    yield Site(shared_sandbox)
    shared_sandbox.withdraw_orders()
