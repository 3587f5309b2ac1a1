"""Stand-in of an OpenAI-compatible chat API: JSON mode, and a choice among pictures.

Error shape {error: {message, type, param, code}} and the reply's fields as in the openai SDK's types.
"""

import json
import random
from typing import Any

from retake.sandbox import posts
from retake.sandbox.billing import CHAT
from retake.sandbox.http_messages import Response
from retake.sandbox.task_service import ApiCall

MODELS = ("gpt-4o", "gpt-4o-mini")
_KINDS = {
    400: ("invalid_request_error", None, "The request is not valid."),
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    403: ("invalid_request_error", "unsupported_country_region_territory", "You may not use this model."),
    404: ("invalid_request_error", "model_not_found", "The model does not exist."),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached for requests. Please try again in 1s."),
    500: ("server_error", None, "The server had an error while processing your request."),
    503: ("server_error", None, "The engine is currently overloaded, please try again later."),
}


def error(status: int, message: str = "", param: str | None = None) -> Response:
    """OpenAI's error body."""
    kind, code, text = _KINDS.get(status, ("server_error" if status >= 500 else "invalid_request_error", None, "Error"))
    body = {"error": {"message": message or text, "type": kind, "param": param, "code": code}}
    return Response(status, body, headers={"Retry-After": "1"} if status == 429 else {})


def quota() -> Response:
    """429 with another code than the rate limit's: waiting does not help."""
    text = "You exceeded your current quota, please check your plan and billing details."
    return Response(
        429, {"error": {"message": text, "type": "insufficient_quota", "param": None, "code": "insufficient_quota"}}
    )


def complete(visit: ApiCall) -> Response:
    """POST /v1/chat/completions."""
    request = visit.request
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        return error(401)
    ask = request.fields
    if wrong := _wrong(ask):
        return error(400, *wrong)
    texts = [_text_of(message) for message in ask["messages"]]
    luck = random.Random(f"{visit.studio.seed}/chat/{visit.n}")  # noqa: S311 – art, not secrets
    images = sum(_images_in(message) for message in ask["messages"])
    answer = {"index": luck.randint(1, images)} if images else posts.write(texts, luck)
    return _reply(visit, ask, texts, json.dumps(answer, ensure_ascii=False))


def models(visit: ApiCall) -> Response:
    """GET /v1/models."""
    scheme, _, key = visit.request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        return error(401)
    data = [{"id": name, "object": "model", "created": 1_700_000_000, "owned_by": "sandbox"} for name in MODELS]
    return Response(200, {"object": "list", "data": data})


def _wrong(ask: dict[str, Any]) -> tuple[str, str] | None:
    messages = ask.get("messages")
    if not isinstance(ask.get("model"), str) or not ask["model"]:
        return "you must provide a model parameter", "model"
    if not isinstance(messages, list) or not messages:
        return "'messages' must be an array with at least one message", "messages"
    if not all(isinstance(message, dict) and "role" in message and "content" in message for message in messages):
        return "every message needs a role and a content", "messages"
    wanted = ask.get("response_format")
    json_mode = isinstance(wanted, dict) and wanted.get("type") == "json_object"
    if json_mode and "json" not in " ".join(map(_text_of, messages)).lower():
        return (
            "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'.",
            ("messages"),
        )
    return None


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _text_of(message: dict[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in _parts(message) if part.get("type") == "text")


def _images_in(message: dict[str, Any]) -> int:
    return sum(part.get("type") == "image_url" for part in _parts(message))


def _reply(visit: ApiCall, ask: dict[str, Any], texts: list[str], content: str) -> Response:
    asked, answered = sum(map(len, texts)) // 4 + 1, len(content) // 4 + 1
    message = {"role": "assistant", "content": content, "refusal": None}
    body = {
        "id": f"chatcmpl-{visit.studio.seed:x}-{visit.n}",
        "object": "chat.completion",
        "created": int(visit.studio.now()),
        "model": ask["model"],
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered},
    }
    return Response(200, body, headers={"x-request-id": f"req_{visit.n:08d}"}, price=CHAT)
