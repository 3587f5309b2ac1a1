"""Prepares buckets in the states to be measured."""

import json
import os
from pathlib import Path

from retake.sandbox import Sandbox
from retake.story.documents import GROUP
from retake.story.settings import Settings, sandboxed

ROOT = Path(__file__).resolve().parent.parent
MANAGER = str(ROOT / "b2_storage_manager.py")

KEYS = {"MIDJOURNEY_API_KEY": "bench", "RUNWAYML_API_SECRET": "key_bench", "OPENAI_API_KEY": "bench"}


def environment(bucket: Path, sandbox: Sandbox | None = None) -> dict[str, str]:
    """Return the environment of a tick's process. Byte code may be cached, as under cron. No tick rests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RETAKE_", "PYTHON"))}
    pointed = {"RETAKE_SANDBOX_URL": sandbox.url} if sandbox else {}
    config = str(ROOT / "config" / "config.json")
    told = {"RETAKE_CONFIG": config, "RETAKE_STORAGE_URL": f"file:{bucket}", "XDG_CACHE_HOME": os.devnull}
    return {**kept, **KEYS, **pointed, **told}


def full(bucket: Path) -> Path:
    """Put a ready group into every folder, so that there is nothing to do."""
    for folder in ("444", "555", "666"):
        (bucket / folder).mkdir(parents=True)
        for suffix in GROUP:
            (bucket / folder / f"20260101-0{folder}.{suffix}").write_bytes(b"{}")
    put(bucket, "public", {"processing_lock": False, "generation_id": [], "empty": []})
    put(bucket, "gen", {"generation_id": None})
    return bucket


def published(bucket: Path) -> None:
    """Mark the group in the last folder as published."""
    document = json.loads((bucket / "config" / "config_public.json").read_bytes())
    names = [path.stem for path in (bucket / "444").glob("*.json")]
    put(bucket, "public", {**document, "generation_id": [*document["generation_id"], *names]})


def waiting(bucket: Path, sandbox: Sandbox) -> str:
    """Put a Midjourney task in flight that never ends; return its id."""
    sandbox.order("imagine#1=never-ends")
    return in_flight(bucket, sandbox)


def in_flight(bucket: Path, sandbox: Sandbox) -> str:
    """Put a Midjourney task in flight; return its id."""
    import requests

    body = {"model": "midjourney", "task_type": "imagine", "input": {"prompt": "a lighthouse"}, "config": {}}
    endpoint = str(sandboxed(Settings(), sandbox.url).midjourney.endpoint)
    answer = requests.post(endpoint, json=body, headers={"X-API-Key": "bench"}, timeout=10).json()
    task_id = str(answer["data"]["task_id"])
    task = {"task_id": task_id, "task_type": "imagine", "requested_at_utc": "2099-01-01T00:00:00Z"}
    (bucket / "666").mkdir(parents=True)
    (bucket / "666" / "20260101-0000.json").write_bytes(b"{}")
    put(bucket, "gen", {"generation_id": "20260101-0000"})
    put(bucket, "midjourney", {"midjourney_task": task, "status": "waiting_for_imagine"})
    return task_id


def put(bucket: Path, name: str, document: object) -> None:
    """Write a state document."""
    (bucket / "config").mkdir(exist_ok=True)
    (bucket / "config" / f"config_{name}.json").write_text(json.dumps(document))
