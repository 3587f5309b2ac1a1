"""One day's book: what counts, what is settled, and that it is read as it was written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retake.paid.day_book import DayBook, Fate, Known, Limits, Move, Sums, decoded, encoded

DAY = "2026-01-31"
OPEN = Sums(0.1, {"a/1": 0.5})

USD = st.integers(0, 10**9).map(lambda millionths: millionths / 1e6)
DEFERRED = st.just(("", 0.0)) | st.tuples(st.text(min_size=1, max_size=5), USD)
SUMS = st.builds(Sums, USD, st.dictionaries(st.text(max_size=5), USD, max_size=3), DEFERRED)
BOOKS = st.builds(
    DayBook,
    st.just(DAY),
    st.dictionaries(st.sampled_from(["story", "story/en", "story/ru"]), SUMS, max_size=3),
    st.lists(st.text(max_size=4), max_size=2).map(tuple),
    st.none() | st.builds(Move, st.just("2026-01-30"), st.text(max_size=4)),
)


@pytest.mark.parametrize(
    ("known", "settled", "left"),
    [
        (Known("a", "a/1", DAY, Fate.OPEN), 0.1, {"a/1": 0.5}),
        (Known("a", "a/1", DAY, Fate.BILLED), 0.6, {}),
        (Known("a", "a/1", DAY, Fate.RELEASED), 0.1, {}),
        (Known("a", "a/1", DAY, Fate.OPEN, unbilled_usd=0.2), 0.4, {"a/1": 0.2}),  # of several calls some are made
        (Known("a", "a/1", DAY, Fate.BILLED, unbilled_usd=0.2), 0.4, {}),  # the others are never made
        (Known("a", "a/1", DAY, Fate.BILLED, unbilled_usd=0.0), 0.6, {}),
        (Known("a", "a/1", DAY, Fate.RELEASED, unbilled_usd=0.5), 0.1, {}),
        (Known("a", "a/0", DAY, Fate.BILLED), 0.1, {}),  # the machine died before the intent was saved
        (Known("a"), 0.1, {}),  # the same, at the first call of the document
        (Known("b", "b/7", DAY, Fate.BILLED), 0.6, {}),  # its document was removed: nobody knows, so it counts
        (Known(), 0.6, {}),
    ],
)
def test_what_the_document_says_settles_what_was_reserved(known: Known, settled: float, left: dict[str, float]) -> None:
    assert OPEN.settling(known) == Sums(pytest.approx(settled), left)


def test_several_calls_under_one_reservation_are_settled_as_they_are_made_however_often() -> None:
    sums = OPEN
    for fate, unbilled, settled in (
        (Fate.OPEN, 0.5, 0.1),
        (Fate.OPEN, 0.3, 0.3),
        (Fate.OPEN, 0.3, 0.3),
        (Fate.BILLED, 0.1, 0.5),
        (Fate.BILLED, 0.1, 0.5),
    ):
        sums = sums.settling(Known("a", "a/1", DAY, fate, unbilled_usd=unbilled))
        assert sums.settled == pytest.approx(settled)
    assert sums.open == {}


def test_what_an_older_document_counted_by_itself_is_carried_over_once_and_for_its_day() -> None:
    known = Known(spent_day=DAY, spent_usd=0.4)
    once = DayBook(DAY).settled("story", known)
    assert once.of("story") == Sums(0.4)
    assert once.settled("story", known) == once
    assert DayBook("2026-02-01").settled("story", known) == DayBook("2026-02-01")


@pytest.mark.parametrize(
    ("limits", "usd", "why"),
    [
        (Limits(), 99, ""),
        (Limits(1.0), 0.3, ""),
        (Limits(1.0), 0.31, "the daily cap: 0.700 of 1.000 USD are spent, 0.310 more are asked for"),
        (Limits(None, 0.5), 0.1, ""),
        (Limits(9.0, 0.5), 0.11, "the daily cap of story: 0.400 of 0.500 USD are spent, 0.110 more are asked for"),
    ],
)
def test_each_cap_holds_for_what_it_is_about(limits: Limits, usd: float, why: str) -> None:
    book = DayBook(DAY, {"story": Sums(0.1, {"a/1": 0.3}), "story/en": Sums(0.3)})
    assert limits.over(book, "story", usd) == why


def test_what_is_left_is_what_the_tighter_cap_leaves() -> None:
    book = DayBook(DAY, {"story": Sums(0.4), "story/en": Sums(0.3)})
    assert Limits(1.0, 0.5).left(book, "story") == 0.1
    assert Limits(1.0).left(book, "story") == 0.3
    assert Limits(0.5).left(book, "story") == 0.0
    assert Limits().left(book, "story") is None


@given(BOOKS)
def test_a_book_reads_as_it_was_written(book: DayBook) -> None:
    assert decoded(DAY, encoded(book)) == book


@given(BOOKS, BOOKS)
def test_taking_in_another_book_loses_nothing_and_happens_once(book: DayBook, other: DayBook) -> None:
    other = DayBook("2030-01-01", {name: Sums(sums.settled, {}) for name, sums in other.pipelines.items()})
    after = book.taking_in(other, "a nonce of its own")
    assert after.spent == pytest.approx(book.spent + other.spent)
    assert after.taking_in(other, "a nonce of its own") == after


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"pipelines": None}, "pipelines"),
        ({"pipelines": []}, "pipelines"),
        ({"pipelines": {"story": 7}}, "pipelines.story"),
        ({"pipelines": {"story": {"settled_usd": "1", "open": {}}}}, "pipelines.story.settled_usd"),
        ({"pipelines": {"story": {"settled_usd": float("nan"), "open": {}}}}, "pipelines.story.settled_usd"),
        ({"pipelines": {"story": {"settled_usd": 1, "open": {"a/1": -1}}}}, "pipelines.story.open.a/1"),
        ({"pipelines": {"story": {"settled_usd": 1, "open": [1]}}}, "pipelines.story.open"),
        ({"pipelines": {}, "moves_in": [1]}, "moves_in"),
        ({"pipelines": {}, "moves_in": "1f"}, "moves_in"),
        ({"pipelines": {}, "moved": "2025-12-31"}, "moved"),
        ({"pipelines": {}, "moved": {"to": "2025-12-31"}}, "moved"),
        ({"pipelines": {}, "moved": {"to": "2025-12-31", "nonce": 1}}, "moved"),
        ({"pipelines": {}, "moved": {"to": "1", "nonce": "1f"}}, "moved.to"),
        ({"pipelines": {}, "moved": {"to": 1}}, "moved"),
        ({"pipelines": {}, "moved": {"to": "x", "nonce": "1f"}}, "moved.to"),
        ({"pipelines": {}, "moved": {"to": DAY, "nonce": "1f"}}, "moved.to"),
        ({"pipelines": {}, "moved": {"to": "2026-02-01", "nonce": "1f"}}, "moved.to"),
    ],
)
def test_an_invalid_book_is_refused_by_its_field(raw: dict[str, object], field: str) -> None:
    with pytest.raises(ValueError, match=rf"^{field}: "):
        decoded(DAY, raw)


# --- deferred reservations ---


def deferred(billed: float, fate: Fate = Fate.BILLED, unbilled: float = 0.0, name: str = "a/1") -> Known:
    return Known("a", name, DAY, fate, unbilled_usd=unbilled, billed_usd=billed)


def test_what_is_billed_of_a_deferred_reservation_is_settled_as_it_grows_however_often() -> None:
    book = DayBook(DAY)
    for known, settled, left in (
        (deferred(0.0, Fate.OPEN, 0.2), 0.0, {"a/1": 0.2}),
        (deferred(0.2), 0.2, {}),
        (deferred(0.2), 0.2, {}),
        (deferred(0.5, Fate.OPEN, 0.1), 0.5, {"a/1": 0.1}),
        (deferred(0.6), 0.6, {}),
        (deferred(0.1, name="a/2"), 0.7, {}),
    ):
        book = book.settled("story", known)
        assert (book.of("story").settled, book.of("story").open) == (pytest.approx(settled), left)


def test_a_deferred_reservation_does_not_count_in_the_book_of_another_day() -> None:
    other = DayBook("2026-02-01", {"story": Sums(1.0)})
    assert other.settled("story", deferred(0.5)) == other


def test_a_copy_of_the_document_from_before_takes_nothing_off_the_book() -> None:
    book = DayBook(DAY).settled("story", deferred(0.5))
    assert book.settled("story", deferred(0.2)) == book
