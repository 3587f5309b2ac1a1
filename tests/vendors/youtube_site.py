"""A sandbox's YouTube as tests see it, with clients and a video to upload."""

from scripted_vendor import LONG_S, ScriptedVendor, says

from retake.sandbox import Sandbox, music_endpoints
from retake.vendors import VideoDetails
from retake.vendors.youtube import CHUNK_UNIT, YouTube
from retake.vendors.youtube_account import YouTubeKeys

KEYS = YouTubeKeys("client-id", "client-secret-1", "refresh-token-1")
DETAILS = VideoDetails("Slow Light", "A track.\n\nnonce-1", ("music", "piano"), "10", "private", False)
VIDEO = bytes(range(256)) * 3000  # three chunks, the last one short
CHUNKS = 3
TOKEN = says(200, {"access_token": "access-token-1", "expires_in": 3600})


class Video:
    """The bytes of a video, and what was read of them."""

    def __init__(self, content: bytes = VIDEO) -> None:
        self.content, self.size = content, len(content)

    def read(self, start: int, length: int) -> bytes:
        return self.content[start : start + length]


class Hooks:
    """Records its calls, and stops at the one named `stop` ("check#3")."""

    def __init__(self, stop: str = "") -> None:
        self.told: list[str] = []
        self.session = ""
        self.stop = stop

    def check(self) -> None:
        self._note("check")

    def started(self, session: str) -> None:
        self.session = session
        self._note("started")

    def before_last_chunk(self) -> None:
        self._note("last")

    def _note(self, name: str) -> None:
        self.told.append(name)
        if self.stop == f"{name}#{self.told.count(name)}":
            raise InterruptedError


class Site:
    """A sandbox, observed from the beginning of a test."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.order, self.youtube = sandbox, sandbox.order, sandbox.youtube
        self._calls, self._videos, self._sessions = len(sandbox.calls()), len(self.made), len(self.started)

    @property
    def made(self) -> list[dict]:
        return self.youtube.videos()[getattr(self, "_videos", 0) :]

    @property
    def started(self) -> list[dict]:
        return self.youtube.sessions()[getattr(self, "_sessions", 0) :]

    def asked(self, *kinds: str) -> list[str]:
        calls = self.sandbox.calls()[self._calls :]
        return [call.kind for call in calls if call.kind in (kinds or ("upload.start", "upload.put", "upload.ask"))]

    def ranges(self) -> list[str]:
        calls = self.sandbox.calls()[self._calls :]
        return [call.request["content_range"] for call in calls if call.kind in ("upload.put", "upload.ask")]


def client(sandbox: Sandbox, timeout_s: float = 60.0, resumes: int = 2, waits: list[float] | None = None) -> YouTube:
    pause = (lambda _: None) if waits is None else waits.append
    urls = music_endpoints(sandbox.url)["youtube"]
    return YouTube(KEYS, **urls, timeout_s=timeout_s, chunk_bytes=CHUNK_UNIT, resumes=resumes, pause=pause)


def scripted(vendor: ScriptedVendor, timeout_s: float = 60.0) -> YouTube:
    place = {"endpoint": f"{vendor.url}/api", "token_endpoint": f"{vendor.url}/token"}
    return YouTube(KEYS, **place, timeout_s=timeout_s, chunk_bytes=CHUNK_UNIT, resumes=1, pause=lambda _: None)


def patience(fault: str) -> float:
    """Return how long a client waits: without an answer, still long enough to have sent its request."""
    return 2.0 if fault.startswith("hang") else LONG_S
