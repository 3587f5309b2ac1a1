"""`spend` around the ends of months and years, on leap days and with days of the future: each call counts once, on one
day, whichever days are requested, and whether or not its month is kept as sums.

Bills are generated from a seed, which a failure names; RETAKE_TEST_SEED=N replays it.
"""

import json
import random
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, NamedTuple

import pytest
from test_kept_bills import NOW, PRICES, SEED, Call, call, filled, put, told

from retake.bucket import ANY
from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock
from retake.errors import StateError
from retake.operations.examinations import check_bucket
from retake.operations.spend import spend_report
from retake.paid import day_book
from retake.retrying.kept_counts import KEPT
from retake.story.generation import DEAD_LETTERS
from retake.story.operations import open_operations
from retake.story.settings import Settings
from retake.web.spend import spend_view

EDGES = [
    datetime(year, month, day, tzinfo=UTC)
    for year in (2023, 2024, 2025)
    for month, day in ((1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (7, 1), (12, 1))
]
"""Midnights at which a month ends: after 28, 29, 30 and 31 days, and at the end of a year."""


class Books(NamedTuple):
    """A bucket with spending records, and the expected count of each day."""

    bucket: MemoryBucket
    clock: FakeClock
    by_day: Counter[str]  # calls
    micro_usd: Counter[str]
    names: set[str]  # of the records with calls that count


@pytest.fixture(params=range(6))
def rng(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(SEED + request.param)


@pytest.fixture
def books(rng: random.Random) -> Books:
    clock = FakeClock(rng.choice(EDGES[7:]) + timedelta(seconds=rng.choice((-1, 0, 1, 40_000, -20 * 86_400))))
    books, now = Books(MemoryBucket(), clock, Counter(), Counter(), set()), clock.moment
    books.bucket.store._clock = clock
    for n in range(160):
        near = rng.choice([edge for edge in EDGES if edge <= now])
        clock.moment = min(near + timedelta(seconds=rng.choice((0, 1, 7200, rng.randrange(-86_400, 3 * 86_400)))), now)
        record(books, rng, f"{clock.moment:%Y%m%d-%H%M}-{n}", ahead=False)
    clock.moment = now
    for n in range(3):
        record(books, rng, f"{now:%Y%m%d-%H%M}-ahead-{n}", ahead=True)
    return books


def record(books: Books, rng: random.Random, name: str, *, ahead: bool) -> None:
    """Add the record of a generation that ends now; with `ahead`, by a clock that was ahead before."""
    calls = list[Call]()
    for _ in range(rng.randrange(4)):
        asked = books.clock.moment - timedelta(seconds=rng.choice((0, 1, 3600, 60 * 3600)))
        made = call(asked, rng.choice(("content", "imagine", "runway")), rng.choice(PRICES))
        made["requested_at_utc"] = asked.astimezone(timezone(timedelta(hours=rng.choice((0, 0, 14, -12))))).isoformat()
        day = asked.date()
        if ahead:
            day = (books.clock.moment + timedelta(days=rng.choice((1, 31, 366, 5000)))).date()
            made["counted_on"] = f"{day}"
        books.by_day[f"{day}"] += 1
        books.micro_usd[f"{day}"] += round(made["price_usd"] * 1e6)
        books.names.add(name)
        calls.append(made)
    put(books.bucket, books.clock.moment, calls, name)


def micros(sums: dict[str, Any]) -> int:
    return round(sums["usd"] * 1e6)


def test_the_days_the_months_and_the_bills_have_the_same_sum(books: Books) -> None:
    for _ in ("from the records", "from the sums that are kept then"):
        document = told(books.bucket, books.clock, 3650)
        assert {it["day"]: it["calls"] for it in document["by_day"]} == books.by_day, SEED
        assert {it["day"]: micros(it) for it in document["by_day"]} == books.micro_usd, SEED
        for part in ("by_day", "by_step", "by_generation"):
            assert sum(it["calls"] for it in document[part]) == document["total"]["calls"], (part, SEED)
            assert sum(map(micros, document[part])) == micros(document["total"]), (part, SEED)
        assert sorted(it["generation_id"] for it in document["by_generation"]) == sorted(books.names), SEED


def test_each_bill_is_in_one_month_and_each_call_of_a_month_on_one_of_its_days(books: Books) -> None:
    told(books.bucket, books.clock, 3650)
    report = spend_report(open_operations(Settings(), books.clock, bucket=books.bucket), 3650)
    read = [bill.item_id for _, month in report.months for bill in month.bills()]
    assert read, "months are kept"
    assert sorted([*read, *(bill.item_id for _, bill in report.bills)]) == sorted(books.names), SEED
    for _, month in report.months:
        assert sum(it.calls for it in month.by_day.values()) == sum(len(it.calls) for it in month.bills()), SEED


def test_a_number_of_days_ends_with_today_and_with_those_of_the_future(books: Books) -> None:
    today = books.clock.moment.date()
    for days in (1, 2, 28, 29, 30, 31, 32, 365, 366, 367):
        since = f"{today - timedelta(days=days - 1)}"
        document = told(books.bucket, books.clock, days)
        assert document["since"] == since
        there = {day: number for day, number in books.by_day.items() if day >= since}
        assert {it["day"]: it["calls"] for it in document["by_day"]} == there, (days, SEED)
        bars = [it.description.partition(":")[0] for it in spend_view(document, days, 0)["drawing"].bars]
        shown = [f"{today - timedelta(days=n)}" for n in reversed(range(days))]
        assert bars == [*shown, *sorted(day for day in there if day > f"{today}")], (days, SEED)


def test_sums_that_are_removed_are_made_again_and_change_nothing(books: Books, rng: random.Random) -> None:
    def all_kept() -> dict[str, bytes]:
        """Return what is kept, except months without rows, which nobody misses."""
        found = {it.key: books.bucket.read(it.key)[0] for it in books.bucket.list(KEPT)}
        return {key: data for key, data in found.items() if json.loads(data).get("items") != {}}

    before = told(books.bucket, books.clock, 3650)
    kept = all_kept()
    assert kept, "months are kept"
    for gone in ([rng.choice([*kept])], [*kept]):
        for key in gone:
            books.bucket.delete(key)
        with suppress(StateError):  # "look again": it is noticed only while the month is read
            told(books.bucket, books.clock, 3650)
        assert told(books.bucket, books.clock, 3650) == before, (gone, SEED)
        assert all_kept() == kept, (gone, SEED)


def test_a_call_that_is_dated_on_no_day_is_reported_and_in_no_sum(books: Books) -> None:
    before = told(books.bucket, books.clock, 3650)
    for number, dated in enumerate((None, "2025-02-29T00:00:00Z", "9999-12-31T23:59:59-01:00")):
        damaged = {**call(books.clock.moment), "requested_at_utc": dated}
        put(books.bucket, books.clock.moment, [damaged], f"damaged-{number}")
    assert told(books.bucket, books.clock, 3650) == before, SEED
    assert invalid_calls(books) == [f"spend/damaged-{number}.json" for number in range(3)]


def test_a_call_that_is_counted_on_no_such_day_counts_once_on_that_of_its_request(books: Books) -> None:
    for number, day in enumerate(("2025-02-29", "yesterday", "20250301", "")):
        put(books.bucket, books.clock.moment, [call(books.clock.moment, counted_on=day)], f"damaged-{number}")
        books.by_day[f"{books.clock.moment.date()}"] += 1
    document = told(books.bucket, books.clock, 3650)
    assert {it["day"]: it["calls"] for it in document["by_day"]} == books.by_day, SEED
    assert invalid_calls(books) == [f"spend/damaged-{number}.json" for number in range(4)]


def test_sums_in_which_an_earlier_version_counted_a_call_on_no_such_day_are_made_again(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = books.clock.moment
    books.clock.moment = asked = now - timedelta(days=100)
    put(books.bucket, asked, [call(asked, counted_on="yesterday")])
    books.clock.moment = now
    with monkeypatch.context() as patch:
        patch.setattr(day_book, "is_day", lambda text: True)
        assert "yesterday" in {it["day"] for it in told(books.bucket, books.clock, 3650)["by_day"]}
    books.by_day[f"{asked.date()}"] += 1
    document = told(books.bucket, books.clock, 3650)
    assert {it["day"]: it["calls"] for it in document["by_day"]} == books.by_day, SEED


def invalid_calls(books: Books) -> list[str]:
    report = check_bucket(open_operations(Settings(), books.clock, bucket=books.bucket))
    return [it.where for it in report.findings if it.code == "paid-call-invalid"]


@pytest.mark.parametrize("ago", [20, 4], ids=["among others", "after all others"])
@pytest.mark.parametrize("number", [0, 200])
def test_a_record_that_a_clock_in_1970_has_dated_is_told(number: int, ago: int) -> None:
    clock = FakeClock(NOW)
    bucket, begun = filled(clock, number), NOW - timedelta(days=ago)
    name = f"{begun:%Y%m%d}-0000"
    clock.moment = datetime(1970, 1, 1, 0, 1, tzinfo=UTC)
    put(bucket, clock.moment, [call(begun)], name)
    letter = json.dumps({"paid_calls": [call(begun)]}).encode()
    bucket.write(f"{DEAD_LETTERS}before-{name}/config_midjourney.json", letter, ANY)
    clock.moment = NOW
    told(bucket, clock, 3650)
    for days, there in ((ago + 1, True), (ago, False)):
        names = {it["generation_id"] for it in told(bucket, clock, days)["by_generation"]}
        assert names.issuperset({name, f"before-{name}"}) is there
