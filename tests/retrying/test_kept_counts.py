"""Counted dead letters: the answers equal those from the whole folder, with as many operations whatever is in it."""

import json
import os
import random
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from failing_buckets import Died, Dying, ReadOnly

from retake.bucket import ANY, Bucket
from retake.bucket.directory import DirectoryBucket
from retake.bucket.memory import MemoryBucket
from retake.bucket.wrappers import CountingBucket
from retake.clock import FakeClock
from retake.errors import StateError
from retake.retrying.dead_letters import DeadLetters, LettersKept
from retake.retrying.kept_counts import KEPT, Files, KeptCounts, Row

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
INDEX = "kept/dead_letters/index.json"


def letters(bucket: Bucket, clock: FakeClock, *, counted: bool = True) -> DeadLetters:
    return DeadLetters(bucket, clock, counted=counted)


def put(bucket: Bucket, letter_id: str) -> None:
    for name in ("report.json", f"{letter_id}.json"):
        bucket.write(f"dead_letters/{letter_id}/{name}", b"{}", ANY)


def filled(bucket: Bucket, number: int) -> Bucket:
    for n in range(number):
        put(bucket, f"{NOW - timedelta(days=400) + n * timedelta(days=390) / number:%Y%m%d-%H%M}-{n}")
    return bucket


def whole(bucket: Bucket) -> list[str]:
    return sorted({entry.key.split("/")[1] for entry in bucket.list("dead_letters/")})


def agree(bucket: Bucket, clock: FakeClock) -> None:
    """Check that the counts match the letters."""
    kept, plain = letters(bucket, clock), letters(bucket, clock, counted=False)
    assert kept.count() == plain.count() == len(whole(bucket))
    assert kept.count(reported=True) == plain.count(reported=True)
    assert kept.folders() == plain.folders()
    assert kept.list(7) == plain.list(7)


@pytest.mark.parametrize("kind", ["memory", "directory"])
def test_a_look_asks_the_same_however_many_letters_there_are(
    kind: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)

    def costs(number: int) -> list[dict[str, int]]:
        empty = MemoryBucket() if kind == "memory" else DirectoryBucket(str(tmp_path_factory.mktemp("bucket")))
        bucket, clock = filled(empty, number), FakeClock(NOW)
        letters(bucket, clock).count()
        found = []
        for reported in (False, True):
            counting = CountingBucket(bucket)
            assert letters(counting, clock).count(reported=reported) == number
            found.append(dict(counting.counts))
        return found

    assert costs(150) == costs(1500) == [{"read": 1, "list": 1}] * 2


def test_a_page_reads_its_reports_and_the_months_that_it_needs() -> None:
    bucket, clock = filled(MemoryBucket(), 3000), FakeClock(NOW)
    letters(bucket, clock).count()
    counting = CountingBucket(bucket)
    assert len(letters(counting, clock).list(50)) == 50
    assert counting.counts["list"] == 1
    assert counting.counts["read"] <= 1 + 50 + 14


def test_nothing_is_kept_of_few_letters_and_nothing_where_it_cannot_be_written() -> None:
    bucket = filled(MemoryBucket(), 99)
    agree(bucket, FakeClock(NOW))
    assert not bucket.list(KEPT)
    assert letters(ReadOnly(filled(MemoryBucket(), 200)), FakeClock(NOW)).count() == 200


@pytest.mark.parametrize("seed", range(25))
def test_what_is_counted_is_what_is_there_after_whatever_happens(seed: int) -> None:
    rng, clock, bucket = random.Random(seed), FakeClock(NOW), MemoryBucket()
    filled(bucket, rng.randrange(90, 250))
    for _ in range(60):
        dying = Dying(bucket, rng.choice((0, 1, 2, 5, 1000)))
        its, there = letters(dying, clock), whole(bucket)
        try:
            match rng.randrange(6):
                case 0:
                    clock.sleep(rng.choice((3600.0, 86400.0, 5 * 86400.0)))
                case 1:
                    its.count()
                case 2 if there:
                    its.drop(rng.choice(there))
                case 3:
                    its.put(f"{clock.now():%Y%m%d-%H%M}", "event", {}, {}, {"log.txt": b"1"})
                case 4 if there:  # it failed again, years later
                    its.put(rng.choice(there), "event", {"again": True}, {}, {"more.txt": b"2"})
                case 5:
                    its.put(rng.choice(("before-1", "20240101-0000", "+1", "event-1")), "event", {}, {})
        except Died:
            pass
        agree(bucket, clock)


