"""One worker as a process: job execution, checks of ComfyUI servers, heartbeats, and its HTTP API."""

import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from logging import getLogger
from random import SystemRandom
from threading import Thread

from retake.errors import RetakeError, SettingsError, in_words
from retake.exit_codes import ExitCode
from retake.images.comfyui_servers import ComfyServers
from retake.images.execution import ExecutionContext
from retake.images.graphs import Graphs, load_graphs
from retake.images.presence import Presence, WorkerPresence
from retake.images.settings import load_images_settings
from retake.images.start import ImageServices, check_unless_stopped, open_services
from retake.images.worker import QueueWorker
from retake.images.worker_api import worker_app
from retake.images.worker_command import WorkerOptions
from retake.serving.loop import Loop
from retake.serving.server import ApiServer, address_of, announce, listen

STOP_S = 15.0
"""Seconds after the drain within which a call in progress ends."""

_NEEDED = ("REDIS_URL", "RABBITMQ_URL", "IMAGES_STORAGE_URL")
_POLL_S = 0.2

_log = getLogger(__name__)


def run_worker(options: WorkerOptions, environ: Mapping[str, str], *, signals: Callable[[], int]) -> int:
    """Work until a signal arrives, and return the exit code.

    `signals` returns the number of signals so far. Prints "Listening on URL" to stdout once requests are served. Raises
    ServicesAway, PortTaken, SettingsError.
    """
    settings, graphs = load_images_settings(environ, _NEEDED), load_graphs()
    for warning in settings.warnings:
        _log.warning("%s", warning)
    if not settings.images.comfyui_urls and not settings.images.comfyui_discovery_url:
        raise SettingsError(
            "no ComfyUI server is named: set IMAGES.comfyui_urls, IMAGES.comfyui_discovery_url or RETAKE_COMFYUI_URLS"
        )
    with closing(open_services(settings, f"worker {options.name}")) as services:
        if not check_unless_stopped(services, signals):
            return ExitCode.OK
        with listen(options.host, options.port) as listener:
            return WorkerProcess(options, services, graphs).serve(listener, signals)


class WorkerProcess:
    """The parts of a worker's process."""

    def __init__(self, options: WorkerOptions, services: ImageServices, graphs: Graphs) -> None:
        self._options, self._services, self._images = options, services, services.settings.images
        self._servers = ComfyServers(self._images.comfyui_urls, self._images.comfyui_discovery_url)
        context = ExecutionContext(options.name, self._images, services.bucket, self._servers, graphs, SystemRandom())
        self._worker = QueueWorker(context, services.store, services.broker, options.queue)
        self._presence, self._since, self._address = Presence(services.store), services.store.now(), ""
        self._failed = False

    def serve(self, listener: socket.socket, signals: Callable[[], int]) -> int:
        """Work and answer requests until a signal arrives; return the exit code."""
        url = address_of(listener, self._options.host)
        self._address = url.removeprefix("http://")
        loops = [Loop("comfyui servers", self._check), Loop("presence", self._tell)]
        app = worker_app(self._services.settings, self._services.store, self._worker)
        server = ApiServer(
            app,
            listener,
            signals=lambda: signals() or int(self._failed),
            on_start=partial(announce, f"Listening on {url}", sys.stdout),
            on_stop=lambda: self._worker.stop(self._options.drain),
        )
        thread = Thread(target=self._work, name="worker", daemon=True)
        for loop in loops:
            loop.start()
        thread.start()
        try:
            server.serve_until_stopped()
        finally:
            self._worker.stop(self._options.drain)
            self._wait(thread, signals)
            for loop in loops:
                loop.stop()
            self._forget()
        return ExitCode.BUG if self._failed else ExitCode.OK

    def _work(self) -> None:
        try:
            self._worker.run()
        except Exception:  # noqa: BLE001  the process ends, and its supervisor starts another one
            _log.exception("this is a bug in Retake: the worker ends")
            self._failed = True

    def _wait(self, thread: Thread, signals: Callable[[], int]) -> None:
        """Wait until the worker has ended. After a second signal it gives its job back at once."""
        until = time.monotonic() + self._options.drain + STOP_S
        while thread.is_alive() and time.monotonic() < until:
            if signals() > 1:
                self._worker.halt()
                until = min(until, time.monotonic() + STOP_S)
            thread.join(_POLL_S)

    def _check(self) -> float:
        self._servers.check()
        return self._images.comfyui_check_seconds

    def _tell(self) -> float:
        """Send a heartbeat to Redis, with the state of this worker."""
        state = self._worker.state()
        presence = WorkerPresence(
            name=self._options.name,
            queue=self._options.queue,
            address=self._address,
            consuming=state.consuming,
            job=state.job or "",
            since=self._since,
            comfyui=tuple(state.comfyui),
            waits=state.waits or "",
        )
        try:
            self._presence.tell(presence, self._images.worker_silence_seconds)
        except RetakeError as error:
            _log.debug("%s", in_words(error))
        return self._images.worker_silence_seconds / 3

    def _forget(self) -> None:
        try:
            self._presence.forget(self._options.name)
        except RetakeError as error:
            _log.debug("%s", in_words(error))
