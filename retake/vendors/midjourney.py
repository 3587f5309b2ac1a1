"""The seller of Midjourney's pictures that the settings name."""

from retake.settings.shared import MidjourneySettings
from retake.vendors import Midjourney


def open_midjourney(chosen: MidjourneySettings, key: str, *, timeout_s: float) -> Midjourney:
    """Return the client of `chosen.provider`. Raises SettingsError for a key that cannot be sent."""
    if chosen.provider == "legnext":
        from retake.vendors.legnext import LegNext

        return LegNext(
            chosen.endpoint,
            key,
            process_mode=chosen.process_mode,
            aspect_ratio=chosen.aspect_ratio,
            timeout_s=timeout_s,
        )
    from retake.vendors.piapi import PiAPI

    return PiAPI(
        chosen.endpoint,
        chosen.task_endpoint,
        key,
        process_mode=chosen.process_mode,
        aspect_ratio=chosen.aspect_ratio,
        timeout_s=timeout_s,
    )
