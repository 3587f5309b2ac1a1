"""The client of ComfyUI over real HTTP and WebSockets, against the sandbox and scripted servers."""

import json
import threading
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any
from uuid import UUID, uuid4, uuid5

import pytest
from errors_doc import rows
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scripted_vendor import LONG_S, Act, ScriptedVendor, closed_port, cut, hang, page, says
from test_errors_table import ACTS, timeout_for
from waiting import eventually
from websockets.sync.server import ServerConnection, serve

from retake.clock import FakeClock
from retake.errors import Code, OutcomeUnknown, PollFailed, Refused, Stopped, TaskFailed, VendorError
from retake.sandbox.comfyui import ComfySandbox
from retake.vendors import ImageFile, ImageServer, PromptPhase
from retake.vendors.comfyui import FILES_LIMIT, ComfyUI, outputs, prompt_id_of
from retake.vendors.comfyui_events import FRAME_LIMIT, TEXT_LIMIT, ComfyEvents, opened

JOB = "0d7c3f39-5f0e-4d5c-9c67-0a4a0b8d2a11"
PROMPT = prompt_id_of(JOB, 1)
CLIENT = "worker-a"
SILENT = ComfyEvents(None)


def graph(text: str = "a red fox", **inputs: Any) -> dict[str, Any]:
    return {
        "3": {"class_type": "KSampler", "inputs": {"seed": 5, "positive": ["6", 0], "latent_image": ["5", 0]}},
        "5": {"class_type": "EmptyLatentImage", "inputs": {"width": 96, "height": 64, "batch_size": 1}},
        "6": {"class_type": "CLIPTextEncode", "inputs": {"text": text}},
        "9": {"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": "retake/job", **inputs}},
    }


@pytest.fixture
def comfy() -> Iterator[ComfySandbox]:
    with ComfySandbox(pace=0) as started:
        yield started


@pytest.fixture
def server(comfy: ComfySandbox) -> ImageServer:
    return ComfyUI(comfy.url, timeout_s=60.0, sleep=lambda _: None)


def executed(server: ImageServer, prompt_id: str = PROMPT) -> Any:
    with server.listen(CLIENT) as events:
        server.submit(graph(), prompt_id, CLIENT)
        return server.wait(prompt_id, events, timeout_s=10.0)


def test_the_id_of_a_prompt_follows_from_job_and_attempt() -> None:
    assert prompt_id_of(JOB, 2) == str(uuid5(UUID(JOB), "2"))
    assert prompt_id_of(JOB.upper(), 2) == prompt_id_of(JOB, 2)
    with pytest.raises(ValueError, match="UUID"):
        prompt_id_of("../etc", 1)


def test_a_prompt_is_executed_and_its_picture_fetched(comfy: ComfySandbox, server: ImageServer) -> None:
    assert server.alive()
    assert server.state(PROMPT).phase is PromptPhase.GONE
    state = executed(server)
    assert (state.phase, state.failure) == (PromptPhase.DONE, None)
    [file] = state.files
    assert (file.subfolder, file.type) == ("retake", "output")
    with Image.open(BytesIO(server.view(file))) as picture:
        assert (picture.size, json.loads(picture.text["prompt"])["6"]) == ((96, 64), graph()["6"])
    assert comfy.executions() == {PROMPT: 1}
    assert server.state(PROMPT) == state


def test_an_event_says_when_to_look() -> None:
    with ComfySandbox(pace=0.3) as comfy:
        state = executed(ComfyUI(comfy.url, timeout_s=60.0))
        assert state.phase is PromptPhase.DONE
        assert len(comfy.calls("comfy.history")) < 5


@pytest.mark.parametrize("order", ["comfy.ws=404", "comfy.ws=hang", "comfy.ws=ws-cut", "comfy.prompt#1=ws-cut"])
def test_without_a_websocket_the_server_is_polled(comfy: ComfySandbox, order: str) -> None:
    comfy.order(order)
    server = ComfyUI(comfy.url, timeout_s=2.0 if order.endswith("=hang") else 60.0, sleep=lambda _: None)
    assert executed(server).phase is PromptPhase.DONE
    assert comfy.executions() == {PROMPT: 1}


