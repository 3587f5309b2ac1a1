"""The API as a process: routes, dispatcher and sweeper share the same services."""

import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from logging import getLogger
from typing import NamedTuple
from uuid import uuid4

from retake.bucket import this_process
from retake.clock import Clock
from retake.errors import StorageError
from retake.exit_codes import ExitCode
from retake.images.api import ApiParts, images_app
from retake.images.cleanup import CleanUp
from retake.images.dispatcher import Dispatcher
from retake.images.health import ServiceHealth
from retake.images.intake import JobIntake
from retake.images.redis_calls import RedisAway
from retake.images.results import JobResults
from retake.images.settings import ImagesSettings, load_images_settings
from retake.images.start import ImageServices, check_unless_stopped, open_services
from retake.images.sweeper import Sweeper
from retake.images.unfinished import Unfinished
from retake.images.uploads import Uploads
from retake.serving.bounded_calls import BoundedCalls
from retake.serving.server import ApiServer, address_of, announce, listen

NEEDED = ("REDIS_URL", "RABBITMQ_URL", "IMAGES_STORAGE_URL", "IMAGES_KEYS")
"""The environment variables that the API requires."""

FILE_S = 8.0
"""Seconds that a request waits for a call to the bucket: a response is due within ten."""

MAX_FILE_CALLS = 64
GRACE_S = 15
"""Seconds that requests in progress may take after a signal, longer than any waits for a service."""

_log = getLogger(__name__)


class ApiOptions(NamedTuple):
    """The command-line options."""

    host: str = "127.0.0.1"
    port: int = 8080
    check: bool = False


def api_parts(services: ImageServices, clock: Clock, sweep: Callable[[], None] | None = None) -> ApiParts:
    """Return what the routes use. `sweep` runs in each cycle; the default is that of a Sweeper."""
    settings = services.settings.images
    unfinished = Unfinished()
    files = BoundedCalls("the bucket", seconds=FILE_S, max_calls=MAX_FILE_CALLS)
    cleanup = CleanUp(services.store, services.bucket, services.table)
    uploads = Uploads(services.store, services.bucket, files, unfinished, settings.result_grace_seconds)
    sweep = sweep or Sweeper(services, cleanup, clock).sweep
    logged = ""

    def sweep_all() -> None:
        nonlocal logged
        sweep()
        trouble = ""
        try:
            uploads.sweep()
        except (RedisAway, StorageError) as error:
            trouble = str(error)
        if trouble and trouble != logged:  # logged once while it lasts
            _log.info("delivered uploads will be deleted later: %s", trouble)
        logged = trouble

    name = f"{this_process()}:{uuid4().hex}"
    dispatcher = Dispatcher(settings, services.store, name, unfinished=unfinished, sweep=sweep_all)
    return ApiParts(
        settings=services.settings,
        intake=JobIntake(services, files, unfinished),
        results=JobResults(services, files, cleanup, dispatcher, unfinished),
        uploads=uploads,
        dispatcher=dispatcher,
        health=ServiceHealth(services, dispatcher),
        table=services.table,
    )


def run_api(options: ApiOptions, environ: Mapping[str, str], *, signals: Callable[[], int]) -> int:
    """Serve until `signals()`, the number of signals so far, is not 0, and return the exit code.

    Prints "Listening on URL" to stdout once requests are served. Raises PortTaken, SettingsError, ServicesAway.
    """
    settings = load_images_settings(environ, NEEDED)
    for warning in settings.warnings:
        _log.warning("%s", warning)
    if options.check:
        return _checked(settings, signals)
    with (
        listen(options.host, options.port) as listener,
        closing(open_services(settings, "retake images api", with_table=True)) as services,
    ):
        if not check_unless_stopped(services, signals):
            return ExitCode.OK
        parts = api_parts(services, services.store.clock)
        on_start = partial(announce, f"Listening on {address_of(listener, options.host)}", sys.stdout)
        server = ApiServer(images_app(parts), listener, signals=signals, on_start=on_start, grace_s=GRACE_S)
        parts.dispatcher.start()
        try:
            server.serve_until_stopped()
        finally:
            parts.dispatcher.stop()
            parts.dispatcher.close()
    return ExitCode.OK


def _checked(settings: ImagesSettings, signals: Callable[[], int]) -> int:
    with closing(open_services(settings, "retake images api --check", with_table=True)) as services:
        if check_unless_stopped(services, signals, look_only=True):
            _log.info("Redis, RabbitMQ, the bucket%s: all is well", " and PostgreSQL" if services.table else "")
    return ExitCode.OK
