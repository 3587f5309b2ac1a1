"""YouTube's client over real HTTP, against the sandbox: at most one video, whatever happens on the way."""

import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from scripted_vendor import ScriptedVendor, closed_port, cut, drip, hang, page, says

from retake.errors import Code, PollFailed, SessionGone, SettingsError
from retake.sandbox import Sandbox, music_endpoints
from retake.vendors import Healthy, VideoDetails, VideoPlatform
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
    """Notes what it is told, and stops at the call named `stop` ("check#3")."""

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


@pytest.fixture(scope="module")
def _shared() -> Iterator[Sandbox]:
    with Sandbox(quick=True, seed=7) as sandbox:
        yield sandbox


class Site:
    """A sandbox, seen from the beginning of a test."""

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


@pytest.fixture
def site(_shared: Sandbox) -> Iterator[Site]:
    yield Site(_shared)
    _shared.withdraw_orders()


def client(sandbox: Sandbox, timeout_s: float = 5.0, resumes: int = 2, waits: list[float] | None = None) -> YouTube:
    pause = (lambda _: None) if waits is None else waits.append
    urls = music_endpoints(sandbox.url)["youtube"]
    return YouTube(KEYS, **urls, timeout_s=timeout_s, chunk_bytes=CHUNK_UNIT, resumes=resumes, pause=pause)


def scripted(vendor: ScriptedVendor, timeout_s: float = 5.0) -> YouTube:
    place = {"endpoint": f"{vendor.url}/api", "token_endpoint": f"{vendor.url}/token"}
    return YouTube(KEYS, **place, timeout_s=timeout_s, chunk_bytes=CHUNK_UNIT, resumes=1, pause=lambda _: None)


def patience(fault: str) -> float:
    return 0.3 if fault.startswith("hang") else 5.0


# --- uploads ----------------------------------------------------------------------------------------------------------


def test_a_video_arrives_whole_with_what_was_told_of_it(site: Site) -> None:
    hooks = Hooks()
    video_id = client(site.sandbox).upload(DETAILS, Video(), hooks)
    [video] = site.made
    assert video_id == video["id"]
    assert site.youtube.video(video_id) == VIDEO
    assert (video["title"], video["description"], video["tags"]) == (
        DETAILS.title,
        DETAILS.description,
        ["music", "piano"],
    )
    assert video["status"] == {"privacyStatus": "private", "selfDeclaredMadeForKids": False}
    assert hooks.told == ["check", "started", "check", "check", "check", "last"]
    assert site.asked() == ["upload.start", *["upload.put"] * CHUNKS]


def test_the_session_is_saved_before_the_first_byte_is_sent(site: Site) -> None:
    with pytest.raises(InterruptedError):
        client(site.sandbox).upload(DETAILS, Video(), Hooks("started#1"))
    assert site.asked() == ["upload.start"]
    assert site.made == []


@pytest.mark.parametrize(("stop", "sent"), [("check#1", 0), ("check#2", 1), ("check#3", 2), ("last#1", 3)])
def test_a_hook_that_raises_ends_the_upload_before_the_next_request(site: Site, stop: str, sent: int) -> None:
    with pytest.raises(InterruptedError):
        client(site.sandbox).upload(DETAILS, Video(), Hooks(stop))
    assert len(site.asked()) == sent
    assert site.made == []


BROKEN = ("500", "503-html", "408", "cut-before", "cut-after", "cut-midway", "hang", "hang-after")


@pytest.mark.parametrize("chunk", range(1, CHUNKS + 1))
@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_chunk_is_taken_up_where_the_session_is(site: Site, fault: str, chunk: int) -> None:
    site.order(f"upload.put#{chunk}={fault}")
    video_id = client(site.sandbox, patience(fault)).upload(DETAILS, Video(), Hooks())
    assert [video["id"] for video in site.made] == [video_id]
    assert site.youtube.video(video_id) == VIDEO
    assert site.asked("upload.start", "upload.ask") == ["upload.start", "upload.ask"]


def test_no_byte_that_the_session_has_is_sent_again(site: Site) -> None:
    site.order("upload.put#2=cut-midway")
    client(site.sandbox).upload(DETAILS, Video(), Hooks())
    total, half = len(VIDEO), CHUNK_UNIT // 2
    assert site.ranges() == [
        f"bytes 0-{CHUNK_UNIT - 1}/{total}",
        f"bytes {CHUNK_UNIT}-{2 * CHUNK_UNIT - 1}/{total}",
        f"bytes */{total}",
        f"bytes {CHUNK_UNIT + half}-{2 * CHUNK_UNIT + half - 1}/{total}",
        f"bytes {2 * CHUNK_UNIT + half}-{total - 1}/{total}",
    ]


