"""A private Redis server, whose data survive SIGKILL and a power cut."""

from retake.images.up.children import ChildCommand
from retake.images.up.folder import make_folder, write_private
from retake.images.up.programs import Programs
from retake.images.up.servers import LocalServer, exchange

_CONFIGURATION = """\
bind 127.0.0.1
port {port}
requirepass {password}
appendonly yes
# An accepted job must survive: with everysec, Redis answers before it has written if an earlier fsync is in progress.
appendfsync always
save ""
maxmemory-policy noeviction
daemonize no
"""


class RedisServer(LocalServer):
    """Redis with its append-only file in FOLDER/redis. Other users of this machine do not know its password."""

    name = "redis"
    variable = "REDIS_URL"

    def _find(self, programs: Programs) -> None:
        self._program = programs.redis()

    @property
    def url(self) -> str:
        return f"redis://:{self._password}@127.0.0.1:{self.port}/0"

    def prepare(self) -> None:
        make_folder(self._place)
        text = _CONFIGURATION.format(port=self.port, password=self._password)
        write_private(self._place / "redis.conf", text.encode())

    def commands(self) -> list[ChildCommand]:
        command = (self._program, "redis.conf")
        log = self._folder.log(self.name)
        return [ChildCommand(self.name, command, log, self._environ, self._place, ready=self.ready)]

    def ready(self) -> bool:
        """Return whether it answers, which it does not while it loads its data."""
        return exchange(self.port, f"AUTH {self._password}\r\nPING\r\n".encode(), b"+PONG")
