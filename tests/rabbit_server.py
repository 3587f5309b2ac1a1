"""The RabbitMQ of `images up`, shared by all tests of a process (fixture `shared_rabbit`) because starting it costs
five seconds of CPU. It also speaks TLS, on a second port. It can be frozen, stopped, killed and restarted on the same
data.

Each test gets a fresh virtual host; a few are created when the server starts.
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
    """The port on which the server speaks TLS, and the certificate to trust for 127.0.0.1."""

    port: int
    certificate: Path


class RabbitServer(RunningServer):
    """A RabbitMQ server with its data in `folder`."""

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
        """The URL of the virtual host in use."""
        return self.root_url + self.host.removeprefix("/")

    def begin_anew(self) -> None:
        """Continue on an empty virtual host, with no name that was ever used on disk."""
        self.start()
        host = next(self._hosts, None)
        if host is None:  # all have been used
            self.renew()
            self._hosts = iter(_HOSTS)
            host = next(self._hosts)
        self.host = host

    def wait_for_queue(self, queue: str) -> None:
        """Wait until a new quorum queue is on disk, which takes up to a second after its declaration.

        A server killed before that still knows the queue after its restart but never runs it. A deleted queue of the
        same name may be on disk, too: use `new_rabbit`, or a name that is used once.
        """
        name = f"{self.host.replace('/', '%2F')}_{queue}".encode()
        end = time.monotonic() + START_S
        while not any(name in path.read_bytes() for path in self.folder.glob("rabbitmq/data/**/names.dets")):
            assert time.monotonic() < end, f"{queue} is not on disk"
            time.sleep(PIECE_S)

    def freeze(self) -> None:
        """Freeze the server: connections stay open, and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def log(self) -> str:
        """Return the end of the server's log."""
        return self._children[-1].command.log.read_text(errors="replace")[-8000:]

    def _signal(self, number: int) -> None:
        assert self.pid, "the server is not running"
        os.kill(self.pid, number)


@contextmanager
def running() -> Iterator[RabbitServer]:
    """Run a RabbitMQ server. If it is not installed, skip the test; on a build machine, fail."""
    with server_folder() as folder:
        with or_skipped():
            server = RabbitServer(folder)
        try:
            yield server
        finally:
            server.end()


def _definitions(url: str) -> dict[str, Any]:
    """Return the definitions that the server loads when it starts: the user in the URL and the virtual hosts."""
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
