"""Stand-in for an OpenAI-compatible chat API: JSON mode, and a choice among pictures.

The error body and the fields of a reply follow the types in the openai SDK.
"""

import json
import random
from typing import Any

from retake.sandbox import music_texts, posts
from retake.sandbox.billing import CHAT
from retake.sandbox.http_messages import Response, error_response
from retake.sandbox.task_service import ApiCall

MODELS = ("gpt-4o", "gpt-4o-mini")
_ERRORS = {
    400: ("invalid_request_error", None, "The request is not valid."),
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    403: ("invalid_request_error", "unsupported_country_region_territory", "You may not use this model."),
    404: ("invalid_request_error", "model_not_found", "The model does not exist."),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached for requests. Please try again in 1s."),
    500: ("server_error", None, "The server had an error while processing your request."),
    503: ("server_error", None, "The engine is currently overloaded, please try again later."),
}
_QUOTA = "You exceeded your current quota, please check your plan and billing details."


def error(status: int, message: str = "", param: str | None = None) -> Response:
    default = ("server_error" if status >= 500 else "invalid_request_error", None, "Error")
    kind, code, text = _ERRORS.get(status, default)
    return error_response(status, {"error": {"message": message or text, "type": kind, "param": param, "code": code}})


def quota() -> Response:
    """Return a 429 with another code than that of a rate limit, and no Retry-After, since waiting does not help."""
    code = "insufficient_quota"
    return Response(429, {"error": {"message": _QUOTA, "type": code, "param": None, "code": code}})


def complete(call: ApiCall) -> Response:
    """POST /v1/chat/completions."""
    body = call.request.fields
    if problem := _problem(body):
        return error(400, *problem)
    texts = [_text_of(message) for message in body["messages"]]
    rng = random.Random(f"{call.service.seed}/chat/{call.n}")
    images = sum(part.get("type") == "image_url" for message in body["messages"] for part in _parts(message))
    answer = {"index": rng.randint(1, images)} if images else music_texts.write(texts, rng) or posts.write(texts, rng)
    return _completion(call, body["model"], texts, json.dumps(answer, ensure_ascii=False))


def models(_: ApiCall) -> Response:
    """GET /v1/models."""
    data = [{"id": name, "object": "model", "created": 1_700_000_000, "owned_by": "sandbox"} for name in MODELS]
    return Response(200, {"object": "list", "data": data})


def _problem(body: dict[str, Any]) -> tuple[str, str] | None:
    """Return what is wrong with the request and the name of the parameter, or None."""
    messages, wanted = body.get("messages"), body.get("response_format")
    if not isinstance(body.get("model"), str) or not body["model"]:
        return "you must provide a model parameter", "model"
    if not isinstance(messages, list) or not messages:
        return "'messages' must be an array with at least one message", "messages"
    if not all(isinstance(message, dict) and "role" in message and "content" in message for message in messages):
        return "every message needs a role and a content", "messages"
    json_mode = isinstance(wanted, dict) and wanted.get("type") == "json_object"
    if json_mode and "json" not in " ".join(map(_text_of, messages)).lower():
        text = "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'."
        return text, "messages"
    return None


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _text_of(message: dict[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in _parts(message) if part.get("type") == "text")


def _completion(call: ApiCall, model: str, texts: list[str], content: str) -> Response:
    asked, answered = sum(map(len, texts)) // 4 + 1, len(content) // 4 + 1
    message = {"role": "assistant", "content": content, "refusal": None}
    body = {
        "id": f"chatcmpl-{call.service.seed:x}-{call.n}",
        "object": "chat.completion",
        "created": int(call.service.now()),
        "model": model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered},
    }
    return Response(200, body, headers={"x-request-id": f"req_{call.n:08d}"}, price=CHAT)
