"""docs/errors.md, row by row, against the real clients."""

import gzip
import re
import socket
from collections.abc import Callable
from typing import Any

import pytest
from errors_doc import rows
from scripted_vendor import (
    LONG_S,
    Act,
    ScriptedVendor,
    closed_port,
    cut,
    cut_midway,
    drip,
    hang,
    page,
    says,
)
from waiting import eventually

from retake.errors import TaskFailed, VendorError
from retake.vendors.chat import OpenAIChat
from retake.vendors.download import HttpDownloader
from retake.vendors.legnext import LegNext
from retake.vendors.piapi import PiAPI
from retake.vendors.runway import Runway

KEY = "key_0123456789abcdef"
ZEROS = gzip.compress(bytes(2**24 + 1))


def piapi(url: str, timeout_s: float = 60.0) -> PiAPI:
    create, fetch = url + "/api/v1/task", url + "/mj/v2/fetch"
    return PiAPI(create, fetch, KEY, process_mode="fast", aspect_ratio="16:9", timeout_s=timeout_s)


def legnext(url: str, timeout_s: float = 60.0) -> LegNext:
    return LegNext(url + "/api", KEY, process_mode="fast", aspect_ratio="16:9", timeout_s=timeout_s)


def runway(url: str, timeout_s: float = 60.0) -> Runway:
    return Runway(url, KEY, model="gen4_turbo", ratio="1280:720", duration_s=5, timeout_s=timeout_s)


def chat(url: str, timeout_s: float = 60.0) -> OpenAIChat:
    return OpenAIChat(url + "/v1", "gpt-4o", KEY, timeout_s=timeout_s)


Call = Callable[[str, float], Any]

PAID: dict[str, Call] = {
    "imagine": lambda url, s: piapi(url, s).imagine("a cat", 7),
    "upscale": lambda url, s: piapi(url, s).upscale("t-1", 2),
    "LegNext imagine": lambda url, s: legnext(url, s).imagine("a cat", 7),
    "LegNext upscale": lambda url, s: legnext(url, s).upscale("j-1", 2),
    "create": lambda url, s: runway(url, s).create("data:image/png;base64,AAAA", "a cat walks"),
    "write": lambda url, s: chat(url, s).write("s", "u", temperature=0.5, max_tokens=99),
    "choose": lambda url, s: chat(url, s).choose("Which?", ["https://a/1.png", "https://a/2.png"]),
}
POLLS: dict[str, Call] = {
    "fetch": lambda url, s: piapi(url, s).fetch("t-1"),
    "LegNext fetch": lambda url, s: legnext(url, s).fetch("j-1"),
    "poll": lambda url, s: runway(url, s).poll("t-1"),
}
FREE = {"download": lambda url, s: HttpDownloader(s, 2**24).download(url + "/cat.png")}
CALLS = PAID | POLLS | FREE


def own_error(call: str, status: int, text: str, code: str = "") -> dict[str, Any]:
    if call in ("create", "poll"):
        return {"error": f"{code} {text}".strip()}
    if call in ("write", "choose"):
        return {"error": {"message": text, "type": "invalid_request_error", "param": None, "code": code or None}}
    if call.startswith("LegNext"):
        return {"code": status, "message": f"{code} {text}".strip(), "raw_message": text, "detail": None}
    return {"code": code or status, "message": text, "data": None}


DONE_WITHOUT = {
    "fetch": {"task_id": "t-1", "status": "finished", "task_result": {"image_url": "", "image_urls": None}},
    "LegNext fetch": {"job_id": "j-1", "status": "completed", "output": {"image_url": "", "image_urls": None}},
    "poll": {"id": "t-1", "status": "SUCCEEDED", "output": []},
}
WITHOUT = {
    "imagine": {"code": 200, "message": "success", "data": {"task_id": ""}},
    "upscale": {"task_id": None},
    "LegNext imagine": {"job_id": "", "status": "pending"},
    "LegNext upscale": {"data": {"job_id": "j-2"}},
    "create": {"estimatedCost": {"credits": 25}},
    "write": {"id": "x", "choices": []},
    "choose": [],
    "fetch": {"code": 200, "message": "success", "data": None},
    "LegNext fetch": {"job_id": "j-1"},
    "poll": {"id": "t-1"},
}
TEXTS = {
    "moderation": "Your prompt was rejected by our moderation system",
    "not enough credits": "You do not have enough credits: not enough credits to run this task",
}
UNSCRIPTED = ("connection refused", "name does not resolve", "no connection in time", "the endpoint is not a URL")
ACTS: dict[str, Act] = {
    "no answer in time": hang,
    "connection cut": cut,
    "answer cut in the middle": cut_midway,
    "answer that drips, not whole in time": drip,
    "answer larger than allowed": says(200, b"", Content_Length=str(10 * 2**30)),
    "answer that unpacks to more than allowed": says(200, ZEROS, Content_Encoding="gzip"),
    "200 HTML": page(200),
    "200 broken JSON": says(200, '{"data": {"task_id": "t-', Content_Type="application/json"),
    "307 redirect (not followed)": says(307, Location="/elsewhere?sig=abc"),
}


def act_for(call: str, what: str) -> Act:
    if what in ACTS:
        return ACTS[what]
    if what == "200 done without a picture or video":
        return says(200, DONE_WITHOUT[call])
    if what == "200 JSON without what was bought":
        return says(200, WITHOUT[call])
    found = re.fullmatch(r"(\d{3}) (JSON|other JSON|HTML|XML|empty)(?:, (.*))?", what)
    assert found, f"docs/errors.md: no test for {what!r}"
    status, body, words = int(found[1]), found[2], found[3] or "nothing special"
    if body == "JSON":
        code = words if words == "insufficient_quota" else ""
        return says(status, own_error(call, status, TEXTS.get(words, words), code))
    if body == "other JSON":
        return says(status, {"detail": "Internal"})
    return page(status) if body == "HTML" else says(status, "<Error/>" if body == "XML" else "")


