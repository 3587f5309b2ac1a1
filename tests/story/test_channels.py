"""Many pipelines in one tick, each by itself."""

import json
import threading

import pytest
import requests
from story_world import KEYS, PROMPTS, FakeMedia, FakeVendors

from retake.alerts.settings import AlertSettings
from retake.bucket import ANY, Lease
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.bucket.wrappers import PrefixedBucket
from retake.clock import FakeClock
from retake.degraded.settings import ModeSettings
from retake.errors import SettingsError
from retake.sandbox import Pace, Sandbox
from retake.story.channels import tick_channels
from retake.story.inprocess import InProcessScripts
from retake.story.script import StepContext
from retake.story.settings import LEASE, SANDBOX_KEYS, Settings, part_of, sandboxed
from retake.story.store import DocumentStore
from retake.ticking.channels import each, worst
from retake.ticking.watch import TickWatch

NAMES = ("north", "south", "west")


class Channels:
    """Runs what pays in this process, with separate vendors for each channel."""

    def __init__(self, settings: Settings, bucket: MemoryBucket) -> None:
        self.settings, self.bucket = settings, bucket
        self.vendors = {name: FakeVendors() for name in settings.channels}

    def of(self, channel: str) -> InProcessScripts:
        def context(lease: Lease) -> StepContext:
            part, clock = PrefixedBucket(self.bucket, f"{channel}/"), FakeClock()
            store = DocumentStore(part, self.settings.paths, lease, clock)
            store.read()
            return StepContext(self.settings, store, self.vendors[channel], FakeMedia(), clock)

        return InProcessScripts(context, PROMPTS)


def settings(**workflow: object) -> Settings:
    plain = Settings(channels=NAMES)
    return plain._replace(workflow=plain.workflow._replace(**workflow))  # type: ignore[arg-type]


def unwatched(bucket: MemoryBucket) -> TickWatch:
    return TickWatch(AlertSettings(), ModeSettings(), bucket, FakeClock(), {})


def document(bucket: MemoryBucket, key: str) -> dict[str, object]:
    return dict(json.loads(bucket.read(key)[0]))


def test_each_channel_has_its_own_documents_and_what_befalls_one_does_not_touch_another() -> None:
    bucket, world = MemoryBucket(), settings()
    channels = Channels(world, bucket)
    channels.vendors["south"].plan("imagine", "refused")
    channels.vendors["west"].plan("write", "rejected")
    with Sandbox(pace=Pace(0, 0, 0), quick=True) as sandbox:
        pointed = sandboxed(world, sandbox.url)
        code = tick_channels(pointed, KEYS, bucket, channels, FakeClock(), unwatched(bucket))
    assert code == 69, "the gravest exit code"
    assert document(bucket, "south/config/config_midjourney.json")["status"] == "imagine_trigger_failed"
    assert document(bucket, "west/config/config_midjourney.json")["status"] == "task_failed_max_retries"
    shared = [entry.key for entry in bucket.list("") if not entry.key.startswith(tuple(f"{n}/" for n in NAMES))]
    assert shared == ["alerts/state.json", "caps/2026-01-01.json"]


def test_polls_run_in_this_process_and_do_not_raise_the_flag() -> None:
    store = MemoryStore()
    written: list[str] = []
    bucket = MemoryBucket(store, meanwhile=lambda step, key: written.append(key) if step == "replace" else None)
    world = settings()
    with Sandbox(pace=Pace(60, 0, 0), quick=True) as sandbox:
        pointed = sandboxed(world, sandbox.url)
        body = {"model": "midjourney", "task_type": "imagine", "input": {"prompt": "x"}, "config": {}}
        for name in NAMES:
            part = PrefixedBucket(bucket, f"{name}/")
            endpoint = str(pointed.midjourney.endpoint)
            answer = requests.post(endpoint, json=body, headers={"X-API-Key": "x"}, timeout=10).json()
            task = {"task_id": answer["data"]["task_id"], "task_type": "imagine"}
            task["requested_at_utc"] = "2026-01-01T00:00:00Z"
            put(part, "config/config_gen.json", {"generation_id": "20260101-0000"})
            put(part, "config/config_midjourney.json", {"midjourney_task": task, "status": "waiting_for_imagine"})
            put(part, "666/20260101-0000.json", {})
        assert (
            tick_channels(pointed, SANDBOX_KEYS, bucket, Channels(world, bucket), FakeClock(), unwatched(bucket)) == 0
        )
        assert len(sandbox.calls("fetch")) == len(NAMES)
    assert written == []


def put(bucket: PrefixedBucket, key: str, value: object) -> None:
    bucket.write(key, json.dumps(value).encode(), ANY)


def test_a_channel_that_another_machine_works_on_is_left_to_it() -> None:
    bucket, world = MemoryBucket(), settings()
    channels = Channels(world, bucket)
    lease = part_of(bucket, world, "north").lease(LEASE, "another machine")
    with Sandbox(pace=Pace(0, 0, 0), quick=True) as sandbox:
        tick_channels(sandboxed(world, sandbox.url), KEYS, bucket, channels, FakeClock(), unwatched(bucket))
    lease.release()
    assert not channels.vendors["north"].billed
    assert channels.vendors["south"].billed["write"] == 1


def test_as_many_channels_at_a_time_as_the_settings_say() -> None:
    at_work, most, lock = 0, 0, threading.Lock()
    both = threading.Barrier(2, timeout=60)

    def tick(channel: str) -> int:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        both.wait()
        with lock:
            at_work -= 1
        return 0

    assert each(("a", "b", "c", "d"), tick, 2) == dict.fromkeys("abcd", 0)
    assert most == 2


@pytest.mark.parametrize(
    ("codes", "expected"),
    [({"a": 0, "b": 75}, 75), ({"a": 69, "b": 75}, 69), ({"a": 78, "b": 65}, 78), ({"a": 0}, 0), ({}, 0)],
)
def test_the_tick_ends_with_the_gravest_exit_code(codes: dict[str, int], expected: int) -> None:
    assert worst(codes) == expected


@pytest.mark.parametrize("channel", [None, "east"])
def test_a_channel_must_be_one_of_the_channels(channel: str | None) -> None:
    with pytest.raises(SettingsError, match="north, south, west"):
        part_of(MemoryBucket(), settings(), channel)
