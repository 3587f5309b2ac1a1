"""ComfyUI's HTTP API and its WebSocket, for one server.

The client chooses the id of a prompt, and the server executes an id as often as it is sent. So nothing here is
repeated, and `state` finds out whether a prompt was accepted if the answer was lost. Only the history is trusted; the
WebSocket merely says when to look. Queue and history are lost when the server restarts.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any
from urllib.parse import quote as quote_path
from uuid import UUID, uuid5

from retake.errors import Code, OutcomeUnknown, PollFailed, Refused, TaskFailed
from retake.extras import require
from retake.vendors import ImageFile, PromptEvents, PromptPhase, PromptState
from retake.vendors.answers import COMMON_CODES, NoReply, Reply, as_dict, parse, quote, retry_after_s
from retake.vendors.download import is_page
from retake.vendors.http import JSON_LIMIT, bare, check_route, exchange

NAME = "ComfyUI"
MAX_BYTES = 128 * 2**20  # of a file
FILES_LIMIT = 100  # maximum number of files of a prompt
NAME_LIMIT = 1024  # maximum characters of a file's name or folder
MESSAGES_LIMIT = 1000  # number of events searched in the history of a prompt, from its end

POLL_S = 1.0  # between two polls without events
CHECK_S = 5.0  # between two polls with events, one of which may be lost
_STEP_S = 1.0  # between two calls of `meanwhile`

_CODES = COMMON_CODES | {
    **dict.fromkeys((400, 413, 422), Code.INVALID_INPUT),
    **dict.fromkeys((404, 405), Code.CONFIGURATION),
}
_ADVICE = {
    Code.INVALID_INPUT: "The same request will be refused again.",
    Code.UNAUTHORIZED: "ComfyUI itself asks for no key: look at what is in front of it.",
    Code.CONFIGURATION: "Check the server's URL in the settings.",
    Code.RATE_LIMIT: "Ask less often.",
}
_LATER = "Check that the server runs, and its URL in the settings, if this persists."
_UNKNOWN = "Whether the prompt was accepted is unknown: look at its queue and history."

_GONE = PromptState(PromptPhase.GONE)
_FAILURES = ("execution_error", "execution_interrupted")


def prompt_id_of(job_id: str, attempt: int) -> str:
    """Return the prompt id of a job's attempt (from 1). Raises ValueError if `job_id` is not a UUID."""
    return str(uuid5(UUID(job_id), str(attempt)))


