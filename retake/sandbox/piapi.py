"""Stand-in of PiAPI's Midjourney: the unified API, the older fetch, and the history of tasks.

Shapes from piapi.ai's pages on imagine, upscale, unified webhook, user history and the legacy Midjourney API. The
fields of a history's items and the bodies of 402 and 429 are not documented: those are our assumption.
"""

import re
from datetime import UTC, datetime
from typing import Any

from retake.sandbox.billing import IMAGINE, POINTS_PER_MILL, UPSCALE
from retake.sandbox.http_messages import Request, Response
from retake.sandbox.task import STARTS_AT, TaskStatus, VendorTask
from retake.sandbox.task_service import ApiCall, TaskService

CREDIT_MILLS = 100_000  # what the account holds at first
_RATIO = re.compile(r"[1-9]\d{0,2}:[1-9]\d{0,2}")
_FLAG_SEED = re.compile(r"--seed\s+(\d{1,10})\b")
BANNED = "Banned prompt detected: our AI moderator thinks this prompt is probably against the community standards"
_FAILURES = {"task-failed": "Failed to process your command, please try again later", "task-rejected": BANNED}
_LEGACY_WORDS = {"completed": "finished"}
_TEXTS = {
    400: "invalid request",
    401: "Invalid API key",
    402: "insufficient credits: top up your account",
    404: "not found",
    429: "too many requests, please slow down",
    500: "internal server error",
}


def kind_of(request: Request) -> str:
    """Which kind of call a POST of a task is; an unusable one counts as imagine."""
    return "upscale" if request.fields.get("task_type") == "upscale" else "imagine"


def error(status: int, message: str = "") -> Response:
    """PiAPI's error body, with `message` in both places where clients look for one."""
    text = message or _TEXTS.get(status, f"request failed with status {status}")
    data = {"task_id": "", "error": {"code": status, "raw_message": text, "message": text, "detail": None}}
    return Response(status, {"code": status, "data": data, "message": text}, headers=_retry_after(status))


def quota() -> Response:
    return error(402)


def create(visit: ApiCall) -> Response:
    """POST /api/v1/task: start an imagine or an upscale."""
    body = visit.request.fields
    if refused := _refused(visit.request, body):
        return refused
    start = {"imagine": _imagine, "upscale": _upscale}.get(str(body.get("task_type")))
    if start is None:
        return error(400, "task_type must be imagine or upscale")
    return start(visit, body["input"])


def get(visit: ApiCall) -> Response:
    """GET /api/v1/task/{id}."""
    task = _midjourney_task(visit.studio, visit.args[0])
    if not _key(visit.request) or task is None:
        return error(404, "task not found") if _key(visit.request) else error(401)
    return _good(_unified(visit.studio, task), task)


def fetch(visit: ApiCall) -> Response:
    """POST /mj/v2/fetch, the older API: no envelope, «finished» for done, moments in epoch seconds."""
    if not _key(visit.request):
        return error(401)
    task = _midjourney_task(visit.studio, visit.request.fields.get("task_id"))
    if task is None:
        return error(400, "task not found: task_id is missing or unknown")
    return Response(200, _legacy(visit.studio, task), task_id=task.id)


def histories(visit: ApiCall) -> Response:
    """GET /api/open/tasks/histories: the tasks of a time window, the newest first, a page at a time."""
    if not _key(visit.request):
        return error(401)
    query = visit.request.query
    try:
        page, size = int(query.get("page", 1)), int(query.get("page_size", 10))
        start, end = float(query.get("start_time", 0)), float(query.get("end_time", "inf"))
    except ValueError:
        return error(400, "page, page_size, start_time and end_time must be numbers")
    if page < 1 or not 1 <= size <= 100:
        return error(400, "page begins with 1, page_size is 1 to 100")
    wanted = query.get("model", "mj") in ("mj", "midjourney")
    tasks = [task for task in visit.studio.database.tasks() if wanted and _is_own(task)]
    found = [task for task in reversed(tasks) if int(start) <= int(task.created) <= end]
    items = [_history_item(visit.studio, task) for task in found[(page - 1) * size : page * size]]
    return _good({"data": items, "page": page, "size": size, "total": len(found)})


def account(visit: ApiCall) -> Response:
    """GET /account/info: what is left of the account's money."""
    if not _key(visit.request):
        return error(401)
    studio = visit.studio
    spent = sum(task.owed(studio.now()) for task in studio.database.tasks() if _is_own(task))
    left = CREDIT_MILLS - spent
    data = {"account_name": "sandbox", "credits": left * POINTS_PER_MILL, "equivalent_in_usd": left / 1000}
    return _good(data)


def _refused(request: Request, body: dict[str, Any]) -> Response | None:
    if not _key(request):
        return error(401)
    if not request.headers.get("content-type", "").startswith("application/json") or not body:
        return error(400, "the body must be a JSON object sent as application/json")
    if body.get("model") != "midjourney":
        return error(400, "model must be midjourney")
    return None if isinstance(body.get("input"), dict) else error(400, "input must be an object")


def _imagine(visit: ApiCall, wish: dict[str, Any]) -> Response:
    prompt, mode = wish.get("prompt"), wish.get("process_mode") or "fast"
    if not isinstance(prompt, str) or not prompt.strip():
        return error(400, "input.prompt is required")
    if mode not in IMAGINE:
        return error(400, "input.process_mode must be relax, fast or turbo")
    if not _RATIO.fullmatch(str(wish.get("aspect_ratio") or "1:1")):
        return error(400, "input.aspect_ratio must look like 16:9")
    flag = _FLAG_SEED.search(prompt)
    return _accepted(visit, "imagine", IMAGINE[mode], seed=int(flag[1]) if flag else None)


