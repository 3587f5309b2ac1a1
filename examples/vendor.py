"""A vendor for the examples, over HTTP on this machine: it makes posters, bills each one, and fails as ordered.

    python examples/vendor.py --plan ok,cut        # prints its address and runs until Ctrl-C

The other examples start their own unless they are given an address (--vendor URL). --plan says how the next orders end:
ok; 503, not carried out; cut, made and billed, but the connection is cut before the answer; hang, made and billed, but
never answered. Every order after the plan is ok.
"""

import argparse
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Vendor(ThreadingHTTPServer):
    """Takes `POST /posters` with {"title": …}; `GET /bills` lists the titles that were billed."""

    daemon_threads = True

    def __init__(self, plan: list[str], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Orders)
        self.plan, self.billed = plan, list[str]()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Orders(BaseHTTPRequestHandler):
    """Handles one request."""

    server: Vendor

    def do_POST(self) -> None:
        title = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["title"]
        outcome = self.server.plan.pop(0) if self.server.plan else "ok"
        if outcome == "503":
            return self.answer(503, {"error": "overloaded"})
        self.server.billed.append(title)
        if outcome == "hang":
            threading.Event().wait(600)
        return None if outcome in ("hang", "cut") else self.answer(200, {"poster": f"{title}.png"})

    def do_GET(self) -> None:
        self.answer(200, self.server.billed)

    def answer(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name is the library's
        """Log nothing, so that only the examples' own output shows."""


@contextmanager
def vendor(url: str | None, plan: str) -> Iterator[str]:
    """Yield `url`, or the address of a new vendor that runs as long as the block."""
    if url:
        yield url
        return
    with Vendor([it for it in plan.split(",") if it]) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.url
        server.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", default="", help="how the next orders end: ok, 503, cut, hang")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    server = Vendor([it for it in options.plan.split(",") if it], options.port)
    print(server.url, flush=True)
    server.serve_forever()