@pytest.mark.parametrize(
    ("fault", "phase", "said"),
    [
        (
            "execution-error",
            PromptPhase.FAILED,
            r"failed at node 9 \(SaveImage\): .*: an error was ordered",
        ),
        ("interrupted", PromptPhase.INTERRUPTED, r"interrupted in prompt .* at node 9 \(SaveImage\)"),
    ],
)
def test_what_ends_badly_says_where(
    comfy: ComfySandbox, server: ImageServer, fault: str, phase: Any, said: str
) -> None:
    comfy.order(f"comfy.prompt={fault}")
    state = executed(server)
    assert (state.phase, state.files) == (phase, ())
    with pytest.raises(TaskFailed, match=said):
        raise state.failure


def test_an_output_that_is_lost_is_a_failed_task(comfy: ComfySandbox, server: ImageServer) -> None:
    comfy.order("comfy.prompt=lost-output")
    [file] = executed(server).files
    with pytest.raises(TaskFailed, match="does not have it"):
        server.view(file)


def test_after_a_restart_a_prompt_is_gone(comfy: ComfySandbox, server: ImageServer) -> None:
    comfy.order("comfy.prompt#1=restart")
    assert executed(server).phase is PromptPhase.GONE
    assert executed(server).phase is PromptPhase.DONE
    assert [it.outcome for it in comfy.started()] == ["lost", "success"]


def test_a_prompt_that_never_ends_is_still_running_when_the_time_is_over(
    comfy: ComfySandbox, server: ImageServer
) -> None:
    comfy.order("comfy.prompt#1=never-ends")
    second = prompt_id_of(JOB, 2)
    server.submit(graph(), PROMPT, CLIENT)
    server.submit(graph(), second, CLIENT)
    assert comfy.until(lambda: comfy.executions()[PROMPT])
    with server.listen(CLIENT) as events:
        assert server.wait(PROMPT, events, timeout_s=0).phase is PromptPhase.RUNNING
        assert server.state(second).phase is PromptPhase.WAITING
        server.cancel(second)
        assert server.state(second).phase is PromptPhase.GONE
        assert server.state(PROMPT).phase is PromptPhase.RUNNING
        server.cancel(PROMPT)
        assert server.wait(PROMPT, events, timeout_s=10).phase is PromptPhase.INTERRUPTED
    server.cancel(PROMPT)  # that it has ended is no error
    assert comfy.executions() == {PROMPT: 1}


@pytest.mark.parametrize(("fault", "executions"), [("cut-after", 1), ("cut-before", 0), ("not-json", 1), ("no-id", 1)])
def test_after_a_lost_answer_queue_and_history_know(
    comfy: ComfySandbox, server: ImageServer, fault: str, executions: int
) -> None:
    comfy.order(f"comfy.prompt#1={fault}")
    with server.listen(CLIENT) as events:
        with pytest.raises(OutcomeUnknown):
            server.submit(graph(), PROMPT, CLIENT)
        state = server.wait(PROMPT, events, timeout_s=10)
    assert state.phase is (PromptPhase.DONE if executions else PromptPhase.GONE)
    assert comfy.executions().total() == executions
    assert len(comfy.calls("comfy.prompt")) == 1


def test_a_refused_graph_names_its_first_error(comfy: ComfySandbox, server: ImageServer) -> None:
    with pytest.raises(Refused, match=r"node 9 \(SaveImage\): Bad linked input.*: images, 77") as caught:
        server.submit(graph(images=["77", 0]), PROMPT, CLIENT)
    assert caught.value.error_class == "B"
    with pytest.raises(Refused, match="Prompt has no outputs"):
        server.submit({"6": graph()["6"]}, PROMPT, CLIENT)
    with pytest.raises(Refused, match="valid UUID"):
        server.submit(graph(), "not a UUID", CLIENT)
    assert comfy.executions() == {}


def test_a_picture_is_uploaded_under_the_name_that_the_server_gives(comfy: ComfySandbox, server: ImageServer) -> None:
    pictures = [BytesIO(), BytesIO()]
    for data, colour in zip(pictures, ("red", "blue"), strict=True):
        Image.new("RGB", (8, 8), colour).save(data, "PNG")
    red, blue = (data.getvalue() for data in pictures)
    assert [server.upload("person.png", it) for it in (red, red, blue)] == ["person.png"] * 2 + ["person (1).png"]
    outfit = {"1": {"class_type": "LoadImage", "inputs": {"image": "person (1).png"}}, **graph()}
    server.submit(outfit, PROMPT, CLIENT)
    assert server.wait(PROMPT, SILENT, timeout_s=10.0).phase is PromptPhase.DONE
    with pytest.raises(Refused, match=r"Invalid image file: person \(2\)\.png"):
        server.submit({"1": {"class_type": "LoadImage", "inputs": {"image": "person (2).png"}}, **graph()}, PROMPT, "")


