"""The stand-in for YouTube's Data API."""

from pathlib import Path
from typing import Any

import pytest
import requests
from sandbox_customer import Customer

from retake.sandbox import Sandbox
from retake.sandbox.youtube import UNIT

ANY = {"Authorization": "Bearer any"}
RESOURCE = {
    "snippet": {"title": "Slow Light", "description": "A track.\nmark", "tags": ["music"], "categoryId": "10"},
    "status": {"privacyStatus": "private", "selfDeclaredMadeForKids": False},
}
VIDEO = bytes(range(256)) * 2048  # two units


def start(customer: Customer, total: int = len(VIDEO), **snippet: Any) -> requests.Response:
    body = RESOURCE | {"snippet": RESOURCE["snippet"] | snippet}
    headers = ANY | {"X-Upload-Content-Length": str(total)}
    return customer.post("/upload/youtube/v3/videos?uploadType=resumable&part=snippet,status", body, **headers)


def put(customer: Customer, uri: str, content_range: str, body: bytes = b"") -> requests.Response:
    headers = ANY | {"Content-Range": content_range}
    return customer.session.put(uri, data=body, headers=headers, timeout=60, allow_redirects=False)


def upload(customer: Customer, **snippet: Any) -> str:
    uri = start(customer, **snippet).headers["Location"]
    return put(customer, uri, f"bytes 0-{len(VIDEO) - 1}/{len(VIDEO)}", VIDEO).json()["id"]


def test_a_session_takes_a_video_chunk_by_chunk(sandbox: Sandbox, customer: Customer) -> None:
    reply = start(customer)
    uri, total = reply.headers["Location"], len(VIDEO)
    assert (reply.status_code, reply.content) == (200, b"")
    asked = put(customer, uri, f"bytes */{total}")
    assert (asked.status_code, "Range" in asked.headers) == (308, False)
    first = put(customer, uri, f"bytes 0-{UNIT - 1}/{total}", VIDEO[:UNIT])
    assert (first.status_code, first.headers["Range"]) == (308, f"bytes=0-{UNIT - 1}")
    assert sandbox.youtube.videos() == []
    last = put(customer, uri, f"bytes {UNIT}-{total - 1}/{total}", VIDEO[UNIT:])
    assert (last.status_code, last.json()["snippet"]["title"]) == (200, "Slow Light")
    [video] = sandbox.youtube.videos()
    assert (video["id"], video["size"]) == (last.json()["id"], total)
    assert sandbox.youtube.video(video["id"]) == VIDEO
    assert [call.kind for call in sandbox.calls()] == ["upload.start", "upload.ask", "upload.put", "upload.put"]


def test_a_finished_session_gives_its_video_and_makes_no_other(sandbox: Sandbox, customer: Customer) -> None:
    uri, total = start(customer).headers["Location"], len(VIDEO)
    whole = f"bytes 0-{total - 1}/{total}"
    made = put(customer, uri, whole, VIDEO).json()["id"]
    assert [put(customer, uri, *more).json()["id"] for more in ((f"bytes */{total}",), (whole, VIDEO))] == [made] * 2
    assert len(sandbox.youtube.videos()) == 1


def test_half_of_a_chunk_that_is_cut_arrives(sandbox: Sandbox, customer: Customer) -> None:
    sandbox.order("upload.put#1=cut-midway")
    uri, total = start(customer).headers["Location"], len(VIDEO)
    with pytest.raises(requests.ConnectionError):
        put(customer, uri, f"bytes 0-{total - 1}/{total}", VIDEO)
    assert put(customer, uri, f"bytes */{total}").headers["Range"] == f"bytes=0-{total // 2 - 1}"
    assert put(customer, uri, f"bytes {total // 2}-{total - 1}/{total}", VIDEO[total // 2 :]).ok
    [video] = sandbox.youtube.videos()
    assert sandbox.youtube.video(video["id"]) == VIDEO


def test_what_overlaps_is_taken_once(sandbox: Sandbox, customer: Customer) -> None:
    uri, total = start(customer).headers["Location"], len(VIDEO)
    put(customer, uri, f"bytes 0-{UNIT - 1}/{total}", VIDEO[:UNIT])
    assert put(customer, uri, f"bytes 0-{total - 1}/{total}", VIDEO).status_code == 200
    assert sandbox.youtube.video(sandbox.youtube.videos()[0]["id"]) == VIDEO


@pytest.mark.parametrize(
    ("content_range", "body"),
    [
        ("bytes 0-9/10", VIDEO[:10]),  # another length than announced
        (f"bytes 0-{UNIT}/{len(VIDEO)}", VIDEO[:UNIT]),
        (f"bytes {UNIT}-{len(VIDEO) - 1}/{len(VIDEO)}", VIDEO[UNIT:]),  # a gap
        (f"bytes 0-99/{len(VIDEO)}", VIDEO[:100]),  # not a multiple of 256 KiB
        ("bytes 0-1", b"xx"),
        ("", VIDEO),
    ],
)
def test_a_chunk_that_does_not_fit_is_refused(
    sandbox: Sandbox, customer: Customer, content_range: str, body: bytes
) -> None:
    uri = start(customer).headers["Location"]
    assert put(customer, uri, content_range, body).status_code == 400
    assert sandbox.youtube.sessions()[0]["received"] == 0


def test_sessions_can_expire_but_videos_stay(sandbox: Sandbox, customer: Customer) -> None:
    upload(customer)
    uri = start(customer).headers["Location"]
    sandbox.youtube.expire_sessions()
    assert put(customer, uri, f"bytes */{len(VIDEO)}").status_code == 404
    assert put(customer, start(customer).headers["Location"], f"bytes */{len(VIDEO)}").status_code == 308
    assert len(sandbox.youtube.videos()) == 1


@pytest.mark.parametrize(
    ("snippet", "reason"),
    [
        ({"title": ""}, "invalidTitle"),
        ({"title": "x" * 101}, "invalidTitle"),
        ({"title": "<b>"}, "invalidTitle"),
        ({"description": "é" * 2501}, "invalidDescription"),
        ({"tags": ["x" * 100] * 5}, "invalidTags"),
    ],
)
def test_details_that_youtube_does_not_take(customer: Customer, snippet: dict[str, Any], reason: str) -> None:
    reply = start(customer, **snippet)
    assert (reply.status_code, reply.json()["error"]["errors"][0]["reason"]) == (400, reason)


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("quota", 403, "quotaExceeded"),
        ("403", 403, "forbidden"),
        ("403-rateLimitExceeded", 403, "rateLimitExceeded"),
        ("400-uploadLimitExceeded", 400, "uploadLimitExceeded"),
        ("401", 401, "authError"),
        ("503", 503, "backendError"),
    ],
)
def test_a_refusal_has_a_reason(sandbox: Sandbox, customer: Customer, fault: str, status: int, reason: str) -> None:
    sandbox.order(f"upload.start={fault}")
    reply = start(customer)
    assert (reply.status_code, reply.json()["error"]["errors"][0]["reason"]) == (status, reason)
    assert sandbox.youtube.sessions() == []


