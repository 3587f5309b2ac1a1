"""The day books (`caps/`), compared with the paid calls on record."""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from retake.checking.bills import BillExamination, PaidSoFar
from retake.checking.examination import CheckFinding, Examination, found
from retake.checking.view import CheckView, Unparsable
from retake.paid.caps import CAPS, Caps
from retake.paid.day_book import DayBook, Fate, Known, Sums, decoded, encoded, is_day
from retake.paid.paid_calls import FOLDER as PAID

_ALL = CAPS
"""The only subject: judging one book needs the records of all days."""

_TOLERANCE_USD = 0.00005
"""Sums that differ by less are equal, because each is rounded to a millionth."""


class _StoredBook(NamedTuple):
    """A book with its raw document."""

    raw: Mapping[str, Any]
    book: DayBook


class DayBookExamination(Examination):
    """The day books, for the pipelines whose paid calls `bills` knows. Entries of other pipelines are not judged, nor
    are the paid calls of programs that use Retake as a library (`paid/`)."""

    title = "books of the days"

    def __init__(self, caps: Caps, bills: Sequence[BillExamination]) -> None:
        self._caps, self._bills = caps, bills

    def subjects(self, view: CheckView) -> Iterator[str]:
        yield _ALL

    def examine(self, view: CheckView, subject: str) -> Iterator[CheckFinding]:
        paying = {it.places.pipeline: paid for it in self._bills if (paid := it.refresh(view)) is not None}
        days: list[str] = []
        moved_to, moved = "", set[str]()
        for entry in view.entries(CAPS):
            if not _is_book(entry.key):
                continue
            days.append(day := _day(entry.key))
            where = view.where(entry.key)
            view.looked_at["day_books"] += 1
            try:
                kept = _read(view, day)
            except (Unparsable, ValueError) as error:
                yield found("day-book-invalid", where, str(error))
                continue
            if kept is None:
                days.pop()
            elif kept.book.moved:
                what = f"its sums were moved to {kept.book.moved.to}, but it still exists"
                yield found("day-move-unfinished", where, what)
            else:
                moved_to = moved_to or (day if kept.book.moves_in else "")
                moved.update(kept.book.moved_here)
                yield from self._book(where, kept, paying, moved)
        yield from self._missing(view, days, moved_to, paying)

    def busy(self, view: CheckView) -> bool:
        return any(it.busy(view) for it in self._bills)

    def repair(self, view: CheckView, subject: str) -> Sequence[str]:
        """Recompute what is derived: for each pipeline under its lease, and then the sums for people."""
        days = [_day(it.key) for it in view.entries(CAPS) if _is_book(it.key)]
        done: list[str] = []
        for day in days:
            if (kept := _read_or_none(view, day)) and kept.book.moved:
                self._caps.finish_move(day)
                done.append(f"the move of {day} to an earlier day was finished")
        for bills in self._bills:
            with bills.leased(view):
                done += self._mend(view, bills)
        for day in days:
            kept = _read_or_none(view, day)
            if kept and not kept.book.moved and _wrong_figures(kept):
                self._caps.mend(day, lambda book: book)
                done.append(f"the sums in {CAPS}{day}.json were added up again")
        return done

    def knows(self, key: str) -> bool:
        return _is_book(key) or (key.startswith(PAID) and key.endswith(".json"))

    # --- one book ---

    def _book(
        self, where: str, kept: _StoredBook, paying: Mapping[str, PaidSoFar], moved: Container[str]
    ) -> Iterator[CheckFinding]:
        """Check one book. `moved` are the days whose sums are in books of earlier days; a new book for such a day lacks
        some of that day's payments."""
        if wrong := _wrong_figures(kept):
            yield found("day-figures-wrong", where, wrong)
        for bills in self._bills:
            name = bills.places.pipeline
            if (paid := paying.get(name)) is None:
                continue
            before, after = kept.book.of(name), kept.book.settled(name, paid.known).of(name)
            left = [it for it in before.open if it not in after.open and it != paid.known.name]
            if left:
                usd = sum(before.open[it] for it in left)
                what = f"{name}: {usd:.3f} USD remain reserved for {len(left)} that nobody will make"
                yield found("reservation-left", where, what)
            if not kept.book.moves_in and kept.book.day not in moved:
                yield from _sums(where, after, bills, kept.book.day, paid)

    def _missing(
        self, view: CheckView, days: Sequence[str], moved_to: str, paying: Mapping[str, PaidSoFar]
    ) -> Iterator[CheckFinding]:
        for bills in self._bills:
            if (paid := paying.get(bills.places.pipeline)) is None:
                continue
            for day in _without_book(bills, days, moved_to, paid):
                usd = bills.table.usd_of(day)
                what = f"{bills.places.pipeline} has paid {usd:.3f} USD on that day, and it has no book"
                yield found("day-book-missing", view.where(f"{CAPS}{day}.json"), what)

    # --- repair ---

    def _mend(self, view: CheckView, bills: BillExamination) -> list[str]:
        """Correct the books by the paid calls of one pipeline, whose lease is held."""
        name, paid, done = bills.places.pipeline, bills.refresh(view), list[str]()
        if paid is None:
            return []
        days, moved_to = [_day(it.key) for it in view.entries(CAPS) if _is_book(it.key)], ""
        moved: set[str] = set()
        for day in days:
            if (kept := _read_or_none(view, day)) is None or kept.book.moved:
                continue
            moved_to = moved_to or (day if kept.book.moves_in else "")
            moved.update(kept.book.moved_here)
            new = _corrected(kept.book, bills, paid, moved)
            if new != kept.book:
                self._caps.mend(day, lambda book: _corrected(book, bills, paid, moved))
                done.append(f"the sums of {name} in {CAPS}{day}.json were taken from its paid calls")
        for day in [*_without_book(bills, days, moved_to, paid)]:
            self._caps.mend(day, lambda book: _new_book(book, bills, paid))
            done.append(f"{CAPS}{day}.json was made from the paid calls of {name}")
        return done


