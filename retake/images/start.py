"""The services that a process of the image-job service uses, and their check at the start (docs/images.md,
"Operate")."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from logging import getLogger
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError, ResponseError

from retake.attempts import countdown
from retake.bucket import Bucket, open_configured
from retake.clock import Clock, SystemClock
from retake.errors import RetakeError, SettingsError, StorageError, in_words
from retake.exit_codes import ExitCode, most_severe
from retake.images.messages import TOPOLOGY
from retake.images.objects import FOLDER
from retake.images.redis_calls import RedisAway, open_redis, refusal
from retake.images.redis_clock import RedisClock
from retake.images.rows import TableAway
from retake.images.settings import ImagesSettings, load_images_settings
from retake.images.store import JobStore
from retake.logs import mask
from retake.rabbit.broker import Broker, BrokerAway, BrokerRefused
from retake.serving.environment import load_environment

if TYPE_CHECKING:
    from retake.images.table import JobTable

SERVICES: dict[type[RetakeError], str] = {
    RedisAway: "Redis",
    BrokerAway: "RabbitMQ",
    TableAway: "PostgreSQL",
    StorageError: "the bucket",
}
"""The error of each service when it is unreachable, and its name."""

_POLL_S = 0.1  # between two checks for signals
_PAUSE_S = 0.5  # between two attempts to reach a service
_LAST_ANSWER_S = 8.0  # extra time for an attempt that began in time
_NO_EVICTION = "noeviction"  # the Redis policy that never drops jobs

_log = getLogger(__name__)


class ServicesAway(RetakeError):
    """A required service did not answer in time at the start. One line for each."""

    exit_code: int = ExitCode.TRY_LATER


class ImageServices(NamedTuple):
    """The services that a process uses."""

    settings: ImagesSettings
    store: JobStore
    bucket: Bucket
    broker: Broker
    table: "JobTable | None"

    def close(self) -> None:
        """Close all connections."""
        self.broker.close()
        if self.table is not None:
            self.table.close()
        self.store.client.close()


def open_services(
    settings: ImagesSettings, name: str, *, with_table: bool = False, clock: Clock | None = None
) -> ImageServices:
    """Return the services of the process `name`. Only RabbitMQ is connected right away, in the background.

    Their passwords are masked in logs from now on. Raises SettingsError.
    """
    clock, places = clock or SystemClock(), settings.places
    redis = open_redis(places.redis)
    store, table = JobStore(redis, RedisClock(redis, clock)), None
    mask([*places.passwords(), *(key for _, key in settings.keys)])
    if with_table and places.database:
        from retake.images.table import JobTable  # loads SQLAlchemy, which a worker does not need

        table = JobTable(places.database, store.clock)
    services = ImageServices(
        settings=settings,
        store=store,
        bucket=open_configured(settings.storage, settings.workflow),
        broker=Broker(places.rabbitmq, TOPOLOGY, name=name),
        table=table,
    )
    services.broker.start()
    return services


@contextmanager
def services_of_operator(environ: Mapping[str, str], clock: Clock) -> Iterator[ImageServices]:
    """Yield the services of an operator's command, from `environ` and .env, and close them. Raises SettingsError."""
    settings = load_images_settings({**load_environment(), **environ}, ("REDIS_URL", "RABBITMQ_URL"))
    with closing(open_services(settings, "console", with_table=True, clock=clock)) as services:
        yield services


def service_of(error: RetakeError) -> type[RetakeError] | None:
    """Return the key of `SERVICES` that `error` belongs to; None if it is about none of them."""
    return next((kind for kind in SERVICES if isinstance(error, kind)), None)


def check_services(services: ImageServices, clock: Clock | None = None, *, look_only: bool = False) -> None:
    """Return once every service answers and jobs2 has its tables; log a warning about a Redis that may lose jobs.

    Each service is tried for IMAGES.start_seconds, all concurrently. With `look_only` tables are neither created nor
    migrated. Raises ServicesAway with a line for each missing service. Its exit code is that of wrong settings if one
    of them refuses the user, the password or the key.
    """
    seconds, place = services.settings.images.start_seconds, _place(services.settings.places.redis)
    patiently = partial(_wait, clock or SystemClock(), seconds)
    checks: dict[str, Callable[[], None]] = {
        "Redis": lambda: patiently(lambda: _ask_redis(services.store, place)),
        "RabbitMQ": lambda: _ask_rabbitmq(services.broker, seconds),
        "bucket": lambda: patiently(lambda: _look_into(services.bucket)),
    }
    if (table := services.table) is not None:
        checks["PostgreSQL"] = lambda: patiently(lambda: table.prepare(look_only=look_only))
    missing = _failed(checks, seconds)
    if missing:
        away = ServicesAway("\n".join(in_words(error) for error in missing))
        away.exit_code = most_severe(error.exit_code for error in missing)
        raise away
    for warning in memory_warnings(services.store):
        _log.warning("%s", warning)


