import re
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from scripted_vendor import ScriptedVendor, cut, page, says

from retake.clock import parse_stamp, stamp
from retake.errors import PollFailed, SettingsError
from retake.vendors.piapi import MAX_PAGES, PiAPI

ASKED_AT = "2026-11-20T12:00:00Z"
IMAGINE = {"step": "imagine", "requested_at_utc": ASKED_AT, "nonce": 77}
UPSCALE = {"step": "upscale", "requested_at_utc": ASKED_AT, "origin_task_id": "t-1", "index": 2}


def client(url: str, create: str = "/api/v1/task", **settings: Any) -> PiAPI:
    settings = {"process_mode": "fast", "aspect_ratio": "16:9", "timeout_s": 5.0} | settings
    return PiAPI(url + create, url + "/mj/v2/fetch", "secret-key", **settings)


def item(task_id: str, **fields: Any) -> dict[str, Any]:
    return {"task_id": task_id, "task_type": "imagine", "input": {"prompt": "a cat --seed 77"}} | fields


def listing(*items: dict[str, Any], total: int | None = None) -> dict[str, Any]:
    return {"code": 200, "message": "success", "data": {"data": list(items), "page": 1, "size": 100, "total": total}}


def test_imagine_sends_what_the_vendor_documents(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, {"code": 200, "data": {"task_id": "t-9"}, "message": "success"})]

    assert client(vendor.url).imagine(" a cat ", 77) == "t-9"

    [seen] = vendor.seen
    assert (seen.method, seen.target) == ("POST", "/api/v1/task")
    assert seen.headers["x-api-key"] == "secret-key"
    assert seen.headers["content-type"] == "application/json"
    assert seen.json == {
        "model": "midjourney",
        "task_type": "imagine",
        "input": {
            "prompt": "a cat --seed 77",
            "process_mode": "fast",
            "skip_prompt_check": False,
            "aspect_ratio": "16:9",
        },
        "config": {"service_mode": ""},
    }


def test_upscale_sends_the_index_as_a_text(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, {"data": {"task_id": "t-2"}})]

    assert client(vendor.url).upscale("t-1", 3) == "t-2"

    assert vendor.seen[0].json["task_type"] == "upscale"
    assert vendor.seen[0].json["input"] == {"origin_task_id": "t-1", "index": "3"}


@pytest.mark.parametrize("prompt", ["a cat --seed 5", "a cat --seed=5 --v 7"])
def test_a_seed_of_the_prompt_is_kept(prompt: str, vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, {"task_id": "t"})]
    client(vendor.url).imagine(prompt, 77)
    assert vendor.seen[0].json["input"]["prompt"] == prompt


@pytest.mark.parametrize(
    ("prompt", "aspect_ratio"), [("a cat --ar 1:1", "16:9"), ("a --aspect 1:1 b", "16:9"), ("c", "")]
)
def test_an_aspect_ratio_is_given_once_or_not_at_all(prompt: str, aspect_ratio: str, vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, {"task_id": "t"})]
    client(vendor.url, aspect_ratio=aspect_ratio).imagine(prompt, 77)
    assert "aspect_ratio" not in vendor.seen[0].json["input"]


@pytest.mark.parametrize(
    "body",
    [
        {"data": {"task_id": "t-1"}},
        {"task_id": "t-1", "status": "success", "message": ""},
        {"result": {"task_id": " t-1 "}},
        {"code": 0, "data": {"task_id": "t-1"}},
        {"data": None, "task_id": "t-1"},
    ],
)
def test_the_id_is_found_wherever_it_is(body: dict[str, Any], vendor: ScriptedVendor) -> None:
    vendor.script = [says(201, body)]
    assert client(vendor.url).imagine("a cat", 1) == "t-1"


@pytest.mark.parametrize(
    ("body", "progress"),
    [
        ({"task_id": "t-1", "status": "processing", "task_result": {"task_progress": 40}}, "processing 40 %"),
        ({"data": {"status": "Processing", "output": {"progress": 7}}}, "processing 7 %"),
        ({"status": "pending", "progress": "12%"}, "pending 12 %"),
        ({"status": "staged", "task_result": None}, "staged"),
        ({"status": "something new"}, "something new"),
    ],
)
def test_a_task_that_is_not_over_is_running(body: dict[str, Any], progress: str, vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, body)]

    state = client(vendor.url).fetch("t-1")

    assert state.running
    assert state.progress == progress
    assert (vendor.seen[0].method, vendor.seen[0].target) == ("POST", "/mj/v2/fetch")
    assert vendor.seen[0].json == {"task_id": "t-1"}


