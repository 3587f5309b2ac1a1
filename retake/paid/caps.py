"""The day's book: one document a day, `caps/YYYY-MM-DD.json` at the bucket's root, for all channels and machines.

A reservation is one compare-and-set of that document, so no race can exceed a cap. Nothing is held while the vendor is
asked. This is the order around a paid call; a crash may come after any step:

    reserve in the book → save the intent → ask → save the answer → settle in the book

Without a cap the book need not be consulted. Then a reservation is *deferred*: it lasts for the day, the pipeline's
document adds up how much of it is billed, and the book is updated once, at the end of each tick.

The day is that of the store's own clock if it has one, else of this machine's, but never before the latest day that has
a book. So a clock that was set back, or two machines whose clocks differ at midnight, do not start with nothing spent.
Only the latest book is read, and only names of days after the clock's day are looked up, however many books there are.

Reserved amounts count against the caps like settled ones, so the sum is never too small.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

from retake.bucket import Bucket
from retake.clock import Clock
from retake.errors import CapReached
from retake.paid.day_book import DayBook, Fate, Known, Limits, Move, Sums, decoded, encoded, is_day
from retake.retrying.state_store import BucketStateStore, Raw, unreadable

CAPS = "caps/"
"""The folder of a bucket that holds the books, YYYY-MM-DD.json each."""

_MAX_TRIES = 60  # while others change the same book; about half a minute
_MAX_PAUSE_S = 1.0

_MAX_BOOKS_SEARCHED = 31
"""Maximum number of books, the latest ones, that are searched for a reservation that is not in its day's book."""

_REMEDY = (
    "payments stop at it, without a cap when its day is over. Fix it, or remove it and run `retake check --repair`, "
    "which adds up what was paid"
)

_AFTER_ALL_DAYS = "~"  # sorts after every day

_T = TypeVar("_T")


class Reservation(NamedTuple):
    """The price reserved for one call, or for several calls in a row."""

    account: str
    name: str  # "ACCOUNT/NONCE"
    day: str  # the day on which it counts
    usd: float | None = None  # for several calls: their total price
    deferred: bool = False  # the book is updated only when it is settled


class Today(NamedTuple):
    """The day on which payments currently count, as seen by one pipeline."""

    book: DayBook
    clock_day: str  # the day by the clock that was asked
    of_store: bool  # whether that is the store's own clock
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
        """What is odd about the day, or "" if it is the clock's day."""
        if self.day == self.clock_day:
            return ""
        clock = "the store's clock" if self.of_store else "this machine's clock"
        return f"counted on {self.day}, the latest day on record; {clock} says {self.clock_day}"

    @property
    def left(self) -> float | None:
        """What the pipeline may still spend, in US dollars; None: no limit."""
        return self.limits.left(self.book, self.pipeline)

    def seen_by(self, pipeline: str, known: Known) -> "Today":
        """Return the day as seen by the pipeline, with its sums updated to what its document says."""
        return self._replace(pipeline=pipeline, book=self.book.settled(pipeline, known))

    def over(self, usd: float) -> str:
        """Return why a call of this price, in US dollars, must not be made, or ""."""
        over = self.limits.over(self.book, self.pipeline, usd)
        if not over:
            return ""
        if self.doubt:
            return f"{over}; {self.doubt}. If that day is wrong: spend --latest-day YYYY-MM-DD"
        return f"{over}; continues at 00:00 UTC"


class _Moved(Exception):
    """The book was moved to an earlier day, or is gone. `args[0]` is its day."""


