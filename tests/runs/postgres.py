"""A PostgreSQL server of the tests' own: on a free port, its data in a folder that is gone afterwards.

Its programs are found on the PATH, or where Debian puts them. It refuses to run as root, so root's tests run it as
«postgres», or as «nobody».
"""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path

PROGRAMS = ("initdb", "pg_ctl", "postgres")
FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")
"""What a power cut would do to it is nothing that tests look at."""

MISSING = "PostgreSQL is missing (initdb, pg_ctl): sudo apt install postgresql"

_names = count(1)


class NoServer(Exception):
    """There is no PostgreSQL, or it did not start; the message says what to do."""


def programs(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder with the server's programs. RETAKE_POSTGRES names one; «none» is a machine without."""
    named = environ.get("RETAKE_POSTGRES", "")
    on_path = shutil.which("initdb", path=environ.get("PATH"))
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda it: [int(n) for n in it.parts[-2].split(".")])
    places = [Path(named)] if named else [*([Path(on_path).resolve().parent] if on_path else []), *reversed(debian)]
    for place in places:
        if all((place / name).exists() for name in PROGRAMS):
            return place
    raise NoServer(MISSING)


@contextmanager
def server(*options: str) -> Iterator[str]:
    """A server that runs meanwhile: the URL of its database «postgres», without the name. Raises NoServer."""
    place, owner = programs(), _owner()
    with tempfile.TemporaryDirectory(prefix="retake-postgres-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        if owner:
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        data = Path(folder, "data")
        _run(
            owner, place / "initdb", "-D", data, "-U", "retake", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"
        )
        for _ in range(5):
            port = free_port()
            settings = (f"port={port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={folder}", *options)
            flags = " ".join(f"-c {setting}" for setting in settings)
            try:
                _run(
                    owner,
                    place / "pg_ctl",
                    "-D",
                    data,
                    "-w",
                    "-t",
                    "60",
                    "-l",
                    Path(folder, "log"),
                    "-o",
                    flags,
                    "start",
                )
                break
            except NoServer:  # somebody else took the port
                continue
        else:
            raise NoServer(f"PostgreSQL does not start: {Path(folder, 'log').read_text()[-500:]}")
        try:
            yield f"postgresql://retake@127.0.0.1:{port}/"
        finally:
            _run(owner, place / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")


def new_database(base: str) -> str:
    """The URL of a database that is new and empty."""
    import psycopg

    name = f"runs_{os.getpid()}_{next(_names)}"
    with psycopg.connect(f"{base}postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} STRATEGY file_copy")
    return base + name


def empty(url: str) -> None:
    """Take every row out of the tables of `url`, if it has them."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DELETE FROM events")
        connection.execute("DELETE FROM task_runs")


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _owner() -> pwd.struct_passwd | None:
    """Whom to run it as; None is whoever runs the tests."""
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
