"""Uploads to YouTube over real HTTP, against the sandbox: at most one video, whatever happens in between."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from scripted_vendor import ScriptedVendor, page, says
from youtube_site import CHUNKS, DETAILS, TOKEN, VIDEO, Hooks, Site, Video, client, patience, scripted

from retake.errors import Code, PollFailed, SessionGone
from retake.vendors.youtube import CHUNK_UNIT


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
def test_a_broken_chunk_is_resumed_where_the_session_is(site: Site, fault: str, chunk: int) -> None:
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


def test_an_upload_without_progress_ends_and_can_be_resumed_later(site: Site) -> None:
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
def test_a_session_that_is_gone_is_reported_as_gone(site: Site, kind: str, status: str) -> None:
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
def test_a_success_without_a_video_is_not_a_reason_to_send_anything(vendor: ScriptedVendor, answer) -> None:
    vendor.script = [TOKEN, answer, says(201, {"id": "vid"})]
    assert scripted(vendor).upload(DETAILS, Video(), Hooks(), session=f"{vendor.url}/s") == "vid"
    assert [len(seen.body) for seen in vendor.seen[1:]] == [0, 0]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_video_that_is_named_in_another_encoding_is_not_sent_again(vendor: ScriptedVendor, encoding: str) -> None:
    vendor.script = [TOKEN, says(200, '{"id": "vid"}'.encode(encoding))]
    assert scripted(vendor).upload(DETAILS, Video(), Hooks(), session=f"{vendor.url}/s") == "vid"


@pytest.mark.parametrize("location", ["", "nowhere", "file:///etc/passwd"])
def test_a_start_without_a_session_is_a_bad_answer(vendor: ScriptedVendor, location: str) -> None:
    vendor.script = [TOKEN, says(200, **({"Location": location} if location else {}))]
    hooks = Hooks()
    with pytest.raises(PollFailed) as caught:
        scripted(vendor).upload(DETAILS, Video(), hooks)
    assert (caught.value.code, hooks.told) == (Code.BAD_ANSWER, ["check"])


@pytest.mark.parametrize("session", ["http://[", "nowhere", "http://\x00/s"])
def test_a_session_that_is_not_an_address_is_an_error_like_any_other(vendor: ScriptedVendor, session: str) -> None:
    vendor.script = [TOKEN]
    with pytest.raises(PollFailed) as caught:
        scripted(vendor).upload(DETAILS, Video(), Hooks(), session=session)
    assert caught.value.code is Code.CONFIGURATION


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
