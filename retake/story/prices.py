"""What one paid call of each step costs, for the spend record and the daily cap.

The settings (PRICES) give a price; where they do not, retake.vendors.prices does. A mode or model without a known price
counts as the most expensive one of its kind, times PRICES.unknown_factor. A video is booked with the duration that is
ordered, which is one that its model offers, not the one in the settings.
"""

from collections.abc import Iterator

from retake.story.documents import Step
from retake.story.settings import Settings
from retake.vendors.prices import RUNWAY_SECOND_USD, UPSCALE_USD, PricedCall, chat_call, imagine_call
from retake.vendors.runway_limits import fit_duration


def prices(settings: Settings) -> dict[Step, float]:
    """Return the price of one paid call in US dollars, for each step that pays."""
    factor, video = settings.prices.unknown_factor, settings.video
    usd = {step: unit.usd(factor) for step, unit in _units(settings).items()}
    seconds, _ = fit_duration(settings.runwayml.model_name, video.runway_duration)
    return {**usd, Step.RUNWAY: round(usd[Step.RUNWAY] * seconds, 6)}


def guessed(settings: Settings) -> Iterator[str]:
    """Yield a warning for each price that is a guess."""
    for unit in _units(settings).values():
        if warning := unit.warning(settings.prices.unknown_factor):
            yield warning


def _units(settings: Settings) -> dict[Step, PricedCall]:
    own, midjourney, film = settings.prices, settings.midjourney, settings.runwayml.model_name
    upscales, mode, named_in = (
        UPSCALE_USD[midjourney.provider],
        midjourney.process_mode,
        "API_KEYS.midjourney.process_mode",
    )
    return {
        Step.CONTENT: chat_call(own, settings.openai),
        Step.IMAGINE: imagine_call(own, midjourney),
        Step.UPSCALE: PricedCall("upscale", own.upscale, upscales, mode, named_in),
        Step.RUNWAY: PricedCall(
            "runway_second", own.runway_second, RUNWAY_SECOND_USD, film, "API_KEYS.runwayml.model_name"
        ),
    }
