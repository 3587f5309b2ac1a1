"""The stand-in for PiAPI, over real HTTP."""

from io import BytesIO

import pytest
from PIL import Image
from sandbox_customer import AT_ONCE, Customer

from retake.clock import FakeClock
from retake.sandbox import Pace, Sandbox


def _picture(customer: Customer, url: str) -> Image.Image:
    reply = customer.get(url)
    assert reply.headers["Content-Type"] == "image/png"
    assert int(reply.headers["Content-Length"]) == len(reply.content)
    return Image.open(BytesIO(reply.content)).convert("RGB")


def test_a_task_is_accepted_in_the_vendors_envelope(customer: Customer) -> None:
    answer = customer.task("imagine", prompt="mountains", aspect_ratio="16:9").json()
    assert (answer["code"], answer["message"]) == (200, "success")
    data = answer["data"]
    assert (data["model"], data["task_type"], data["status"]) == ("midjourney", "imagine", "pending")
    assert data["input"] == {"prompt": "mountains", "aspect_ratio": "16:9"}
    assert data["meta"]["usage"]["type"] == "point"


def test_imagine_makes_a_grid_of_the_four_singles(customer: Customer) -> None:
    output = customer.look(customer.imagine(aspect_ratio="16:9"))["output"]
    grid = _picture(customer, output["image_url"])
    singles = [_picture(customer, url) for url in output["temporary_image_urls"]]
    width, height = singles[0].size
    assert width / height == pytest.approx(16 / 9, rel=0.03)
    assert grid.size == (2 * width, 2 * height)
    corners = [(0, 0), (width, 0), (0, height), (width, height)]
    for single, (x, y) in zip(singles, corners, strict=True):
        assert grid.crop((x, y, x + width, y + height)).tobytes() == single.tobytes()
    assert len({single.tobytes() for single in singles}) == 4


def test_the_upscale_is_the_picture_chosen_twice_as_large(customer: Customer) -> None:
    origin = customer.imagine(aspect_ratio="3:2")
    chosen = _picture(customer, customer.look(origin)["output"]["temporary_image_urls"][2])
    large = _picture(customer, customer.look(customer.upscale(origin, "3"))["output"]["image_url"])
    assert large.size == (2 * chosen.width, 2 * chosen.height)
    assert large.getpixel((0, 0)) == chosen.getpixel((0, 0))


def test_the_older_fetch_has_no_envelope_and_its_own_words(customer: Customer) -> None:
    answer = customer.fetch(customer.imagine()).json()
    assert (answer["status"], answer["meta"]["task_type"]) == ("finished", "imagine")
    assert len(answer["task_result"]["temporary_image_urls"]) == 4
    assert isinstance(answer["meta"]["created_at"], int)


def test_without_singles_there_is_only_the_grid(session) -> None:
    with Sandbox(pace=AT_ONCE, quick=True, singles=False) as sandbox:
        customer = Customer(sandbox, session)
        output = customer.look(customer.imagine())["output"]
    assert output["temporary_image_urls"] is None
    assert output["image_url"].endswith("/grid.png")


def test_a_task_waits_works_and_ends_by_the_clock(session) -> None:
    clock = FakeClock()
    with Sandbox(pace=Pace(imagine=100, upscale=10, runway=10), quick=True, clock=clock) as sandbox:
        customer = Customer(sandbox, session)
        task = customer.imagine()
        seen = []
        for seconds in (0, 50, 49, 2):
            clock.sleep(seconds)
            data = customer.look(task)
            seen.append((data["status"], data["output"]["progress"]))
        early = customer.get(f"/files/{task}/grid.png")
    assert seen == [("pending", 0), ("processing", 50), ("processing", 99), ("completed", 100)]
    assert early.status_code == 200


def test_a_picture_is_not_there_before_its_task_is_done(session) -> None:
    with Sandbox(pace=Pace(100, 100, 100), quick=True, clock=FakeClock()) as sandbox:
        customer = Customer(sandbox, session)
        assert customer.get(f"/files/{customer.imagine()}/grid.png").status_code == 404


