"""The RabbitMQ of `images up`, one for all tests of a process (the fixture `shared_rabbit`): its start costs five
seconds of CPU. It speaks TLS on a second port. It can be frozen, stopped, killed and started again on the same data.

What makes it new for a test is a virtual host that nobody has used, of which it has some from its start.
"""

import base64
import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from local_servers import PIECE_S, START_S, RunningServer, or_skipped, server_folder
from tls_certificate import make_certificate

from retake.images.up import rabbit_server
from retake.images.up.folder import DataFolder, free_port
from retake.images.up.programs import Programs

_HOSTS = ["/", *(f"new-{number}" for number in range(1, 6))]
_ALL = {"configure": ".*", "write": ".*", "read": ".*"}


class Tls(NamedTuple):
    """The port where the server speaks TLS, and the certificate to trust for 127.0.0.1."""

    port: int
    certificate: Path


class RabbitServer(RunningServer):
    """A server with its data in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.tls = Tls(free_port(), make_certificate(folder)[0])
        self._hosts = iter(_HOSTS)
        self.host = next(self._hosts)
        server = rabbit_server.RabbitServer(DataFolder(folder), Programs(os.environ), os.environ)
        self.root_url, self.port = server.url, server.port
        super().__init__(server, folder)

    def _prepare(self) -> None:
        super()._prepare()
        definitions = self.folder / "definitions.json"
        definitions.write_text(json.dumps(_definitions(self.root_url)))
        with (self.folder / "rabbitmq/rabbitmq.conf").open("a") as configuration:
            configuration.write(
                f"load_definitions = {definitions}\n"
                f"listeners.ssl.1 = 127.0.0.1:{self.tls.port}\n"
                f"ssl_options.certfile = {self.tls.certificate}\n"
                f"ssl_options.keyfile = {self.tls.certificate.with_name('key.pem')}\n"
            )

    @property
    def url(self) -> str:
        """The URL of the virtual host that tests use at present."""
        return self.root_url + self.host.removeprefix("/")

    def begin_anew(self) -> None:
        """Go on without anything that was there, and with none of the names that were used on disk."""
        self.start()
        host = next(self._hosts, None)
        if host is None:  # all have been used
            self.renew()
            self._hosts = iter(_HOSTS)
            host = next(self._hosts)
        self.host = host

    def wait_for_queue(self, queue: str) -> None:
        """Wait until a new quorum queue is on disk, which is up to a second after it was declared: a server that is
        killed earlier knows the queue afterwards and never runs it. On disk may also be one of the same name that was
        deleted before: ask for `new_rabbit`, or take a name that is used once."""
        name = f"{self.host.replace('/', '%2F')}_{queue}".encode()
        end = time.monotonic() + START_S
        while not any(name in path.read_bytes() for path in self.folder.glob("rabbitmq/data/**/names.dets")):
            assert time.monotonic() < end, f"{queue} is not on disk"
            time.sleep(PIECE_S)

    def freeze(self) -> None:
        """Let it hang: connections stay, and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def log(self) -> str:
        """Return the end of what it has printed."""
        return self._children[-1].command.log.read_text(errors="replace")[-8000:]

    def _signal(self, number: int) -> None:
        assert self.pid, "it does not run"
        os.kill(self.pid, number)


@contextmanager
def running() -> Iterator[RabbitServer]:
    """A server that runs meanwhile. Without its programs the test is skipped; on a build machine it fails."""
    with server_folder() as folder:
        with or_skipped():
            server = RabbitServer(folder)
        try:
            yield server
        finally:
            server.end()


def _definitions(url: str) -> dict[str, Any]:
    """What the server has from its start: the user of the URL, and the virtual hosts."""
    place = urlsplit(url)
    assert place.password
    salt = os.urandom(4)
    password = base64.b64encode(salt + hashlib.sha256(salt + place.password.encode()).digest()).decode()
    return {
        "users": [
            {
                "name": place.username,
                "password_hash": password,
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": ["administrator"],
            }
        ],
        "vhosts": [{"name": host} for host in _HOSTS],
        "permissions": [{"user": place.username, "vhost": host, **_ALL} for host in _HOSTS],
    }
