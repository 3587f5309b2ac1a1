"""Many pipelines in one tick: each channel lives below a prefix of its own, with its own state and its own lease.

Channels do not know one another. Neither do machines: several may run the same tick over one bucket, and each works on
the channels whose lease it finds free.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from logging import getLogger
from random import SystemRandom

from retake.exit_codes import ExitCode, most_severe

_log = getLogger(__name__)


def each(channels: tuple[str, ...], tick: Callable[[str], int], concurrency: int) -> dict[str, int]:
    """Run a tick of each channel, `concurrency` at a time, and return their exit codes by channel.

    They begin in random order, so that machines that start together compete for few leases.
    """
    left = deque(SystemRandom().sample(channels, len(channels)))
    codes: dict[str, int] = {}

    def work() -> None:
        try:
            for channel in _taken(left):
                codes[channel] = tick(channel)
        finally:
            left.clear()  # if a tick raises, no other is begun

    with ThreadPoolExecutor(concurrency) as pool:  # a future for each of 10,000 channels would take 10 MB
        try:
            for worker in [pool.submit(work) for _ in range(min(concurrency, len(channels)))]:
                worker.result()
        finally:
            left.clear()
    return codes


def _taken(left: deque[str]) -> Iterator[str]:
    """Take channels from `left`, which other threads share, until none is left."""
    while True:
        try:
            yield left.popleft()
        except IndexError:
            return


def worst(codes: Mapping[str, int]) -> int:
    """Return the most severe exit code, and log which channels ended with it."""
    code = most_severe(codes.values())
    channels = sorted(channel for channel, found in codes.items() if found == code)
    if code != ExitCode.OK:
        _log.error("%d of %d channels ended with %d: %s", len(channels), len(codes), code, ", ".join(channels[:20]))
    return code
