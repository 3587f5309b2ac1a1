import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retake.errors import Code, ErrorClass, TaskFailed
from retake.music.texts import (
    MAX_NOTE,
    MAX_NOTES,
    MAX_WORDS,
    NONCE_BYTES,
    VERDICTS,
    colour_in,
    cover_prompt,
    description_with_nonce,
    fit_meta,
    fit_review,
    meta_messages,
    new_nonce,
    review_messages,
)
from retake.strict_json import encode, well_formed

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=30,
)
LONG = st.builds(lambda text, times: text * times, st.text(min_size=1, max_size=40), st.integers(1, 400))


def youtube_counts(tags: list[str]) -> int:
    return len(",".join(f'"{tag}"' if " " in tag else tag for tag in tags))


# --- title, description, tags -----------------------------------------------------------------------------------


@given(
    title=ANYTHING | LONG,
    description=ANYTHING | LONG,
    tags=ANYTHING | LONG | st.lists(st.text(max_size=40) | LONG, max_size=80),
    track=st.text(min_size=1, max_size=100),
    number=st.integers(1, 2**63 - 1),
)
def test_what_the_model_answers_is_cut_to_what_youtube_takes(
    title: Any, description: Any, tags: Any, track: str, number: int
) -> None:
    try:
        meta = fit_meta({"title": title, "description": description, "tags": tags}, track)
    except TaskFailed:
        return
    assert 0 < len(meta["title"]) <= 100
    assert meta["title"].strip() == meta["title"]
    assert "\n" not in meta["title"]
    assert youtube_counts(meta["tags"]) <= 500
    assert all(tag and "," not in tag and tag.strip() == tag for tag in meta["tags"])
    nonce = new_nonce(number, Random(1))
    whole = description_with_nonce(meta["description"], nonce)
    assert whole.startswith(meta["description"])  # nothing more is cut
    assert len(whole.encode()) <= 5000
    assert whole.splitlines()[-1] == nonce
    for text in (meta["title"], meta["description"], *meta["tags"]):
        assert "<" not in text
        assert ">" not in text
    assert well_formed(meta) == meta
    assert json.loads(encode(meta)) == meta


@pytest.mark.parametrize("title", [None, "", " \n", "<>", 7, ["a"], "\u200b\u200d", "\ud800"])
def test_a_title_that_cannot_be_used_is_a_bad_answer_which_may_be_better_next_time(title: Any) -> None:
    with pytest.raises(TaskFailed, match="title") as caught:
        fit_meta({"title": title, "description": "d", "tags": []}, "Track")
    assert caught.value.code is Code.BAD_ANSWER
    assert caught.value.error_class is ErrorClass.TEMPORARY


def test_an_answer_that_fits_stays_as_it_is() -> None:
    answer = {
        "title": "Night Drive 🌃",
        "description": "One.\n\nTwo 👩‍🎤 می‌خواهم.",
        "tags": ["synthwave", "night drive"],
    }
    assert fit_meta(answer, "Night Drive") == answer


def test_texts_are_cut_between_words() -> None:
    meta = fit_meta({"title": "seven77 " * 20, "description": "eleven bytes " * 600}, "Track")
    assert meta["title"] == " ".join(["seven77"] * 12)
    assert meta["description"].endswith(" bytes") or meta["description"].endswith(" eleven")
    assert 4900 < len(meta["description"].encode()) <= 5000 - NONCE_BYTES


@pytest.mark.parametrize(
    ("title", "cut"), [("가" * 120, "가" * 100), ("🎵" * 120, "🎵" * 50), ("e\u0301" * 60, "e\u0301" * 50)]
)
def test_a_title_of_one_word_is_cut_between_letters(title: str, cut: str) -> None:
    assert fit_meta({"title": title}, "Track")["title"] == cut


def test_a_joined_emoji_is_not_cut_in_two() -> None:
    assert fit_meta({"title": "x" * 96 + "👩‍🎤"}, "Track")["title"] == "x" * 96


def test_a_description_that_cannot_be_used_is_the_name_of_the_track() -> None:
    assert fit_meta({"title": "T", "description": ["no"], "tags": 7}, "Night <b>") == {
        "title": "T",
        "description": "Night b",
        "tags": [],
    }


def test_what_turns_or_breaks_a_line_is_taken_out() -> None:
    meta = fit_meta({"title": "a\u202eb\nc\u2028d\0", "description": "a\r\nb\x07\u2066c"}, "Track")
    assert meta["title"] == "ab c d"
    assert meta["description"] == "a\nb c"


@pytest.mark.parametrize(
    ("tags", "fitting"),
    [
        ("synthwave, night drive,#retro", ["synthwave", "night drive", "retro"]),
        (["a", "A", " a "], ["a"]),
        (["a, b", '"c d"', None, 7, "", "#"], ["a", "b", "c d"]),
        (["x" * 101, "y"], ["y"]),
        (
            ["x" * 99] * 2 + ["y" * 100, "z" * 100, "w" * 100, "v" * 98],
            ["x" * 99, "y" * 100, "z" * 100, "w" * 100, "v" * 97][:4],
        ),
        ([f"{n:03} x" for n in range(100)], [f"{n:03} x" for n in range(62)]),
    ],
)
def test_tags_are_counted_as_youtube_counts(tags: Any, fitting: list[str]) -> None:
    found = fit_meta({"title": "T", "tags": tags}, "Track")["tags"]
    assert found == fitting
    assert youtube_counts(found) <= 500


