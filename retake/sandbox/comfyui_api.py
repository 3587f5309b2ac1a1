"""ComfyUI's HTTP API on top of the engine: the answer to each request for which no fault was ordered."""

import re
from collections.abc import Callable, Mapping
from email.message import Message
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from retake.sandbox import comfyui_graph
from retake.sandbox.comfyui_engine import ComfyEngine
from retake.sandbox.http_messages import Request, Response

VERSION = "0.26.0"  # of ComfyUI, whose API this is
_STATUSES = {"success": "completed", "error": "failed", "interrupted": "cancelled"}


class ComfyRoute(NamedTuple):
    method: str
    path: str  # a regular expression; its groups become arguments
    kind: str
    answer: Callable[..., Response]


class ComfyApi:
    """Answers requests. Each path is also served below /api."""

    def __init__(self, engine: ComfyEngine) -> None:
        self._engine = engine
        self._routes = (
            ComfyRoute("POST", "/prompt", "comfy.prompt", self._submit),
            ComfyRoute("GET", "/prompt", "comfy.queue", lambda _: Response(200, engine.remaining())),
            ComfyRoute("GET", "/history", "comfy.history", self._history),
            ComfyRoute("GET", "/history/([^/]+)", "comfy.history", self._history),
            ComfyRoute("POST", "/history", "comfy.history", lambda it: _apply(it, engine.forget)),
            ComfyRoute("GET", "/queue", "comfy.queue", self._queue),
            ComfyRoute("POST", "/queue", "comfy.queue", lambda it: _apply(it, engine.drop)),
            ComfyRoute("GET", "/jobs", "comfy.jobs", self._jobs),
            ComfyRoute("GET", "/jobs/([^/]+)", "comfy.jobs", self._job),
            ComfyRoute("POST", "/jobs/([^/]+)/cancel", "comfy.interrupt", self._cancel),
            ComfyRoute("POST", "/interrupt", "comfy.interrupt", self._interrupt),
            ComfyRoute("GET", "/view", "comfy.view", self._view),
            ComfyRoute("POST", "/upload/image", "comfy.upload", self._upload),
            ComfyRoute("GET", "/system_stats", "comfy.stats", _stats),
            ComfyRoute("POST", "/free", "comfy.other", lambda _: Response(200)),
        )

    def find(self, request: Request) -> tuple[str, Callable[..., Response]]:
        """Return the kind of a request and the function that answers it; that of comfy.prompt takes a `fault`."""
        path = request.path.removeprefix("/api") or "/"
        matches = [(route, match) for route in self._routes if (match := re.fullmatch(route.path, path))]
        for route, match in matches:
            if route.method == request.method:
                return route.kind, partial(route.answer, request, *match.groups())
        return "comfy.other", partial(plain_error, 405 if matches else 404)

    def _submit(self, request: Request, fault: str = "") -> Response:
        fields = request.fields
        if "prompt" not in fields:
            return Response(400, comfyui_graph.refusal("no_prompt", "No prompt provided", "No prompt provided"))
        prompt_id = fields.get("prompt_id", str(uuid4()))
        if not _is_canonical(prompt_id):
            return Response(400, comfyui_graph.refusal("invalid_prompt_id", "prompt_id must be a valid UUID"))
        problem = comfyui_graph.problem(fields["prompt"], self._engine.uploads())
        if problem:
            return Response(400, problem)
        number = self._engine.submit(fields["prompt"], prompt_id, str(fields.get("client_id") or ""), fault)
        return Response(200, {"prompt_id": prompt_id, "number": number, "node_errors": {}})

    def _history(self, request: Request, prompt_id: str = "") -> Response:
        with self._engine.changed:
            if prompt_id:
                found = self._engine.history.get(prompt_id)
                return Response(200, {prompt_id: found} if found else {})
            limit = request.query.get("max_items", "")
            items = [*self._engine.history.items()]
            return Response(200, dict(items[-int(limit) :] if limit.isdecimal() and int(limit) else items))

    def _queue(self, _: Request) -> Response:
        with self._engine.changed:
            running = [self._engine.running.item()] if self._engine.running else []
            return Response(
                200, {"queue_running": running, "queue_pending": [it.item() for it in self._engine.pending]}
            )

    def _all_jobs(self) -> dict[str, dict[str, Any]]:
        with self._engine.changed:
            ended = {it: {"id": it, "status": _status(entry)} for it, entry in self._engine.history.items()}
            running = [self._engine.running] if self._engine.running else []
            waiting = {it.prompt_id: {"id": it.prompt_id, "status": "pending"} for it in self._engine.pending}
            return ended | waiting | {it.prompt_id: {"id": it.prompt_id, "status": "in_progress"} for it in running}

    def _jobs(self, request: Request) -> Response:
        wanted = set(filter(None, request.query.get("status", "").split(",")))
        jobs = [job for job in self._all_jobs().values() if not wanted or job["status"] in wanted]
        first, limit = (request.query.get(name, "") for name in ("offset", "limit"))
        start = int(first) if first.isdecimal() else 0
        page = jobs[start : start + int(limit)] if limit.isdecimal() else jobs[start:]
        return Response(200, {"jobs": page, "pagination": {"offset": start, "total": len(jobs)}})

    def _job(self, _: Request, prompt_id: str) -> Response:
        job = self._all_jobs().get(prompt_id)
        return Response(200, job) if job else Response(404, {"error": "Job not found"})

    def _cancel(self, _: Request, prompt_id: str) -> Response:
        with self._engine.changed:
            waiting = any(it.prompt_id == prompt_id for it in self._engine.pending)
            self._engine.drop([prompt_id])
            return Response(200, {"cancelled": self._engine.interrupt(prompt_id) or waiting})

    def _interrupt(self, request: Request) -> Response:
        self._engine.interrupt(request.fields.get("prompt_id"))
        return Response(200)

    def _view(self, request: Request) -> Response:
        wanted = (request.query.get("type", "output"), request.query.get("subfolder", ""))
        with self._engine.changed:
            data = self._engine.files.get((*wanted, request.query.get("filename", "")))
        return plain_error(404) if data is None else Response(200, data, "image/png")

    def _upload(self, request: Request) -> Response:
        parts = _form(request)
        name, data = parts.get("image", ("", b""))
        if not name:
            return plain_error(400)
        fields = {it: value.decode("utf-8", "replace") for it, (_, value) in parts.items()}
        kind, folder = fields.get("type", "input"), fields.get("subfolder", "")
        with self._engine.changed:
            stem, dot, ending = name.rpartition(".")
            stem, n, first = stem if dot else name, 0, name
            while fields.get("overwrite") != "true" and self._engine.files.get((kind, folder, name), data) != data:
                n += 1
                name = f"{stem} ({n}).{ending}" if dot else f"{first} ({n})"
            self._engine.store(kind, folder, name, data)
        return Response(200, {"name": name, "subfolder": folder, "type": kind})


