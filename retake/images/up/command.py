"""`retake images up`: the whole service on this machine."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from retake.exit_codes import ExitCode
from retake.images.process import run_process
from retake.images.settings import EVERYBODY, ImagesSettings, load_images_settings
from retake.images.up.children import ChildCommand, Supervisor
from retake.images.up.folder import DataFolder, is_free
from retake.images.up.postgres_server import PostgresServer
from retake.images.up.programs import MissingProgram, Programs
from retake.images.up.rabbit_server import RabbitServer
from retake.images.up.redis_server import RedisServer
from retake.images.up.servers import LocalServer, exchange
from retake.logs import mask
from retake.output import write
from retake.ticking.process import StopSignal

USER = "demo"
"""The user for whom a key is made if IMAGES_KEYS is not set."""

SERVERS: tuple[type[LocalServer], ...] = (RedisServer, RabbitServer, PostgresServer)
SERVERS_S = 120.0
"""Seconds within which the servers must be ready."""

DRAIN_S = 20
"""Seconds that a worker may take to finish its job when the service stops."""

_POLL_S = 0.2


class UpOptions(NamedTuple):
    """The command-line options."""

    port: int = 8080
    data: Path = Path("images")
    text_workers: int = 1
    outfit_workers: int = 1


def up(options: UpOptions) -> int:
    """Run the service until a signal ends it; return the exit code."""
    return run_process("the image-job service", None, lambda environ: _up(options, environ))


def _up(options: UpOptions, environ: Mapping[str, str]) -> int:
    from retake.serving.server import PortTaken

    stopping = StopSignal()
    settings = load_images_settings(environ)
    folder = DataFolder(options.data)
    programs = Programs(environ)
    with folder.used():
        port = options.port or folder.port("api")
        if not is_free(port):
            raise PortTaken(f"port {port} of 127.0.0.1 is taken: end what listens there, or name another --port")
        machine = Machine(folder, settings, environ)
        machine.find_servers(programs)
        supervisor = Supervisor(time.monotonic, time.sleep)
        with ExitStack() as ending:
            ending.callback(supervisor.stop, lambda: stopping.count > 1)
            if machine.start(supervisor, options._replace(port=port), lambda: stopping.count > 0):
                _say(introduction(f"http://127.0.0.1:{port}", machine.user, machine.key, folder.path))
            while not stopping.count:
                supervisor.look()
                time.sleep(_POLL_S)
            _say("Stopping everything; press Ctrl-C again to kill it.")
    _say(f"Everything has stopped. The data are in {folder.path};\nthe same command continues from there.")
    return ExitCode.OK


class Machine:
    """The processes on this machine, and the environment through which they find each other."""

    def __init__(self, folder: DataFolder, settings: ImagesSettings, environ: Mapping[str, str]) -> None:
        self._folder, self._settings, self._environ = folder, settings, dict(environ)
        self._given = environ
        self._servers: list[LocalServer] = []
        self.key: str | None = None  # of USER, if one was made
        named = [user for user, _ in settings.keys if user != EVERYBODY]
        self.user = named[0] if named else USER

    def find_servers(self, programs: Programs) -> None:
        """Find the programs of the servers whose URL is not set. Raises MissingProgram, which names all missing
        packages."""
        missing: list[str] = []
        for kind in SERVERS:
            if self._is_set(kind.variable):
                continue
            try:
                self._servers.append(kind(self._folder, programs, self._environ))
            except MissingProgram as error:
                missing += error.packages
        if missing:
            raise MissingProgram(missing)

    def start(self, supervisor: Supervisor, options: UpOptions, stopping: Callable[[], bool]) -> bool:
        """Start everything in order; return whether it is ready, or False if `stopping` said so first."""
        for server in self._servers:
            server.prepare()
            self._environ[server.variable] = server.url
        commands = [command for server in self._servers for command in server.commands()]
        first = [command for command in commands if command.name == "epmd"]  # is stopped last
        others = [command for command in commands if command not in first] + self._comfyui()
        self._add_bucket_and_keys()
        self._folder.export({name: it for name, it in self._environ.items() if self._given.get(name) != it})
        mask(secret for secret in (self.key, *self._passwords()) if secret)
        _say(f"Starting {', '.join(command.name for command in [*first, *others])} …")
        for stage in (first, others):
            if not supervisor.wait_until_ready(supervisor.start(stage), SERVERS_S, stopping):
                return False
        api, *workers = service = self._service(options)
        _say(f"Starting {', '.join(command.name for command in service)}.")
        started = supervisor.start([api, *workers])
        return supervisor.wait_until_ready(started[:1], self._settings.images.start_seconds + SERVERS_S, stopping)

    def _is_set(self, variable: str) -> bool:
        return bool(self._environ.get(variable, "").strip())

    def _passwords(self) -> list[str]:
        return [*self._settings.places.passwords(), *(self._folder.secret(server.name) for server in self._servers)]

    def _comfyui(self) -> list[ChildCommand]:
        """Return the stand-in for ComfyUI, unless a setting names a real one."""
        if self._settings.images.comfyui_urls or self._settings.images.comfyui_discovery_url:
            return []
        port = self._folder.port("comfyui")
        self._environ["RETAKE_COMFYUI_URLS"] = f"http://127.0.0.1:{port}"
        answers = _answers(port, "/system_stats")
        return [self._own("comfyui", answers, "-m", "retake.sandbox", "comfyui", "--port", str(port))]

    def _add_bucket_and_keys(self) -> None:
        if not self._is_set("IMAGES_STORAGE_URL"):
            self._environ["IMAGES_STORAGE_URL"] = f"file:{self._folder.path / 'bucket'}"
        if not self._is_set("IMAGES_KEYS"):
            self.key = self._folder.secret("key")
            self._environ["IMAGES_KEYS"] = f"{USER}={self.key}"

    def _service(self, options: UpOptions) -> list[ChildCommand]:
        api = ("images", "api", "--host", "127.0.0.1", "--port", str(options.port))
        commands = [self._own("api", _answers(options.port, "/health"), "-m", "retake", *api)]
        for queue, kind, workers in (
            ("TextQueue", "text", options.text_workers),
            ("OutfitQueue", "outfit", options.outfit_workers),
        ):
            for name in (f"{kind}-{number}" for number in range(1, workers + 1)):
                port = self._folder.port(f"worker-{name}")
                given = ("--queue", queue, "--name", name, "--host", "127.0.0.1", "--port", str(port))
                worker = ("images", "worker", *given, "--drain", str(DRAIN_S))
                commands.append(self._own(name, _answers(port, "/health"), "-m", "retake", *worker))
        return commands

    def _own(self, name: str, ready: Callable[[], bool], *arguments: str) -> ChildCommand:
        """Return a child that runs a Python module of ours."""
        return ChildCommand(
            name,
            (sys.executable, *arguments),
            self._folder.log(name),
            dict(self._environ),
            folder=Path.cwd(),  # where the settings are
            ready=ready,
            stop_seconds=DRAIN_S + 10,
        )


def _say(text: str) -> None:
    """Print to the operator. Raises NotWritten."""
    write(f"{text}\n", sys.stdout, "what the service says")


def _answers(port: int, path: str) -> Callable[[], bool]:
    question = f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode()
    return lambda: exchange(port, question, b" 200 ")


def introduction(url: str, user: str, key: str | None, folder: Path) -> str:
    """Return the text for newcomers: the URL of the service, the key, and how to make a picture.

    `key` is None if the keys are the caller's own, which are not shown.
    """
    return f"""
The image-job service is ready: {url} (/docs explains it).
The key of the user {user}: {key or "as in IMAGES_KEYS"}
The output of each part is in {folder / "logs"}

Order a picture, ask for it, and save it:

  url={url}
  key='Authorization: Bearer {key or "KEY"}'
  id=$(curl -s $url/jobsRedis -H "$key" -H 'Content-Type: application/json' \\
    -d '{{"userId": "{user}", "prompt": "a lighthouse at dawn"}}' | cut -d'"' -f4)
  sleep 3; curl -s "$url/jobResult?jobId=$id" -H "$key" | cut -c 1-200
  curl -s "$url/image/raw/jobs/$id/output.png" -H "$key" -o picture.png

See how it stands:

  (. {quote(str(folder / "environment"))}; {quote(os.path.relpath(sys.executable))} -m retake images status)

Ctrl-C stops everything.
"""
