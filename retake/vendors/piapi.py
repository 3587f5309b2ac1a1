"""Midjourney through PiAPI.

Two generations of the API meet here (docs of piapi.ai: "Imagine", "Upscale", "Get Task", "User history query", and the
older "/mj/v2"): tasks are created at the unified endpoint, which wraps its answers in {code, message, data}, and polled
at the older one, which does not. So every field is read from wherever either of them puts it.
"""

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from retake.clock import parse_stamp
from retake.errors import Code, PollFailed
from retake.vendors import NO_SUCH_TASK, NO_TASK, Health, Quota, TaskState
from retake.vendors.answers import Vendor, Words, as_dict, count, ended_as_failed, joined, number, quote, reasons_in
from retake.vendors.http import JsonApi, check_route, key_for_header

if TYPE_CHECKING:
    from retake.vendors.kept import KeptConnections

NAME = "PiAPI"
KEY_NAME = "MIDJOURNEY_API_KEY"
API_URL = "https://api.piapi.ai"
CREATE_PATH = "/api/v1/task"
FETCH_PATH = "/mj/v2/fetch"
HISTORY_PATH = "/api/open/tasks/histories"
ACCOUNT_PATH = "/account/info"
PAGE_SIZE = 100  # the vendor's maximum
MAX_PAGES = 20
BEFORE = timedelta(seconds=60)  # how long before a call its task may seem to be created, as clocks differ
AFTER = timedelta(minutes=10)  # how long after

_DONE = ("completed", "finished")
_FAILED = ("failed",)
_SEED = re.compile(r"--seed[\s=]+(\d+)")
_OLDEST = datetime.min.replace(tzinfo=UTC)
_ASPECT = re.compile(r"--(ar|aspect)\b")
_PICTURE_FIELDS = ("image_url", "discord_image_url", "permanent_url", "image_urls", "temporary_image_urls")


