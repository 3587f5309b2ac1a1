"""Worlds with paid calls, and ways to damage their records."""

import json
from collections.abc import Callable
from typing import Any

from damage import Site, busy_world
from story_world import World

from retake.bucket import ANY

BOOK = "caps/2026-01-01.json"
DOCUMENT = "config/config_midjourney.json"
FIRST = "20260101-0000"

Change = Callable[[dict[str, Any]], object]


def paid_world() -> World:
    """Return a busy world with one generation that failed after paying for pictures and one under way."""
    world = busy_world()
    world.vendors.plan("upscale", *["refused"] * 10)
    failed = len(world.ended)
    while len(world.ended) == failed:
        world.tick()
    world.vendors.plan("upscale", "refused")
    world.tick()
    return world


def letter(site: Site) -> str:
    """Return the generation whose dead letter has paid calls."""
    keys = [it.key for it in site.bucket.list("dead_letters/") if it.key.endswith("report.json")]
    return next(key.split("/")[1] for key in keys if read(site, key)["paid_calls"])


def read(site: Site, key: str) -> dict[str, Any]:
    return dict(json.loads(site.bucket.read(key)[0]))


def write(site: Site, key: str, value: object) -> None:
    site.bucket.write(key, value if isinstance(value, bytes) else json.dumps(value).encode(), ANY)


def change(site: Site, key: str, how: Change) -> None:
    document = read(site, key)
    how(document)
    write(site, key, document)


def changed(key: str, how: Change) -> Callable[[Site], None]:
    return lambda site: change(site, key, how)


def written(key: str, value: object) -> Callable[[Site], None]:
    return lambda site: write(site, key, value)


def deleted(key: str) -> Callable[[Site], None]:
    return lambda site: site.bucket.delete(key)
