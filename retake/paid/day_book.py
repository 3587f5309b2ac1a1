"""The book of one day: what each pipeline has spent and has reserved, as pure data.

A reservation is named ACCOUNT/NONCE. The account identifies the pipeline's document, which records it together with its
last reservation and its fate (`Known`). This distinguishes a reservation that was never used, because the machine died
before the intent was saved, from one whose document was removed. The first is released, the second counts as billed.
"""

from collections.abc import Mapping
from datetime import date
from enum import StrEnum
from typing import Any, NamedTuple

from retake.retrying.state_store import Raw


class Fate(StrEnum):
    """What became of a reservation, according to the document of its pipeline."""

    OPEN = "open"  # the call is under way, or its outcome is not known yet
    BILLED = "billed"
    RELEASED = "released"  # the call was certainly not carried out


class Known(NamedTuple):
    """What the document of a pipeline says about its last reservation, and about its spending."""

    account: str | None = None  # None: the document is new, older than reservations, or was removed
    name: str | None = None
    day: str | None = None  # the day whose book it is in
    fate: Fate = Fate.OPEN
    spent_day: str = ""  # the day of `spent_usd`
    spent_usd: float = 0.0  # what the document itself has counted, for a day without a book
    unbilled_usd: float | None = None  # of a reservation for several calls: how much is not billed, yet or ever
    billed_usd: float | None = None  # of a deferred reservation: how much is billed


class Sums(NamedTuple):
    """The spending of one pipeline in a day, in US dollars."""

    settled: float = 0.0
    open: Mapping[str, float] = {}  # reserved amounts, by reservation
    deferred: tuple[str, float] = ("", 0.0)  # the last deferred reservation, and how much of it is settled

    @property
    def reserved(self) -> float:
        return _rounded(sum(self.open.values()))

    @property
    def spent(self) -> float:
        """What counts against a cap: settled and reserved."""
        return _rounded(self.settled + sum(self.open.values()))

    def reserving(self, name: str, usd: float) -> "Sums":
        return self._replace(open={**self.open, name: usd})

    def settling(self, known: Known) -> "Sums":
        """Return the sums, updated to what the pipeline's document says. The caller holds the pipeline's lease, and no
        call of the pipeline is being prepared."""
        settled, left = self.settled, {}
        for name, usd in self.open.items():
            if name == known.name:
                unbilled = _unbilled(known, usd)
                settled += usd - unbilled if known.billed_usd is None else 0.0
                if known.fate is Fate.OPEN:
                    left[name] = unbilled
            elif known.account is None or not name.startswith(f"{known.account}/"):
                settled += usd  # its document was removed: the call may have been billed, so it counts
        if known.billed_usd is None or known.name is None:
            return Sums(_rounded(settled), left, self.deferred)
        if known.fate is Fate.OPEN and known.unbilled_usd:
            left[known.name] = known.unbilled_usd
        before = self.deferred[1] if self.deferred[0] == known.name else 0.0
        billed = max(before, known.billed_usd)
        return Sums(_rounded(settled + billed - before), left, (known.name, billed))

    def plus(self, other: "Sums") -> "Sums":
        deferred = other.deferred if other.deferred[0] else self.deferred  # the one of the later day is in use
        return Sums(_rounded(self.settled + other.settled), {**self.open, **other.open}, deferred)


def _unbilled(known: Known, usd: float) -> float:
    """Return how much of the pipeline's last reservation, `usd` in the book, is not billed."""
    if known.unbilled_usd is not None:
        return min(usd, known.unbilled_usd)
    return 0.0 if known.fate is Fate.BILLED else usd


class Move(NamedTuple):
    """The move of a book's sums to the book of an earlier day, by order of an operator."""

    to: str
    nonce: str  # DAY/…, where DAY is the day that was moved; the other book records it to take the sums only once


class DayBook(NamedTuple):
    """The book of one day."""

    day: str
    pipelines: Mapping[str, Sums] = {}
    moves_in: tuple[str, ...] = ()  # nonces of the moves whose sums are included
    moved: Move | None = None  # if set, nothing more is counted in this book

    @property
    def moved_here(self) -> frozenset[str]:
        """The days whose sums were moved here, except by older versions, which did not record that."""
        return frozenset(day for day, slash, _ in (it.partition("/") for it in self.moves_in) if slash)

    @property
    def spent(self) -> float:
        return _rounded(sum(sums.spent for sums in self.pipelines.values()))

    def of(self, pipeline: str) -> Sums:
        return self.pipelines.get(pipeline, Sums())

    def with_sums(self, pipeline: str, sums: Sums) -> "DayBook":
        return self._replace(pipelines={**self.pipelines, pipeline: sums})

    def settled(self, pipeline: str, known: Known) -> "DayBook":
        """Return the book, updated to what the pipeline's document says (`Sums.settling`).

        If the book has nothing of the pipeline, because the document is older than the book or the book was removed,
        what the document itself has counted for this day is carried over. A deferred reservation counts in the book of
        its day, or in the one that already has a part of it, since the day may have been moved.
        """
        sums = self.of(pipeline)
        if known.day != self.day and known.name != sums.deferred[0]:
            known = known._replace(billed_usd=None)
        if pipeline in self.pipelines:
            return self.with_sums(pipeline, sums.settling(known))
        spent = known.spent_usd if known.spent_day == self.day else 0.0
        if known.billed_usd is not None:
            reserved = (known.unbilled_usd or 0.0) if known.fate is Fate.OPEN else 0.0
            spent -= known.billed_usd + reserved
        elif not spent:
            return self
        return self.with_sums(pipeline, Sums(_rounded(spent)).settling(known))

    def taking_in(self, other: "DayBook", nonce: str) -> "DayBook":
        """Return the book with the sums of `other`, which is moved here. Repeating a move changes nothing."""
        if nonce in self.moves_in:
            return self
        book = self._replace(moves_in=(*self.moves_in, nonce))
        for pipeline, sums in other.pipelines.items():
            book = book.with_sums(pipeline, book.of(pipeline).plus(sums))
        return book


