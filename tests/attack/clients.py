"""Every call of every vendor's client: how to make it, and how it fails."""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, NamedTuple

import retake.vendors
from retake.vendors import (
    ChatModel,
    Downloader,
    Healthy,
    ImageFile,
    ImageServer,
    Midjourney,
    VideoDetails,
    VideoGenerator,
    VideoPlatform,
)
from retake.vendors.chat import OpenAIChat
from retake.vendors.comfyui import ComfyUI
from retake.vendors.comfyui_events import ComfyEvents
from retake.vendors.download import HttpDownloader
from retake.vendors.legnext import LegNext
from retake.vendors.piapi import PiAPI
from retake.vendors.runway import Runway
from retake.vendors.telegram import TelegramBot
from retake.vendors.youtube import YouTube
from retake.vendors.youtube_account import YouTubeKeys

KEY = "key_0123456789abcdef"
MAX_FILE = 2 * 2**20
PROTOCOLS = (Midjourney, VideoGenerator, ChatModel, Downloader, VideoPlatform, ImageServer)
LARGE_IMAGE = "data:image/png;base64," + "A" * 4_900_000
"""Larger than the buffers between two sockets, so a peer that never reads is noticed."""


class Call(NamedTuple):
    """A method of a client. `kind` says how it fails.

    paid: Refused or OutcomeUnknown; free: PollFailed; quiet: returns None; offline: makes no request.
    """

    client: type
    method: str
    kind: str
    ask: Callable[[Any], Any]

    def __str__(self) -> str:
        return f"{self.client.__name__}.{self.method}"


MAKERS: dict[type, Callable[[str, float], Any]] = {
    PiAPI: lambda url, s: PiAPI(
        url + "/api/v1/task", url + "/mj/v2/fetch", KEY, process_mode="fast", aspect_ratio="16:9", timeout_s=s
    ),
    LegNext: lambda url, s: LegNext(url + "/api", KEY, process_mode="fast", aspect_ratio="16:9", timeout_s=s),
    Runway: lambda url, s: Runway(url, KEY, model="gen4_turbo", ratio="1280:720", duration_s=5, timeout_s=s),
    OpenAIChat: lambda url, s: OpenAIChat(url + "/v1", "gpt-4o", KEY, timeout_s=s),
    YouTube: lambda url, s: _with_token(
        YouTube(YouTubeKeys("id", KEY, KEY), endpoint=url, token_endpoint=url, timeout_s=s, resumes=0)
    ),
    TelegramBot: lambda url, s: TelegramBot(f"1:{KEY}", url, s),
    ComfyUI: lambda url, s: ComfyUI(url, timeout_s=s, file_timeout_s=s, max_bytes=MAX_FILE),
    HttpDownloader: lambda url, s: _At(HttpDownloader(s, MAX_FILE), url + "/cat.png?sig=abc"),
}


class _At(NamedTuple):
    """A downloader with the link to download."""

    downloader: HttpDownloader
    url: str


def _with_token(client: YouTube) -> YouTube:
    """Give the client an access token, so that its first request is the call itself."""
    client._account._credentials.token = KEY
    return client


def _listened(client: ComfyUI) -> None:
    with client.listen("c-1") as events:
        assert not events.open


class _Upload:
    """A video of a few bytes, with hooks that record nothing."""

    size = 5

    def read(self, start: int, length: int) -> bytes:
        return b"video"[start : start + length]

    def check(self) -> None: ...

    def before_last_chunk(self) -> None: ...

    def started(self, session: str) -> None: ...


DETAILS = VideoDetails("title", "description", (), "10", "private", False)
ASKED = {"step": "imagine", "nonce": 7, "requested_at_utc": "2026-11-20T12:00:00Z"}
PICTURES = ["https://a.example/1.png", LARGE_IMAGE]

