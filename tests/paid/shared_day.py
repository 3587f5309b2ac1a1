"""A bucket shared by several payers, each a program that can die, and the invariants after every operation on it.

The world knows what no program can: which calls the vendor has billed, and in which day's book each counts.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random
from typing import Any, NamedTuple, TypeVar

from mortal import Chance, MortalBucket
from test_keyed_paid_calls import Vendor

from retake.bucket import Expect
from retake.bucket.failing import FailingBucket
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.clock import FakeClock
from retake.paid.caps import CAPS
from retake.paid.day_book import DayBook, decoded
from retake.paid.paid_calls import UNKNOWN, BegunCall
from retake.strict_json import parse

T = TypeVar("T")

LEAST_USD = 0.000001
"""Sums that differ by less are equal."""


class MachineClock(FakeClock):
    """The clock of one machine, `ahead` of the true time or behind it. It records which days it has told since work
    began there."""

    def __init__(self, true: FakeClock) -> None:
        self.true, self.ahead, self.told = true, timedelta(), set[str]()
        self.latest, self.moves = "", 0

    def begin(self, books: "Books") -> None:
        self.told.clear()
        self.latest, self.moves = books.latest(), books.happened["moved"]

    def now(self) -> datetime:
        moment = self.true.now() + self.ahead
        self.told.add(moment.date().isoformat())
        return moment

    def sleep(self, seconds: float) -> None:
        """Pause for the whole seconds only: pauses between tries are shorter than a second, and random."""
        self.true.sleep(int(seconds))


class Luck(Chance):
    """What happens to one process. A store deletes by name: between the check and the deletion somebody else may begin
    the day anew, so nothing happens in that moment."""

    def around(self, what: str, call: Callable[[], T]) -> T:
        happens = self.happens
        if what.startswith(f"delete {CAPS}"):
            self.happens = []
        try:
            return super().around(what, call)
        finally:
            self.happens = happens


class Process:
    """A process on a machine, which can die at every operation on the bucket."""

    def __init__(self, books: "Books", clock: MachineClock, chance: Luck) -> None:
        self.clock, self.chance = clock, chance
        self._noted = FailingBucket(WatchedBucket(books, clock))
        self.bucket = MortalBucket(self._noted, chance)

    def die(self) -> None:
        self.chance.dead = True
        self._noted.end_leases()


class WatchedBucket(MemoryBucket):
    """The bucket as one process sees it. Each change of a book is reported to `books` once it has taken effect."""

    def __init__(self, books: "Books", clock: MachineClock) -> None:
        super().__init__(books.store)
        self._books, self._clock = books, clock

    def write(self, key: str, data: bytes, expect: str | Expect) -> str:
        before = self._books.book(key)
        version = super().write(key, data, expect)
        if key.startswith(CAPS):
            self._books.changed(before, decoded(_day(key), parse(data)), self._clock)
        return version

    def delete(self, key: str) -> None:
        before = self._books.book(key)
        super().delete(key)
        if before:
            self._books.removed(before)

    def now(self) -> datetime | None:
        return self._clock.now() if self._books.store_tells_time else None


class Bill(NamedTuple):
    """A call that the vendor has carried out, and bills."""

    payer: str
    key: str
    usd: float
    reservation: str


class Books:
    """The books as they must be: no day has more billed than its caps allow, nor less recorded than is billed."""

    def __init__(self, store: MemoryStore, *, store_tells_time: bool) -> None:
        self.store, self.store_tells_time = store, store_tells_time
        self.bills: list[Bill] = []
        self.day_of: dict[str, str] = {}  # where each reservation counts
        self.taken_in: set[str] = set()  # days that others were moved to, which may exceed the caps
        self.caps: dict[str, tuple[float | None, float | None]] = {}  # by payer: the bucket's and the payer's own
        self.happened: Counter[str] = Counter()

    # --- what is there ---

    def document(self, key: str) -> Any:
        return parse(self.store.objects[key].data) if key in self.store.objects else None

    def book(self, key: str) -> DayBook | None:
        raw = self.document(key) if key.startswith(CAPS) else None
        return None if raw is None else decoded(_day(key), raw)

    def all(self) -> list[DayBook]:
        return [book for key in sorted(self.store.objects) if (book := self.book(key))]

    def latest(self) -> str:
        """Return the latest day in use, or ""."""
        return max((book.day for book in self.all() if not book.moved), default="")

    def calls(self, payer: str, key: str = "") -> list[dict[str, Any]]:
        """Return the recorded calls, of one key or all."""
        start = f"paid/{payer}/calls/{key}"
        places = [
            it for it in sorted(self.store.objects) if it.startswith(start) and (not key or it == f"{start}.json")
        ]
        return [call for it in places for call in self.document(it)["calls"]]

    def billed(self, day: str, payer: str = "") -> float:
        """Return what the vendor has billed on a day, to one payer or all."""
        return sum(it.usd for it in self.bills if self.day_of[it.reservation] == day and payer in ("", it.payer))

    # --- what happens ---

    def changed(self, before: DayBook | None, book: DayBook, clock: MachineClock) -> None:
        if before is None and not book.moves_in:
            assert book.day in clock.told, f"a book for {book.day} was begun, but no clock has told that day"
        if book.moves_in != (before.moves_in if before else ()):
            self.taken_in.add(book.day)
        for name, sums in book.pipelines.items():
            billed = self.billed(book.day, name)
            assert sums.spent > billed - LEAST_USD, f"{book.day} has {sums.spent} of {name}, billed are {billed}"
            known = before.of(name).open if before else {}
            for reservation, usd in sums.open.items():
                if reservation not in known and reservation not in self.day_of:
                    self._granted(book.day, name, reservation, usd)
                    late = clock.moves == self.happened["moved"] and book.day < min(clock.latest, self.latest())
                    assert not late, f"{book.day} is charged although {clock.latest} had begun"

    def _granted(self, day: str, payer: str, reservation: str, usd: float) -> None:
        self.day_of[reservation] = day
        self.happened["granted"] += 1
        for cap, billed in zip(self.caps[payer], (self.billed(day), self.billed(day, payer)), strict=True):
            assert cap is None or billed + usd < cap + LEAST_USD, (
                f"{billed} of {cap} are billed, {usd} granted to {payer}"
            )

    def removed(self, book: DayBook) -> None:
        """Move what counted on the book's day to its new day."""
        assert book.moved, f"the book of {book.day} was removed"
        self.happened["moved"] += 1
        self.day_of = {name: book.moved.to if day == book.day else day for name, day in self.day_of.items()}

    def add(self, bill: Bill) -> None:
        assert bill.reservation not in [it.reservation for it in self.bills], f"{bill.reservation} is billed twice"
        self.bills.append(bill)
        self.happened["billed"] += 1
        day = self.day_of[bill.reservation]
        self._check_counted(bill.payer, day)
        if day in self.taken_in:
            return
        whole = self.billed(day)
        if all(cap == self.caps[bill.payer][0] for cap, _ in self.caps.values()):
            cap = self.caps[bill.payer][0]
            assert cap is None or whole < cap + LEAST_USD, f"{whole} are billed on {day}, the cap is {cap}"
        own, cap = self.billed(day, bill.payer), self.caps[bill.payer][1]
        assert cap is None or own < cap + LEAST_USD, f"{own} are billed to {bill.payer} on {day}, its cap is {cap}"

    def _check_counted(self, payer: str, day: str) -> None:
        book = self.book(f"{CAPS}{day}.json")
        assert book, f"{day} has a bill and no book"
        billed, counted = self.billed(day, payer), book.of(payer).spent
        assert counted > billed - LEAST_USD, f"{counted} of {payer} count on {day}, billed are {billed}"


