"""The cost of an idle tick and of six durable steps, as whole processes, compared with other durable-work systems."""

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.images import running
from bench.pipelines import MANAGER, ROOT, environment, full
from bench.processes import cost
from bench.table import markdown

ROUNDS = 7
PROGRAMS = ROOT / "bench" / "peers"
PYTHON = ROOT / "build" / "peers" / "bin" / "python"
PEERS = {
    "huey": "Huey, SQLite",
    "luigi": "Luigi, files",
    "dbos": "DBOS, SQLite",
    "procrastinate": "procrastinate, PostgreSQL",
    "dramatiq": "Dramatiq, Redis",
}
Commands = Mapping[str, tuple[list[str], Mapping[str, str]]]


def peers_table(folder: Path) -> str:
    """Return the table, without the systems that are not installed or whose server is missing."""
    with ExitStack() as stack:
        commands = {**own_commands(folder), **(peer_commands(stack, folder) if installed() else {})}
        rounds = [{name: cost(*command, runs=1).cpu_s for name, command in commands.items()} for _ in range(ROUNDS)]
    title = (
        "Compared with other systems: CPU seconds of whole processes as a multiple of `python3 -c pass` in the same "
        "round. One process finds nothing to do; the other does six steps, and records the result of each before the "
        f"next begins. Interleaved, medians of {ROUNDS} rounds. CPU time of servers does not count."
    )
    systems = ["a tick of the story, directory", "Retake's worker, SQLite", *PEERS.values()]
    rows = [(name, multiple(rounds, name, "idle"), multiple(rounds, name, "steps")) for name in systems]
    return markdown(title, ("system", "idle tick × bare", "six steps × bare"), [row for row in rows if any(row[1:])])


def multiple(rounds: list[dict[str, float]], system: str, what: str) -> str:
    """Return the cost as a multiple of bare Python's, or "" if it was not measured."""
    if f"{system} {what}" not in rounds[0]:
        return ""
    return f"{statistics.median(spent[f'{system} {what}'] / spent['bare'] for spent in rounds):.1f}"


def own_commands(folder: Path) -> Commands:
    environ = environment(full(folder / "idle"))
    return {
        "bare": ([sys.executable, "-c", "pass"], environ),
        "a tick of the story, directory idle": ([sys.executable, MANAGER], environ),
        **program(sys.executable, "retake", "Retake's worker, SQLite", folder, environ),
    }


def program(python: str, name: str, system: str, folder: Path, environ: Mapping[str, str]) -> Commands:
    """Return a system's commands, each with a folder of its own."""
    commands = {}
    for what in ("idle", "steps"):
        place = folder / name / what
        place.mkdir(parents=True)
        commands[f"{system} {what}"] = ([python, str(PROGRAMS / f"with_{name}.py"), what, str(place)], environ)
    return commands


def installed() -> bool:
    if not PYTHON.exists():
        print("The other systems are not installed: make bench-peers", file=sys.stderr)
    return PYTHON.exists()


def peer_commands(stack: ExitStack, folder: Path) -> Commands:
    """Return the other systems' commands; their servers run until `stack` is closed."""
    commands: dict[str, tuple[list[str], Mapping[str, str]]] = {}
    for name, system in PEERS.items():
        environ = environment(folder)
        if name in SERVERS:
            try:
                environ |= stack.enter_context(SERVERS[name](folder))
            except Exception as error:  # noqa: BLE001  without this server, the other rows are still useful
                print(f"{system} is left out: {error}", file=sys.stderr)
                continue
        commands |= program(str(PYTHON), name, system, folder, environ)
    return commands


@contextmanager
def postgres(folder: Path) -> Iterator[Mapping[str, str]]:
    """Run a PostgreSQL with procrastinate's tables."""
    sys.path.append(str(ROOT / "tests"))
    from postgres import new_database, server

    with server() as base:
        found = {"DATABASE_URL": new_database(base)}
        schema = [str(PYTHON), str(PROGRAMS / "with_procrastinate.py"), "schema", str(folder)]
        subprocess.run(schema, env={**os.environ, **found}, check=True)
        yield found


@contextmanager
def redis(folder: Path) -> Iterator[Mapping[str, str]]:
    """Run a Redis like that of `images up`, which writes to disk before it answers."""
    from retake.images.up.folder import DataFolder
    from retake.images.up.programs import Programs
    from retake.images.up.redis_server import RedisServer

    with running(RedisServer(DataFolder(folder / "redis"), Programs(os.environ), os.environ)) as url:
        yield {"REDIS_URL": url}


SERVERS = {"procrastinate": postgres, "dramatiq": redis}
