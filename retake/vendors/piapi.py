"""Midjourney through PiAPI, in the shape that the pipeline's predecessor used it.

Two generations of the API meet here (docs of piapi.ai: «Imagine», «Upscale», «Get Task», «User history query», and the
older «/mj/v2»): tasks are created at the unified endpoint, which wraps its answers in {code, message, data}, and their
state is asked of the older one, which does not. So every field is looked for where either would put it.
"""

import re
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import requests

from retake.clock import parse_stamp
from retake.errors import Code, PollFailed
from retake.vendors import TaskState
from retake.vendors.answers import Vendor, Words, as_dict, ended_as_failed, joined, quote
from retake.vendors.health import KNOWN_AS_NOBODYS, NOBODYS, Health, Quota
from retake.vendors.http import JsonApi, key_for_header
from retake.vendors.numbers import number
from retake.vendors.piapi_history import is_last, listing, newest_match
from retake.vendors.route import check_route

NAME = "PiAPI"
KEY_NAME = "MIDJOURNEY_API_KEY"
API_URL = "https://api.piapi.ai"
CREATE_PATH = "/api/v1/task"
FETCH_PATH = "/mj/v2/fetch"
HISTORY_PATH = "/api/open/tasks/histories"
ACCOUNT_PATH = "/account/info"
PAGE_SIZE = 100  # the largest that the vendor gives
MAX_PAGES = 20
BEFORE = timedelta(seconds=60)  # the vendor's clock and ours may differ
AFTER = timedelta(minutes=10)

_DONE = ("completed", "finished")
_FAILED = ("failed",)
_ASPECT = re.compile(r"--(ar|aspect)\b")
_PICTURE_FIELDS = ("image_url", "discord_image_url", "permanent_url", "image_urls", "temporary_image_urls")


class PiAPI:
    """`retake.vendors.Midjourney` on PiAPI.

    `endpoint` creates a task (POST), `task_endpoint` tells its state (POST); None is the vendor's own. `process_mode`
    is relax, fast or turbo; `aspect_ratio` («16:9») goes along unless the prompt has an --ar of its own. `timeout_s` is
    how long an answer may take. Raises SettingsError for a key that cannot be sent, and for a proxy or certificates in
    the environment that cannot be used.
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
        session: requests.Session | None = None,
    ) -> None:
        self._endpoint = endpoint or API_URL + CREATE_PATH
        self._task_endpoint = task_endpoint or API_URL + FETCH_PATH
        check_route(self._endpoint, self._task_endpoint)
        self._timeout_s = timeout_s
        self._process_mode = process_mode
        self._aspect_ratio = aspect_ratio
        self._vendor = Vendor(NAME, KEY_NAME, own_words, key)
        headers = {"X-API-Key": key_for_header(NAME, KEY_NAME, key)}
        self._api = JsonApi(self._vendor, headers, timeout_s=timeout_s, session=session)

    def imagine(self, prompt: str, nonce: int) -> str:
        """See `Midjourney.imagine`. A prompt that names a seed keeps it, and can then not be found by `find`."""
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
        what = f"tell the state of task {task_id}"
        task = self._api.ask(what, self._task_endpoint, {"task_id": task_id}, _task)
        status = str(task["status"]).lower()
        if status in _FAILED:
            return TaskState(failure=ended_as_failed(self._vendor, task_id, _why(task)))
        if status in _DONE:
            return TaskState(result=_result(task_id, task))
        return TaskState(progress=_progress(task))

    def find(self, asked: Mapping[str, Any]) -> str | None:
        """See `Midjourney.find`: looks through the vendor's task history around the time of asking."""
        try:
            requested_at = parse_stamp(str(asked.get("requested_at_utc")))
        except ValueError:
            return None
        start, end = requested_at - BEFORE, requested_at + AFTER
        found = newest_match(self._histories(start, end), asked, start, end)
        return None if found is None else _task_id(found) or _task_id({"task_id": found.get("id")})

    def health(self) -> Health:
        """See `Healthy.health`: the account. An endpoint that is not the vendor's own is asked for a task that nobody
        made: what it answers in its own words will do."""
        base, found, rest = self._endpoint.rstrip("/").rpartition(CREATE_PATH)
        account = (
            self._api.look_for("tell its account", base + ACCOUNT_PATH, {}, _account) if found and not rest else None
        )
        if account is None:
            self._api.look_for("tell the state of a task that nobody made", f"{self._endpoint}/{NOBODYS}", {}, _task)
            return Health("it answers, and takes the key; it tells nothing of the account")
        name, left = account
        doubts = ("the account is empty: top it up",) if left is not None and left <= 0 else ()
        return Health(f"it takes the key of the account {name!r}", (Quota("US dollars", left),), doubts)

    def test_request(self) -> str:
        """See `Healthy.test_request`: at the endpoint that tasks are asked for, which may be another than they are
        created at."""
        what = "tell the state of a task that nobody made"
        self._api.ask_for(what, self._task_endpoint, {"task_id": NOBODYS}, _task)
        return KNOWN_AS_NOBODYS

    def _create(self, task_type: str, order: dict[str, Any]) -> str:
        body = {"model": "midjourney", "task_type": task_type, "input": order, "config": {"service_mode": ""}}
        return self._api.submit(f"start an {task_type} task", self._endpoint, body, _task_id)

    def _histories(self, start: datetime, end: datetime) -> Iterator[dict[str, Any]]:
        """The tasks that the vendor lists for that time, as far as it answers within the time of a call."""
        base, found, rest = self._endpoint.rstrip("/").rpartition(CREATE_PATH)
        if not found or rest:
            return
        query = {"model": "mj", "start_time": int(start.timestamp()), "end_time": int(end.timestamp())}
        seen, end_s = 0, time.monotonic() + self._timeout_s
        for page in range(1, MAX_PAGES + 1):
            page_query = {**query, "page": page, "page_size": PAGE_SIZE}
            try:
                answer = self._api.look("list its tasks", base + HISTORY_PATH, page_query, listing)
            except PollFailed:
                return
            tasks = [as_dict(task) for task in answer["data"]]
            yield from tasks
            seen += len(tasks)
            if not tasks or is_last(answer, seen, len(tasks) < PAGE_SIZE) or time.monotonic() > end_s:
                return


