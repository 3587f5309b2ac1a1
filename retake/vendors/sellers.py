"""The reseller of pictures named in the settings, and the vendors' prices in US dollars, as last seen on their pages
and in their users' documents."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from retake.settings.shared import MidjourneySettings, OpenaiSettings, Prices
from retake.vendors import Midjourney

if TYPE_CHECKING:
    from retake.vendors.kept import KeptConnections

CHAT_USD: Mapping[str, float] = {"gpt-4o": 0.01, "gpt-4o-mini": 0.002}
"""Price of one call of some 1,500 tokens, by model."""

IMAGINE_USD: Mapping[str, Mapping[str, float]] = {
    "piapi": {"relax": 0.015, "fast": 0.045, "turbo": 0.10},
    "legnext": {"relax": 0.04, "fast": 0.08, "turbo": 0.16},
}
"""Price of one imagine task, by vendor and process mode."""

UPSCALE_USD: Mapping[str, Mapping[str, float]] = {
    "piapi": {"relax": 0.01, "fast": 0.01, "turbo": 0.02},
    "legnext": {"relax": 0.08, "fast": 0.08, "turbo": 0.08},
}
"""Price of one upscale task, by vendor and process mode."""

RUNWAY_SECOND_USD: Mapping[str, float] = {"gen4_turbo": 0.05, "gen4.5": 0.12}
"""Price of one second of video, by model."""


def guess(table: Mapping[str, float], factor: float) -> float:
    """Return the assumed price of an unknown model or mode: `factor` times the highest price in `table`.

    Overestimated spending stops a day early; underestimated spending exceeds the cap.
    """
    return round(max(table.values()) * factor, 6)


class PricedCall(NamedTuple):
    """A billed call, and the source of its price: the settings (PRICES), else the table of known prices."""

    setting: str  # the key below PRICES
    own: float | None  # the price set there
    known: Mapping[str, float]
    name: str  # of the mode or model in use
    named_in: str  # the settings key that names it

    def usd(self, factor: float) -> float:
        """Return the price, guessed with PRICES.unknown_factor if it is unknown."""
        price = self._price()
        return guess(self.known, factor) if price is None else price

    def warning(self, factor: float) -> str | None:
        """Return the warning that the price is a guess, or None."""
        if self._price() is not None:
            return None
        return (
            f"{self.named_in}: the price of {self.name} is not known; it counts as {self.usd(factor):g} USD, "
            f"{factor:g} times the highest known price. Set its price in PRICES.{self.setting}"
        )

    def _price(self) -> float | None:
        return self.known.get(self.name) if self.own is None else self.own


def chat_call(prices: Prices, openai: OpenaiSettings) -> PricedCall:
    """Return the priced call to the chat API."""
    return PricedCall("content", prices.content, CHAT_USD, openai.model, "API_KEYS.openai.model")


def imagine_call(prices: Prices, midjourney: MidjourneySettings) -> PricedCall:
    """Return the priced order of four pictures."""
    known = IMAGINE_USD[midjourney.provider]
    return PricedCall("imagine", prices.imagine, known, midjourney.process_mode, "API_KEYS.midjourney.process_mode")


def open_midjourney(
    chosen: MidjourneySettings, key: str, *, timeout_s: float, kept: "KeptConnections | None" = None
) -> Midjourney:
    """Return the client of `chosen.provider`, whose free queries use connections of `kept`.

    Raises SettingsError for a key that cannot be sent.
    """
    if chosen.provider == "legnext":
        from retake.vendors.legnext import LegNext

        return LegNext(
            chosen.endpoint,
            key,
            process_mode=chosen.process_mode,
            aspect_ratio=chosen.aspect_ratio,
            timeout_s=timeout_s,
            kept=kept,
        )
    from retake.vendors.piapi import PiAPI

    return PiAPI(
        chosen.endpoint,
        chosen.task_endpoint,
        key,
        process_mode=chosen.process_mode,
        aspect_ratio=chosen.aspect_ratio,
        timeout_s=timeout_s,
        kept=kept,
    )
