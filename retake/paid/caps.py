"""The book of the day: one document a day, `caps/YYYY-MM-DD.json` at the bucket's root, for all channels and machines.

A reservation is one compare-and-set of that document, so no race passes a cap. Nothing is held while the vendor is
asked. The order around a paid call, each step of which can be the last before a crash:

    reserve in the book → save the intent → ask → save the answer → settle in the book

Without a cap there is nothing to ask the book: a reservation is *deferred*, lasts for the day, and the pipeline's
document adds up what is billed of it. The book is told once, at the end of each tick.

Which day it is, is said by the store's own clock where it has one, else by this machine's; and never a day before the
latest one that has a book: a clock that was set back, or two machines whose clocks differ at midnight, do not begin
with nothing spent. Of the books only the latest is read, however many there are.

What is reserved counts against the caps as what is settled does: nothing in between can make the sum too small.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

from retake.bucket import Bucket
from retake.clock import Clock
from retake.errors import CapReached, StateError
from retake.paid.day_book import DayBook, Fate, Known, Limits, Move, Sums, decoded, encoded, is_day
from retake.retrying.state_store import BucketStateStore, Raw

CAPS = "caps/"
"""The folder of a bucket that holds the books, YYYY-MM-DD.json each."""

_TRIES = 60  # while others change the same book; some half a minute
_LONGEST_PAUSE_S = 1.0

_RECENT = 31
"""Books, the latest ones, in which a reservation is looked for that is not in the book of its day."""

_NO_DAY = "~"  # after all days

_T = TypeVar("_T")


class Reservation(NamedTuple):
    """What was set aside for one call, or for several that follow each other."""

    account: str
    name: str  # "ACCOUNT/NONCE"
    day: str  # the day on which it counts
    usd: float | None = None  # for several calls: what they cost together
    deferred: bool = False  # the book is told when it is settled


class Today(NamedTuple):
    """The day that a payment counts on now, as one pipeline sees it."""

    book: DayBook
    clock_day: str  # by the clock that was asked
    of_store: bool  # whether that is the store's own
    pipeline: str
    limits: Limits

    @property
    def day(self) -> str:
        return self.book.day

    @property
    def sums(self) -> Sums:
        return self.book.of(self.pipeline)

    @property
    def doubt(self) -> str:
        """What is odd about the day; "" if it is the clock's own."""
        if self.day == self.clock_day:
            return ""
        clock = "the store's clock" if self.of_store else "this machine's clock"
        return f"counted on {self.day}, the latest day on record; {clock} says {self.clock_day}"

    @property
    def left(self) -> float | None:
        """What the pipeline may still spend, in US dollars; None: as much as it takes."""
        return self.limits.left(self.book, self.pipeline)

    def seen_by(self, pipeline: str, known: Known) -> "Today":
        """Return the day as the pipeline sees it, its sums in line with what its document says."""
        return self._replace(pipeline=pipeline, book=self.book.settled(pipeline, known))

    def over(self, usd: float) -> str:
        """Return why a call of that price, in US dollars, must not be made, or ""."""
        over = self.limits.over(self.book, self.pipeline, usd)
        if not over:
            return ""
        if self.doubt:
            return f"{over}; {self.doubt}. If that day is wrong: spend --latest-day YYYY-MM-DD"
        return f"{over}; goes on at 00:00 UTC"


class _Moved(Exception):
    """The book was moved to an earlier day: `args[0]` is the day that was asked for."""


