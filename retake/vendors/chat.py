"""Texts from any API compatible with OpenAI's chat completions, in JSON mode.

An unusable completion (cut off, not JSON, a refusal) is known to have been billed: it is a TaskFailed, neither refused
nor unknown. Source for the fields: openai 3.51, `types/chat`.
"""

import re
from collections.abc import Sequence
from typing import Any

from retake.errors import Code, TaskFailed
from retake.plural import count
from retake.vendors import Health
from retake.vendors.answers import Vendor, Words, as_dict, parse, quote
from retake.vendors.http import JsonApi, check_route, key_for_header

NAME = "The chat API"
KEY_NAME = "OPENAI_API_KEY"
CHOICE_TOKENS = 1000  # enough for {"index": 1} after some reasoning

_FENCE = re.compile(r"\s*```(?:json)?(.*)```\s*", re.DOTALL | re.IGNORECASE)
# OpenAI's reasoning models reject `max_tokens` and any temperature except their default.
_REASONING = re.compile(r"(.*/)?(o\d|gpt-5)(?!.*-chat)")


class OpenAIChat:
    """The `retake.vendors.ChatModel` for an OpenAI-compatible API.

    `base_url` ends in /v1. An empty `key` is not sent (for a self-hosted server). `timeout_s` limits the time to an
    answer. Both paid calls raise TaskFailed too. Raises SettingsError for a key that cannot be sent, and for a proxy or
    certificates in the environment that cannot be used.
    """

    def __init__(self, base_url: str, model: str, key: str, *, timeout_s: float) -> None:
        self._base = base_url.rstrip("/")
        self._url = self._base + "/chat/completions"
        check_route(self._url)
        self._model = model
        self._vendor = Vendor(NAME, KEY_NAME, own_words, key)
        headers = {"Authorization": f"Bearer {key_for_header(NAME, KEY_NAME, key)}"} if key else {}
        self._api = JsonApi(self._vendor, headers, timeout_s=timeout_s)

    def write(self, system: str, user: str, *, temperature: float, max_tokens: int) -> dict[str, Any]:
        """See `ChatModel.write`."""
        if "json" not in f"{system} {user}".lower():  # the API rejects JSON mode unless a message mentions JSON
            system = f"{system}\n\nAnswer with one JSON object.".lstrip()
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return self._complete("write a text", messages, temperature, max_tokens)

    def choose(self, question: str, images: Sequence[str]) -> int:
        """See `ChatModel.choose`."""
        if not images:
            raise ValueError("nothing to choose from")
        text = f'{question}\n\nAnswer with one JSON object: {{"index": n}}, n from 1 to {len(images)}.'
        shown = [{"type": "image_url", "image_url": {"url": image, "detail": "low"}} for image in images]
        messages = [{"role": "user", "content": [{"type": "text", "text": text}, *shown]}]
        answer = self._complete("choose a picture", messages, 0.0, CHOICE_TOKENS)
        index = answer.get("index")
        if isinstance(index, int) and not isinstance(index, bool) and 1 <= index <= len(images):
            return index
        found = quote(repr(index), self._vendor.secret, limit=200)
        raise self._unusable("choose a picture", f'"index" is {found}, not 1 … {len(images)}')

    def health(self) -> Health:
        """See `Healthy.health`. Lists the models, which a compatible server may not support."""
        names = self._api.look_for("list its models", self._base + "/models", {}, _models)
        if names is None:
            return self._api.health("it answers, but lists no models")
        doubt = f"it lists no model {self._model}: check API_KEYS.openai.model"
        doubts = () if self._model in names else (doubt,)
        return self._api.health(f"it accepts the key; {count(len(names), 'model')}", doubts=doubts)

    def test_request(self) -> str:
        """See `Healthy.test_request`. Every call here is billed, so none is made."""
        return "none: every call that a tick makes here is billed"

    def _complete(
        self, what: str, messages: list[dict[str, Any]], temperature: float, max_tokens: int
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": messages,
            "response_format": {"type": "json_object"},
        }
        if _REASONING.match(self._model):
            body["max_completion_tokens"] = max_tokens
        else:
            body |= {"temperature": temperature, "max_tokens": max_tokens}
        return self._content(what, self._api.submit(f"{what} ({self._model})", self._url, body, _choice))

    def _content(self, what: str, choice: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON object in a completion. Raises TaskFailed."""
        message, reason = as_dict(choice.get("message")), choice.get("finish_reason")
        if message.get("refusal") or reason == "content_filter":
            reason = quote(str(message.get("refusal") or "content filter"), self._vendor.secret)
            raise TaskFailed(Code.REJECTED, f'{NAME} declined to {what}: "{reason}". Change the prompt.')
        if reason not in ("stop", None):  # None: some compatible servers omit it
            hint = "; raise max_tokens" if reason == "length" else ""
            raise self._unusable(what, f"it ended with {reason!r}, not 'stop'{hint}")
        content = message.get("content")
        fenced = _FENCE.fullmatch(content) if isinstance(content, str) else None
        answer = parse(fenced[1] if fenced else content) if isinstance(content, str) else None
        if not isinstance(answer, dict):
            found = quote(str(content), self._vendor.secret, limit=200)
            raise self._unusable(what, f'it is not a JSON object: "{found}"')
        return answer

    def _unusable(self, what: str, why: str) -> TaskFailed:
        return TaskFailed(Code.BAD_ANSWER, f"{NAME} was asked to {what}; its answer cannot be used: {why}.")


def own_words(body: object) -> Words | None:
    """Parse the error body: {error: {message, type, param, code}}."""
    error = as_dict(as_dict(body).get("error"))
    if not isinstance(error.get("message"), str):
        return None
    return Words(str(error.get("code") or error.get("type") or ""), error["message"])


def _choice(body: object) -> dict[str, Any] | None:
    """Return the first completion of the answer, or None."""
    choices = as_dict(body).get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None


def _models(body: object) -> list[str] | None:
    """Return the ids of the models in a listing, or None."""
    listed = as_dict(body).get("data")
    return [str(as_dict(model).get("id")) for model in listed] if isinstance(listed, list) else None
