"""The ComfyUI stand-in's state in memory (queue, history, files, open WebSockets) and the one thread that executes.

For tests, `executions` lists every execution that was started, whatever its outcome; a restart keeps the list.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from PIL import Image

from retake.sandbox import comfyui_graph
from retake.sandbox.comfyui_socket import ComfySockets

HISTORY_LIMIT = 10_000  # entries, as in ComfyUI
FILES_LIMIT = 512 * 2**20  # bytes of all files; beyond it, the oldest are dropped


@dataclass
class ComfyExecution:
    """One execution of a prompt: `outcome` is running, success, error, interrupted, or lost (by a restart)."""

    prompt_id: str
    outcome: str = "running"


@dataclass(eq=False)
class QueuedPrompt:
    """A prompt from its POST to its end."""

    number: int
    prompt_id: str
    graph: dict[str, Any]
    client_id: str
    fault: str  # of PROMPT_FAULTS or SERVER_FAULTS; "" for none
    stop: threading.Event = field(default_factory=threading.Event)  # set to end it early
    ending: str = "success"

    def item(self) -> list[Any]:
        """Return the prompt in the form of /queue and /history."""
        extra = {"client_id": self.client_id} if self.client_id else {}
        return [self.number, self.prompt_id, self.graph, extra, comfyui_graph.output_nodes(self.graph)]

    def end(self, ending: str) -> None:
        self.ending = ending
        self.stop.set()


class ComfyEngine:
    """Executes one prompt at a time, for `pace` seconds each. Thread safe."""

    def __init__(self, pace: float) -> None:
        self.pace = pace
        self.pending: list[QueuedPrompt] = []
        self.running: QueuedPrompt | None = None
        self.history: dict[str, dict[str, Any]] = {}
        self.files: dict[tuple[str, str, str], bytes] = {}  # by type, subfolder and name
        self.executions: list[ComfyExecution] = []
        self.changed = threading.Condition(threading.RLock())  # held to read or change any of these
        self.sockets = ComfySockets()
        self._numbers = self._bytes = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="comfyui", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the running execution, and return when the thread has ended."""
        with self.changed:
            self._closing = True
            self.restart()
            self.changed.notify_all()
        self._thread.join(timeout=30)

    def submit(self, graph: dict[str, Any], prompt_id: str, client_id: str, fault: str) -> int:
        """Queue a prompt and return its number. A prompt with the same id is executed again, as in ComfyUI."""
        with self.changed:
            self._numbers += 1
            self.pending.append(QueuedPrompt(self._numbers, prompt_id, graph, client_id, fault))
            self.changed.notify_all()
            return self._numbers

    def drop(self, prompt_ids: Collection[str] | None) -> None:
        """Remove prompts from the queue (None: all)."""
        with self.changed:
            self.pending = [it for it in self.pending if prompt_ids is not None and it.prompt_id not in prompt_ids]

    def forget(self, prompt_ids: Collection[str] | None) -> None:
        """Remove prompts from the history (None: all)."""
        with self.changed:
            for prompt_id in [*self.history] if prompt_ids is None else prompt_ids:
                self.history.pop(prompt_id, None)

    def interrupt(self, prompt_id: str | None) -> bool:
        """Interrupt the running execution if it is of that prompt (None: any); return whether it was."""
        with self.changed:
            found = self.running if self.running and prompt_id in (None, self.running.prompt_id) else None
            if found:
                found.end("interrupted")
            return found is not None

    def restart(self) -> None:
        """Forget queue and history, and cut the WebSockets; files stay."""
        with self.changed:
            self.pending.clear()
            self.history.clear()
            if self.running:
                self.running.end("lost")
                self.running = None
        self.sockets.cut()

    def remaining(self) -> dict[str, Any]:
        """Return how many prompts are queued or running, in ComfyUI's form."""
        with self.changed:
            return {"exec_info": {"queue_remaining": len(self.pending) + (self.running is not None)}}

    def store(self, kind: str, folder: str, name: str, data: bytes) -> None:
        """Keep a file; if all files together exceed FILES_LIMIT, drop the oldest."""
        with self.changed:
            self._bytes += len(data) - len(self.files.pop((kind, folder, name), b""))
            self.files[kind, folder, name] = data
            while self._bytes > FILES_LIMIT and len(self.files) > 1:
                self._bytes -= len(self.files.pop(next(iter(self.files))))

    def uploads(self) -> dict[str, bytes]:
        """Return the uploaded files, by the names that LoadImage takes."""
        with self.changed:
            every = [*self.files.items()]
        return {f"{folder}/{name}".lstrip("/"): data for (kind, folder, name), data in every if kind == "input"}

    def _run(self) -> None:
        while prompt := self._next():
            self._broadcast()
            run = PromptRun(self, prompt, self.executions[-1])
            entry = run.entry()
            with self.changed:
                self.changed.notify_all()
                if self.running is not prompt:  # there was a restart
                    self.executions[-1].outcome = "lost"
                    continue
                self.running = None
                self.history[prompt.prompt_id] = entry
                while len(self.history) > HISTORY_LIMIT:
                    del self.history[next(iter(self.history))]
            run.tell("executing", {"node": None})
            self._broadcast()

    def _next(self) -> QueuedPrompt | None:
        with self.changed:
            self.changed.wait_for(lambda: self.pending or self._closing)
            if self._closing:
                return None
            self.running = self.pending.pop(0)
            self.executions.append(ComfyExecution(self.running.prompt_id))
            self.changed.notify_all()
            return self.running

    def _broadcast(self) -> None:
        for one in self.sockets.of():
            one.tell("status", {"status": self.remaining()})


