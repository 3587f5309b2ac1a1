"""The engine: one listing, a second look, repairs, and unknown objects."""

from collections.abc import Iterator, Sequence

import pytest
from damage import trouble

from retake.bucket import ANY
from retake.bucket.failing import FailingBucket, Fault
from retake.bucket.memory import MemoryBucket
from retake.bucket.wrappers import CountingBucket
from retake.checking import CODES, Check, CheckFinding, CheckView, FindingCode, Scope, Severity, found
from retake.clock import FakeClock
from retake.errors import LeaseHeld, StorageError
from retake.exit_codes import ExitCode


@pytest.fixture(autouse=True)
def _codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        CODES, "odd-number", FindingCode(Severity.ERROR, "A number is odd.", "make it even", repairable=True)
    )


class EvenNumbers:
    """An examination: numbers/NAME must hold an even number."""

    title = "numbers"
    apart_s = 0.0

    def __init__(self, *, work: int = 0, held: bool = False) -> None:
        self.work, self.held = work, held

    def subjects(self, view: CheckView) -> Iterator[str]:
        yield from (it.key for it in view.entries("numbers/"))

    def examine(self, view: CheckView, subject: str) -> Iterator[CheckFinding]:
        data = view.read(subject)
        view.looked_at["numbers"] += 1
        if data is not None and int(data) % 2:
            yield found("odd-number", view.where(subject), f"it holds {data.decode()}")

    def busy(self, view: CheckView) -> bool:
        self.work -= 1
        return self.work >= 0

    def repair(self, view: CheckView, subject: str) -> Sequence[str]:
        if self.held:
            raise LeaseHeld("held by a tick")
        view.bucket.write(subject, b"0", ANY)
        return [f"{subject} was made even"]

    def knows(self, key: str) -> bool:
        return key.startswith("numbers/")


def bucket_of(**numbers: int) -> MemoryBucket:
    bucket = MemoryBucket()
    for name, number in numbers.items():
        bucket.write(f"numbers/{name}", str(number).encode(), ANY)
    return bucket


def test_a_whole_bucket_is_listed_once_and_each_object_is_read_once() -> None:
    bucket = CountingBucket(bucket_of(a=2, b=4))
    report = Check([EvenNumbers()], Scope(bucket, FakeClock())).run()
    assert (report.whole, report.exit_code, report.findings) == (True, ExitCode.OK, [])
    assert report.looked_at == {"objects": 2, "bytes": 2, "numbers": 2}
    assert bucket.counts == {"list": 1, "read": 2}


def test_what_does_not_fit_is_reported() -> None:
    report = Check([EvenNumbers()], Scope(bucket_of(a=2, b=3), FakeClock())).run()
    assert report.exit_code == ExitCode.BAD_STATE
    assert report.document()["findings"] == [
        {
            "code": "odd-number",
            "level": "error",
            "where": "numbers/b",
            "what": "it holds 3",
            "todo": "make it even",
            "repairable": True,
            "repaired": False,
        }
    ]


def test_what_fits_at_the_second_look_is_not_reported() -> None:
    bucket = bucket_of(a=3)

    class Tick(EvenNumbers):
        """A tick that is at work and ends after the first look."""

        def busy(self, view: CheckView) -> bool:
            bucket.write("numbers/a", b"4", ANY)
            return super().busy(view)

    assert Check([Tick(work=1)], Scope(bucket, FakeClock())).run().whole


def test_somebody_at_work_for_a_while_is_waited_for() -> None:
    clock = FakeClock()
    before = clock.now()
    report = Check([EvenNumbers(work=3)], Scope(bucket_of(a=3), clock)).run()
    assert [it.code for it in report.findings] == ["odd-number"]
    assert (clock.now() - before).total_seconds() == 3.5


def test_what_somebody_is_at_work_on_all_the_time_is_not_judged() -> None:
    report = Check([EvenNumbers(work=99)], Scope(bucket_of(a=3), FakeClock())).run()
    assert [(it.code, it.level, it.where) for it in report.findings] == [("still-changing", Severity.NOTE, "numbers/a")]
    assert (report.whole, report.exit_code) == (False, ExitCode.TRY_LATER)


def test_a_note_is_told_even_while_somebody_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CODES, "odd-number", FindingCode(Severity.NOTE, "A number is odd.", "nothing"))
    report = Check([EvenNumbers(work=99)], Scope(bucket_of(a=3), FakeClock())).run()
    assert [it.code for it in report.findings] == ["odd-number"]
    assert report.whole


def test_a_repair_says_what_it_did_and_the_next_check_is_clean() -> None:
    bucket = bucket_of(a=3, b=2)
    report = Check([EvenNumbers()], Scope(bucket, FakeClock())).run(repair=True)
    assert (report.whole, report.exit_code) == (True, ExitCode.OK)
    assert report.done == ["numbers/a was made even"]
    assert [(it.repaired, it.todo) for it in report.findings] == [(True, "nothing: numbers/a was made even")]
    assert Check([EvenNumbers()], Scope(bucket, FakeClock())).run().findings == []


def test_what_a_held_lease_keeps_from_being_repaired_is_reported() -> None:
    report = Check([EvenNumbers(held=True)], Scope(bucket_of(a=3), FakeClock())).run(repair=True)
    assert [(it.repaired, it.todo) for it in report.findings] == [(False, "not repaired: held by a tick")]
    assert report.exit_code == ExitCode.BAD_STATE


def test_objects_that_nobody_knows_are_listed_and_not_judged() -> None:
    bucket = bucket_of(a=2)
    bucket.write("holiday.jpg", b"x", ANY)
    report = Check([EvenNumbers()], Scope(bucket, FakeClock())).run()
    assert [(it.code, it.level, it.where) for it in report.findings] == [
        ("unknown-object", Severity.NOTE, "holiday.jpg")
    ]
    assert report.whole


@pytest.mark.parametrize("strangers", [[], ["holiday.jpg"]])
def test_a_bucket_with_nothing_of_ours_is_reported(strangers: list[str]) -> None:
    bucket = MemoryBucket()
    for key in strangers:
        bucket.write(key, b"x", ANY)
    report = Check([EvenNumbers()], Scope(bucket, FakeClock())).run()
    assert [it.code for it in trouble(report)] == ["nothing-here"]
    assert report.exit_code == ExitCode.BAD_STATE


def test_an_object_that_cannot_be_read_is_named_and_the_others_are_looked_at() -> None:
    bucket = FailingBucket(bucket_of(a=2, b=3), Fault(operation="read", key="numbers/a"))
    report = Check([EvenNumbers()], Scope(bucket, FakeClock())).run()
    assert [(it.code, it.where) for it in report.findings] == [("unreadable", "numbers/a"), ("odd-number", "numbers/b")]
    assert (report.whole, report.exit_code) == (False, ExitCode.TRY_LATER)


def test_if_a_lease_cannot_be_checked_the_check_is_incomplete() -> None:
    class Unsure(EvenNumbers):
        def busy(self, view: CheckView) -> bool:
            raise StorageError("the lease cannot be read")

    report = Check([Unsure()], Scope(bucket_of(a=3), FakeClock())).run()
    assert report.exit_code == ExitCode.TRY_LATER
    assert [(it.where, it.what) for it in trouble(report)] == [
        ("numbers", "the lease cannot be read"),
        ("numbers/a", "it holds 3"),
    ]