class _Books:
    """The books in `bucket`, as they lie there."""

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self._bucket = bucket
        shares = (byte / 256 for byte in os.urandom(_TRIES))  # `random` takes longer to load than a day's book to read
        pauses = tuple(share * min(_LONGEST_PAUSE_S, 0.02 * 1.3**n) for n, share in enumerate(shares))
        self._register = BucketStateStore(bucket, CAPS, clock, pauses_s=pauses)
        self._unsynced = BucketStateStore(bucket, CAPS, clock, pauses_s=pauses, synced=False)

    def days(self) -> list[str]:
        return [name for name in self._register.names() if is_day(name)]

    def latest(self) -> str:
        """Return the latest day that has a book, or ""."""
        return max(self.days(), default="")

    def read(self, day: str) -> DayBook:
        return self._decoded(day, self._register.read(day))

    def change(
        self, day: str, step: Callable[[DayBook], tuple[DayBook, _T]], *, begins: bool = True, synced: bool = True
    ) -> _T:
        """Change a book that is still counted on; one that is not there is begun only if it `begins`. The change need
        not outlast a power cut unless `synced`. Raises _Moved."""

        def change(raw: Raw | None) -> tuple[Raw | None, _T]:
            book = self._decoded(day, raw)
            if book.moved or (raw is None and not begins):
                raise _Moved(day)
            new, result = step(book)
            return (None if new == book else encoded(new)), result

        with self._bucket.alone(CAPS.rstrip("/")):
            return (self._register if synced else self._unsynced).change(day, change)

    def move(self, day: str, to: str) -> None:
        """Move the sums of a book to that of an earlier day."""
        with suppress(_Moved):
            self.change(day, lambda book: (book._replace(moved=Move(to, f"{day}/{_nonce()}")), None), begins=False)
        self.finish_move(day)

    def finish_move(self, day: str) -> None:
        """Take up a move that somebody has begun, if so. Where another one has finished it meanwhile, the day may have
        started over, and its book stays."""
        book = self.read(day)
        if book.moved is None:
            return
        to, nonce = book.moved

        def take_in(other: DayBook) -> tuple[DayBook, bool]:
            unfinished = self.read(day).moved == book.moved  # else `to`, too, may have been moved and started over
            return (other.taking_in(book, nonce) if unfinished else other), unfinished

        try:
            unfinished = self.change(to, take_in)
        except _Moved:
            self.finish_move(to)
            self.finish_move(day)
        else:
            if unfinished and self.read(day).moved == book.moved:
                self._bucket.part(CAPS).delete(f"{day}.json")

    def mend(self, day: str, step: Callable[[DayBook], DayBook]) -> None:
        """Write what `step` makes of a book that was not moved, also where that is the same."""

        def mend(raw: Raw | None) -> tuple[Raw | None, None]:
            book = self._decoded(day, raw)
            return (encoded(step(book)) if book.moved is None else None), None

        with self._bucket.alone(CAPS.rstrip("/")):
            self._register.change(day, mend)

    def _decoded(self, day: str, raw: Raw | None) -> DayBook:
        try:
            return decoded(day, raw)
        except ValueError as error:
            raise StateError(
                f"{self._register.where(day)}: {error}. It is left as it is, and nothing is paid for; fix it (`spend` "
                "tells what was paid). Without it the day's sum is what each channel's own document says"
            ) from error


