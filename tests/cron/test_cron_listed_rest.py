"""A tick that rests on B2 and S3: one listing shows that nothing has changed since the last idle tick, and no lease is
taken. Any change in the bucket wakes it up."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from cron_buckets import CLOUDS, BucketMachine, Clouds, bucket_machine
from cron_machine import GEN, MIDJOURNEY, PUBLIC, Run, Vendors
from resting import RESTS, look_of, put_nothing_to_do, rested
from waiting import eventually

from retake.bucket.b2.price import by_class


@pytest.fixture(params=CLOUDS)
def idle(
    request: pytest.FixtureRequest,
    tmp_path: object,
    quick_vendors: Vendors,
    clouds: Clouds,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[BucketMachine]:
    """Yield a machine that has nothing to do."""
    with bucket_machine(request.param, tmp_path, quick_vendors, clouds, monkeypatch) as machine:  # type: ignore[arg-type]
        put_nothing_to_do(machine)
        machine.put("666/extra.txt", {})
        yield machine


def asked(machine: BucketMachine) -> tuple[Run, list[str]]:
    """Run a tick; return it with its requests to the store."""
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


def changes(machine: BucketMachine) -> dict[str, Callable[[], None]]:
    """Return changes to everything that an idle tick depends on, by another machine, another program or the user."""
    full = {"processing_lock": False, "generation_id": [], "empty": []}
    by_hand = {"mode": {"hand": {"mode": 1, "why": "a test", "since": "2026-01-01T00:00:00.000Z"}}}
    return {
        "a document": partial(machine.put, GEN, {"generation_id": None, "more": 1}),
        "the publisher's list": partial(machine.put, PUBLIC, {**full, "more": 1}),
        "a document that was not there": partial(machine.put, MIDJOURNEY, {}),
        "a document that was displaced": partial(machine.put, f"{PUBLIC}.displaced-0", full),
        "a file in 444": partial(machine.put, "444/note.txt", {}),
        "a file in 555": partial(machine.put, "555/note.txt", {}),
        "a file in 666": partial(machine.put, "666/note.txt", {}),
        "a file gone": partial(machine.store.delete, "666/extra.txt"),
        "a key": partial(machine.env.update, OPENAI_API_KEY="another"),
        "alerts": partial(machine.put, "alerts/state.json", {"channels": {}}),
        "the mode": partial(machine.put, "alerts/state.json", by_hand),
    }


def test_whatever_it_decides_from_wakes_it_up(idle: BucketMachine) -> None:
    slept = []
    for what, change in changes(idle).items():  # each on top of the previous ones: undoing one would wake it up again
        eventually(lambda: rested(idle.tick()))
        change()
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