def _upscale(visit: ApiCall, wish: dict[str, Any]) -> Response:
    origin = visit.studio.database.task(str(wish.get("origin_task_id")))
    if origin is None or origin.kind != "imagine" or not _is_own(origin):
        return error(400, "input.origin_task_id is no imagine task")
    if visit.studio.stage(origin).word != "completed":
        return error(400, "the origin task is not finished")
    if wish.get("index") not in ("1", "2", "3", "4"):
        return error(400, "input.index must be a string from 1 to 4 for an imagine task")
    return _accepted(visit, "upscale", UPSCALE, seed=origin.seed)


def _accepted(visit: ApiCall, kind: str, price: int, seed: int | None) -> Response:
    task = visit.studio.accept(visit, kind, price=price, seed=seed)
    reply = _good(_unified(visit.studio, task) | {"status": "pending", "output": _no_output()}, task)
    return Response(200, reply.body, task_id=task.id, price=price)


def _good(data: dict[str, Any], task: VendorTask | None = None) -> Response:
    return Response(200, {"code": 200, "data": data, "message": "success"}, task_id=task.id if task else "")


def _unified(studio: TaskService, task: VendorTask) -> dict[str, Any]:
    stage = studio.stage(task)
    failure = _failure(task, stage)
    return {
        "task_id": task.id,
        "model": "midjourney",
        "task_type": task.kind,
        "status": stage.word,
        "config": task.request.get("config") or {},
        "input": task.request["input"],
        "output": _output(studio, task, stage),
        "meta": _meta(task, stage, _iso),
        "detail": None,
        "logs": [],
        "error": {
            "code": 10000 if failure else 0,
            "raw_message": failure,
            "message": failure and "task failed",
            "detail": None,
        },
    }


def _legacy(studio: TaskService, task: VendorTask) -> dict[str, Any]:
    stage, failure = studio.stage(task), _failure(task, studio.stage(task))
    output = _output(studio, task, stage)
    return {
        "task_id": task.id,
        "status": _LEGACY_WORDS.get(stage.word, stage.word),
        "process_time": int(max(0.0, studio.now() - task.created)),
        "progress": round(stage.progress * 100),
        "meta": {"task_type": task.kind, **_meta(task, stage, lambda moment: int(moment or 0))},
        "task_result": output
        | {
            "task_progress": round(stage.progress * 100),
            "image_id": task.id if stage.word == "completed" else "",
            "quota_used": task.price if stage.word == "completed" else 0,
            "credit": task.price if stage.word == "completed" else 0,
            "message": failure,
            "error_messages": [failure] if failure else [],
            "need_retry": task.fate == "task-failed" and stage.ended,
        },
    }


def _output(studio: TaskService, task: VendorTask, stage: TaskStatus) -> dict[str, Any]:
    output = _no_output() | {"progress": round(stage.progress * 100)}
    if stage.word != "completed":
        return output
    output["seed"] = str(task.seed)
    if task.kind == "upscale":
        return output | {"image_url": studio.link(task, "picture.png"), "actions": ["2x", "4x", "reroll"]}
    four = [studio.link(task, f"{index}.png") for index in (1, 2, 3, 4)] if studio.singles else None
    actions = [f"{action}{index}" for action in ("upscale", "variation") for index in (1, 2, 3, 4)]
    return output | {
        "image_url": studio.link(task, "grid.png"),
        "temporary_image_urls": four,
        "actions": ["reroll", *actions],
    }


def _no_output() -> dict[str, Any]:
    return {
        "image_url": "",
        "image_urls": None,
        "temporary_image_urls": None,
        "discord_image_url": "",
        "actions": [],
        "progress": 0,
        "intermediate_image_urls": None,
        "seed": "",
    }


def _meta(task: VendorTask, stage: TaskStatus, moment: Any) -> dict[str, Any]:
    started = None if stage.word == "pending" else task.created + STARTS_AT * task.duration
    ended = task.created + task.duration if stage.ended else None
    points = task.price * POINTS_PER_MILL
    return {
        "created_at": moment(task.created),
        "started_at": moment(started),
        "ended_at": moment(ended),
        "usage": {
            "type": "point",
            "frozen": 0 if stage.ended else points,
            "consume": points if stage.word == "completed" else 0,
        },
        "is_using_private_pool": False,
        "model_version": "unknown",
        "process_mode": task.request["input"].get("process_mode") or "fast",
        "failover_triggered": False,
    }


def _history_item(studio: TaskService, task: VendorTask) -> dict[str, Any]:
    keys = ("task_id", "model", "task_type", "status", "input", "config", "output", "error")
    unified = _unified(studio, task)
    return {key: unified[key] for key in keys} | {"created_at": _iso(task.created)}


def _failure(task: VendorTask, stage: TaskStatus) -> str:
    return _FAILURES.get(task.fate, "") if stage.word == "failed" else ""


def _midjourney_task(studio: TaskService, task_id: object) -> VendorTask | None:
    task = studio.database.task(task_id) if isinstance(task_id, str) else None
    return task if task and _is_own(task) else None


def _is_own(task: VendorTask) -> bool:
    """Whether a task is for pictures, and ordered here rather than from another seller."""
    return task.kind in ("imagine", "upscale") and "seller" not in task.request


def _key(request: Request) -> bool:
    return bool(request.headers.get("x-api-key", "").strip())


def _retry_after(status: int) -> dict[str, str]:
    return {"Retry-After": "1"} if status == 429 else {}


def _iso(moment: float | None) -> str:
    if moment is None:
        return "0001-01-01T00:00:00Z"  # what a Go server prints for «no time»
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