class PromptRun:
    """One execution, from its first event to its entry in the history."""

    def __init__(self, engine: ComfyEngine, prompt: QueuedPrompt, execution: ComfyExecution) -> None:
        self._engine, self._prompt, self._execution = engine, prompt, execution
        self._messages: list[list[Any]] = []
        self._node_id = comfyui_graph.output_nodes(prompt.graph)[0]

    def entry(self) -> dict[str, Any]:
        """Execute the prompt and return its entry in the history."""
        prompt, outputs, reason = self._prompt, dict[str, Any](), ""
        self._note("execution_start", {})
        self._note("execution_cached", {"nodes": []})
        try:
            self._work()
            if prompt.ending == "success":
                outputs = self._save()
        except Exception as error:  # noqa: BLE001 (a graph that cannot be painted is this prompt's failure)
            prompt.ending, reason = "error", f"{type(error).__name__}: {error}"
        self._execution.outcome = prompt.ending
        if prompt.ending == "lost":
            return {}
        for saved, output in outputs.items():
            self.tell("executed", {"node": saved, "display_node": saved, "output": output})
        self._note(*_last_message(prompt, self._node_id, reason))
        done = prompt.ending == "success"
        status = {"status_str": "success" if done else "error", "completed": done, "messages": self._messages}
        return {"prompt": prompt.item(), "outputs": outputs, "status": status, "meta": {}}

    def tell(self, event: str, data: dict[str, Any]) -> dict[str, Any]:
        """Send an event to the prompt's client, and return the data that was sent."""
        told = {**data, "prompt_id": self._prompt.prompt_id, "timestamp": int(time.time() * 1000)}
        for one in self._engine.sockets.of(self._prompt.client_id):
            one.tell(event, told)
        return told

    def _work(self) -> None:
        """Wait as long as an execution takes; the ordered fault happens half-way."""
        prompt, engine = self._prompt, self._engine
        self.tell("executing", {"node": self._node_id, "display_node": self._node_id})
        self.tell("progress", {"value": 1, "max": 2, "node": self._node_id})
        for one in engine.sockets.of(prompt.client_id):
            one.preview(_PREVIEW)
        prompt.stop.wait(engine.pace / 2)
        acts: Mapping[str, Callable[[], object]] = {
            "execution-error": lambda: prompt.end("error"),
            "interrupted": lambda: prompt.end("interrupted"),
            "never-ends": prompt.stop.wait,
            "restart": engine.restart,
            "ws-cut": engine.sockets.cut,
        }
        if prompt.fault in acts and not prompt.stop.is_set():
            acts[prompt.fault]()
        prompt.stop.wait(engine.pace / 2)
        self.tell("progress", {"value": 2, "max": 2, "node": self._node_id})

    def _save(self) -> dict[str, Any]:
        """Store a picture for each output node, and return the outputs as the history lists them."""
        prompt, engine = self._prompt, self._engine
        picture, outputs = comfyui_graph.paint(prompt.graph, engine.uploads()), {}
        for node_id in comfyui_graph.output_nodes(prompt.graph):
            node = prompt.graph[node_id]
            kind = "temp" if node["class_type"].startswith("Preview") else "output"
            folder, _, prefix = str(node.get("inputs", {}).get("filename_prefix") or "ComfyUI").rpartition("/")
            name = f"{prefix}_{prompt.number:05}_{node_id}_.png"
            if prompt.fault != "lost-output":
                engine.store(kind, folder, name, picture)
            outputs[node_id] = {"images": [{"filename": name, "subfolder": folder, "type": kind}]}
        return outputs

    def _note(self, event: str, data: dict[str, Any]) -> None:
        """Send an event and keep it for the history."""
        self._messages.append([event, self.tell(event, data)])


def _last_message(prompt: QueuedPrompt, node_id: str, reason: str) -> tuple[str, dict[str, Any]]:
    if prompt.ending == "success":
        return "execution_success", {}
    where = {"node_id": node_id, "node_type": prompt.graph[node_id]["class_type"], "executed": []}
    if prompt.ending == "error":
        told = {"exception_message": reason or "an error was ordered", "exception_type": "RuntimeError"}
        return "execution_error", {**where, **told, "traceback": [], "current_inputs": {}, "current_outputs": []}
    return "execution_interrupted", where


def _jpeg() -> bytes:
    out = BytesIO()
    Image.new("RGB", (8, 8), (90, 110, 140)).save(out, "JPEG")
    return out.getvalue()


_PREVIEW = _jpeg()
