"""S3 over real HTTP: moto's server in this process, its buckets, and the keys it accepts.

moto's S3 server needs only moto[s3], flask and flask-cors; moto[server] would install forty packages.

moto honours conditions on plain writes (412), never answers 409 or 501, and ignores conditions on the target of a copy.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import Any

import moto_writes  # noqa: F401  (its writes are conditional for everybody)
from moto.server import ThreadedMotoServer

from retake.bucket.s3.client import connect, parse_url

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_CONFIG_FILE": "/dev/null"}

_names = count(1)


@contextmanager
def moto_server() -> Iterator[str]:
    """Start a moto server and yield its URL."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def new_bucket(endpoint: str, *, versioned: bool = False) -> str:
    """Create an empty bucket; return the URL of a folder in it."""
    client, name = _client(endpoint), f"bucket-{next(_names)}"
    url = f"s3://{name}/some/place?endpoint={endpoint}"
    client.create_bucket(Bucket=name)
    if versioned:
        client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    return url


@cache
def _client(endpoint: str) -> Any:
    return connect(parse_url(f"s3://bucket-0?endpoint={endpoint}"), connect_s=5, read_s=10)