class _Books:
    """The books in `bucket`, as stored."""

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self._bucket = bucket
        # Not `random`: importing it takes longer than reading a book.
        shares = (byte / 256 for byte in os.urandom(_MAX_TRIES))
        pauses = tuple(share * min(_MAX_PAUSE_S, 0.02 * 1.3**n) for n, share in enumerate(shares))
        self._register = BucketStateStore(bucket, CAPS, clock, pauses_s=pauses, remedy=_REMEDY)
        self._unsynced = BucketStateStore(bucket, CAPS, clock, pauses_s=pauses, synced=False, remedy=_REMEDY)

    def days(self, after: str = "") -> list[str]:
        """Return the days after `after` that have a book, in order."""
        return [name for name in self._register.names(after) if is_day(name)]

    def latest(self, at_least: str = "") -> str:
        """Return the latest day that has a book, or `at_least` if that is later."""
        return max(self.days(at_least), default=at_least)

    def read(self, day: str) -> DayBook:
        return self._decoded(day, self._register.read(day))

    def change(
        self, day: str, step: Callable[[DayBook], tuple[DayBook, _T]], *, begins: bool = True, synced: bool = True
    ) -> _T:
        """Change a book, and return the result of `step`.

        With `begins` a missing book is created. Unless `synced`, the change may be lost in a power cut. Raises _Moved
        if the book was moved, or is missing without `begins`.
        """

        def change(raw: Raw | None) -> tuple[Raw | None, _T]:
            book = self._decoded(day, raw)
            if book.moved or (raw is None and not begins):
                raise _Moved(day)
            new, result = step(book)
            return (None if new == book else encoded(new)), result

        with self._bucket.alone(CAPS.rstrip("/")):
            return (self._register if synced else self._unsynced).change(day, change)

    def move(self, day: str, to: str) -> None:
        """Move the sums of a day's book to the book of an earlier day."""
        with suppress(_Moved):
            self.change(day, lambda book: (book._replace(moved=Move(to, f"{day}/{_nonce()}")), None), begins=False)
        self.finish_move(day)

    def finish_move(self, day: str) -> None:
        """Finish a move of the day's book, if one was begun.

        If somebody else finishes it meanwhile, the day may have started over with a new book, which stays.
        """
        book = self.read(day)
        if book.moved is None:
            return
        to, nonce = book.moved

        def take_in(other: DayBook) -> tuple[DayBook, bool]:
            unfinished = self.read(day).moved == book.moved  # otherwise `to` may have been moved and started over too
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
        """Write what `step` makes of a book, even if that is the same. A book that was moved is not changed."""

        def mend(raw: Raw | None) -> tuple[Raw | None, None]:
            book = self._decoded(day, raw)
            return (encoded(step(book)) if book.moved is None else None), None

        with self._bucket.alone(CAPS.rstrip("/")):
            self._register.change(day, mend)

    def _decoded(self, day: str, raw: Raw | None) -> DayBook:
        try:
            return decoded(day, raw)
        except ValueError as error:
            raise unreadable(self._register.where(day), str(error), _REMEDY) from error