class Limits(NamedTuple):
    """What may be spent in a day, in US dollars; None: no limit."""

    bucket_usd: float | None = None  # by all pipelines together
    pipeline_usd: float | None = None  # by each

    def left(self, book: DayBook, pipeline: str) -> float | None:
        """Return what the pipeline may still spend; None: no limit."""
        remainders = [
            cap - spent
            for cap, spent in ((self.bucket_usd, book.spent), (self.pipeline_usd, book.of(pipeline).spent))
            if cap is not None
        ]
        return max(0.0, _rounded(min(remainders))) if remainders else None

    def over(self, book: DayBook, pipeline: str, usd: float) -> str:
        """Return why a call of this price must not be made on the book's day, or ""."""
        own = book.of(pipeline).spent
        for cap, spent, name in (
            (self.bucket_usd, book.spent, "the daily cap"),
            (self.pipeline_usd, own, f"the daily cap of {pipeline}"),
        ):
            if cap is not None and _rounded(spent + usd) > cap:
                return f"{name}: {spent:.3f} of {cap:.3f} USD are spent, {usd:.3f} more are asked for"
        return ""


def _rounded(usd: float) -> float:
    """Return `usd` rounded to a millionth of a dollar, and at least 0."""
    return max(0.0, round(usd, 6))


# --- stored form ---


def encoded(book: DayBook) -> Raw:
    raw: dict[str, Any] = {
        "day": book.day,
        "spent_usd": book.spent,  # for people; only the following is read
        "pipelines": {name: _encoded_sums(sums) for name, sums in sorted(book.pipelines.items())},
    }
    if book.moves_in:
        raw["moves_in"] = list(book.moves_in)
    if book.moved:
        raw["moved"] = book.moved._asdict()
    return raw


def _encoded_sums(sums: Sums) -> dict[str, Any]:
    raw = {"settled_usd": sums.settled, "reserved_usd": sums.reserved, "open": dict(sums.open)}
    name, usd = sums.deferred
    return {**raw, "deferred": {"name": name, "settled_usd": usd}} if name else raw


def decoded(day: str, raw: Raw | None) -> DayBook:
    """Return the stored book `raw` (None: there is none yet). Raises ValueError, naming the field."""
    if raw is None:
        return DayBook(day)
    pipelines = _object("pipelines", raw.get("pipelines", {}))
    moves_in, moved = raw.get("moves_in") or [], raw.get("moved")
    if not isinstance(moves_in, list) or not all(isinstance(it, str) for it in moves_in):
        raise ValueError("moves_in: is not a list of texts")
    if moved is not None and not (
        isinstance(moved, Mapping) and isinstance(moved.get("to"), str) and isinstance(moved.get("nonce"), str)
    ):
        raise ValueError('moved: is not {"to", "nonce"}')
    if moved and not (is_day(moved["to"]) and moved["to"] < day):
        raise ValueError(f"moved.to: {moved['to']!r} is not a day before this one")
    return DayBook(
        day,
        {name: _sums(f"pipelines.{name}", sums) for name, sums in pipelines.items()},
        tuple(moves_in),
        Move(moved["to"], moved["nonce"]) if moved else None,
    )


def _sums(field: str, value: Any) -> Sums:
    raw = _object(field, value)
    open_calls = _object(f"{field}.open", raw.get("open", {}))
    deferred = _object(f"{field}.deferred", raw.get("deferred", {}))
    return Sums(
        _amount(f"{field}.settled_usd", raw.get("settled_usd", 0.0)),
        {name: _amount(f"{field}.open.{name}", usd) for name, usd in open_calls.items()},
        (str(deferred.get("name", "")), _amount(f"{field}.deferred.settled_usd", deferred.get("settled_usd", 0.0))),
    )


def _object(field: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{field}: is not an object")  # noqa: TRY004  a document's fault, not a caller's
    return value


def _amount(field: str, value: Any) -> float:
    if type(value) not in (int, float) or not is_amount(value):
        raise ValueError(f"{field}: {value!r} is not an amount")
    return float(value)


def is_amount(usd: float) -> bool:
    """Return whether a book can hold this many dollars. A book with any other value could not be read again."""
    return 0 <= usd < 1e9


def is_day(text: str) -> bool:
    """Return whether `text` is a day in the form of the books' names, YYYY-MM-DD."""
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False