@pytest.mark.parametrize("fault", ["cut-after", "hang-after", "not-json"])
def test_the_video_of_a_last_answer_that_is_lost_is_named_by_the_session(site: Site, fault: str) -> None:
    site.order(f"upload.put#{CHUNKS}={fault}")
    video_id = client(site.sandbox, patience(fault)).upload(DETAILS, Video(), Hooks())
    assert [video["id"] for video in site.made] == [video_id]
    assert site.asked()[-1] == "upload.ask"


def test_an_upload_that_goes_nowhere_ends_and_can_be_taken_up_later(site: Site) -> None:
    site.order("upload.put#2=cut-midway")
    site.order("upload.put#3-99=503")
    hooks, waits = Hooks(), []
    with pytest.raises(PollFailed) as caught:
        client(site.sandbox, resumes=3, waits=waits).upload(DETAILS, Video(), hooks)
    assert (caught.value.code, caught.value.error_class) == (Code.UNAVAILABLE, "A")
    # The failure after half a chunk had arrived is the first one in a row without progress.
    assert site.asked("upload.put") == ["upload.put"] * (2 + 4)
    assert waits == [0.0, 0.0, 0.5, 1.0]

    site.sandbox.withdraw_orders()
    video_id = client(site.sandbox).upload(DETAILS, Video(), hooks, session=hooks.session)
    assert site.youtube.video(video_id) == VIDEO
    assert len(site.started) == 1


def test_progress_forgives_earlier_failures(site: Site) -> None:
    site.order("upload.put#1-6=cut-midway")
    video_id = client(site.sandbox, resumes=1).upload(DETAILS, Video(), Hooks())
    assert site.youtube.video(video_id) == VIDEO


def test_a_question_that_fails_counts_too(site: Site) -> None:
    site.order("upload.put#1=500")
    site.order("upload.ask=500")
    with pytest.raises(PollFailed):
        client(site.sandbox, resumes=2).upload(DETAILS, Video(), Hooks())
    assert site.asked() == ["upload.start", "upload.put", "upload.ask", "upload.ask"]


def test_a_finished_session_gives_its_video_and_nothing_is_sent(site: Site) -> None:
    hooks = Hooks()
    video_id = client(site.sandbox).upload(DETAILS, Video(), hooks)
    sent = len(site.asked())
    again = Hooks()
    assert client(site.sandbox).upload(DETAILS, Video(), again, session=hooks.session) == video_id
    assert site.asked()[sent:] == ["upload.ask"]
    assert again.told == ["check"]


def test_an_unfinished_session_goes_on_where_it_was(site: Site) -> None:
    hooks = Hooks("check#3")
    with pytest.raises(InterruptedError):
        client(site.sandbox).upload(DETAILS, Video(), hooks)
    video_id = client(site.sandbox).upload(DETAILS, Video(), Hooks(), session=hooks.session)
    assert site.youtube.video(video_id) == VIDEO
    assert site.asked() == ["upload.start", "upload.put", "upload.ask", "upload.put", "upload.put"]


@pytest.mark.parametrize("status", ["404", "410", "404-html"])
@pytest.mark.parametrize("kind", ["upload.ask", "upload.put"])
def test_a_session_that_is_gone_is_said_to_be(site: Site, kind: str, status: str) -> None:
    hooks = Hooks("check#2")
    with pytest.raises(InterruptedError):
        client(site.sandbox).upload(DETAILS, Video(), hooks)
    site.order(f"{kind}={status}")
    with pytest.raises(SessionGone):
        client(site.sandbox).upload(DETAILS, Video(), Hooks(), session=hooks.session)
    assert site.made == []


def test_a_session_may_expire_in_the_middle(site: Site) -> None:
    class Expiring(Hooks):
        def before_last_chunk(self) -> None:
            site.youtube.expire_sessions()

    with pytest.raises(SessionGone):
        client(site.sandbox).upload(DETAILS, Video(), Expiring())
    assert len(site.started) == 1


