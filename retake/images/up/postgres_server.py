"""A private PostgreSQL server."""

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from retake.errors import StorageError
from retake.images.up.children import ChildCommand, bound_by
from retake.images.up.folder import make_folder, write_private
from retake.images.up.programs import Programs
from retake.images.up.servers import LocalServer, unprivileged_user

_USER = "retake"
_INITDB_S = 120


class PostgresServer(LocalServer):
    """PostgreSQL with its data in FOLDER/postgres. It refuses to run as root, so root runs it as postgres or nobody.

    That user may not be able to reach the folder, for example in root's home. It inherits an open descriptor of the
    folder instead, and reaches it by the descriptor's path, which needs no permission on the parents.
    """

    name = "postgres"
    variable = "DATABASE_URL"

    def _find(self, programs: Programs) -> None:
        self._user = unprivileged_user()
        self._programs = programs.postgres(self._version())
        self._descriptor: int | None = None

    @property
    def url(self) -> str:
        return f"postgresql://{_USER}:{self._password}@127.0.0.1:{self.port}/postgres"

    def prepare(self) -> None:
        """Create its data, or check them. Raises StorageError if they cannot be created, are incomplete, or have a
        version that is not installed."""
        make_folder(self._place)
        if self._descriptor is None:
            self._descriptor = os.open(self._place, os.O_RDONLY | os.O_DIRECTORY)
        if self._user:
            os.fchown(self._descriptor, self._user.pw_uid, self._user.pw_gid)
        if version := self._version():
            self._check(version)
        elif (data := self._place / "data").exists() and (not data.is_dir() or any(data.iterdir())):
            raise StorageError(f"{data} is incomplete, PG_VERSION is missing: restore it, or remove it to start over")
        else:
            self._initialize()

    def commands(self) -> list[ChildCommand]:
        command = (
            *(self._programs / "postgres", "-D", self._seen("data"), "-p", str(self.port)),
            *("-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "logging_collector=off"),
        )
        return [
            ChildCommand(
                self.name,
                command,
                self._folder.log(self.name),
                self._environ,
                user=self._user,
                kept_files=() if self._descriptor is None else (self._descriptor,),
                before=self._forget_dead,
                ready=self.ready,
                stop_signal=signal.SIGINT,  # does not wait for its clients
            )
        ]

    def ready(self) -> bool:
        """Return whether it accepts connections, which it does once it has recovered."""
        import psycopg

        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _seen(self, name: str) -> str:
        """Return the path by which the server reaches a file in its folder."""
        return f"/proc/self/fd/{self._descriptor}/{name}"

    def _version(self) -> str | None:
        """Return the major version that created the data, or None if there are none yet."""
        try:
            return (self._place / "data/PG_VERSION").read_text("ascii").strip()
        except (OSError, ValueError):
            return None

    def _check(self, version: str) -> None:
        output = subprocess.run(
            [self._programs / "postgres", "--version"], capture_output=True, text=True, check=False, timeout=30
        ).stdout
        if not is_of(version, output):
            raise StorageError(
                f"{self._place} was made by PostgreSQL {version}, and this machine has {output.strip()}: "
                f"sudo apt install postgresql-{version}, or move the folder away"
            )

    def _initialize(self) -> None:
        """Create the data in a folder that gets its name last, so that an interrupted run is repeated."""
        draft, password = self._place / "data.new", self._place / "password"
        shutil.rmtree(draft, ignore_errors=True)
        write_private(password, self._password.encode())
        if self._user:
            os.chown(password, self._user.pw_uid, self._user.pw_gid)
        given = ("-U", _USER, "-A", "scram-sha-256", "--pwfile", self._seen("password"), "-E", "UTF8", "--locale=C")
        command = (str(self._programs / "initdb"), "-D", self._seen("data.new"), *given)
        failed = self._run(*bound_by(self._user), *command)
        password.unlink()
        if failed:
            raise StorageError(f"PostgreSQL's data cannot be made: see {self._folder.log(self.name)}")
        draft.rename(self._place / "data")

    def _run(self, *command: str) -> bool:
        """Run a command, with its output in the log; return whether it failed."""
        try:
            with open(self._folder.log(self.name), "ab") as output:
                subprocess.run(
                    command,
                    cwd="/",
                    env=self._environ,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # out of reach of Ctrl-C at the terminal
                    pass_fds=() if self._descriptor is None else (self._descriptor,),
                    check=True,
                    timeout=_INITDB_S,
                )
        except (OSError, subprocess.SubprocessError):
            return True
        return False

    def _forget_dead(self) -> None:
        """Remove the pid file of a killed server if its pid now belongs to another program or another server.

        PostgreSQL would mistake that program for itself. It notices on its own if no process has the pid. While
        anything of the killed server is left, it fails to start, and is restarted.
        """
        data = self._place / "data"
        with suppress(OSError, ValueError, IndexError):
            pid = int((data / "postmaster.pid").read_text("ascii").split()[0])
            named = Path(f"/proc/{pid}/comm").read_text().strip()
            # A server's working directory is the folder of its data.
            if named not in ("postgres", "postmaster") or Path(f"/proc/{pid}/cwd").readlink() != data.resolve():
                (data / "postmaster.pid").unlink()


def is_of(major: str, output: str) -> bool:
    """Return whether the output of `postgres --version` ("postgres (PostgreSQL) 15.16 (Debian 15.16-0+deb12u1)") names
    this major version, written as in the file PG_VERSION ("15", formerly "9.6")."""
    number = "".join(output.partition(")")[2].split()[:1])
    return f"{number}.".startswith(f"{major}.")
