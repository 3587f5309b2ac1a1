from typing import Any

import pytest
from scripted_vendor import ScriptedVendor, says

from retake.errors import PollFailed, Refused, SettingsError
from retake.vendors.legnext import LegNext


def client(url: str, **settings: Any) -> LegNext:
    settings = {"process_mode": "fast", "aspect_ratio": "16:9", "timeout_s": 5.0} | settings
    return LegNext(url + "/api/", "secret-key", **settings)


def job(status: str, **fields: Any) -> dict[str, Any]:
    return {"job_id": "j-1", "model": "midjourney", "task_type": "diffusion", "status": status, "input": None} | fields


def test_imagine_sends_what_the_vendor_documents(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, job("pending", job_id="j-9"))]

    assert client(vendor.url).imagine(" a cat ", 77) == "j-9"

    [seen] = vendor.seen
    assert (seen.method, seen.target) == ("POST", "/api/v1/diffusion")
    assert seen.headers["x-api-key"] == "secret-key"
    assert seen.headers["content-type"] == "application/json"
    assert seen.json == {"text": "a cat --seed 77 --ar 16:9"}


def test_upscale_counts_the_pictures_from_0(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, job("pending", job_id="j-2", task_type="upscale"))]

    assert client(vendor.url).upscale("j-1", 3) == "j-2"

    assert (vendor.seen[0].method, vendor.seen[0].target) == ("POST", "/api/v1/upscale")
    assert vendor.seen[0].json == {"jobId": "j-1", "imageNo": 2, "type": 0}


@pytest.mark.parametrize(
    ("prompt", "settings", "text"),
    [
        ("a cat --seed 5", {}, "a cat --seed 5 --ar 16:9"),
        ("a cat --seed=5 --v 7", {}, "a cat --seed=5 --v 7 --ar 16:9"),
        ("a cat --ar 1:1", {}, "a cat --ar 1:1 --seed 77"),
        ("a --aspect 1:1 b", {}, "a --aspect 1:1 b --seed 77"),
        ("a --arrow", {}, "a --arrow --seed 77 --ar 16:9"),
        ("a cat", {"aspect_ratio": ""}, "a cat --seed 77"),
        ("a cat", {"process_mode": "turbo"}, "a cat --seed 77 --ar 16:9 --turbo"),
        ("a cat", {"process_mode": "relax"}, "a cat --seed 77 --ar 16:9 --relax"),
        ("a cat --fast", {"process_mode": "turbo"}, "a cat --fast --seed 77 --ar 16:9"),
    ],
)
def test_each_flag_is_given_once_and_the_prompts_own_is_kept(
    prompt: str, settings: dict[str, str], text: str, vendor: ScriptedVendor
) -> None:
    vendor.script = [says(200, job("pending"))]
    client(vendor.url, **settings).imagine(prompt, 77)
    assert vendor.seen[0].json == {"text": text}


@pytest.mark.parametrize("status", ["pending", "staged", "processing", "Processing", "something new"])
def test_a_job_that_is_not_over_is_running(status: str, vendor: ScriptedVendor) -> None:
    error = {"code": 0, "raw_message": "", "message": "", "detail": None}
    vendor.script = [says(200, job(status, output={"image_url": "", "image_urls": None}, error=error))]

    state = client(vendor.url).fetch("j-1")

    assert state.running
    assert state.progress == status.lower()
    assert (vendor.seen[0].method, vendor.seen[0].target) == ("GET", "/api/v1/job/j-1")
    assert vendor.seen[0].headers["x-api-key"] == "secret-key"


def test_an_id_stays_one_part_of_the_path(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, job("pending"))]
    client(vendor.url).fetch("../a b?c")
    assert vendor.seen[0].target == "/api/v1/job/..%2Fa%20b%3Fc"


FOUR = [f"https://x/{n}.png" for n in range(4)]


@pytest.mark.parametrize(
    ("output", "picture", "singles"),
    [
        ({"image_url": "https://x/grid.png", "image_urls": FOUR, "seed": "77"}, "https://x/grid.png", FOUR),
        ({"image_url": "https://x/grid.png", "image_urls": None}, "https://x/grid.png", []),
        ({"image_url": "", "image_urls": FOUR}, "https://x/0.png", FOUR),
        ({"image_url": "https://x/large.png"}, "https://x/large.png", []),
        ({"image_url": None, "image_urls": ["https://x/large.png"]}, "https://x/large.png", ["https://x/large.png"]),
        ({"image_url": "https://x/grid.png", "image_urls": ["", *FOUR[1:]]}, "https://x/grid.png", FOUR[1:]),
    ],
)
def test_a_result_has_its_picture_and_the_single_ones_where_the_story_looks(
    output: dict[str, Any], picture: str, singles: list[str], vendor: ScriptedVendor
) -> None:
    vendor.script = [says(200, job("Completed", output=output))]
    found = {"image_url": picture, "temporary_image_urls": singles}
    assert client(vendor.url).fetch("j-1").result == {**output, **found}


@pytest.mark.parametrize("output", [None, "ok", {"image_url": 7}, {"image_urls": "https://x/1.png"}])
def test_a_completed_job_with_a_mangled_output_is_not_a_crash(output: object, vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, job("completed", output=output))]
    with pytest.raises(PollFailed, match="j-1 as completed, but gives no picture"):
        client(vendor.url).fetch("j-1")


def test_a_failed_job_says_why(vendor: ScriptedVendor) -> None:
    error = {"code": 500, "message": "task failed", "raw_message": "Midjourney did not answer", "detail": None}
    vendor.script = [says(200, job("failed", error=error))]
    failure = client(vendor.url).fetch("j-1").failure
    assert failure is not None
    assert 'LegNext ended task j-1 as failed: "task failed; Midjourney did not answer"' in str(failure)


@pytest.mark.parametrize(
    "body",
    [
        {"code": 402, "message": "not enough points", "raw_message": "not enough points", "detail": None},
        {"error": {"code": 402, "message": "not enough points"}},
    ],
)
def test_an_error_is_read_from_both_places_where_the_vendor_puts_it(body: Any, vendor: ScriptedVendor) -> None:
    vendor.script = [says(402, body)]
    with pytest.raises(Refused) as caught:
        client(vendor.url).imagine("a cat", 1)
    assert 'HTTP 402: "402: not enough points"' in str(caught.value)


def test_what_became_of_a_lost_call_cannot_be_asked(vendor: ScriptedVendor) -> None:
    asked = {"step": "imagine", "requested_at_utc": "2026-11-20T12:00:00Z", "nonce": 77}
    assert client(vendor.url).find(asked) is None
    assert vendor.seen == []


@pytest.mark.parametrize("key", ["secret\n", "клю́ч", "a\tb", " secret"])
def test_a_key_that_cannot_be_sent_is_a_setting_to_mend(key: str) -> None:
    with pytest.raises(SettingsError, match="MIDJOURNEY_API_KEY") as caught:
        LegNext(None, key, process_mode="fast", aspect_ratio="", timeout_s=1)
    assert key not in str(caught.value)