class PiAPI:
    """The `retake.vendors.Midjourney` for PiAPI.

    `endpoint` creates a task (POST), `task_endpoint` returns its state (POST); None means the vendor's. `process_mode`
    is relax, fast or turbo; `aspect_ratio` ("16:9") is sent unless the prompt has its own --ar. `timeout_s` limits the
    time to an answer.

    Raises SettingsError for a key that cannot be sent, and for a proxy or certificates in the environment that cannot
    be used.
    """

    def __init__(
        self,
        endpoint: str | None,
        task_endpoint: str | None,
        key: str,
        *,
        process_mode: str,
        aspect_ratio: str,
        timeout_s: float,
        kept: "KeptConnections | None" = None,
    ) -> None:
        self._endpoint = endpoint or API_URL + CREATE_PATH
        self._task_endpoint = task_endpoint or API_URL + FETCH_PATH
        check_route(self._endpoint, self._task_endpoint)
        self._timeout_s = timeout_s
        self._process_mode = process_mode
        self._aspect_ratio = aspect_ratio
        self._vendor = Vendor(NAME, KEY_NAME, own_words, key)
        headers = {"X-API-Key": key_for_header(NAME, KEY_NAME, key)}
        self._api = JsonApi(self._vendor, headers, timeout_s=timeout_s, kept=kept)

    def imagine(self, prompt: str, nonce: int) -> str:
        """See `Midjourney.imagine`. A prompt with a --seed keeps it; `find` cannot find such an order."""
        text = prompt.strip()
        if "--seed" not in text:
            text = f"{text} --seed {nonce}"
        order = {"prompt": text, "process_mode": self._process_mode, "skip_prompt_check": False}
        if self._aspect_ratio and not _ASPECT.search(text):
            order["aspect_ratio"] = self._aspect_ratio
        return self._create("imagine", order)

    def upscale(self, task_id: str, index: int) -> str:
        """See `Midjourney.upscale`."""
        return self._create("upscale", {"origin_task_id": task_id, "index": str(index)})

    def fetch(self, task_id: str) -> TaskState:
        """See `Midjourney.fetch`."""
        what = f"show the state of task {task_id}"
        task = self._api.ask(what, self._task_endpoint, {"task_id": task_id}, _task)
        status = str(task["status"]).lower()
        if status in _FAILED:
            return TaskState(failure=ended_as_failed(self._vendor, task_id, _why(task)))
        if status in _DONE:
            return TaskState(result=_result(task_id, task))
        return TaskState(progress=_progress(task))

    def find(self, asked: Mapping[str, Any]) -> str | None:
        """See `Midjourney.find`. Searches the vendor's task history around the time of the call.

        If the vendor's clock differs from ours, also around the time that it showed then.
        """
        try:
            requested_at = parse_stamp(str(asked.get("requested_at_utc")))
        except ValueError:
            return None
        found = self._made_around(requested_at, asked)
        if found is None and (ahead := self._api.clock_ahead()):
            found = self._made_around(requested_at + ahead, asked)
        return None if found is None else _task_id(found) or _task_id({"task_id": found.get("id")})

    def _made_around(self, moment: datetime, asked: Mapping[str, Any]) -> dict[str, Any] | None:
        start, end = moment - BEFORE, moment + AFTER
        return _newest_match(self._histories(start, end), asked, start, end)

    def health(self) -> Health:
        """See `Healthy.health`. Reads the account or, at a custom endpoint, a task that does not exist."""
        base = self._base()
        account = None if base is None else self._api.look_for("show its account", base + ACCOUNT_PATH, {}, _account)
        if account is None:
            self._api.look_for("show the state of a task that does not exist", f"{self._endpoint}/{NO_TASK}", {}, _task)
            return self._api.health("it answers and accepts the key; it says nothing about the account")
        name, left = account
        doubts = ("the account is empty: top it up",) if left is not None and left <= 0 else ()
        return self._api.health(f"it accepts the key of the account {name!r}", (Quota("US dollars", left),), doubts)

    def test_request(self) -> str:
        """See `Healthy.test_request`. Calls the endpoint for polls, which may differ from the one for orders."""
        what = "show the state of a task that does not exist"
        self._api.ask_for(what, self._task_endpoint, {"task_id": NO_TASK}, _task)
        return NO_SUCH_TASK

    def _base(self) -> str | None:
        """Return the base URL of the vendor's other calls, or None at a custom endpoint."""
        base, found, rest = self._endpoint.rstrip("/").rpartition(CREATE_PATH)
        return base if found and not rest else None

    def _create(self, task_type: str, order: dict[str, Any]) -> str:
        body = {"model": "midjourney", "task_type": task_type, "input": order, "config": {"service_mode": ""}}
        return self._api.submit(f"start an {task_type} task", self._endpoint, body, _task_id)

    def _histories(self, start: datetime, end: datetime) -> Iterator[dict[str, Any]]:
        """Yield the tasks that the vendor lists for that period, for no longer than one call may take."""
        base = self._base()
        if base is None:
            return
        query = {"model": "mj", "start_time": int(start.timestamp()), "end_time": int(end.timestamp())}
        seen, end_s = 0, time.monotonic() + self._timeout_s
        for page in range(1, MAX_PAGES + 1):
            page_query = {**query, "page": page, "page_size": PAGE_SIZE}
            try:
                answer = self._api.look("list its tasks", base + HISTORY_PATH, page_query, _listing)
            except PollFailed:
                return
            tasks = [as_dict(task) for task in answer["data"]]
            yield from tasks
            seen += len(tasks)
            if not tasks or _is_last(answer, seen, len(tasks) < PAGE_SIZE) or time.monotonic() > end_s:
                return


def own_words(body: object) -> Words | None:
    """Parse PiAPI's error body: {code, message, data?}; the reason may be in data.error."""
    fields = as_dict(body)
    error = as_dict(as_dict(fields.get("data")).get("error")) or as_dict(fields.get("error"))
    text = joined([fields.get("message"), *reasons_in(error)])
    if not text or not ("code" in fields or error):
        return None
    return Words(str(error.get("code") or fields.get("code") or ""), text)


def _task_id(body: object) -> str | None:
    """Return the task's id, wherever it is in an answer, or None."""
    fields = as_dict(body)
    for place in (fields.get("data"), fields.get("result"), fields):
        task_id = as_dict(place).get("task_id")
        if isinstance(task_id, (str, int)) and not isinstance(task_id, bool) and str(task_id).strip():
            return str(task_id).strip()
    return None


def _task(body: object) -> dict[str, Any] | None:
    """Return the task's object, in an envelope or not, or None."""
    fields = as_dict(body)
    for place in (as_dict(fields.get("data")), fields):
        if isinstance(place.get("status"), str) and place["status"]:
            return place
    return None


