"""Videos from Runway, through its official SDK with the SDK's own retries and redirects turned off.

Answers are read raw, because the SDK's models are lenient in the wrong direction: an unknown status or a missing field
turns any task into a pending one (runwayml 5.24, `types/task_retrieve_response.py`).
"""

from collections.abc import Callable
from typing import Any

import httpx
import runwayml

from retake.errors import Code, Refused, TaskFailed, VendorError
from retake.vendors import NO_SUCH_TASK, NO_TASK, Health, Quota, TaskState
from retake.vendors.answers import (
    NoReply,
    Reply,
    Vendor,
    Words,
    answered,
    as_dict,
    count,
    number,
    quote,
    says_missing,
    submitted,
    unanswered,
)
from retake.vendors.http import JSON_LIMIT, bare, check_route, exchange, key_for_header
from retake.vendors.runway_limits import (
    DATA_URI_LIMIT,
    MIN_POLL_SECONDS,
    MODELS,
    fit_duration,
    fit_prompt,
    fit_ratio,
)

NAME = "Runway"
KEY_NAME = "RUNWAYML_API_SECRET"
API_URL = "https://api.dev.runwayml.com"

_OF_A_CONNECTION = {"host", "connection", "content-length", "transfer-encoding", "content-encoding", "accept-encoding"}
"""Headers of the transport, in lower case, which is not passed on: each hop sets its own."""


class Runway:
    """`retake.vendors.VideoGenerator` on Runway.

    `base_url` None means the vendor's. `ratio` ("1280:720") and `duration_s` are fitted to what `model` offers;
    `adjusted` has a sentence for the log about each change. An answer may take `timeout_s` seconds.

    Raises SettingsError for a key that cannot be sent, and for a proxy or certificates in the environment that cannot
    be used.
    """

    def __init__(
        self, base_url: str | None, key: str, *, model: str, ratio: str, duration_s: float, timeout_s: float
    ) -> None:
        self._url = base_url or API_URL
        self._vendor = Vendor(NAME, KEY_NAME, own_words, key_for_header(NAME, KEY_NAME, key))
        self._model = model
        self._ratio, other_ratio = fit_ratio(model, ratio)
        self._duration, other_duration = fit_duration(model, duration_s)
        self._timeout_s = timeout_s
        check_route(self._url)
        self.adjusted = tuple(
            f"{model} has no {setting} {asked}: {taken} is taken"
            for changed, setting, asked, taken in (
                (other_ratio, "ratio", ratio, self._ratio),
                (other_duration, "duration", f"{duration_s:g} s", f"{self._duration} s"),
            )
            if changed
        )
        self.min_poll_s = MIN_POLL_SECONDS if "runwayml.com" in bare(self._url) else 0.0

    def create(self, image: str, prompt: str) -> str:
        """See `VideoGenerator.create`."""
        text = fit_prompt(prompt)
        self._check(image, text)
        order: dict[str, Any] = {"model": self._model, "prompt_image": image, "ratio": self._ratio}
        order |= {"duration": self._duration} | ({"prompt_text": text} if text else {})
        what = f"make a {self._duration} s video with {self._model}"
        try:
            reply = self._exchange(lambda client: client.image_to_video.with_raw_response.create(**order))
        except NoReply as trouble:
            raise unanswered(self._vendor, what, trouble, paid=True) from None
        return submitted(self._vendor, what, reply, _task_id)

    def poll(self, task_id: str) -> TaskState:
        """See `VideoGenerator.poll`."""
        what = f"tell the state of task {task_id}"
        reply = self._ask(what, lambda client: client.tasks.with_raw_response.retrieve(task_id))
        task = answered(self._vendor, what, reply, _task)
        status = task["status"].upper()
        if status in ("FAILED", "CANCELLED"):
            return TaskState(failure=self._failure(task_id, task))
        return TaskState(result=task) if status == "SUCCEEDED" else TaskState(progress=_progress(task))

    def usage(self) -> dict[str, int] | None:
        """See `VideoGenerator.usage`. Includes the balance: the day's count may not change when an old task leaves its
        rolling window as a new one is added."""
        what = "tell its usage"
        try:
            reply = self._ask(what, lambda client: client.organization.with_raw_response.retrieve())
            return answered(self._vendor, what, reply, lambda body: _usage(body, self._model))
        except VendorError:
            return None

    def health(self) -> Health:
        """See `Healthy.health`. Says how many credits the organization has, and how many videos of the model it may
        still make today with all of its programs."""
        what = "tell its organization"
        reply = self._ask(what, lambda client: client.organization.with_raw_response.retrieve())
        body = answered(
            self._vendor, what, reply, lambda body: as_dict(body) if "creditBalance" in as_dict(body) else None
        )
        return _health(body, self._model)

    def test_request(self) -> str:
        """See `Healthy.test_request`."""
        what = "tell the state of a task that does not exist"
        reply = self._ask(what, lambda client: client.tasks.with_raw_response.retrieve(NO_TASK))
        if not says_missing(self._vendor, reply):
            answered(self._vendor, what, reply, _task)
        return NO_SUCH_TASK

    def _check(self, image: str, prompt: str) -> None:
        """Refuse what Runway would refuse, without a call. Raises Refused."""
        model = MODELS.get(self._model)
        if model is not None and model.needs_prompt and not prompt:
            raise Refused(Code.INVALID_INPUT, f"{NAME}: {self._model} needs a prompt. Give it one.")
        if image.startswith("data:") and len(image) > DATA_URI_LIMIT:
            raise Refused(
                Code.INVALID_INPUT,
                f"{NAME}: the picture is a data URI of {len(image):,} characters, {DATA_URI_LIMIT:,} are allowed. "
                "Make it smaller.",
            )

    def _ask(self, what: str, call: Callable[[runwayml.RunwayML], Any]) -> Reply:
        """Return the answer to a free call of the SDK. Raises PollFailed."""
        try:
            return self._exchange(call)
        except NoReply as trouble:
            raise unanswered(self._vendor, what, trouble, paid=False) from None

    def _exchange(self, call: Callable[[runwayml.RunwayML], Any]) -> Reply:
        """Return the answer to one call of the SDK, however the SDK itself reads it. Raises NoReply."""
        transport = _Transport(self._timeout_s)
        try:
            with self._client(transport) as client:
                call(client)
        except (runwayml.RunwayMLError, httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError) as error:
            if isinstance(error.__cause__, NoReply):
                raise error.__cause__ from None
            if transport.reply is None:  # a URL that the SDK cannot parse
                raise NoReply(Code.CONFIGURATION, f"{bare(self._url)!r} is not a valid URL", sent=False) from None
        assert transport.reply is not None, "the SDK gives its answers from the transport alone"
        return transport.reply

    def _client(self, transport: httpx.BaseTransport) -> runwayml.RunwayML:
        return runwayml.RunwayML(
            api_key=self._vendor.secret,
            base_url=self._url,
            max_retries=0,
            http_client=httpx.Client(transport=transport, follow_redirects=False, trust_env=False),
        )

    def _failure(self, task_id: str, task: dict[str, Any]) -> TaskFailed:
        reason = str(task.get("failure") or "")
        failure_code = str(task.get("failureCode") or "")
        code = failure_class(failure_code)
        reasons = quote(": ".join(filter(None, (failure_code, reason))), self._vendor.secret)
        advice = "Try it again." if code is Code.TASK_FAILED else "The same request will fail the same way: change it."
        return TaskFailed(code, f'{NAME} ended task {task_id} as {task["status"]}: "{reasons}". {advice}')


