"""The real clients against the sandbox: each fault of its grammar, and how the client classifies it.

The sandbox's books decide: an error that says "not carried out" must not coincide with a bill.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from scripted_vendor import LONG_S
from waiting import eventually

from retake.clock import SystemClock, stamp
from retake.errors import OutcomeUnknown, PollFailed, Refused, VendorError
from retake.sandbox import FAULTS, KINDS, Pace, Sandbox
from retake.sandbox.notices import addresses
from retake.vendors import Midjourney
from retake.vendors.chat import OpenAIChat
from retake.vendors.download import HttpDownloader
from retake.vendors.legnext import LegNext
from retake.vendors.piapi import PiAPI
from retake.vendors.runway import Runway

PIXEL = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
CHANNELS = tuple(addresses(""))
"""Calls of channels, tested in tests/alerts/test_channels_sandbox.py."""

MUSIC = ("updates", "token", "youtube", "upload.start", "upload.put", "upload.ask", "thumbnail")
"""Calls of Telegram and YouTube, tested in test_telegram.py and test_youtube.py."""

STATUSES = ("400", "401", "403", "408", "409", "429", "500")
PAGES = ("403-html", "502-html")
TASK_FAULTS = ("task-failed", "task-rejected", "never-ends")
SELLERS = ("piapi", "legnext")


@pytest.fixture(scope="module")
def shared() -> Iterator[Sandbox]:
    with Sandbox(pace=Pace(0, 0, 0), quick=True, seed=7) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(shared: Sandbox) -> Iterator[Sandbox]:
    yield shared
    shared.withdraw_orders()


def piapi(sandbox: Sandbox, timeout_s: float = 60.0) -> PiAPI:
    urls = sandbox.endpoints()["midjourney"]
    return PiAPI(
        urls["endpoint"], urls["task_endpoint"], "k", process_mode="fast", aspect_ratio="", timeout_s=timeout_s
    )


def midjourney(sandbox: Sandbox, seller: str, timeout_s: float = 60.0) -> Midjourney:
    if seller == "piapi":
        return piapi(sandbox, timeout_s)
    url = sandbox.endpoints("legnext")["midjourney"]["endpoint"]
    return LegNext(url, "k", process_mode="fast", aspect_ratio="16:9", timeout_s=timeout_s)


def runway(sandbox: Sandbox, timeout_s: float = 60.0, model: str = "gen4_turbo") -> Runway:
    url = sandbox.endpoints()["runwayml"]["endpoint"]
    return Runway(url, "key_1", model=model, ratio="1280:768", duration_s=7, timeout_s=timeout_s)


def chat(sandbox: Sandbox, timeout_s: float = 60.0) -> OpenAIChat:
    return OpenAIChat(sandbox.endpoints()["openai"]["endpoint"], "gpt-4o", "sk-1", timeout_s=timeout_s)


def paid(sandbox: Sandbox, kind: str, timeout_s: float, seller: str) -> Callable[[], Any]:
    pictures = midjourney(sandbox, seller, timeout_s)
    if kind == "upscale":
        origin = midjourney(sandbox, seller).imagine("a cat", 1)
        return lambda: pictures.upscale(origin, 2)
    return {
        "imagine": lambda: pictures.imagine("a cat", 1),
        "runway": lambda: runway(sandbox, timeout_s).create(PIXEL, "a cat walks"),
        "chat": lambda: chat(sandbox, timeout_s).write("Answer in JSON", "topic", temperature=0.5, max_tokens=99),
    }[kind]


def free(sandbox: Sandbox, kind: str, seller: str) -> Callable[[float], Any]:
    """Return a repeatable call, given how long it may take."""
    if kind == "poll":
        task_id = runway(sandbox).create(PIXEL, "a cat walks")
        return lambda timeout_s: runway(sandbox, timeout_s).poll(task_id)
    task_id = midjourney(sandbox, seller).imagine("a cat", 1)
    if kind == "fetch":
        return lambda timeout_s: midjourney(sandbox, seller, timeout_s).fetch(task_id)
    result = midjourney(sandbox, seller).fetch(task_id).result
    assert result is not None
    return lambda timeout_s: HttpDownloader(timeout_s).download(result["image_url"])


def patience(fault: str) -> float:
    """Return how long a client waits: without an answer, still long enough to have sent its request."""
    return 1.0 if fault.startswith("hang") else LONG_S


PICTURES = [(kind, seller) for kind in ("imagine", "upscale") for seller in SELLERS]
PAID_FAULTS = [
    (kind, seller, fault)
    for kind, seller in (*PICTURES, ("runway", ""), ("chat", ""))
    for fault in (*STATUSES, *PAGES, *sorted(set(FAULTS) - set(TASK_FAULTS)))
    if (kind, fault) != ("chat", "no-id")  # a completion has no task id to leave out
]


@pytest.mark.parametrize(("kind", "seller", "fault"), PAID_FAULTS)
def test_a_paid_call_that_failed_is_never_called_refused_if_it_was_billed(
    kind: str, seller: str, fault: str, sandbox: Sandbox
) -> None:
    call = paid(sandbox, kind, patience(fault), seller)
    sandbox.order(f"{kind}={fault}")
    before = len(sandbox.calls(kind))

    with pytest.raises(VendorError) as caught:
        call()

    assert eventually(lambda: len(sandbox.calls(kind)) == before + 1)
    [seen] = sandbox.calls(kind)[before:]
    says_no = fault in (*STATUSES, "quota") and fault not in ("408", "409")
    assert type(caught.value) is (Refused if says_no else OutcomeUnknown), str(caught.value)
    assert not (seen.carried_out and says_no)


@pytest.mark.parametrize("fault", [*STATUSES, *PAGES, "cut-before", "cut-after", "hang", "not-json", "quota"])
@pytest.mark.parametrize(
    ("kind", "seller"), [("fetch", "piapi"), ("fetch", "legnext"), ("poll", ""), ("download", "piapi")]
)
def test_a_free_call_that_failed_is_a_failed_poll(kind: str, seller: str, fault: str, sandbox: Sandbox) -> None:
    call = free(sandbox, kind, seller)
    sandbox.order(f"{kind}#1={fault}")

    with pytest.raises(PollFailed) as caught:
        call(patience(fault))

    mendable = kind == "download" or fault not in ("401", "402", "403", "403-html", "quota")
    assert caught.value.error_class == ("A" if mendable else "C"), str(caught.value)
    assert call(LONG_S)  # the fault is over: the same question is answered


def test_every_kind_of_call_is_looked_at() -> None:
    looked_at = {
        "imagine",
        "upscale",
        "runway",
        "chat",
        "fetch",
        "poll",
        "download",
        "histories",
        "organization",
        "account",
        "models",
        *CHANNELS,
        *MUSIC,
    }
    assert set(KINDS) == looked_at, "test how a client takes the answers to that kind of call, and add it here"


@pytest.mark.parametrize(("kind", "seller"), [*PICTURES, ("runway", "")])
def test_a_task_that_fails_says_so_when_asked(kind: str, seller: str, sandbox: Sandbox) -> None:
    poll = runway(sandbox).poll if kind == "runway" else midjourney(sandbox, seller).fetch
    classes = {}
    for fault in TASK_FAULTS:
        call = paid(sandbox, kind, 5.0, seller)
        sandbox.order(f"{kind}={fault}")
        state = poll(call())
        sandbox.withdraw_orders()
        classes[fault] = state.failure.error_class.value if state.failure else state.running
    assert classes == {"task-failed": "A", "task-rejected": "B", "never-ends": True}


@pytest.mark.parametrize("seller", SELLERS)
def test_a_picture_goes_all_the_way(seller: str, sandbox: Sandbox) -> None:
    pictures = midjourney(sandbox, seller)
    grid = pictures.fetch(pictures.imagine("a cat in the rain", 4_294_967_295)).result
    assert grid is not None
    assert len(grid["temporary_image_urls"]) == 4
    assert grid["seed"] == "4294967295"

    origin = sandbox.calls("imagine")[-1].task_id
    picture = pictures.fetch(pictures.upscale(origin, chat(sandbox).choose("Which?", grid["temporary_image_urls"])))
    assert picture.result is not None
    assert HttpDownloader(5.0).download(picture.result["image_url"]).startswith(b"\x89PNG")


@pytest.mark.parametrize("model", ["gen4_turbo", "gen4.5"])
def test_a_video_goes_all_the_way_whatever_was_asked_for(model: str, sandbox: Sandbox) -> None:
    film = runway(sandbox, model=model)
    done = film.poll(film.create(PIXEL, "the cat 😀 walks " * 200)).result
    assert done is not None
    assert HttpDownloader(5.0).download(done["output"][0])[4:8] == b"ftyp"


def test_a_lost_imagine_and_a_lost_upscale_are_found(sandbox: Sandbox) -> None:
    pictures, asked_at = piapi(sandbox), stamp(SystemClock().now())
    pictures.imagine("another cat", 41)
    sandbox.order("imagine=cut-after")
    sandbox.order("upscale=not-json")
    with pytest.raises(OutcomeUnknown):
        pictures.imagine("a cat", 42)
    lost = sandbox.calls("imagine")[-1].task_id
    with pytest.raises(OutcomeUnknown):
        pictures.upscale(lost, 3)

    imagine = {"step": "imagine", "requested_at_utc": asked_at, "nonce": 42}
    upscale = {"step": "upscale", "requested_at_utc": asked_at, "origin_task_id": lost, "index": 3}
    assert pictures.find(imagine) == lost
    assert pictures.find(upscale) == sandbox.calls("upscale")[-1].task_id
    assert pictures.find(upscale | {"index": 4}) is None
    assert pictures.find(imagine | {"nonce": 43}) is None
    long_ago = stamp(SystemClock().now() - timedelta(hours=1))
    assert pictures.find(imagine | {"requested_at_utc": long_ago}) is None
    sandbox.order("histories=500")
    assert pictures.find(imagine) is None
