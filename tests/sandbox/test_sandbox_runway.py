"""The stand-in for Runway, through the official SDK."""

import base64
import subprocess
from collections.abc import Iterator
from decimal import Decimal
from io import BytesIO

import imageio_ffmpeg
import pytest
import runwayml
from PIL import Image
from sandbox_customer import AT_ONCE, Customer

from retake.clock import FakeClock
from retake.sandbox import Pace, Sandbox


def _uri(size: tuple[int, int] = (64, 36)) -> str:
    png = BytesIO()
    Image.new("RGB", size, (200, 120, 40)).save(png, "PNG")
    return "data:image/png;base64," + base64.b64encode(png.getvalue()).decode()


WISH = {"model": "gen4_turbo", "prompt_image": _uri(), "prompt_text": "push in", "ratio": "1280:720", "duration": 5}


def _client(sandbox: Sandbox) -> runwayml.RunwayML:
    return runwayml.RunwayML(api_key="any", base_url=sandbox.endpoints()["runwayml"]["endpoint"], max_retries=0)


@pytest.fixture
def client(sandbox: Sandbox) -> Iterator[runwayml.RunwayML]:
    with _client(sandbox) as opened:
        yield opened


def test_a_video_is_made_of_the_shape_and_length_asked_for(client, customer: Customer, tmp_path) -> None:
    created = client.image_to_video.create(**WISH)
    assert created.estimated_cost.credits == 25
    task = client.tasks.retrieve(created.id)
    assert (task.status, task.cost.credits) == ("SUCCEEDED", 25)
    reply = customer.get(task.output[0])
    assert reply.headers["Content-Type"] == "video/mp4"
    video = tmp_path / "video.mp4"
    video.write_bytes(reply.content)
    probe = subprocess.run(
        [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(video)], capture_output=True, text=True, check=False
    ).stderr
    assert "Duration: 00:00:05.00" in probe
    assert "h264" in probe
    assert "yuv420p" in probe
    assert "128x72" in probe


def test_a_task_goes_through_the_words_that_the_sdk_knows() -> None:
    clock = FakeClock()
    with Sandbox(pace=Pace(0, 0, 100), quick=True, clock=clock) as sandbox, _client(sandbox) as client:
        task = client.image_to_video.create(**WISH).id
        states = []
        for seconds in (0, 50, 50):
            clock.sleep(seconds)
            states.append(client.tasks.retrieve(task))
    assert [state.status for state in states] == ["PENDING", "RUNNING", "SUCCEEDED"]
    assert states[1].progress == pytest.approx(0.5)


def test_a_failed_task_parses_as_failed_and_gives_the_credits_back(client, sandbox: Sandbox) -> None:
    sandbox.order("runway=task-rejected")
    task = client.tasks.retrieve(client.image_to_video.create(**WISH).id)
    assert type(task).__name__.endswith("Failed")
    assert task.to_dict()["failureCode"] == "SAFETY.INPUT.TEXT"
    assert task.cost.credits == 0
    assert sandbox.bill().total == 0


def test_a_picture_that_cannot_be_read_fails_the_task(client) -> None:
    broken = "data:image/png;base64," + base64.b64encode(b"not a picture").decode()
    task = client.tasks.retrieve(client.image_to_video.create(**WISH | {"prompt_image": broken}).id)
    assert task.to_dict()["failureCode"] == "ASSET.INVALID"


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"prompt_image": "data:image/png;base64," + "A" * 5_000_000}, "promptImage"),
        ({"prompt_image": "data:image/png;base64,???"}, "promptImage"),
        ({"prompt_image": "http://example.org/a.png"}, "promptImage"),
        ({"prompt_text": "\U0001f30a" * 501}, "promptText"),
        ({"ratio": "1280:768"}, "ratio"),
        ({"duration": 7}, "duration"),
        ({"model": "gen3a_turbo"}, "model"),
        ({"seed": -1}, "seed"),
    ],
)
def test_a_request_beyond_the_limits_is_refused_with_an_issue(client, sandbox: Sandbox, change, path) -> None:
    with pytest.raises(runwayml.BadRequestError) as refusal:
        client.image_to_video.create(**WISH | change)
    assert [issue["path"] for issue in refusal.value.body["issues"]] == [[path]]
    assert sandbox.tasks() == []


def test_a_prompt_of_exactly_1000_utf16_units_is_accepted(client) -> None:
    assert client.image_to_video.create(**WISH | {"prompt_text": "\U0001f30a" * 500}).id


def test_gen4_5_takes_other_lengths(client) -> None:
    created = client.image_to_video.create(**WISH | {"model": "gen4.5", "duration": 3})
    assert created.estimated_cost.credits == 36


def test_an_https_link_stands_for_a_picture_that_cannot_be_fetched_here(client) -> None:
    assert client.image_to_video.create(**WISH | {"prompt_image": "https://example.org/a.png"}).id


def test_key_and_version_are_demanded(customer: Customer) -> None:
    version = {"X-Runway-Version": "2024-11-06"}
    assert customer.get("/runway/v1/organization", **version).status_code == 401
    assert customer.get("/runway/v1/organization", Authorization="Bearer any").status_code == 400
    assert customer.get("/runway/v1/organization", Authorization="Bearer any", **version).status_code == 200


def test_the_organization_counts_generations_by_the_day() -> None:
    clock = FakeClock()
    with Sandbox(pace=AT_ONCE, quick=True, clock=clock) as sandbox, _client(sandbox) as client:
        before = client.organization.retrieve()
        client.image_to_video.create(**WISH)
        after = client.organization.retrieve()
        clock.sleep(86_400)
        later = client.organization.retrieve()
    daily = [reply.usage.models["gen4_turbo"].daily_generations for reply in (before, after, later)]
    assert daily == [0, 1, 0]
    assert before.credit_balance - after.credit_balance == 25


@pytest.mark.parametrize(("after_s", "price"), [(1, "0"), (50, "0.25")])
def test_a_cancelled_task_is_gone_and_refunded_only_while_it_waited(after_s: float, price: str) -> None:
    clock = FakeClock()
    with Sandbox(pace=Pace(0, 0, 100), quick=True, clock=clock) as sandbox, _client(sandbox) as client:
        task = client.image_to_video.create(**WISH).id
        clock.sleep(after_s)
        client.tasks.delete(task)
        with pytest.raises(runwayml.NotFoundError):
            client.tasks.retrieve(task)
        assert sandbox.bill().total == Decimal(price)


def test_the_picture_is_not_kept_among_the_calls(client, sandbox: Sandbox) -> None:
    client.image_to_video.create(**WISH)
    (call,) = sandbox.calls("runway")
    assert call.request["promptImage"].startswith("data:image/png;base64,… (")