class Caps:
    """The books in `bucket`: all of it, whatever the channel. Thread safe. Every method may raise StorageError, and
    StateError for a book that makes no sense."""

    def __init__(self, bucket: Bucket, clock: Clock, limits: Limits) -> None:
        self._bucket = bucket
        self._clock = clock
        self._limits = limits
        self._books = _Books(bucket, clock)

    def today(self, pipeline: str, known: Known = Known()) -> Today:  # noqa: B008  immutable
        """Return the present day, the pipeline's sums in line with what its document says."""
        clock_day, of_store = _clock_day(self._bucket, self._clock)
        while (book := self._books.read(max(self._books.latest(), clock_day))).moved:
            self._books.finish_move(book.day)
        return Today(book, clock_day, of_store, pipeline, self._limits).seen_by(pipeline, known)

    def reserve(self, pipeline: str, usd: float, known: Known) -> Reservation:
        """Set the price of a call aside, atomically; what the pipeline has reserved before is settled in the same step.
        The caller holds the pipeline's lease, and saves the reservation with its intent before the call is made.

        Raises CapReached, with nothing reserved.
        """
        account = known.account or _nonce()
        name = f"{account}/{_nonce()}"
        clock_day, of_store = _clock_day(self._bucket, self._clock)
        looked = False  # for a reservation that was moved from a day that has started over since

        def reserve(book: DayBook) -> tuple[DayBook, str]:
            if known.day == book.day and pipeline not in book.pipelines and not looked:
                raise _Moved(book.day)
            before = book.settled(pipeline, known)
            over = Today(before, clock_day, of_store, pipeline, self._limits).over(usd)
            sums = before.of(pipeline).reserving(name, usd)
            return (before, over) if over else (before.with_sums(pipeline, sums), "")

        while True:
            day = max(self._books.latest(), clock_day)
            if known.account and known.day != day:
                self.settle(pipeline, known)
                self._settle_between(known.day or "", day, pipeline, known)  # unless healing did it
            try:
                over = self._books.change(day, reserve, begins=day == clock_day)
            except _Moved:
                self._books.finish_move(day)
                self.settle(pipeline, known)
                looked = True
                continue
            if over:
                raise CapReached(over)
            return Reservation(account, name, day)

    def defer(self, pipeline: str, usd: float, known: Known) -> Reservation:
        """Return a reservation that the book is told of when it is settled: whatever the caps, the call may be made.
        The one of the day is used again, for what all calls on it cost together. The caller does as after `reserve`.
        """
        account = known.account or _nonce()
        day = max(self._books.latest(), self.clock_day())
        if known.billed_usd is not None and known.name and known.day == day:
            return Reservation(account, known.name, day, round(known.billed_usd + usd, 6), deferred=True)
        self.heal(pipeline, known)
        return Reservation(account, f"{account}/{_nonce()}", day, usd, deferred=True)

    def settle(self, pipeline: str, known: Known) -> None:
        """Bring the book of the pipeline's last reservation in line with what its document says. Any number of times.
        The caller holds the pipeline's lease."""
        if known.day and not self._settle(known.day, pipeline, known):
            self._settle_between("", _NO_DAY, pipeline, known)  # its day was moved

    def heal(self, pipeline: str, known: Known) -> None:
        """Settle, and also release what was reserved for a call whose intent was never saved."""
        self.settle(pipeline, known)
        self._settle_between(known.day or "", _NO_DAY, pipeline, known)

    def later(self, day: str) -> list[DayBook]:
        """Return the books of the days after `day`."""
        return [self._books.read(it) for it in self._after(day)]

    def _after(self, day: str) -> list[str]:
        return [it for it in sorted(self._books.days()) if it > day]

    def finish_move(self, day: str) -> None:
        """Finish moving the book of a day to an earlier one, if somebody has begun to."""
        self._books.finish_move(day)

    def correct(self, day: str) -> None:
        """Make `day` the latest on record: what counts on later ones counts on it from now on. A crash in between is
        finished by whoever looks next, or by doing it again."""
        for it in reversed(self._after(day)):
            self._books.finish_move(it)  # to a book that is still there, and may be one of those below
        for it in self._after(day):
            self._books.move(it, day)

    def mend(self, day: str, step: Callable[[DayBook], DayBook]) -> None:
        """Replace the book of a day by what `step` makes of it, also where that is the same: what is derived from the
        rest is computed again. The caller holds the leases of the pipelines whose sums `step` changes."""
        self._books.mend(day, step)

    def clock_day(self) -> str:
        """Return the present day by the clock alone."""
        return _clock_day(self._bucket, self._clock)[0]

    def _settle_between(self, after: str, before: str, pipeline: str, known: Known) -> None:
        """Settle in the latest book, and in whichever else has something reserved or is being moved, of the days
        between those two."""
        recent = sorted(self._books.days())[-_RECENT:]
        for day in (it for it in reversed(recent) if after < it < before):
            if day == recent[-1] or (book := self._books.read(day)).moved or book.of(pipeline).open:
                self._settle(day, pipeline, known)

    def _settle(self, day: str, pipeline: str, known: Known) -> bool:
        """Return whether the book has something of the pipeline."""

        def settle(book: DayBook) -> tuple[DayBook, bool]:
            there = pipeline in book.pipelines or self._opens(book, pipeline, known)
            return (book.settled(pipeline, known) if there else book), there

        try:
            # Until the next payment a power cut may take away what the document says is billed: it is reserved then.
            # What was released others may spend, so that must stay.
            return self._books.change(day, settle, synced=known.fate is Fate.RELEASED)
        except _Moved:
            self._books.finish_move(day)
            return False

    def _opens(self, book: DayBook, pipeline: str, known: Known) -> bool:
        """Return whether a deferred reservation is the first of the pipeline in a book, and did not move away."""
        if known.billed_usd is None or known.day != book.day:
            return False
        latest = self._books.latest()
        return latest in ("", book.day) or self._books.read(latest).of(pipeline).deferred[0] != known.name


def _nonce() -> str:
    return os.urandom(6).hex()


def _clock_day(bucket: Bucket, clock: Clock) -> tuple[str, bool]:
    """Return the day by the store's own clock, or by this machine's if it has none; and whether it is the store's."""
    of_store = bucket.now()
    moment: datetime = of_store or clock.now()
    return moment.astimezone(UTC).strftime("%Y-%m-%d"), of_store is not None


__all__ = ["CAPS", "Caps", "DayBook", "Fate", "Known", "Limits", "Reservation", "Sums", "Today"]
