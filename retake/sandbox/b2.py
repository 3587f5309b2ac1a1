"""A stand-in of Backblaze B2 that any number of processes share: b2sdk's simulator behind B2's native API, over HTTP.

    with B2Sandbox() as sandbox:
        sandbox.order("b2-upload#1=cut-after")         # stored, but the answer is lost
        bucket = open_b2(sandbox.storage_url("story"), environ=sandbox.environment())

It does what B2 is known for: versions of one second are listed in any order (by the seed), nothing is ever
overwritten, and the S3 face refuses conditional headers. From the shell: python -m retake.sandbox.b2 --help
"""

import sys
import threading
import time
from collections.abc import Callable, Mapping
from email.utils import formatdate
from random import Random
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import click

from retake.bucket.b2.price import PriceClass, price_class
from retake.sandbox.b2_api import Api, name_of, refusal
from retake.sandbox.b2_orders import KINDS, parse_order
from retake.sandbox.b2_store import Store
from retake.sandbox.desk import Answer
from retake.sandbox.orders import Fault, Order
from retake.sandbox.server import Server
from retake.sandbox.wire import Reply, Request, html

_UNDONE = ("cut-before", "hang", "status", "new-url", "expired", "caps")


class Call(NamedTuple):
    """One call that a client made."""

    name: str  # as the API has it: «b2_upload_file»
    file: str  # the file's name, the prefix of a listing, or «»
    outcome: str  # the status of the answer, or the fault of a call that was not answered
    price: PriceClass


class _Placed:
    """An order, and how many calls of its kind it has seen."""

    def __init__(self, order: Order) -> None:
        self.order, self.seen = order, 0