def _account(body: object) -> tuple[str, float | None] | None:
    """Return the account's name and its balance in US dollars, or None."""
    data = as_dict(as_dict(body).get("data"))
    return (quote(str(data.get("account_name") or "")), number(data.get("equivalent_in_usd"))) if data else None


def _output(task: Mapping[str, Any]) -> dict[str, Any]:
    return as_dict(task.get("output")) or as_dict(task.get("task_result"))


def _result(task_id: str, task: Mapping[str, Any]) -> dict[str, Any]:
    """Return the vendor's result with `image_url`, whichever field has the picture. Raises PollFailed."""
    output = _output(task)
    for field in _PICTURE_FIELDS:
        urls = output.get(field)
        url = urls[0] if isinstance(urls, list) and urls else urls
        if isinstance(url, str) and url:
            return {**output, "image_url": url}
    raise PollFailed(
        Code.BAD_ANSWER,
        f"{NAME} reports task {task_id} as finished, but gives no picture. Look at the task in its workspace.",
    )


def _progress(task: Mapping[str, Any]) -> str:
    output = _output(task)
    share = number(output.get("progress") or output.get("task_progress") or task.get("progress"))
    percent = f" {share:g} %" if share is not None else ""
    return quote(f"{task['status'].lower()}{percent}")


def _why(task: Mapping[str, Any]) -> str:
    """Return why a task failed, from every field that either generation of the API uses."""
    error, output = as_dict(task.get("error")), _output(task)
    listed = output.get("error_messages")
    more = listed if isinstance(listed, list) else [listed]
    return joined([*reasons_in(error), output.get("message"), task.get("message"), *more])


# --- the history of tasks -------------------------------------------------------------------------------------------
# The vendor documents how to query it ("User history query"), but not the format of an item. So an item is read
# tolerantly: the order as an object or as JSON text, times as ISO 8601 or in seconds, and any field may be missing.


def _listing(body: object) -> dict[str, Any] | None:
    """Return the page of a listing, {data: [task…], page, size, total}, in an envelope or not, or None."""
    fields = as_dict(body)
    for place in (as_dict(fields.get("data")), fields):
        if isinstance(place.get("data"), list):
            return place
    return None


def _is_last(page: Mapping[str, Any], seen: int, is_short: bool) -> bool:
    """Return whether this page is the last, after `seen` tasks in all. Without a total, a short page is the last."""
    total = count(page.get("total"))
    return seen >= total if total is not None and total > 0 else is_short


def _newest_match(
    tasks: Iterable[dict[str, Any]], asked: Mapping[str, Any], start: datetime, end: datetime
) -> dict[str, Any] | None:
    """Return the newest of `tasks` that matches `asked` (see `Midjourney.find`) and was created in that period."""
    matches = [task for task in tasks if _is_it(task, asked) and _created_in(task, start, end)]
    # `max` returns the first of equals, and the vendor lists the newest first.
    return max(matches, key=lambda task: _created(task) or _OLDEST, default=None)


def _is_it(task: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    step, order = asked.get("step"), _order(task)
    if step not in ("imagine", "upscale") or step not in str(task.get("task_type") or step).lower():
        return False
    if step == "imagine":
        seeds = _SEED.findall(str(order.get("prompt") or task.get("prompt") or ""))
        return str(asked.get("nonce")) in seeds
    wanted = (asked.get("origin_task_id"), asked.get("index"))
    has = (order.get("origin_task_id"), order.get("index"))
    return None not in wanted and tuple(map(str, has)) == tuple(map(str, wanted))


def _order(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return the order from which a task was created."""
    order = task.get("input")
    if isinstance(order, str):
        try:
            order = json.loads(order)
        except (ValueError, RecursionError):
            return {"prompt": order}
    return as_dict(order)


def _created(task: Mapping[str, Any]) -> datetime | None:
    """Return when the vendor created the task, or None if it does not say."""
    moment = as_dict(task.get("meta")).get("created_at") or task.get("created_at")
    seconds = None if isinstance(moment, str) else number(moment)
    try:
        created = parse_stamp(str(moment)) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return created if created.year > 1970 else None  # a zero value: 0001-01-01, 1970-01-01


def _created_in(task: Mapping[str, Any], start: datetime, end: datetime) -> bool:
    created = _created(task)
    return created is None or start <= created <= end