class ComfyUI:
    """The `retake.vendors.ImageServer` for the ComfyUI server at `url`. Thread-safe.

    `timeout_s` limits the time to an answer, `file_timeout_s` that to a file, `max_bytes` the size of a file. Raises
    SettingsError for a proxy or certificates in the environment that cannot be used, and if websockets is not
    installed.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 10.0,
        file_timeout_s: float = 60.0,
        max_bytes: int = MAX_BYTES,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        require("images", "The client of ComfyUI")
        self.url = url.rstrip("/")
        check_route(self.url)
        self._requests = ComfyRequests(self.url, timeout_s)
        self._timeout_s, self._file_timeout_s, self._max_bytes = timeout_s, file_timeout_s, max_bytes
        self._monotonic, self._sleep = monotonic, sleep

    def alive(self) -> bool:
        """See `ImageServer.alive`."""
        try:
            self.version()
        except PollFailed:
            return False
        return True

    def version(self) -> str:
        """Return the server's version. Raises PollFailed."""
        what = "show its state"
        system = self._requests.asked(what, "GET", "/system_stats").get("system")
        if not isinstance(system, dict):
            raise self._requests.unusable(what, "it does not look like ComfyUI's")
        return quote(_text(system.get("comfyui_version")), limit=60)

    def state(self, prompt_id: str) -> PromptState:
        """See `ImageServer.state`. A prompt that ends between the lookups in history and queue is in neither, so the
        history is looked up again."""
        return self._ended(prompt_id) or self._queued(prompt_id) or self._ended(prompt_id) or _GONE

    @contextmanager
    def listen(self, client_id: str) -> Iterator[PromptEvents]:
        """See `ImageServer.listen`."""
        from retake.vendors.comfyui_events import ComfyEvents, opened

        events = ComfyEvents(opened(self.url, client_id, self._timeout_s), self._monotonic)
        try:
            yield events
        finally:
            events.close()

    def submit(self, graph: Mapping[str, Any], prompt_id: str, client_id: str) -> None:
        """See `ImageServer.submit`."""
        self._requests.submit({"prompt": graph, "prompt_id": prompt_id, "client_id": client_id})

    def wait(
        self,
        prompt_id: str,
        events: PromptEvents,
        *,
        timeout_s: float,
        silence_s: float = 0.0,
        meanwhile: Callable[[], object] = lambda: None,
        seen: Callable[[PromptState], object] = lambda state: None,
    ) -> PromptState:
        """See `ImageServer.wait`."""
        heard = self._monotonic()
        end, notified = heard + timeout_s, False
        while True:
            silent = False
            try:
                state = self.state(prompt_id)
                heard = now = self._monotonic()
                seen(state)
                if not state.running or now >= end:
                    return state
            except PollFailed:
                silent, now = True, self._monotonic()
                if now - heard >= silence_s or now >= end:
                    raise
            watched = None if notified else events  # the event was false: do not poll again at once
            seconds = CHECK_S if watched and watched.open and not silent else POLL_S
            notified = self._pause(prompt_id, watched, min(seconds, end - now), meanwhile)

    def view(self, file: ImageFile) -> bytes:
        """See `ImageServer.view`."""
        what, limits = f"hand out {quote(file.filename)}", {"timeout_s": self._file_timeout_s, "limit": self._max_bytes}
        reply = self._requests.reply(what, "GET", "/view", params=file._asdict(), **limits)
        if reply.status == 404 or (reply.ok and not reply.body):
            lost = "does not have it" if reply.status == 404 else "has it without content"
            text = f"{self._requests.sentence(what)} and {lost}. Execute the prompt again."
            raise TaskFailed(Code.TASK_FAILED, text)
        self._requests.check(what, reply)
        if is_page(reply):
            raise self._requests.unusable(what, "it is not a picture")
        return reply.body

    def upload(self, name: str, data: bytes) -> str:
        """See `ImageServer.upload`. The server renames a picture if it has a different one with that name."""
        what, content = "store a picture", {"files": {"image": (name, data)}, "data": {"type": "input"}}
        limits = {"timeout_s": self._file_timeout_s}
        stored = _file(self._requests.asked(what, "POST", "/upload/image", **content, **limits), "name")
        if stored is None:
            raise self._requests.unusable(what, "it names no file")
        return f"{stored.subfolder}/{stored.filename}".lstrip("/")

    def cancel(self, prompt_id: str) -> None:
        """See `ImageServer.cancel`. Older servers interrupt whatever is running, so this first checks what that is."""
        for what, path, asked in (
            ("take a prompt out of its queue", "/queue", {"delete": [prompt_id]}),
            ("interrupt a prompt", "/interrupt", {"prompt_id": prompt_id}),
        ):
            if self._queued(prompt_id) is None:
                return
            self._requests.check(what, self._requests.reply(what, "POST", path, json=asked))

    def _pause(
        self, prompt_id: str, events: PromptEvents | None, seconds: float, meanwhile: Callable[[], object]
    ) -> bool:
        """Wait until an event says that the prompt has ended, for at most `seconds`; return whether one did."""
        until = self._monotonic() + seconds
        while (left := until - self._monotonic()) > 0:
            meanwhile()
            if events is None or not events.open:
                self._sleep(min(left, _STEP_S))
            elif events.ended(prompt_id, min(left, _STEP_S)):
                return True
            elif not events.open:  # disconnected: events may have been missed
                return False
        return False

    def _ended(self, prompt_id: str) -> PromptState | None:
        """Return the state of a prompt that is in the history, or None."""
        what = "show a prompt"
        found = self._requests.asked(what, "GET", f"/history/{quote_path(prompt_id, safe='')}")
        if not found:
            return None
        entry = found.get(prompt_id)
        if not isinstance(entry, dict):  # if this counted as unknown, the prompt might be executed twice
            raise self._requests.unusable(what, "it is about another one")
        return _outcome(self._requests.name, prompt_id, entry)

    def _queued(self, prompt_id: str) -> PromptState | None:
        """Return the state of a prompt in the queue, or None. A prompt that is alone in the queue counts as running."""
        what = "show its queue"
        queue = self._requests.asked(what, "GET", "/queue")
        before: list[Any] = []
        for name in ("queue_running", "queue_pending"):
            items = queue.get(name)
            if not isinstance(items, list) or not all(isinstance(it, list) and len(it) > 1 for it in items):
                raise self._requests.unusable(what, f"it has no usable {name}")
            if any(it[1] == prompt_id for it in items):
                waits = name == "queue_pending" and len([*before, *items]) > 1
                return PromptState(PromptPhase.WAITING if waits else PromptPhase.RUNNING)
            before = items
        return None