@pytest.mark.parametrize("fault", ["500", "cut-before", "cut-after", "hang-after", "not-json", "429"])
def test_a_start_that_fails_is_not_repeated_and_makes_no_video(site: Site, fault: str) -> None:
    site.order(f"upload.start={fault}")
    hooks = Hooks()
    with pytest.raises(PollFailed) as caught:
        client(site.sandbox, patience(fault)).upload(DETAILS, Video(), hooks)
    assert caught.value.error_class == "A"
    assert site.asked() == ["upload.start"]
    assert (hooks.session, site.made) == ("", [])


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("403-quotaExceeded", Code.OUT_OF_CREDIT),
        ("quota", Code.OUT_OF_CREDIT),
        ("403-dailyLimitExceeded", Code.OUT_OF_CREDIT),
        ("400-uploadLimitExceeded", Code.OUT_OF_CREDIT),
        ("401", Code.UNAUTHORIZED),
        ("403", Code.UNAUTHORIZED),
        ("403-html", Code.UNAUTHORIZED),
        ("403-youtubeSignupRequired", Code.UNAUTHORIZED),
        ("403-rateLimitExceeded", Code.RATE_LIMIT),
        ("403-userRateLimitExceeded", Code.RATE_LIMIT),
        ("429", Code.RATE_LIMIT),
        ("400", Code.INVALID_INPUT),
        ("409", Code.INVALID_INPUT),
        ("413", Code.INVALID_INPUT),
        ("500", Code.UNAVAILABLE),
        ("502-html", Code.UNAVAILABLE),
    ],
)
@pytest.mark.parametrize("kind", ["upload.start", "upload.put", "thumbnail", "youtube"])
def test_what_youtubes_errors_mean(site: Site, kind: str, fault: str, code: Code) -> None:
    youtube = client(site.sandbox, resumes=0)
    calls = {
        "thumbnail": lambda: youtube.set_thumbnail("any", b"jpeg"),
        "youtube": lambda: youtube.find("nonce"),
    }
    site.order(f"{kind}={fault}")
    with pytest.raises(PollFailed) as caught:
        calls.get(kind, lambda: youtube.upload(DETAILS, Video(), Hooks()))()
    assert caught.value.code is code, str(caught.value)
    assert caught.value.retry_after_s == (1.0 if fault == "429" else None)
    assert caught.value.__cause__ is None
    assert site.made == []


def test_a_video_that_has_changed_is_not_sent_cut_short(site: Site) -> None:
    class Shrinking(Video):
        def read(self, start: int, length: int) -> bytes:
            return super().read(start, length - 1)

    with pytest.raises(PollFailed, match="has changed") as caught:
        client(site.sandbox).upload(DETAILS, Shrinking(), Hooks())
    assert caught.value.code is Code.MEDIA
    with pytest.raises(PollFailed, match="empty"):
        client(site.sandbox).upload(DETAILS, Video(b""), Hooks())
    assert site.made == []


@pytest.mark.parametrize(
    "stated", ["bytes=0-99999999", "bytes=5-10", "0-10", "bytes=0--1", f"bytes=0-{len(VIDEO) - 1}"]
)
def test_a_session_that_says_something_impossible_is_asked_again_and_then_given_up(
    vendor: ScriptedVendor, stated: str
) -> None:
    vendor.script = [TOKEN, *[says(308, Range=stated)] * 2]
    with pytest.raises(PollFailed) as caught:
        scripted(vendor).upload(DETAILS, Video(), Hooks(), session=f"{vendor.url}/s")
    assert caught.value.code is Code.BAD_ANSWER
    assert [seen.headers.get("content-range") for seen in vendor.seen[1:]] == [f"bytes */{len(VIDEO)}"] * 2


@pytest.mark.parametrize("answer", [says(200, {}), says(200, {"id": 7}), says(201, "[]"), page(200), says(200)])
def test_a_success_without_a_video_is_no_reason_to_send_anything(vendor: ScriptedVendor, answer) -> None:
    vendor.script = [TOKEN, answer, says(201, {"id": "vid"})]
    assert scripted(vendor).upload(DETAILS, Video(), Hooks(), session=f"{vendor.url}/s") == "vid"
    assert [len(seen.body) for seen in vendor.seen[1:]] == [0, 0]


@pytest.mark.parametrize("location", ["", "nowhere", "file:///etc/passwd"])
def test_a_start_without_a_session_is_a_bad_answer(vendor: ScriptedVendor, location: str) -> None:
    vendor.script = [TOKEN, says(200, **({"Location": location} if location else {}))]
    hooks = Hooks()
    with pytest.raises(PollFailed) as caught:
        scripted(vendor).upload(DETAILS, Video(), hooks)
    assert (caught.value.code, hooks.told) == (Code.BAD_ANSWER, ["check"])


def test_a_session_that_moves_keeps_the_address_that_was_saved(vendor: ScriptedVendor) -> None:
    vendor.script = [TOKEN, says(308, Location=f"{vendor.url}/elsewhere"), says(200, {"id": "vid"})]
    scripted(vendor).upload(DETAILS, Video(b"x"), Hooks(), session=f"{vendor.url}/s")
    assert [seen.target for seen in vendor.seen[1:]] == ["/s", "/s"]


