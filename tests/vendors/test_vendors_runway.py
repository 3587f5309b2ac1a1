import subprocess
import sys
from typing import Any

import pytest
from scripted_vendor import ScriptedVendor, says

from retake.errors import Code, PollFailed, Refused, SettingsError
from retake.vendors.runway import Runway

IMAGE = "data:image/png;base64,AAAA"


def client(url: str | None, **settings: Any) -> Runway:
    settings = {"model": "gen4_turbo", "ratio": "1280:720", "duration_s": 10, "timeout_s": 5.0} | settings
    return Runway(url, "key_" + "0" * 128, **settings)


def test_create_sends_what_the_vendor_documents(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, {"id": "r-1", "estimatedCost": {"credits": 50}})]

    assert client(vendor.url).create(IMAGE, "a cat walks") == "r-1"

    [seen] = vendor.seen
    assert (seen.method, seen.target) == ("POST", "/v1/image_to_video")
    assert seen.headers["authorization"] == "Bearer key_" + "0" * 128
    assert seen.headers["x-runway-version"] == "2024-11-06"
    assert seen.json == {
        "model": "gen4_turbo",
        "promptImage": IMAGE,
        "promptText": "a cat walks",
        "ratio": "1280:720",
        "duration": 10,
    }


def test_questions_say_who_asks_as_the_sdk_does(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, {"id": "r-1"}), says(200, {"status": "PENDING"}), says(200, {"creditBalance": 1})]
    runway = client(f"{vendor.url}/base/")
    runway.create(IMAGE, "a cat walks")
    runway.poll("r/1")
    runway.health()
    order, *questions = vendor.seen
    assert [question.target for question in questions] == ["/base/v1/tasks/r%2F1", "/base/v1/organization"]
    for question in questions:
        for name in ("authorization", "x-runway-version", "accept"):
            assert question.headers[name] == order.headers[name]


def test_threads_that_order_at_once_do_not_import_the_sdk_against_each_other() -> None:
    code = (
        "import sys, retake.vendors.runway as r; assert 'runwayml' not in sys.modules; "
        "import retake.vendors.runway_orders; assert 'runwayml.resources.image_to_video' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_limits_are_met_before_the_call(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, {"id": "r-1"})]
    runway = client(vendor.url, ratio="1280:768", duration_s=7)

    runway.create(IMAGE, "word " * 300)

    sent = vendor.seen[0].json
    assert (sent["ratio"], sent["duration"], len(sent["promptText"])) == ("1280:720", 5, 999)
    assert runway.adjusted == (
        "gen4_turbo has no ratio 1280:768: 1280:720 is taken",
        "gen4_turbo has no duration 7 s: 5 s is taken",
    )


def test_an_unknown_model_passes_through(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, {"id": "r-1"})]
    runway = client(vendor.url, model="gen9", ratio="4:5", duration_s=3)
    runway.create(IMAGE, "x")
    assert vendor.seen[0].json | {"promptImage": ""} == {
        "model": "gen9",
        "promptImage": "",
        "promptText": "x",
        "ratio": "4:5",
        "duration": 3,
    }
    assert runway.adjusted == ()


def test_no_prompt_is_left_out_where_it_may_be(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, {"id": "r-1"})]
    client(vendor.url).create(IMAGE, "  ")
    assert "promptText" not in vendor.seen[0].json


def test_no_prompt_is_refused_here_where_it_must_be_given(vendor: ScriptedVendor) -> None:
    with pytest.raises(Refused, match=r"gen4\.5 needs a prompt") as caught:
        client(vendor.url, model="gen4.5").create(IMAGE, " ")
    assert caught.value.code is Code.INVALID_INPUT
    assert vendor.seen == []


def test_a_picture_that_is_too_large_is_refused_here(vendor: ScriptedVendor) -> None:
    with pytest.raises(Refused, match="5,000,000 are allowed") as caught:
        client(vendor.url).create("data:image/png;base64," + "A" * 5_000_000, "x")
    assert caught.value.code is Code.INVALID_INPUT
    assert vendor.seen == []


@pytest.mark.parametrize(
    ("body", "progress"),
    [
        ({"id": "r-1", "status": "PENDING"}, "PENDING"),
        ({"id": "r-1", "status": "THROTTLED"}, "THROTTLED"),
        ({"id": "r-1", "status": "RUNNING", "progress": 0.4}, "RUNNING 40%"),
        ({"id": "r-1", "status": "SOMETHING_NEW", "output": ["x"]}, "SOMETHING_NEW"),
    ],
)
def test_a_task_that_is_not_over_is_running(body: dict[str, Any], progress: str, vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, body)]
    state = client(vendor.url).poll("r-1")
    assert state.running
    assert state.progress == progress
    assert vendor.seen[0].target == "/v1/tasks/r-1"


def test_a_result_is_the_vendors_own_object(vendor: ScriptedVendor) -> None:
    task = {"id": "r-1", "status": "SUCCEEDED", "output": ["https://x/v.mp4?_jwt=abc"], "surprise": 1}
    vendor.script = [says(200, task)]
    assert client(vendor.url).poll("r-1").result == task


def test_a_failed_task_without_its_cost_is_still_a_failed_task(vendor: ScriptedVendor) -> None:
    """The SDK's own parser mistakes such an answer for a pending task."""
    vendor.script = [says(200, {"id": "r-1", "status": "FAILED", "failure": "No luck", "failureCode": "INTERNAL"})]
    failure = client(vendor.url).poll("r-1").failure
    assert failure is not None
    assert '"INTERNAL: No luck"' in str(failure)


def test_a_success_without_a_video_is_not_an_answer(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, {"id": "r-1", "status": "SUCCEEDED"})]
    with pytest.raises(PollFailed):
        client(vendor.url).poll("r-1")


def test_the_issues_of_a_refusal_are_reported(vendor: ScriptedVendor) -> None:
    issues = [{"code": "custom", "path": ["ratio"], "message": "must be one of …"}]
    vendor.script = [says(400, {"error": "Validation of body failed", "issues": issues})]
    with pytest.raises(Refused, match="Validation of body failed; ratio: must be one of"):
        client(vendor.url).create(IMAGE, "x")


@pytest.mark.parametrize(
    ("url", "seconds"), [(None, 5.0), ("https://api.dev.runwayml.com/", 5.0), ("http://127.0.0.1:1", 0.0)]
)
def test_only_the_real_vendor_sets_the_pace(url: str | None, seconds: float) -> None:
    assert client(url).min_poll_s == seconds


def test_the_real_address_does_not_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, vendor: ScriptedVendor
) -> None:
    monkeypatch.setenv("RUNWAYML_BASE_URL", "http://127.0.0.1:1")
    vendor.script = [says(200, {"id": "r-1"})]
    assert client(vendor.url).create(IMAGE, "x") == "r-1"


@pytest.mark.parametrize("url", ["http://[::1", "nowhere", "ftp://x"])
def test_an_invalid_address_is_a_setting_to_mend(url: str) -> None:
    with pytest.raises(Refused) as caught:
        client(url).create(IMAGE, "x")
    assert caught.value.code is Code.CONFIGURATION


def test_a_key_that_cannot_be_sent_is_a_setting_to_mend() -> None:
    with pytest.raises(SettingsError, match="RUNWAYML_API_SECRET"):
        Runway(None, "key_…", model="gen4_turbo", ratio="1280:720", duration_s=5, timeout_s=1)