class ComfyRequests:
    """Requests to the server at `url`, and the meaning of its errors."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self.name = f"{NAME} at {bare(url)}"
        self._url, self._timeout_s = url, timeout_s

    def submit(self, asked: Mapping[str, Any]) -> None:
        """POST a prompt. Raises Refused, OutcomeUnknown."""
        what = "execute a prompt"
        try:
            reply = self._exchange("POST", "/prompt", json=asked)
        except NoReply as trouble:
            kind, more = (OutcomeUnknown, _UNKNOWN) if trouble.sent else (Refused, _advice(trouble.code))
            raise kind(trouble.code, f"{self.sentence(what)}: {trouble}. {more}") from None
        body = parse(reply.body)
        answer = as_dict(body)
        if reply.ok and answer.get("prompt_id") == asked["prompt_id"]:
            return
        if reply.ok and isinstance(answer.get("prompt_id"), str):
            text = f"{self.sentence(what)} and executes it by another id: it is too old. Update it."
            raise OutcomeUnknown(Code.CONFIGURATION, text)
        if reply.status == 400 and ("error" in answer or "node_errors" in answer):
            text = f'{self.sentence(what)} and refuses it: "{quote(_first_error(answer))}".'
            raise Refused(Code.INVALID_INPUT, f"{text} {_advice(Code.INVALID_INPUT)}")
        code, wait_s = _code(reply.status), retry_after_s(reply.headers)
        if isinstance(body, (dict, list)) and 400 <= reply.status < 500 and reply.status not in (408, 409):
            raise Refused(code, f"{self._answer(what, reply)} {_advice(code)}", retry_after_s=wait_s)
        code = Code.BAD_ANSWER if code is Code.INVALID_INPUT else code  # a page of a proxy in front of the server
        raise OutcomeUnknown(code, f"{self._answer(what, reply)} {_UNKNOWN}", retry_after_s=wait_s)

    def asked(self, what: str, method: str, path: str, **content: Any) -> dict[str, Any]:
        """Return the JSON object that the server answers with. Raises PollFailed."""
        reply = self.reply(what, method, path, **content)
        self.check(what, reply)
        body = parse(reply.body)
        if not isinstance(body, dict):
            raise self.unusable(what, "it is not a JSON object")
        return body

    def reply(self, what: str, method: str, path: str, **content: Any) -> Reply:
        """Return the answer to a request, whatever its status. Raises PollFailed if there is none."""
        try:
            return self._exchange(method, path, **content)
        except NoReply as trouble:
            text = f"{self.sentence(what)}: {trouble}. {_advice(trouble.code)}"
            raise PollFailed(trouble.code, text) from None

    def check(self, what: str, reply: Reply) -> None:
        """Raise PollFailed unless the answer is a success."""
        if not reply.ok:
            code = _code(reply.status)
            text = f"{self._answer(what, reply)} {_advice(code)}"
            raise PollFailed(code, text, retry_after_s=retry_after_s(reply.headers))

    def unusable(self, what: str, why: str) -> PollFailed:
        """Return the error for a success with an unusable answer."""
        return PollFailed(Code.BAD_ANSWER, f"{self.sentence(what)}; its answer cannot be used: {why}. {_LATER}")

    def sentence(self, what: str) -> str:
        """Return the beginning of a message."""
        return f"{self.name} was asked to {what}"

    def _answer(self, what: str, reply: Reply) -> str:
        words = quote(reply.body.decode("utf-8", "replace"))
        return f'{self.sentence(what)} and answered HTTP {reply.status}: "{words}".'

    def _exchange(self, method: str, path: str, **content: Any) -> Reply:
        return exchange(
            None, method, self._url + path, **{"timeout_s": self._timeout_s, "limit": JSON_LIMIT, **content}
        )


def outputs(entry: Mapping[str, Any]) -> tuple[ImageFile, ...]:
    """Return the files in an entry of the history, saved outputs first.

    Nodes list them under images, gifs, videos or names of their own, so every list is searched.
    """
    nodes = as_dict(entry.get("outputs")).values()
    lists = (it for node in nodes for it in as_dict(node).values() if isinstance(it, list))
    files = islice(filter(None, (_file(item) for items in lists for item in items)), FILES_LIMIT)
    return tuple(sorted(dict.fromkeys(files), key=lambda file: file.type != "output"))


def _file(value: object, key: str = "filename") -> ImageFile | None:
    fields = as_dict(value)
    name, folder, kind = fields.get(key), fields.get("subfolder") or "", fields.get("type") or "output"
    if not (isinstance(name, str) and isinstance(folder, str) and isinstance(kind, str)):
        return None
    return ImageFile(name, folder, kind) if name and max(map(len, (name, folder, kind))) <= NAME_LIMIT else None


def _text(value: object) -> str:
    """Return a text or a number as text, anything else as "?"."""
    return value if isinstance(value, str) else str(value) if isinstance(value, int) else "?"


def _outcome(name: str, prompt_id: str, entry: Mapping[str, Any]) -> PromptState:
    """Return the state of a prompt with this entry in the history of the server `name`."""
    status = as_dict(entry.get("status"))
    if status.get("status_str", "success") == "success":
        files = outputs(entry)
        if files:
            return PromptState(PromptPhase.DONE, files)
        text = f"{name} ended prompt {prompt_id} without an output. Try it again."
        return PromptState(PromptPhase.FAILED, failure=TaskFailed(Code.TASK_FAILED, text))
    event, data = _last_message(status)
    where = quote(f"node {_text(data.get('node_id'))} ({_text(data.get('node_type'))})")
    if event == "execution_interrupted":
        text = f"{name} was interrupted in prompt {prompt_id} at {where}. Try it again."
        return PromptState(PromptPhase.INTERRUPTED, failure=TaskFailed(Code.TASK_FAILED, text))
    reason = quote(": ".join(_text(data[it]) for it in ("exception_type", "exception_message") if data.get(it)))
    text = f'{name} ended prompt {prompt_id} as failed at {where}: "{reason}". Try it again.'
    return PromptState(PromptPhase.FAILED, failure=TaskFailed(Code.TASK_FAILED, text))


def _last_message(status: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the last event about an error or an interruption with its data, or ("", {})."""
    messages = status.get("messages")
    for message in reversed(messages[-MESSAGES_LIMIT:] if isinstance(messages, list) else []):
        if isinstance(message, list) and len(message) > 1 and message[0] in _FAILURES:
            return message[0], as_dict(message[1])
    return "", {}


def _first_error(answer: Mapping[str, Any]) -> str:
    """Return the first error of a node in words, else the error of the whole prompt."""
    for node_id, node in as_dict(answer.get("node_errors")).items():
        errors = as_dict(node).get("errors")
        for error in errors if isinstance(errors, list) else []:
            return f"node {node_id} ({_text(as_dict(node).get('class_type'))}): {_words(error)}"
    return _words(answer.get("error"))


def _words(error: object) -> str:
    if isinstance(error, str):
        return error
    return ": ".join(_text(as_dict(error)[it]) for it in ("message", "details") if as_dict(error).get(it))


def _code(status: int) -> Code:
    return _CODES.get(status, Code.UNAVAILABLE if status >= 500 else Code.BAD_ANSWER)


def _advice(code: Code) -> str:
    return _ADVICE.get(code, _LATER)
