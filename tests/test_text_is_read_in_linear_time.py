"""Reading foreign text takes time in proportion to its length, whatever it contains: "http://a" 25,000 times took 91
s."""

import re
import time
from collections.abc import Callable

import pytest

from retake.errors import beginning, redact
from retake.foreign_text import json_lines, one_line
from retake.logs import _clean_text, _secrets
from retake.media.ffmpeg import errors_in
from retake.vendors.answers import Vendor, is_moderation, parse, quote, retry_after_s
from retake.vendors.runway import own_words

SECRETS = _secrets({"A_KEY": "aaaaaaaaaaaaaaaaaaaaaaab", "B_KEY": "http://a http://b", "C_TOKEN": "sk-sk-sk-sk-"})

READERS: dict[str, Callable[[str], object]] = {
    "redact": redact,
    "redact, with the beginning alone": lambda text: redact(beginning(text)),
    "quote": lambda text: quote(text, "aaaaaaaaaaaaaab"),
    "log": lambda text: _clean_text(text, SECRETS),
    "one_line": one_line,
    "json_lines": json_lines,
    "moderation": is_moderation,
    "retry after": lambda text: retry_after_s({"Retry-After": text, "Date": text}),
    "parse": parse,
    "ffmpeg's errors": errors_in,
    "own words": lambda text: own_words({"error": text}),
}
UNITS = [
    *(
        "http://a",
        "http://",
        "https://a?",
        "http://u:p@",
        "a://b",
        "://",
        "x://@",
        "?",
        "@",
        "http://a?b ",
        "'http://a?",
    ),
    *("bearer ", "Bearer", "basic \t", "x-api-key", "x-api-key ", "x-api-key: ", "x-api-key:\"'", "key_", "sk-"),
    *("content ", "moderat", "not enough ", "credit is ", "policy", "image ", "[a @ 0x1] ", "[a @ 0x", "[[a"),
    *("a", " ", "\n", "\x1b", "\u202e", "9", "-", "[", "{", '{"a":', "\\ud800", "…", "é"),
]
STARTS = ["x://", "http://a?", "bearer ", "x-api-key ", "x-api-key: ", "sk-", "[a @ "]
CASES = [("", unit) for unit in UNITS] + [(start, unit) for start in STARTS for unit in ("a", " ", "@", "?", "/")]
SMALL, LARGE = 2**17, 2**20
"""Characters. Eight times the text may take about eight times as long; quadratic code would take 64 times."""


def seconds(read: Callable[[str], object], text: str) -> float:
    begun = time.process_time()
    read(text)
    return time.process_time() - begun


@pytest.mark.parametrize("reader", READERS)
def test_eight_times_the_text_takes_no_more_than_some_eight_times_as_long(reader: str) -> None:
    read, slow = READERS[reader], {}
    for start, unit in CASES:
        made = start + unit * (LARGE // len(unit))
        long = seconds(read, made)
        if long < 0.1:  # for a megabyte: not quadratic, and too fast to compare
            continue
        assert long < 20, (start, unit)
        short = min(seconds(read, made[:SMALL]) for _ in range(3))
        if long > 30 * max(short, 0.003):  # or the machine was busy with something else
            long = min(seconds(read, made) for _ in range(3))
        if long > 30 * max(short, 0.003):
            slow[(start, unit)] = (short, long)
    assert slow == {}


@pytest.fixture(autouse=True)
def nothing_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the keys of earlier tests: if one is part of a secret here, the rest no longer looks like a key."""
    monkeypatch.setattr("retake.errors._hidden", set())


SECRET = "hunter2hunter2hunter2"
AROUND = {
    "a key": "sk-{} ",
    "a password": "http://me:{}@host/x ",
    "a password in quotes": "'postgresql://me:{}@host/x'",
    "a signature": "https://host/x?sig={} ",
    "a header": "Authorization: Bearer {}, ",
    "a header of another kind": '"X-API-Key": "{}",',
}
HIDDEN = ("http://x?" + "p" * 990 + " ") * 9
"""Redaction shrinks this to almost nothing, so what stands far behind it moves up into the quote."""


@pytest.mark.parametrize("what", AROUND)
def test_a_cut_leaves_no_part_of_a_secret(what: str) -> None:
    """This holds wherever the cut falls."""
    secret = AROUND[what].format(SECRET)
    for before in range(8192 - len(secret) - 20, 8192 + 2):
        text = f"{HIDDEN[: before - 1]} {secret}" + " end" * 2000
        assert "hunter" not in redact(beginning(text)), before
        assert "hunter" not in quote(text), before


def test_a_cut_leaves_no_part_of_the_vendors_own_key() -> None:
    """The key looks like any other word, so it is removed before anything is cut."""
    for before in range(8192 - len(SECRET) - 20, 8192 + 2):
        for text in (f"{HIDDEN[: before - 1]} {SECRET}{'z' * 5000}", f"{HIDDEN[: before - 1]} {SECRET} end"):
            assert "hunter" not in quote(text, SECRET), before


def test_a_beginning_is_no_longer_than_it_says_and_cut_between_words() -> None:
    assert beginning("word " * 5000) == ("word " * 5000)[:8189]
    assert len(beginning("z" * 100_000)) == 8192 - 2048
    assert beginning("z" * 8192) == "z" * 8192


def test_a_vendors_error_of_a_megabyte_is_reported_in_no_time() -> None:
    vendor = Vendor("V", "V_KEY", own_words, "secret-key")
    begun = time.process_time()
    text = quote("http://a" * 2**17 + "secret-key", vendor.secret)
    assert time.process_time() - begun < 2
    assert re.fullmatch(r"[^ ]{299}…", text)
