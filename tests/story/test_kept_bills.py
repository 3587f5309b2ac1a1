"""`spend` from kept sums: the same answers as from the whole folder, with as many operations for any number of
records."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from failing_buckets import Died, Dying, ReadOnly
from schemas import check
from story_world import World

from retake.bucket import ANY, Bucket
from retake.bucket.directory import DirectoryBucket
from retake.bucket.memory import MemoryBucket
from retake.bucket.wrappers import CountingBucket
from retake.clock import FakeClock, stamp
from retake.errors import StateError, StorageError
from retake.operations.reports import make_report
from retake.operations.spend import as_document, spend_report
from retake.retrying import kept_counts
from retake.retrying.kept_counts import KEPT, KeptCounts, mark_changes
from retake.story.generation import SPEND
from retake.story.kept_bills import BillsKept, ended_bills
from retake.story.operations import open_operations
from retake.story.settings import Settings
from retake.ticking.tick import Orders

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
INDEX = f"{KEPT}{SPEND}index.json"
SEED = int(os.environ.get("RETAKE_TEST_SEED", random.randrange(2**32)))

Call = dict[str, Any]


def call(at: datetime, step: str = "imagine", price: object = 0.045, **more: object) -> Call:
    return {"step": step, "requested_at_utc": stamp(at), "price_usd": price, "outcome": "accepted", **more}


def put(bucket: Bucket, at: datetime, calls: Iterable[Call], name: str = "", outcome: str = "done") -> str:
    """Write a record dated `at`, as any program might."""
    name = name or f"{at:%Y%m%d-%H%M}"
    record = {"generation_id": name, "outcome": outcome, "ended_at_utc": stamp(at), "paid_calls": [*calls]}
    bucket.write(f"{SPEND}{name}.json", json.dumps(record).encode(), ANY)
    return name


def filled(clock: FakeClock, number: int, into: Bucket | None = None) -> Bucket:
    """Fill a bucket with so many records over the 400 days before NOW, and set the clock to NOW."""
    bucket = into or MemoryBucket()
    if isinstance(bucket, MemoryBucket):
        bucket.store._clock = clock
    for n in range(number):
        clock.moment = NOW - timedelta(days=400) + n * timedelta(days=395) / number
        put(bucket, clock.moment, [call(clock.moment), call(clock.moment, "upscale", 0.01)])
    clock.moment = NOW
    return bucket


def told(bucket: Bucket, clock: FakeClock, days: int, newest: int | None = None) -> dict[str, Any]:
    return as_document(spend_report(open_operations(Settings(), clock, bucket=bucket), days), newest)


# --- the answers of `spend` when it listed everything ---


def day_of(it: Call) -> str:
    if isinstance(it.get("counted_on"), str):
        return str(it["counted_on"])
    asked = it.get("requested_at_utc")
    return asked[:10] if isinstance(asked, str) and asked[:4].isdecimal() else ""


def plain_sums(calls: list[Call]) -> dict[str, Any]:
    doubtful = [it for it in calls if it.get("possible_duplicate") or it.get("outcome") in ("unknown", "wasted")]
    return {
        "calls": len(calls),
        "usd": round(sum(float(it["price_usd"]) for it in calls), 6),
        "unsure_calls": len(doubtful),
        "unsure_usd": round(sum(float(it["price_usd"]) for it in doubtful), 6),
        "possible_duplicates": sum(bool(it.get("possible_duplicate")) for it in calls),
    }


def plainly(bucket: Bucket, clock: FakeClock, days: int) -> dict[str, Any]:
    """Return the right answer, from the whole folder."""
    first = clock.moment.date() - timedelta(days=days - 1)
    since = datetime(first.year, first.month, first.day, tzinfo=UTC).timestamp() - 3600
    bills = []
    for entry in bucket.list(SPEND):
        if entry.modified >= since and entry.key.endswith(".json"):
            record = json.loads(bucket.read(entry.key)[0])
            if calls := [it for it in record["paid_calls"] if day_of(it) >= f"{first}"]:
                bills.append((entry.key.removeprefix(SPEND)[:-5], record["outcome"], calls))
    every = [it for _, _, calls in bills for it in calls]
    bills.sort(key=lambda it: (max(map(day_of, it[2])), it[0]), reverse=True)
    days_there, steps = sorted({*map(day_of, every)}, reverse=True), sorted({it["step"] for it in every})
    return {
        "since": f"{first}",
        "total": plain_sums(every),
        "by_day": [{"day": it, **plain_sums([c for c in every if day_of(c) == it])} for it in days_there],
        "by_step": [{"step": it, **plain_sums([c for c in every if c["step"] == it])} for it in steps],
        "by_generation": [
            {"channel": None, "generation_id": name, "outcome": outcome, **plain_sums(calls)}
            for name, outcome, calls in bills
        ],
    }


def agree(bucket: Bucket, clock: FakeClock, *spans: int) -> None:
    """Check that the answer is right, to the byte."""
    for days in spans or (1, 30, 200, 3650):
        document, plain = told(bucket, clock, days), plainly(bucket, clock, days)
        assert json.dumps({key: document[key] for key in plain}) == json.dumps(plain), f"{days} days, seed {SEED}"
        short = told(bucket, clock, days, 7)
        assert short == {**document, "by_generation": document["by_generation"][:7]}


# --- what it costs ---


@pytest.fixture(scope="module", params=["memory", "directory"])
def few_and_many(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Bucket]:
    """Return buckets, to be read only, with 200 and with 2000 records whose sums are kept, and 12 new ones in each."""

    def made(number: int) -> Bucket:
        clock = FakeClock(NOW)
        into = None if request.param == "memory" else DirectoryBucket(str(tmp_path_factory.mktemp("bucket")))
        bucket = filled(clock, number, into)
        if into:
            for entry in bucket.list(SPEND):
                at = datetime.strptime(entry.key, f"{SPEND}%Y%m%d-%H%M.json").replace(tzinfo=UTC).timestamp()
                os.utime(f"{into.url.removeprefix('file:')}/{entry.key}", (at, at))
        told(bucket, clock, 3650)
        for n in range(12):  # new ones are read
            put(bucket, clock.moment, [call(clock.moment)], f"{clock.moment:%Y%m%d-%H}{n:02d}")
        return bucket

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        return [made(200), made(2000)]


@pytest.mark.parametrize("days", [30, 3650])
def test_spend_asks_the_same_however_many_records_there_are(few_and_many: list[Bucket], days: int) -> None:
    class Untouched(CountingBucket):
        def around(self, operation: str, key: str, call: Callable[[], Any]) -> Any:
            return super().around(operation, key, refused if operation == "write" else call)

    def refused() -> None:
        raise StorageError("others look at it too")

    def costs(bucket: Bucket) -> dict[str, int]:
        counting = Untouched(bucket)
        told(counting, FakeClock(NOW), days, 10)
        return dict(counting.counts)

    few, many = map(costs, few_and_many)
    assert few == many
    assert few["list"] <= 4
    assert few["read"] <= 12 + 8
    assert "write" not in few


def test_only_the_months_at_both_ends_of_the_answer_are_read() -> None:
    clock = FakeClock(NOW)
    bucket = filled(clock, 2000)
    told(bucket, clock, 3650)
    keys: list[str] = []

    class Seen(CountingBucket):
        def around(self, operation: str, key: str, call: Callable[[], Any]) -> Any:
            keys.append(key)
            return super().around(operation, key, call)

    told(Seen(bucket), clock, 100, 10)
    newest = f"{KEPT}{SPEND}202611.json"
    assert {key for key in keys if key.startswith(KEPT)} == {INDEX, f"{KEPT}{SPEND}202608.json", newest}
    assert not [key for key in keys if SPEND < key < f"{SPEND}20261119"]


def test_a_report_counts_the_calls_of_its_period_and_bills_that_are_not_read() -> None:
    clock = FakeClock(NOW)
    bucket = filled(clock, 400)
    told(bucket, clock, 3650)
    clock.sleep(20 * 86400)
    operations = open_operations(Settings(), clock, bucket=bucket)
    before = make_report(operations, "daily", NOW)
    assert spend_report(operations, 3650).number == 400
    bucket.delete(INDEX)
    assert make_report(operations, "daily", NOW) == before


def test_nothing_is_kept_of_few_records_and_nothing_where_it_cannot_be_written() -> None:
    clock = FakeClock(NOW)
    bucket = filled(clock, 99)
    agree(bucket, clock)
    assert not bucket.list(KEPT)

    agree(ReadOnly(filled(clock, 200)), clock)


def test_one_look_counts_for_a_while_and_the_next_ones_go_on() -> None:
    clock = FakeClock(NOW)
    bucket = filled(clock, 400)

    class Slow(CountingBucket):
        def around(self, operation: str, key: str, call: Callable[[], Any]) -> Any:
            clock.sleep(0.01 if operation == "read" else 0.0)
            return super().around(operation, key, call)

    seen = []
    for _ in range(4):
        told(Slow(bucket), clock, 1)
        seen.append(len([it for it in bucket.list(f"{KEPT}{SPEND}") if it.key != INDEX]))
        agree(bucket if len(seen) > 3 else ReadOnly(bucket), clock)
    assert 1 < seen[0] < seen[1]
    assert seen[1] <= seen[2] <= seen[3] <= 15


# --- correctness, whatever happens ---


PRICES = (0.006, 0.045, 0.01, 0.5, 0.0585, 1, 0, 0.000001)


def random_call(rng: random.Random, at: datetime) -> Call:
    more: dict[str, object] = {}
    if rng.random() < 0.2:
        more["outcome"] = rng.choice(["unknown", "wasted", "done", None, ["unknown"]])
    if rng.random() < 0.1:
        more["possible_duplicate"] = rng.choice([True, False, "maybe"])
    if rng.random() < 0.1:
        more["counted_on"] = f"{at + timedelta(days=rng.randrange(400)):%Y-%m-%d}"
    if rng.random() < 0.05:
        more["requested_at_utc"] = rng.choice([None, "then", 7])
    price = 0.0123456789 if rng.random() < 0.01 else rng.choice(PRICES)
    return call(at, rng.choice(["content", "imagine", "upscale", "runway"]), price, **more)


def write_record(bucket: Bucket, clock: FakeClock, rng: random.Random, name: str) -> None:
    """Write a record as a generation that ends does."""
    begun = clock.moment - timedelta(hours=rng.choice([0, 1, 60]))
    mark_changes(bucket, clock, SPEND, [name])
    calls = [random_call(rng, begun) for _ in range(rng.randrange(5))]
    put(bucket, clock.moment, calls, name, rng.choice(["done", "failed", "cancelled"]))


@pytest.mark.parametrize("number", range(12))
def test_what_is_told_is_what_is_there_after_whatever_happens(number: int) -> None:
    rng, clock = random.Random(SEED + number), FakeClock(NOW)
    bucket = filled(clock, rng.randrange(90, 200))
    for _ in range(40):
        dying = Dying(bucket, rng.choice((0, 1, 2, 5, 1000)))
        there = [it.key.removeprefix(SPEND)[:-5] for it in bucket.list(SPEND)]
        try:
            match rng.randrange(6):
                case 0:
                    clock.sleep(rng.choice((3600.0, 86400.0, 5 * 86400.0)))
                case 1:
                    told(dying, clock, rng.choice((1, 30, 3650)))
                case 2:  # it was requeued, perhaps years later
                    write_record(dying, clock, rng, rng.choice(there))
                case 3:  # one that began long ago
                    write_record(dying, clock, rng, f"{clock.moment - timedelta(days=rng.randrange(30)):%Y%m%d}-2300")
                case _:
                    write_record(dying, clock, rng, f"{clock.moment:%Y%m%d-%H%M}")
        except Died:
            pass
        agree(bucket, clock, rng.choice((1, 30, 200, 3650)))
    agree(bucket, clock)


@pytest.mark.parametrize("at", range(0, 16, 2))
def test_a_death_while_counting_leaves_the_older_sums(at: int) -> None:
    clock = FakeClock(NOW)
    bucket = filled(clock, 300)
    with pytest.raises(Died):
        told(Dying(bucket, at), clock, 30)
    agree(bucket, clock, 30, 3650)


def test_a_death_between_a_mark_and_its_record_or_the_record_and_its_month_loses_nothing() -> None:
    clock = FakeClock(NOW)
    bucket = filled(clock, 300)
    told(bucket, clock, 3650)
    name = bucket.list(SPEND)[5].key.removeprefix(SPEND)[:-5]
    for at in (0, 1, 2):
        try:
            write_record(Dying(bucket, at), clock, random.Random(at), name)
        except Died:
            agree(bucket, clock)
    clock.sleep(5 * 86400)  # the mark has settled, and the month is written, but not the index
    for n in range(120):
        put(bucket, clock.moment - timedelta(days=4), [call(clock.moment)], f"{NOW:%Y%m%d}-x{n}")
    for at in range(6):
        try:
            told(Dying(bucket, at), clock, 3650)
        except Died:
            agree(ReadOnly(bucket), clock)
    agree(bucket, clock)


def test_one_of_two_simultaneous_counts_prevails_and_a_record_meanwhile_counts() -> None:
    clock = FakeClock(NOW)
    bucket = filled(clock, 300)
    counts = KeptCounts(bucket, clock, BillsKept())
    first, second = counts.read(), counts.read()
    counts.count_settled(first)
    counts.count_settled(second)
    agree(bucket, clock)
    bucket.delete(INDEX)
    seen = counts.read()
    name = bucket.list(SPEND)[5].key.removeprefix(SPEND)[:-5]
    write_record(bucket, clock, random.Random(1), name)
    counts.count_settled(seen)
    agree(bucket, clock)


READER = """
import sys
from retake.clock import SystemClock
from retake.bucket.directory import DirectoryBucket
from retake.story.kept_bills import ended_bills
while sys.stdin.readline():
    bills, months = ended_bills(DirectoryBucket(sys.argv[1]), SystemClock(), "2015-01-01")
    print(len(bills) + sum(len(it.bills()) for it in months), flush=True)
