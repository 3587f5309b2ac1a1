"""The book of the day: one document a day, `caps/YYYY-MM-DD.json` at the bucket's root, for all channels and machines.

A reservation is one compare-and-set of that document, so no race passes a cap. Nothing is held while the vendor is
asked. The order around a paid call, each step of which can be the last before a crash:

    reserve in the book → save the intent → ask → save the answer → settle in the book

Which day it is, is said by the store's own clock where it has one, else by this machine's; and never a day before the
latest one that has a book: a clock that was set back, or two machines whose clocks differ at midnight, do not begin
with nothing spent. Of the books only the latest is read, however many there are.

A call's price is reserved before it is made and settled or released when its result is on record. Both count against
the caps, so nothing that happens in between can make the sum too small.

A reservation is named ACCOUNT/NONCE. The account is the pipeline's: its document carries it from then on, together with
its last reservation and what became of that (`Known`). That is what tells a reservation that was never used, because
the machine died before the intent was saved, from one whose document was removed: the first is released, the second
counts as billed.
"""

import os
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from retake.bucket import Bucket
from retake.clock import Clock
from retake.errors import CapReached, StateError
from retake.retrying.state_store import BucketStateStore, Raw


class Fate(StrEnum):
    """What became of a reservation, by the document of its pipeline."""

    OPEN = "open"  # the call is under way, or nobody knows yet what became of it
    BILLED = "billed"
    RELEASED = "released"  # the call was certainly not carried out


class Known(NamedTuple):
    """What the document of a pipeline says of its last reservation, and of the day before there were books."""

    account: str | None = None  # None: the document is new, older than reservations, or was removed
    name: str | None = None
    day: str | None = None  # whose book it is in
    fate: Fate = Fate.OPEN
    spent_day: str = ""  # the day that `spent_usd` belongs to, by the document itself
    spent_usd: float = 0.0
    unbilled_usd: float | None = None  # of a reservation for several calls: what is not billed yet, or never will be


class Sums(NamedTuple):
    """What one pipeline has spent in a day, in US dollars."""

    settled: float = 0.0
    open: Mapping[str, float] = {}  # prices of the calls under way, by reservation

    @property
    def reserved(self) -> float:
        return _rounded(sum(self.open.values()))

    @property
    def spent(self) -> float:
        """Settled and reserved: what counts against a cap."""
        return _rounded(self.settled + sum(self.open.values()))

    def reserving(self, name: str, usd: float) -> "Sums":
        return self._replace(open={**self.open, name: usd})

    def settling(self, known: Known) -> "Sums":
        """Return the sums in line with what the pipeline's document says. The caller holds the pipeline's lease, and no
        call of it is being prepared."""
        settled, left = self.settled, {}
        for name, usd in self.open.items():
            if name == known.name:
                unbilled = _unbilled(known, usd)
                settled += usd - unbilled
                if known.fate is Fate.OPEN:
                    left[name] = unbilled
            elif known.account is None or not name.startswith(f"{known.account}/"):
                settled += usd  # of a document that is gone: nobody knows any more, so it counts
        return Sums(_rounded(settled), left)

    def plus(self, other: "Sums") -> "Sums":
        return Sums(_rounded(self.settled + other.settled), {**self.open, **other.open})


def _unbilled(known: Known, usd: float) -> float:
    """Return how much of its last reservation, of which the book has `usd`, the pipeline has not been billed."""
    if known.unbilled_usd is not None:
        return min(usd, known.unbilled_usd)
    return 0.0 if known.fate is Fate.BILLED else usd


class Move(NamedTuple):
    """A book whose sums go to the book of an earlier day, by an operator's order."""

    to: str
    nonce: str  # by which the other book knows that it has them


class DayBook(NamedTuple):
    """One day. `moved`: not to be counted on any more."""

    day: str
    pipelines: Mapping[str, Sums] = {}
    moves_in: tuple[str, ...] = ()  # nonces of the moves whose sums are in it
    moved: Move | None = None

    @property
    def spent(self) -> float:
        return _rounded(sum(sums.spent for sums in self.pipelines.values()))

    def of(self, pipeline: str) -> Sums:
        return self.pipelines.get(pipeline, Sums())

    def with_sums(self, pipeline: str, sums: Sums) -> "DayBook":
        return self._replace(pipelines={**self.pipelines, pipeline: sums})

    def settled(self, pipeline: str, known: Known) -> "DayBook":
        """Return the book in line with what the pipeline's document says (`Sums.settling`). What the document has
        counted for this day by itself is carried over where the book has nothing of the pipeline: it is older than the
        book, or the book was removed."""
        if pipeline in self.pipelines:
            return self.with_sums(pipeline, self.of(pipeline).settling(known))
        if known.spent_day != self.day or not known.spent_usd:
            return self
        return self.with_sums(pipeline, Sums(_rounded(known.spent_usd)))

    def taking_in(self, other: "DayBook", nonce: str) -> "DayBook":
        """Return the book with the sums of one that is moved here; once, however often it is asked."""
        if nonce in self.moves_in:
            return self
        book = self._replace(moves_in=(*self.moves_in, nonce))
        for pipeline, sums in other.pipelines.items():
            book = book.with_sums(pipeline, book.of(pipeline).plus(sums))
        return book


