"""How a script runs: by the manager, under the manager's lease, or by hand, under a lease of its own."""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping

from retake.clock import Clock, SystemClock
from retake.keys import Keys
from retake.logs import bind, setup_logging
from retake.story.settings import Settings
from retake.story.shell import (
    CHANNEL_VARIABLE,
    LEASE,
    LEASE_VARIABLE,
    StopSignal,
    guarded,
    is_terminal,
    open_storage,
    owner,
    part_of,
    pipeline_of,
    read_settings,
)
from retake.story.spending import Spending
from retake.story.stage import RealStudio, RealVendors, Stage
from retake.story.store import DocumentStore


def run_script(work: Callable[[Stage], None], channel: str | None = None) -> int:
    """Do a step's work with the world set up around it; returns the exit code. Messages go to the log. `channel` takes
    the place of the one that the environment names."""
    environ = {**os.environ, **({CHANNEL_VARIABLE: channel} if channel else {})}
    setup_logging(sys.stderr, human=is_terminal(), environ=environ)
    return guarded(lambda: _work(work, environ), alone=LEASE_VARIABLE not in environ)


def _work(work: Callable[[Stage], None], environ: Mapping[str, str]) -> int:
    handed = environ.get(LEASE_VARIABLE)
    settings, keys = read_settings(environ, warn=not handed)
    channel = environ.get(CHANNEL_VARIABLE)
    whole, clock = open_storage(settings), SystemClock()
    bucket, spending = part_of(whole, settings, channel), Spending(settings, whole, clock, pipeline_of(channel))
    lease = bucket.join(LEASE, handed) if handed else bucket.lease(LEASE, owner())
    stopping = StopSignal()
    life = Life(settings.workflow.script_timeout_seconds + 30 if handed else None)
    try:
        store = DocumentStore(bucket, settings.paths, lease, clock)
        store.read()
        stage = _stage(settings, keys, store, clock, stopping, life, spending)
        with bind(generation_id=stage.generation_id or None, channel=channel):
            try:
                work(stage)
            finally:
                if not handed:  # else the manager does it
                    spending.heal(store.documents.midjourney)
    finally:
        lease.release()
    return 0


def _stage(
    settings: Settings,
    keys: Keys,
    store: DocumentStore,
    clock: Clock,
    stopping: StopSignal,
    life: "Life",
    spending: Spending,
) -> Stage:
    return Stage(
        settings,
        store,
        RealVendors(settings, keys),
        RealStudio(settings),
        clock,
        stopping=lambda: stopping.count > 0,
        switch=life.end_after,
        spending=spending,
    )


class Life:
    """How long this process may live, by the kernel's timer.

    A script that outlives its manager has nobody to end it: the kernel does, a little after the manager would have. The
    lock that it inherited is then free.
    """

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self.end_after(0)

    def end_after(self, seconds: float) -> None:
        """Not later than in so many seconds from now; 0: not before its time."""
        ends = [seconds] if seconds else []
        if self._end is not None:
            ends.append(max(0.001, self._end - time.monotonic()))
        signal.setitimer(signal.ITIMER_REAL, min(ends, default=0))
