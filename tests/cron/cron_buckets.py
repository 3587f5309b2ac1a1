"""The machine of cron_machine.py with other buckets: a folder, a stand-in for B2, or moto's S3.

machine = BucketMachine(tmp_path, vendors, place)
machine.before = freeze                 # called with each request to B2 or S3 before it is carried out
"""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from logging import getLogger
from pathlib import Path
from subprocess import Popen
from typing import Any, NamedTuple, TypeVar

import moto_writes  # noqa: F401  (its writes are conditional for everybody)
import pytest
from cron_machine import MANAGER, Machine, Run, Vendors
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from waiting import eventually

from retake.bucket import ANY, LeaseTerms, NotFound, open_bucket
from retake.bucket.s3.client import connect, parse_url
from retake.errors import LeaseHeld, StorageError
from retake.sandbox.b2 import B2Sandbox

KINDS = ("directory", "b2", "s3")
CLOUDS = ("b2", "s3")

TTL_S = 8.0  # a busy machine must be able to renew it in time
SKEW_S = {"directory": 0.2, "b2": 0.2, "s3": 0.6}
"""S3 reports all times in whole seconds: two of them may be a second apart, and the skew counts twice."""

DOCUMENTS = tuple(f"config/config_{name}.json" for name in ("public", "gen", "midjourney"))

_S3_KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_CONFIG_FILE": "/dev/null"}
_numbers = count(1)
_T = TypeVar("_T")


class Place(NamedTuple):
    """The location of a bucket, and what a process needs to use it."""

    kind: str
    url: str
    environ: dict[str, str]
    listen: Callable[[Callable[[str], object]], None]  # registers a listener for requests about to be carried out


@contextmanager
def b2_place() -> Iterator[Callable[[], Place]]:
    """Yield a function that creates places on one stand-in."""
    with B2Sandbox(seed=7) as sandbox:

        def listen(before: Callable[[str], object]) -> None:
            sandbox.meanwhile = lambda call, file: before(f"{call} {file}")

        yield lambda: Place("b2", sandbox.storage_url(f"story-{next(_numbers)}"), sandbox.environment(), listen)


