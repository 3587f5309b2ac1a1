"""Channels in a bucket on a stand-in for B2 or S3, or in a directory, and the requests of a tick over all of them.

world = FarChannels("b2", 100, monkeypatch, tmp_path)
world.fill(idle)
world.tick().opened                       # the channels that were opened; .requests counts requests to the bucket
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha1
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests
from botocore.client import BaseClient
from moto.s3.models import s3_backends
from s3_server import KEYS as S3_KEYS
from s3_server import moto_server, new_bucket

from retake.bucket import Bucket, open_bucket
from retake.bucket.b2.bucket import parse_url as b2_place
from retake.bucket.s3.client import parse_url as s3_place
from retake.clock import FakeClock
from retake.sandbox import Pace, Sandbox
from retake.sandbox.b2 import B2Sandbox
from retake.story.channels import remembered, tick_channels
from retake.story.documents import GROUP
from retake.story.runner import story_watch
from retake.story.settings import SANDBOX_KEYS, Settings, sandboxed
from retake.ticking.channel_looks import ChannelRest
from retake.ticking.tick import Orders, Tick
from retake.ticking.watch import TickWatch, WatchedRunner

KINDS = ("b2", "s3", "directory")

Objects = dict[str, bytes]


def idle(number: int) -> Objects:
    """Return a channel whose folders are full, so there is nothing to do."""
    files = {f"{folder}/20260101-0{folder}.{suffix}": b"{}" for folder in ("444", "555", "666") for suffix in GROUP}
    public = {"processing_lock": False, "generation_id": [], "empty": []}
    return files | {
        "config/config_public.json": json.dumps(public).encode(),
        "config/config_gen.json": b'{"generation_id": null}',
    }


class Round(NamedTuple):
    """What a tick did."""

    exit_code: int
    opened: set[str]  # channels
    requests: int  # to the bucket, including those for an authorisation
    polls: int  # of the vendor


class Forbidden:
    """Scripts that must not run."""

    def of(self, channel: str) -> "Forbidden":
        return self

    def run(self, script: str, arguments: list[str], lease: Any) -> Any:
        raise AssertionError(f"{script} was started")


class FarChannels:
    """`number` channels in a new bucket. `vendor` is the sandbox that they poll."""

    def __init__(self, kind: str, number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stack: Any) -> None:
        self.kind, self._tmp_path, self._monkeypatch = kind, tmp_path, monkeypatch
        self.requests = self.listings = 0
        self._tasks: list[str] = []
        self.clock = FakeClock(datetime.now(UTC) + timedelta(seconds=10))
        self.vendor = stack.enter_context(Sandbox(pace=Pace(1e6, 0, 0), quick=True))
        self.url, self.put = getattr(self, f"_{kind}")(stack)
        self.names = tuple(f"channel-{n:04d}" for n in range(number))
        settings = Settings(channels=self.names)._replace(source=str(tmp_path / "config.json"))
        self.settings = sandboxed(settings, self.vendor.url)
        self.machine("one")

    def machine(self, name: str) -> None:
        """Run later ticks on the machine of that name, which has a cache of its own."""
        self.cache = self._tmp_path / f"cache-{name}"
        self._monkeypatch.setenv("XDG_CACHE_HOME", str(self.cache))

    def fill(self, channel: Callable[[int], Objects]) -> None:
        for number, name in enumerate(self.names):
            for key, data in channel(number).items():
                self.put(f"{name}/{key}", data)

    def waiting(self, number: int) -> Objects:
        """Return a channel that waits for a picture, as a tick that has polled it leaves it."""
        body = {"model": "midjourney", "task_type": "imagine", "input": {"prompt": "x"}, "config": {}}
        order = requests.post(str(self.settings.midjourney.endpoint), json=body, headers={"X-API-Key": "x"}, timeout=10)
        task = {"task_id": order.json()["data"]["task_id"], "task_type": "imagine"}
        self._tasks.append(task["task_id"])
        task["requested_at_utc"] = self.clock.now().isoformat()
        return {
            "config/config_gen.json": b'{"generation_id": "20260101-0000"}',
            "config/config_midjourney.json": json.dumps(
                {"midjourney_task": task, "status": "waiting_for_imagine"}
            ).encode(),
            "666/20260101-0000.json": b"{}",
        }

    def task_of(self, channel: str) -> str:
        """Return the id of the task that a waiting channel waits for."""
        return self._tasks[int(channel.rpartition("-")[2])]

    def open(self) -> Bucket:
        """Return the bucket as a new process opens it."""
        return open_bucket(self.url)

    def remember(self, rest: Callable[[str], ChannelRest]) -> None:
        """Let all channels be remembered as they are, as a tick that opened them all leaves them."""
        looks = remembered(self.settings, self.open(), self.clock.now(), 0)
        for name in self.names:
            looks.opened(name, rest(name))
        looks.save()

    def tick(self) -> Round:
        """Run a tick as a new process would, five minutes after the last one."""
        self.clock.sleep(300)
        bucket = self.open()
        watch = SeenWatch(story_watch(self.settings, bucket, self.clock, {}))
        before, polls = self.requests, len(self.vendor.calls("fetch"))
        code = tick_channels(self.settings, SANDBOX_KEYS, bucket, Forbidden(), self.clock, watch)
        return Round(code, watch.opened, self.requests - before, len(self.vendor.calls("fetch")) - polls)

    def settle(self) -> None:
        """Run ticks until no channel is opened any more because of its own last change."""
        for _ in range(4):
            if not self.tick().opened:
                return
        raise AssertionError("some channels never rest")

    # --- the kinds ----------------------------------------------------------------------------------------------

    def _count(self, call: str = "", *_: Any) -> None:
        self.requests += 1
        self.listings += call == "b2_list_file_versions"  # of class C

    def _b2(self, stack: Any) -> tuple[str, Callable[[str, bytes], Any]]:
        sandbox = stack.enter_context(B2Sandbox(seed=1, meanwhile=self._count))
        for name, value in sandbox.environment().items():
            self._monkeypatch.setenv(name, value)
        account, url = sandbox.store, sandbox.storage_url("some/place")
        store, prefix = account.bucket_name_to_bucket["retake"], b2_place(url).prefix
        token = account.authorize_account("", account.account, account.key)["authorizationToken"]

        def put(key: str, data: bytes) -> None:
            digest = sha1(data, usedforsecurity=False).hexdigest()
            file = BytesIO(data)
            found = store.upload_file("", token, f"{prefix}{key}", len(data), "text/plain", digest, {}, file)
            account.file_id_to_bucket_id[found["fileId"]] = store.bucket_id

        return url, put

    def _s3(self, stack: Any) -> tuple[str, Callable[[str, bytes], Any]]:
        for name, value in S3_KEYS.items():
            self._monkeypatch.setenv(name, value)
        url = new_bucket(stack.enter_context(moto_server()))
        place, store, usual = s3_place(url), s3_backends["123456789012"]["aws"], BaseClient._make_api_call

        def call(client: Any, operation: str, named: dict[str, Any]) -> Any:
            self._count()
            return usual(client, operation, named)

        self._monkeypatch.setattr(BaseClient, "_make_api_call", call)
        return url, lambda key, data: store.put_object(place.bucket, f"{place.prefix}{key}", data)

    def _directory(self, stack: Any) -> tuple[str, Callable[[str, bytes], Any]]:
        root = self._tmp_path / "bucket"
        root.mkdir()

        def put(key: str, data: bytes) -> None:
            (root / key).parent.mkdir(parents=True, exist_ok=True)
            (root / key).write_bytes(data)
            os.chmod(root / key, 0o600)

        return f"file:{root}", put


class SeenWatch(TickWatch):
    """Reports which channels were opened."""

    def __init__(self, watch: TickWatch) -> None:
        self.__dict__.update(watch.__dict__)
        self.opened: set[str] = set()

    def observed(self, pipeline: str, runner: WatchedRunner, orders: Orders = Orders()) -> Tick:  # noqa: B008
        self.opened.add(pipeline.partition("/")[2])
        return super().observed(pipeline, runner, orders)


@contextmanager
def only(world: FarChannels, *expected: str) -> Iterator[None]:
    """Check that the next tick notices what the block does, and opens these channels and no others."""
    yield
    assert world.tick().opened == set(expected)


def looks_of(world: FarChannels) -> Iterable[Path]:
    return world.cache.rglob("look-*")
