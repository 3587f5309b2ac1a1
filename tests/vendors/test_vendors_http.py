import gzip
import signal
import socket
import threading
from typing import Any

import pytest
import requests
import urllib3
from requests.adapters import HTTPAdapter
from scripted_vendor import Act, ScriptedVendor, closed_port, drip, says

from retake.errors import Code, OutcomeUnknown, Refused
from retake.vendors import http
from retake.vendors.answers import NoReply, Vendor, as_dict
from retake.vendors.http import Cutter, JsonApi, bare, exchange, within
from retake.vendors.runway import own_words

VENDOR = Vendor("V", "V_KEY", own_words, "secret-key")


def api(timeout_s: float = 60.0, session: requests.Session | None = None) -> JsonApi:
    return JsonApi(VENDOR, {"X-API-Key": "secret-key"}, timeout_s=timeout_s, session=session)


def submit(api: JsonApi, url: str) -> object:
    return api.submit("do it", url, {}, lambda body: as_dict(body).get("id"))


class Broken(HTTPAdapter):
    """Fails with `error`, and remembers its arguments."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error, self.given = error, []

    def send(self, *args: Any, **kwargs: Any) -> requests.Response:
        self.given.append(kwargs)
        raise self.error

    def session(self) -> requests.Session:
        session = requests.Session()
        session.mount("http://", self)
        return session


def test_connections_are_waited_for_ten_seconds_and_answers_as_long_as_given() -> None:
    broken = Broken(requests.ConnectTimeout())
    for timeout_s in (30.0, 2.0):
        with pytest.raises(Refused):
            submit(api(timeout_s, broken.session()), "http://x")
    assert [given["timeout"] for given in broken.given] == [(10.0, 30.0), (2.0, 2.0)]


def test_an_answer_that_drips_is_left_at_the_deadline(vendor: ScriptedVendor) -> None:
    vendor.script = [drip]
    with pytest.raises(OutcomeUnknown) as caught:
        submit(api(1.5), vendor.url)
    assert caught.value.code is Code.TIMEOUT


def test_an_answer_without_end_is_left(vendor: ScriptedVendor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "JSON_LIMIT", 1000)
    vendor.script = [says(200, {"id": "x" * 2000})]
    with pytest.raises(OutcomeUnknown, match="larger than 1,000 bytes"):
        submit(api(), vendor.url)


@pytest.mark.parametrize(
    "act", [says(503, b"x" * 2000, Retry_After="7"), says(503, b"x", Retry_After="7", Content_Encoding="br")]
)
def test_status_and_headers_of_an_unusable_answer_are_kept(vendor: ScriptedVendor, act: Act) -> None:
    vendor.script = [act]
    with pytest.raises(NoReply) as caught:
        exchange(None, "POST", vendor.url, timeout_s=60.0, limit=1000)
    head = caught.value.head
    assert head is not None
    assert (head.status, head.headers["Retry-After"], head.body) == (503, "7", b"")


def test_a_missing_proxy_means_that_nothing_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("HTTP_PROXY", closed_port())
    with pytest.raises(Refused) as caught:
        submit(api(), "http://vendor.invalid/create")
    assert caught.value.code is Code.NETWORK


@pytest.mark.parametrize(
    "error",
    [
        requests.ConnectionError(urllib3.exceptions.ProtocolError("Connection aborted.", ConnectionResetError())),
        requests.ConnectionError(),
        requests.ConnectionError("anything"),
        requests.exceptions.SSLError("EOF occurred in violation of protocol"),
        requests.exceptions.ProxyError(),
        requests.exceptions.ChunkedEncodingError(),
        requests.ReadTimeout(),
        requests.RequestException(),
        urllib3.exceptions.ClosedPoolError(None, "x"),  # type: ignore[arg-type]
        OSError("x"),
    ],
    ids=repr,
)
def test_anything_but_a_failed_connection_may_have_been_sent(error: Exception) -> None:
    with pytest.raises(OutcomeUnknown):
        submit(api(session=Broken(error).session()), "http://x")


def test_what_a_callers_own_session_has_sent_when_its_time_is_over_is_not_known() -> None:
    over = threading.Event()

    class Slow(Broken):
        def send(self, *args: Any, **kwargs: Any) -> requests.Response:
            over.wait(20)
            return super().send(*args, **kwargs)

    with pytest.raises(OutcomeUnknown) as caught:
        submit(api(0.1, Slow(requests.ReadTimeout()).session()), "http://x")
    over.set()
    assert caught.value.code is Code.TIMEOUT


@pytest.mark.parametrize("session", [None, requests.Session()], ids=["", "with a session"])
def test_a_call_for_which_no_thread_can_be_started_was_not_made(
    session: requests.Session | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(Refused, match="nothing was sent: this machine starts no more threads") as caught:
        submit(api(5, session), "http://x")
    assert caught.value.code is Code.UNAVAILABLE


def test_an_exception_in_the_thread_that_waits_cuts_the_call(vendor: ScriptedVendor) -> None:
    """Ctrl-C in the middle of a call: nothing continues in the background."""
    vendor.script = [drip]
    cutters: list[Cutter] = []

    def work(cutter: Cutter) -> None:
        cutters.append(cutter)
        with socket.create_connection(("127.0.0.1", int(vendor.url.rpartition(":")[2]))) as connection:
            cutter.watch(connection)
            cutter.opened()
            signal.raise_signal(signal.SIGINT)
            while connection.recv(1000):
                pass

    with pytest.raises(KeyboardInterrupt):
        within(20, work)
    with pytest.raises(TimeoutError):
        cutters[0].opened()


def test_a_connection_that_comes_after_the_call_is_over_is_closed() -> None:
    cutter, (connection, other) = Cutter(), socket.socketpair()
    cutter.cut()
    with connection, other:
        with pytest.raises(TimeoutError):
            cutter.watch(connection)
        assert connection.fileno() == -1
        assert other.recv(1) == b"", "the other side is notified"


@pytest.mark.parametrize("location", ["http://[::1", "http://", "nowhere", "ftp://x", "http://ex..ample"])
def test_a_redirect_to_nowhere_may_still_have_been_paid_for(location: str, vendor: ScriptedVendor) -> None:
    """requests follows a redirect internally even when told not to, and then fails as if nothing had been sent."""
    vendor.script = [says(307, "moved", Location=location)]
    with pytest.raises(OutcomeUnknown) as caught:
        submit(api(), vendor.url)
    assert caught.value.code is Code.BAD_ANSWER


def test_the_vendors_echo_of_the_key_is_not_repeated(vendor: ScriptedVendor) -> None:
    vendor.script = [says(401, {"error": "Incorrect key: secret-key"})]
    with pytest.raises(Refused, match="Incorrect key: …") as caught:
        submit(api(), vendor.url)
    assert "secret-key" not in str(caught.value)


def test_the_wish_to_be_left_alone_is_passed_on(vendor: ScriptedVendor) -> None:
    vendor.script = [says(429, {"error": "slow down"}, Retry_After="12")]
    with pytest.raises(Refused) as caught:
        submit(api(), vendor.url)
    assert caught.value.retry_after_s == 12.0


def test_compression_is_not_asked_for_but_understood(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, gzip.compress(b'{"id": "7"}'), Content_Encoding="gzip")]
    assert submit(api(), vendor.url) == "7"
    assert vendor.seen[0].headers["accept-encoding"] == "identity"


MEMBERS = gzip.compress(b'{"id": "7", ') + gzip.compress(b'"more": 8}')


@pytest.mark.parametrize(
    "behind",
    [b"", bytes(512), bytes(5000) + MEMBERS, gzip.compress(b""), gzip.compress(b" ") * 500],
    ids=["nothing", "padding", "much padding", "an empty member", "many members"],
)
def test_all_members_of_a_compressed_answer_are_read(vendor: ScriptedVendor, behind: bytes) -> None:
    vendor.script = [says(200, MEMBERS + behind, Content_Encoding="gzip")]
    reply = exchange(requests.Session(), "GET", vendor.url, timeout_s=10.0, limit=20_000)
    assert reply.body.rstrip() == b'{"id": "7", "more": 8}'


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (MEMBERS[:-1], "cannot be decompressed to its end"),
        (MEMBERS + b"\x1fpadding", "cannot be decompressed"),
        (gzip.compress(bytes(15_000)) * 2, "larger than 20,000 bytes"),
    ],
    ids=["cut", "damaged", "too large together"],
)
def test_members_of_a_compressed_answer_that_cannot_be_used_are_refused(
    vendor: ScriptedVendor, body: bytes, told: str
) -> None:
    vendor.script = [says(200, body, Content_Encoding="gzip")]
    with pytest.raises(NoReply, match=told):
        exchange(requests.Session(), "GET", vendor.url, timeout_s=10.0, limit=20_000)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:pw@x.com:8/a/b?sig=1#f", "https://x.com:8/a/b"),
        ("http://[::1", "an invalid URL"),
    ],
)
def test_an_address_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert bare(url) == shown


def test_what_is_wrong_with_an_address_is_not_taken_for_a_cut() -> None:
    for url in ("nowhere", "http://", "http://[::1", "http://ex..ample/", "http://" + "a" * 70 + ".com/", "ftp://x/"):
        with pytest.raises(NoReply) as caught:
            exchange(requests.Session(), "GET", url, timeout_s=1.0, limit=10)
        assert (caught.value.code, caught.value.sent) == (Code.CONFIGURATION, False)
