"""How a script runs: by a tick, under the tick's lease, or by hand, under a lease of its own."""

import os
import sys
from collections.abc import Callable, Mapping

from retake.clock import SystemClock
from retake.exit_codes import ExitCode
from retake.logs import bind, setup_logging
from retake.story.clients import LocalMedia, RealVendors
from retake.story.environment import CHANNEL_VARIABLE, LEASE, open_storage, part_of, pipeline_of, read_settings
from retake.story.spending import known, story_spending
from retake.story.step_context import StepContext
from retake.story.store import DocumentStore
from retake.ticking.process import LEASE_VARIABLE, KillTimer, Process, StopSignal, exit_code_of, is_terminal, owner

_GRACE_S = 30.0  # after the tick would have killed the script


def run_script(work: Callable[[StepContext], None], channel: str | None = None) -> int:
    """Do a step's work with the world set up around it; return the exit code. Messages go to the log. `channel` takes
    the place of the one that the environment names."""
    environ = {**os.environ, **({CHANNEL_VARIABLE: channel} if channel else {})}
    setup_logging(sys.stderr, human=is_terminal(), environ=environ)
    return exit_code_of(lambda: _work(work, environ), part_of_a_run=LEASE_VARIABLE in environ)


def _work(work: Callable[[StepContext], None], environ: Mapping[str, str]) -> int:
    handed = environ.get(LEASE_VARIABLE)
    settings, keys = read_settings(environ, warn=not handed)
    channel = environ.get(CHANNEL_VARIABLE)
    whole, clock = open_storage(settings), SystemClock()
    bucket, spending = part_of(whole, settings, channel), story_spending(settings, whole, clock, pipeline_of(channel))
    lease = bucket.join(LEASE, handed) if handed else bucket.lease(LEASE, owner())
    stop, timer = StopSignal(), KillTimer(settings.workflow.script_timeout_seconds + _GRACE_S if handed else None)
    process = Process(clock, stopping=lambda: stop.count > 0, kill_after=timer.kill_after)
    try:
        store = DocumentStore(bucket, settings.paths, lease, clock)
        store.read()
        vendors, media = RealVendors(settings, keys), LocalMedia(settings)
        context = StepContext(settings, store, vendors, media, clock, process=process, spending=spending)
        with bind(generation_id=context.generation_id or None, channel=channel):
            try:
                work(context)
            finally:
                if not handed:  # else the tick does it
                    spending.heal(known(store.documents.midjourney))
    finally:
        lease.release()
    return ExitCode.OK
