"""A Redis of one's own, whose data survive SIGKILL and a power cut."""

from collections.abc import Mapping
from pathlib import Path

from retake.images.up.children import ChildCommand
from retake.images.up.folder import DataFolder, make_folder, write_private
from retake.images.up.programs import Programs
from retake.images.up.servers import exchange, server_environment

_CONFIGURATION = """\
bind 127.0.0.1
port {port}
requirepass {password}
appendonly yes
# An accepted job must survive: with everysec, Redis answers before it has written while an earlier fsync is under way.
appendfsync always
save ""
maxmemory-policy noeviction
daemonize no
"""


class RedisServer:
    """Redis with its append-only file in FOLDER/redis. Other users of this machine lack its password."""

    name = "redis"
    variable = "REDIS_URL"

    def __init__(self, folder: DataFolder, programs: Programs, environ: Mapping[str, str]) -> None:
        """Raises MissingProgram."""
        self._folder, self._environ = folder, server_environment(environ)
        self._program = programs.redis()
        self._place = folder.path / self.name

    @property
    def port(self) -> int:
        return self._folder.port(self.name)

    @property
    def url(self) -> str:
        return f"redis://:{self._password}@127.0.0.1:{self.port}/0"

    def prepare(self) -> None:
        make_folder(self._place)
        text = _CONFIGURATION.format(port=self.port, password=self._password)
        write_private(self._place / "redis.conf", text.encode())

    def commands(self) -> list[ChildCommand]:
        command: tuple[str | Path, ...] = (self._program, "redis.conf")
        log = self._folder.log(self.name)
        return [ChildCommand(self.name, command, log, self._environ, self._place, ready=self.ready)]

    def ready(self) -> bool:
        """Return whether it answers; while it loads its data it does not."""
        return exchange(self.port, f"AUTH {self._password}\r\nPING\r\n".encode(), b"+PONG")

    @property
    def _password(self) -> str:
        return self._folder.secret(self.name)
