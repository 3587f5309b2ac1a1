"""Polls do not use requests, but whatever goes wrong is reported in the same words."""

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from scripted_vendor import Act, ScriptedVendor, closed_port, drip, says

from retake.errors import Code, PollFailed
from retake.vendors import polls
from retake.vendors.answers import NoReply, Vendor, as_dict
from retake.vendors.http import JSON_LIMIT, JsonApi, exchange
from retake.vendors.piapi import own_words

DEEP = b'{"id": ' * 100_000

FAULTS: Mapping[str, Act] = {
    "an answer": says(200, {"id": "7"}),
    "an error": says(500, {"message": "broken", "code": 500}),
    "a gateway's page": says(502, b"<html>bad gateway</html>"),
    "a rate limit": says(429, {"message": "slow down"}, Retry_After="12"),
    "a redirect": says(302, b"", Location="http://elsewhere.example/x?sig=1"),
    "no JSON": says(200, b"hello"),
    "too deep": says(200, DEEP),
    "too large": says(200, b"x" * 2000),
    "too short": says(200, b"{}", Content_Length="10"),
    "an encoding": says(200, b"x", Content_Encoding="br"),
    "drips": drip,
    "a key in lower case": says(401, {"message": "no"}, www_authenticate="x"),
}


def came(client: str, url: str, timeout_s: float = 60.0) -> tuple[Any, ...]:
    content: dict[str, Any] = {"headers": {"X-API-Key": "k"}, "json": {"task_id": "1"}}
    limit = 1000 if "large" in url else JSON_LIMIT
    try:
        if client == "requests":
            reply = exchange(None, "POST", url, timeout_s=timeout_s, limit=limit, **content)
        else:
            assert polls.can_ask(url, {"json": content["json"]})
            reply = polls.ask("POST", url, timeout_s=timeout_s, limit=limit, **content)
    except NoReply as trouble:
        return trouble.code, str(trouble), trouble.sent, trouble.head and trouble.head.status
    return reply.status, reply.body, reply.headers.get("retry-after"), reply.headers.get("Location")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_reported_as_by_requests(fault: str, vendor: ScriptedVendor) -> None:
    vendor.script = [FAULTS[fault], FAULTS[fault]]
    url = vendor.url + ("/large" if fault == "too large" else "/x")
    seconds = 1.5 if fault == "drips" else 5.0
    assert came("polls", url, seconds) == came("requests", url, seconds)
    asked, theirs = vendor.seen
    assert asked.body == theirs.body
    different = ("user-agent",)
    assert {k: v for k, v in asked.headers.items() if k not in different} == {
        k: v for k, v in theirs.headers.items() if k not in different
    }


def test_a_connection_that_is_not_made_is_reported_as_by_requests() -> None:
    for url in (closed_port(), "http://vendor.invalid/x"):
        assert came("polls", url) == came("requests", url)


def test_an_answer_with_two_lengths_is_cut(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, b"{}", Content_Length="2, 10")]
    assert came("polls", vendor.url)[::2] == (Code.NETWORK, True)


@pytest.mark.parametrize(
    "url",
    [
        *("http://a_b.example/", "http://[::1]/", "http://me:pw@x.example/", "http://x.example:99999/", "ftp://x/"),
        *("http://ex..ample/", "http://x.example/../y", "http://x.example/a%20b", "http://x.example/?q=1", "nowhere"),
    ],
)
def test_an_address_that_is_not_plain_is_left_to_requests(url: str) -> None:
    assert not polls.can_ask(url, {})


def test_an_address_that_needs_a_proxy_or_a_query_is_left_to_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HTTPS_PROXY", raising=False)
    monkeypatch.delenv("https_proxy", raising=False)
    assert polls.can_ask("https://x.example/a", {"json": {}})
    assert not polls.can_ask("https://x.example/a", {"params": {"page": 1}})
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:1")
    assert not polls.can_ask("https://x.example/a", {"json": {}})


def test_a_failed_poll_names_its_code(vendor: ScriptedVendor) -> None:
    vendor.script = [FAULTS["a rate limit"]]
    api = JsonApi(Vendor("V", "V_KEY", own_words, "secret"), {"X-API-Key": "secret"}, timeout_s=60.0)
    with pytest.raises(PollFailed) as caught:
        api.ask("tell", vendor.url, {}, lambda body: as_dict(body).get("id"))
    assert (caught.value.code, caught.value.retry_after_s) == (Code.RATE_LIMIT, 12.0)


def test_neither_requests_nor_click_is_loaded_for_a_poll() -> None:
    code = (
        "import sys, retake.story.script, retake.story.media, retake.vendors.polls; "
        "import retake.vendors.piapi, retake.vendors.runway; "
        "print({'requests', 'urllib3', 'click', 'httpx', 'runwayml', 'pydantic'} & set(sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stdout.strip() == "set()", ended.stderr