def _corrected(book: DayBook, bills: BillExamination, paid: PaidSoFar, moved: Container[str]) -> DayBook:
    """Return a book with the pipeline's sums corrected by its document and its paid calls; only by its document if sums
    were moved to this book or from its day, which is then one of `moved`."""
    name = bills.places.pipeline
    book = book.settled(name, paid.known)
    if book.moves_in or book.day in moved:
        return book
    if not any(it.code == "day-sum-wrong" for it in _sums("", book.of(name), bills, book.day, paid)):
        return book
    return book.with_sums(name, book.of(name)._replace(settled=bills.table.usd_of(book.day)))


def _new_book(book: DayBook, bills: BillExamination, paid: PaidSoFar) -> DayBook:
    """Return a book without entries of the pipeline, completed with what is on record about it."""
    known, sums = paid.known, Sums(bills.table.usd_of(book.day))
    if known.name and known.day == book.day and known.fate is Fate.OPEN:
        sums = sums.reserving(known.name, paid.pending_usd)
    if known.name and known.day == book.day and known.billed_usd is not None:
        sums = sums._replace(deferred=(known.name, known.billed_usd))
    return book.with_sums(bills.places.pipeline, sums)


def _sums(where: str, sums: Sums, bills: BillExamination, day: str, paid: PaidSoFar) -> Iterator[CheckFinding]:
    """Compare what a book has settled with the paid calls of the day.

    An excess in the book was paid for calls whose records are gone, with two exceptions: if the document's own count
    agrees with the records, the book is wrong; and if the call under way has an answer in a file, a tick that then
    died, or an unlock, may have entered it only into the book.
    """
    usd, known = bills.table.usd_of(day), paid.known
    if abs(sums.settled - usd) < _TOLERANCE_USD:
        return
    under_way = known.day == day and known.fate is Fate.OPEN and _has_bill(sums, known)
    if under_way and abs(sums.settled - usd - paid.pending_usd) < _TOLERANCE_USD:
        return
    what = f"{bills.places.pipeline}: {sums.settled:.3f} USD are settled, and its paid calls come to {usd:.3f} USD"
    counted = known.spent_day == day and known.fate is not Fate.OPEN and abs(known.spent_usd - usd) < _TOLERANCE_USD
    if sums.settled < usd or (counted and bills.table.whole):
        yield found("day-sum-wrong", where, what)
    elif bills.table.whole:  # otherwise the unreadable records are findings already
        yield found("bills-missing", where, what)


def _has_bill(sums: Sums, known: Known) -> bool:
    """Return whether the book has the bill of a call that is still under way in the document."""
    deferred, settled = sums.deferred
    return known.name not in sums.open or (deferred == known.name and settled > (known.billed_usd or 0.0))


def _without_book(bills: BillExamination, days: Sequence[str], moved_to: str, paid: PaidSoFar) -> Iterator[str]:
    """Yield the days on which the pipeline has paid but whose book is missing: days between two with a book, and the
    day of its last reservation, unless the tick died before it wrote the book. Later days may have been moved to an
    earlier one."""
    there, known = {*days}, paid.known
    needed = {
        day for day in bills.table.days() if days and days[0] < day < days[-1] and not (moved_to and day > moved_to)
    }
    if known.day and is_day(known.day) and not moved_to:
        untold = (known.billed_usd or 0.0) if paid.interrupted else 0.0
        if bills.table.usd_of(known.day) - untold >= _TOLERANCE_USD:
            needed.add(known.day)
    yield from sorted(needed - there)


def _wrong_figures(kept: _StoredBook) -> str:
    """Return what is wrong with a book's sums for people, or ""."""
    right, raw = encoded(kept.book), kept.raw
    if not _same(raw.get("spent_usd"), right["spent_usd"]):
        return f"spent_usd is not {right['spent_usd']:.3f}, the sum of its parts"
    for name, sums in right["pipelines"].items():
        if not _same(raw["pipelines"][name].get("reserved_usd"), sums["reserved_usd"]):
            return f"reserved_usd of {name} is not {sums['reserved_usd']:.3f}, the sum of its open calls"
    return ""


def _same(value: object, usd: float) -> bool:
    return isinstance(value, (int, float)) and usd - _TOLERANCE_USD < value < usd + _TOLERANCE_USD


def _is_book(key: str) -> bool:
    return key.startswith(CAPS) and key.endswith(".json") and is_day(_day(key))


def _day(key: str) -> str:
    return key.removeprefix(CAPS).removesuffix(".json")


def _read(view: CheckView, day: str) -> _StoredBook | None:
    """Return a book, or None if there is none. Raises Unparsable, ValueError."""
    raw = view.document(f"{CAPS}{day}.json")
    return None if raw is None else _StoredBook(raw, decoded(day, raw))


def _read_or_none(view: CheckView, day: str) -> _StoredBook | None:
    try:
        return _read(view, day)
    except ValueError:  # Unparsable too
        return None