def timeout_for(what: str) -> float:
    """Return how long a client waits: without an answer, still long enough to have sent its request."""
    if what == "no connection in time":
        return 0.1
    return 1.0 if what.endswith("in time") else LONG_S


def url_for(what: str, vendor: ScriptedVendor, deaf_url: str) -> str:
    urls = {
        "connection refused": closed_port(),
        "name does not resolve": "http://no-such-host.invalid",
        "no connection in time": deaf_url,
        "the endpoint is not a URL": "nowhere",
    }
    return urls.get(what, vendor.url)


@pytest.fixture
def _no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a name server that knows loopback alone."""
    resolve = socket.getaddrinfo

    def answer(host: str, *args: Any, **kwargs: Any) -> Any:
        if host in ("127.0.0.1", "localhost", b"127.0.0.1"):
            return resolve(host, *args, **kwargs)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", answer)


def rows_of(call: str, title: str) -> list[tuple[str, ...]]:
    """Return the rows that apply to `call`: those of its vendor, and the common ones that they do not replace."""
    table = [(*row[0].rpartition(": ")[::2], *row[1:]) for row in rows(title)]
    own = [row[1:] for row in table if row[0] and call.startswith(row[0])]
    return own + [row[1:] for row in table if not row[0] and row[1] not in [what for what, *_ in own]]


CASES = [
    pytest.param(call, *row, id=f"{call}-{row[0]}")
    for title, calls in (("Paid calls", PAID), ("Polls", POLLS), ("Downloads", FREE))
    for call in calls
    for row in rows_of(call, title)
]


@pytest.mark.usefixtures("_no_names")
@pytest.mark.parametrize(("call", "what", "kind", "error_class", "code"), CASES)
def test_an_error_is_what_the_table_says(
    call: str, what: str, kind: str, error_class: str, code: str, vendor: ScriptedVendor, deaf_url: str
) -> None:
    if what not in UNSCRIPTED:
        vendor.script = [act_for(call, what)]

    with pytest.raises(VendorError) as caught:
        CALLS[call](url_for(what, vendor, deaf_url), timeout_for(what))

    error = caught.value
    assert (type(error).__name__, error.error_class.value, error.code.name) == (kind, error_class, code), str(error)
    assert eventually(lambda: len(vendor.seen) == (what not in UNSCRIPTED)), "asked more than once"
    assert KEY not in str(error)
    assert "sig=" not in str(error)
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None, "a traceback would show the library's own text"


def test_a_row_of_one_vendor_holds_for_that_vendor_alone() -> None:
    for call in PAID:
        [(_, kind, error_class, _)] = [row for row in rows_of(call, "Paid calls") if row[0] == "403 JSON"]
        assert (kind, error_class) == ("Refused", "B" if call.startswith("LegNext") else "C")


TABLES = ("Paid calls", "Polls", "Downloads", "Tasks that fail", "YouTube", "Telegram", "ComfyUI")


def test_the_tables_are_read() -> None:
    assert [len(rows(title)) > 5 for title in TABLES] == [True] * len(TABLES)


def completion(content: str | None, finish_reason: str = "stop", refusal: str | None = None) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, "refusal": refusal}
    return {"id": "c", "choices": [{"index": 0, "finish_reason": finish_reason, "message": message}]}


FAILURES: dict[str, Any] = {
    "LegNext failed, for a reason of its own": {"status": "failed", "error": {"code": 500, "message": "task failed"}},
    "LegNext failed, without a reason": {"status": "failed", "error": {"code": 0, "message": "", "detail": None}},
    "LegNext failed, moderation": {"status": "failed", "error": {"code": 403, "raw_message": "Sensitive content"}},
    "failed, for a reason of its own": {"status": "failed", "task_result": {"error_messages": ["try again later"]}},
    "failed, moderation": {"data": {"status": "Failed", "error": {"raw_message": "Banned prompt detected"}}},
    "FAILED without a code": {"id": "t-1", "status": "FAILED", "failure": "An error"},
    "CANCELLED": {"id": "t-1", "status": "CANCELLED"},
    "content_filter": completion('{"a": 1}', "content_filter"),
    "refusal": completion(None, refusal="I cannot help with that"),
    "cut at its length": completion('{"a": 1', "length"),
    "not JSON": completion("Sure! Here you are"),
    "JSON but no object": completion('["a"]'),
}
FAILING_CALL = {"PiAPI": "fetch", "LegNext": "LegNext fetch", "Runway": "poll", "chat": "write"}


@pytest.mark.parametrize(("who", "what", "error_class", "code"), rows("Tasks that fail"))
def test_a_failed_task_is_what_the_table_says(
    who: str, what: str, error_class: str, code: str, vendor: ScriptedVendor
) -> None:
    failure_code = what.removeprefix("FAILED ")
    runways = {"id": "t-1", "status": "FAILED", "failure": "x", "failureCode": failure_code}
    vendor.script = [says(200, FAILURES.get(f"{who} {what}") or FAILURES.get(what) or runways)]
    call = CALLS[FAILING_CALL[who]]

    if who == "chat":
        with pytest.raises(TaskFailed) as caught:
            call(vendor.url, 5.0)
        failure = caught.value
    else:
        failure = call(vendor.url, 5.0).failure

    assert isinstance(failure, TaskFailed)
    assert (failure.error_class.value, failure.code.name) == (error_class, code), str(failure)
