"""Serve an application to a test with the server that the services use, and look at the pages that describe it."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

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


def check_pages(anybody: httpx.Client) -> None:
    """Check that the API's pages are there for everybody, and need nothing from elsewhere."""
    page = anybody.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "//" not in "".join(re.findall(r"(?:src|href|url)\W+([^\s\"']+)", page.text))
    for path in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        assert anybody.get(path).status_code == 200, path