def test_what_is_to_be_done_meanwhile_is_done_and_may_end_the_wait(comfy: ComfySandbox, server: ImageServer) -> None:
    comfy.order("comfy.prompt=never-ends")

    def stop() -> None:
        raise Stopped("a signal")

    with server.listen(CLIENT) as events:
        server.submit(graph(), PROMPT, CLIENT)
        with pytest.raises(Stopped):
            server.wait(PROMPT, events, timeout_s=60, meanwhile=stop)


# --- the answers of servers -----------------------------------------------------------------------------------------

NOTHING = says(200, {})
EMPTY = says(200, {"queue_running": [], "queue_pending": []})


def done(status: Any = None, **outputs: Any) -> Act:
    entry = {"outputs": {"9": outputs or {"images": [{"filename": "a.png", "subfolder": "", "type": "output"}]}}}
    return says(200, {PROMPT: entry if status is None else {**entry, "status": status}})


def client(vendor: ScriptedVendor, **settings: Any) -> ComfyUI:
    return ComfyUI(vendor.url, **{"timeout_s": 5.0, "sleep": lambda _: None, **settings})


def test_a_prompt_that_ends_between_history_and_queue_is_found(vendor: ScriptedVendor) -> None:
    vendor.script = [NOTHING, EMPTY, done()]
    assert client(vendor).state(PROMPT).files == (ImageFile("a.png", "", "output"),)


@pytest.mark.parametrize(
    ("running", "pending", "phase"),
    [
        ([PROMPT], ["another"], PromptPhase.RUNNING),
        (["another"], [PROMPT], PromptPhase.WAITING),
        ([], [PROMPT, "another"], PromptPhase.WAITING),
        ([], [PROMPT], PromptPhase.RUNNING),
    ],
)
def test_a_prompt_that_is_alone_in_the_queue_is_begun(
    vendor: ScriptedVendor, running: list[str], pending: list[str], phase: PromptPhase
) -> None:
    queue = {"queue_running": [[1, it] for it in running], "queue_pending": [[2, it] for it in pending]}
    vendor.script = [NOTHING, says(200, queue)]
    assert client(vendor).state(PROMPT).phase is phase


@pytest.mark.parametrize(
    "second",
    [
        says(200, {}),
        says(200, {"queue_running": [], "queue_pending": None}),
        says(200, {"queue_running": [5], "queue_pending": []}),
        says(200, {"queue_running": [[]], "queue_pending": []}),
    ],
)
def test_a_queue_that_cannot_be_read_is_not_an_empty_one(vendor: ScriptedVendor, second: Act) -> None:
    vendor.script = [NOTHING, second]
    with pytest.raises(PollFailed, match="no usable queue_"):
        client(vendor).state(PROMPT)


@pytest.mark.parametrize(
    ("status", "phase"),
    [
        (None, PromptPhase.DONE),
        ({"status_str": "success", "completed": True, "messages": []}, PromptPhase.DONE),
        ({"status_str": "error", "messages": [["execution_interrupted", {}]]}, PromptPhase.INTERRUPTED),
        ({"status_str": "error", "messages": [["execution_error", {"exception_message": [[]]}]]}, PromptPhase.FAILED),
        ({"status_str": "error", "messages": [[], 5, ["execution_start", {}]]}, PromptPhase.FAILED),
        ({"status_str": 5, "messages": {}}, PromptPhase.FAILED),
    ],
)
def test_the_status_in_the_history_is_read(vendor: ScriptedVendor, status: Any, phase: PromptPhase) -> None:
    vendor.script = [done(status)]
    state = client(vendor).state(PROMPT)
    assert state.phase is phase
    assert (state.failure is None) == (phase is PromptPhase.DONE)