CALLS = [
    Call(PiAPI, "imagine", "paid", lambda it: it.imagine("a cat", 7)),
    Call(PiAPI, "upscale", "paid", lambda it: it.upscale("t-1", 2)),
    Call(PiAPI, "fetch", "free", lambda it: it.fetch("t-1")),
    Call(PiAPI, "find", "quiet", lambda it: it.find(ASKED)),
    Call(PiAPI, "health", "free", lambda it: it.health()),
    Call(PiAPI, "test_request", "free", lambda it: it.test_request()),
    Call(LegNext, "imagine", "paid", lambda it: it.imagine("a cat", 7)),
    Call(LegNext, "upscale", "paid", lambda it: it.upscale("j-1", 2)),
    Call(LegNext, "fetch", "free", lambda it: it.fetch("j-1")),
    Call(LegNext, "find", "offline", lambda it: it.find(ASKED)),
    Call(LegNext, "health", "free", lambda it: it.health()),
    Call(LegNext, "test_request", "free", lambda it: it.test_request()),
    Call(Runway, "create", "paid", lambda it: it.create(LARGE_IMAGE, "a cat walks")),
    Call(Runway, "usage", "quiet", lambda it: it.usage()),
    Call(Runway, "poll", "free", lambda it: it.poll("t-1")),
    Call(Runway, "health", "free", lambda it: it.health()),
    Call(Runway, "test_request", "free", lambda it: it.test_request()),
    Call(OpenAIChat, "write", "paid", lambda it: it.write("s", "u", temperature=0.5, max_tokens=99)),
    Call(OpenAIChat, "choose", "paid", lambda it: it.choose("Which?", PICTURES)),
    Call(OpenAIChat, "health", "free", lambda it: it.health()),
    Call(OpenAIChat, "test_request", "offline", lambda it: it.test_request()),
    Call(YouTube, "upload", "free", lambda it: it.upload(DETAILS, _Upload(), _Upload())),
    Call(YouTube, "find", "free", lambda it: it.find("nonce")),
    Call(YouTube, "set_thumbnail", "free", lambda it: it.set_thumbnail("v-1", b"jpeg")),
    Call(YouTube, "health", "free", lambda it: it.health()),
    Call(YouTube, "test_request", "free", lambda it: it.test_request()),
    Call(TelegramBot, "health", "free", lambda it: it.health()),
    Call(TelegramBot, "test_request", "free", lambda it: it.test_request()),
    Call(ComfyUI, "submit", "paid", lambda it: it.submit({"1": LARGE_IMAGE}, "p-1", "c-1")),
    Call(ComfyUI, "alive", "quiet", lambda it: it.alive()),
    Call(ComfyUI, "state", "free", lambda it: it.state("p-1")),
    Call(ComfyUI, "listen", "quiet", lambda it: _listened(it)),
    Call(ComfyUI, "wait", "free", lambda it: it.wait("p-1", ComfyEvents(None), timeout_s=60)),
    Call(ComfyUI, "view", "free", lambda it: it.view(ImageFile("a.png", "", "output"))),
    Call(ComfyUI, "upload", "free", lambda it: it.upload("a.png", LARGE_IMAGE.encode())),
    Call(ComfyUI, "cancel", "free", lambda it: it.cancel("p-1")),
    Call(HttpDownloader, "download", "free", lambda it: it.downloader.download(it.url)),
]
ASKING = [call for call in CALLS if call.kind != "offline"]


def made(call: Call, url: str, timeout_s: float) -> Any:
    """Return the client of `call`, with its vendor at `url`."""
    return MAKERS[call.client](url, timeout_s)


def there_are() -> set[str]:
    """Return every "Client.method" in the package, found by the protocols that the clients implement."""
    found = set()
    for module in pkgutil.iter_modules(retake.vendors.__path__, "retake.vendors."):
        for item in vars(importlib.import_module(module.name)).values():
            if not isinstance(item, type) or item.__module__ != module.name or getattr(item, "_is_protocol", False):
                continue
            for protocol in (*PROTOCOLS, Healthy):
                methods = [
                    name for name in vars(protocol) if not name.startswith("_") and callable(vars(protocol)[name])
                ]
                if all(callable(getattr(item, name, None)) for name in methods):
                    found |= {f"{item.__name__}.{name}" for name in methods}
    return found
