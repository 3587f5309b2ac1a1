"""Healthy buckets of a story that contain everything its examinations look at, and small real media."""

import json
from collections.abc import Callable
from io import BytesIO
from typing import Any

from damage import Site
from PIL import Image
from story_world import CONTENT, KEYS, World

from retake.bucket import ANY
from retake.console.command_context import CommandContext
from retake.operations.port import ItemOrder, Verb
from retake.story.documents import GROUP

PUBLIC, GEN, MIDJOURNEY = (f"config/config_{it}.json" for it in ("public", "gen", "midjourney"))
TOPICS = "config/topics.json"

ARCHIVED, READY, WAITING, FAILED, FAILED_LATE, PRESENT = (f"20260101-000{n}" for n in range(6))
"""The ids in `story_world`: in the archive, in 444/, in 555/, two dead letters, under way."""


def small_png() -> bytes:
    kept = BytesIO()
    Image.new("RGB", (8, 8), "teal").save(kept, "PNG")
    return kept.getvalue()


def box(name: bytes, content: bytes) -> bytes:
    return (len(content) + 8).to_bytes(4) + name + content


PNG = small_png()
MP4 = box(b"ftyp", b"isom") + box(b"moov", box(b"mvhd", b"0") + box(b"trak", b"1")) + box(b"mdat", b"pictures")
MEDIA = {"png": PNG, "mp4": MP4}


def content(name: str) -> dict[str, Any]:
    return {"generation_id": name, **CONTENT, "created_at": "2026-01-01T00:00:00Z"}


def group(name: str) -> dict[str, bytes]:
    """Return the files of a complete group, by suffix."""
    return {"json": json.dumps(content(name)).encode(), **MEDIA}


def edit(site: Site, key: str, **changes: Any) -> None:
    """Change keys of a document; None removes one."""
    document = {**json.loads(site.bucket.read(key)[0]), **changes}
    put(site, key, {name: value for name, value in document.items() if value is not None})


def put(site: Site, key: str, value: object) -> None:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    site.bucket.write(key, data, ANY)


def put_group(site: Site, folder: str, name: str, suffixes: tuple[str, ...] = GROUP) -> None:
    for suffix in suffixes:
        put(site, f"{folder}{name}.{suffix}", group(name)[suffix])


def story_world() -> World:
    """Return a world with a group in each folder, a letter of each kind, and a generation that waits for its video."""
    world = World(runway_polling_timeout=1.0)
    ends(world, 3)
    world.put(PUBLIC, {**world.json(PUBLIC), "generation_id": [ARCHIVED]})
    world.vendors.plan("write", "rejected")
    ends(world, 4)
    world.vendors.plan("create", "rejected")
    ends(world, 5)
    world.vendors.plan("poll", *["running"] * 999)
    until(world, lambda: world.doc.runway_task is not None)
    context = CommandContext({}, clock=world.clock, bucket=world.bucket, settings=world.settings, keys=KEYS)
    pipeline = context.operations.pipelines[0]
    plan = pipeline.plan(ItemOrder(Verb.ROLLBACK, PRESENT, step="upscale"))
    pipeline.carry_out(plan.order, plan.lost)
    until(world, lambda: world.doc.runway_task is not None)
    world.put("dead_letters/before-20251231-2359/config_midjourney.json", {"paid_calls": [], "content_draft": {"a": 1}})
    for key in world.keys_of():
        if (suffix := key.rpartition(".")[2]) in MEDIA:
            world.put(key, MEDIA[suffix])
    return world


def ends(world: World, number: int) -> None:
    until(world, lambda: len(world.ended) == number)


def until(world: World, reached: Callable[[], bool]) -> None:
    for _ in range(99):
        if reached():
            return
        world.tick()
    raise AssertionError("it never came so far")