class Limits(NamedTuple):
    """What may be spent in a day, in US dollars; None: as much as it takes."""

    bucket_usd: float | None = None  # by all pipelines together
    pipeline_usd: float | None = None  # by each

    def left(self, book: DayBook, pipeline: str) -> float | None:
        """What the pipeline may still spend; None: no limit."""
        lefts = [
            cap - spent
            for cap, spent in ((self.bucket_usd, book.spent), (self.pipeline_usd, book.of(pipeline).spent))
            if cap is not None
        ]
        return max(0.0, _rounded(min(lefts))) if lefts else None

    def over(self, book: DayBook, pipeline: str, usd: float) -> str:
        """Why a call of that price is not to be made on the book's day; "" if it may be made."""
        own = book.of(pipeline).spent
        for cap, spent, name in (
            (self.bucket_usd, book.spent, "the daily cap"),
            (self.pipeline_usd, own, f"the daily cap of {pipeline}"),
        ):
            if cap is not None and _rounded(spent + usd) > cap:
                return f"{name}: {spent:.3f} of {cap:.3f} USD are spent, {usd:.3f} more are asked for"
        return ""


def _rounded(usd: float) -> float:
    """Round to a millionth of a dollar, never below 0."""
    return max(0.0, round(usd, 6))


# --- as it lies in a register ---


def encoded(book: DayBook) -> Raw:
    raw: dict[str, Any] = {
        "day": book.day,
        "spent_usd": book.spent,  # for people; what counts is below
        "pipelines": {
            name: {"settled_usd": sums.settled, "reserved_usd": sums.reserved, "open": dict(sums.open)}
            for name, sums in sorted(book.pipelines.items())
        },
    }
    if book.moves_in:
        raw["moves_in"] = list(book.moves_in)
    if book.moved:
        raw["moved"] = book.moved._asdict()
    return raw


def decoded(day: str, raw: Raw | None) -> DayBook:
    """Raises ValueError, naming the field."""
    if raw is None:
        return DayBook(day)
    pipelines = _object("pipelines", raw.get("pipelines"))
    moves_in, moved = raw.get("moves_in") or [], raw.get("moved")
    if not isinstance(moves_in, list) or not all(isinstance(it, str) for it in moves_in):
        raise ValueError("moves_in: is no list of texts")
    if moved is not None and not (
        isinstance(moved, Mapping) and isinstance(moved.get("to"), str) and isinstance(moved.get("nonce"), str)
    ):
        raise ValueError('moved: is no {"to", "nonce"}')
    return DayBook(
        day,
        {name: _sums(f"pipelines.{name}", sums) for name, sums in pipelines.items()},
        tuple(moves_in),
        Move(moved["to"], moved["nonce"]) if moved else None,
    )


def _sums(field: str, value: Any) -> Sums:
    raw = _object(field, value)
    open_calls = _object(f"{field}.open", raw.get("open"))
    return Sums(
        _amount(f"{field}.settled_usd", raw.get("settled_usd", 0.0)),
        {name: _amount(f"{field}.open.{name}", usd) for name, usd in open_calls.items()},
    )


def _object(field: str, value: Any) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{field}: is no object")
    return value or {}


def _amount(field: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1e9:
        raise ValueError(f"{field}: {value!r} is no amount")
    return float(value)


CAPS = "caps/"
"""The folder of a bucket that holds the books, YYYY-MM-DD.json each."""

_TRIES = 60  # while others change the same book; some half a minute
_LONGEST_PAUSE_S = 1.0

_T = TypeVar("_T")


class Reservation(NamedTuple):
    """What was set aside for one call, or for several that follow each other."""

    account: str
    name: str  # "ACCOUNT/NONCE"
    day: str  # the day on which it counts
    usd: float | None = None  # for several calls: what they cost together


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
        shares = (byte / 256 for byte in os.urandom(_TRIES))  # `random` takes longer to load than a day's book to read
        pauses = tuple(share * min(_LONGEST_PAUSE_S, 0.02 * 1.3**n) for n, share in enumerate(shares))
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

    def mend(self, day: str, step: Callable[[DayBook], DayBook]) -> None:
        """Replace the book of a day by what `step` makes of it, also where that is the same: what is derived from the
        rest is computed anew. The caller holds the leases of the pipelines whose sums `step` changes."""

        def mend(raw: Raw | None) -> tuple[Raw | None, None]:
            book = _decoded_of(self._register, day, raw)
            return (encoded(step(book)) if book.moved is None else None), None

        with self._bucket.alone(CAPS.rstrip("/")):
            self._register.change(day, mend)

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
        return _decoded_of(self._register, day, self._register.read(day))

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
            book = _decoded_of(self._register, day, raw)
            new, result = step(book)
            return (None if new == book else encoded(new)), result

        with self._bucket.alone(CAPS.rstrip("/")):
            return self._register.change(day, change)


def _decoded_of(states: BucketStateStore, day: str, raw: Raw | None) -> DayBook:
    try:
        return decoded(day, raw)
    except ValueError as error:
        where = states.where(day)
        raise StateError(
            f"{where}: {error}. It is left as it is, and nothing is paid for; mend it (`spend` tells what was "
            "paid). Without it the day's sum is what each channel's own document says"
        ) from error


def _days(states: BucketStateStore) -> list[str]:
    return [name for name in states.names() if is_day(name)]


def _clock_day(bucket: Bucket, clock: Clock) -> tuple[str, bool]:
    """Return the day by the store's own clock, or by this machine's if it has none; and whether it is the store's."""
    of_store = bucket.now()
    moment: datetime = of_store or clock.now()
    return moment.astimezone(UTC).strftime("%Y-%m-%d"), of_store is not None


def _reserving(book: DayBook, pipeline: str, name: str, usd: float) -> DayBook:
    return book.with_sums(pipeline, book.of(pipeline).reserving(name, usd))


def is_day(text: str) -> bool:
    """Return whether `text` is a day, as the names of the books have it."""
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


__all__ = ["CAPS", "Caps", "DayBook", "Fate", "Known", "Limits", "Reservation", "Sums", "Today"]
