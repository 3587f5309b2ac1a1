"""Stand-in for PiAPI's Midjourney: the unified API, the older fetch, and the history of tasks.

Formats from piapi.ai's pages on imagine, upscale, unified webhook, user history and the legacy Midjourney API. Assumed,
because undocumented: the fields of a history's items, and the bodies of 402 and 429.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from retake.sandbox.billing import IMAGINE, POINTS_PER_MILL, UPSCALE, point_usage
from retake.sandbox.http_messages import Request, Response, error_response
from retake.sandbox.task import TaskStatus, VendorTask
from retake.sandbox.task_service import ApiCall, TaskService, is_picture_task

CREDIT_MILLS = 100_000  # of the account at the start
_RATIO = re.compile(r"[1-9]\d{0,2}:[1-9]\d{0,2}")
_FLAG_SEED = re.compile(r"--seed\s+(\d{1,10})\b")
BANNED = "Banned prompt detected: our AI moderator thinks this prompt is probably against the community standards"
_FAILURES = {"task-failed": "Failed to process your command, please try again later", "task-rejected": BANNED}
_LEGACY_STATUSES = {"completed": "finished"}
_NO_OUTPUT: dict[str, Any] = {
    **dict.fromkeys(("image_url", "discord_image_url", "seed"), ""),
    **dict.fromkeys(("image_urls", "temporary_image_urls", "intermediate_image_urls")),
    "actions": [],
    "progress": 0,
}
_ERRORS = {
    400: "invalid request",
    401: "Invalid API key",
    402: "insufficient credits: top up your account",
    404: "not found",
    429: "too many requests, please slow down",
    500: "internal server error",
}


def kind_of(request: Request) -> str:
    """Return the kind of call that posts a task; an unusable one counts as imagine."""
    return "upscale" if request.fields.get("task_type") == "upscale" else "imagine"


def error(status: int, message: str = "") -> Response:
    """Return PiAPI's error body, with `message` in both places where clients look for it."""
    text = message or _ERRORS.get(status, f"request failed with status {status}")
    data = {"task_id": "", "error": {"code": status, "raw_message": text, "message": text, "detail": None}}
    return error_response(status, {"code": status, "data": data, "message": text})


def create(call: ApiCall) -> Response:
    """POST /api/v1/task: start an imagine or an upscale."""
    body = call.request.fields
    if not call.request.is_json_object:
        return error(400, "the body must be a JSON object sent as application/json")
    if body.get("model") != "midjourney":
        return error(400, "model must be midjourney")
    if not isinstance(body.get("input"), dict):
        return error(400, "input must be an object")
    start = {"imagine": _imagine, "upscale": _upscale}.get(str(body.get("task_type")))
    if start is None:
        return error(400, "task_type must be imagine or upscale")
    return start(call, body["input"])


def get(call: ApiCall) -> Response:
    """GET /api/v1/task/{id}."""
    task = call.service.picture_task(call.args[0])
    return _ok(_unified(call.service, task), task) if task else error(404, "task not found")


def fetch(call: ApiCall) -> Response:
    """POST /mj/v2/fetch, the older API: no envelope, "finished" for completed, times in epoch seconds."""
    task = call.service.picture_task(call.request.fields.get("task_id"))
    if task is None:
        return error(400, "task not found: task_id is missing or unknown")
    return Response(200, _legacy(call.service, task), task_id=task.id)


def histories(call: ApiCall) -> Response:
    """GET /api/open/tasks/histories: the tasks of a time window, newest first, in pages."""
    query = call.request.query
    try:
        page, size = int(query.get("page", 1)), int(query.get("page_size", 10))
        start, end = float(query.get("start_time", 0)), float(query.get("end_time", "inf"))
    except ValueError:
        return error(400, "page, page_size, start_time and end_time must be numbers")
    if page < 1 or not 1 <= size <= 100:
        return error(400, "page begins with 1, page_size is 1 to 100")
    wanted = query.get("model", "mj") in ("mj", "midjourney")
    tasks = [task for task in call.service.database.tasks() if wanted and is_picture_task(task)]
    found = [task for task in reversed(tasks) if int(start) <= int(task.created) <= end]
    items = [
        {key: value for key, value in _unified(call.service, task).items() if key not in ("meta", "detail", "logs")}
        | {"created_at": _iso(task.created)}
        for task in found[(page - 1) * size : page * size]
    ]
    return _ok({"data": items, "page": page, "size": size, "total": len(found)})


def account(call: ApiCall) -> Response:
    """GET /account/info: the credit left."""
    tasks = [task for task in call.service.database.tasks() if is_picture_task(task)]
    left = CREDIT_MILLS - sum(task.owed(call.service.now()) for task in tasks)
    data = {"account_name": "sandbox", "credits": left * POINTS_PER_MILL, "equivalent_in_usd": left / 1000}
    return _ok(data)