# --- the nonce ----------------------------------------------------------------------------------------------------


def test_the_nonce_is_the_last_line_whatever_the_description() -> None:
    nonce = new_nonce(12, Random(3))
    assert nonce.startswith("Ref: 12-")
    assert description_with_nonce("", nonce) == nonce
    assert description_with_nonce("One.\nTwo. \n", nonce) == f"One.\nTwo.\n\n{nonce}"
    assert len(description_with_nonce("д" * 9000, nonce).encode()) <= 5000


def test_each_nonce_is_another() -> None:
    rng = Random(3)
    assert len({new_nonce(1, rng) for _ in range(100)}) == 100


@pytest.mark.parametrize("nonce", ["", "two\nlines", "x" * NONCE_BYTES])
def test_what_is_not_a_nonce_is_refused(nonce: str) -> None:
    with pytest.raises(ValueError, match="not a nonce"):
        description_with_nonce("d", nonce)


# --- the review ---------------------------------------------------------------------------------------------------


@given(verdict=ANYTHING | st.sampled_from(["pass", " WARN ", "Fail"]), notes=ANYTHING | st.lists(LONG, max_size=40))
def test_a_review_is_checked_and_bounded(verdict: Any, notes: Any) -> None:
    try:
        review = fit_review({"verdict": verdict, "notes": notes})
    except TaskFailed:
        return
    assert review["verdict"] in VERDICTS
    assert len(review["notes"]) <= MAX_NOTES
    assert all(0 < len(note) <= MAX_NOTE and "\n" not in note for note in review["notes"])


def test_one_note_may_be_a_text() -> None:
    assert fit_review({"verdict": "Warn", "notes": "Too  long."}) == {"verdict": "warn", "notes": ["Too long."]}
    assert fit_review({"verdict": "pass"}) == {"verdict": "pass", "notes": []}


@pytest.mark.parametrize("verdict", [None, "", "passed", True, 1, ["pass"]])
def test_another_verdict_is_a_bad_answer(verdict: Any) -> None:
    with pytest.raises(TaskFailed, match="verdict"):
        fit_review({"verdict": verdict, "notes": []})


# --- requests to the model ----------------------------------------------------------------------------------------


def test_a_cover_is_asked_for_with_title_style_and_note() -> None:
    prompt = cover_prompt("Night Drive", "synthwave, neon", "more rain")
    assert prompt.startswith('cover art of the song "Night Drive", synthwave, neon, more rain, ')
    assert cover_prompt("Night Drive", None, None) == cover_prompt("Night Drive", "", " ")
    assert ", ," not in cover_prompt("Night Drive", None, None)


@pytest.mark.parametrize(
    "words",
    [
        "rain --ar 1:1",
        "rain —ar 1:1",
        "rain ––seed 5",
        "rain -\u200b-ar 1:1",
        "rain -\n-ar",
        "rain －－ar",
        "{red, blue, green} rain",
        "rain::2 sun::1",
        "https://evil.example/x.png rain",
        '" --quality 2 "',
    ],
)
def test_words_do_not_become_flags_sets_weights_or_links(words: str) -> None:
    for prompt in (cover_prompt(words, "", ""), cover_prompt("T", words, ""), cover_prompt("T", "", words)):
        assert not any(sign in prompt for sign in ("--", "—", "––", "－", "{", "}", "::", "://", "\n"))


@given(st.text(max_size=100), st.text(max_size=1500), st.text(max_size=1500))
def test_any_words_make_a_bounded_prompt(title: str, style: str, note: str) -> None:
    prompt = cover_prompt(title, style, note)
    assert len(prompt) < 2 * MAX_WORDS + 300
    assert "--" not in prompt
    assert "{" not in prompt


def test_a_hyphen_is_a_hyphen() -> None:
    assert "lo-fi 1990-1999" in cover_prompt("T", "lo-fi 1990–1999", "")


def test_the_chat_api_is_asked_for_json() -> None:
    system, user = meta_messages("Night Drive", "synthwave", "shorter")
    assert "JSON" in system
    assert all(f'"{key}"' in system for key in ("title", "description", "tags"))
    assert user == "track: Night Drive\nstyle: synthwave\nchange requested: shorter"
    system, user = review_messages("Night Drive", None, {"title": "밤", "description": "d", "tags": ["a"]}, None)
    assert all(f'"{key}"' in system for key in ("verdict", "notes", *VERDICTS))
    assert user.startswith("track: Night Drive\nto be published:\n")
    assert "밤" in user


# --- colours ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("note", "colour"),
    [
        ("make it #FF8800 please", "#ff8800"),
        ("(#00ff00), not #ff0000", "#00ff00"),
        ("#12345678", None),
        ("#fff", None),
        ("orange", None),
        ("", None),
        ("x#ff8800", None),
    ],
)
def test_a_colour_in_a_note(note: str, colour: str | None) -> None:
    assert colour_in(note) == colour
