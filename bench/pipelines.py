"""Buckets in the states that are measured."""

import json
import os
from pathlib import Path

from retake.sandbox import Sandbox
from retake.settings import Settings, sandboxed
from retake.story.documents import GROUP

ROOT = Path(__file__).resolve().parent.parent
MANAGER = str(ROOT / "b2_storage_manager.py")

KEYS = {"MIDJOURNEY_API_KEY": "bench", "RUNWAYML_API_SECRET": "key_bench", "OPENAI_API_KEY": "bench"}


def environment(bucket: Path, sandbox: Sandbox | None = None) -> dict[str, str]:
    """What a tick's process is given. Byte code may be cached, as it is under cron."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RETAKE_", "PYTHON"))}
    pointed = {"RETAKE_SANDBOX_URL": sandbox.url} if sandbox else {}
    config = str(ROOT / "config" / "config.json")
    return {**kept, **KEYS, **pointed, "RETAKE_CONFIG": config, "RETAKE_STORAGE_URL": f"file:{bucket}"}


def full(bucket: Path) -> Path:
    """Every folder holds a ready group: there is nothing to do."""
    for folder in ("444", "555", "666"):
        (bucket / folder).mkdir(parents=True)
        for suffix in GROUP:
            (bucket / folder / f"20260101-0{folder}.{suffix}").write_bytes(b"{}")
    _put(bucket, "public", {"processing_lock": False, "generation_id": [], "empty": []})
    _put(bucket, "gen", {"generation_id": None})
    return bucket


def waiting(bucket: Path, sandbox: Sandbox) -> Path:
    """A Midjourney task is in flight, and never ends."""
    import requests

    settings = sandboxed(Settings(), sandbox.url)
    sandbox.order("imagine=never-ends")
    body = {"model": "midjourney", "task_type": "imagine", "input": {"prompt": "a lighthouse"}, "config": {}}
    answer = requests.post(settings.midjourney.endpoint, json=body, headers={"X-API-Key": "bench"}, timeout=10).json()
    task = {"task_id": answer["data"]["task_id"], "task_type": "imagine", "requested_at_utc": "2099-01-01T00:00:00Z"}
    (bucket / "666").mkdir(parents=True)
    (bucket / "666" / "20260101-0000.json").write_bytes(b"{}")
    _put(bucket, "gen", {"generation_id": "20260101-0000"})
    _put(bucket, "midjourney", {"midjourney_task": task, "status": "waiting_for_imagine"})
    return bucket


def _put(bucket: Path, name: str, document: object) -> None:
    (bucket / "config").mkdir(exist_ok=True)
    (bucket / "config" / f"config_{name}.json").write_text(json.dumps(document))
