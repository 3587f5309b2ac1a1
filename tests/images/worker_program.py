"""A worker as a subprocess, with the real command line."""

import json
import os
from typing import Any

from served_program import ROOT, ServedProgram
from worker_world import WorkerWorld

KEYS = "alice=alices-key,*=key-of-all"


class WorkerProgram(ServedProgram):
    """A process of `retake images worker`, in the folder and on the services of a world."""

    def __init__(
        self, world: WorkerWorld, name: str = "Worker-A", *, queue: str = "TextQueue", drain: float = 5, **images: Any
    ) -> None:
        self.name = name
        quick = {
            "comfyui_urls": [it.url for it in world.sandboxes],
            "comfyui_check_seconds": 0.3,
            "comfyui_timeout_seconds": 20,
            "worker_silence_seconds": 1.5,
            "retry_seconds": 0.05,
            "start_seconds": 60,
        }
        config = world.folder / f"config-{name}.json"
        config.write_text(json.dumps({"IMAGES": {**quick, **images}}))
        environ = {
            "PATH": os.environ["PATH"],
            "RETAKE_CONFIG": str(config),
            "REDIS_URL": world.redis_url,
            "RABBITMQ_URL": world.rabbitmq_url,
            "IMAGES_STORAGE_URL": f"file:{world.folder / 'bucket'}",
            "IMAGES_KEYS": KEYS,
            "PYTHONPATH": str(ROOT),
        }
        command = ["-m", "retake", "images", "worker", "--queue", queue, "--name", name, "--port", "0"]
        command += ["--drain", str(drain)]
        super().__init__(command, world.folder, environ, log=f"{name}.log", key="alices-key")
        world.stack.callback(self.kill)

    def health(self) -> Any:
        return self.ask("GET", "/health")[1]
