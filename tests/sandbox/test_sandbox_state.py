"""What a sandbox records, and how a later or another process finds it."""

import os
import socket
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from sandbox_customer import AT_ONCE, Customer

from retake.clock import FakeClock
from retake.sandbox import Pace, Sandbox, VendorTask, billing
from retake.story.documents import Step
from retake.story.settings import Settings
from retake.story.spending import prices


def test_a_later_sandbox_with_the_same_state_serves_the_same_links(tmp_path: Path, session) -> None:
    with Sandbox(tmp_path, pace=AT_ONCE, quick=True) as first:
        customer = Customer(first, session)
        link = customer.look(customer.imagine())["output"]["image_url"]
        picture = customer.get(link).content
    session.close()
    with Sandbox(tmp_path, pace=AT_ONCE, quick=True) as second:
        assert second.url == first.url
        assert Customer(second, session).get(link).content == picture
        assert [task.kind for task in second.tasks()] == ["imagine"]


def test_numbers_go_on_and_ids_do_not_repeat(tmp_path: Path, session) -> None:
    ids = []
    for _ in range(3):
        with Sandbox(tmp_path, pace=AT_ONCE, quick=True) as sandbox:
            ids.append(Customer(sandbox, session).imagine())
            numbers = [call.n for call in sandbox.calls("imagine")]
        session.close()
    assert numbers == [1, 2, 3]
    assert len(set(ids)) == 3


def test_an_order_survives_with_its_count(tmp_path: Path, session) -> None:
    statuses = []
    with Sandbox(tmp_path, quick=True) as sandbox:
        sandbox.order("chat#2=500")
        statuses.append(Customer(sandbox, session).chat("JSON").status_code)
    session.close()
    with Sandbox(tmp_path, quick=True) as sandbox:
        statuses += [Customer(sandbox, session).chat("JSON").status_code for _ in range(2)]
    assert statuses == [200, 500, 200]


def test_a_running_sandbox_with_the_same_state_is_used(tmp_path: Path, session) -> None:
    with Sandbox(tmp_path, quick=True) as first, Sandbox(tmp_path, quick=True) as second:
        assert (second.url, first.serving, second.serving) == (first.url, True, False)
        second.order("chat#1=500")
        assert Customer(second, session).chat("JSON").status_code == 500
        assert [call.outcome for call in second.calls()] == ["500"]
        second.close()
        assert Customer(first, session).chat("JSON").ok


def test_another_port_is_taken_when_the_last_one_is_not_free(tmp_path: Path) -> None:
    with Sandbox(tmp_path, quick=True) as first:
        pass
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", int(first.url.rpartition(":")[2])))
        squatter.listen()
        with Sandbox(tmp_path, quick=True) as second:
            assert second.url != first.url


def test_a_port_that_is_taken_is_an_error(sandbox: Sandbox) -> None:
    with pytest.raises(OSError, match="in use"), Sandbox(port=int(sandbox.url.rpartition(":")[2])):
        pass


def test_the_bill_counts_and_prices_every_kind(sandbox: Sandbox, customer: Customer) -> None:
    origin = customer.imagine()
    customer.imagine("turbo", process_mode="turbo")
    customer.upscale(origin)
    customer.chat("JSON")
    customer.chat("no magic word")
    lines = sandbox.bill().lines
    assert {kind: (line.calls, line.carried_out, line.price) for kind, line in lines.items()} == {
        "imagine": (2, 2, Decimal("0.145")),
        "upscale": (1, 1, Decimal("0.010")),
        "chat": (2, 1, Decimal("0.010")),
    }
    assert sandbox.bill().total == Decimal("0.165")


def test_a_demo_is_billed_what_the_story_counts() -> None:
    counted = prices(Settings())
    assert [counted[step] for step in (Step.CONTENT, Step.IMAGINE, Step.UPSCALE)] == [
        mills / 1000 for mills in (billing.CHAT, billing.IMAGINE["fast"], billing.UPSCALE)
    ]


def test_money_is_taken_at_once_and_given_back_when_the_task_has_failed(session) -> None:
    clock = FakeClock()
    with Sandbox(pace=Pace(10, 10, 10), quick=True, clock=clock) as sandbox:
        sandbox.order("imagine=task-failed")
        Customer(sandbox, session).imagine()
        taken = sandbox.bill().total
        clock.sleep(10)
        assert (taken, sandbox.bill().total) == (Decimal("0.045"), 0)


