"""A private RabbitMQ server, which may run beside others on this machine."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from retake.images.up.children import ChildCommand
from retake.images.up.folder import make_folder, write_private
from retake.images.up.programs import Programs
from retake.images.up.servers import LocalServer, exchange

_NODE = "retake@localhost"
"""The node name is part of the names of its data files. It uses "localhost", since a container's host name may not
resolve."""

_USER = "retake"
_CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{port}
load_definitions = definitions.json
disk_free_limit.absolute = 50MB
vm_memory_high_watermark.absolute = 1GB
log.file = false
log.console = true
log.console.level = info
log.console.use_colors = off
"""

# Without "sbwt none" idle threads of the virtual machine spin.
_ERLANG = "+sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}"


class RabbitServer(LocalServer):
    """RabbitMQ with its data in FOLDER/rabbitmq, preceded by the epmd that it needs.

    Its virtual machine would otherwise start an epmd that outlives everything.
    """

    name = "rabbitmq"
    variable = "RABBITMQ_URL"

    def _find(self, programs: Programs) -> None:
        self._program, self._epmd = programs.rabbitmq(), programs.epmd()

    @property
    def url(self) -> str:
        return f"amqp://{_USER}:{self._password}@127.0.0.1:{self.port}/"

    def prepare(self) -> None:
        make_folder(self._place)
        for name in ("home", "data", "log"):
            make_folder(self._place / name)
        write_private(self._place / "rabbitmq.conf", _CONFIGURATION.format(port=self.port).encode())
        write_private(self._place / "definitions.json", json.dumps(self._definitions()).encode())
        write_private(self._place / "enabled_plugins", b"[].\n")
        self._write_cookie()

    def commands(self) -> list[ChildCommand]:
        epmd_port = str(self._folder.port("epmd"))
        epmd = (self._epmd, "-port", epmd_port, "-address", "127.0.0.1")
        log = self._folder.log
        return [
            ChildCommand(
                "epmd", epmd, log("epmd"), self._environ, ready=lambda: exchange(int(epmd_port), b"\0\1n", b"\0")
            ),
            ChildCommand(
                self.name,
                (self._program, "-noinput"),
                log(self.name),
                self._environ | self._variables(epmd_port),
                self._place,
                ready=self.ready,
                stop_seconds=30,
                repeat_seconds=1,  # Erlang drops a signal that arrives before it handles signals
            ),
        ]

    def ready(self) -> bool:
        """Return whether it speaks AMQP: it opens this listener last."""
        return exchange(self.port, b"AMQP\0\0\x09\1", b"\1\0\0")

    def _variables(self, epmd_port: str) -> dict[str, str]:
        place = self._place
        return {
            "HOME": str(place / "home"),  # has the Erlang cookie
            "RABBITMQ_ALLOW_INPUT": "1",  # with -noinput: the script becomes the server, and its pid is the server's
            "RABBITMQ_NODENAME": _NODE,
            "RABBITMQ_DIST_PORT": str(self._folder.port("rabbitmq-nodes")),
            "RABBITMQ_MNESIA_BASE": str(place / "data"),
            "RABBITMQ_LOG_BASE": str(place / "log"),
            "RABBITMQ_CONFIG_FILE": str(place / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(place / "enabled_plugins"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _ERLANG,
            "ERL_EPMD_PORT": epmd_port,
            "ERL_CRASH_DUMP_SECONDS": "0",
        }

    def _definitions(self) -> dict[str, Any]:
        """Return what each start creates unless it exists.

        Only the very first start heeds the settings default_user and default_pass: if it is killed before it has
        created the user, none is ever created.
        """
        every = {"configure": ".*", "write": ".*", "read": ".*"}
        return {
            "users": [{"name": _USER, "password": self._password, "tags": ["administrator"]}],
            "vhosts": [{"name": "/"}],
            "permissions": [{"user": _USER, "vhost": "/", **every}],
        }

    def _write_cookie(self) -> None:
        """Write the Erlang cookie; Erlang would create one with less randomness."""
        path = Path(self._place / "home/.erlang.cookie")
        write_private(path, self._folder.secret("erlang").encode())
        with suppress(OSError):
            path.chmod(0o400)
