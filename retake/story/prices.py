"""What a paid call costs, for the spend record and the daily cap.

The settings (PRICES) say it; where they are silent, the prices below, as they were last seen in the vendors' pages and
their users' documents. A mode or model that is not known counts as the dearest of its kind, times
PRICES.unknown_factor: a cap that errs is to err on the side of the purse. A video is booked with the length that is
ordered, which is one that its model makes, not the one that was asked for.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from retake.story.documents import Step
from retake.story.settings import Settings
from retake.vendors.runway_limits import fit_duration

CHAT_USD = {"gpt-4o": 0.01, "gpt-4o-mini": 0.002}  # a call of some 1,500 tokens
IMAGINE_USD = {
    "piapi": {"relax": 0.015, "fast": 0.045, "turbo": 0.10},
    "legnext": {"relax": 0.04, "fast": 0.08, "turbo": 0.16},
}
UPSCALE_USD = {
    "piapi": {"relax": 0.01, "fast": 0.01, "turbo": 0.02},
    "legnext": {"relax": 0.08, "fast": 0.08, "turbo": 0.08},
}
RUNWAY_SECOND_USD = {"gen4_turbo": 0.05, "gen4.5": 0.12}


class _Unit(NamedTuple):
    """What is charged for, and how its price is found."""

    setting: str  # of PRICES
    own: float | None  # the price that it gives
    known: Mapping[str, float]
    name: str  # of the mode or model in use
    named_in: str  # the setting that names it

    def usd(self, factor: float) -> float:
        if self.own is not None:
            return self.own
        return self.known.get(self.name, round(max(self.known.values()) * factor, 6))

    @property
    def guessed(self) -> bool:
        return self.own is None and self.name not in self.known


def prices(settings: Settings) -> dict[Step, float]:
    """US dollars of one paid call of each step that pays."""
    factor, video = settings.prices.unknown_factor, settings.video
    usd = {step: unit.usd(factor) for step, unit in _units(settings).items()}
    seconds, _ = fit_duration(settings.runwayml.model_name, video.runway_duration)
    return {**usd, Step.RUNWAY: round(usd[Step.RUNWAY] * seconds, 6)}


def guessed(settings: Settings) -> Iterator[str]:
    """Each price that is a guess, as a warning."""
    factor = settings.prices.unknown_factor
    for unit in _units(settings).values():
        if unit.guessed:
            yield (
                f"{unit.named_in}: the price of {unit.name} is not known; it counts as {unit.usd(factor):g} USD, "
                f"{factor:g} times the dearest that is. Say what it costs in PRICES.{unit.setting}"
            )


def _units(settings: Settings) -> dict[Step, _Unit]:
    own, seller, mode = settings.prices, settings.midjourney.provider, settings.midjourney.process_mode
    chat, film, named_in = settings.openai.model, settings.runwayml.model_name, "API_KEYS.midjourney.process_mode"
    return {
        Step.CONTENT: _Unit("content", own.content, CHAT_USD, chat, "API_KEYS.openai.model"),
        Step.IMAGINE: _Unit("imagine", own.imagine, IMAGINE_USD[seller], mode, named_in),
        Step.UPSCALE: _Unit("upscale", own.upscale, UPSCALE_USD[seller], mode, named_in),
        Step.RUNWAY: _Unit("runway_second", own.runway_second, RUNWAY_SECOND_USD, film, "API_KEYS.runwayml.model_name"),
    }
