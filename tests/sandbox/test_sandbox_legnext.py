"""The stand-in for LegNext, over real HTTP."""

from decimal import Decimal
from io import BytesIO

import pytest
from PIL import Image
from sandbox_customer import AT_ONCE, Customer

from retake.clock import FakeClock
from retake.sandbox import Pace, Sandbox


def _picture(customer: Customer, url: str) -> Image.Image:
    return Image.open(BytesIO(customer.get(url).content)).convert("RGB")


def test_a_job_is_accepted_as_the_vendor_does_it(customer: Customer) -> None:
    answer = customer.legnext("diffusion", text="mountains --ar 16:9", callback="https://example.org/").json()
    assert (answer["model"], answer["task_type"], answer["status"]) == ("midjourney", "diffusion", "pending")
    assert answer["input"] is None
    assert answer["config"]["webhook_config"]["endpoint"] == "https://example.org/"
    assert answer["output"] == {"image_url": "", "image_urls": None, "seed": ""}
    assert answer["error"]["code"] == 0
    assert answer["job_id"]


def test_a_diffusion_makes_a_grid_and_the_four_singles_of_the_shape_asked_for(customer: Customer) -> None:
    output = customer.job(customer.diffuse("mountains --ar 16:9 --seed 77"))["output"]
    grid = _picture(customer, output["image_url"])
    singles = [_picture(customer, url) for url in output["image_urls"]]
    width, height = singles[0].size
    assert width / height == pytest.approx(16 / 9, rel=0.03)
    assert grid.size == (2 * width, 2 * height)
    assert len({single.tobytes() for single in singles}) == 4
    assert output["seed"] == "77"


def test_the_upscale_is_the_picture_chosen_counted_from_0(customer: Customer) -> None:
    origin = customer.diffuse("mountains --ar 3:2")
    chosen = _picture(customer, customer.job(origin)["output"]["image_urls"][2])
    job = customer.legnext("upscale", jobId=origin, imageNo=2, type=0).json()["job_id"]
    state = customer.job(job)
    large = _picture(customer, state["output"]["image_url"])
    assert (state["task_type"], state["output"]["image_urls"]) == ("upscale", None)
    assert large.size == (2 * chosen.width, 2 * chosen.height)
    assert large.getpixel((0, 0)) == chosen.getpixel((0, 0))


def test_without_singles_there_is_only_the_grid(session) -> None:
    with Sandbox(pace=AT_ONCE, quick=True, singles=False) as sandbox:
        customer = Customer(sandbox, session)
        output = customer.job(customer.diffuse())["output"]
    assert output["image_urls"] is None
    assert output["image_url"].endswith("/grid.png")


def test_a_job_waits_works_and_ends_by_the_clock_and_its_points_are_frozen_meanwhile(session) -> None:
    clock = FakeClock()
    with Sandbox(pace=Pace(imagine=100, upscale=10, runway=10), quick=True, clock=clock) as sandbox:
        customer = Customer(sandbox, session)
        job = customer.diffuse("x --turbo")
        seen = []
        for seconds in (0, 50, 50):
            clock.sleep(seconds)
            state = customer.job(job)
            usage = state["meta"]["usage"]
            seen.append((state["status"], usage["frozen"], usage["consume"]))
    assert seen == [("pending", 160, 0), ("processing", 160, 0), ("completed", 0, 160)]


@pytest.mark.parametrize(("fault", "code"), [("task-failed", 500), ("task-rejected", 403)])
def test_a_failed_job_says_why_and_its_points_come_back(customer: Customer, sandbox, fault: str, code: int) -> None:
    sandbox.order(f"imagine={fault}")
    state = customer.job(customer.diffuse())
    assert (state["status"], state["error"]["code"]) == ("failed", code)
    assert state["error"]["raw_message"]
    assert state["output"]["image_url"] == ""
    assert sandbox.bill().total == 0


def test_the_bill_is_in_the_vendors_prices(customer: Customer, sandbox: Sandbox) -> None:
    origin = customer.diffuse()
    customer.legnext("upscale", jobId=origin, imageNo=0, type=0)
    lines = sandbox.bill().lines
    assert {kind: (line.carried_out, line.price) for kind, line in lines.items()} == {
        "imagine": (1, Decimal("0.080")),
        "upscale": (1, Decimal("0.080")),
    }


@pytest.mark.parametrize(
    ("path", "wish", "said"),
    [
        ("diffusion", {"text": " "}, "text"),
        ("diffusion", {"prompt": "x"}, "text"),
        ("diffusion", {"text": "x" * 8193}, "8192"),
        ("diffusion", {"text": "x --ar wide"}, "--ar"),
        ("diffusion", {}, "Invalid"),
        ("upscale", {"jobId": "nobody", "imageNo": 0, "type": 0}, "jobId"),
    ],
)
def test_a_request_that_breaks_a_rule_is_refused_and_costs_nothing(customer: Customer, sandbox, path, wish, said):
    reply = customer.legnext(path, **wish)
    assert reply.status_code == reply.json()["code"] == 400
    assert said in reply.json()["message"]
    assert sandbox.bill().total == 0


@pytest.mark.parametrize(("number", "kind"), [("0", 0), (4, 0), (-1, 0), (True, 0), (None, 0), (0, 2), (0, None)])
def test_an_upscale_names_a_picture_from_0_to_3_and_how(customer: Customer, number: object, kind: object) -> None:
    job = customer.diffuse()
    assert customer.legnext("upscale", jobId=job, imageNo=number, type=kind).status_code == 400


def test_an_upscale_needs_a_completed_diffusion(session) -> None:
    with Sandbox(pace=Pace(10, 0, 0), quick=True, clock=FakeClock()) as sandbox:
        customer = Customer(sandbox, session)
        assert customer.legnext("upscale", jobId=customer.diffuse(), imageNo=0, type=0).status_code == 400


def test_neither_seller_knows_what_was_ordered_from_the_other(customer: Customer) -> None:
    job, task, key = customer.diffuse(), customer.imagine(), {"X-API-Key": "any"}
    assert customer.get(f"/legnext/api/v1/job/{task}", **key).status_code == 404
    assert customer.get(f"/piapi/api/v1/task/{job}", **key).status_code == 404
    assert customer.legnext("upscale", jobId=task, imageNo=0, type=0).status_code == 400
    assert customer.task("upscale", origin_task_id=job, index="1").status_code == 400
    listed = customer.get("/piapi/api/open/tasks/histories", **key).json()["data"]["data"]
    assert [item["task_id"] for item in listed] == [task]


@pytest.mark.parametrize("path", ["diffusion", "upscale"])
def test_a_post_without_a_key_is_refused(customer: Customer, path: str) -> None:
    reply = customer.post(f"/legnext/api/v1/{path}", {"text": "x"})
    assert (reply.status_code, reply.json()["code"]) == (401, 401)


def test_a_question_without_a_key_is_refused(customer: Customer) -> None:
    assert customer.get(f"/legnext/api/v1/job/{customer.diffuse()}").status_code == 401
