"""python -m bench.servers b2|s3 [SECONDS]: run the stand-in for a store until its stdin is closed. Each request takes
that many seconds longer, as it would to a far store.

    with server("s3") as store:
        bucket = open_bucket(store.url("idle"))     # with store.environ in the environment
        store.calls()                               # ["list_objects_v2", …]: every call since it was last asked

It runs in a process of its own, so its costs do not count as the benchmark's, and it ends when the benchmark does,
however that ends.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen

from bench.pipelines import ROOT

CALLS = "/sandbox/calls"
S3_KEYS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_CONFIG_FILE": "/dev/null"}


class Store:
    """A running stand-in. `environ` has the keys that it accepts."""

    def __init__(self, base: str, storage: str, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self._base, self._storage, self._seen = base, storage, 0

    def url(self, prefix: str) -> str:
        """Return STORAGE.url for a folder in its bucket."""
        return self._storage.replace("PREFIX", prefix)

    def calls(self) -> list[str]:
        """Return the names of the calls since this was last called."""
        with urlopen(self._base + CALLS, timeout=10) as answer:  # noqa: S310 (our own stand-in)
            every = [call["name"] for call in json.load(answer)]
        new, self._seen = every[self._seen :], len(every)
        return new


@contextmanager
def server(kind: str, delay_s: float = 0.0) -> Iterator[Store]:
    command = [sys.executable, "-m", "bench.servers", kind, str(delay_s)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin
    assert process.stdout
    try:
        yield Store(**json.loads(process.stdout.readline()))
    finally:
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def serve_b2(delay_s: float) -> None:
    from retake.sandbox.b2 import B2Sandbox

    with B2Sandbox(seed=1, meanwhile=lambda call, file: time.sleep(delay_s)) as sandbox:
        announce(sandbox.url, sandbox.storage_url("PREFIX"), sandbox.environment())


def serve_s3(delay_s: float) -> None:
    """Serve moto with one bucket."""
    import logging
    from threading import Thread

    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    http_server = make_server(
        "127.0.0.1", 0, with_call_log(DomainDispatcherApplication(create_backend_app), delay_s), threaded=True
    )
    Thread(target=http_server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{http_server.server_port}"
    make_bucket(base)
    announce(base, f"s3://retake/PREFIX?endpoint={base}", S3_KEYS)
    http_server.shutdown()


def make_bucket(base: str) -> None:
    import os

    from retake.bucket.s3.client import connect, parse_url

    os.environ.update(S3_KEYS)
    connect(parse_url(f"s3://retake?endpoint={base}"), connect_s=5, read_s=10).create_bucket(Bucket="retake")


def with_call_log(application: Any, delay_s: float) -> Callable[[dict[str, Any], Any], Any]:
    """Wrap the WSGI `application` so that its calls are listed at the same path as in the other stand-ins."""
    calls: list[dict[str, str]] = []

    def answer(environ: dict[str, Any], start: Any) -> Any:
        if environ["PATH_INFO"] == CALLS:
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(calls).encode()]
        calls.append({"name": s3_name(environ)})
        time.sleep(delay_s)
        return application(environ, start)

    return answer


def s3_name(environ: Mapping[str, Any]) -> str:
    """Return botocore's name for the request."""
    method, query = str(environ["REQUEST_METHOD"]), environ["QUERY_STRING"]
    if method == "GET":
        return "list_objects_v2" if "list-type=2" in query else "get_object"
    if method == "PUT" and "HTTP_X_AMZ_COPY_SOURCE" in environ:
        return "copy_object"
    return {"PUT": "put_object", "HEAD": "head_object", "DELETE": "delete_object"}.get(method, method)


def announce(base: str, storage: str, environ: Mapping[str, str]) -> None:
    """Print where the stand-in is, and wait for the end."""
    print(json.dumps({"base": base, "storage": storage, "environ": dict(environ)}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    {"b2": serve_b2, "s3": serve_s3}[sys.argv[1]](float(sys.argv[2]) if sys.argv[2:] else 0.0)
