"""The section MODES of the settings."""

from typing import Any, NamedTuple

from retake.alerts.hours import CLOCK_TIME, DAYS, WorkingHours
from retake.settings.schema import SECONDS, YES_OR_NO, Field, Schema, TableList, between, field, schema_of, whole


class Scheduled(NamedTuple):
    """A mode that is in force during certain hours."""

    hours: WorkingHours
    mode: int


def _scheduled(**values: Any) -> Scheduled:
    return Scheduled(WorkingHours(values["days"], values["from"], values["to"]), values["mode"])


_SCHEDULE = TableList(
    Schema(
        _scheduled,
        {
            "days": Field(DAYS, "the days on which it begins", "mon-sun"),
            "from": Field(CLOCK_TIME, "when it begins"),
            "to": Field(CLOCK_TIME, "when it ends"),
            "mode": Field(whole(0, 3), "the mode"),
        },
    ),
    may_be_empty=True,
)

_SHARE = between(0, 1)


class ModeSettings(NamedTuple):
    """When degraded modes are in force. Times are in the zone of ALERTS.timezone."""

    auto: bool = field(
        YES_OR_NO, "whether the mode changes automatically with the share of failed tries", default=False
    )
    error_share: float = field(_SHARE, "share of failed tries above which the mode rises by one", default=0.2)
    return_share: float = field(_SHARE, "share of failed tries at or below which it falls by one", default=0.05)
    window_seconds: float = field(SECONDS, "seconds over which tries are counted", default=3600)
    min_tries: int = field(whole(1, 1_000_000), "tries in the window below which nothing is concluded", default=10)
    hold_seconds: float = field(SECONDS, "seconds for which a mode holds before it changes automatically", default=900)
    auto_max: int = field(whole(1, 3), "the highest mode that is reached automatically", default=2)
    video_mock: bool = field(
        YES_OR_NO,
        "whether a video made on this machine takes the place of one that mode 1 does not order",
        default=False,
    )
    schedule: tuple[Scheduled, ...] = field(
        _SCHEDULE,
        'modes at certain hours: [{"days": "mon-fri", "from": "22:00", "to": "06:00", "mode": 1}]',
        default=(),
    )


MODES = schema_of(ModeSettings)
