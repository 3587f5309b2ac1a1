"""Every fault as a client sees it, and what the sandbox records of it."""

import threading
import time

import pytest
import requests
from sandbox_customer import TIMEOUT_S, Customer

from retake.sandbox import Sandbox

JSON = "JSON"
UNDONE = ["500", "429", "401", "402", "503", "502-html", "cut-before", "hang", "quota"]
DONE = ["cut-after", "hang-after", "not-json", "no-id"]
SHORT_S = 0.15


def _imagine(customer: Customer, fault: str = "") -> requests.Response | None:
    """Return the response to an imagine, None if there was none."""
    try:
        return customer.task("imagine", prompt="x", timeout=SHORT_S if "hang" in fault else TIMEOUT_S)
    except requests.RequestException:
        return None


def _wait_for_end_of_call(sandbox: Sandbox) -> None:
    """Wait for the sandbox to read the request: a client that gives up may be gone before."""
    waiting, end = threading.Event(), time.monotonic() + TIMEOUT_S
    while not any(call.outcome for call in sandbox.calls()) and time.monotonic() < end:
        waiting.wait(0.01)


@pytest.mark.parametrize("fault", UNDONE)
def test_what_is_not_carried_out_leaves_no_task_and_no_bill(sandbox: Sandbox, customer: Customer, fault: str) -> None:
    sandbox.order(f"imagine#1={fault}")
    reply = _imagine(customer, fault)
    _wait_for_end_of_call(sandbox)
    assert (reply is None) == (fault in ("cut-before", "hang"))
    assert sandbox.tasks() == []
    assert sandbox.bill().total == 0
    assert [call.carried_out for call in sandbox.calls()] == [False]
    assert _imagine(customer).ok


@pytest.mark.parametrize("fault", DONE)
def test_what_is_carried_out_is_billed_though_the_customer_cannot_know(sandbox, customer: Customer, fault: str) -> None:
    sandbox.order(f"imagine#1={fault}")
    reply = _imagine(customer, fault)
    _wait_for_end_of_call(sandbox)
    assert reply is None or (reply.status_code == 200 and "task_id" not in reply.text)
    (task,) = sandbox.tasks()
    (call,) = sandbox.calls()
    assert (call.carried_out, call.task_id) == (True, task.id)
    assert sandbox.bill().lines["imagine"].carried_out == 1
    assert sandbox.bill().total == call.price > 0


def test_a_cut_and_a_silence_are_different_to_the_client(sandbox: Sandbox, customer: Customer) -> None:
    sandbox.order("imagine#1=cut-after")
    sandbox.order("imagine#2=hang-after")
    with pytest.raises(requests.ConnectionError):
        customer.task("imagine", prompt="x")
    with pytest.raises(requests.exceptions.ReadTimeout):
        customer.task("imagine", prompt="x", timeout=SHORT_S)


@pytest.mark.parametrize(
    ("kind", "path", "body", "key"),
    [
        ("imagine", "/piapi/api/v1/task", {"task_type": "imagine"}, "code"),
        ("upscale", "/piapi/api/v1/task", {"task_type": "upscale"}, "code"),
        ("fetch", "/piapi/mj/v2/fetch", {}, "code"),
        ("fetch", "/piapi/api/v1/task/any", None, "code"),
        ("imagine", "/legnext/api/v1/diffusion", {}, "raw_message"),
        ("upscale", "/legnext/api/v1/upscale", {}, "raw_message"),
        ("fetch", "/legnext/api/v1/job/any", None, "raw_message"),
        ("histories", "/piapi/api/open/tasks/histories", None, "code"),
        ("runway", "/runway/v1/image_to_video", {}, "error"),
        ("poll", "/runway/v1/tasks/any", None, "error"),
        ("organization", "/runway/v1/organization", None, "error"),
        ("account", "/piapi/account/info", None, "code"),
        ("models", "/openai/v1/models", None, "error"),
        ("chat", "/openai/v1/chat/completions", {}, "error"),
    ],
)
def test_every_kind_fails_in_its_vendors_own_words(sandbox, customer: Customer, kind, path, body, key) -> None:
    sandbox.order(f"{kind}=503")
    reply = customer.get(path) if body is None else customer.post(path, body)
    assert reply.status_code == 503
    assert key in reply.json()
    assert [call.kind for call in sandbox.calls()] == [kind]


