"""What vendors charge, in US dollars, as last seen on their pages and in their users' documents."""

from collections.abc import Mapping

CHAT_USD: Mapping[str, float] = {"gpt-4o": 0.01, "gpt-4o-mini": 0.002}
"""One call of some 1,500 tokens, by model."""

IMAGINE_USD: Mapping[str, Mapping[str, float]] = {
    "piapi": {"relax": 0.015, "fast": 0.045, "turbo": 0.10},
    "legnext": {"relax": 0.04, "fast": 0.08, "turbo": 0.16},
}
"""One imagine task, by vendor and process mode."""

UPSCALE_USD: Mapping[str, Mapping[str, float]] = {
    "piapi": {"relax": 0.01, "fast": 0.01, "turbo": 0.02},
    "legnext": {"relax": 0.08, "fast": 0.08, "turbo": 0.08},
}
"""One upscale task, by vendor and process mode."""

RUNWAY_SECOND_USD: Mapping[str, float] = {"gen4_turbo": 0.05, "gen4.5": 0.12}
"""One second of video, by model."""


def guess(table: Mapping[str, float], factor: float) -> float:
    """Return what an unknown model or mode counts as: `factor` times the highest price in `table`.

    Spending that is estimated too high stops a day early; estimated too low, it exceeds the cap.
    """
    return round(max(table.values()) * factor, 6)
