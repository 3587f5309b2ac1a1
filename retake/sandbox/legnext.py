"""Stand-in of LegNext's Midjourney: diffusion, upscale, and the state of a job.

Shapes from docs.legnext.ai and the OpenAPI description of its SDKs. Not documented, so our assumption: the words of
most errors, what a failed job says, when an upscale is refused, and the prices of all but a fast diffusion.
"""

import re
from datetime import UTC, datetime
from typing import Any

from retake.sandbox.billing import LEGNEXT_IMAGINE, LEGNEXT_UPSCALE, MILLS_PER_POINT
from retake.sandbox.http_messages import Request, Response
from retake.sandbox.task import STARTS_AT, TaskStatus, VendorTask
from retake.sandbox.task_service import ApiCall, TaskService

TEXT_LIMIT = 8192  # characters
SELLER = "legnext"  # marks a task as one of its jobs, among tasks of the same kinds that PiAPI took
_WORDS = {"imagine": "diffusion", "upscale": "upscale"}
_FLAG_SEED = re.compile(r"--seed[\s=]+(\d{1,10})\b")
_FLAG_MODE = re.compile(r"--(relax|fast|turbo)\b")
_FLAG_RATIO = re.compile(r"--(?:ar|aspect)\b\s*(\S*)")
_RATIO = re.compile(r"[1-9]\d{0,2}:[1-9]\d{0,2}")
_FAILURES = {
    "task-failed": (500, "Failed to process your request, please try again later"),
    "task-rejected": (403, "Sensitive content: the prompt was refused by Midjourney's moderation"),
}
_TEXTS = {
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
    """LegNext's error body."""
    text = message or _TEXTS.get(status, f"Request failed with status {status}")
    body = {"code": status, "message": text, "raw_message": text, "detail": None}
    return Response(status, body, headers={"Retry-After": "1"} if status == 429 else {})


def quota() -> Response:
    return error(402)


def diffusion(visit: ApiCall) -> Response:
    """POST /v1/diffusion: four pictures from a text; Midjourney's parameters are flags in it."""
    if refused := _refused(visit.request):
        return refused
    text = visit.request.fields.get("text")
    if not isinstance(text, str) or not text.strip() or len(text) > TEXT_LIMIT:
        return error(400, f"text must have 1 to {TEXT_LIMIT} characters")
    ratio, seed, mode = (flag.search(text) for flag in (_FLAG_RATIO, _FLAG_SEED, _FLAG_MODE))
    if ratio and not _RATIO.fullmatch(ratio[1]):
        return error(400, "--ar must look like 16:9")
    price = LEGNEXT_IMAGINE[mode[1] if mode else "fast"]
    return _accepted(visit, "imagine", {"prompt": text}, price, int(seed[1]) if seed else None)


def upscale(visit: ApiCall) -> Response:
    """POST /v1/upscale: one of the four in full size."""
    if refused := _refused(visit.request):
        return refused
    wish = visit.request.fields
    origin = _job_of(visit.studio, wish.get("jobId"))
    if origin is None or origin.kind != "imagine":
        return error(400, "jobId is no diffusion job")
    if visit.studio.stage(origin).word != "completed":
        return error(400, "the diffusion job is not completed")
    for name, most in (("imageNo", 3), ("type", 1)):
        if type(wish.get(name)) is not int or not 0 <= wish[name] <= most:
            return error(400, f"{name} must be an integer from 0 to {most}")
    order = {"origin_task_id": origin.id, "index": str(wish["imageNo"] + 1)}
    return _accepted(visit, "upscale", order, LEGNEXT_UPSCALE, origin.seed)


def job(visit: ApiCall) -> Response:
    """GET /v1/job/{id}."""
    if not _key(visit.request):
        return error(401)
    task = _job_of(visit.studio, visit.args[0])
    return Response(200, _state(visit.studio, task), task_id=task.id) if task else error(404)


def _refused(request: Request) -> Response | None:
    if not _key(request):
        return error(401)
    if not request.headers.get("content-type", "").startswith("application/json") or not request.fields:
        return error(400)
    return None


def _accepted(visit: ApiCall, kind: str, order: dict[str, str], price: int, seed: int | None) -> Response:
    task = visit.studio.accept(visit, kind, price=price, seed=seed, order={"seller": SELLER, "input": order})
    body = _state(visit.studio, task) | {"status": "pending", "output": _no_output()}
    return Response(200, body, task_id=task.id, price=price)


def _state(studio: TaskService, task: VendorTask) -> dict[str, Any]:
    stage = studio.stage(task)
    code, failure = _FAILURES[task.fate] if stage.word == "failed" else (0, "")
    webhook = {"endpoint": str(task.request.get("callback") or ""), "secret": ""}
    return {
        "job_id": task.id,
        "model": "midjourney",
        "task_type": _WORDS[task.kind],
        "status": stage.word,
        "config": {"service_mode": "public", "webhook_config": webhook},
        "input": None,
        "output": _output(studio, task) if stage.word == "completed" else _no_output(),
        "meta": _meta(task, stage),
        "detail": None,
        "logs": [],
        "error": {"code": code, "raw_message": failure, "message": failure and "task failed", "detail": None},
    }


def _output(studio: TaskService, task: VendorTask) -> dict[str, Any]:
    output = _no_output() | {"seed": str(task.seed)}
    if task.kind == "upscale":
        return output | {"image_url": studio.link(task, "picture.png")}
    four = [studio.link(task, f"{index}.png") for index in (1, 2, 3, 4)] if studio.singles else None
    actions = {"upscale": [0, 1, 2, 3], "variation": [0, 1, 2, 3]}
    return output | {"image_url": studio.link(task, "grid.png"), "image_urls": four, "available_actions": actions}


def _no_output() -> dict[str, Any]:
    return {"image_url": "", "image_urls": None, "seed": ""}


def _meta(task: VendorTask, stage: TaskStatus) -> dict[str, Any]:
    points = task.price // MILLS_PER_POINT
    frozen, consumed = (0 if stage.ended else points), (points if stage.word == "completed" else 0)
    return {
        "created_at": _iso(task.created),
        "started_at": _iso(None if stage.word == "pending" else task.created + STARTS_AT * task.duration),
        "ended_at": _iso(task.created + task.duration if stage.ended else None),
        "usage": {"type": "point", "frozen": frozen, "consume": consumed},
    }


def _job_of(studio: TaskService, job_id: object) -> VendorTask | None:
    task = studio.database.task(job_id) if isinstance(job_id, str) else None
    return task if task and task.request.get("seller") == SELLER else None


def _key(request: Request) -> bool:
    return bool(request.headers.get("x-api-key", "").strip())


def _iso(moment: float | None) -> str:
    if moment is None:
        return "0001-01-01T00:00:00Z"
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