@pytest.mark.parametrize("at", range(16))
def test_a_death_while_counting_leaves_the_older_counts(at: int) -> None:
    bucket, clock = filled(MemoryBucket(), 300), FakeClock(NOW)
    with pytest.raises(Died):
        letters(Dying(bucket, at), clock).count()
    agree(bucket, clock)


def test_a_clock_that_was_ahead_hides_nothing() -> None:
    bucket, clock = filled(MemoryBucket(), 200), FakeClock(NOW)
    letters(bucket, FakeClock(NOW + timedelta(days=300))).count()
    letters(bucket, clock).put(f"{NOW:%Y%m%d-%H%M}", "event", {}, {})
    agree(bucket, clock)
    for number in range(150):
        clock.sleep(3600)
        letters(bucket, clock).put(f"{clock.now():%Y%m%d-%H%M}-{number}", "event", {}, {})
    agree(bucket, clock)


def test_one_of_two_simultaneous_counts_prevails_and_a_mark_meanwhile_holds() -> None:
    bucket, clock = filled(MemoryBucket(), 200), FakeClock(NOW)
    counts = KeptCounts(bucket, clock, LettersKept())
    first, second = counts.read(), counts.read()
    counts.count_settled(first)
    counts.count_settled(second)
    agree(bucket, clock)
    again = MemoryBucket()
    counts = KeptCounts(filled(again, 200), clock, LettersKept())
    seen, gone = counts.read(), whole(again)[5]
    letters(again, clock).drop(gone)
    counts.count_settled(seen)
    agree(again, clock)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"until": 1, "marked": {}, "months": {}}', b"\xff"])
def test_invalid_counts_are_made_anew(data: bytes) -> None:
    bucket, clock = filled(MemoryBucket(), 300), FakeClock(NOW)
    letters(bucket, clock).count()
    bucket.write(INDEX, data, ANY)
    agree(bucket, clock)
    bucket.write("kept/dead_letters/202601.json", data, ANY)
    with pytest.raises(Exception, match="look again"):
        letters(bucket, clock).folders()
    agree(bucket, clock)


def test_a_letter_that_another_program_removed_is_not_listed_and_not_counted_from_then_on() -> None:
    bucket, clock = filled(MemoryBucket(), 200), FakeClock(NOW)
    letters(bucket, clock).count()
    newest = letters(bucket, clock).list(1)[0]
    for entry in bucket.list(f"dead_letters/{newest.id}/"):
        bucket.delete(entry.key)
    assert letters(bucket, clock).count() == 200
    assert letters(bucket, clock).list(1) == letters(bucket, clock, counted=False).list(1)
    agree(bucket, clock)


@pytest.mark.parametrize("file", [[None, 1.0], ["x", 1.0], [2, None], [1e400, 1.0]])
def test_a_month_with_a_file_of_no_size_or_time_is_counted_anew(file: list[object]) -> None:
    bucket, clock = filled(MemoryBucket(), 150), FakeClock(NOW)
    letters(bucket, clock).count()
    key = "kept/dead_letters/202604.json"
    month = json.loads(bucket.read(key)[0])
    next(iter(month["items"].values()))["report.json"] = file
    bucket.write(key, json.dumps(month).encode(), ANY)
    with suppress(StateError):  # the first look finds it
        letters(bucket, clock).list(150)
    agree(bucket, clock)
    assert len(letters(bucket, clock).list(150)) == 150


def test_whoever_has_written_letters_for_weeks_marks_one_that_was_counted_meanwhile() -> None:
    bucket, clock = MemoryBucket(), FakeClock()
    writer = letters(bucket, clock, counted=False)
    ids = [f"{clock.now():%Y%m%d}-{number:04d}" for number in range(120)]
    for name in ids:
        writer.put(name, "poster", {}, {})
    clock.sleep(10 * 24 * 3600)
    assert letters(bucket, clock).count() == letters(bucket, clock).count() == 120
    writer.drop(ids[0])
    assert letters(bucket, clock).count() == 119


def test_counting_takes_no_longer_where_the_clock_is_set_back_meanwhile() -> None:
    bucket, clock, read = filled(MemoryBucket(), 200), FakeClock(NOW), list[str]()

    class SlowLetters(LettersKept):
        def row(self, bucket: Bucket, item_id: str, files: Files) -> Row | None:
            read.append(item_id)
            clock.moment += timedelta(hours=-1) if len(read) == 2 else timedelta(seconds=0.5)
            return super().row(bucket, item_id, files)

    counts = KeptCounts(bucket, clock, SlowLetters())
    counts.count_settled(counts.read())
    assert len(read) < 10