class Caps:
    """The books in `bucket`, which is the whole bucket, not a channel's part. Thread safe. Every method may raise
    StorageError, and StateError for an invalid book."""

    def __init__(self, bucket: Bucket, clock: Clock, limits: Limits) -> None:
        self._bucket = bucket
        self._clock = clock
        self._limits = limits
        self._books = _Books(bucket, clock)

    def today(self, pipeline: str, known: Known = Known()) -> Today:  # noqa: B008  immutable
        """Return the current day, with the pipeline's sums updated to what its document says."""
        clock_day, of_store = _clock_day(self._bucket, self._clock)
        while (book := self._books.read(self._books.latest(clock_day))).moved:
            self._books.finish_move(book.day)
        return Today(book, clock_day, of_store, pipeline, self._limits).seen_by(pipeline, known)

    def reserve(self, pipeline: str, usd: float, known: Known) -> Reservation:
        """Reserve the price of a call, atomically, settling what the pipeline has reserved before in the same write.

        The caller holds the pipeline's lease, and saves the reservation with its intent before it makes the call.
        Raises CapReached, with nothing reserved.
        """
        account = known.account or _nonce()
        name = f"{account}/{_nonce()}"
        clock_day, of_store = _clock_day(self._bucket, self._clock)
        looked = False  # in other books, since the reservation's day may have been moved and started over

        def reserve(book: DayBook) -> tuple[DayBook, str]:
            if known.day == book.day and pipeline not in book.pipelines and not looked:
                raise _Moved(book.day)
            before = book.settled(pipeline, known)
            over = Today(before, clock_day, of_store, pipeline, self._limits).over(usd)
            sums = before.of(pipeline).reserving(name, usd)
            return (before, over) if over else (before.with_sums(pipeline, sums), "")

        while True:
            day = self._books.latest(clock_day)
            if known.account and known.day != day:
                self.settle(pipeline, known)
                self._settle_between(known.day or "", day, pipeline, known)  # in case `heal` did not run
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
        """Return a reservation that the book learns of only when it is settled. The caps are not checked.

        The reservation of the day is reused; its `usd` is then the total price of all calls on it. The caller does the
        same as for `reserve`.
        """
        account = known.account or _nonce()
        day = self._books.latest(self.clock_day())
        if known.billed_usd is not None and known.name and known.day == day:
            return Reservation(account, known.name, day, round(known.billed_usd + usd, 6), deferred=True)
        self.heal(pipeline, known)
        return Reservation(account, f"{account}/{_nonce()}", day, usd, deferred=True)

    def settle(self, pipeline: str, known: Known) -> None:
        """Update the book of the pipeline's last reservation to what its document says. Idempotent. The caller holds
        the pipeline's lease."""
        if known.day and not self._settle(known.day, pipeline, known):
            self._settle_between("", _AFTER_ALL_DAYS, pipeline, known)  # its day was moved

    def heal(self, pipeline: str, known: Known) -> None:
        """Do what `settle` does, and also release what was reserved for a call whose intent was never saved."""
        self.settle(pipeline, known)
        self._settle_between(known.day or "", _AFTER_ALL_DAYS, pipeline, known)

    def later(self, day: str) -> list[DayBook]:
        """Return the books of the days after `day`."""
        return [self._books.read(it) for it in self._books.days(day)]

    def finish_move(self, day: str) -> None:
        """Finish a move of the day's book to an earlier day, if one was begun."""
        self._books.finish_move(day)

    def correct(self, day: str) -> None:
        """Make `day` the latest day on record by moving the sums of later days to it.

        After a crash, the next read finishes a move that was begun, and calling this again moves the rest.
        """
        for it in reversed(self._books.days(day)):
            self._books.finish_move(it)  # its target still exists, and may be moved itself below
        for it in self._books.days(day):
            self._books.move(it, day)

    def mend(self, day: str, step: Callable[[DayBook], DayBook]) -> None:
        """Replace the book of a day by what `step` makes of it.

        It is written even if `step` changes nothing, since writing recomputes the derived fields. The caller holds the
        leases of the pipelines whose sums `step` changes.
        """
        self._books.mend(day, step)

    def clock_day(self) -> str:
        """Return the current day by the clock alone, whatever books there are."""
        return _clock_day(self._bucket, self._clock)[0]

    def _settle_between(self, after: str, before: str, pipeline: str, known: Known) -> None:
        """Settle in the books of the days between the two (exclusive): in the latest book of all, and in those that
        have something reserved for the pipeline or are being moved."""
        recent = self._books.days(after)[-_MAX_BOOKS_SEARCHED:]
        for day in (it for it in reversed(recent) if it < before):
            if day == recent[-1] or (book := self._books.read(day)).moved or book.of(pipeline).open:
                self._settle(day, pipeline, known)

    def _settle(self, day: str, pipeline: str, known: Known) -> bool:
        """Settle in the book of `day`, and return whether it has anything of the pipeline."""

        def settle(book: DayBook) -> tuple[DayBook, bool]:
            there = pipeline in book.pipelines or self._opens(book, pipeline, known)
            return (book.settled(pipeline, known) if there else book), there

        try:
            # A power cut may undo the settling of a billed call, which is then still reserved. It must not undo a
            # release, since others may already have spent the money.
            return self._books.change(day, settle, synced=known.fate is Fate.RELEASED)
        except _Moved:
            self._books.finish_move(day)
            return False

    def _opens(self, book: DayBook, pipeline: str, known: Known) -> bool:
        """Return whether a deferred reservation is the pipeline's first entry in the book, and was not moved away."""
        if known.billed_usd is None or known.day != book.day:
            return False
        latest = self._books.latest()
        return latest in ("", book.day) or self._books.read(latest).of(pipeline).deferred[0] != known.name


def _nonce() -> str:
    return os.urandom(6).hex()


def _clock_day(bucket: Bucket, clock: Clock) -> tuple[str, bool]:
    """Return the day by the store's own clock, or by this machine's if it has none, and whether it is the store's."""
    of_store = bucket.now()
    moment: datetime = of_store or clock.now()
    return moment.astimezone(UTC).strftime("%Y-%m-%d"), of_store is not None


__all__ = ["CAPS", "Caps", "DayBook", "Fate", "Known", "Limits", "Reservation", "Sums", "Today"]