def _imagine(call: ApiCall, fields: dict[str, Any]) -> Response:
    prompt, mode = fields.get("prompt"), fields.get("process_mode") or "fast"
    if not isinstance(prompt, str) or not prompt.strip():
        return error(400, "input.prompt is required")
    if mode not in IMAGINE:
        return error(400, "input.process_mode must be relax, fast or turbo")
    if not _RATIO.fullmatch(str(fields.get("aspect_ratio") or "1:1")):
        return error(400, "input.aspect_ratio must look like 16:9")
    flag = _FLAG_SEED.search(prompt)
    return _accept(call, "imagine", IMAGINE[mode], seed=int(flag[1]) if flag else None)


def _upscale(call: ApiCall, fields: dict[str, Any]) -> Response:
    origin = call.service.picture_task(fields.get("origin_task_id"))
    if origin is None or origin.kind != "imagine":
        return error(400, "input.origin_task_id is not an imagine task")
    if not call.service.status(origin).completed:
        return error(400, "the origin task is not finished")
    if fields.get("index") not in ("1", "2", "3", "4"):
        return error(400, "input.index must be a string from 1 to 4 for an imagine task")
    return _accept(call, "upscale", UPSCALE, seed=origin.seed)


def _accept(call: ApiCall, kind: str, price: int, seed: int | None) -> Response:
    task = call.service.accept(call, kind, price=price, seed=seed)
    return _ok(_unified(call.service, task) | {"status": "pending", "output": dict(_NO_OUTPUT)}, task, price)


def _ok(data: dict[str, Any], task: VendorTask | None = None, price: int = 0) -> Response:
    body = {"code": 200, "data": data, "message": "success"}
    return Response(200, body, task_id=task.id if task else "", price=price)


def _unified(service: TaskService, task: VendorTask) -> dict[str, Any]:
    now = service.now()
    status = task.status(now)
    failure = _failure(task, status)
    code = 10000 if failure else 0
    return {
        "task_id": task.id,
        "model": "midjourney",
        "task_type": task.kind,
        "status": status.name,
        "config": task.request.get("config") or {},
        "input": task.request["input"],
        "output": _output(service, task, status),
        "meta": _meta(task, now, _iso),
        "detail": None,
        "logs": [],
        "error": {"code": code, "raw_message": failure, "message": failure and "task failed", "detail": None},
    }


def _legacy(service: TaskService, task: VendorTask) -> dict[str, Any]:
    now = service.now()
    status = task.status(now)
    failure, progress, price = _failure(task, status), round(status.progress * 100), task.price * status.completed
    return {
        "task_id": task.id,
        "status": _LEGACY_STATUSES.get(status.name, status.name),
        "process_time": int(max(0.0, now - task.created)),
        "progress": progress,
        "meta": {"task_type": task.kind, **_meta(task, now, lambda time: int(time or 0))},
        "task_result": {
            **_output(service, task, status),
            "task_progress": progress,
            "image_id": task.id if status.completed else "",
            "quota_used": price,
            "credit": price,
            "message": failure,
            "error_messages": [failure] if failure else [],
            "need_retry": task.fault == "task-failed" and status.ended,
        },
    }


def _output(service: TaskService, task: VendorTask, status: TaskStatus) -> dict[str, Any]:
    output = _NO_OUTPUT | {"progress": round(status.progress * 100)}
    if not status.completed:
        return output
    output["seed"] = str(task.seed)
    if task.kind == "upscale":
        return output | {"image_url": service.link(task, "picture.png"), "actions": ["2x", "4x", "reroll"]}
    actions = [f"{action}{index}" for action in ("upscale", "variation") for index in (1, 2, 3, 4)]
    return output | {
        "image_url": service.link(task, "grid.png"),
        "temporary_image_urls": service.singles_of(task),
        "actions": ["reroll", *actions],
    }


def _meta(task: VendorTask, now: float, as_time: Callable[[float | None], object]) -> dict[str, Any]:
    started, ended = task.times(now)
    return {
        "created_at": as_time(task.created),
        "started_at": as_time(started),
        "ended_at": as_time(ended),
        "usage": point_usage(task, task.status(now), POINTS_PER_MILL),
        "is_using_private_pool": False,
        "model_version": "unknown",
        "process_mode": task.request["input"].get("process_mode") or "fast",
        "failover_triggered": False,
    }


def _failure(task: VendorTask, status: TaskStatus) -> str:
    return _FAILURES.get(task.fault, "") if status.name == "failed" else ""


def _iso(time: float | None) -> str:
    if time is None:
        return "0001-01-01T00:00:00Z"  # how a Go server prints a missing time
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