def own_words(body: object) -> Words | None:
    """PiAPI's error body: {code, message, data?}; the reason may lie deeper, in data.error."""
    fields = as_dict(body)
    error = as_dict(as_dict(fields.get("data")).get("error")) or as_dict(fields.get("error"))
    reasons = (fields.get("message"), error.get("message"), error.get("raw_message"), error.get("detail"))
    text = joined(reasons)
    if not text or not ("code" in fields or error):
        return None
    return Words(str(error.get("code") or fields.get("code") or ""), text)


def _task_id(body: object) -> str | None:
    """The id, wherever an answer has it."""
    fields = as_dict(body)
    for place in (fields.get("data"), fields.get("result"), fields):
        task_id = as_dict(place).get("task_id")
        if isinstance(task_id, (str, int)) and not isinstance(task_id, bool) and str(task_id).strip():
            return str(task_id).strip()
    return None


def _task(body: object) -> dict[str, Any] | None:
    """The task's own object: in an envelope, or the answer itself."""
    fields = as_dict(body)
    for place in (as_dict(fields.get("data")), fields):
        if isinstance(place.get("status"), str) and place["status"]:
            return place
    return None


def _account(body: object) -> tuple[str, float | None] | None:
    """The account's name, and what is left in it in US dollars."""
    data = as_dict(as_dict(body).get("data"))
    return (quote(str(data.get("account_name") or "")), number(data.get("equivalent_in_usd"))) if data else None


def _output(task: Mapping[str, Any]) -> dict[str, Any]:
    return as_dict(task.get("output")) or as_dict(task.get("task_result"))


def _result(task_id: str, task: Mapping[str, Any]) -> dict[str, Any]:
    """The vendor's result with an `image_url`, whichever field it put the picture into. Raises PollFailed."""
    output = _output(task)
    for field in _PICTURE_FIELDS:
        urls = output.get(field)
        url = urls[0] if isinstance(urls, list) and urls else urls
        if isinstance(url, str) and url:
            return {**output, "image_url": url}
    raise PollFailed(
        Code.BAD_ANSWER,
        f"{NAME} calls task {task_id} finished, but gives no picture. Look at the task in its workspace.",
    )


def _progress(task: Mapping[str, Any]) -> str:
    output = _output(task)
    share = number(output.get("progress") or output.get("task_progress") or task.get("progress"))
    percent = f" {share:g} %" if share is not None else ""
    return quote(f"{task['status'].lower()}{percent}")


def _why(task: Mapping[str, Any]) -> str:
    """The reasons of a failed task, from every place where the two generations put them."""
    error, output = as_dict(task.get("error")), _output(task)
    listed = output.get("error_messages")
    reasons = [
        error.get("message"),
        error.get("raw_message"),
        error.get("detail"),
        output.get("message"),
        task.get("message"),
    ]
    reasons += listed if isinstance(listed, list) else [listed]
    return joined(reasons)
