"""Many pipelines in one tick: each channel lives below a prefix of its own, with its own state and its own lease.

Channels know nothing of one another, and neither do machines: several may run the same tick over one bucket, and each
takes the channels whose lease it finds free.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from logging import getLogger
from random import SystemRandom

from retake.exit_codes import ExitCode, most_severe

_log = getLogger(__name__)


def each(channels: tuple[str, ...], tick: Callable[[str], int], concurrency: int) -> dict[str, int]:
    """Return the exit code of each channel's tick, `concurrency` of them run at a time. They begin in random order, so
    that machines which start together meet at few of the leases."""
    order = SystemRandom().sample(channels, len(channels))
    with ThreadPoolExecutor(concurrency) as pool:
        return dict(zip(order, pool.map(tick, order), strict=True))


def worst(codes: Mapping[str, int]) -> int:
    """Return the most severe exit code; the log says which channels ended with it."""
    code = most_severe(codes.values())
    channels = sorted(channel for channel, found in codes.items() if found == code)
    if code != ExitCode.OK:
        _log.error("%d of %d channels ended with %d: %s", len(channels), len(codes), code, ", ".join(channels[:20]))
    return code
