"""moto's server as a store, for everybody: importing this is enough.

Writes are taken one at a time: of two writes at once with the same condition it lets both through, and no store does.
Which service a host stands for is found out once, not by a look through the folders of moto at each request.
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
