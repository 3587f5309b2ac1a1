"""What a paid call costs, for the spend record and the daily cap.

The settings (PRICES) say it; where they are silent, the prices below, as they were last seen in the vendors' pages and
their users' documents. A mode or model that is not known counts as the dearest of its kind: a cap that errs is to err
on the side of the purse.
"""

from collections.abc import Mapping

from retake.settings import Settings
from retake.story.documents import Step

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


def prices(settings: Settings) -> dict[Step, float]:
    """US dollars of one paid call of each step that pays."""
    own, mode, seller = settings.prices, settings.midjourney.process_mode, settings.midjourney.provider
    second = _either(own.runway_second, RUNWAY_SECOND_USD, settings.runwayml.model_name)
    return {
        Step.CONTENT: _either(own.content, CHAT_USD, settings.openai.model),
        Step.IMAGINE: _either(own.imagine, IMAGINE_USD[seller], mode),
        Step.UPSCALE: _either(own.upscale, UPSCALE_USD[seller], mode),
        Step.RUNWAY: round(second * settings.video.runway_duration, 6),
    }


def _either(own: float | None, known: Mapping[str, float], name: str) -> float:
    return own if own is not None else known.get(name, max(known.values()))