def test_a_success_without_a_file_is_a_failure(vendor: ScriptedVendor) -> None:
    vendor.script = [done({"status_str": "success"}, text=["no file"])]
    state = client(vendor).state(PROMPT)
    assert (state.phase, "without an output" in str(state.failure)) == (PromptPhase.FAILED, True)


def test_files_are_found_in_every_list_saved_ones_first() -> None:
    shown = {"images": [{"filename": "p.png", "subfolder": "", "type": "temp"}], "text": ["x"], "n": 5}
    saved = {"gifs": [{"filename": "v.mp4", "subfolder": "f", "type": "output"}, {"filename": ""}, {"name": "x"}, None]}
    files = outputs({"outputs": {"1": shown, "2": saved, "3": None, "4": shown}})
    assert files == (ImageFile("v.mp4", "f", "output"), ImageFile("p.png", "", "temp"))
    many = [{"filename": f"{n}.png"} for n in range(10 * FILES_LIMIT)]
    assert len(outputs({"outputs": {"1": {"images": many}}})) == FILES_LIMIT


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("ab/", max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["outputs", "images", "filename", "type"]), inner)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["outputs", "status"]), anything))
def test_any_entry_of_a_history_has_files_or_none(entry: dict[str, Any]) -> None:
    assert all(isinstance(part, str) for file in outputs(entry) for part in file)


def test_a_server_that_is_silent_is_given_time(vendor: ScriptedVendor) -> None:
    clock = FakeClock()
    server = client(vendor, monotonic=lambda: clock.now().timestamp(), sleep=clock.sleep)
    vendor.script = [cut, page(502), done()]
    assert server.wait(PROMPT, SILENT, timeout_s=60, silence_s=60).phase is PromptPhase.DONE
    for patience, looks in ((0.0, 1), (2.5, 4)):
        vendor.script, before = [cut] * 9, len(vendor.seen)
        with pytest.raises(PollFailed):
            server.wait(PROMPT, SILENT, timeout_s=60, silence_s=patience)
        assert len(vendor.seen) - before == looks


def test_a_server_that_answers_nothing_of_use_is_not_alive(vendor: ScriptedVendor, deaf_url: str) -> None:
    vendor.script = [page(200), says(200, {"system": 5}), says(500), hang]
    assert [client(vendor, timeout_s=0.3).alive() for _ in range(4)] == [False] * 4
    assert not ComfyUI(deaf_url, timeout_s=0.1).alive()
    assert not ComfyUI(closed_port(), timeout_s=1.0).alive()


CALLS: dict[str, Callable[[ComfyUI], object]] = {
    "submit": lambda server: server.submit(graph(), PROMPT, CLIENT),
    "look": lambda server: server.state(PROMPT),
    "upload": lambda server: server.upload("a.png", b"abc"),
    "view": lambda server: server.view(ImageFile("a.png", "", "output")),
}
OWN = {"error": {"type": "x", "message": "Prompt is wrong", "details": ""}, "node_errors": {}}


def act_for(what: str) -> Act:
    if what in ACTS:
        return ACTS[what]
    if what == "200 JSON with another id":
        return says(200, {"prompt_id": str(uuid4()), "number": 1, "node_errors": {}})
    status, _, body = what.partition(" ")
    if body == "HTML":
        return page(int(status))
    return says(int(status), {"JSON": OWN, "other JSON": {"detail": "Internal"}, "empty": ""}[body])


@pytest.mark.parametrize(("call", "what", "kind", "error_class", "code"), rows("ComfyUI"))
def test_an_error_is_what_the_table_says(
    call: str, what: str, kind: str, error_class: str, code: str, vendor: ScriptedVendor, deaf_url: str
) -> None:
    urls = {
        "connection refused": closed_port(),
        "no connection in time": deaf_url,
        "the endpoint is not a URL": "nowhere",
    }
    vendor.script = [] if what in urls else [act_for(what)]
    server = ComfyUI(urls.get(what, vendor.url), timeout_s=timeout_for(what), file_timeout_s=timeout_for(what))
    with pytest.raises(VendorError) as caught:
        CALLS[call](server)
    error = caught.value
    assert (type(error).__name__, error.error_class.value, error.code.name) == (kind, error_class, code), str(error)
    assert eventually(lambda: len(vendor.seen) == (what not in urls)), "asked more than once"
    assert error.__suppress_context__ or error.__context__ is None
    assert "sig=" not in str(error)


