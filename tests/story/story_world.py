"""The world of the story's tests: `retake.testing.World`, whose documents and ledger must agree after every tick."""

from story_runs import check_agreement

from retake.testing import World as BareWorld
from retake.testing.logs import CapturedLogs as Heard
from retake.testing.vendors import CONTENT, KEYS, PAID, PROMPTS, Died, FakeMedia, FakeVendors

__all__ = ["CONTENT", "KEYS", "PAID", "PROMPTS", "Died", "FakeMedia", "FakeVendors", "Heard", "World"]


class World(BareWorld):
    """One pipeline and everything that it touches."""

    def after_tick(self) -> None:
        check_agreement(self)
