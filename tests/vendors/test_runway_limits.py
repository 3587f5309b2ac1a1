import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from retake.vendors.runway_limits import MODELS, PROMPT_LIMIT, fit_duration, fit_prompt, fit_ratio


def units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        ("1280:768", "1280:720"),
        ("768:1280", "720:1280"),
        ("1920:1080", "1280:720"),
        ("1:1", "960:960"),
        ("4:3", "1104:832"),
        ("3:4", "832:1104"),
        ("21:9", "1584:672"),
        ("16x9", "1280:720"),
        ("wide", "1280:720"),
        ("0:5", "1280:720"),
    ],
)
@pytest.mark.parametrize("model", ["gen4_turbo", "gen4.5"])
def test_a_ratio_becomes_the_nearest_in_shape(model: str, asked: str, taken: str) -> None:
    assert fit_ratio(model, asked) == (taken, True)


@pytest.mark.parametrize("ratio", MODELS["gen4_turbo"].ratios)
def test_a_ratio_of_the_model_is_kept(ratio: str) -> None:
    assert fit_ratio("gen4_turbo", ratio) == (ratio, False)


@pytest.mark.parametrize(
    ("model", "asked", "taken"),
    [
        ("gen4_turbo", 5, (5, False)),
        ("gen4_turbo", 10, (10, False)),
        ("gen4_turbo", 7.5, (5, True)),
        ("gen4_turbo", 8, (10, True)),
        ("gen4_turbo", 60, (10, True)),
        ("gen4.5", 7, (7, False)),
        ("gen4.5", 1, (2, True)),
        ("gen4.5", 11, (10, True)),
        ("veo9", 8, (8, False)),
    ],
)
def test_a_duration_becomes_the_nearest(model: str, asked: float, taken: tuple[int, bool]) -> None:
    assert fit_duration(model, asked) == taken


def test_an_unknown_model_takes_what_it_is_given() -> None:
    assert fit_ratio("veo9", "1:2") == ("1:2", False)


def test_a_short_prompt_is_kept() -> None:
    assert fit_prompt("  a cat walks ") == "a cat walks"
    assert fit_prompt("x" * PROMPT_LIMIT) == "x" * PROMPT_LIMIT


def test_a_long_prompt_is_cut_at_a_word() -> None:
    text = "word " * 300
    assert fit_prompt(text) == ("word " * 200).rstrip()
    assert fit_prompt("a" * 990 + " " + "b" * 50) == "a" * 990
    assert fit_prompt("a" * 1000 + " b") == "a" * 1000
    assert fit_prompt("word " * 199 + "words tail") == "word " * 199 + "words"


def test_a_prompt_without_spaces_is_cut_where_it_must_be() -> None:
    assert fit_prompt("猫" * 1500) == "猫" * 1000
    assert fit_prompt("a " + "b" * 1500) == "a " + "b" * 998


def test_a_character_of_two_units_is_never_halved() -> None:
    assert fit_prompt("a" + "😀" * 600) == "a" + "😀" * 499


@given(st.text(max_size=60), st.integers(1, 400))
@example("\ud83d", 1)
@example("a\ude00b ", 300)
@example("😀", 400)
def test_a_prompt_fits_can_be_sent_and_is_the_beginning_of_what_was_asked(piece: str, times: int) -> None:
    text = piece * times
    fitted = fit_prompt(text)
    sendable = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore").strip()
    assert units(fitted) <= PROMPT_LIMIT
    assert sendable.startswith(fitted)
    assert fitted == sendable or units(fitted) >= PROMPT_LIMIT // 2 - 1


@given(st.text(alphabet=st.characters(categories=("Cs", "Lu", "Zs")), max_size=40))
def test_half_pairs_never_get_out(text: str) -> None:
    fit_prompt(text * 40).encode("utf-8")
