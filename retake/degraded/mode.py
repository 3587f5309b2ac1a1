"""The four modes: what each leaves out, which one is in force, and when it changes automatically. Pure.

              begin  pay for text, pictures  order a video  poll, fetch, tidy up  robots NR.NSI.
0 full        yes    yes                     yes            yes                   all
1 reduced     (1)    yes                     (1)            yes                   1, 2, 3, 9
2 minimal     no     no                      no             yes                   1, 9
3 emergency   no     no                      no             no                    none

(1) only with MODES.video_mock, by which a video made on this machine replaces one that would be ordered.

The mode that an operator sets wins, even 0; otherwise the higher of the schedule's and the automatic one.
docs/protocol.md, section "Degraded mode".
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from retake.alerts.hours import minutes_of, next_due, zone_of
from retake.clock import parse_stamp, stamp
from retake.degraded.settings import ModeSettings
from retake.foreign_text import plain
from retake.percent import percent

FULL, REDUCED, MINIMAL, EMERGENCY = range(4)

WORDS = ("everything runs", "no video is ordered", "nothing is begun or paid for", "nothing runs")
"""Each mode in a few words."""

ROBOTS: tuple[frozenset[int] | None, ...] = (None, frozenset({1, 2, 3, 9}), frozenset({1, 9}), frozenset())
"""By mode, the numbers of the robots that run; None means all."""


_MAX_AHEAD = timedelta(days=30)
"""How far in the future a mode with an end may have been set; a machine whose clock is days behind then obeys it."""


class Hand(NamedTuple):
    """A mode that an operator has set."""

    mode: int
    why: str
    since: str
    until: str | None = None  # None: until the operator sets another one


class Auto(NamedTuple):
    """The automatic mode, which follows the share of failed tries."""

    mode: int = FULL
    since: str | None = None  # the time of the last change
    error_share: float | None = None  # at the last check; None: too few tries
    tries: int = 0


class ModeState(NamedTuple):
    """The stored state from which the mode follows."""

    hand: Hand | None = None
    auto: Auto = Auto()


class Mode(NamedTuple):
    """The mode in force, and why."""

    mode: int = FULL
    by: str = "default"  # "default", "operator", "schedule", "auto"
    why: str = ""
    since: str | None = None
    until: str | None = None

    @property
    def words(self) -> str:
        return WORDS[self.mode]

    @property
    def title(self) -> str:
        return f"degraded mode {self.mode} ({self.words})"


def mode_at(state: ModeState, settings: ModeSettings, timezone: str, now: datetime) -> Mode:
    """Return the mode in force at `now`."""
    hand = state.hand
    if hand and not _is_over(hand, now):
        return Mode(hand.mode, "operator", hand.why, hand.since, hand.until)
    planned = _planned(settings, timezone, now)
    auto = state.auto.mode if settings.auto else FULL
    if planned > auto:
        return Mode(planned, "schedule", "the schedule says so (MODES.schedule)")
    if auto > FULL:
        return Mode(auto, "auto", _why(state.auto, settings), state.auto.since)
    return Mode()


def _planned(settings: ModeSettings, timezone: str, now: datetime) -> int:
    local = now.astimezone(zone_of(timezone)) if settings.schedule else now
    return max((it.mode for it in settings.schedule if it.hours.hold(local)), default=FULL)


def with_end(mode: Mode, settings: ModeSettings, timezone: str, now: datetime) -> Mode:
    """Return the mode in force with the time at which the schedule ends it, if it does within a week.

    `mode_at` leaves that time out: each payment asks it for the mode, and only who shows a mode needs its end.
    """
    if mode.by != "schedule":
        return mode
    at = now
    while (at := min(_times_of_schedule(settings, timezone, at))) <= now + timedelta(days=7):
        if _planned(settings, timezone, at) != mode.mode:
            return mode._replace(until=stamp(at))
    return mode


def _is_over(hand: Hand, now: datetime) -> bool:
    """Return whether the mode that an operator set has ended.

    If it was set further in the future than `_MAX_AHEAD`, the clock was wrong then, and so is its end.
    """
    if hand.until is None:
        return False
    return now >= parse_stamp(hand.until) or parse_stamp(hand.since) - now > _MAX_AHEAD


def may_change_at(state: ModeState, settings: ModeSettings, timezone: str, now: datetime) -> list[datetime]:
    """Return the times after `now` at which time alone may change the mode.

    These are the end of the mode that an operator set, and the schedule's times of day, on any day. The automatic mode
    changes only after ticks that did something.
    """
    times = [parse_stamp(state.hand.until)] if state.hand and state.hand.until else []
    return [it for it in (*times, *_times_of_schedule(settings, timezone, now)) if it > now]


def _times_of_schedule(settings: ModeSettings, timezone: str, now: datetime) -> list[datetime]:
    """Return when the clock shows each time of the schedule next."""
    zone = zone_of(timezone) if settings.schedule else UTC
    times = (it for hours, _ in settings.schedule for it in (hours.start, hours.end))
    return [next_due(now, zone, minutes_of(it)) for it in times]


def _why(auto: Auto, settings: ModeSettings) -> str:
    if auto.error_share is None:
        return f"too few tries lately to say more ({auto.tries})"
    return f"{percent(auto.error_share)} of {auto.tries} tries failed within {settings.window_seconds:g} s"


def auto_after(auto: Auto, failed: int, tries: int, settings: ModeSettings, now: datetime) -> Auto:
    """Return the automatic mode after a window in which `failed` of `tries` tries failed.

    Above `error_share` it goes up by one. At or below `return_share`, or with too few tries, it goes down by one. It
    never changes within `hold_seconds` of its last change.
    """
    enough = tries >= settings.min_tries
    share = failed / tries if enough else None
    seen = auto._replace(error_share=share, tries=tries)
    hold = timedelta(seconds=settings.hold_seconds)
    if auto.since and abs(now - parse_stamp(auto.since)) < hold:  # if further in the future, the clock was set back
        return seen
    mode = auto.mode
    if share is not None and share > settings.error_share:
        mode = min(mode + 1, max(mode, settings.auto_max))
    elif share is None or share <= settings.return_share:
        mode = max(mode - 1, FULL)
    return seen if mode == auto.mode else seen._replace(mode=mode, since=stamp(now))


def robots(mode: int) -> list[int]:
    """Return the numbers of the robots that run in a mode."""
    chosen = ROBOTS[mode]
    return list(range(1, 10)) if chosen is None else sorted(chosen)


def decoded(raw: Mapping[str, Any] | None) -> ModeState:
    """Return the stored state `raw`. Raises ValueError, whose message names the field."""
    raw = {} if raw is None else raw
    if not isinstance(raw, Mapping):
        raise ValueError("is not an object")  # noqa: TRY004  a fault of the document
    hand, auto = raw.get("hand"), raw.get("auto") or {}
    if hand:
        _check_keys("hand", hand, Hand)
    _check_keys("auto", auto, Auto)
    state = ModeState(Hand(**hand) if hand else None, Auto(**auto))
    for name, mode in (("hand", state.hand.mode if state.hand else 0), ("auto", state.auto.mode)):
        if type(mode) is not int or not FULL <= mode <= EMERGENCY:
            raise ValueError(f"{name}.mode: is not a whole number from 0 to 3")
    for name, moment in (
        ("hand.since", (state.hand.since or "") if state.hand else None),
        ("hand.until", state.hand.until if state.hand else None),
        ("auto.since", state.auto.since),
    ):
        if moment is not None and not _is_stamp(moment):
            raise ValueError(f"{name}: is not a time")
    if state.hand and not isinstance(state.hand.why, str):
        raise ValueError("hand.why: is not text")
    share, tries = state.auto.error_share, state.auto.tries
    if (
        type(tries) is not int
        or tries < 0
        or not (share is None or (isinstance(share, (int, float)) and 0 <= share <= 1))
    ):
        raise ValueError("auto: error_share must be a number from 0 to 1, and tries a whole number from 0 up")
    return state


def _check_keys(name: str, value: Any, kind: type[Hand] | type[Auto]) -> None:
    """Return if `value` has the keys of `kind`, and no others. Raises ValueError."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}: is not an object")  # noqa: TRY004  a fault of the document
    if missing := [key for key in kind._fields if key not in value and key not in kind._field_defaults]:
        raise ValueError(f"{name}: has no {', '.join(missing)}")
    if unknown := next((key for key in value if key not in kind._fields), None):
        raise ValueError(f"{name}.{plain(unknown)}: is none of its keys: {', '.join(kind._fields)}")


def _is_stamp(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(parse_stamp(value))
    except ValueError:
        return False


def encoded(state: ModeState) -> dict[str, Any]:
    """Return the state as JSON types."""
    return {"hand": state.hand and state.hand._asdict(), "auto": state.auto._asdict()}
