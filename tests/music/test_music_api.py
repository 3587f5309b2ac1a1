"""The API, row by row: the answers of each call, its refusals, and that a refusal changes nothing."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from api_world import ApiWorld

from retake.errors import StorageError
from retake.music.states import STATES

BIG = 10**30
ACTIONS = ("approve", "feedback", "publish", "cancel", "retry", "resolve")
BODIES: dict[str, Any] = {"feedback": {"feedback": "darker"}, "resolve": {"again": True}}


def refused(answer: Any, status: int) -> str:
    assert answer.status_code == status, answer.text
    detail = answer.json()["detail"]
    assert detail
    return detail if isinstance(detail, str) else str(detail)


# --- POST -----------------------------------------------------------------------------------------------------------


def test_a_new_pipeline_begins_with_its_cover(each_api: ApiWorld) -> None:
    answer = each_api.post(body={"track_title": "Night Drive", "audio": "night.wav", "style": "neon"})
    assert (answer.status_code, answer.json()) == (201, {"id": 1, "state": "cover_running"})
    assert each_api.woken == 1
    assert each_api.http.post("/api/music/pipeline/", json={"track_title": "t", "audio": "a.wav"}).status_code == 201
    row = each_api.store.get(1)
    assert (row.track_title, row.audio, row.style) == ("Night Drive", "night.wav", "neon")
    assert each_api.database.ledger.find(row.run_key)


def test_a_known_idempotency_key_returns_the_pipeline_that_is_there(each_api: ApiWorld) -> None:
    body, key = {"track_title": "Night", "audio": "night.wav"}, {"Idempotency-Key": "order 7"}
    first = each_api.post(body=body, headers=key)
    each_api.set(1, state="cover_pending")
    again = each_api.post(body={**body, "track_title": "Day"}, headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == {"id": 1, "state": "cover_pending"}
    assert each_api.woken == 1
    assert each_api.post(body=body, headers={"Idempotency-Key": "order 8"}).json()["id"] == 2


def test_one_of_many_requests_with_one_idempotency_key_begins_a_pipeline(each_api: ApiWorld) -> None:
    body, key = {"track_title": "Night", "audio": "night.wav"}, {"Idempotency-Key": "at once"}
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: each_api.post(body=body, headers=key), range(8)))
    assert sorted(it.status_code for it in answers) == [200] * 7 + [201]
    assert {it.json()["id"] for it in answers} == {1}


@pytest.mark.parametrize("key", ["", "x" * 201, "a\tb", "sch\u00f6n"])
def test_an_idempotency_key_has_1_to_200_printable_characters(api: ApiWorld, key: str) -> None:
    headers = {b"Idempotency-Key": key.encode("latin-1")}
    refused(api.http.post("/api/music/pipeline", json={"track_title": "t", "audio": "a.wav"}, headers=headers), 422)
    assert api.store.counts() == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"track_title": ""},
        {"track_title": " \n"},
        {"track_title": "x" * 101},
        {"track_title": "a\0b"},
        {"track_title": 7},
        {"track_title": None},
        {"style": "x" * 1001},
        {"style": "a\0"},
        {"style": ["x"]},
        {"audio": ""},
        {"audio": "."},
        {"audio": ".."},
        {"audio": ".hidden.wav"},
        {"audio": "a/b.wav"},
        {"audio": "/etc/passwd"},
        {"audio": "..\\a.wav"},
        {"audio": "a\0.wav"},
        {"audio": "a\n.wav"},
        {"audio": "x" * 256},
        {"audio": "\u00e4" * 200},
    ],
    ids=repr,
)
def test_what_is_not_as_described_begins_nothing(api: ApiWorld, fields: dict[str, Any]) -> None:
    refused(api.post(body={"track_title": "Night", "audio": "night.wav", **fields}), 422)
    assert api.store.counts() == {}


@pytest.mark.parametrize(
    "text",
    [
        b'{"track_title": "\\ud800", "audio": "a.wav"}',
        b'{"track_title": "t", "audio": "a\\udfff.wav"}',
        b'{"track_title": NaN, "audio": -Infinity}',
        b'{"track_title": "t", "audio": "a.wav", "style": 1e999}',
        b'{"track_title": "t"',
        b"[" * 60_000,
        b'{"a":' * 10_000,
        b"\xff\xfe",
        b"1" * 60_000,
        b"null",
        b"[]",
        b"",
        b'{"%s": 1}' % (b"x" * 60_000),
    ],
    ids=lambda it: repr(it[:40]),
)
def test_a_body_that_is_not_such_an_object_is_refused_in_a_few_words(api: ApiWorld, text: bytes) -> None:
    answer = api.http.post("/api/music/pipeline", content=text, headers={"content-type": "application/json"})
    refused(answer, 422)
    assert len(answer.content) < 4000


def test_limits_are_met_exactly(api: ApiWorld) -> None:
    api.begin(track_title="\u97f3" * 100, style="x" * 1000, audio="a" * 251 + ".wav")
    api.begin(track_title="x", style="", audio="\u97f3 \u697d.mp3")
    api.begin(style=None)
    assert api.shown(2)["audio"] == "\u97f3 \u697d.mp3"


# --- GET ------------------------------------------------------------------------------------------------------------


def test_a_list_has_the_newest_first_without_what_has_ended(each_api: ApiWorld) -> None:
    for state in STATES:
        each_api.put(state)
    found = each_api.get().json()["pipelines"]
    assert [it["state"] for it in found] == [it for it in reversed(STATES) if it not in ("published", "cancelled")]
    assert "upload_session" not in found[0]
    assert each_api.http.get("/api/music/pipeline/").json()["pipelines"] == found
    assert [it["id"] for it in each_api.get(params={"limit": 2}).json()["pipelines"]] == [it["id"] for it in found[:2]]
    for number, state in enumerate(STATES, 1):
        assert [it["id"] for it in each_api.get(params={"state": state}).json()["pipelines"]] == [number]


@pytest.mark.parametrize(
    "params",
    [{"state": "lost"}, {"state": ""}, {"limit": 0}, {"limit": 1001}, {"limit": "x"}, {"limit": BIG}],
    ids=repr,
)
def test_a_list_of_what_cannot_be_is_refused(api: ApiWorld, params: dict[str, Any]) -> None:
    refused(api.get(params=params), 422)
    assert api.get(params={"limit": 1000}).status_code == 200


def test_a_pipeline_is_shown_with_its_attempts_in_order(each_api: ApiWorld) -> None:
    number = each_api.put(
        "failed",
        metadata_json='{"title": "N\\ud800"}',
        review_json="null",
        upload_session="https://secret.example/session",
        failed_reason="video: it broke",
    )
    jobs = [each_api.job(number, step, status) for step, status in (("cover", "succeeded"), ("video", "failed"))]
    each_api.job(each_api.put("cover_running"), "cover", "running")
    shown = each_api.shown(number)
    assert [it["id"] for it in shown["jobs"]] == jobs
    assert set(shown) == {
        *("id", "track_title", "audio", "style", "state", "cover_url", "video_url", "thumbnail_url", "metadata_json"),
        *("review_json", "youtube_video_id", "failed_reason", "warning", "created_at", "updated_at", "jobs"),
    }
    assert set(shown["jobs"][0]) == {
        *("id", "pipeline_id", "step", "attempt", "status", "error", "error_code", "feedback", "started_at"),
        "finished_at",
    }
    assert shown["metadata_json"] == {"title": "N\ud800"}
    assert shown["review_json"] is None
    assert "secret.example" not in str(shown)


def test_a_column_that_holds_no_json_does_no_harm(api: ApiWorld) -> None:
    number = api.put("meta_pending", metadata_json='{"title": NaN, "a": 1}', review_json="[" * 5000)
    assert api.shown(number)["metadata_json"] == {"title": None, "a": 1}
    assert api.shown(number)["review_json"] is None


@pytest.mark.parametrize("number", [0, 1, -1, 2**31, 2**63, BIG, "x" * 3000, "1.0", "01", "%00", "\u0661", "None"])
def test_what_is_not_there_is_not_found_however_large(each_api: ApiWorld, number: object) -> None:
    assert len(refused(each_api.get(number), 404)) < 200
    refused(each_api.get(f"{number}/media/cover.png"), 404)
    for action in ACTIONS:
        refused(each_api.post(f"{number}/{action}", BODIES.get(action)), 404)


# --- media ----------------------------------------------------------------------------------------------------------


def test_a_file_comes_as_what_it_is(api: ApiWorld) -> None:
    number = api.put("cover_pending")
    for name, kind in (("cover-1.png", "image/png"), ("video-2.mp4", "video/mp4"), ("thumb-3.jpg", "image/jpeg")):
        api.keep(number, name, name.encode())
        answer = api.get(f"{number}/media/{name}")
        assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, name.encode(), kind)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-disposition"].startswith("inline")
    head = api.http.head(f"/api/music/pipeline/{number}/media/video-2.mp4")
    assert (head.status_code, head.headers["content-length"], head.content) == (200, "11", b"")


@pytest.mark.parametrize(
    ("wanted", "status", "part", "content"),
    [
        ("bytes=0-3", 206, "bytes 0-3/10", b"0123"),
        ("bytes=4-", 206, "bytes 4-9/10", b"456789"),
        ("bytes=-2", 206, "bytes 8-9/10", b"89"),
        ("bytes=8-99", 206, "bytes 8-9/10", b"89"),
        ("bytes=-99", 206, "bytes 0-9/10", b"0123456789"),
        ("bytes=10-", 416, "bytes */10", None),
        ("bytes=-0", 416, "bytes */10", None),
        ("bytes=5-4", 200, None, b"0123456789"),
        ("bytes=0-1,3-4", 200, None, b"0123456789"),
        ("bytes=-", 200, None, b"0123456789"),
        ("lines=1-2", 200, None, b"0123456789"),
        ("bytes=" + "9" * 400 + "-", 200, None, b"0123456789"),
    ],
)
def test_a_player_may_ask_for_a_part(
    api: ApiWorld, wanted: str, status: int, part: str | None, content: bytes | None
) -> None:
    number = api.put("video_pending")
    api.keep(number, "video-2.mp4", b"0123456789")
    answer = api.get(f"{number}/media/video-2.mp4", headers={"Range": wanted})
    assert (answer.status_code, answer.headers.get("content-range")) == (status, part)
    if content is None:
        refused(answer, 416)
    else:
        assert answer.content == content


def test_a_large_file_is_sent_in_parts_and_never_held_whole(api: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    number, data = api.put("video_pending"), bytes(range(256)) * 20_000
    api.keep(number, "video-2.mp4", data)
    sizes, read_range = [], api.bucket.read_range

    def part(key: str, first: int, last: int) -> bytes:
        sizes.append(last + 1 - first)
        return read_range(key, first, last)

    monkeypatch.setattr(api.bucket, "read_range", part)
    assert api.get(f"{number}/media/video-2.mp4").content == data
    assert api.get(f"{number}/media/video-2.mp4", headers={"Range": "bytes=-9"}).content == data[-9:]
    assert sizes == [2 * 2**20, 2 * 2**20, len(data) - 4 * 2**20, 9]


@pytest.mark.parametrize(
    "name",
    ["none.png", "..%2f2%2fcover.png", "%2e%2e", "Cover.png", "a_b", "x" * 81, "cover.png%00", ".hidden", "a%20b"],
)
def test_a_file_that_is_not_the_pipelines_is_not_found(api: ApiWorld, name: str) -> None:
    number = api.put("cover_pending")
    api.keep(2, "cover.png", b"of another")
    refused(api.get(f"{number}/media/{name}"), 404)


# --- actions --------------------------------------------------------------------------------------------------------

NEXT = {"cover": "video", "video": "thumb", "thumb": "meta", "meta": "review", "review": "publish"}


@pytest.mark.parametrize("step", NEXT)
def test_a_yes_begins_the_next_step(each_api: ApiWorld, step: str) -> None:
    for body in (None, {}, {"step": step}, {"step": None}):
        number = each_api.put(f"{step}_pending")
        answer = each_api.post(f"{number}/approve", body)
        assert (answer.status_code, answer.json()) == (200, {"ok": True, "state": f"{NEXT[step]}_running"})
        row = each_api.store.get(number)
        assert (row.state, row.run_number) == (f"{NEXT[step]}_running", 2)
        assert each_api.database.ledger.find(row.run_key)
    assert each_api.woken == 4


@pytest.mark.parametrize("step", NEXT)
def test_a_note_sends_a_step_back(api: ApiWorld, step: str) -> None:
    number = api.put(f"{step}_pending")
    answer = api.post(f"{number}/feedback", {"feedback": "darker", "step": step})
    assert answer.json() == {"ok": True, "state": f"{step}_running"}
    assert api.store.get(number).note == "darker"


def test_publishing_begins_after_the_review(api: ApiWorld) -> None:
    assert api.post(f"{api.put('review_pending')}/publish").json() == {"ok": True, "state": "publish_running"}


@pytest.mark.parametrize("state", sorted({*STATES} - {"published", "cancelled", "publish_running"}))
def test_what_has_not_ended_can_be_cancelled(each_api: ApiWorld, state: str) -> None:
    number = each_api.put(state)
    job = each_api.job(number, "cover", "running")
    assert each_api.post(f"{number}/cancel").json() == {"ok": True, "state": "cancelled"}
    assert (each_api.shown(number)["jobs"][0]["id"], each_api.shown(number)["jobs"][0]["status"]) == (job, "cancelled")


@pytest.mark.parametrize("step", [*NEXT, "publish"])
def test_the_failed_step_is_retried(each_api: ApiWorld, step: str) -> None:
    number = each_api.put("failed", failed_reason=f"{step}: it broke")
    each_api.job(number, step, "failed")
    answer = each_api.post(f"{number}/retry")
    assert (answer.status_code, answer.json()) == (200, {"ok": True, "retrying_step": step})
    assert each_api.shown(number)["state"] == f"{step}_running"
    assert each_api.woken == 1


def test_a_retry_can_make_a_paid_call_anew_but_an_upload_never(api: ApiWorld) -> None:
    cover, upload = (api.put("failed", failed_reason=f"{it}: it broke") for it in ("cover", "publish"))
    assert api.post(f"{cover}/retry", {"again": True}).json() == {"ok": True, "retrying_step": "cover"}
    assert "not started over" in refused(api.post(f"{upload}/retry", {"again": True}), 409)
    refused(api.post(f"{upload}/retry", {"again": "yes"}), 422)
    assert api.post(f"{upload}/retry", {"again": False}).json() == {"ok": True, "retrying_step": "publish"}


def test_a_decision_ends_the_waiting(api: ApiWorld) -> None:
    first, second, third = (
        api.put("awaiting_manual", failed_reason=f"{it}: ?") for it in ("publish", "publish", "cover")
    )
    answer = api.post(f"{first}/resolve", {"youtube_video_id": "dQw4w9WgXcQ"})
    assert answer.json() == {"ok": True, "state": "published"}
    assert api.shown(first)["youtube_video_id"] == "dQw4w9WgXcQ"
    assert api.post(f"{second}/resolve", {"again": True}).json() == {"ok": True, "state": "publish_running"}
    refused(api.post(f"{third}/resolve", {"youtube_video_id": "dQw4w9WgXcQ"}), 409)
    assert api.post(f"{third}/resolve", {"again": True}).json() == {"ok": True, "state": "cover_running"}


@pytest.mark.parametrize(
    "body",
    [
        *(None, {}, {"again": False}, {"again": 1}, {"again": "true"}, {"youtube_video_id": "a", "again": True}),
        *({"youtube_video_id": it} for it in ("", "a b", "x" * 101, None)),
    ],
    ids=repr,
)
def test_an_invalid_decision_is_refused(api: ApiWorld, body: Any) -> None:
    number = api.put("awaiting_manual")
    refused(api.post(f"{number}/resolve", body), 422)
    assert api.shown(number)["state"] == "awaiting_manual"


ALLOWED = {
    "approve": {f"{step}_pending" for step in NEXT},
    "feedback": {f"{step}_pending" for step in NEXT},
    "publish": {"review_pending"},
    "cancel": {*STATES} - {"published", "cancelled", "publish_running"},
    "retry": {"failed"},
    "resolve": {"awaiting_manual"},
}


@pytest.mark.parametrize("action", ACTIONS)
def test_what_does_not_fit_the_state_is_refused_and_changes_nothing(each_api: ApiWorld, action: str) -> None:
    for state in {*STATES} - ALLOWED[action]:
        number = each_api.put(state)
        before = each_api.shown(number)
        detail = refused(each_api.post(f"{number}/{action}", BODIES.get(action)), 409)
        assert detail.endswith(f"(state={state})")
        assert each_api.shown(number) == before
    assert each_api.woken == 0


@pytest.mark.parametrize("action", ["approve", "feedback", "publish"])
def test_an_answer_to_an_earlier_result_than_the_last_one_is_refused(each_api: ApiWorld, action: str) -> None:
    number = each_api.put("review_pending")
    seen, last = each_api.job(number, "review"), each_api.job(number, "review")
    before = each_api.shown(number)
    detail = refused(each_api.post(f"{number}/{action}", {"job": seen, "feedback": "x"}), 409)
    assert "earlier result" in detail
    refused(each_api.post(f"{number}/{action}", {"job": str(last), "feedback": "x"}), 422)
    assert each_api.shown(number) == before
    assert each_api.post(f"{number}/{action}", {"job": before["jobs"][-1]["id"], "feedback": "x"}).status_code == 200
    assert (before["jobs"][-1]["id"], each_api.woken) == (last, 1)


@pytest.mark.parametrize("action", ["approve", "feedback"])
def test_another_step_than_the_pending_one_is_refused(api: ApiWorld, action: str) -> None:
    number = api.put("video_pending")
    before = api.shown(number)
    refused(api.post(f"{number}/{action}", {"step": "cover", "feedback": "x"}), 409)
    refused(api.post(f"{number}/{action}", {"step": "dance", "feedback": "x"}), 422)
    assert api.shown(number) == before


@pytest.mark.parametrize("body", [None, {}, {"feedback": ""}, {"feedback": "x" * 1001}, {"feedback": "\0"}], ids=repr)
def test_a_note_that_says_nothing_is_refused(api: ApiWorld, body: Any) -> None:
    number = api.put("video_pending")
    refused(api.post(f"{number}/feedback", body), 422)
    assert api.shown(number)["state"] == "video_pending"


def test_what_is_uploaded_is_not_published_again(api: ApiWorld) -> None:
    number = api.put("failed", failed_reason="publish: x", youtube_video_id="abc123")
    api.job(number, "publish", "failed")
    assert "abc123" in refused(api.post(f"{number}/retry"), 409)


def test_a_failure_of_no_step_cannot_be_retried(api: ApiWorld) -> None:
    refused(api.post(f"{api.put('failed', failed_reason='somebody wrote this')}/retry"), 409)


def test_over_the_day_s_uploads_nothing_is_published(api: ApiWorld) -> None:
    api.store._uploads_per_day = 1
    first, second = api.put("review_pending"), api.put("review_pending")
    api.job(first, "publish", "succeeded")
    assert "MUSIC.uploads_per_day" in refused(api.post(f"{second}/publish"), 409)
    refused(api.post(f"{second}/approve"), 409)


def test_one_of_twenty_at_once_acts(each_api: ApiWorld) -> None:
    number = each_api.put("failed", failed_reason="video: x")
    each_api.job(number, "video", "failed")
    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(lambda _: each_api.post(f"{number}/retry"), range(20)))
    assert sorted(it.status_code for it in answers) == [200] + [409] * 19
    assert each_api.store.get(number).run_number == 2


# --- when something is away -----------------------------------------------------------------------------------------


def test_a_store_that_is_away_is_reported_as_away(api: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise StorageError("the store at postgresql://retake:secret@db.example/x is away")

    number = api.put("cover_pending")
    monkeypatch.setattr(api.bucket, "find", away)
    detail = refused(api.get(f"{number}/media/cover.png"), 503)
    assert "db.example" not in detail
    monkeypatch.setattr(api.store, "get", away)
    assert "db.example" not in refused(api.get(number), 503)
    monkeypatch.setattr(api.database, "reading", away)
    assert "db.example" not in refused(api.http.get("/health"), 503)  # requested without a key


def test_a_bug_is_answered_without_its_details(api: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(api.store, "get", broken)
    # The server drops the connection after a bug, possibly while the next test sends its request.
    assert "secret" not in refused(api.get(1, headers={"Connection": "close"}), 500)
