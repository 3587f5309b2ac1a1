"""The stand-in for ComfyUI, as any client of ComfyUI sees it."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from typing import Any
from uuid import uuid4

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from retake.sandbox import comfyui_engine, comfyui_graph
from retake.sandbox.comfyui import ComfySandbox
from retake.sandbox.comfyui_orders import KINDS, PROMPT_FAULTS, SERVER_FAULTS, SHARED, parse_order
from retake.sandbox.orders import Order

GRAPH = {
    "3": {"class_type": "KSampler", "inputs": {"seed": 5, "positive": ["6", 0], "negative": ["7", 0]}},
    "5": {"class_type": "EmptyLatentImage", "inputs": {"width": 128, "height": 64}},
    "7": {"class_type": "CLIPTextEncode", "inputs": {"text": "blurred"}},
    "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "a red fox"}},
    "9": {"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": "a/fox"}},
}


@pytest.fixture
def comfy() -> Iterator[ComfySandbox]:
    with ComfySandbox(pace=0) as started:
        yield started


class Caller:
    """Calls a server with requests."""

    def __init__(self, url: str, session: requests.Session) -> None:
        self.url, self._session = url, session

    def get(self, path: str, **query: str) -> requests.Response:
        return self._session.get(self.url + path, params=query, timeout=10)

    def post(self, path: str, body: Any = None, **files: Any) -> requests.Response:
        return self._session.post(self.url + path, json=body, files=files or None, timeout=10)

    def prompt(self, graph: Any = GRAPH, prompt_id: str | None = None, client_id: str = "c") -> str:
        body = {"prompt": graph, "prompt_id": prompt_id or str(uuid4()), "client_id": client_id}
        reply = self.post("/prompt", body)
        assert (reply.status_code, reply.json()["node_errors"]) == (200, {})
        return str(reply.json()["prompt_id"])


@pytest.fixture
def caller(comfy: ComfySandbox, session: requests.Session) -> Caller:
    return Caller(comfy.url, session)


def ended(comfy: ComfySandbox, caller: Caller, prompt_id: str) -> dict[str, Any]:
    with connect(comfy.url.replace("http", "ws") + "/ws?clientId=none") as waiting:
        while prompt_id not in (found := caller.get(f"/history/{prompt_id}").json()):
            waiting.recv(timeout=60)  # "status", at each end
    return found[prompt_id]


def test_a_prompt_goes_from_the_queue_to_the_history(comfy: ComfySandbox, caller: Caller) -> None:
    comfy.order("comfy.prompt#1=never-ends")
    first, second = caller.prompt(), caller.prompt()
    assert comfy.until(lambda: comfy.executions()[first])
    queue = caller.get("/queue").json()
    assert [[it[1] for it in queue[name]] for name in ("queue_running", "queue_pending")] == [[first], [second]]
    assert caller.get("/prompt").json() == {"exec_info": {"queue_remaining": 2}}
    assert caller.get(f"/history/{first}").json() == {}
    assert [it["status"] for it in caller.get("/api/jobs").json()["jobs"]] == ["pending", "in_progress"]
    assert caller.post(f"/api/jobs/{first}/cancel").json() == {"cancelled": True}
    entry = ended(comfy, caller, second)
    assert entry["status"]["status_str"] == "success"
    assert [message[0] for message in entry["status"]["messages"]] == [
        *("execution_start", "execution_cached", "execution_success")
    ]
    assert caller.get("/history").json().keys() == {first, second}
    assert caller.get(f"/api/jobs/{first}").json()["status"] == "cancelled"
    assert caller.get("/api/jobs", status="completed").json()["jobs"] == [{"id": second, "status": "completed"}]
    assert caller.get(f"/api/jobs/{uuid4()}").status_code == 404


def test_the_picture_shows_the_prompt_and_has_the_graph(comfy: ComfySandbox, caller: Caller) -> None:
    assert comfyui_graph.positive(GRAPH) == "a red fox"
    [file] = ended(comfy, caller, caller.prompt())["outputs"]["9"]["images"]
    assert (file["subfolder"], file["type"]) == ("a", "output")
    with Image.open(BytesIO(caller.get("/api/view", **file).content)) as picture:
        assert picture.size == (128, 64)
        assert json.loads(picture.text["prompt"]) == GRAPH
        assert len(picture.getcolors(2**15)) > 5, "no text is seen"
    assert caller.get("/view", **file | {"filename": "another.png"}).status_code == 404


def test_the_same_id_twice_is_executed_twice(comfy: ComfySandbox, caller: Caller) -> None:
    prompt_id = str(uuid4())
    for n in (1, 2):
        caller.prompt(prompt_id=prompt_id)
        assert comfy.until(lambda n=n: comfy.executions()[prompt_id] == n)
    assert [it["prompt_id"] for it in caller.get("/sandbox/executions").json()] == [prompt_id] * 2


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({}, "no_prompt"),
        ({"prompt": {}}, "invalid_prompt"),
        ({"prompt": {"1": {"inputs": {}}}}, "invalid_prompt"),
        ({"prompt": {"1": {"class_type": "KSampler"}}}, "prompt_no_outputs"),
        ({"prompt": GRAPH, "prompt_id": "5"}, "invalid_prompt_id"),
        ({"prompt": GRAPH, "prompt_id": str(uuid4()).upper()}, "invalid_prompt_id"),
        ({"prompt": {"9": GRAPH["9"]}}, "prompt_outputs_failed_validation"),
    ],
)
def test_an_invalid_prompt_is_refused(comfy: ComfySandbox, caller: Caller, body: Any, kind: str) -> None:
    reply = caller.post("/prompt", body)
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, kind)
    assert ("9" in reply.json()["node_errors"]) == (kind == "prompt_outputs_failed_validation")
    assert comfy.executions() == {}


def test_uploads_are_loaded_by_the_name_that_is_returned(comfy: ComfySandbox, caller: Caller) -> None:
    files = [BytesIO(), BytesIO()]
    for file, colour in zip(files, ("red", "lime"), strict=True):
        Image.new("RGB", (20, 20), colour).save(file, "PNG")
    red, lime = (file.getvalue() for file in files)
    names = [caller.post("/upload/image", image=("a b.png", it)).json()["name"] for it in (red, lime, red)]
    assert names == ["a b.png", "a b (1).png", "a b.png"]
    assert caller.get("/view", filename="a b (1).png", type="input").content == lime
    loading = {f"l{n}": {"class_type": "LoadImage", "inputs": {"image": name}} for n, name in enumerate(names[:2])}
    [file] = ended(comfy, caller, caller.prompt({**GRAPH, **loading}))["outputs"]["9"]["images"]
    with Image.open(BytesIO(caller.get("/view", **file).content)) as picture:
        assert {picture.getpixel((2, 60)), picture.getpixel((66, 60))} == {(255, 0, 0), (0, 255, 0)}
    assert caller.post("/upload/image", nothing=("a.png", red)).status_code == 400


def test_a_websocket_is_told_what_becomes_of_its_prompts_alone(comfy: ComfySandbox, caller: Caller) -> None:
    with connect(comfy.url.replace("http", "ws") + "/ws?clientId=me") as socket_:
        first = json.loads(socket_.recv(timeout=60))
        assert (first["type"], first["data"]["sid"]) == ("status", "me")
        caller.prompt(client_id="somebody else")
        mine = caller.prompt(client_id="me")
        told: list[Any] = []
        while not told or told[-1] != ("executing", None):
            message = socket_.recv(timeout=60)
            event = {"type": "preview", "data": {}} if isinstance(message, bytes) else json.loads(message)
            assert event["data"].get("prompt_id", mine) == mine
            told += [(event["type"], event["data"].get("node"))] if event["type"] != "status" else []
    assert [*dict.fromkeys(name for name, _ in told)] == [
        *("execution_start", "execution_cached", "executing", "progress", "preview", "executed", "execution_success")
    ]


@pytest.mark.parametrize("fault", ["ws-cut", "restart"])
def test_websockets_are_cut(comfy: ComfySandbox, caller: Caller, fault: str) -> None:
    comfy.order(f"comfy.prompt={fault}")
    with connect(comfy.url.replace("http", "ws") + "/ws?clientId=c") as socket_:
        prompt_id = caller.prompt()
        with pytest.raises(ConnectionClosed):
            [socket_.recv(timeout=60) for _ in range(100)]
    assert comfy.until(lambda: comfy.started()[0].outcome != "running")
    assert comfy.started()[0].outcome == ("lost" if fault == "restart" else "success")
    if fault == "restart":
        assert caller.get(f"/history/{prompt_id}").json() == {}


def test_a_restart_forgets_queue_and_history_but_no_execution(comfy: ComfySandbox, caller: Caller) -> None:
    done = caller.prompt()
    ended(comfy, caller, done)
    comfy.order("comfy.prompt#1=never-ends")
    running, waiting = caller.prompt(), caller.prompt()
    assert comfy.until(lambda: comfy.executions()[running])
    assert caller.post("/sandbox/restart").status_code == 204
    assert caller.get("/queue").json() == {"queue_running": [], "queue_pending": []}
    assert caller.get("/history").json() == {}
    assert comfy.until(lambda: comfy.started()[-1].outcome == "lost")
    assert comfy.executions() == {done: 1, running: 1}
    assert waiting not in comfy.executions()


def test_queue_and_history_are_cleared(comfy: ComfySandbox, caller: Caller) -> None:
    done = caller.prompt()
    ended(comfy, caller, done)
    comfy.order("comfy.prompt#1=never-ends")
    running, second, third = (caller.prompt() for _ in range(3))
    assert comfy.until(lambda: comfy.executions()[running])
    caller.post("/queue", {"delete": [second]})
    assert [it[1] for it in caller.get("/queue").json()["queue_pending"]] == [third]
    caller.post("/queue", {"clear": True})
    caller.post("/history", {"delete": [done]})
    caller.post("/interrupt", {"prompt_id": done})
    assert caller.get("/history").json() == {}
    assert [len(it) for it in caller.get("/queue").json().values()] == [1, 0]
    caller.post("/interrupt")
    assert ended(comfy, caller, running)["status"]["messages"][-1][0] == "execution_interrupted"


@pytest.mark.parametrize(
    ("order", "path", "status"),
    [
        ("comfy.stats#1=503", "/system_stats", 503),
        ("comfy.history#1=502-html", "/history/x", 502),
        ("comfy.view#1=500", "/view", 500),
        ("comfy.ws#1=404", "/ws", 404),
        ("comfy.jobs#1=slow=0.01", "/api/jobs", 200),
        ("comfy.queue#1=not-json", "/queue", 200),
    ],
)
def test_an_order_is_met_once(comfy: ComfySandbox, caller: Caller, order: str, path: str, status: int) -> None:
    assert caller.post("/sandbox/orders", {"order": order}).status_code == 201
    assert caller.get(path).status_code == status
    kind = order.partition("#")[0]
    assert [call.outcome for call in comfy.calls(kind)] == [str(status)]
    comfy.withdraw_orders()
    caller.get(path)
    assert len(comfy.calls(kind)) == 2


def test_what_is_not_a_websocket_and_no_path_is_refused(caller: Caller) -> None:
    assert caller.get("/ws").status_code == 426
    assert caller.get("/nowhere").status_code == 404
    assert caller.post("/system_stats").status_code == 405


def test_the_oldest_files_and_entries_go_so_that_memory_is_bounded(
    comfy: ComfySandbox, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comfyui_engine, "FILES_LIMIT", 25)
    monkeypatch.setattr(comfyui_engine, "HISTORY_LIMIT", 2)
    for n in (1, 2, 2, 3):
        caller.post("/upload/image", image=(f"{n}.png", b"0123456789"))
    found = [caller.get("/view", filename=f"{n}.png", type="input").status_code for n in (1, 2, 3)]
    assert found == [404, 200, 200]
    prompts = [caller.prompt() for _ in range(3)]
    ended(comfy, caller, prompts[-1])
    assert [*caller.get("/history").json()] == prompts[1:]


def orders() -> st.SearchStrategy[str]:
    faults = st.sampled_from([*SHARED, *PROMPT_FAULTS, *SERVER_FAULTS, "500", "502-html", "slow=2.5"])
    return st.builds("{}#{}={}".format, st.sampled_from(KINDS), st.integers(1, 99), faults)


@given(orders() | st.text("comfy.prompt#=-restart500", max_size=40))
def test_an_order_survives_being_written_and_read_or_is_a_value_error(text: str) -> None:
    with suppress(ValueError):
        order = parse_order(text)
        assert isinstance(order, Order)
        assert parse_order(str(order)) == order


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("comfy.promt=500", "comfy.promt"),
        ("imagine=500", "comfy.prompt"),
        ("comfy.view=never-ends", "only possible for comfy.prompt"),
        ("comfy.prompt=quota", "lost-output"),
        ("comfy.prompt=403-quotaExceeded", "execution-error"),
    ],
)
def test_a_bad_order_says_what_is_possible(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_order(text)


# --- the command ----------------------------------------------------------------------------------------------------


def _start(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-u", "-m", "retake.sandbox", "comfyui", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_the_command_serves_shows_the_calls_and_ends_with_ctrl_c(session: requests.Session) -> None:
    with _start("--order", "comfy.stats#1=500", "--pace", "0") as process:
        url = process.stdout.readline().split()[-1]
        process.stdout.readline()
        caller = Caller(url, session)
        assert caller.get("/system_stats").status_code == 500
        shown = process.stdout.readline().split()
        prompt_id = caller.prompt()
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    assert shown[1:] == ["comfy.stats", "500", "/system_stats"]
    assert (process.returncode, prompt_id in rest, "Traceback" in rest) == (0, False, False)


def test_a_bad_order_or_a_port_that_is_taken_is_reported_in_one_line() -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        with _start("--port", str(squatter.getsockname()[1])) as process:
            said, _ = process.communicate(timeout=60)
    assert (process.returncode, "in use" in said, "Traceback" in said) == (75, True, False)
    with _start("--order", "upscale=500") as process:
        said, _ = process.communicate(timeout=60)
    assert (process.returncode, "comfy.prompt" in said, "Traceback" in said) == (2, True, False)


def test_the_help_lists_every_kind_of_call_and_every_fault() -> None:
    with _start("--help") as process:
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    names = (*KINDS, *SHARED, *PROMPT_FAULTS, *SERVER_FAULTS)
    assert {name for name in names if not re.search(rf"{re.escape(name)}\b", shown)} == set()
