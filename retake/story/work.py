"""`retake work`: ticks of the story's channels, started by messages over RabbitMQ instead of by cron.

Each process announces every channel periodically, and runs a tick for each message that it receives. So any number of
processes, on any number of machines, share the channels. The lease still allows only one tick at a time in a channel.
"""

import os
import sys
from logging import getLogger
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import click

from retake import strict_json
from retake.bucket import Bucket, this_process
from retake.clock import SystemClock
from retake.errors import SettingsError
from retake.exit_codes import ExitCode
from retake.extras import require
from retake.logs import bind, mask, setup_logging
from retake.rabbit.topology import Binding, Exchange, Queue, Topology
from retake.serving.loop import Loop
from retake.story.command import LazyScripts, OneTick
from retake.story.runner import story_watch
from retake.story.settings import Settings, load_settings, open_storage, settings_and_keys
from retake.ticking.process import StopSignal, exit_code_of, is_terminal, leave

if TYPE_CHECKING:
    from retake.rabbit.broker import Broker, Delivery

EXCHANGE, QUEUE, KEY = "ChannelExchange", "ChannelQueue", "channel"
TOPOLOGY = Topology(
    (Exchange(EXCHANGE),), (Queue(QUEUE, {"x-queue-type": "quorum"}),), (Binding(EXCHANGE, QUEUE, KEY),)
)
VARIABLE = "RABBITMQ_URL"

_SIGNAL_POLL_S = 0.25  # between checks for a signal, while no tick runs
_RETRY_PAUSE_S = 5.0  # before channels are announced again after RabbitMQ was unreachable

_log = getLogger(__name__)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--every",
    type=click.IntRange(1, 86400),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="How often each channel is announced.",
)
@click.option("--name", metavar="NAME", help="What RabbitMQ and the log call this process [host:pid].")
@click.pass_obj
def main(folder: str | None, /, every: int, name: str | None) -> None:
    """Tick the channels again and again, shared with every other process that runs this command.

    Each process announces every one of the CHANNELS by a message to RabbitMQ every so many seconds, and for each
    message that it receives it runs one tick of that channel, as cron would. Start it on as many machines as you like,
    in the place of the schedule or beside it: the lease guards each channel. Where there are no CHANNELS, it is about
    the one pipeline. RABBITMQ_URL names the server (amqp://USER:PASSWORD@HOST:PORT/VHOST), in the environment or in
    .env.

    It goes on while RabbitMQ is unreachable and whatever a tick ends with. SIGTERM and Ctrl-C end it after the tick.

    \b
    Exit codes:
        0   it was asked to end
        78  settings or RABBITMQ_URL are missing or wrong
        70  a bug
    """
    setup_logging(sys.stderr, human=is_terminal())
    leave(exit_code_of(lambda: _work(folder, every, name or this_process())))


def _work(folder: str | None, every_s: float, name: str) -> int:
    require("images", "retake work")
    from retake.rabbit.broker import Broker
    from retake.serving.environment import load_environment

    os.environ.update(load_environment())  # libraries look there for the keys of a bucket
    setup_logging(sys.stderr, human=is_terminal())
    url = os.environ.get(VARIABLE, "").strip()
    if not url:
        raise SettingsError(f"{VARIABLE} is not set: put the URL of RabbitMQ into the environment, or into .env")
    mask(_secrets(url))
    settings_and_keys(os.environ, warn=True)
    stopping, broker = StopSignal(), Broker(url, TOPOLOGY, name=name)
    announcing = Loop("announcing", lambda: announce(broker, every_s), error_pause_s=every_s)
    broker.start()
    announcing.start()
    try:
        with bind(worker=name):
            ChannelWorker(folder, stopping).work(broker)
    finally:
        announcing.stop()
        broker.close()
        announcing.join(_RETRY_PAUSE_S)
    return ExitCode.OK


def _secrets(url: str) -> list[str]:
    """Return the parts of the URL that must not appear in a log."""
    try:
        password = urlsplit(url).password or ""
    except ValueError:
        return [url]
    return [url, password, unquote(password)]


def announce(broker: "Broker", every_s: float) -> float:
    """Publish a message for each channel, which expires after `every_s`. Return in how many seconds to do so again.

    Raises SettingsError.
    """
    from retake.rabbit.broker import BrokerAway

    try:
        for channel in load_settings(os.environ).channels or ("",):
            broker.publish(EXCHANGE, KEY, strict_json.encode({"channel": channel}), expiration_s=every_s)
    except BrokerAway as error:  # the broker has already logged it, once
        _log.debug("%s", error)
        return min(every_s, _RETRY_PAUSE_S)
    return every_s


class ChannelWorker:
    """Runs one tick for each message. For `folder` see `retake.story.command.manage`."""

    def __init__(self, folder: str | None, stopping: StopSignal) -> None:
        self._folder, self._stopping = folder, stopping
        self._opened: tuple[Settings, Bucket] | None = None

    def work(self, broker: "Broker") -> None:
        """Take messages until a signal asks to stop. The tick under way then ends as one started by cron would."""
        consumer = broker.consume(QUEUE)
        try:
            while not self._stopping.count:
                delivery = consumer.take(_SIGNAL_POLL_S)
                if delivery is not None:
                    self.answer(delivery)
        finally:
            consumer.close()

    def answer(self, delivery: "Delivery") -> None:
        """Run the tick that a message asks for. The message is acknowledged in any case: the next one comes soon."""
        try:
            channel = _channel_in(delivery.body)
        except ValueError as error:
            _log.warning("a message in %s is dropped: %s", QUEUE, error)
        else:
            with bind(channel=channel):
                code = exit_code_of(lambda: self.tick(channel))
                _log.info("the tick ended with %d", code, extra={"exit_code": int(code)})
        delivery.ack()

    def tick(self, channel: str | None) -> int:
        """Run one tick of a channel (None: of the only pipeline), and return its exit code. Raises what ticks raise."""
        settings, keys = settings_and_keys(os.environ, warn=False)
        if channel not in (settings.channels or (None,)):
            _log.warning("a message in %s is dropped: there is no such channel in the settings here", QUEUE)
            return ExitCode.OK
        # No dead man's switch for the process: losing one of many leases ends only the work under that lease.
        bucket = self._bucket(settings)
        scripts = LazyScripts(self._folder, settings.workflow.script_timeout_seconds, os.environ, self._stopping)
        watch = story_watch(settings, bucket, SystemClock(), os.environ)
        tick = OneTick(settings, keys, bucket, channel, scripts.of(channel) if channel else scripts, watch)
        return tick.run().exit_code

    def _bucket(self, settings: Settings) -> Bucket:
        """Return the bucket, opened again if the settings have changed. Each tick reads them, like ticks of cron."""
        if self._opened is None or self._opened[0] != settings:
            self._opened = settings, open_storage(settings)
        return self._opened[1]


def _channel_in(body: bytes) -> str | None:
    """Return the channel that a message names, or None for the only pipeline. Raises ValueError."""
    try:
        found = strict_json.parse(body)
    except ValueError:
        raise ValueError("it is not JSON") from None
    match found:
        case {"channel": str(channel)}:
            return channel or None
    raise ValueError("it names no channel")
