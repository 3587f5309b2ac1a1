"""The book of the day: one document a day, `caps/YYYY-MM-DD.json` at the bucket's root, for all channels and machines.

A reservation is one compare-and-set of that document, so no race passes a cap. Nothing is held while the vendor is
asked. The order around a paid call, each step of which can be the last before a crash:

    reserve in the book → save the intent → ask → save the answer → settle in the book

Which day it is, is said by the store's own clock where it has one, else by this machine's; and never a day before the
latest one that has a book: a clock that was set back, or two machines whose clocks differ at midnight, do not begin
with nothing spent. Of the books only the latest is read, however many there are.
"""

import os
from collections.abc import Callable
from datetime import UTC, date, datetime
from random import random
from typing import NamedTuple, TypeVar

from retake.bucket import Bucket
from retake.clock import Clock
from retake.errors import CapReached, StateError
from retake.paid.day_book import DayBook, Fate, Known, Limits, Move, Sums, decoded, encoded
from retake.retrying.state_store import BucketStateStore, Raw

CAPS = "caps/"
"""The folder of a bucket that holds the books, YYYY-MM-DD.json each."""

_TRIES = 60  # while others change the same book; some half a minute
_LONGEST_PAUSE_S = 1.0

_T = TypeVar("_T")


class Reservation(NamedTuple):
    """What was set aside for one call."""

    account: str
    name: str  # "ACCOUNT/NONCE"
    day: str  # the day on which it counts


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
    """The book was moved to an earlier day meanwhile: `args[0]` is the day that was asked for."""


class Caps:
    """The books in `bucket`: all of it, whatever the channel. Thread safe. Every method may raise StorageError, and
    StateError for a book that makes no sense."""

    def __init__(self, bucket: Bucket, clock: Clock, limits: Limits, *, nonce: Callable[[], str] | None = None) -> None:
        self._bucket = bucket
        self._clock = clock
        self._limits = limits
        self._nonce = nonce or (lambda: os.urandom(6).hex())
        pauses = tuple(random() * min(_LONGEST_PAUSE_S, 0.02 * 1.3**n) for n in range(_TRIES))  # noqa: S311
        self._register = BucketStateStore(bucket, CAPS, clock, pauses_s=pauses)

    def today(self, pipeline: str, known: Known = Known()) -> Today:  # noqa: B008  immutable
        """Return the present day, the pipeline's sums in line with what its document says."""
        clock_day, of_store = _clock_day(self._bucket, self._clock)
        while (book := self._read(max(self._latest(), clock_day))).moved:
            self._finish_move(book.day)
        return Today(book, clock_day, of_store, pipeline, self._limits).seen_by(pipeline, known)

    def reserve(self, pipeline: str, usd: float, known: Known) -> Reservation:
        """Set the price of a call aside, atomically; what the pipeline has reserved before is settled in the same step.
        The caller holds the pipeline's lease, and saves the reservation with its intent before the call is made.

        Raises CapReached, with nothing reserved.
        """
        account = known.account or self._nonce()
        name = f"{account}/{self._nonce()}"
        clock_day, of_store = _clock_day(self._bucket, self._clock)

        def reserve(book: DayBook) -> tuple[DayBook, str]:
            before = book.settled(pipeline, known)
            over = Today(before, clock_day, of_store, pipeline, self._limits).over(usd)
            return (before, over) if over else (_reserving(before, pipeline, name, usd), "")

        while True:
            day = max(self._latest(), clock_day)
            if known.day and known.day != day:
                self._settle(known.day, pipeline, known)
            try:
                over = self._change(day, reserve)
            except _Moved:
                self._finish_move(day)
                continue
            if over:
                raise CapReached(over)
            return Reservation(account, name, day)

    def settle(self, pipeline: str, known: Known) -> None:
        """Bring the book of the pipeline's last reservation in line with what its document says. Any number of times.
        The caller holds the pipeline's lease."""
        if known.day:
            self._settle(known.day, pipeline, known)

    def heal(self, pipeline: str, known: Known) -> None:
        """Settle, and also release what was reserved for a call whose intent was never saved."""
        self.settle(pipeline, known)
        latest = self._latest()
        if latest and latest != known.day:
            self._settle(latest, pipeline, known)

    def later(self, day: str) -> list[DayBook]:
        """Return the books of the days after `day`."""
        return [self._read(it) for it in _days(self._register) if it > day]

    def correct(self, day: str) -> None:
        """Make `day` the latest on record: what counts on later ones counts on it from now on. A crash in between is
        finished by whoever looks next, or by doing it again."""
        for it in [it for it in _days(self._register) if it > day]:
            self._change_raw(it, lambda book: (book._replace(moved=book.moved or Move(day, self._nonce())), None))
            self._finish_move(it)

    def clock_day(self) -> str:
        """Return the present day by the clock alone."""
        return _clock_day(self._bucket, self._clock)[0]

    # --- days ---

    def _latest(self) -> str:
        """Return the latest day that has a book, or ""."""
        return max(_days(self._register), default="")

    def _finish_move(self, day: str) -> None:
        book = self._read(day)
        if book.moved is None:
            return
        to, nonce = book.moved
        self._change_raw(to, lambda other: (other.taking_in(book, nonce), None))
        self._bucket.part(CAPS).delete(f"{day}.json")

    # --- books ---

    def _read(self, day: str) -> DayBook:
        return self._decoded(day, self._register.read(day))

    def _settle(self, day: str, pipeline: str, known: Known) -> None:
        def settle(book: DayBook) -> tuple[DayBook, None]:
            return (book.settled(pipeline, known) if pipeline in book.pipelines else book), None

        try:
            self._change(day, settle)
        except _Moved:
            self._finish_move(day)

    def _change(self, day: str, step: Callable[[DayBook], tuple[DayBook, _T]]) -> _T:
        """Change a book that is still counted on. Raises _Moved."""

        def checked(book: DayBook) -> tuple[DayBook, _T]:
            if book.moved:
                raise _Moved(day)
            return step(book)

        return self._change_raw(day, checked)

    def _change_raw(self, day: str, step: Callable[[DayBook], tuple[DayBook, _T]]) -> _T:
        def change(raw: Raw | None) -> tuple[Raw | None, _T]:
            book = self._decoded(day, raw)
            new, result = step(book)
            return (None if new == book else encoded(new)), result

        with self._bucket.alone(CAPS.rstrip("/")):
            return self._register.change(day, change)

    def _decoded(self, day: str, raw: Raw | None) -> DayBook:
        try:
            return decoded(day, raw)
        except ValueError as error:
            where = self._register.where(day)
            raise StateError(
                f"{where}: {error}. It is left as it is, and nothing is paid for; mend it (`spend` tells what was "
                "paid). Without it the day's sum is what each channel's own document says"
            ) from error


def _days(states: BucketStateStore) -> list[str]:
    return [name for name in states.names() if _is_day(name)]


def _clock_day(bucket: Bucket, clock: Clock) -> tuple[str, bool]:
    """Return the day by the store's own clock, or by this machine's if it has none; and whether it is the store's."""
    of_store = bucket.now()
    moment: datetime = of_store or clock.now()
    return moment.astimezone(UTC).strftime("%Y-%m-%d"), of_store is not None


def _reserving(book: DayBook, pipeline: str, name: str, usd: float) -> DayBook:
    return book.with_sums(pipeline, book.of(pipeline).reserving(name, usd))


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


__all__ = ["CAPS", "Caps", "DayBook", "Fate", "Known", "Limits", "Reservation", "Sums", "Today"]
