"""Stand-in for Runway's image-to-video API, as the official SDK uses it (runwayml 5.24).

Limits and error bodies are from docs.dev.runwayml.com and the SDK's types. Credits are charged when a task is accepted
and refunded when it fails (`cost.credits` is then 0); a cancelled task is refunded only if it was still pending.
"""

import base64
import binascii
from datetime import UTC, datetime
from typing import Any

from retake.sandbox.billing import CREDIT, RUNWAY_CREDITS
from retake.sandbox.http_messages import Request, Response, error_response
from retake.sandbox.pictures import is_picture
from retake.sandbox.task import VendorTask
from retake.sandbox.task_service import ApiCall, TaskService

CREDITS = 100_000  # of the organization at the start
RATIOS = ("1280:720", "720:1280", "1104:832", "832:1104", "960:960", "1584:672")
DATA_URI_LIMIT = 5_000_000  # "5MB" of the string as sent, the stricter of two readings
PROMPT_LIMIT = 1000  # UTF-16 code units
DAY = 86_400
_STATUSES = {"pending": "PENDING", "processing": "RUNNING", "completed": "SUCCEEDED", "failed": "FAILED"}
_FAILURES = {
    "task-failed": ("An unexpected error occurred.", "INTERNAL.BAD_OUTPUT.CODE01"),
    "task-rejected": ("The input text was rejected by content moderation.", "SAFETY.INPUT.TEXT"),
    "bad-image": ("The image could not be read.", "ASSET.INVALID"),
}
_NO_TASK = "A task with that ID was not found."
_ERRORS = {
    401: "The API key you provided is not valid.",
    402: "You do not have enough credits to run this task.",
    404: "Not found",
    429: "You have reached a rate limit for this model.",
    500: "Internal server error",
    503: "The service is overloaded, please try again.",
}


def error(status: int, message: str = "", issues: list[dict[str, Any]] | None = None) -> Response:
    body: dict[str, Any] = {"error": message or _ERRORS.get(status, f"Request failed with status {status}")}
    if issues:
        body["issues"] = issues
    return error_response(status, body)


def check_version(request: Request) -> Response | None:
    named = request.headers.get("x-runway-version")
    return None if named else error(400, "The X-Runway-Version header is required.")


def create(call: ApiCall) -> Response:
    """POST /v1/image_to_video."""
    fields = call.request.fields
    if issues := _issues(fields):
        return error(400, "Validation of body failed", issues)
    image = _image_of(fields["promptImage"])
    source = call.service.add_upload(image) if image is not None else ""
    if image is not None and not is_picture(image):
        call = call._replace(fault=call.fault or "bad-image")
    price = _credits(fields) * CREDIT
    task = call.service.accept(call, "runway", price=price, seed=fields.get("seed"), source=source)
    body = {"id": task.id, "estimatedCost": {"credits": _credits(fields)}}
    return Response(200, body, task_id=task.id, price=price)


def poll(call: ApiCall) -> Response:
    """GET /v1/tasks/{id}."""
    task = _video_task(call.service, call.args[0])
    return Response(200, _state(call.service, task), task_id=task.id) if task else error(404, _NO_TASK)


def cancel(call: ApiCall) -> Response:
    """DELETE /v1/tasks/{id}: cancel a running task or delete a finished one; neither can be fetched again."""
    task = _video_task(call.service, call.args[0])
    if task is None:
        return error(404, _NO_TASK)
    call.service.database.cancel_task(task.id, call.service.now())
    return Response(204, task_id=task.id)


def organization(call: ApiCall) -> Response:
    """GET /v1/organization: the credits left, and the number of videos started in the last 24 hours by model."""
    service, now = call.service, call.service.now()
    tasks = [task for task in service.database.tasks() if task.kind == "runway"]
    recent = [task.request["model"] for task in tasks if now - task.created < DAY]
    limits = {"maxConcurrentGenerations": 5, "maxDailyGenerations": 1000}
    body = {
        "creditBalance": CREDITS - sum(task.owed(now) for task in tasks) // CREDIT,
        "tier": {"maxMonthlyCreditSpend": 1_000_000, "models": dict.fromkeys(RUNWAY_CREDITS, limits)},
        "usage": {"models": {model: {"dailyGenerations": recent.count(model)} for model in RUNWAY_CREDITS}},
    }
    return Response(200, body)


