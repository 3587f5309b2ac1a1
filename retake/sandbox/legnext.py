"""Stand-in for LegNext's Midjourney: diffusion, upscale, and the state of a job.

Formats from docs.legnext.ai and the OpenAPI description of its SDKs. Assumed, because undocumented: the wording of most
errors, the error of a failed job, when an upscale is refused, and all prices except that of a fast diffusion.
"""

import re
from datetime import UTC, datetime
from typing import Any

from retake.sandbox.billing import LEGNEXT_IMAGINE, LEGNEXT_POINTS_PER_MILL, LEGNEXT_UPSCALE, point_usage
from retake.sandbox.http_messages import Response, error_response
from retake.sandbox.task import VendorTask
from retake.sandbox.task_service import ApiCall, TaskService

TEXT_LIMIT = 8192  # characters
SELLER = "legnext"  # distinguishes its tasks from PiAPI's, which have the same kinds
_TASK_TYPES = {"imagine": "diffusion", "upscale": "upscale"}
_FLAG_SEED = re.compile(r"--seed[\s=]+(\d{1,10})\b")
_FLAG_MODE = re.compile(r"--(relax|fast|turbo)\b")
_FLAG_RATIO = re.compile(r"--(?:ar|aspect)\b\s*(\S*)")
_RATIO = re.compile(r"[1-9]\d{0,2}:[1-9]\d{0,2}")
_FAILURES = {
    "task-failed": (500, "Failed to process your request, please try again later"),
    "task-rejected": (403, "Sensitive content: the prompt was refused by Midjourney's moderation"),
}
_NO_OUTPUT: dict[str, Any] = {"image_url": "", "image_urls": None, "seed": ""}
_ERRORS = {
    400: "Invalid request parameters",
    401: "Invalid API key",
    402: "Insufficient credits, please top up your account",
    403: "Sensitive content detected in the prompt",
    404: "Job not found",
    413: "Request body too large",
    422: "Request cannot be processed",
    429: "Too many requests",
    500: "Internal server error",
}


def error(status: int, message: str = "") -> Response:
    text = message or _ERRORS.get(status, f"Request failed with status {status}")
    return error_response(status, {"code": status, "message": text, "raw_message": text, "detail": None})


def diffusion(call: ApiCall) -> Response:
    """POST /v1/diffusion: four pictures from a text that contains Midjourney's parameters as flags."""
    if not call.request.is_json_object:
        return error(400)
    text = call.request.fields.get("text")
    if not isinstance(text, str) or not text.strip() or len(text) > TEXT_LIMIT:
        return error(400, f"text must have 1 to {TEXT_LIMIT} characters")
    ratio, seed, mode = (flag.search(text) for flag in (_FLAG_RATIO, _FLAG_SEED, _FLAG_MODE))
    if ratio and not _RATIO.fullmatch(ratio[1]):
        return error(400, "--ar must look like 16:9")
    price = LEGNEXT_IMAGINE[mode[1] if mode else "fast"]
    return _accept(call, "imagine", {"prompt": text}, price, int(seed[1]) if seed else None)


def upscale(call: ApiCall) -> Response:
    """POST /v1/upscale: one of the four pictures at full size."""
    if not call.request.is_json_object:
        return error(400)
    fields = call.request.fields
    origin = call.service.picture_task(fields.get("jobId"), SELLER)
    if origin is None or origin.kind != "imagine":
        return error(400, "jobId is not a diffusion job")
    if not call.service.status(origin).completed:
        return error(400, "the diffusion job is not completed")
    for name, highest in (("imageNo", 3), ("type", 1)):
        if type(fields.get(name)) is not int or not 0 <= fields[name] <= highest:
            return error(400, f"{name} must be an integer from 0 to {highest}")
    picture = {"origin_task_id": origin.id, "index": str(fields["imageNo"] + 1)}
    return _accept(call, "upscale", picture, LEGNEXT_UPSCALE, origin.seed)


def job(call: ApiCall) -> Response:
    """GET /v1/job/{id}."""
    task = call.service.picture_task(call.args[0], SELLER)
    return Response(200, _state(call.service, task), task_id=task.id) if task else error(404)


def _accept(call: ApiCall, kind: str, picture: dict[str, str], price: int, seed: int | None) -> Response:
    task = call.service.accept(call, kind, price=price, seed=seed, extra={"seller": SELLER, "input": picture})
    body = _state(call.service, task) | {"status": "pending", "output": _NO_OUTPUT}
    return Response(200, body, task_id=task.id, price=price)


def _state(service: TaskService, task: VendorTask) -> dict[str, Any]:
    now = service.now()
    status, (started, ended) = task.status(now), task.times(now)
    code, failure = _FAILURES[task.fault] if status.name == "failed" else (0, "")
    webhook = {"endpoint": str(task.request.get("callback") or ""), "secret": ""}
    return {
        "job_id": task.id,
        "model": "midjourney",
        "task_type": _TASK_TYPES[task.kind],
        "status": status.name,
        "config": {"service_mode": "public", "webhook_config": webhook},
        "input": None,
        "output": _output(service, task) if status.completed else _NO_OUTPUT,
        "meta": {
            "created_at": _iso(task.created),
            "started_at": _iso(started),
            "ended_at": _iso(ended),
            "usage": point_usage(task, status, LEGNEXT_POINTS_PER_MILL),
        },
        "detail": None,
        "logs": [],
        "error": {"code": code, "raw_message": failure, "message": failure and "task failed", "detail": None},
    }


def _output(service: TaskService, task: VendorTask) -> dict[str, Any]:
    output = _NO_OUTPUT | {"seed": str(task.seed)}
    if task.kind == "upscale":
        return output | {"image_url": service.link(task, "picture.png")}
    actions = {"upscale": [0, 1, 2, 3], "variation": [0, 1, 2, 3]}
    links = {"image_url": service.link(task, "grid.png"), "image_urls": service.singles_of(task)}
    return output | links | {"available_actions": actions}


def _iso(time: float | None) -> str:
    if time is None:
        return "0001-01-01T00:00:00Z"
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