"""


def test_two_processes_that_count_while_a_third_writes_old_records_tell_all_of_them(tmp_path: Path) -> None:
    clock = FakeClock(datetime.now(UTC))
    bucket = DirectoryBucket(str(tmp_path))
    for n in range(240):
        put(bucket, clock.moment - timedelta(days=5 + n), [call(clock.moment)])
    command = [sys.executable, "-c", READER, str(tmp_path)]
    readers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) for _ in range(2)
    ]
    try:
        for turn in range(6):
            if turn == 3:
                bucket.delete(INDEX)  # both count everything anew
            for it in readers:
                assert it.stdin
                it.stdin.write("\n")
            name = f"{clock.moment - timedelta(days=10 + turn):%Y%m%d}-new"
            mark_changes(bucket, clock, SPEND, [name])
            put(bucket, clock.moment, [call(clock.moment)], name)
            for it in readers:
                assert it.stdout
                assert int(it.stdout.readline()) in (240 + turn, 241 + turn)
        bills, months = ended_bills(bucket, clock, "2015-01-01")
        assert len(bills) + sum(it.number for it in months) == 246
    finally:
        for it in readers:
            it.communicate()


def test_a_generation_that_is_requeued_after_months_counts_once_while_it_is_under_way_and_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_counts, "KEEP_AFTER", 1)
    world = World(max_retries=1)
    world.bucket.store._clock = world.clock
    world.vendors.plan("upscale", "refused", "refused")
    while "failed" not in world.ended:
        world.tick()
    [name] = [key.removeprefix(SPEND)[:-5] for key in world.keys_of(SPEND)]
    world.clock.sleep(100 * 86400)
    [before] = told(world.bucket, world.clock, 365)["by_generation"]
    assert world.keys_of(f"{KEPT}{SPEND}")
    world.vendors.plan("create", "refused")
    world.tick(Orders(retake=name))
    [row] = told(world.bucket, world.clock, 365)["by_generation"]
    assert (row["outcome"], row["calls"]) == ("under way", before["calls"] + 1)
    while world.generation_id == name:
        world.tick()
    for _ in range(3):
        document = told(world.bucket, world.clock, 365)
        [row] = [it for it in document["by_generation"] if it["generation_id"] == name]
        assert (row["outcome"], row["calls"]) == ("done", before["calls"] + 2)
        world.clock.sleep(10 * 86400)


# --- irregularities ---


def test_a_clock_that_was_ahead_hides_nothing() -> None:
    clock, ahead = FakeClock(NOW), FakeClock(NOW + timedelta(days=300))
    bucket = filled(clock, 200)
    told(bucket, ahead, 3650)
    for _ in range(150):
        clock.sleep(3600)
        put(bucket, clock.moment, [call(clock.moment)])
    agree(bucket, clock)


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000])
def test_an_old_record_that_is_not_json_is_named_whenever_it_is_asked_for(content: bytes) -> None:
    clock = FakeClock(NOW)
    bucket = filled(clock, 300)
    key = bucket.list(SPEND)[100].key
    at = clock.moment
    clock.moment = NOW - timedelta(days=250)
    bucket.write(key, content, ANY)
    clock.moment = at
    agree(bucket, clock, 1, 30)
    assert bucket.list(f"{KEPT}{SPEND}")
    for _ in range(2):
        with pytest.raises(StateError, match=rf"{key}: not JSON"):
            told(bucket, clock, 3650)
    bucket.delete(key)
    agree(bucket, clock)


@pytest.mark.parametrize("price", [1e308, float("nan"), float("inf"), 10**400, True, "x", -3, 0.1 + 1e-10])
def test_prices_that_are_none_are_told_as_before(price: object) -> None:
    clock = FakeClock(NOW)
    bucket = filled(clock, 150)
    clock.moment = NOW - timedelta(days=250)
    put(bucket, clock.moment, [call(clock.moment, "runway", price)] * 2)
    clock.moment = NOW
    whole: object = None
    for _ in range(3):
        try:
            document: object = json.dumps(told(bucket, clock, 3650))
        except OverflowError:
            document = "too large"
        whole = whole or document
        assert document == whole
        told(bucket, clock, 30)
    assert bucket.list(f"{KEPT}{SPEND}")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"until": 1, "marked": {}, "months": {}}', b"\xff"])
def test_invalid_sums_are_made_anew(data: bytes) -> None:
    clock = FakeClock(NOW)
    bucket = filled(clock, 300)
    told(bucket, clock, 3650)
    bucket.write(INDEX, data, ANY)
    agree(bucket, clock)
    bucket.write(f"{KEPT}{SPEND}202608.json", data, ANY)
    agree(bucket, clock, 100)
    bucket.delete(f"{KEPT}{SPEND}202601.json")
    with pytest.raises(StateError, match="look again"):
        told(bucket, clock, 3650)
    agree(bucket, clock)


# --- the documents ---


def test_the_documents_are_what_their_schemas_say() -> None:
    clock, numbers = FakeClock(NOW), count()
    bucket = filled(clock, 200)
    rng = random.Random(SEED)
    for _ in range(100):
        write_record(bucket, clock, rng, f"20261001-{next(numbers):04d}")
    clock.sleep(5 * 86400)
    told(bucket, clock, 3650)
    for entry in bucket.list(f"{KEPT}{SPEND}"):
        document = json.loads(bucket.read(entry.key)[0])
        check("kept_index" if entry.key == INDEX else "kept_bills", document)