class Shop(Vendor):
    """The vendor of one payer. It reports each bill to `books`, and knows what it has carried out."""

    def __init__(self, books: Books, payer: str, usd: float, random: Random, clock: FakeClock) -> None:
        super().__init__()
        self._books, self._payer, self._usd, self._random, self._clock = books, payer, usd, random, clock
        self._told = 0
        self.outcomes = ["ok"]
        self.knows = True
        self.again: Counter[str] = Counter()  # keys that a person allowed to be billed again
        self.answers: defaultdict[str, list[dict[str, str]]] = defaultdict(list)  # the usable ones
        self.wasted: Counter[str] = Counter()

    def carry_out(self, key: str) -> dict[str, str]:
        outcome = self._random.choice(self.outcomes)
        if outcome == "never":
            raise ConnectionError("cut, and never carried out")
        self.plan = [outcome]
        answer = {"poster": f"{self._payer} {key}", "number": str(self._told + 1)}
        self.dies = lambda: self._tell(key, outcome, answer)
        self.order(key)
        return answer

    def ask(self, call: BegunCall) -> dict[str, str] | None:
        """Return what the vendor knows of a call, free of charge."""
        if not self.knows:
            raise ConnectionError("the vendor is away")
        return self.answers[call.key][-1] if self.answers[call.key] else None

    def _tell(self, key: str, outcome: str, answer: dict[str, str]) -> None:
        if self.billed.total() == self._told:
            return
        self._told += 1
        if outcome == "wasted":
            self.wasted[key] += 1
        else:
            self.answers[key].append(answer)
        state = self._books.document(f"paid/{self._payer}/state.json")
        assert state["pending"]["key"] == key, "an unrecorded call is made"
        self._books.add(Bill(self._payer, key, self._usd, state["reservation"]["name"]))
        unknown = sum(it["outcome"] == UNKNOWN for it in self._books.calls(self._payer, key))
        allowed = 1 + self.wasted[key] - (outcome == "wasted") + unknown
        assert self.billed[key] <= allowed, f"{key} of {self._payer} is billed {self.billed[key]} times"


def _day(key: str) -> str:
    return key.removeprefix(CAPS).removesuffix(".json")
