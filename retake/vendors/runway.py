"""Videos from Runway. They are ordered through its official SDK (`retake.vendors.runway_orders`).

Free queries do not use the SDK, which takes longer to load than the rest of a tick, and whose models are lenient in the
wrong direction: an unknown status or a missing field turns any task into a pending one (runwayml 5.24,
`types/task_retrieve_response.py`).
"""

from typing import TYPE_CHECKING, Any

from retake.errors import Code, Refused, TaskFailed, VendorError
from retake.vendors import NO_SUCH_TASK, NO_TASK, Health, Quota, TaskState
from retake.vendors.answers import (
    NoReply,
    Vendor,
    Words,
    as_dict,
    count,
    number,
    quote,
    submitted,
    unanswered,
)
from retake.vendors.http import JsonApi, bare, check_route, key_for_header
from retake.vendors.runway_limits import (
    DATA_URI_LIMIT,
    MIN_POLL_SECONDS,
    MODELS,
    fit_duration,
    fit_prompt,
    fit_ratio,
)

if TYPE_CHECKING:
    from retake.vendors.kept import KeptConnections

NAME = "Runway"
KEY_NAME = "RUNWAYML_API_SECRET"
API_URL = "https://api.dev.runwayml.com"
API_VERSION = "2024-11-06"
"""Required value of the header X-Runway-Version [docs.dev.runwayml.com/api-details/versions]; the SDK sends the
same."""


class Runway:
    """The `retake.vendors.VideoGenerator` for Runway.

    `base_url` None means the vendor's. `ratio` ("1280:720") and `duration_s` are fitted to what `model` offers;
    `adjusted` has a sentence about each change, for the log. `timeout_s` limits the time to an answer. Free queries use
    connections of `kept`, if given.

    Raises SettingsError for a key that cannot be sent, and for a proxy or certificates in the environment that cannot
    be used.
    """

    def __init__(
        self,
        base_url: str | None,
        key: str,
        *,
        model: str,
        ratio: str,
        duration_s: float,
        timeout_s: float,
        kept: "KeptConnections | None" = None,
    ) -> None:
        self._url = base_url or API_URL
        self._vendor = Vendor(NAME, KEY_NAME, own_words, key_for_header(NAME, KEY_NAME, key))
        self._model = model
        self._ratio, other_ratio = fit_ratio(model, ratio)
        self._duration, other_duration = fit_duration(model, duration_s)
        self._timeout_s = timeout_s
        check_route(self._url)
        secret = self._vendor.secret
        headers = {"Authorization": f"Bearer {secret}", "X-Runway-Version": API_VERSION, "Accept": "application/json"}
        self._api = JsonApi(self._vendor, headers, timeout_s=timeout_s, kept=kept)
        self.adjusted = tuple(
            f"{model} has no {setting} {asked}: {taken} is taken"
            for changed, setting, asked, taken in (
                (other_ratio, "ratio", ratio, self._ratio),
                (other_duration, "duration", f"{duration_s:g} s", f"{self._duration} s"),
            )
            if changed
        )
        self.min_poll_s = MIN_POLL_SECONDS if "runwayml.com" in bare(self._url) else 0.0

    def prepare(self) -> None:
        """See `OrderPreparation.prepare`. Loading the SDK takes half a second and much memory."""
        import retake.vendors.runway_orders  # noqa: F401

    def create(self, image: str, prompt: str) -> str:
        """See `VideoGenerator.create`."""
        from retake.vendors.runway_orders import send_order

        text = fit_prompt(prompt)
        self._check(image, text)
        order: dict[str, Any] = {"model": self._model, "prompt_image": image, "ratio": self._ratio}
        order |= {"duration": self._duration} | ({"prompt_text": text} if text else {})
        what = f"make a {self._duration} s video with {self._model}"
        try:
            reply = send_order(self._url, self._vendor.secret, order, self._timeout_s)
        except NoReply as trouble:
            raise unanswered(self._vendor, what, trouble, paid=True) from None
        return submitted(self._vendor, what, reply, _task_id)

    def poll(self, task_id: str) -> TaskState:
        """See `VideoGenerator.poll`."""
        what = f"show the state of task {task_id}"
        task = self._api.look(what, self._place("tasks", task_id), {}, _task)
        status = task["status"].upper()
        if status in ("FAILED", "CANCELLED"):
            return TaskState(failure=self._failure(task_id, task))
        return TaskState(result=task) if status == "SUCCEEDED" else TaskState(progress=_progress(task))

    def usage(self) -> dict[str, int] | None:
        """See `VideoGenerator.usage`. Includes the balance, since the day's count may stay the same: an old task can
        leave its rolling window just as a new one is added."""
        try:
            place = self._place("organization")
            return self._api.look("show its usage", place, {}, lambda body: _usage(body, self._model))
        except VendorError:
            return None

    def health(self) -> Health:
        """See `Healthy.health`. Reports the organization's credits, and how many videos of the model it may still make
        today with all of its programs."""
        body = self._api.look("show its organization", self._place("organization"), {}, _organization)
        return self._api.health("it accepts the key", *_account(body, self._model))

    def test_request(self) -> str:
        """See `Healthy.test_request`."""
        self._api.look_for("show the state of a task that does not exist", self._place("tasks", NO_TASK), {}, _task)
        return NO_SUCH_TASK

    def _place(self, *names: str) -> str:
        from urllib.parse import quote as quote_path

        return "/".join([self._url.rstrip("/"), "v1", *(quote_path(name, safe="") for name in names)])

    def _check(self, image: str, prompt: str) -> None:
        """Raise Refused, without a call, for what Runway would refuse."""
        model = MODELS.get(self._model)
        if model is not None and model.needs_prompt and not prompt:
            raise Refused(Code.INVALID_INPUT, f"{NAME}: {self._model} needs a prompt. Give it one.")
        if image.startswith("data:") and len(image) > DATA_URI_LIMIT:
            raise Refused(
                Code.INVALID_INPUT,
                f"{NAME}: the picture is a data URI of {len(image):,} characters, {DATA_URI_LIMIT:,} are allowed. "
                "Make it smaller.",
            )

    def _failure(self, task_id: str, task: dict[str, Any]) -> TaskFailed:
        reason = str(task.get("failure") or "")
        failure_code = str(task.get("failureCode") or "")
        code = failure_class(failure_code)
        reasons = quote(": ".join(filter(None, (failure_code, reason))), self._vendor.secret)
        advice = "Try it again." if code is Code.TASK_FAILED else "The same request will fail the same way: change it."
        return TaskFailed(code, f'{NAME} ended task {task_id} as {task["status"]}: "{reasons}". {advice}')