def test_a_download_can_fail(sandbox: Sandbox, customer: Customer) -> None:
    url = customer.look(customer.imagine())["output"]["image_url"]
    sandbox.order("download#1=404")
    assert [customer.get(url).status_code for _ in range(2)] == [404, 200]


@pytest.mark.parametrize(("kind", "status"), [("imagine", 402), ("runway", 402), ("chat", 429)])
def test_an_empty_account_is_reported_in_the_vendors_way(sandbox, customer: Customer, kind: str, status: int) -> None:
    sandbox.order(f"{kind}=quota")
    paths = {"imagine": "/piapi/api/v1/task", "runway": "/runway/v1/image_to_video"}
    reply = customer.chat(JSON) if kind == "chat" else customer.post(paths[kind], {})
    assert reply.status_code == status
    if kind == "chat":
        assert reply.json()["error"]["code"] == "insufficient_quota"


def test_a_rate_limit_says_when_to_come_back(sandbox: Sandbox, customer: Customer) -> None:
    sandbox.order("chat=429")
    reply = customer.chat(JSON)
    assert (reply.headers["Retry-After"], reply.json()["error"]["code"]) == ("1", "rate_limit_exceeded")


@pytest.mark.parametrize(("fault", "said"), [("task-failed", "Failed"), ("task-rejected", "Banned prompt")])
def test_an_accepted_task_can_fail_later_and_costs_nothing_then(sandbox, customer: Customer, fault, said) -> None:
    sandbox.order(f"imagine={fault}")
    task = customer.imagine()
    data = customer.look(task)
    assert data["status"] == "failed"
    assert said in data["error"]["raw_message"]
    assert data["meta"]["usage"] == {"type": "point", "frozen": 0, "consume": 0}
    legacy = customer.fetch(task).json()
    assert (legacy["status"], legacy["task_result"]["image_url"]) == ("failed", "")
    assert sandbox.bill().total == 0


def test_a_task_can_go_on_for_ever(sandbox: Sandbox, customer: Customer) -> None:
    sandbox.order("imagine=never-ends")
    data = customer.look(customer.imagine())
    assert data["status"] == "processing"
    assert data["output"]["progress"] < 100


def test_a_slow_answer_is_a_good_answer(sandbox: Sandbox, customer: Customer) -> None:
    sandbox.order("chat=slow=0.1")
    begun = time.monotonic()
    assert customer.chat(JSON).ok
    assert time.monotonic() - begun >= 0.1


def test_a_request_that_breaks_a_rule_is_refused_even_where_its_answer_was_to_be_spoilt(sandbox, customer) -> None:
    sandbox.order("imagine=no-id")
    assert customer.task("imagine").status_code == 400


def test_calls_are_counted_from_when_the_order_is_placed(sandbox: Sandbox, customer: Customer) -> None:
    assert customer.chat(JSON).ok
    sandbox.order("chat#2=500")
    assert [customer.chat(JSON).status_code for _ in range(3)] == [200, 500, 200]


def test_the_order_placed_first_has_the_call(sandbox: Sandbox, customer: Customer) -> None:
    sandbox.order("chat#1=500")
    sandbox.order("chat=503")
    assert [customer.chat(JSON).status_code for _ in range(2)] == [500, 503]


def test_orders_can_be_withdrawn(sandbox: Sandbox, customer: Customer) -> None:
    sandbox.order("chat=500")
    sandbox.withdraw_orders()
    assert customer.chat(JSON).ok


def test_whoever_hangs_is_let_go_when_the_sandbox_closes(session: requests.Session) -> None:
    import threading

    with Sandbox(quick=True) as sandbox:
        customer = Customer(sandbox, session)
        sandbox.order("chat=hang")
        ended: list[str] = []

        def wait() -> None:
            try:
                customer.chat(JSON, timeout=30)
            except requests.RequestException as error:
                ended.append(type(error).__name__)

        waiting = threading.Thread(target=wait)
        waiting.start()
        while not sandbox.calls():
            time.sleep(0.01)
    waiting.join(timeout=60)
    assert ended == ["ConnectionError"]
