"""The day's book in a bucket: no race passes a cap, no clock begins a fresh one, no crash makes it too small."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from payer import pay
from s3_server import KEYS, moto_server, new_bucket
from s3_zoo import Animal, ignores_conditions, refuses_conditions, tame, zoo

from retake.bucket import ANY, Bucket, Entry
from retake.bucket.b2.bucket import open_b2
from retake.bucket.directory import DirectoryBucket
from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.bucket.s3 import S3Bucket
from retake.bucket.s3.conditions import forget
from retake.bucket.wrappers import CountingBucket
from retake.clock import FakeClock, SystemClock
from retake.errors import CapReached, StateError, StorageError
from retake.paid.caps import Caps
from retake.paid.day_book import Fate, Known, Limits
from retake.sandbox.b2 import B2Sandbox

PAYER = Path(__file__).with_name("payer.py")
ROOT = Path(__file__).parents[2]
TODAY = "2026-01-01"


def caps(bucket: Bucket, clock: FakeClock | None = None, cap: float | None = 1.0, own: float | None = None) -> Caps:
    return Caps(bucket, clock or FakeClock(), Limits(cap, own))


def book(bucket: Bucket, day: str = TODAY) -> dict[str, Any]:
    return dict(json.loads(bucket.read(f"caps/{day}.json")[0]))


def spent(bucket: Bucket) -> float:
    """Return the sum over all days."""
    keys = [entry.key for entry in bucket.list("caps/")]
    return round(sum(json.loads(bucket.read(key)[0])["spent_usd"] for key in keys), 6)


class StoreWithClock(MemoryBucket):
    """A store that tells the time, as B2 and S3 do."""

    def __init__(self, moment: datetime) -> None:
        super().__init__()
        self.moment = moment

    def now(self) -> datetime | None:
        return self.moment


# --- no race passes a cap -------------------------------------------------------------------------------------------


def race(connect: Callable[[], Bucket], payers: int, usd: float, cap: float) -> int:
    """Let many payers, each with its own pipeline, pay at once until the cap is reached; return the number of calls."""
    begin, made, lock = threading.Barrier(payers), [0], threading.Lock()

    def run(number: int) -> None:
        book = Caps(connect(), SystemClock(), Limits(cap))
        begin.wait()
        calls = pay(book, f"story/{number}", usd)
        with lock:
            made[0] += calls

    threads = [threading.Thread(target=run, args=(number,)) for number in range(payers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made[0]


def test_no_race_of_threads_passes_the_cap_in_memory() -> None:
    store = MemoryStore()
    assert race(lambda: MemoryBucket(store), payers=16, usd=0.05, cap=2.0) == 40


@pytest.mark.usefixtures("no_fsync")
def test_no_race_of_threads_passes_the_cap_in_a_directory(tmp_path: Path) -> None:
    assert race(lambda: DirectoryBucket(str(tmp_path / "bucket")), payers=8, usd=0.05, cap=2.0) == 40


def test_no_race_of_processes_passes_the_cap_in_a_directory(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    url = f"file:{tmp_path / 'bucket'}"
    payers = [
        subprocess.Popen(
            [sys.executable, str(PAYER), url, f"story/{number}", "0.05", "1.5"],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(6)
    ]
    for payer in payers:
        assert payer.stdin is not None
        payer.stdin.write("\n")
        payer.stdin.flush()
    made = [int(payer.communicate(timeout=60)[0]) for payer in payers]
    assert sum(made) == 30
    assert spent(DirectoryBucket(str(tmp_path / "bucket"))) == 1.5


def test_no_race_passes_the_cap_on_b2() -> None:
    with B2Sandbox() as sandbox:
        url = sandbox.storage_url(uuid4().hex)
        assert race(lambda: open_b2(url, environ=sandbox.environment()), payers=3, usd=0.1, cap=0.5) == 5


@pytest.fixture
def _keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    forget()
    yield
    forget()


@pytest.mark.usefixtures("_keys")
@pytest.mark.parametrize("animal", [tame, refuses_conditions, ignores_conditions], ids=lambda it: it.__name__)
def test_no_race_passes_the_cap_on_s3_whether_it_honours_conditions_or_not(animal: Animal) -> None:
    with moto_server() as endpoint, zoo(endpoint) as proxy:
        proxy.animal = animal
        url = new_bucket(proxy.endpoint)
        assert race(lambda: S3Bucket(url), payers=3, usd=0.1, cap=0.5) == 5
        assert spent(S3Bucket(url)) == 0.5


def test_a_cap_of_one_channel_leaves_the_others_theirs() -> None:
    bucket = MemoryBucket()
    both = caps(bucket, cap=1.0, own=0.6)
    assert pay(both, "story/en", 0.2) == 3
    assert pay(both, "story/ru", 0.2) == 2, "the cap of the bucket comes next"
    assert {name: it["settled_usd"] + it["reserved_usd"] for name, it in book(bucket)["pipelines"].items()} == {
        "story/en": 0.6,
        "story/ru": pytest.approx(0.4),
    }


def test_a_reservation_costs_few_operations_however_many_days_are_on_record() -> None:
    store = MemoryStore()
    for number in range(400):
        day = (datetime(2024, 1, 1, tzinfo=UTC) + timedelta(days=number)).strftime("%Y-%m-%d")
        MemoryBucket(store).write(f"caps/{day}.json", b"{}", ANY)
    counting = CountingBucket(MemoryBucket(store))
    caps(counting).reserve("story", 0.1, Known())
    assert counting.counts == {"now": 1, "list": 1, "read": 1, "write": 1}


# --- days and clocks ------------------------------------------------------------------------------------------------


def test_a_clock_that_is_set_back_counts_on_the_latest_day_and_is_reported() -> None:
    bucket, clock = MemoryBucket(), FakeClock()
    assert pay(caps(bucket, clock), "story", 0.5) == 2
    for days in (-1, 0, -400):
        clock.moment = FakeClock().moment + timedelta(days=days)
        with pytest.raises(CapReached, match="the daily cap"):
            caps(bucket, clock).reserve("story", 0.5, Known("a"))
    assert [entry.key for entry in bucket.list("caps/")] == [f"caps/{TODAY}.json"]
    today = caps(bucket, clock).today("story")
    assert today.doubt == f"counted on {TODAY}, the latest day on record; this machine's clock says 2024-11-27"
    assert "spend --latest-day" in today.over(0.5)


def test_two_machines_whose_clocks_differ_at_midnight_share_a_day() -> None:
    bucket = MemoryBucket()
    behind, ahead = FakeClock(), FakeClock()
    behind.moment = ahead.moment - timedelta(seconds=20)
    made = 0
    for clock in [ahead, behind] * 5:
        with suppress(CapReached):
            caps(bucket, clock).reserve(f"story/{id(clock)}", 0.25, Known(spent_usd=0))
            made += 1
    assert made == 4


def test_the_next_day_begins_with_nothing() -> None:
    bucket, clock = MemoryBucket(), FakeClock()
    assert pay(caps(bucket, clock), "story", 0.5) == 2
    clock.sleep(86_400)
    assert pay(caps(bucket, clock), "story", 0.5) == 2


def test_the_stores_own_clock_says_which_day_it_is() -> None:
    bucket, wrong = StoreWithClock(datetime(2026, 5, 5, tzinfo=UTC)), FakeClock()
    reservation = caps(bucket, wrong).reserve("story", 0.5, Known())
    assert reservation.day == "2026-05-05"
    bucket.moment -= timedelta(days=2)
    assert "the store's clock says 2026-05-03" in caps(bucket, wrong).today("story").doubt


def test_an_operator_corrects_the_day_of_a_clock_that_was_ahead_and_nothing_is_forgotten() -> None:
    bucket, clock = MemoryBucket(), FakeClock(datetime(2031, 7, 7, tzinfo=UTC))
    assert pay(caps(bucket, clock), "story", 0.25) == 4
    clock.moment = FakeClock().moment
    assert pay(caps(bucket, clock), "story", 0.25) == 0
    assert [it.day for it in caps(bucket, clock).later(TODAY)] == ["2031-07-07"]
    caps(bucket, clock).correct("2025-12-31")
    assert book(bucket, "2025-12-31")["spent_usd"] == 1.0
    assert [entry.key for entry in bucket.list("caps/")] == ["caps/2025-12-31.json"]
    assert pay(caps(bucket, clock), "story", 0.25) == 4, "the day after begins with nothing"


def test_a_correction_that_dies_anywhere_is_finished_by_whoever_pays_next() -> None:
    def world() -> MemoryStore:
        store = MemoryStore()
        pay(caps(MemoryBucket(store), FakeClock(datetime(2031, 7, 7, tzinfo=UTC))), "story", 0.25)
        return store

    counted = FailingBucket(MemoryBucket(world()))
    caps(counted).correct(TODAY)
    for number in range(1, len(counted.operations) + 1):
        for after in (False, True):
            store = world()
            with suppress(Crash):
                caps(FailingBucket(MemoryBucket(store), Fault(Crash, number=number, after=after))).correct(TODAY)
            with pytest.raises(CapReached):
                caps(MemoryBucket(store)).reserve("story", 0.25, Known("a"))
            assert spent(MemoryBucket(store)) == 1.0, f"{number} {after=}"


def test_a_clock_that_is_ahead_once_more_can_be_corrected_once_more() -> None:
    bucket, ahead = MemoryBucket(), FakeClock(datetime(2031, 7, 7, tzinfo=UTC))
    for times in (1, 2, 3):
        caps(bucket, ahead).reserve("story", 0.25, Known())
        caps(bucket).correct(TODAY)
        assert spent(bucket) == 0.25 * times


class Interrupted(MemoryBucket):
    """Before its first `operation` on the book of `day`, somebody else does something."""

    def __init__(self, store: MemoryStore, operation: str, day: str, others: Callable[[], object]) -> None:
        super().__init__(store, meanwhile=self._interrupt)
        self._at, self._others = (operation, f"caps/{day}.json"), [others]

    def _interrupt(self, operation: str, key: str) -> None:
        if (operation, key) == self._at and self._others:
            self._others.pop()()


def test_a_payment_does_not_begin_a_day_again_that_is_corrected_just_then() -> None:
    store = MemoryStore()
    pay(caps(MemoryBucket(store), FakeClock(datetime(2031, 7, 7, tzinfo=UTC)), cap=0.5), "story", 0.25)
    late = Interrupted(store, "read", "2031-07-07", lambda: caps(MemoryBucket(store)).correct(TODAY))
    with pytest.raises(CapReached):
        caps(late, cap=0.5).reserve("other", 0.25, Known())
    assert [entry.key for entry in late.list("caps/")] == [f"caps/{TODAY}.json"]


def test_two_who_finish_a_correction_leave_the_book_of_the_day_that_has_begun_anew() -> None:
    store = MemoryStore()
    caps(MemoryBucket(store)).reserve("story", 0.25, Known())

    def finish_and_pay() -> None:
        caps(MemoryBucket(store)).today("")
        caps(MemoryBucket(store)).reserve("other", 0.3, Known())

    caps(Interrupted(store, "read", "2025-12-31", finish_and_pay)).correct("2025-12-31")
    assert book(MemoryBucket(store))["spent_usd"] == 0.3
    assert spent(MemoryBucket(store)) == 0.55


def test_whoever_finishes_a_correction_late_begins_no_book_that_was_corrected_in_its_turn() -> None:
    store = MemoryStore()
    caps(MemoryBucket(store)).reserve("story", 0.25, Known())

    def finish_and_correct_again() -> None:
        caps(MemoryBucket(store)).today("")
        caps(MemoryBucket(store)).correct("2025-12-30")

    caps(Interrupted(store, "read", "2025-12-31", finish_and_correct_again)).correct("2025-12-31")
    assert [entry.key for entry in MemoryBucket(store).list("caps/")] == ["caps/2025-12-30.json"]
    assert spent(MemoryBucket(store)) == 0.25


def two_days() -> MemoryStore:
    store = MemoryStore()
    caps(MemoryBucket(store)).reserve("story", 0.25, Known())
    caps(MemoryBucket(store), FakeClock(datetime(2026, 1, 2, tzinfo=UTC))).reserve("other", 0.3, Known())
    return store


def test_two_corrections_at_once_lose_nothing() -> None:
    store = two_days()
    caps(Interrupted(store, "read", "2025-12-31", lambda: caps(MemoryBucket(store)).correct(TODAY))).correct(
        "2025-12-31"
    )
    assert spent(MemoryBucket(store)) == 0.55


def test_a_correction_after_one_that_died_counts_nothing_twice() -> None:
    store = two_days()
    with suppress(Crash):
        caps(FailingBucket(MemoryBucket(store), Fault(Crash, operation="delete"))).correct(TODAY)
    caps(MemoryBucket(store)).correct("2025-12-31")
    assert [entry.key for entry in MemoryBucket(store).list("caps/")] == ["caps/2025-12-31.json"]
    assert spent(MemoryBucket(store)) == 0.55


def test_a_correction_moves_what_one_that_died_was_moving() -> None:
    store = MemoryStore()
    caps(MemoryBucket(store)).reserve("story", 0.25, Known())
    with suppress(Crash):
        caps(FailingBucket(MemoryBucket(store), Fault(Crash, operation="write", number=2))).correct("2025-12-31")
    caps(MemoryBucket(store)).correct("2025-12-30")
    assert [entry.key for entry in MemoryBucket(store).list("caps/")] == ["caps/2025-12-30.json"]
    assert spent(MemoryBucket(store)) == 0.25


@pytest.mark.parametrize(("fate", "usd"), [(Fate.BILLED, 0.25), (Fate.RELEASED, 0.0)])
def test_what_became_of_a_call_is_told_to_the_book_that_its_day_was_moved_to(fate: Fate, usd: float) -> None:
    bucket = MemoryBucket()
    reservation = caps(bucket, FakeClock(datetime(2031, 7, 7, tzinfo=UTC))).reserve("story", 0.25, Known("a"))
    caps(bucket).correct(TODAY)
    caps(bucket, FakeClock(datetime(2026, 1, 2, tzinfo=UTC))).reserve("other", 0.3, Known())
    caps(bucket).settle("story", Known("a", reservation.name, reservation.day, fate))
    assert book(bucket)["pipelines"]["story"] == {"settled_usd": usd, "reserved_usd": 0.0, "open": {}}


@pytest.mark.parametrize(("fate", "usd"), [(Fate.BILLED, 0.25), (Fate.RELEASED, 0.0)])
def test_the_next_payment_tells_that_book_also_where_the_day_has_begun_anew(fate: Fate, usd: float) -> None:
    bucket = MemoryBucket()
    reservation = caps(bucket).reserve("story", 0.25, Known("a"))
    caps(bucket).correct("2025-12-31")
    caps(bucket).reserve("story", 0.5, Known("a", reservation.name, reservation.day, fate))
    moved = book(bucket, "2025-12-31")["pipelines"]["story"]
    assert moved == {"settled_usd": usd, "reserved_usd": 0.0, "open": {}}
    assert book(bucket)["spent_usd"] == 0.5


# --- crashes --------------------------------------------------------------------------------------------------------


def test_what_was_reserved_and_never_begun_is_released_by_the_next_payment_and_by_healing() -> None:
    bucket = MemoryBucket()
    for _ in range(5):
        caps(bucket).reserve("story", 1.0, Known("a"))
    caps(bucket).heal("story", Known("a"))
    assert spent(bucket) == 0


@pytest.mark.parametrize("pays", [False, True], ids=["healing", "the next payment"])
def test_what_was_reserved_before_midnight_and_never_begun_does_not_stay(pays: bool) -> None:
    """Somebody else may have begun the next day by then."""
    bucket, clock = MemoryBucket(), FakeClock()
    first = caps(bucket, clock).reserve("story", 0.25, Known("a"))
    known = Known("a", first.name, first.day, Fate.BILLED)
    clock.sleep(86_400)
    caps(bucket, clock).reserve("story", 0.25, known)
    clock.sleep(86_400)
    caps(bucket, clock).reserve("other", 0.25, Known("b"))
    if pays:
        caps(bucket, clock).reserve("story", 0.25, known)
    else:
        caps(bucket, clock).heal("story", known)
    assert [book(bucket, day)["spent_usd"] for day in (TODAY, "2026-01-02")] == [0.25, 0.0]


def test_what_became_of_a_call_is_told_any_number_of_times() -> None:
    bucket = MemoryBucket()
    reservation = caps(bucket).reserve("story", 0.3, Known("a"))
    billed = Known("a", reservation.name, reservation.day, Fate.BILLED)
    for _ in range(3):
        caps(bucket).settle("story", billed)
        assert book(bucket)["pipelines"]["story"] == {"settled_usd": 0.3, "reserved_usd": 0.0, "open": {}}


def test_a_call_that_ends_after_midnight_is_settled_on_its_own_day() -> None:
    bucket, clock = MemoryBucket(), FakeClock()
    reservation = caps(bucket, clock).reserve("story", 0.3, Known("a"))
    clock.sleep(86_400)
    billed = Known("a", reservation.name, reservation.day, Fate.BILLED)
    caps(bucket, clock).reserve("story", 0.2, billed)
    assert book(bucket)["pipelines"]["story"]["settled_usd"] == 0.3
    assert book(bucket, "2026-01-02")["pipelines"]["story"]["reserved_usd"] == 0.2


def test_a_payment_whose_reservation_cannot_be_written_is_not_made() -> None:
    failing = FailingBucket(MemoryBucket(), Fault(operation="write", times=99))
    with pytest.raises(StorageError):
        caps(failing).reserve("story", 0.3, Known())


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"pipelines": 7}'])
def test_an_invalid_book_stops_payments_and_is_named(data: bytes) -> None:
    bucket = MemoryBucket()
    bucket.write(f"caps/{TODAY}.json", data, ANY)
    with pytest.raises(StateError, match=rf"caps/{TODAY}\.json"):
        caps(bucket).reserve("story", 0.3, Known())
    assert bucket.read(f"caps/{TODAY}.json")[0] == data


def test_without_a_cap_an_invalid_book_stops_payments_only_when_its_day_is_over() -> None:
    bucket, clock = MemoryBucket(), FakeClock()
    uncapped = caps(bucket, clock, cap=None)
    first = uncapped.defer("story", 0.3, Known("a"))
    billed = Known("a", first.name, first.day, Fate.BILLED, billed_usd=0.3)
    uncapped.settle("story", billed)
    bucket.write(f"caps/{TODAY}.json", b"{", ANY)
    assert uncapped.defer("story", 0.2, billed).usd == 0.5
    clock.sleep(86_400)
    with pytest.raises(StateError, match="payments stop at it, without a cap when its day is over"):
        uncapped.defer("story", 0.2, billed)


def test_other_files_in_the_folder_are_no_days() -> None:
    bucket = MemoryBucket()
    for name in ("notes.json", "2026-13-01.json", "20260102.json", "2027-01-01.txt", "old/2027-01-01.json"):
        bucket.write(f"caps/{name}", b"x", ANY)
    assert caps(bucket).reserve("story", 0.3, Known()).day == TODAY


class Counted(DirectoryBucket):
    """Counts the objects that it lists."""

    listed = 0

    def scan(self, prefix: str, after: str = "") -> Iterator[Entry]:
        for entry in super().scan(prefix, after):
            self.listed += 1
            yield entry


def test_a_payment_looks_at_no_book_of_an_earlier_day(tmp_path: Path) -> None:
    bucket, clock = Counted(str(tmp_path)), FakeClock()
    for day in range(1, 100):
        bucket.write(f"caps/{clock.now() - timedelta(days=day):%Y-%m-%d}.json", b"{}", ANY)
    books = caps(bucket, clock)
    reserved = books.reserve("story", 0.1, Known())
    known = Known(reserved.account, reserved.name, reserved.day, Fate.BILLED)
    books.settle("story", known)
    books.heal("story", known)
    assert books.today("story", known).day == TODAY
    assert books.later(TODAY) == []
    assert bucket.listed == 0