def own_words(body: object) -> Words | None:
    """Parse Runway's error body: {error: text, issues?: [{code, path, message}]}."""
    fields = as_dict(body)
    text = fields.get("error")
    if not isinstance(text, str) or not text:
        return None
    issues = fields.get("issues")
    details = [_issue(as_dict(issue)) for issue in issues] if isinstance(issues, list) else []
    return Words("", "; ".join([text, *filter(None, details)]))


def failure_class(failure_code: str) -> Code:
    """Return the code of a failed task, from its `failureCode` (docs.dev.runwayml.com/errors/task-failures)."""
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


def _organization(body: object) -> dict[str, Any] | None:
    organization = as_dict(body)
    return organization if "creditBalance" in organization else None


def _usage(body: object, model: str) -> dict[str, int] | None:
    models = as_dict(as_dict(as_dict(body).get("usage")).get("models"))
    generations = count(as_dict(models.get(model)).get("dailyGenerations"))
    balance = count(as_dict(body).get("creditBalance"))
    if generations is None or balance is None:
        return None
    return {"daily_generations": generations, "credit_balance": balance}


def _account(body: dict[str, Any], model: str) -> tuple[tuple[Quota, ...], tuple[str, ...]]:
    """Return the remaining quotas, and what will prevent a paid call."""
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
    return (Quota("credits", balance), Quota(f"videos of {model} today", left, most)), tuple(doubts)


def _progress(task: dict[str, Any]) -> str:
    share = number(task.get("progress"))
    percent = f" {share:.0%}" if share is not None and 0 <= share <= 1 else ""
    return quote(f"{task['status']}{percent}")