def test_histories_give_the_window_asked_for_newest_first_in_pages(session) -> None:
    clock = FakeClock()
    with Sandbox(pace=AT_ONCE, quick=True, clock=clock) as sandbox:
        customer = Customer(sandbox, session)
        made = []
        for n in range(5):
            made.append(customer.imagine(f"picture {n} --seed {n}"))
            clock.sleep(100)
        start = int(clock.now().timestamp()) - 400
        query = f"?model=mj&page_size=2&start_time={start}&page="
        pages = [
            customer.get(f"/piapi/api/open/tasks/histories{query}{page}", **{"X-API-Key": "any"}).json()["data"]
            for page in (1, 2, 3)
        ]
    assert [item["task_id"] for page in pages for item in page["data"]] == made[:0:-1]
    assert [page["total"] for page in pages] == [4, 4, 4]
    first = pages[0]["data"][0]
    assert first["input"]["prompt"] == "picture 4 --seed 4"
    assert {"status", "config", "created_at"} <= first.keys()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"model": "midjourney", "task_type": "imagine", "input": {}}, "prompt"),
        (
            {"model": "midjourney", "task_type": "imagine", "input": {"prompt": "x", "aspect_ratio": "wide"}},
            "aspect_ratio",
        ),
        (
            {"model": "midjourney", "task_type": "imagine", "input": {"prompt": "x", "process_mode": "warp"}},
            "process_mode",
        ),
        ({"model": "midjourney", "task_type": "dance", "input": {}}, "task_type"),
        ({"model": "flux", "task_type": "imagine", "input": {"prompt": "x"}}, "model"),
        (
            {"model": "midjourney", "task_type": "upscale", "input": {"origin_task_id": "nobody", "index": "1"}},
            "origin",
        ),
    ],
)
def test_a_request_that_breaks_a_rule_is_refused_and_costs_nothing(customer: Customer, sandbox, body, said) -> None:
    reply = customer.post("/piapi/api/v1/task", body, **{"X-API-Key": "any"})
    assert reply.status_code == 400
    assert said in reply.json()["message"]
    assert sandbox.bill().total == 0


@pytest.mark.parametrize("index", [1, "5", "", None])
def test_an_upscale_needs_an_index_from_1_to_4_as_text(customer: Customer, index: object) -> None:
    assert customer.task("upscale", origin_task_id=customer.imagine(), index=index).status_code == 400


def test_an_upscale_needs_a_finished_imagine(session) -> None:
    with Sandbox(pace=Pace(10, 0, 0), quick=True, clock=FakeClock()) as sandbox:
        customer = Customer(sandbox, session)
        assert customer.task("upscale", origin_task_id=customer.imagine(), index="1").status_code == 400


@pytest.mark.parametrize("path", ["/piapi/api/v1/task", "/piapi/mj/v2/fetch"])
def test_a_post_without_a_key_is_refused(customer: Customer, path: str) -> None:
    reply = customer.post(path, {"task_id": "any"})
    assert (reply.status_code, reply.json()["code"]) == (401, 401)


@pytest.mark.parametrize("path", ["/piapi/api/v1/task/any", "/piapi/api/open/tasks/histories", "/piapi/account/info"])
def test_a_question_without_a_key_is_refused(customer: Customer, path: str) -> None:
    assert customer.get(path).status_code == 401


def test_the_account_shows_what_was_spent(customer: Customer) -> None:
    before = customer.get("/piapi/account/info", **{"X-API-Key": "any"}).json()["data"]["equivalent_in_usd"]
    customer.imagine()
    after = customer.get("/piapi/account/info", **{"X-API-Key": "any"}).json()["data"]["equivalent_in_usd"]
    assert before - after == pytest.approx(0.045)


def test_a_webhook_secret_is_not_kept(customer: Customer, sandbox: Sandbox) -> None:
    body = {
        "model": "midjourney",
        "task_type": "imagine",
        "input": {"prompt": "x"},
        "config": {"webhook_config": {"endpoint": "https://example.org/", "secret": "hush"}},
    }
    customer.post("/piapi/api/v1/task", body, **{"X-API-Key": "top-secret"})
    kept = repr(sandbox.calls()) + repr(sandbox.tasks())
    assert "hush" not in kept
    assert "top-secret" not in kept


def test_a_head_request_tells_type_and_length_of_a_file(customer: Customer) -> None:
    url = customer.look(customer.imagine())["output"]["image_url"]
    reply = customer.session.head(url, timeout=60)
    assert (reply.status_code, reply.content) == (200, b"")
    assert reply.headers["Content-Type"] == "image/png"
    assert int(reply.headers["Content-Length"]) == len(customer.get(url).content)
