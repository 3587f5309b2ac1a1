"""A stand-in for Backblaze B2 that several processes can share: b2sdk's simulator behind B2's native API, over HTTP.

    with B2Sandbox() as sandbox:
        sandbox.order("b2-upload#1=cut-after")         # stored, but the answer is lost
        bucket = open_b2(sandbox.storage_url("story"), environ=sandbox.environment())

Like the real B2, it lists versions of the same second in any order (determined by the seed), never overwrites
anything, and refuses conditional headers in its S3 API. From the shell: python -m retake.sandbox.b2 --help
"""

import sys
import threading
import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import click

from retake.bucket.b2.price import PriceClass, price_class
from retake.sandbox.b2_api import B2NativeApi, name_of, refusal
from retake.sandbox.b2_orders import KINDS, parse_order
from retake.sandbox.b2_store import SimulatedAccount
from retake.sandbox.http_messages import Request, Response, gateway_page
from retake.sandbox.orders import SILENT_FAULTS, Order, PlacedOrders, VendorFault
from retake.sandbox.request_handler import ResponseDelivery, control
from retake.sandbox.server import Server

_NOT_CARRIED_OUT = ("cut-before", "hang", "status", "new-url", "expired", "caps")


class RecordedB2Call(NamedTuple):
    """One call that a client made."""

    name: str  # as in the API: "b2_upload_file"
    file: str  # the file's name, the prefix of a listing, or ""
    outcome: str  # the status of the answer, or the fault of a call that was not answered
    price: PriceClass


class B2Sandbox:
    """Serves on a loopback port (0: any free one) as a context manager. Raises OSError if the port is taken.

    `part_size` is the size in bytes above which clients are told to upload a file in parts.
    `meanwhile(call, file)` is called before each call is carried out, so that a test can act in between.
    `now` is B2's clock, in seconds since the epoch.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        buckets: tuple[str, ...] = ("retake",),
        seed: int | None = None,
        part_size: int = 100_000_000,
        now: Callable[[], float] = time.time,
        meanwhile: Callable[[str, str], object] = lambda call, file: None,
        on_call: Callable[[RecordedB2Call], object] = lambda call: None,
    ) -> None:
        closing = threading.Event()
        self._server = Server(port, self._receive, closing, now)
        self.url = f"http://127.0.0.1:{self._server.port}"
        self.store = SimulatedAccount(now, Random(seed), part_size)
        self.meanwhile, self._pause, self._on_call = meanwhile, closing.wait, on_call
        self._api = B2NativeApi(self.store, self.url)
        self._lock = threading.RLock()
        self._calls: list[RecordedB2Call] = []
        self._orders = PlacedOrders(parse_order)
        for name in buckets:
            self.make_bucket(name)

    def __enter__(self) -> "B2Sandbox":
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def environment(self) -> dict[str, str]:
        """Return the environment variables with the keys that the sandbox accepts."""
        return {"B2_APPLICATION_KEY_ID": self.store.account, "B2_APPLICATION_KEY": self.store.key}

    def storage_url(self, prefix: str = "", *, bucket: str = "retake") -> str:
        """Return the value for the settings key `STORAGE.url`."""
        return f"b2://{bucket}{f'/{prefix}' if prefix else ''}?realm={quote(self.url, safe=':/')}"

    def make_bucket(self, name: str) -> None:
        """Create a bucket, as its owner would in the web interface."""
        with self._lock:
            token = self.store.authorize_account("", self.store.account, self.store.key)["authorizationToken"]
            self.store.create_bucket(self.store.API_URL, token, self.store.account, name, "allPrivate")

    def order(self, text: str) -> Order:
        """Place an order (grammar: b2_orders.py); the newest that matches a call applies. Raises ValueError."""
        return self._orders.place(text)

    def withdraw_orders(self) -> None:
        self._orders.withdraw()

    def calls(self) -> list[RecordedB2Call]:
        """Return every call that has ended so far."""
        with self._lock:
            return list(self._calls)

    def _receive(self, request: Request) -> ResponseDelivery:
        if request.path.startswith("/sandbox/"):
            answers = {"calls": lambda: [call._asdict() for call in self.calls()]}
            return ResponseDelivery(control(request, answers, self.order, self.withdraw_orders))
        name, file = name_of(request), _file_of(request)
        fault = self._orders.fault(KINDS.get(name, ""))
        self.meanwhile(name, file)
        if fault and fault.name == "slow":
            self._pause(fault.seconds)
        delivery = self._deliver(request, name, fault)
        outcome = delivery.response.status if delivery.response else fault
        call = RecordedB2Call(name, file, str(outcome), price_class(name))
        with self._lock:
            self._calls.append(call)
        self._on_call(call)
        return delivery

    def _deliver(self, request: Request, name: str, fault: VendorFault | None) -> ResponseDelivery:
        with self._lock:
            refused = fault and fault.name in _NOT_CARRIED_OUT
            done = self._refused(request, name, fault) if fault and refused else self._api.answer(request)
        if fault and fault.name in SILENT_FAULTS:
            return ResponseDelivery(hang=fault.name.startswith("hang"))
        return ResponseDelivery(gateway_page(200) if fault and fault.name == "not-json" else done)

    def _refused(self, request: Request, name: str, fault: VendorFault) -> Response:
        if fault.name == "expired":
            self._api.expire(request.headers.get("authorization", ""))
            return refusal(401, "expired_auth_token", "the token has expired")
        if fault.name == "caps":
            return refusal(403, "storage_cap_exceeded" if name == "b2_upload_file" else "transaction_cap_exceeded")
        if fault.name == "new-url":
            return refusal(503, "service_unavailable", "no tomes available")
        return gateway_page(fault.status) if fault.html else refusal(fault.status or 500)


def _file_of(request: Request) -> str:
    fields: Mapping[str, Any] = request.fields if request.path.startswith("/b2api/") else {}
    name = fields.get("fileName") or fields.get("prefix") or request.query.get("fileId")
    return str(name or unquote(request.headers.get("x-bz-file-name", "")))


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0 takes any free port.")
@click.option("--bucket", "buckets", multiple=True, default=("retake",), show_default=True, help="Repeatable.")
@click.option("--order", "orders", multiple=True, help="Order a fault, such as b2-upload#1=cut-after; repeatable.")
@click.option("--seed", type=int, help="Determines the order in which versions of the same second are listed.")
def main(port: int, buckets: tuple[str, ...], orders: tuple[str, ...], seed: int | None) -> None:
    """Run a stand-in for Backblaze B2 on 127.0.0.1 until Ctrl-C. It keeps nothing when it stops."""
    try:
        sandbox = B2Sandbox(port, buckets=buckets, seed=seed, on_call=_show)
        for order in orders:
            sandbox.order(order)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--order") from error
    except OSError as error:
        click.echo(f"The sandbox cannot start: {error.strerror or error}. Try another --port.", err=True)
        sys.exit(75)
    try:
        with sandbox:
            click.echo(f"B2 sandbox at {sandbox.url}")
            settings = {"RETAKE_STORAGE_URL": sandbox.storage_url("story", bucket=buckets[0]), **sandbox.environment()}
            for name, value in settings.items():
                click.echo(f"  export {name}='{value}'")
            click.echo("Ctrl-C stops it; it keeps nothing.")
            threading.Event().wait()
    except KeyboardInterrupt:
        click.echo("\nThe sandbox has stopped.")


def _show(call: RecordedB2Call) -> None:
    click.echo(f"{call.outcome:<12} {call.price}  {call.name:<26} {call.file}".rstrip())


if __name__ == "__main__":
    main(prog_name="python -m retake.sandbox.b2")