@pytest.mark.parametrize("status", ["finished", "completed", "Completed", "FINISHED"])
@pytest.mark.parametrize("field", ["task_result", "output"])
def test_a_result_is_the_vendors_own_object(status: str, field: str, vendor: ScriptedVendor) -> None:
    result = {"image_url": "https://x/grid.png", "temporary_image_urls": ["1", "2", "3", "4"], "actions": ["upscale1"]}
    vendor.script = [says(200, {"status": status, field: result})]
    assert client(vendor.url).fetch("t-1").result == result


@pytest.mark.parametrize(
    "result",
    [
        {"image_url": "", "discord_image_url": "https://x/1.png"},
        {"image_url": None, "image_urls": ["https://x/1.png", "https://x/2.png"]},
        {"permanent_url": "https://x/1.png"},
        {"temporary_image_urls": ["https://x/1.png"]},
    ],
)
def test_a_result_always_has_its_picture(result: dict[str, Any], vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, {"data": {"status": "completed", "output": result}})]
    assert client(vendor.url).fetch("t-1").result == result | {"image_url": "https://x/1.png"}


def test_a_failed_task_says_why(vendor: ScriptedVendor) -> None:
    error = {"code": 10000, "message": "task failed", "raw_message": "Failed to process your command", "detail": None}
    vendor.script = [says(200, {"data": {"status": "failed", "error": error}})]
    failure = client(vendor.url).fetch("t-1").failure
    assert failure is not None
    assert '"task failed; Failed to process your command"' in str(failure)


def test_a_lost_imagine_is_found_by_its_seed(vendor: ScriptedVendor) -> None:
    other = item("t-8", input={"prompt": "a cat --seed 777"})
    vendor.script = [says(200, listing(other, item("t-9"), total=2))]

    assert client(vendor.url).find(IMAGINE) == "t-9"

    [seen] = vendor.seen
    assert seen.method == "GET"
    path, _, query = seen.target.partition("?")
    assert path == "/api/open/tasks/histories"
    assert sorted(query.split("&")) == [
        "end_time=1795176600",
        "model=mj",
        "page=1",
        "page_size=100",
        "start_time=1795175940",
    ]
    assert seen.headers["x-api-key"] == "secret-key"


def test_a_lost_upscale_is_found_by_its_origin_and_index(vendor: ScriptedVendor) -> None:
    def upscale(task_id: str, origin: str, index: object) -> dict[str, Any]:
        return item(task_id, task_type="upscale", input={"origin_task_id": origin, "index": index})

    vendor.script = [says(200, listing(upscale("a", "t-1", "1"), upscale("b", "t-0", "2"), upscale("c", "t-1", "2")))]
    assert client(vendor.url).find(UPSCALE) == "c"


def test_the_newest_match_counts(vendor: ScriptedVendor) -> None:
    items = [item("old", created_at="2026-11-20T12:00:01Z"), item("new", meta={"created_at": "2026-11-20T12:03:00Z"})]
    vendor.script = [says(200, listing(*items))]
    assert client(vendor.url).find(IMAGINE) == "new"


def test_among_undated_matches_the_first_listed_counts(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, listing(item("first", created_at="0001-01-01T00:00:00Z"), item("second")))]
    assert client(vendor.url).find(IMAGINE) == "first"


@pytest.mark.parametrize("created_at", ["2026-11-20T11:58:59Z", "2026-11-20T12:10:01Z", 1795170000])
def test_a_task_of_another_time_is_not_a_match(created_at: object, vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, listing(item("t-9", created_at=created_at)))]
    assert client(vendor.url).find(IMAGINE) is None


@pytest.mark.parametrize("hours", [-30, -2, 2, 24 * 365 * 50])
def test_where_our_clock_is_wrong_a_lost_task_is_found_by_the_vendors(hours: int, vendor: ScriptedVendor) -> None:
    """`hours` is how far the vendor's clock is ahead of ours, which recorded the time of the call."""
    now = datetime.now(UTC) + timedelta(hours=hours)
    made_at = stamp(parse_stamp(ASKED_AT) + timedelta(hours=hours))
    vendor.script = [
        says(200, it, Date=format_datetime(now)) for it in (listing(), listing(item("t-9", created_at=made_at)))
    ]
    assert client(vendor.url).find(IMAGINE) == "t-9"
    first, second = (int(re.search(r"start_time=(-?\d+)", seen.target)[1]) for seen in vendor.seen)
    assert abs(second - first - 3600 * hours) < 60