@contextmanager
def s3_place() -> Iterator[Callable[[], Place]]:
    """Yield a function that creates places on one server. Its requests are heard where the server dispatches them."""
    usual, heard = DomainDispatcherApplication.__call__, [lambda text: None]

    def take(self: Any, environ: dict[str, Any], answer: Any) -> Any:
        heard[0](f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']} {environ['QUERY_STRING']}")
        return usual(self, environ, answer)

    def make() -> Place:
        url = f"s3://bucket-{next(_numbers)}/story?endpoint=http://{host}:{port}"
        os.environ.update(_S3_KEYS)
        place = parse_url(url)
        connect(place, connect_s=5, read_s=10).create_bucket(Bucket=place.bucket)
        return Place("s3", url, _S3_KEYS, lambda before: heard.__setitem__(0, before))

    getLogger("werkzeug").setLevel("ERROR")  # it logs each request
    DomainDispatcherApplication.__call__ = take
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield make
    finally:
        server.stop()
        DomainDispatcherApplication.__call__ = usual


Clouds = Callable[[str], Place]


@contextmanager
def places_in_clouds() -> Iterator[Clouds]:
    """Yield a function that creates places of a kind, on servers that are started when first needed."""
    makers: dict[str, Callable[[], Place]] = {}
    with ExitStack() as stack:

        def place(kind: str) -> Place:
            if kind not in makers:
                makers[kind] = stack.enter_context(b2_place() if kind == "b2" else s3_place())
            return makers[kind]()

        yield place


class BucketMachine(Machine):
    """A machine whose bucket is read as the scripts read it. The keys must be in the test's own environment, too."""

    def __init__(self, folder: Path, vendors: Vendors, place: Place) -> None:
        super().__init__(folder, vendors)
        self.kind = place.kind
        self.env |= {"RETAKE_STORAGE_URL": place.url, **place.environ}
        self.terms = LeaseTerms(TTL_S, SKEW_S[place.kind], TTL_S / 24)
        self.store = open_bucket(place.url, lease_terms=self.terms)
        self.before: Callable[[str], object] = lambda request: None
        place.listen(lambda request: self.before(request))

    def short_leases(self, ttl_s: float = TTL_S) -> None:
        self.terms = self.terms._replace(ttl_s=ttl_s, margin_s=ttl_s / 24)
        self.store = open_bucket(self.env["RETAKE_STORAGE_URL"], lease_terms=self.terms)
        skew_s = self.terms.skew_s
        terms = {"lock_ttl_seconds": ttl_s, "lock_skew_seconds": skew_s, "call_timeout_seconds": ttl_s / 2}
        self.set(WORKFLOW=terms)

    @property
    def term(self) -> float:
        """Seconds until the lease of a dead process is free, 0 on a directory. One second is added because the stores
        report times in whole seconds."""
        return 0.0 if self.kind == "directory" else self.terms.ttl_s + 2 * self.terms.skew_s + 1

    def put(self, key: str, value: object) -> None:  # type: ignore[override]
        self.store.write(key, value if isinstance(value, bytes) else json.dumps(value).encode(), ANY)

    def data(self, key: str) -> bytes:
        return self.store.read(key)[0]

    def read(self, key: str) -> dict[str, Any]:
        try:
            return dict(json.loads(self.data(key)))
        except NotFound:
            return {}

    def files(self, folder: str = "") -> set[str]:
        return {entry.key for entry in self.store.list(f"{folder}/" if folder else "")}

    def snapshot(self) -> dict[str, bytes]:
        return {key: self.data(key) for key in self.files()}

    @property
    def leased(self) -> bool:
        try:
            patiently(lambda: self.store.lease("story", "the test")).release()
        except LeaseHeld:
            return True
        return False

    # --- processes ---

    def kill(self, manager: Popen[str], *, script_too: bool) -> None:
        manager.kill()
        manager.wait()
        for orphan in self.processes() if script_too else []:
            with suppress(ProcessLookupError):
                os.kill(orphan, signal.SIGKILL)

    def await_free(self) -> None:
        """Wait until the lease of a dead or frozen process has expired."""
        eventually(lambda: patiently(lambda: self.store.holder("story")) is None)

    def freeze(self, *pids: int) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        eventually(lambda: all(self.frozen(pid) for pid in pids))

    def frozen(self, pid: int) -> bool:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def thaw(self, *pids: int) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    def until_over(self) -> list[Run]:
        """Tick until the generation is over. On a busy machine a tick may lose such a short lease."""
        runs: list[Run] = []
        while self.generation_id or not self.files("spend"):
            runs.append(self.run(MANAGER))
            assert len(runs) < 20, [(run.exit_code, run.messages[-1:]) for run in runs]
        return runs


def patiently(look: Callable[[], _T]) -> _T:
    """Return the result of `look`, retrying storage errors.

    With such short leases a request may take only 2.7 s, too little for a busy server; the scripts retry with the next
    tick.
    """
    for _ in range(10):
        with suppress(StorageError):
            return look()
    return look()


@contextmanager
def bucket_machine(
    kind: str, folder: Path, vendors: Vendors, clouds: Clouds, environ: pytest.MonkeyPatch
) -> Iterator[BucketMachine]:
    """Yield a machine with a bucket of that kind; fail if it leaves processes behind."""
    place = Place(kind, f"file:{folder / 'bucket'}", {}, lambda before: None) if kind == "directory" else clouds(kind)
    for name, value in place.environ.items():
        environ.setenv(name, value)
    vendors.as_new()
    machine = BucketMachine(folder, vendors, place)
    yield machine
    vendors.as_new()
    left = machine.processes()
    machine.end()
    assert not left, "processes were left running"
