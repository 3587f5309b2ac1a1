"""A daily time over whole years of clock changes: once a day, even where it is skipped or comes twice."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from retake.alerts.hours import last_due, next_due, zone_of

ZONES = [
    ("Europe/Berlin", 2026),
    ("America/Santiago", 2026),  # changes at midnight
    ("Australia/Lord_Howe", 2026),  # changes by half an hour
    ("Pacific/Apia", 2011),  # 30 December is missing
    ("Asia/Kathmandu", 2026),  # UTC+05:45
]
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize("minute", [0, 30, 105, 150, 1439])
@pytest.mark.parametrize(("name", "year"), ZONES)
def test_a_daily_time_comes_once_a_day(name: str, year: int, minute: int) -> None:
    zone = zone_of(name)
    moment = datetime(year, 1, 1, tzinfo=zone).astimezone(UTC) - timedelta(microseconds=1)
    end = datetime(year + 1, 1, 1, tzinfo=zone).astimezone(UTC)
    found: list[datetime] = []
    while (moment := next_due(moment, zone, minute)) < end:
        found.append(moment)
        assert last_due(moment, zone, minute) == moment
        assert last_due(moment + MINUTE, zone, minute) == moment
        if found[1:]:
            assert last_due(moment - MINUTE, zone, minute) == found[-2]
    local = [it.astimezone(zone) for it in found]
    first = datetime(year, 1, 1, tzinfo=zone)
    days = {(first + timedelta(days=it)).date() for it in range(365)}
    missing = {datetime(2011, 12, 30, tzinfo=UTC).date()} if name == "Pacific/Apia" else set()
    assert sorted(it.date() for it in local) == sorted(days - missing)
    late = [it for it in local if 60 * it.hour + it.minute != minute]
    assert len(late) <= 1, "if the clock skips it, it comes right after"


@pytest.mark.parametrize("weekday", range(7))
@pytest.mark.parametrize(("name", "year"), ZONES)
def test_a_weekly_time_comes_once_a_week(name: str, year: int, weekday: int) -> None:
    zone = zone_of(name)
    moment = datetime(year, 12, 31, 23, tzinfo=zone).astimezone(UTC)
    found = []
    for _ in range(50):
        moment = last_due(moment - MINUTE, zone, 150, weekday)
        found.append(moment)
    assert all(timedelta(days=5) < later - it < timedelta(days=8) for later, it in pairwise(found))