@pytest.mark.parametrize(
    "date", ["", "soon", "Fri, 20 Nov 2026 12:00:00", "Fri, 20 Nov 9999 12:00:00 GMT", "x" * 10**4]
)
def test_a_date_that_no_clock_shows_moves_nothing(date: str, vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, listing(), Date=date)]
    assert client(vendor.url).find(IMAGINE) is None
    assert len(vendor.seen) == 1


def test_a_clock_that_is_nearly_right_is_asked_about_once(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, listing(), Date=format_datetime(datetime.now(UTC) + timedelta(seconds=40)))]
    assert client(vendor.url).find(IMAGINE) is None
    assert len(vendor.seen) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"input": '{"prompt": "a cat --seed 77"}'},
        {"input": "a cat --seed 77"},
        {"input": None, "prompt": "a cat --seed=77 --v 7"},
        {"task_type": None},
        {"task_type": "mj-Imagine"},
    ],
)
def test_an_item_is_read_liberally(fields: dict[str, Any], vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, {"data": [item("t-9", **fields)]})]
    assert client(vendor.url).find(IMAGINE) == "t-9"


def test_an_upscale_that_repeats_the_prompt_is_not_taken_for_the_imagine(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, listing(item("t-9", task_type="upscale")))]
    assert client(vendor.url).find(IMAGINE) is None


def test_all_pages_are_looked_through(vendor: ScriptedVendor) -> None:
    others = [item(f"o-{n}", input={"prompt": f"--seed {n}"}) for n in range(70)]
    vendor.script = [
        says(200, listing(*others, total=71)),
        says(200, listing(item("t-9"), total=71)),
    ]
    assert client(vendor.url).find(IMAGINE) == "t-9"
    assert ["page=2" in seen.target for seen in vendor.seen] == [False, True]


def test_a_history_without_end_is_left_in_the_end(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, listing(item("x", input={}), total=10**9))] * (MAX_PAGES + 5)
    assert client(vendor.url).find(IMAGINE) is None
    assert len(vendor.seen) == MAX_PAGES


def test_an_empty_page_is_the_last_whatever_the_total_says(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, listing(total=500))]
    assert client(vendor.url).find(IMAGINE) is None
    assert len(vendor.seen) == 1


def test_a_match_counts_even_if_the_rest_cannot_be_read(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, listing(item("t-9"), total=500)), cut]
    assert client(vendor.url).find(IMAGINE) == "t-9"


@pytest.mark.parametrize("act", [cut, page(200), page(502), says(401, {"code": 401, "message": "no"}), says(200, [1])])
def test_a_vendor_that_does_not_answer_cannot_tell(act: Any, vendor: ScriptedVendor) -> None:
    vendor.script = [act]
    assert client(vendor.url).find(IMAGINE) is None
    assert len(vendor.seen) == 1


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"step": "imagine"},
        IMAGINE | {"requested_at_utc": "soon"},
        IMAGINE | {"nonce": None},
        {**IMAGINE, "step": "x"},
    ],
)
def test_what_was_not_saved_is_not_found(asked: dict[str, Any], vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, listing(item("t-9")))]
    assert client(vendor.url).find(asked) is None


def test_an_endpoint_without_a_history_cannot_tell(vendor: ScriptedVendor) -> None:
    assert client(vendor.url, create="/api/v1/task/extra").find(IMAGINE) is None
    assert vendor.seen == []


def test_a_finished_task_with_a_mangled_result_is_not_a_crash(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, {"status": "finished", "task_result": "ok"})]
    with pytest.raises(PollFailed, match="t-1 as finished, but gives no picture"):
        client(vendor.url).fetch("t-1")


@pytest.mark.parametrize("key", ["secret\n", "клю́ч", "a\tb", " secret"])
def test_a_key_that_cannot_be_sent_is_a_setting_to_mend(key: str) -> None:
    with pytest.raises(SettingsError, match="MIDJOURNEY_API_KEY") as caught:
        PiAPI("http://x/api/v1/task", "http://x", key, process_mode="fast", aspect_ratio="", timeout_s=1)
    assert key not in str(caught.value)
