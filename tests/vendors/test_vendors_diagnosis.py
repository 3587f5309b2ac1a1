"""Requests in the diagnostic mode: shapes are shown, values are not."""

import logging
from collections.abc import Iterator

import pytest
import requests

from retake.errors import Code
from retake.logs import DIAGNOSIS, mask, part_of_secret
from retake.vendors.answers import NoReply, Reply
from retake.vendors.diagnosis import diagnosed


class Heard(logging.Handler):
    """Collects formatted log records."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture(name="heard")
def _heard() -> Iterator[Heard]:
    logger = logging.getLogger(DIAGNOSIS)
    logger.setLevel(logging.DEBUG)
    heard = Heard()
    logger.addHandler(heard)
    yield heard
    logger.removeHandler(heard)
    logger.setLevel(logging.NOTSET)


def told(heard: Heard, url: str, body: object = None, answer: bytes = b"{}") -> str:
    request = requests.Request("POST", url, **({"json": body} if body is not None else {})).prepare()
    diagnosed(request, lambda: Reply(200, {}, answer))
    return heard.messages[-1]


@pytest.mark.parametrize(
    ("answer", "shape"),
    [
        (b"", "0 bytes"),
        (b"<html>", "6 bytes"),
        (b"{", "1 bytes"),
        (b"[]", "2 bytes [0]"),
        (b'{"a": {"b": {"c": {"d": 1}}}}', "{a: {b: {c}}}"),
        (b'[{"url": "https://x/?sig=1"}, 2]', "[2 \u00d7 {url}]"),
        (b"[" * 100_000, "100000 bytes"),
        (b'{"' + b"k" * 900 + b'": 1}', "{" + "k" * 40 + "}"),
        (b'{"a": "secret words", "b": true, "c": null, "d": ["t"]}', "{a, b, c, d: [1 \u00d7 text]}"),
    ],
)
def test_a_body_is_shown_by_its_size_and_its_keys(heard: Heard, answer: bytes, shape: str) -> None:
    text = told(heard, "https://api.test/v1", answer=answer)
    assert text.endswith(shape)
    assert len(text) < 400
    assert "secret words" not in text


def test_the_first_of_many_keys_are_shown(heard: Heard) -> None:
    text = told(heard, "https://api.test/v1", {f"k{number}": 1 for number in range(500)})
    assert "k19, \u2026}" in text


def test_a_url_is_shown_without_user_query_and_fragment(heard: Heard) -> None:
    text = told(heard, "https://user:pass@cdn.test/a/b.png?sig=abc#part")
    assert text.startswith("POST https://cdn.test/a/b.png: HTTP 200")
    assert "sig" not in text
    assert "pass" not in text


def test_the_path_of_a_webhook_is_a_secret(heard: Heard) -> None:
    mask(["https://hooks.test/services/T000/very-secret-part?wait=true"])
    assert part_of_secret("very-secret-part")
    assert not part_of_secret("short")
    text = told(heard, "https://hooks.test/services/T000/very-secret-part?wait=true")
    assert text.startswith("POST https://hooks.test/\u2026/T000/\u2026: HTTP 200")


def test_a_call_without_an_answer_says_why(heard: Heard) -> None:
    def send() -> Reply:
        raise NoReply(Code.NETWORK, "the connection was cut", sent=True)

    with pytest.raises(NoReply):
        diagnosed(requests.Request("GET", "https://api.test/v1").prepare(), send)
    assert heard.messages[-1].startswith("GET https://api.test/v1: the connection was cut, 0.0")
