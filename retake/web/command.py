"""`retake web`: serve the dashboard."""

import sys
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple

from retake.exit_codes import ExitCode
from retake.operations.pipelines import Operations
from retake.retrying.breaker import BreakerPolicy
from retake.serving.server import ApiServer, address_of, announce, listen
from retake.web.app import web_app
from retake.web.desk import Desk
from retake.web.live import Live, fingerprint
from retake.web.sessions import Sessions
from retake.web.settings import WebSettings
from retake.web.shelf import Shelf

GRACE_S = 1
"""Seconds that requests under way may take to end."""

WARM_UP_S = 1.5
"""Seconds to wait for the first page's data before the address is printed; a slower read goes on in the background."""

_LOCAL_LOOK_S, _REMOTE_LOOK_S = 2.0, 15.0  # between two looks at a bucket in a directory, or on a service


class WebOptions(NamedTuple):
    """Options from the command line and the environment, and values of packages that this one does not import."""

    host: str = "127.0.0.1"
    port: int = 8080
    read_only: bool = False
    token: str = ""
    cap_usd: float | None = None
    environ: Mapping[str, str] = {}
    policies: Mapping[str, BreakerPolicy] = {}  # of the breakers that are not vendors', by name


def serve(operations: Operations, settings: WebSettings, options: WebOptions, *, signals: Callable[[], int]) -> int:
    """Serve the dashboard until a signal arrives, and return the exit code. Raises PortTaken, SettingsError."""
    seconds = settings.look_seconds or (_LOCAL_LOOK_S if operations.bucket.url.startswith("file:") else _REMOTE_LOOK_S)
    with listen(options.host, options.port) as listener:
        clock = operations.clock
        shelf = Shelf(seconds)
        desk = Desk(
            operations,
            Sessions(options.token, lambda: clock.now().timestamp()),
            shelf,
            cap_usd=options.cap_usd,
            read_only=options.read_only,
            environ=options.environ,
            policies=options.policies,
        )
        desk.warm_up(WARM_UP_S)
        live = Live(lambda: fingerprint(operations, desk.status_now()), seconds, desk.changed)
        app = web_app(desk, live, _hosts(options.host, settings.hosts))
        told = partial(announce, f"{address_of(listener, options.host)}/", sys.stdout)
        server = ApiServer(app, listener, signals=signals, on_start=told, on_stop=live.close, grace_s=GRACE_S)
        try:
            server.serve_until_stopped()
        finally:
            live.close()
            shelf.close()
    return ExitCode.OK


def _hosts(host: str, more: Collection[str]) -> set[str]:
    """Return the accepted host names. "0.0.0.0" is an address to listen on, but not a name that a browser asks for."""
    own = set() if host in ("0.0.0.0", "::", "") else {f"[{host.lower()}]" if ":" in host else host.lower()}  # noqa: S104
    return {*own, *more}