def test_many_threads_share_a_client(site: Site) -> None:
    youtube = client(site.sandbox)
    with ThreadPoolExecutor(4) as crowd:
        made = list(crowd.map(lambda _: youtube.upload(DETAILS, Video(), Hooks()), range(4)))
    assert len({*made}) == len(site.made) == 4
    assert site.asked("token") == ["token"]


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_a_token_is_fetched_once_and_again_when_it_is_refused(site: Site) -> None:
    youtube = client(site.sandbox)
    youtube.find("x")
    youtube.find("x")
    assert site.asked("token") == ["token"]
    site.order("youtube#1=401")
    youtube.find("x")
    assert site.asked("token") == ["token"] * 2


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("400", Code.UNAUTHORIZED),  # invalid_grant
        ("401", Code.UNAUTHORIZED),
        ("403-html", Code.UNAUTHORIZED),
        ("429", Code.RATE_LIMIT),
        ("500", Code.UNAVAILABLE),
        ("503-html", Code.UNAVAILABLE),
        ("cut-before", Code.NETWORK),
        ("hang", Code.TIMEOUT),
        ("not-json", Code.BAD_ANSWER),
    ],
)
def test_what_a_missing_token_means(site: Site, fault: str, code: Code) -> None:
    site.order(f"token={fault}")
    with pytest.raises(PollFailed) as caught:
        client(site.sandbox, patience(fault)).upload(DETAILS, Video(), Hooks())
    assert caught.value.code is code, str(caught.value)
    assert site.asked("token", "upload.start") == ["token"], "asked more than once"
    if fault == "400":
        assert "invalid_grant" in str(caught.value)


@pytest.mark.parametrize("token", ["", "two words", "lïne", None, 5, ["a"]])
def test_a_token_that_no_header_can_hold_is_a_bad_answer(vendor: ScriptedVendor, token: object) -> None:
    vendor.script = [says(200, {"access_token": token})]
    with pytest.raises(PollFailed) as caught:
        scripted(vendor).find("x")
    assert caught.value.code is Code.BAD_ANSWER


@pytest.mark.parametrize("lifetime", ["soon", -1, 10**400, {}])
def test_a_lifetime_that_is_none_is_a_bad_answer_or_ignored(vendor: ScriptedVendor, lifetime: object) -> None:
    vendor.script = [says(200, {"access_token": "access-token-1", "expires_in": lifetime}), cut]
    with pytest.raises(PollFailed):
        scripted(vendor).find("x")


# --- what is there ----------------------------------------------------------------------------------------------------


def test_a_video_is_found_by_the_last_line_of_its_description(site: Site) -> None:
    youtube = client(site.sandbox)
    first = youtube.upload(DETAILS._replace(description="About.\n\nmark-1\n"), Video(b"a"), Hooks())
    youtube.upload(DETAILS._replace(description="mark-1 is not at the end\nmark-2"), Video(b"b"), Hooks())
    assert youtube.find("mark-1") == first
    assert youtube.find("mark-3") is None
    assert youtube.find("") is None


def test_the_list_is_read_page_by_page_and_not_for_ever(vendor: ScriptedVendor) -> None:
    channel = says(200, {"items": [{"contentDetails": {"relatedPlaylists": {"uploads": "UU1"}}}]})
    full = says(200, {"items": [None, {}, {"snippet": {"description": 5}}], "nextPageToken": "next"})
    vendor.script = [TOKEN, channel, *[full] * 9]
    assert scripted(vendor).find("mark") is None
    assert len(vendor.seen) == 2 + 4
    assert "pageToken=next" in vendor.seen[-1].target


def test_a_channel_without_videos_or_none_at_all(vendor: ScriptedVendor) -> None:
    channel = says(200, {"items": [{"contentDetails": {"relatedPlaylists": {"uploads": "UU1"}}}]})
    missing = says(404, {"error": {"code": 404, "message": "x", "errors": [{"reason": "playlistNotFound"}]}})
    vendor.script = [TOKEN, channel, missing, says(200, {"pageInfo": {"totalResults": 0}}), says(200, {"items": [{}]})]
    youtube = scripted(vendor)
    assert youtube.find("mark") is None
    for code in (Code.CONFIGURATION, Code.BAD_ANSWER):
        with pytest.raises(PollFailed) as caught:
            youtube.find("mark")
        assert caught.value.code is code