def check_unless_stopped(services: ImageServices, signals: Callable[[], int], *, look_only: bool = False) -> bool:
    """Do `check_services` and return True, or False as soon as `signals()`, the number of signals so far, is not 0."""
    failed: list[RetakeError] = []

    def check() -> None:
        try:
            check_services(services, look_only=look_only)
        except RetakeError as error:
            failed.append(error)

    thread = Thread(target=check, name="check", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_POLL_S)
        if signals():
            return False
    if failed:
        raise failed[0]
    return True


def memory_warnings(store: JobStore) -> list[str]:
    """Return the reasons why Redis may lose jobs, a sentence each; none if Redis does not report its settings."""
    try:
        info: dict[str, Any] = store.client.info("all")
    except RedisError:  # hosted ones may forbid it
        return []
    warnings = []
    if str(info.get("aof_enabled")) == "0":
        warnings.append(
            "Redis keeps no append-only file: when it is restarted, jobs are lost; set appendonly yes in its settings"
        )
    policy = str(info.get("maxmemory_policy", _NO_EVICTION))
    if policy != _NO_EVICTION:
        warnings.append(
            f"Redis removes keys when its memory is full (maxmemory-policy {policy}), jobs too; "
            f"set maxmemory-policy {_NO_EVICTION}"
        )
    return warnings


def _wait(clock: Clock, seconds: float, attempt: Callable[[], object]) -> None:
    """Repeat `attempt` until it succeeds, for up to `seconds`. Raises its last error, or at once one that waiting
    cannot fix."""
    left = countdown(seconds, clock)
    while True:
        try:
            attempt()
        except RetakeError as error:
            if left() <= 0 or error.exit_code != ExitCode.TRY_LATER:
                raise
            clock.sleep(_PAUSE_S)
        else:
            return


def _failed(checks: Mapping[str, Callable[[], None]], seconds: float) -> list[RetakeError]:
    """Run the checks concurrently and return the errors of those that failed, in order.

    A check that is still running long after its time has failed too: a bucket may retry for longer than this.
    """
    errors: dict[str, BaseException] = {}

    def run(name: str, check: Callable[[], None]) -> None:
        try:
            check()
        except BaseException as error:  # noqa: BLE001  raised below
            errors[name] = error

    threads = {
        name: Thread(target=run, args=(name, check), name=f"start {name}", daemon=True)
        for name, check in checks.items()
    }
    for thread in threads.values():
        thread.start()
    ends = time.monotonic() + seconds + _LAST_ANSWER_S
    for name, thread in threads.items():
        thread.join(max(0.0, ends - time.monotonic()))
        if thread.is_alive():
            errors[name] = ServicesAway(f"{name} did not answer within {seconds:g} s: check that it can be reached")
    for bug in errors.values():
        if not isinstance(bug, RetakeError):
            raise bug
    return [error for name in checks if isinstance(error := errors.get(name), RetakeError)]


def _ask_redis(store: JobStore, place: str) -> None:
    try:
        store.client.ping()
    except AuthenticationError:
        raise SettingsError(f"Redis at {place} refuses the user or the password: correct REDIS_URL") from None
    except BusyLoadingError:
        raise RedisAway(f"Redis at {place} is still reading its file: wait, or give it more memory") from None
    except ResponseError as error:
        raise RedisAway(f"Redis at {place} refuses: {refusal(error)}") from None
    except RedisError as error:
        raise RedisAway(
            f"Redis at {place} does not answer ({type(error).__name__}): start it, or correct REDIS_URL"
        ) from None


def _ask_rabbitmq(broker: Broker, seconds: float) -> None:
    try:
        broker.connect(max(seconds, 0.001))
    except BrokerRefused as error:
        raise SettingsError(f"{error}: correct RABBITMQ_URL") from None
    except BrokerAway as error:
        raise BrokerAway(f"{error}: start it, or correct RABBITMQ_URL") from None


def _look_into(bucket: Bucket) -> None:
    try:
        bucket.find(f"{FOLDER}start", ("",))
    except StorageError as error:
        named = type(error)(f"the bucket {bucket.url}: {error}")
        raise named from None


def _place(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or 6379}"
