"""The number of durable operations and fsyncs of a generation on a directory, as the documentation states it."""

import json
import os
import re
from collections import Counter
from pathlib import Path

import pytest
from story_world import World

from bench.generations import generate
from retake.bucket.directory import DirectoryBucket
from retake.bucket.wrappers import CountingBucket
from retake.data import default_file
from retake.story.content import load_prompts
from retake.story.documents import GROUP

ROOT = Path(__file__).parents[2]
DURABLE = ("write", "replace", "copy", "delete", "move")
NEW, STEADY = "into an empty bucket", "one published, two moved up, one made"


def stated(page: str) -> dict[str, list[float]]:
    """Return the figures in the rows of these names, in the table of a page."""
    rows = re.findall(rf"^\| ({NEW}|{STEADY}) +\|(.+)\|$", (ROOT / page).read_text("utf-8"), re.MULTILINE)
    return {name: [float(cell) for cell in cells.split("|")] for name, cells in rows}


class Ticks(World):
    def after_tick(self) -> None:
        """Look at nothing, so that only the tick is counted."""


def made(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the durable operations and the fsyncs of a tick that makes a generation."""
    bucket, synced = CountingBucket(DirectoryBucket(str(root))), Counter[str]()
    world = Ticks(bucket=bucket)  # type: ignore[arg-type]
    world.prompts = load_prompts(default_file("config/prompts.json"))
    monkeypatch.setattr(os, "fsync", lambda file: synced.update(["fsync"]))
    assert world.tick().ended == "done"
    return [sum(bucket.counts[kind] for kind in DURABLE), synced["fsync"]]


def as_always(root: Path) -> Path:
    """Return a bucket in which a generation was made before: every folder holds a ready group, the last one
    published."""
    for folder in ("444", "555"):
        (root / folder).mkdir(parents=True)
        for suffix in GROUP:
            (root / folder / f"20250101-0{folder}.{suffix}").write_bytes(b"{}")
    publish(root, "20250101-0444")
    assert Ticks(bucket=DirectoryBucket(str(root))).tick().ended == "done"  # type: ignore[arg-type]
    publish(root, "20250101-0555")
    return root


def publish(root: Path, name: str) -> None:
    (root / "config").mkdir(exist_ok=True)
    path = root / "config/config_public.json"
    document = json.loads(path.read_bytes()) if path.exists() else {"processing_lock": False, "empty": []}
    path.write_text(json.dumps({**document, "generation_id": [name]}))


def test_the_figures_of_a_generation_are_those_that_the_documentation_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = {NEW: made(tmp_path / "new", monkeypatch), STEADY: made(as_always(tmp_path / "full"), monkeypatch)}
    assert counted == stated("docs/decisions/008-fewer-ordered-writes.md")


def test_the_figures_of_the_bench_have_two_more_into_an_empty_bucket(tmp_path: Path) -> None:
    """docs/performance.md: the first figures, in kpi/."""
    bucket = CountingBucket(DirectoryBucket(str(tmp_path)))
    generate(bucket)
    _, writes, *_ = stated("docs/performance.md")[NEW]
    assert sum(bucket.counts[kind] for kind in DURABLE) == writes
    assert len([*bucket.list("kpi/")]) == 2
    durable, _ = stated("docs/decisions/008-fewer-ordered-writes.md")[NEW]
    assert writes == durable + 2
