"""A client of the sandbox's vendors."""

from typing import Any

import requests

from retake.sandbox import Pace, Sandbox

AT_ONCE = Pace(0, 0, 0)
TIMEOUT_S = 60.0  # a guard against hanging, not a measurement


class Customer:
    """Calls the stand-ins as a program would; any key is accepted."""

    def __init__(self, sandbox: Sandbox, session: requests.Session) -> None:
        self.url, self.session = sandbox.url, session

    def post(self, path: str, body: Any, timeout: float = TIMEOUT_S, **headers: str) -> requests.Response:
        return self.session.post(f"{self.url}{path}", json=body, timeout=timeout, headers=headers)

    def get(self, path: str, timeout: float = TIMEOUT_S, **headers: str) -> requests.Response:
        url = path if path.startswith("http") else f"{self.url}{path}"
        return self.session.get(url, timeout=timeout, headers=headers)

    def task(self, task_type: str, timeout: float = TIMEOUT_S, **wish: Any) -> requests.Response:
        body = {"model": "midjourney", "task_type": task_type, "input": wish}
        return self.post("/piapi/api/v1/task", body, timeout, **{"X-API-Key": "any"})

    def imagine(self, prompt: str = "mountains at dawn", **wish: Any) -> str:
        return self.task("imagine", prompt=prompt, **wish).json()["data"]["task_id"]

    def upscale(self, origin: str, index: str = "1") -> str:
        return self.task("upscale", origin_task_id=origin, index=index).json()["data"]["task_id"]

    def look(self, task_id: str) -> dict[str, Any]:
        return self.get(f"/piapi/api/v1/task/{task_id}", **{"X-API-Key": "any"}).json()["data"]

    def fetch(self, task_id: str) -> requests.Response:
        return self.post("/piapi/mj/v2/fetch", {"task_id": task_id}, **{"X-API-Key": "any"})

    def legnext(self, path: str, timeout: float = TIMEOUT_S, **wish: Any) -> requests.Response:
        return self.post(f"/legnext/api/v1/{path}", wish, timeout, **{"x-api-key": "any"})

    def diffuse(self, text: str = "mountains at dawn") -> str:
        return self.legnext("diffusion", text=text).json()["job_id"]

    def job(self, job_id: str) -> dict[str, Any]:
        return self.get(f"/legnext/api/v1/job/{job_id}", **{"x-api-key": "any"}).json()

    def chat(self, *texts: str, timeout: float = TIMEOUT_S, **more: Any) -> requests.Response:
        messages = [{"role": "user", "content": text} for text in texts]
        body = {"model": "any", "messages": messages, "response_format": {"type": "json_object"}} | more
        return self.post("/openai/v1/chat/completions", body, timeout, Authorization="Bearer any")
