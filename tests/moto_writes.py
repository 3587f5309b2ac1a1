"""Make moto's server behave like a real store, for every test that imports this module.

Writes are processed one at a time: of two simultaneous writes with the same condition moto accepts both, which no real
store does. The service behind a host is cached; moto would search its folders at each request.
"""

import threading
from functools import cache
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication

_usual = DomainDispatcherApplication.__call__
_one_at_a_time = threading.Lock()


def _take(self: Any, environ: dict[str, Any], answer: Any) -> Any:
    if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
        return _usual(self, environ, answer)
    with _one_at_a_time:
        return _usual(self, environ, answer)


DomainDispatcherApplication.__call__ = _take
DomainDispatcherApplication.get_backend_for_host = cache(DomainDispatcherApplication.get_backend_for_host)
