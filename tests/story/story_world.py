"""The world of the story's tests: `retake.testing.World`, whose documents and ledger must agree after every tick."""

from typing import Any

from story_runs import check_agreement

from retake.story.runner import StoryRunner
from retake.story.spending import story_spending
from retake.testing import World as BareWorld
from retake.testing.logs import CapturedLogs as Heard
from retake.testing.vendors import CONTENT, KEYS, PAID, PROMPTS, Died, FakeMedia, FakeVendors
from retake.ticking.tick import NO_ORDERS, Orders, Tick

__all__ = [
    "CONTENT",
    "KEYS",
    "PAID",
    "PROMPTS",
    "Channel",
    "Died",
    "FakeMedia",
    "FakeVendors",
    "Heard",
    "World",
    "busy_world",
]


class World(BareWorld):
    """A pipeline and everything that it touches."""

    def after_tick(self) -> None:
        check_agreement(self)


class Channel(World):
    """A pipeline in its own part of a shared bucket."""

    def __init__(self, name: str, shared: World, **workflow: Any) -> None:
        super().__init__(**workflow)
        self.name, self.shared = name, shared
        self.bucket, self.clock = shared.bucket.part(f"{name}/"), shared.clock  # type: ignore[assignment]
        self.spending = story_spending(self.settings, shared.bucket, shared.clock, f"story/{name}")

    def manager(self, **given: Any) -> StoryRunner:
        return super().manager(pipeline=f"story/{self.name}", whole=self.shared.bucket, **given)

    def tick(self, orders: Orders = NO_ORDERS) -> Tick:
        return self.manager().tick(orders)


def resting_world() -> World:
    """Return a world with generations that succeeded and were archived, one that failed for good, none under way."""
    world = World()
    while len(world.ended) < 2:
        world.tick()
    world.vendors.plan("write", "rejected")
    while len(world.ended) < 3:
        world.tick()
    return world


def busy_world() -> World:
    """Return a resting world with one more generation, which is under way."""
    world = resting_world()
    world.vendors.plan("upscale", "refused")
    world.tick()
    return world