def plain_error(status: int) -> Response:
    """Return an error in the form of ComfyUI's web server."""
    return Response(status, f"{status}: error".encode(), "text/plain")


def _apply(request: Request, act: Callable[[list[str] | None], None]) -> Response:
    """Call `act` for {"clear": true} or {"delete": [ids]}."""
    if request.fields.get("clear"):
        act(None)
    named = request.fields.get("delete")
    act([str(it) for it in named] if isinstance(named, list) else [])
    return Response(200)


def _stats(_: Request) -> Response:
    system = {"os": "posix", "comfyui_version": VERSION, "python_version": "3", "argv": [], "ram_total": 2**34}
    return Response(200, {"system": system, "devices": [{"name": "cpu", "type": "cpu", "index": None}]})


def _status(entry: Mapping[str, Any]) -> str:
    if entry["status"]["messages"][-1][0] == "execution_interrupted":
        return _STATUSES["interrupted"]
    return _STATUSES[entry["status"]["status_str"]]


def _is_canonical(prompt_id: object) -> bool:
    try:
        return str(UUID(str(prompt_id))) == prompt_id
    except ValueError:
        return False


def _form(request: Request) -> dict[str, tuple[str, bytes]]:
    """Return the file name and bytes of each part of a multipart form, by the part's name."""
    found: dict[str, tuple[str, bytes]] = {}
    boundary = _header(request.headers.get("content-type", "")).get_param("boundary")
    for part in (b"\r\n" + request.body).split(f"\r\n--{boundary}".encode())[1:-1]:
        head, _, data = part.partition(b"\r\n\r\n")
        lines = [line.partition(":")[2] for line in head.decode("utf-8", "replace").splitlines() if line]
        about = next((_header(line) for line in lines if "form-data" in line), Message())
        name = about.get_param("name")
        found[str(name)] = (about.get_filename() or "", data)
    return found


def _header(value: str) -> Message:
    """Return a message whose Content-Type has the parameters of the header `value`."""
    message = Message()
    message["Content-Type"] = message["Content-Disposition"] = value.strip()
    return message
