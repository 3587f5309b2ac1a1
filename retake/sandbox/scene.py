"""What is settled about a landscape before the first stroke.

A scene is made of shares of its width and height, never of pixels: painted twice as large it is the same picture, with
finer edges.
"""

import random
from dataclasses import dataclass
from functools import cached_property

from retake.sandbox.palette import Mood, mood_of


@dataclass(frozen=True)
class Scene:
    """What is settled before the first stroke."""

    prompt: str
    seed: str
    size: tuple[int, int]

    def luck(self, part: str) -> random.Random:
        """Chance for one part of the picture, so that the parts do not depend on each other."""
        return random.Random(f"{self.prompt}/{self.seed}/{part}")  # noqa: S311 – art, not secrets

    @cached_property
    def mood(self) -> Mood:
        # The words alone settle the hour and the place, so that the four variants are variants of one thing.
        return mood_of(self.prompt, random.Random(self.prompt), self.luck("mood"))  # noqa: S311 – art, not secrets

    @cached_property
    def horizon(self) -> float:
        """Where sky and ground meet, as a share of the height."""
        return self.luck("horizon").uniform(0.56, 0.64)

    @cached_property
    def sun(self) -> tuple[float, float, float]:
        """Centre and radius of sun or moon, as shares of the size (the radius: of the short side)."""
        luck = self.luck("sun")
        high = (
            luck.uniform(0.14, 0.34) if self.mood.palette.moon or self.mood.hour == "day" else luck.uniform(0.34, 0.5)
        )
        return luck.choice((luck.uniform(0.2, 0.4), luck.uniform(0.6, 0.8))), high, luck.uniform(0.035, 0.055)

    @property
    def water(self) -> bool:
        """Whether the ground before the horizon is water."""
        return self.mood.place in ("sea", "lake")

    @property
    def unit(self) -> float:
        """A thousandth of the picture's long side, in pixels: what blurs and strokes are measured in."""
        return max(self.size) / 1000
