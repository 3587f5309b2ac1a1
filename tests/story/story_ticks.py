"""Shared by tests of ticks: a world with scripted scripts, and documents to begin from."""

from collections import deque
from collections.abc import Callable
from typing import Any

from story_world import CONTENT, World

from retake.bucket import Lease
from retake.ticking.tick import ScriptResult

ID = "20260101-0000"
PUBLIC, GEN, DOCUMENT = "config/config_public.json", "config/config_gen.json", "config/config_midjourney.json"
ORDERED = "2026-01-01T00:00:00Z"
FOUR = {"image_url": "https://cdn/grid.png", "temporary_image_urls": ["1", "2", "3", "4"]}
PICTURES = {"task_id": "imagine-1", "task_type": "imagine", "task_result": FOUR}
UPSCALED = {"task_id": "upscale-1", "task_type": "upscale", "task_result": {"image_url": "https://cdn/full.png"}}
WHOLE = ("json", "png", "mp4")


class Scripted(World):
    """A world whose next scripts do what is planned, and end with the planned code."""

    def __init__(self, bucket: Any = None, **workflow: Any) -> None:
        super().__init__(bucket, **workflow)
        self.endings: deque[ScriptResult | Callable[[], ScriptResult]] = deque()
        self.runs: list[tuple[str, list[str]]] = []

    def run(self, script: str, arguments: list[str], lease: Lease) -> ScriptResult:
        self.runs.append((script, arguments))
        if not self.endings:
            return super().run(script, arguments, lease)
        ending = self.endings.popleft()
        return ending() if callable(ending) else ending


def at(
    files: str = "json",
    gen: dict[str, Any] | None = None,
    workflow: dict[str, Any] | None = None,
    pick: str = "first",
    **doc: Any,
) -> Scripted:
    """Return a generation under way with these files and this document."""
    world = Scripted(**(workflow or {}))
    world.settings = world.settings._replace(image=world.settings.image._replace(pick=pick))
    world.put(GEN, {"generation_id": ID, **(gen or {})})
    world.put(DOCUMENT, doc)
    for suffix in files.split():
        world.put(f"666/{ID}.{suffix}", CONTENT if suffix == "json" else f"the {suffix}".encode())
    return world


def group(world: World, folder: str, name: str) -> None:
    for suffix in WHOLE:
        world.put(f"{folder}/{name}.{suffix}", f"{name}.{suffix}".encode())


def fill(world: World) -> None:
    """Put a ready group in each folder, so there is no room for a generation."""
    for folder in ("444", "555", "666"):
        group(world, folder, folder)
