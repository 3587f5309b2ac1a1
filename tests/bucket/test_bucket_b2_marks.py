"""Which version is the present one, whatever order B2 lists them in."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from retake.bucket.b2.marks import MAX_CHANGE_S, Mark, Version, mark_of, state_of, version_of

NAME = "story/config/config_public.json"


def ours(token: int, sequence: int, *, nonce: str = "", stamp: float = 0.0, over: tuple[str, ...] = ()) -> Version:
    mark = Mark(token, sequence, False, nonce or f"{token}x{sequence}", over)
    return Version(NAME, f"w{token}-{sequence}-{stamp}", 1, stamp, "", "", mark=mark)


def theirs(name: str, stamp: float = 0.0, *, hides: bool = False) -> Version:
    return Version(NAME, name, 1, stamp, "", "", hides=hides)


MARKS = st.builds(
    Mark,
    token=st.integers(0, 3),
    sequence=st.integers(1, 4),
    forced=st.booleans(),
    nonce=st.sampled_from(["a", "b", "c"]),
    over=st.lists(st.sampled_from(["f1", "f2", "f3"]), max_size=2).map(tuple),
    raised=st.sampled_from([0, 6]),
)
VERSIONS = st.lists(
    st.builds(
        lambda number, stamp, hides, mark: Version(NAME, f"f{number}", 1, stamp, "", "", hides and not mark, mark),
        st.integers(1, 9),
        st.sampled_from([1.0, 1.5, 2.0]),
        st.booleans(),
        st.none() | MARKS,
    ),
    unique_by=lambda version: version.id,
    max_size=5,
)


@given(versions=VERSIONS)
def test_the_order_of_the_listing_decides_nothing(versions: list[Version]) -> None:
    assert len({state_of(order) for order in permutations(versions)}) == 1


@given(versions=VERSIONS)
def test_every_version_is_either_present_foreign_or_obsolete(versions: list[Version]) -> None:
    state = state_of(versions)
    counted = [*state.news, *state.ours[-1:], *state.superseded]
    assert sorted(it.id for it in counted) == sorted(it.id for it in versions)


@given(versions=VERSIONS)
def test_another_programs_version_is_never_unread(versions: list[Version]) -> None:
    state = state_of(versions)
    over = state.best.over if state.best else ()
    unread = [version for version in versions if not version.mark and version.id not in over]
    assert set(state.news) == set(unread)
    if unread:
        assert state.present in (None, *unread)


def test_our_version_with_the_highest_token_and_sequence_counts() -> None:
    state = state_of([ours(1, 9, stamp=9), ours(2, 1), ours(2, 2)])
    assert state.present == ours(2, 2)


def test_a_former_holders_late_version_is_reported_and_never_read() -> None:
    late = ours(1, 9, stamp=9)
    state = state_of([late, ours(2, 1, stamp=5), ours(1, 8, stamp=4)])
    assert state.present == ours(2, 1, stamp=5)
    assert state.late == (late,)


def test_a_doubled_upload_is_one_write() -> None:
    one, other = ours(1, 1, nonce="n", stamp=1), ours(1, 1, nonce="n", stamp=2)
    assert state_of([one]).version == state_of([other]).version == state_of([one, other]).version
    assert len(state_of([one, other]).superseded) == 1


def test_news_is_read_before_ours_also_if_it_seems_older() -> None:
    state = state_of([ours(1, 1, stamp=5), theirs("f", 3)])
    assert state.present == theirs("f", 3)


def test_what_ours_has_replaced_is_not_news() -> None:
    top = ours(1, 2, over=("f",))
    state = state_of([top, theirs("f", 99)])
    assert (state.present, state.superseded) == (top, (theirs("f", 99),))


def test_what_somebody_hides_is_gone_until_we_write_again() -> None:
    hidden = state_of([ours(1, 1), theirs("h", 2, hides=True)])
    assert hidden.present is hidden.version is None
    assert state_of([ours(1, 2, over=("h",)), theirs("h", 2, hides=True)]).version == "1x2"


def test_under_a_foreign_version_is_one_that_it_may_not_know() -> None:
    top, first, second = ours(1, 1, stamp=10), theirs("a", 11), theirs("b", 12)
    assert state_of([second, top, first]).hidden() == (first, top)
    assert state_of([top, theirs("c", 10 + MAX_CHANGE_S)]).hidden() == ()
    assert state_of([top]).hidden() == ()


@given(mark=MARKS)
def test_a_mark_comes_back_from_file_info(mark: Mark) -> None:
    assert mark_of(NAME, mark.file_info(NAME)) == mark


@given(mark=MARKS)
def test_a_copy_of_our_file_by_another_program_is_another_programs(mark: Mark) -> None:
    assert mark_of("story/copy.json", mark.file_info(NAME)) is None


@given(info=st.dictionaries(st.sampled_from(["retake", "retake-over", "x"]), st.text(max_size=20)))
def test_nonsense_in_file_info_is_not_a_mark(info: dict[str, str]) -> None:
    assert mark_of(NAME, info) is None


def test_an_unfinished_upload_is_not_a_version() -> None:
    assert version_of({"action": "start", "fileName": NAME, "fileId": "1", "uploadTimestamp": 1}) is None


def test_the_longest_mark_fits_into_what_b2_takes() -> None:
    info = Mark(10**12, 10**9, True, "n" * 18, ("4_z" + "0" * 88,) * 20, 10**12).file_info(NAME)
    assert sum(len("x-bz-info-" + name) + len(text) for name, text in info.items()) < 2048