def test_a_thumbnail_replaces_the_last_one(site: Site) -> None:
    youtube = client(site.sandbox)
    video_id = youtube.upload(DETAILS, Video(b"a"), Hooks())
    youtube.set_thumbnail(video_id, b"\xff\xd8 one")
    youtube.set_thumbnail(video_id, b"\xff\xd8 two")
    assert site.made[0]["thumbnails"] == 2
    assert site.youtube.thumbnail(video_id) == b"\xff\xd8 two"


def test_a_thumbnail_of_no_video_is_refused(site: Site) -> None:
    with pytest.raises(PollFailed, match="videoNotFound"):
        client(site.sandbox).set_thumbnail("nothing", b"\xff\xd8")


def test_it_can_be_checked_for_nothing(site: Site) -> None:
    youtube = client(site.sandbox)
    platform: VideoPlatform = youtube
    assert isinstance(platform, Healthy)
    assert "Sandbox" in youtube.health().says
    assert "uploads" in youtube.test_request()
    assert site.asked() == []


# --- secrets and bounds -----------------------------------------------------------------------------------------------

SECRETS = ("client-secret-1", "refresh-token-1", "access-token-1", "session-secret-0123456789")


@pytest.mark.parametrize("path", ["s?upload_id=session-secret-0123456789", "s/session-secret-0123456789"])
@pytest.mark.parametrize(
    "ending", [cut, hang, drip, says(404, " ".join(SECRETS)), says(400, " ".join(SECRETS)), says(500, "x")]
)
def test_no_error_and_no_log_has_a_secret(vendor: ScriptedVendor, diagnosed: io.StringIO, path: str, ending) -> None:
    session = f"{vendor.url}/{path}"
    vendor.script = [TOKEN, says(200, Location=session), ending, ending]
    with pytest.raises(PollFailed) as caught:
        scripted(vendor, 0.5).upload(DETAILS, Video(), Hooks())
    shown = f"{caught.value} {caught.value!r} {diagnosed.getvalue()}"
    assert not [secret for secret in (*SECRETS, session) if secret in shown], shown


def test_the_keys_are_not_in_their_representation() -> None:
    assert not [secret for secret in SECRETS if secret in repr(KEYS)]


def test_an_echo_of_the_keys_is_blotted_out(vendor: ScriptedVendor) -> None:
    vendor.script = [says(400, {"error": "invalid_grant", "error_description": " ".join(SECRETS[:2])})]
    with pytest.raises(PollFailed, match="invalid_grant: … …"):
        scripted(vendor).find("x")


@pytest.mark.parametrize("deaf", [True, False])
def test_an_address_where_nobody_is(deaf: bool, deaf_url: str) -> None:
    url = deaf_url if deaf else closed_port()
    youtube = YouTube(KEYS, endpoint=url, token_endpoint=url, timeout_s=0.2)
    with pytest.raises(PollFailed) as caught:
        youtube.find("x")
    assert caught.value.code is (Code.TIMEOUT if deaf else Code.NETWORK)


def test_an_answer_is_bounded_in_size(vendor: ScriptedVendor) -> None:
    vendor.script = [TOKEN, says(200, b"", Content_Length=str(10 * 2**30))]
    with pytest.raises(PollFailed) as caught:
        scripted(vendor).find("x")
    assert caught.value.code is Code.BAD_ANSWER


@pytest.mark.parametrize("body", ["[]", "5", '"text"', "[" * 100_000])
def test_a_list_that_is_none_is_a_bad_answer(vendor: ScriptedVendor, body: str) -> None:
    vendor.script = [TOKEN, says(200, body)]
    with pytest.raises(PollFailed) as caught:
        scripted(vendor).find("x")
    assert caught.value.code is Code.BAD_ANSWER


def test_settings_that_cannot_work_are_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="multiple of 262144"):
        YouTube(KEYS, timeout_s=1, chunk_bytes=1000)
    with pytest.raises(SettingsError, match="YOUTUBE_REFRESH_TOKEN") as caught:
        YouTube(YouTubeKeys("id", "secret", "two\nlines"), timeout_s=1)
    assert "two" not in str(caught.value)
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("HTTPS_PROXY", "ftp://nowhere")
    with pytest.raises(SettingsError, match="HTTPS_PROXY"):
        YouTube(KEYS, timeout_s=1)


def test_without_an_endpoint_the_vendors_own_is_asked() -> None:
    request = YouTube(KEYS, timeout_s=1)._service.channels().list(part="snippet", mine=True)
    assert request.uri.startswith("https://youtube.googleapis.com/youtube/v3/channels?")


def test_a_client_may_be_made_while_others_are() -> None:
    made: list[YouTube] = []
    threads = [threading.Thread(target=lambda: made.append(YouTube(KEYS, timeout_s=1))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
