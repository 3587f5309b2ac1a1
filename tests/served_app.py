"""Serve an application to a test with the server that the services use."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from retake.serving.server import ApiServer, address_of, listen


@contextmanager
def served_app(app: Any) -> Iterator[str]:
    """Serve `app` on a free port of 127.0.0.1, in a thread; yield its URL."""
    stopped, ready = threading.Event(), threading.Event()
    with listen("127.0.0.1", 0) as listener:
        server = ApiServer(app, listener, signals=lambda: int(stopped.is_set()), on_start=ready.set)
        thread = threading.Thread(target=server.serve_until_stopped)
        thread.start()
        assert ready.wait(30)
        try:
            yield address_of(listener, "127.0.0.1")
        finally:
            stopped.set()
            thread.join(20)
            assert not thread.is_alive()
