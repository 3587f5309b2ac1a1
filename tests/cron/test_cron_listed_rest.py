"""A tick that rests on B2 and S3: one listing shows that nothing has changed since the last idle tick, no lease is
taken, and whatever changes in the bucket wakes it up."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from cron_buckets import CLOUDS, BucketMachine, Clouds, bucket_machine, places_in_clouds
from cron_machine import GEN, MIDJOURNEY, PUBLIC, Run, Vendors
from waiting import eventually

from retake.bucket import ANY
from retake.bucket.b2.price import by_class
from retake.ticking.rest import LookFile, look_file

RESTS = "nothing has changed since the full look"


@pytest.fixture(scope="module")
def clouds() -> Iterator[Clouds]:
    with places_in_clouds() as place:
        yield place


@pytest.fixture(params=CLOUDS)
def idle(
    request: pytest.FixtureRequest,
    tmp_path: object,
    quick_vendors: Vendors,
    clouds: Clouds,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[BucketMachine]:
    """There is nothing to do."""
    with bucket_machine(request.param, tmp_path, quick_vendors, clouds, monkeypatch) as machine:  # type: ignore[arg-type]
        machine.put(GEN, {"generation_id": None})
        machine.put(PUBLIC, {"processing_lock": False, "generation_id": [], "empty": []})
        for folder, name in (("444", "20250101-0001"), ("555", "20250101-0002"), ("666", "20250101-0003")):
            for suffix in ("json", "png", "mp4"):
                machine.put(f"{folder}/{name}.{suffix}", {})
        machine.put("666/extra.txt", {})
        yield machine


def look_of(machine: BucketMachine) -> LookFile:
    found = look_file({"HOME": str(machine.folder)}, "ticks", str(machine.cwd), machine.env["RETAKE_CONFIG"])
    assert found
    return found


def rested(run: Run) -> bool:
    assert run.exit_code == 0
    return run.said(RESTS)


def asked(machine: BucketMachine) -> tuple[Run, list[str]]:
    """Run a tick; return what it asked of the store too."""
    requests: list[str] = []
    machine.before = requests.append
    tick = machine.tick()
    machine.before = lambda request: None
    return tick, requests


def test_it_rests_by_one_listing_and_takes_no_lease(idle: BucketMachine) -> None:
    idle.tick()
    tick, full = asked(idle)
    while not look_of(idle).read():  # settings that were written just now are not trusted yet
        tick, full = asked(idle)
    assert not rested(tick)
    tick, listed = asked(idle)
    assert not rested(tick), "the last tick remembered that nothing was to be done, but had listed nothing"
    assert len(listed) == len(full) + 1
    tick, requests = asked(idle)
    assert rested(tick)
    assert not [it for it in requests if ".retake" in it], "no lease"
    if idle.kind == "b2":
        assert by_class([it.split()[0] for it in requests])["C"] <= 2
    assert len([it for it in requests if "get_upload" not in it]) <= 3


@contextmanager
def written(machine: BucketMachine, key: str, value: object) -> Iterator[None]:
    """Another machine or program has written the object; then it is as it was."""
    before = machine.data(key) if key in machine.files() else None
    machine.put(key, value)
    yield
    if before is None:
        machine.store.delete(key)
    else:
        machine.put(key, json.loads(before))


@contextmanager
def removed(machine: BucketMachine, key: str) -> Iterator[None]:
    before = machine.data(key)
    machine.store.delete(key)
    yield
    machine.store.write(key, before, ANY)


@contextmanager
def variable(machine: BucketMachine, name: str, value: str) -> Iterator[None]:
    before = machine.env
    machine.env = {**before, name: value}
    yield
    machine.env = before


def changes(machine: BucketMachine) -> dict[str, AbstractContextManager[None]]:
    """What an idle tick decides from, changed in turn."""
    full = {"processing_lock": False, "generation_id": [], "empty": []}
    by_hand = {"mode": {"hand": {"mode": 1, "why": "a test", "since": "2026-01-01T00:00:00.000Z"}}}
    return {
        "a document": written(machine, GEN, {"generation_id": None, "more": 1}),
        "the publisher's list": written(machine, PUBLIC, {**full, "more": 1}),
        "a document that was not there": written(machine, MIDJOURNEY, {}),
        "a document that was displaced": written(machine, f"{PUBLIC}.displaced-0", full),
        "alerts": written(machine, "alerts/state.json", {"channels": {}}),
        "the mode": written(machine, "alerts/state.json", by_hand),
        "a file in 444": written(machine, "444/note.txt", {}),
        "a file in 555": written(machine, "555/note.txt", {}),
        "a file in 666": written(machine, "666/note.txt", {}),
        "a file gone": removed(machine, "666/extra.txt"),
        "a key": variable(machine, "OPENAI_API_KEY", "another"),
    }


def test_whatever_it_decides_from_wakes_it_up(idle: BucketMachine) -> None:
    slept = []
    for what, change in changes(idle).items():
        eventually(lambda: rested(idle.tick()))
        with change:
            slept += [what] if idle.tick().said(RESTS) else []
    assert slept == []
    assert idle.calls() == []


def test_what_decides_nothing_lets_it_rest(idle: BucketMachine) -> None:
    eventually(lambda: rested(idle.tick()))
    for key in ("archive/20250101-0001.json", "dead_letters/x.json", "spend/2025-01-01/x.json", "runs/run-x.json"):
        idle.put(key, {})
    assert rested(idle.tick())


def test_ticks_that_work_list_nothing_more(idle: BucketMachine) -> None:
    eventually(lambda: rested(idle.tick()))
    idle.plant("fetch")
    idle.order("fetch#1=500")
    assert not idle.tick().said(RESTS)
    assert look_of(idle).read() is None