# --- the messages of servers ----------------------------------------------------------------------------------------


@pytest.fixture
def telling() -> Iterator[Callable[[Callable[[ServerConnection], None]], str]]:
    """Yield a function that starts a server with a scripted WebSocket, and returns its URL."""
    started = []

    def start(act: Callable[[ServerConnection], None]) -> str:
        server = serve(act, "127.0.0.1", 0)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        started.append((server, thread))
        return f"http://127.0.0.1:{server.socket.getsockname()[1]}"

    yield start
    for server, thread in started:
        server.shutdown()
        thread.join(5)


def event(kind: str, **data: Any) -> str:
    return json.dumps({"type": kind, "data": data})


def test_what_is_not_an_end_of_this_prompt_is_skipped(telling: Any) -> None:
    junk: list[str | bytes] = [
        *(b"\x00" * 100, "", "[]", "null", "{", "[" * 100_000, '{"data": 5}', "1" * 10_000),
        event("executing", node=None, prompt_id="another"),
        event("executing", node="9", prompt_id=PROMPT),
        event("execution_success", prompt_id=PROMPT),
        event("executing", node=None, prompt_id=PROMPT, more="x" * TEXT_LIMIT),
    ]

    def act(connection: ServerConnection) -> None:
        for message in [*junk, event("executing", node=None, prompt_id=PROMPT)]:
            connection.send(message)
        connection.recv()

    events = ComfyEvents(opened(telling(act), CLIENT, 5.0))
    assert events.ended(PROMPT, 10.0)
    events.close()
    assert (events.open, events.ended(PROMPT, 10.0)) == (False, False)


def test_a_server_that_says_ended_all_the_time_is_not_asked_all_the_time(vendor: ScriptedVendor) -> None:
    class Liar:
        open = True

        def ended(self, prompt_id: str, timeout_s: float) -> bool:
            return True

    clock = FakeClock()
    server = client(vendor, monotonic=lambda: clock.now().timestamp(), sleep=clock.sleep)
    running = says(200, {"queue_running": [[1, PROMPT, {}, {}, []]], "queue_pending": []})
    vendor.script = [NOTHING, running] * 100
    assert server.wait(PROMPT, Liar(), timeout_s=3).phase is PromptPhase.RUNNING
    assert len(vendor.seen) < 20


@pytest.mark.parametrize("message", ["x" * (FRAME_LIMIT + 1), b"x" * (FRAME_LIMIT + 1)])
def test_a_message_that_is_too_long_ends_the_websocket(telling: Any, message: str | bytes) -> None:
    events = ComfyEvents(opened(telling(lambda connection: connection.send(message)), CLIENT, 5.0))
    assert (events.ended(PROMPT, 10.0), events.open) == (False, False)


def test_a_server_that_never_stops_telling_does_not_hold_a_wait(telling: Any) -> None:
    stop = threading.Event()

    def act(connection: ServerConnection) -> None:
        while not stop.is_set():
            connection.send(event("progress", value=1, max=2, prompt_id=PROMPT))

    events = ComfyEvents(opened(telling(act), CLIENT, 5.0))
    assert not events.ended(PROMPT, 0.2)
    stop.set()
    assert events.open
    events.close()


@pytest.mark.parametrize("act", [hang, cut, page(200), page(404), says(302, Location="/elsewhere"), says(101)])
def test_a_websocket_that_is_not_opened_is_ignored(vendor: ScriptedVendor, act: Act) -> None:
    vendor.script = [act]
    assert opened(vendor.url, CLIENT, 1.0 if act is hang else LONG_S) is None
    assert [seen.target for seen in vendor.seen] == [f"/ws?clientId={CLIENT}"]


@pytest.mark.parametrize("url", ["nowhere", "http://[", "http://127.0.0.1:99999999", "https://127.0.0.1:1", ""])
def test_an_invalid_address_opens_nothing(url: str) -> None:
    assert opened(url, CLIENT, 0.5) is None


def test_the_error_of_a_closed_server_says_what_to_check() -> None:
    with pytest.raises(Refused, match=r"ComfyUI at http://127.0.0.1:\d+ was asked to execute a prompt: no conn") as it:
        ComfyUI(closed_port()).submit(graph(), PROMPT, CLIENT)
    assert it.value.code is Code.NETWORK
