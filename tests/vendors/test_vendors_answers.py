import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retake.errors import Code, OutcomeUnknown, Refused, VendorError
from retake.vendors import chat, legnext, piapi, runway
from retake.vendors.answers import NOT_JSON, QUOTE_LIMIT, Reply, Vendor, parse, quote, retry_after_s, submitted

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["error", "message", "code", "data", "issues", "task_id"]) | st.text(), inner)
    ),
    max_leaves=12,
)
READERS = (piapi.own_words, legnext.own_words, runway.own_words, chat.own_words)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("30", 30.0),
        ("1.5", 1.5),
        (" 7 ", 7.0),
        ("Fri, 20 Nov 2026 12:00:30 GMT", 30.0),
        ("Fri, 20 Nov 2026 11:00:00 GMT", 0.0),
        ("Fri, 20 Nov 2026 12:00:30 -0000", 30.0),
        ("soon", None),
        ("", None),
        ("-5", None),
        ("1e999", None),
        ("99999999999999", 366 * 24 * 3600.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 366 * 24 * 3600.0),
    ],
)
def test_how_long_to_wait_is_seconds_or_a_date(value: str, seconds: float | None) -> None:
    assert retry_after_s({"Retry-After": value, "Date": "Fri, 20 Nov 2026 12:00:00 GMT"}) == seconds


def test_a_date_is_read_without_the_vendors_own_too() -> None:
    assert retry_after_s({"Retry-After": "Fri, 20 Nov 2020 12:00:00 GMT"}) == 0.0


@pytest.mark.parametrize("data", [b"", b"<html>", b"{", b"[" * 100_000, b"\xff\xfe\x00", "{'a': 1}", b"1" * 5000])
def test_what_is_not_json_is_told_apart(data: bytes | str) -> None:
    assert parse(data) is NOT_JSON


@pytest.mark.parametrize(("data", "value"), [(b"null", None), (b"\xef\xbb\xbf{}", {}), ("[1]", [1])])
def test_json_is_read(data: bytes | str, value: object) -> None:
    assert parse(data) == value


@given(JSON)
def test_readers_take_any_body(body: object) -> None:
    for own_words in READERS:
        own_words(body)


@given(st.integers(100, 599), st.binary(max_size=80) | JSON.map(lambda body: json.dumps(body).encode()))
def test_only_the_vendors_own_no_is_a_refusal(status: int, body: bytes) -> None:
    vendor = Vendor("V", "V_KEY", runway.own_words)
    with pytest.raises((Refused, OutcomeUnknown)) as caught:
        submitted(vendor, "do it", Reply(status, {}, body), lambda _: None)
    if isinstance(caught.value, Refused):
        assert status >= 400
        assert status not in (408, 409)
        assert isinstance(parse(body), (dict, list))


def test_a_quote_is_short_on_one_line_and_without_secrets() -> None:
    secret = "sk-abcdefghijklmnop"
    text = f"Incorrect key {secret}\n see https://x/y?sig=1 " + "z" * 400
    quoted = quote(text, secret)
    assert quoted.startswith("Incorrect key … see https://x/y?… zzz")
    assert len(quoted) == QUOTE_LIMIT


@pytest.mark.parametrize(
    "echo", ["key+with/slash=", "key%2Bwith%2Fslash%3D", "key%2bwith/slash%3d", r"key+with\/slash="]
)
def test_an_echo_of_the_key_is_not_quoted_however_it_is_encoded(echo: str) -> None:
    assert quote(f"no user has the key {echo}", "key+with/slash=") == "no user has the key …"


def test_a_key_at_the_edge_of_a_quote_is_not_shown_in_part() -> None:
    secret = "s" * 40
    assert "sss" not in quote("z" * (QUOTE_LIMIT - 10) + secret, secret)


def test_a_message_says_who_what_why_and_what_to_do() -> None:
    vendor = Vendor("Runway", "RUNWAYML_API_SECRET", runway.own_words)
    with pytest.raises(Refused) as caught:
        submitted(vendor, "make a video", Reply(401, {}, b'{"error": "The key is not valid."}'), lambda _: None)
    assert str(caught.value) == (
        'Runway was asked to make a video and answered HTTP 401: "The key is not valid.". '
        "Check the key in RUNWAYML_API_SECRET."
    )


def test_every_code_that_can_arise_has_its_advice() -> None:
    vendor = Vendor("V", "V_KEY", runway.own_words)
    for status in range(100, 600):
        for body in (b"", b'{"error": "x"}', b'{"error": "banned"}', b'{"error": "insufficient credits"}'):
            with pytest.raises(VendorError) as caught:
                submitted(vendor, "do it", Reply(status, {}, body), lambda _: None)
            assert isinstance(caught.value.code, Code)
