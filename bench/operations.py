"""How many operations of each kind a tick makes on its bucket."""

import json
from collections import Counter
from pathlib import Path

from bench.pipelines import ROOT, full, waiting
from bench.table import markdown
from retake.bucket import Bucket, Lease
from retake.bucket.directory import DirectoryBucket
from retake.bucket.wrappers import CountingBucket
from retake.clock import SystemClock
from retake.sandbox import Pace, Sandbox
from retake.story.clients import LocalMedia, RealVendors
from retake.story.content import load_prompts
from retake.story.inprocess import InProcessScripts
from retake.story.runner import StoryRunner, story_watch
from retake.story.script import StepContext
from retake.story.settings import SANDBOX_KEYS, Settings, sandboxed
from retake.story.store import DocumentStore

KINDS = ("read", "list", "find", "write", "replace", "delete", "copy", "move", "mark")


def operations_table(folder: Path) -> str:
    with Sandbox(pace=Pace(0, 0, 0), quick=True) as sandbox:
        settings = sandboxed(Settings(), sandbox.url)
        settings = settings._replace(workflow=settings.workflow._replace(runway_polling_interval=0.01))
        waiting(folder / "busy", sandbox)
        count_operations(folder / "busy", settings)  # the first tick puts the generation on the ledger
        rows = {
            "idle tick": count_operations(full(folder / "idle"), settings),
            "whole generation in one tick": count_operations(folder / "new", settings),
            "busy tick (a task is polled)": count_operations(folder / "busy", settings),
        }
    title = "Operations on the bucket, by the manager and its script together."
    cells = [(name, *(str(counts[kind]) for kind in KINDS)) for name, counts in rows.items()]
    return markdown(title, ("tick", *KINDS), cells)


def count_operations(folder: Path, settings: Settings) -> Counter[str]:
    """Run one tick on the bucket in `folder`; return how many operations of each kind it made."""
    bucket = CountingBucket(DirectoryBucket(str(folder)))

    def context(lease: Lease) -> StepContext:
        return script_context(bucket, settings, lease)

    scripts = InProcessScripts(context, load_prompts(str(ROOT / "config" / "prompts.json")))
    manager = StoryRunner(settings, bucket, scripts, SANDBOX_KEYS, SystemClock(), owner="bench")
    tick = story_watch(settings, bucket, SystemClock(), {}).tick("story", manager)
    if tick.exit_code:
        raise RuntimeError(f"the tick failed: {json.dumps(tick)}")
    return bucket.counts


def script_context(bucket: Bucket, settings: Settings, lease: Lease) -> StepContext:
    """Return the context that a script would set up."""
    store = DocumentStore(bucket, settings.paths, lease, SystemClock())
    store.read()
    return StepContext(settings, store, RealVendors(settings, SANDBOX_KEYS), LocalMedia(settings), SystemClock())