class _Transport(httpx.BaseTransport):
    """Sends the SDK's requests with `retake.vendors.http.exchange` and keeps the `reply`: httpx limits neither the time
    nor the size of a whole answer."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.reply: Reply | None = None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Make one exchange. Raises NoReply, which the SDK wraps."""
        headers = {name: value for name, value in request.headers.items() if name not in _OF_A_CONNECTION}
        limits: Any = {"timeout_s": self._timeout_s, "limit": JSON_LIMIT}
        self.reply = exchange(
            None, request.method, str(request.url), headers=headers, data=request.read() or None, **limits
        )
        told = [(name, value) for name, value in self.reply.headers.items() if name.lower() not in _OF_A_CONNECTION]
        return httpx.Response(self.reply.status, headers=told, content=self.reply.body)


def own_words(body: object) -> Words | None:
    """Read Runway's error body: {error: text, issues?: [{code, path, message}]}."""
    fields = as_dict(body)
    text = fields.get("error")
    if not isinstance(text, str) or not text:
        return None
    issues = fields.get("issues")
    details = [_issue(as_dict(issue)) for issue in issues] if isinstance(issues, list) else []
    return Words("", "; ".join([text, *filter(None, details)]))


def failure_class(failure_code: str) -> Code:
    """Return the code of a failed task, by its `failureCode` (docs.dev.runwayml.com/errors/task-failures)."""
    parts = failure_code.upper().split(".")
    if "SAFETY" in parts:
        return Code.REJECTED
    return Code.INVALID_INPUT if parts[0] == "ASSET" else Code.TASK_FAILED


def _issue(issue: dict[str, Any]) -> str:
    path = issue.get("path")
    where = ".".join(map(str, path)) if isinstance(path, list) else ""
    return ": ".join(filter(None, (where, str(issue.get("message") or ""))))


def _task_id(body: object) -> str | None:
    task_id = as_dict(body).get("id")
    return task_id if isinstance(task_id, str) and task_id else None


def _task(body: object) -> dict[str, Any] | None:
    """Return the task if it has a status and, if it succeeded, its video; otherwise None."""
    task = as_dict(body)
    status = task.get("status")
    if not isinstance(status, str) or not status:
        return None
    if status.upper() == "SUCCEEDED":
        output = task.get("output")
        usable = isinstance(output, list) and bool(output) and all(isinstance(url, str) and url for url in output)
        return task if usable else None
    return task


def _usage(body: object, model: str) -> dict[str, int] | None:
    models = as_dict(as_dict(as_dict(body).get("usage")).get("models"))
    generations = count(as_dict(models.get(model)).get("dailyGenerations"))
    balance = count(as_dict(body).get("creditBalance"))
    if generations is None or balance is None:
        return None
    return {"daily_generations": generations, "credit_balance": balance}


def _health(body: dict[str, Any], model: str) -> Health:
    balance, tier = number(body.get("creditBalance")), as_dict(body.get("tier"))
    limits = as_dict(as_dict(tier.get("models")).get(model))
    used = number(as_dict(as_dict(as_dict(body.get("usage")).get("models")).get(model)).get("dailyGenerations"))
    most = number(limits.get("maxDailyGenerations"))
    left = most - used if most is not None and used is not None else None
    doubts = []
    if balance is not None and balance <= 0:
        doubts.append("there are no credits left: buy some")
    if left is not None and left <= 0:
        doubts.append(f"no more videos of {model} may be made today: wait, or raise the tier")
    if tier.get("models") and not limits:
        doubts.append(f"the organization's tier has no model {model}: check API_KEYS.runwayml.model_name")
    quotas = (Quota("credits", balance), Quota(f"videos of {model} today", left, most))
    return Health("it accepts the key", quotas, tuple(doubts))


def _progress(task: dict[str, Any]) -> str:
    share = number(task.get("progress"))
    percent = f" {share:.0%}" if share is not None and 0 <= share <= 1 else ""
    return quote(f"{task['status']}{percent}")