def _state(service: TaskService, task: VendorTask) -> dict[str, Any]:
    status, price = service.status(task), {"credits": _credits(task.request)}
    state: dict[str, Any] = {"id": task.id, "status": _STATUSES[status.name], "createdAt": _iso(task.created)}
    if status.completed:
        return state | {"output": [service.link(task, "video.mp4")], "cost": price}
    if status.name == "failed":
        failure, code = _FAILURES[task.fault]
        return state | {"failure": failure, "failureCode": code, "cost": {"credits": 0}}
    return state | {"estimatedCost": price} | ({"progress": status.progress} if status.name == "processing" else {})


def _issues(fields: dict[str, Any]) -> list[dict[str, Any]]:
    model, prompt, duration, seed = (fields.get(name) for name in ("model", "promptText", "duration", "seed"))
    wrong = {
        "model": None if model in RUNWAY_CREDITS else f"must be one of {', '.join(RUNWAY_CREDITS)}",
        "promptImage": _image_issue(fields.get("promptImage")),
        "ratio": None if fields.get("ratio") in RATIOS else f"must be one of {', '.join(RATIOS)}",
        "promptText": _prompt_issue(prompt, required=model == "gen4.5"),
        "duration": _duration_issue(model, duration),
        "seed": None if seed is None or _is_int(seed, 0, 2**32 - 1) else "must be an integer from 0 to 4294967295",
    }
    return [{"code": "custom", "path": [name], "message": text} for name, text in wrong.items() if text]


def _image_issue(image: object) -> str | None:
    if isinstance(image, list):
        parts = [part for part in image if isinstance(part, dict) and part.get("position") == "first"]
        return _image_issue(parts[0].get("uri")) if len(parts) == len(image) == 1 else "must be one first frame"
    if not isinstance(image, str) or not image:
        return "is required"
    if image.startswith(("https://", "runway://")):
        return None if len(image) <= 2048 else "URL must not be longer than 2048 characters"
    if not image.startswith("data:image/"):
        return "must be an HTTPS URL, a runway:// URI or a data URI of an image"
    if len(image) > DATA_URI_LIMIT:
        return f"data URI must not be larger than 5MB, this one has {len(image)} bytes"
    return None if _image_of(image) is not None else "data URI must hold base64"


def _image_of(image: Any) -> bytes | None:
    uri = image[0]["uri"] if isinstance(image, list) else image
    head, _, text = uri.partition(",")
    if not head.endswith(";base64"):
        return None
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return None


def _prompt_issue(prompt: object, *, required: bool) -> str | None:
    if prompt is None:
        return "is required" if required else None
    if not isinstance(prompt, str) or not prompt:
        return "must be a text of at least 1 character"
    units = len(prompt.encode("utf-16-le", "surrogatepass")) // 2
    return None if units <= PROMPT_LIMIT else f"must be at most {PROMPT_LIMIT} UTF-16 code units, this has {units}"


def _duration_issue(model: object, duration: object) -> str | None:
    if model == "gen4.5":
        return None if _is_int(duration, 2, 10) else "must be an integer from 2 to 10"
    return None if duration is None or (_is_int(duration, 5, 10) and duration in (5, 10)) else "must be 5 or 10"


def _is_int(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _credits(fields: dict[str, Any]) -> int:
    return RUNWAY_CREDITS[fields["model"]] * int(fields.get("duration") or 10)


def _video_task(service: TaskService, task_id: str) -> VendorTask | None:
    task = service.database.task(task_id)
    return task if task and task.kind == "runway" and task.cancelled is None else None


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
