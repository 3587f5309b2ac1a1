"""A PostgreSQL server for tests: on a free port, with its data in a temporary folder.

Its programs are found on the PATH, or where Debian puts them. It refuses to run as root, so tests run as root start it
as `postgres` or `nobody`.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from retake.images.up.folder import free_port

PROGRAMS = ("initdb", "pg_ctl", "postgres")
FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")
"""No test depends on what a power cut would do to it."""

MISSING = "PostgreSQL is missing (initdb, pg_ctl): sudo apt install postgresql"

_names = count(1)


class NoServer(Exception):
    """There is no PostgreSQL, or it did not start; the message says what to do."""


def programs(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder with the server's programs. RETAKE_POSTGRES names one; `none` simulates a machine without."""
    named = environ.get("RETAKE_POSTGRES", "")
    on_path = shutil.which("initdb", path=environ.get("PATH"))
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda it: [int(n) for n in it.parts[-2].split(".")])
    places = [Path(named)] if named else [*([Path(on_path).resolve().parent] if on_path else []), *reversed(debian)]
    for place in places:
        if all((place / name).exists() for name in PROGRAMS):
            return place
    raise NoServer(MISSING)


class Server:
    """A server with its data in `folder`, which can be killed and restarted. `base` is the URL of its databases,
    without a name."""

    def __init__(self, folder: str, *options: str) -> None:
        self._place, self._owner, self._folder, self._options = programs(), _owner(), folder, options
        self._data = Path(folder, "data")
        self._port = 0
        self.running = False
        if self._owner:
            os.chown(folder, self._owner.pw_uid, self._owner.pw_gid)
        given = ("-U", "retake", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        _run(self._owner, self._place / "initdb", "-D", self._data, *given)
        for _ in range(5):
            self._port = free_port()
            with suppress(NoServer):  # another process took the port
                self._start()
                return
        raise NoServer(f"PostgreSQL does not start: {self._log()}")

    @property
    def base(self) -> str:
        return f"postgresql://retake@127.0.0.1:{self._port}/"

    def start(self) -> None:
        """Start it again on the same port. What is left of a killed server may take a moment to disappear."""
        for _ in range(100):
            with suppress(NoServer):
                return self._start()
            time.sleep(0.1)
        raise NoServer(f"PostgreSQL does not start again: {self._log()}")

    def stop(self) -> None:
        """Stop the server in the mode `immediate`, as a failure of the machine would."""
        self.running = False
        self._ctl("-m", "immediate", "stop")

    def kill(self) -> None:
        """Kill the postmaster with SIGKILL; its children notice that by themselves, and may answer until then."""
        self.running = False
        os.kill(self._pid(), signal.SIGKILL)

    def kill_all(self) -> None:
        """Kill the postmaster, and return when none of its children answers any more."""
        pid = self._pid()
        os.kill(pid, signal.SIGSTOP)  # from now on it has no new children, and none disappears
        while _state(pid) not in "TZX":
            time.sleep(0.01)
        lists = Path(f"/proc/{pid}/task").glob("*/children")
        children = [int(pid) for path in lists for pid in path.read_text().split()]
        self.kill()
        for _ in range(600):
            if all(_state(pid) in "ZX" for pid in children):
                return
            time.sleep(0.1)
        raise NoServer(f"PostgreSQL's children live on without it: {children}")

    def _pid(self) -> int:
        return int(Path(self._data, "postmaster.pid").read_text().split()[0])

    def _start(self) -> None:
        settings = (f"port={self._port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={self._folder}")
        flags = " ".join(f"-c {setting}" for setting in (*settings, *self._options))
        self._ctl("-t", "60", "-l", Path(self._folder, "log"), "-o", flags, "start")
        self.running = True

    def _ctl(self, *arguments: object) -> None:
        _run(self._owner, self._place / "pg_ctl", "-D", self._data, "-w", *arguments)

    def _log(self) -> str:
        return Path(self._folder, "log").read_text()[-500:]


@contextmanager
def running(*options: str) -> Iterator[Server]:
    """Run a server, unless it is stopped meanwhile. Raises NoServer."""
    programs()
    with tempfile.TemporaryDirectory(prefix="retake-postgres-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        started = Server(folder, *options)
        try:
            yield started
        finally:
            if started.running:
                started.stop()


@contextmanager
def server(*options: str) -> Iterator[str]:
    """Run a server; yield the URL of its database `postgres`, without the name. Raises NoServer."""
    with running(*options) as started:
        yield started.base


def new_database(base: str) -> str:
    """Create an empty database; return its URL."""
    import psycopg

    name = f"runs_{os.getpid()}_{next(_names)}"
    with psycopg.connect(f"{base}postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} STRATEGY file_copy")
    return base + name


def empty(url: str) -> None:
    """Delete every row from the tables of `url`, if it has them."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DELETE FROM events")
        connection.execute("DELETE FROM task_runs")


def _state(pid: int) -> str:
    """Return the state of a process as a letter of proc(5); Z if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def _owner() -> pwd.struct_passwd | None:
    """Return the user that the server runs as; None for the user who runs the tests."""
    if os.geteuid() != 0:
        return None
    known = {user.pw_name: user for user in pwd.getpwall()}
    return known.get("postgres") or known["nobody"]


def _run(owner: pwd.struct_passwd | None, program: Path, *arguments: object) -> None:
    done = subprocess.run(
        [program, *map(str, arguments)],
        cwd="/",
        env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
        user=owner.pw_uid if owner else None,
        group=owner.pw_gid if owner else None,
        extra_groups=[] if owner else None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if program.name == "initdb" else subprocess.DEVNULL,
        stderr=subprocess.PIPE if program.name == "initdb" else subprocess.DEVNULL,
        check=False,
        timeout=120,
    )
    if done.returncode:
        said = (done.stderr or b"").decode(errors="replace")
        raise NoServer(f"{program.name} ended with {done.returncode}: {said[-500:]}")
