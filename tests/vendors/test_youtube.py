"""YouTube's client over real HTTP: its errors, tokens, lists and thumbnails, secrets and bounds."""

import io
import threading

import pytest
from errors_doc import fault_of, rows
from scripted_vendor import LONG_S, ScriptedVendor, closed_port, cut, drip, hang, says
from youtube_site import DETAILS, KEYS, TOKEN, Hooks, Site, Video, client, patience, scripted

from retake.errors import Code, PollFailed, SettingsError
from retake.vendors import Healthy, VideoPlatform
from retake.vendors.youtube import YouTube
from retake.vendors.youtube_account import YouTubeKeys


@pytest.mark.parametrize(("what", "kind_of_error", "error_class", "code"), rows("YouTube"))
@pytest.mark.parametrize("kind", ["upload.start", "upload.put", "thumbnail", "youtube"])
def test_what_youtubes_errors_mean(
    site: Site, kind: str, what: str, kind_of_error: str, error_class: str, code: str
) -> None:
    fault = fault_of(what)
    youtube = client(site.sandbox, patience(fault), resumes=0)
    calls = {
        "thumbnail": lambda: youtube.set_thumbnail("any", b"jpeg"),
        "youtube": lambda: youtube.find("nonce"),
    }
    site.order(f"{kind}={fault}")
    with pytest.raises(PollFailed) as caught:
        calls.get(kind, lambda: youtube.upload(DETAILS, Video(), Hooks()))()
    error = caught.value
    assert (type(error).__name__, error.error_class.value, error.code.name) == (kind_of_error, error_class, code)
    assert error.retry_after_s == (1.0 if fault == "429" else None)
    assert error.__cause__ is None
    assert site.made == []


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
def test_an_invalid_lifetime_is_a_bad_answer_or_ignored(vendor: ScriptedVendor, lifetime: object) -> None:
    vendor.script = [says(200, {"access_token": "access-token-1", "expires_in": lifetime}), cut]
    with pytest.raises(PollFailed):
        scripted(vendor).find("x")


# --- existing videos --------------------------------------------------------------------------------------------------


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


def test_a_list_in_another_encoding_is_read(vendor: ScriptedVendor) -> None:
    vendor.script = [TOKEN, says(200, '{"items": [{"contentDetails": {}}]}'.encode("utf-16"))]
    with pytest.raises(PollFailed) as caught:
        scripted(vendor).find("mark")
    assert caught.value.code is Code.BAD_ANSWER


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
    youtube = YouTube(KEYS, endpoint=url, token_endpoint=url, timeout_s=0.2 if deaf else LONG_S)
    with pytest.raises(PollFailed) as caught:
        youtube.find("x")
    assert caught.value.code is (Code.TIMEOUT if deaf else Code.NETWORK)


def test_an_answer_is_bounded_in_size(vendor: ScriptedVendor) -> None:
    vendor.script = [TOKEN, says(200, b"", Content_Length=str(10 * 2**30))]
    with pytest.raises(PollFailed) as caught:
        scripted(vendor).find("x")
    assert caught.value.code is Code.BAD_ANSWER


@pytest.mark.parametrize("body", ["[]", "5", '"text"', "[" * 100_000])
def test_an_invalid_list_is_a_bad_answer(vendor: ScriptedVendor, body: str) -> None:
    vendor.script = [TOKEN, says(200, body)]
    with pytest.raises(PollFailed) as caught:
        scripted(vendor).find("x")
    assert caught.value.code is Code.BAD_ANSWER


def test_settings_that_cannot_work_are_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
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
