"""The programs of the servers: on the PATH, or where Debian installs them."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from retake.errors import RetakeError
from retake.exit_codes import ExitCode

PACKAGES = {"redis": "redis-server", "rabbitmq": "rabbitmq-server", "postgres": "postgresql"}
"""The Debian package of each server."""


class MissingProgram(RetakeError):
    """Servers are not installed. `packages` are their Debian packages."""

    exit_code = ExitCode.UNAVAILABLE

    def __init__(self, packages: Iterable[str]) -> None:
        self.packages = tuple(packages)
        missing = " ".join(self.packages)
        super().__init__(f"not installed: {', '.join(self.packages)}; type: sudo apt install {missing}")


class Programs:
    """Finds programs on the PATH of `environ`, or below `root` where Debian installs them."""

    def __init__(self, environ: Mapping[str, str], root: Path = Path("/")) -> None:
        self._path, self._root = environ.get("PATH", ""), root

    def redis(self) -> Path:
        """Return redis-server. Raises MissingProgram, as the others do."""
        return self._found("redis", "redis-server", "usr/bin/redis-server")

    def rabbitmq(self) -> Path:
        """Return the script rabbitmq-server that becomes the server.

        Debian's script of that name on the PATH changes user and folders first, and refuses everybody except root.
        """
        own = self._debian("usr/lib/rabbitmq/bin/rabbitmq-server", "usr/lib/rabbitmq/lib/*/sbin/rabbitmq-server")
        found = own or shutil.which("rabbitmq-server", path=self._path)
        if not found:
            raise MissingProgram([PACKAGES["rabbitmq"]])
        return Path(found)

    def epmd(self) -> Path:
        """Return epmd, the name service of Erlang nodes."""
        return self._found("rabbitmq", "epmd", "usr/bin/epmd", "usr/lib/erlang/bin/epmd")

    def postgres(self, version: str | None = None) -> Path:
        """Return the folder with initdb and postgres, of this major version if it is installed, else the newest."""
        on_path = shutil.which("initdb", path=self._path)
        debian = sorted(self._root.glob("usr/lib/postgresql/*/bin"), key=_version, reverse=True)
        places = [*([Path(on_path).resolve().parent] if on_path else []), *debian]
        places.sort(key=lambda place: place.parent.name != version)
        for place in places:
            if (place / "initdb").exists() and (place / "postgres").exists():
                return place
        raise MissingProgram([PACKAGES["postgres"]])

    def _found(self, server: str, name: str, *debian: str) -> Path:
        found = shutil.which(name, path=self._path) or self._debian(*debian)
        if not found:
            raise MissingProgram([PACKAGES[server]])
        return Path(found)

    def _debian(self, *patterns: str) -> Path | None:
        return next((place for pattern in patterns for place in sorted(self._root.glob(pattern))), None)


def _version(place: Path) -> float:
    try:
        return float(place.parent.name)
    except ValueError:
        return 0
