"""Midjourney through LegNext, the vendor that PiAPI recommends as its successor.

From docs.legnext.ai ("Text to Image", "Upscale Image", "Get Task Status"): an answer is the job itself, without an
envelope; Midjourney's parameters are flags in the text; pictures count from 0. There is neither an idempotency key nor
a list of jobs, so a job whose id was lost cannot be found.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from retake.errors import Code, PollFailed
from retake.vendors import NO_SUCH_TASK, NO_TASK, Health, TaskState
from retake.vendors.answers import Vendor, Words, as_dict, ended_as_failed, joined, quote, reasons_in
from retake.vendors.http import JsonApi, check_route, key_for_header

if TYPE_CHECKING:
    from retake.vendors.kept import KeptConnections

NAME = "LegNext"
KEY_NAME = "MIDJOURNEY_API_KEY"
API_URL = "https://api.legnext.ai/api"
SUBTLE = 0  # the upscale that keeps the picture; 1 is "creative" and adds details

_MODE_FLAGS = {"relax": "--relax", "fast": "", "turbo": "--turbo"}  # without a flag it is fast


class LegNext:
    """The `retake.vendors.Midjourney` for LegNext.

    `endpoint` is the base URL; None means the vendor's. `process_mode` (relax, fast or turbo) and `aspect_ratio`
    ("16:9") are added as flags unless the prompt has its own. `timeout_s` limits the time to an answer.

    Raises SettingsError for a key that cannot be sent, and for a proxy or certificates in the environment that cannot
    be used.
    """

    def __init__(
        self,
        endpoint: str | None,
        key: str,
        *,
        process_mode: str,
        aspect_ratio: str,
        timeout_s: float,
        kept: "KeptConnections | None" = None,
    ) -> None:
        self._url = (endpoint or API_URL).rstrip("/")
        check_route(self._url)
        self._process_mode = process_mode
        self._aspect_ratio = aspect_ratio
        # It answers 401 to a wrong key, and 403 to a sensitive prompt.
        self._vendor = Vendor(NAME, KEY_NAME, own_words, key, forbidden=Code.REJECTED)
        headers = {"x-api-key": key_for_header(NAME, KEY_NAME, key)}
        self._api = JsonApi(self._vendor, headers, timeout_s=timeout_s, kept=kept)

    def imagine(self, prompt: str, nonce: int) -> str:
        """See `Midjourney.imagine`. A prompt with a --seed keeps it."""
        text = _flagged(prompt.strip(), "seed", f"--seed {nonce}")
        if self._aspect_ratio:
            text = _flagged(text, "ar|aspect", f"--ar {self._aspect_ratio}")
        text = _flagged(text, "relax|fast|turbo", _MODE_FLAGS[self._process_mode])
        return self._submit("start an imagine job", "diffusion", {"text": text})

    def upscale(self, task_id: str, index: int) -> str:
        """See `Midjourney.upscale`."""
        order = {"jobId": task_id, "imageNo": index - 1, "type": SUBTLE}
        return self._submit("start an upscale job", "upscale", order)

    def fetch(self, task_id: str) -> TaskState:
        """See `Midjourney.fetch`. A result also has `temporary_image_urls`: the single pictures, if any."""
        from urllib.parse import quote as quote_path

        url = f"{self._url}/v1/job/{quote_path(task_id, safe='')}"
        job = self._api.look(f"show the state of job {task_id}", url, {}, _job)
        status = job["status"].lower()
        if status == "failed":
            reasons = joined(reasons_in(as_dict(job.get("error"))))
            return TaskState(failure=ended_as_failed(self._vendor, task_id, reasons))
        if status == "completed":
            return TaskState(result=_result(task_id, job))
        return TaskState(progress=quote(status))

    def find(self, asked: Mapping[str, Any]) -> str | None:
        """See `Midjourney.find`. This vendor has no list of jobs."""
        return None

    def health(self) -> Health:
        """See `Healthy.health`. This vendor says nothing about the account, so this polls a job that does not exist."""
        self.test_request()
        return self._api.health("it answers and accepts the key; it says nothing about the account")

    def test_request(self) -> str:
        """See `Healthy.test_request`."""
        self._api.look_for("show the state of a job that does not exist", f"{self._url}/v1/job/{NO_TASK}", {}, _job)
        return NO_SUCH_TASK

    def _submit(self, what: str, path: str, order: Mapping[str, Any]) -> str:
        return self._api.submit(what, f"{self._url}/v1/{path}", order, _job_id)


def own_words(body: object) -> Words | None:
    """Parse LegNext's error body: {code, message, raw_message, detail}, in some answers below "error"."""
    fields = as_dict(body)
    for error in (as_dict(fields.get("error")), fields):
        text = joined(reasons_in(error))
        if text and "code" in error:
            return Words(str(error["code"] or ""), text)
    return None


def _flagged(text: str, names: str, flag: str) -> str:
    """Return `text` with `flag`, unless it already has a flag of `names` (a regular expression)."""
    return text if re.search(rf"--({names})\b", text) else f"{text} {flag}".rstrip()


def _job_id(body: object) -> str | None:
    job_id = as_dict(body).get("job_id")
    return job_id.strip() or None if isinstance(job_id, str) else None


def _job(body: object) -> dict[str, Any] | None:
    job = as_dict(body)
    status = job.get("status")
    return job if isinstance(status, str) and status else None


def _result(job_id: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the vendor's output with `image_url` and `temporary_image_urls`. Raises PollFailed if it has no picture.

    `image_url` is the grid of an imagine job, or the upscaled picture; the documentation also shows jobs without it.
    """
    output = as_dict(job.get("output"))
    listed = output.get("image_urls")
    singles = [url for url in listed if isinstance(url, str) and url] if isinstance(listed, list) else []
    picture = output.get("image_url") or next(iter(singles), None)
    if not isinstance(picture, str):
        raise PollFailed(
            Code.BAD_ANSWER,
            f"{NAME} reports job {job_id} as completed, but gives no picture. Look at the job in its dashboard.",
        )
    return {**output, "image_url": picture, "temporary_image_urls": singles}
