"""What one paid call of each step costs, for the spend record and the daily cap.

The settings (PRICES) give a price; where they do not, retake.vendors.prices does. A mode or model without a known price
counts as the most expensive one of its kind, times PRICES.unknown_factor. A video is booked with the duration that is
ordered, which is one that its model offers, not the one in the settings.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from retake.story.documents import Step
from retake.story.settings import Settings
from retake.vendors.prices import CHAT_USD, IMAGINE_USD, RUNWAY_SECOND_USD, UPSCALE_USD, guess
from retake.vendors.runway_limits import fit_duration


class _Unit(NamedTuple):
    """What is charged for, and where its price comes from."""

    setting: str  # the key below PRICES
    own: float | None  # the price given there
    known: Mapping[str, float]
    name: str  # of the mode or model in use
    named_in: str  # the settings key that names it

    def usd(self, factor: float) -> float:
        price = self._price()
        return guess(self.known, factor) if price is None else price

    @property
    def guessed(self) -> bool:
        return self._price() is None

    def _price(self) -> float | None:
        return self.known.get(self.name) if self.own is None else self.own


def prices(settings: Settings) -> dict[Step, float]:
    """Return the price of one paid call in US dollars, for each step that pays."""
    factor, video = settings.prices.unknown_factor, settings.video
    usd = {step: unit.usd(factor) for step, unit in _units(settings).items()}
    seconds, _ = fit_duration(settings.runwayml.model_name, video.runway_duration)
    return {**usd, Step.RUNWAY: round(usd[Step.RUNWAY] * seconds, 6)}


def guessed(settings: Settings) -> Iterator[str]:
    """Yield a warning for each price that is a guess."""
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