def test_a_token_is_demanded_and_given(sandbox: Sandbox, customer: Customer) -> None:
    assert customer.get("/youtube/v3/channels").status_code == 401
    form = {"grant_type": "refresh_token", "refresh_token": "r-secret", "client_id": "c", "client_secret": "c-secret"}
    url = f"{sandbox.url}/youtube/token"
    given = customer.session.post(url, data=form, timeout=60).json()
    assert given["token_type"] == "Bearer"
    assert customer.get("/youtube/v3/channels", Authorization=f"Bearer {given['access_token']}").ok
    sandbox.order("token=400")
    refused = customer.session.post(url, data=form, timeout=60)
    assert (refused.status_code, refused.json()["error"]) == (400, "invalid_grant")
    assert "secret" not in str([call.request.values() for call in sandbox.calls("token")])


def test_uploads_are_listed_newest_first_page_by_page(sandbox: Sandbox, customer: Customer) -> None:
    channel = customer.get("/youtube/v3/channels?mine=true", **ANY).json()["items"][0]
    uploads = channel["contentDetails"]["relatedPlaylists"]["uploads"]
    made = [upload(customer, title=f"Track {n}") for n in range(52)]
    listed, page = [], ""
    for _ in range(2):
        path = f"/youtube/v3/playlistItems?playlistId={uploads}&pageToken={page or 0}"
        answer = customer.get(path, **ANY).json()
        listed += [item["snippet"]["resourceId"]["videoId"] for item in answer["items"]]
        page = answer.get("nextPageToken", "")
    assert (listed, page) == (made[::-1], "")
    assert customer.get("/youtube/v3/playlistItems?playlistId=other", **ANY).status_code == 404
    found = customer.get(f"/youtube/v3/videos?id={made[3]},nothing", **ANY).json()["items"]
    assert [video["snippet"]["title"] for video in found] == ["Track 3"]


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("image/jpeg", b"\xff\xd8", 200),
        ("image/jpeg", b"", 400),
        ("image/jpeg", bytes(2**21 + 1), 400),
        ("a/b", b"x", 400),
    ],
)
def test_what_is_taken_as_a_thumbnail(sandbox, customer: Customer, kind: str, body: bytes, status: int) -> None:
    url = f"{sandbox.url}/upload/youtube/v3/thumbnails/set?videoId={upload(customer)}"
    reply = customer.session.post(url, data=body, headers=ANY | {"Content-Type": kind}, timeout=60)
    assert reply.status_code == status
    assert sandbox.youtube.videos()[0]["thumbnails"] == (status == 200)


def test_a_session_survives_a_restart(tmp_path: Path, session: requests.Session) -> None:
    with Sandbox(tmp_path, quick=True) as sandbox:
        customer = Customer(sandbox, session)
        uri, total = start(customer).headers["Location"], len(VIDEO)
        put(customer, uri, f"bytes 0-{UNIT - 1}/{total}", VIDEO[:UNIT])
    session.close()
    with Sandbox(tmp_path, quick=True) as sandbox:
        customer = Customer(sandbox, session)
        assert put(customer, uri, f"bytes */{total}").headers["Range"] == f"bytes=0-{UNIT - 1}"
        assert put(customer, uri, f"bytes {UNIT}-{total - 1}/{total}", VIDEO[UNIT:]).status_code == 200
        assert len(sandbox.youtube.videos()) == 1