def test_a_control_is_not_a_call(sandbox: Sandbox, customer: Customer) -> None:
    assert customer.get("/sandbox/health").json()["sandbox"] == "retake"
    assert customer.post("/sandbox/orders", {"order": "chat#1=500"}).status_code == 201
    assert customer.get("/sandbox/orders").json() == ["chat#1=500"]
    assert customer.get("/sandbox/bill").json() == {"lines": {}, "total_usd": 0}
    assert sandbox.calls() == []


def test_orders_and_calls_over_http(sandbox: Sandbox, customer: Customer) -> None:
    refusal = customer.post("/sandbox/orders", {"order": "chat=explode"})
    assert (refusal.status_code, "cut-after" in refusal.json()["error"]) == (400, True)
    customer.post("/sandbox/orders", {"order": "chat=500"})
    assert customer.session.delete(f"{sandbox.url}/sandbox/orders", timeout=60).status_code == 204
    assert customer.chat("JSON").ok
    (call,) = customer.get("/sandbox/calls?kind=chat").json()
    assert (call["kind"], call["n"], call["outcome"], call["carried_out"]) == ("chat", 1, "200", True)


def test_a_path_that_nobody_has_is_refused_by_its_vendor(sandbox: Sandbox, customer: Customer) -> None:
    assert customer.get("/runway/v1/nothing").json()["error"]
    assert customer.post("/piapi/api/v1/nothing", {}).json()["code"] == 404
    assert customer.post("/legnext/api/v1/describe", {}).json()["raw_message"]
    assert customer.get("/nothing").status_code == 404
    assert customer.get("/openai/v1/chat/completions").status_code == 405
    assert {call.kind for call in sandbox.calls()} == {"unknown"}


def test_every_settings_section_that_the_program_needs_is_given(sandbox: Sandbox) -> None:
    points = sandbox.endpoints()
    assert points["midjourney"]["endpoint"] == f"{sandbox.url}/piapi/api/v1/task"
    assert points["midjourney"]["task_endpoint"] == f"{sandbox.url}/piapi/mj/v2/fetch"
    assert sandbox.endpoints("legnext")["midjourney"] == {
        "provider": "legnext",
        "endpoint": f"{sandbox.url}/legnext/api",
    }
    assert points["runwayml"]["endpoint"] == f"{sandbox.url}/runway"
    assert points["openai"]["endpoint"] == f"{sandbox.url}/openai/v1"


def test_many_customers_at_once_get_numbers_of_their_own(sandbox: Sandbox, customer: Customer) -> None:
    from concurrent.futures import ThreadPoolExecutor

    sandbox.order("imagine#1-10=500")
    with ThreadPoolExecutor(8) as crowd:
        replies = list(crowd.map(lambda _: customer.task("imagine", prompt="x").status_code, range(30)))
    assert sorted(replies) == [200] * 20 + [500] * 10
    assert sorted(call.n for call in sandbox.calls()) == list(range(1, 31))


@pytest.mark.parametrize(("text", "pace"), [("0", Pace(0, 0, 0)), ("1,2.5,3", Pace(1, 2.5, 3))])
def test_a_pace_is_read_from_text(text: str, pace: Pace) -> None:
    assert Pace.of(text) == pace


@pytest.mark.parametrize("text", ["", "1,2", "fast", "-1", "nan", "inf"])
def test_an_invalid_pace_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="pace"):
        Pace.of(text)


def test_a_clock_that_is_put_back_does_no_harm() -> None:
    task = VendorTask("id", "imagine", created=1000.0, duration=10.0, fault="", request={}, price=45, seed=1)
    assert task.status(900.0).name == "pending"


@pytest.mark.parametrize("command", ["tick --sandbox", "music serve --sandbox"])
def test_a_command_whose_sandbox_has_no_place_says_so_and_is_not_a_bug(tmp_path: Path, command: str) -> None:
    root = Path(__file__).parents[2]
    (tmp_path / "file").touch()  # a path at which not even root can create a folder
    ran = subprocess.run(
        [sys.executable, "-m", "retake", *command.split()],
        cwd=tmp_path,
        env={
            "PATH": os.defpath,
            "PYTHONPATH": str(root),
            "RETAKE_CONFIG": str(root / "config/config.json"),
            "RETAKE_STORAGE_URL": f"file:{tmp_path}/file/bucket",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 75, ran.stderr
    assert f"cannot keep its state in {tmp_path}/file/bucket.sandbox (Not a directory)" in ran.stderr
    assert "traceback" not in ran.stderr