class B2Sandbox:
    """Serves on a loopback port (0: a free one) while it is entered. Raises OSError where the port is taken.

    `meanwhile(call, file)` is called before each call is carried out: the place for somebody else to do something.
    `now` is B2's clock, seconds since the epoch; `pause` makes slow answers slow.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        buckets: tuple[str, ...] = ("retake",),
        seed: int | None = None,
        now: Callable[[], float] = time.time,
        pause: Callable[[float], object] | None = None,
        meanwhile: Callable[[str, str], object] = lambda call, file: None,
        on_call: Callable[[Call], object] = lambda call: None,
    ) -> None:
        self._closing = threading.Event()
        self._server = Server(port, self._receive, self._closing)
        self._server.RequestHandlerClass = _handler(self._server.RequestHandlerClass, now)
        self.url = f"http://127.0.0.1:{self._server.port}"
        self.store = Store(now, Random(seed))  # noqa: S311  chance, not secrecy
        self.meanwhile, self._pause, self._on_call = meanwhile, pause or self._closing.wait, on_call
        self._api = Api(self.store, self.url)
        self._lock = threading.RLock()
        self._calls: list[Call] = []
        self._placed: list[_Placed] = []
        for name in buckets:
            self.make_bucket(name)

    def __enter__(self) -> "B2Sandbox":
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def environment(self) -> dict[str, str]:
        """The keys that it accepts, as the environment variables that clients take them from."""
        return {"B2_APPLICATION_KEY_ID": self.store.account, "B2_APPLICATION_KEY": self.store.key}

    def storage_url(self, prefix: str = "", *, bucket: str = "retake") -> str:
        """What to put into STORAGE.url."""
        return f"b2://{bucket}{f'/{prefix}' if prefix else ''}?realm={quote(self.url, safe=':/')}"

    def make_bucket(self, name: str) -> None:
        """As its owner would in the web interface."""
        with self._lock:
            token = self.store.authorize_account("", self.store.account, self.store.key)["authorizationToken"]
            self.store.create_bucket(self.store.API_URL, token, self.store.account, name, "allPrivate")

    def order(self, text: str) -> Order:
        """Place an order (retake.sandbox.b2_orders). Raises ValueError. Of several for one call the newest counts."""
        order = parse_order(text)
        with self._lock:
            self._placed.append(_Placed(order))
        return order

    def withdraw_orders(self) -> None:
        with self._lock:
            self._placed.clear()

    def calls(self) -> list[Call]:
        """Every call so far that has ended."""
        with self._lock:
            return list(self._calls)

    def _receive(self, request: Request) -> Answer:
        if request.path.startswith("/sandbox/"):
            return Answer(self._control(request))
        name, file = name_of(request), _file_of(request)
        fault = self._fault(KINDS.get(name, ""))
        self.meanwhile(name, file)
        if fault and fault.name == "slow":
            self._pause(fault.seconds)
        answer = self._answer(request, name, fault)
        call = Call(name, file, str(answer.reply.status if answer.reply else fault), price_class(name))
        with self._lock:
            self._calls.append(call)
        self._on_call(call)
        return answer

    def _answer(self, request: Request, name: str, fault: Fault | None) -> Answer:
        with self._lock:
            undone = fault if fault and fault.name in _UNDONE else None
            done = self._refused(request, name, undone) if undone else self._api.answer(request)
        if fault and fault.name in ("cut-before", "cut-after", "hang", "hang-after"):
            return Answer(hang=fault.name.startswith("hang"))
        return Answer(html(200) if fault and fault.name == "not-json" else done)

    def _refused(self, request: Request, name: str, fault: Fault) -> Reply:
        if fault.name == "expired":
            self._api.expire(request.headers.get("authorization", ""))
            return refusal(401, "expired_auth_token", "the token has run out")
        if fault.name == "caps":
            return refusal(403, "storage_cap_exceeded" if name == "b2_upload_file" else "transaction_cap_exceeded")
        if fault.name == "new-url":
            return refusal(503, "service_unavailable", "no tomes available")
        return html(fault.status) if fault.html else refusal(fault.status or 500)

    def _fault(self, kind: str) -> Fault | None:
        """The fault of this call. Counts it."""
        met = None
        with self._lock:
            for placed in self._placed:
                if placed.order.kind == kind:
                    placed.seen += 1
                    met = placed.order.fault if placed.order.meets(placed.seen) else met
        return met

    def _control(self, request: Request) -> Reply:
        """What the other sandbox has under the same paths, for tests in other processes."""
        asked = (request.method, request.path)
        if asked == ("GET", "/sandbox/calls"):
            return Reply(200, [call._asdict() for call in self.calls()])
        if asked == ("DELETE", "/sandbox/orders"):
            self.withdraw_orders()
            return Reply(204)
        if asked != ("POST", "/sandbox/orders"):
            return Reply(404, {"error": f"no {request.method} {request.path} here"})
        try:
            return Reply(201, {"order": str(self.order(str(request.fields.get("order", ""))))})
        except ValueError as wrong:
            return Reply(400, {"error": str(wrong)})


def _file_of(request: Request) -> str:
    fields: Mapping[str, Any] = request.fields if request.path.startswith("/b2api/") else {}
    name = fields.get("fileName") or fields.get("prefix") or request.query.get("fileId")
    return str(name or unquote(request.headers.get("x-bz-file-name", "")))


def _handler(usual: Any, now: Callable[[], float]) -> Any:
    """`usual`, with PUT for the S3 face, and with B2's clock in the Date header."""
    return type(
        "Handler", (usual,), {"do_PUT": usual.do_POST, "date_time_string": lambda _: formatdate(now(), usegmt=True)}
    )


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0 takes a free one.")
@click.option("--bucket", "buckets", multiple=True, default=("retake",), show_default=True, help="Repeatable.")
@click.option("--order", "orders", multiple=True, help="A fault, such as b2-upload#1=cut-after; repeatable.")
@click.option("--seed", type=int, help="The order of versions of one second follows from it.")
def main(port: int, buckets: tuple[str, ...], orders: tuple[str, ...], seed: int | None) -> None:
    """A stand-in of Backblaze B2 on 127.0.0.1, until Ctrl-C. It forgets everything when it ends."""
    try:
        sandbox = B2Sandbox(port, buckets=buckets, seed=seed, on_call=_show)
        for order in orders:
            sandbox.order(order)
    except ValueError as wrong:
        raise click.BadParameter(str(wrong), param_hint="--order") from wrong
    except OSError as trouble:
        click.echo(f"The sandbox cannot start: {trouble.strerror or trouble}. Try another --port.", err=True)
        sys.exit(75)
    try:
        with sandbox:
            click.echo(f"B2 sandbox at {sandbox.url}")
            settings = {"RETAKE_STORAGE_URL": sandbox.storage_url("story", bucket=buckets[0]), **sandbox.environment()}
            for name, value in settings.items():
                click.echo(f"  export {name}='{value}'")
            click.echo("Ctrl-C ends it, and forgets everything.")
            threading.Event().wait()
    except KeyboardInterrupt:
        click.echo("\nThe sandbox is closed.")


def _show(call: Call) -> None:
    click.echo(f"{call.outcome:<12} {call.price}  {call.name:<26} {call.file}".rstrip())


if __name__ == "__main__":
    main(prog_name="python -m retake.sandbox.b2")
