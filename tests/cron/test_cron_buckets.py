"""The real scripts on each kind of bucket: a folder, B2 (a stand-in over HTTP), S3 (moto over HTTP).

On a folder the kernel frees the lease at once; elsewhere it expires, and these tests wait for that.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from random import Random

import pytest
from cron_buckets import (
    CLOUDS,
    DOCUMENTS,
    KINDS,
    BucketMachine,
    Clouds,
    bucket_machine,
)
from cron_machine import LONG_S, MANAGER, PUBLIC, Vendors
from PIL import Image
from waiting import eventually

from retake.media.video import check_video
from retake.sandbox import RecordedCall

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")

PAID = {"chat": 3, "imagine": 1, "upscale": 1, "runway": 1}
OVER = {-signal.SIGALRM, 75}  # the exit codes of a manager whose lease has expired


@pytest.fixture
def machine(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    quick_vendors: Vendors,
    clouds: Clouds,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[BucketMachine]:
    with bucket_machine(request.param, tmp_path, quick_vendors, clouds, monkeypatch) as machine:
        yield machine


everywhere = pytest.mark.parametrize("machine", KINDS, indirect=True)
where_leases_run_out = pytest.mark.parametrize("machine", CLOUDS, indirect=True)


def billed(machine: BucketMachine) -> dict[str, int]:
    return {kind: machine.billed(kind) for kind in PAID}


def assert_whole(machine: BucketMachine) -> str:
    """Check that one generation's files are there and valid, and nothing is under way. Return its id."""
    [generation_id] = (Path(key).stem for key in machine.files("666") if key.endswith(".json"))
    assert machine.read(f"666/{generation_id}.json")["generation_id"] == generation_id
    with Image.open(BytesIO(machine.data(f"666/{generation_id}.png"))) as picture:
        picture.load()
        assert (picture.format, picture.size) == ("PNG", (320, 180))
    assert check_video(machine.data(f"666/{generation_id}.mp4")).codec == "h264"
    assert (machine.generation_id, machine.status) == (None, None)
    return generation_id


def assert_nothing_blocks(machine: BucketMachine) -> None:
    assert machine.read(PUBLIC)["processing_lock"] is False
    assert not machine.leased


def assert_the_next_begins_at_once(machine: BucketMachine) -> None:
    """Check it with a generation that the vendor refuses, as that is quick."""
    machine.order("chat=400")
    assert machine.tick().exit_code == 69
    assert_nothing_blocks(machine)


def outcomes(machine: BucketMachine, generation_id: str, kind: str) -> list[str]:
    """Return the recorded outcomes of the generation's paid calls of a kind."""
    step = "content" if kind == "chat" else kind
    calls = machine.read(f"spend/{generation_id}.json")["paid_calls"]
    assert all(call.get("possible_duplicate") for call in calls if call["outcome"] == "unknown")
    return [call["outcome"] for call in calls if call["step"] == step]


@everywhere
def test_a_tick_goes_on_where_the_last_one_ended(machine: BucketMachine) -> None:
    machine.order("upscale#1=500")
    first, generation_id = machine.tick(), machine.generation_id
    assert (first.exit_code, machine.status) == (75, "upscale_trigger_failed")
    assert {run.exit_code for run in machine.until_over()} == {0}
    assert assert_whole(machine) == generation_id
    assert billed(machine) == PAID
    assert_nothing_blocks(machine)


@everywhere
def test_one_of_ten_managers_at_once_works_and_nothing_is_paid_twice(machine: BucketMachine) -> None:
    others_are_gone = threading.Event()
    machine.set(WORKFLOW={"call_timeout_seconds": 90})
    machine.plant("imagine")
    machine.vendors.on_call = lambda call: others_are_gone.wait(LONG_S)  # the vendor answers nobody before
    managers = [machine.start(MANAGER) for _ in range(10)]
    eventually(lambda: sum(manager.poll() is None for manager in managers) <= 1)
    others_are_gone.set()
    runs = [machine.finish(manager) for manager in managers]
    assert [run.exit_code for run in runs] == [0] * 10
    assert sum(run.said("the generation is finished") for run in runs) == 1
    assert_whole(machine)
    assert billed(machine) == {**PAID, "chat": 0}
    assert_the_next_begins_at_once(machine)


@everywhere
def test_managers_are_killed_at_random_and_the_generation_ends(machine: BucketMachine) -> None:
    seed = int(os.environ.get("RETAKE_KILLS_SEED") or time.time_ns() % 1_000_000)
    print(f"RETAKE_KILLS_SEED={seed}")  # noqa: T201  set it to repeat the same choices
    random, killed = Random(seed), 0
    machine.short_leases()
    machine.set(WORKFLOW={"max_retries": 20})
    for _ in range(4):
        killed += killed_after(machine, random.uniform(0.5, 3), script_too=random.random() < 0.5)
        assert all(isinstance(machine.read(key), dict) for key in DOCUMENTS)  # always valid JSON
        if machine.files("spend"):
            break
        time.sleep(machine.term * random.choice((0, 1)))
    machine.await_end()
    machine.await_free()
    machine.until_over()
    generation_id = assert_whole(machine)
    for kind, needed in PAID.items():
        became = outcomes(machine, generation_id, kind)
        unknown = became.count("unknown")
        assert len(became) - unknown == needed, became
        assert needed <= machine.billed(kind) <= needed + unknown <= needed + killed
    assert_the_next_begins_at_once(machine)  # even if the last one was killed while ending


def killed_after(machine: BucketMachine, seconds: float, *, script_too: bool) -> bool:
    """Kill a manager after so long, with or without the script it runs; return False if it ended before."""
    manager, end = machine.start(MANAGER), time.monotonic() + seconds
    while manager.poll() is None and time.monotonic() < end:
        time.sleep(0.005)
    living = manager.poll() is None
    machine.kill(manager, script_too=script_too)
    whom, status = "script too" if script_too else "alone", machine.doc.get("status")
    print(f"after {seconds:.2f} s, {whom}: {manager.returncode} {status}")  # noqa: T201
    return living


def stopped_at(machine: BucketMachine, kind: str, stop: Callable[[], object]) -> None:
    """Call `stop` in the first call of the kind: the vendor has carried it out, and its answer is on the way."""
    done = threading.Event()

    def look(call: RecordedCall) -> None:
        if call.kind == kind and not done.is_set():
            stop()
            done.set()

    machine.vendors.on_call = look
    assert done.wait(LONG_S)
    machine.vendors.on_call = lambda call: None


def assert_harmless(machine: BucketMachine, *frozen: int) -> None:
    """Thaw the frozen processes: they must end without having changed or paid for anything."""
    before, calls = machine.snapshot(), len(machine.calls())
    machine.thaw(*frozen)
    machine.await_end()
    assert len(machine.calls()) == calls
    assert machine.snapshot() == before
    assert_nothing_blocks(machine)


@where_leases_run_out
@pytest.mark.parametrize("script_too", [False, True], ids=["alone", "with its script"])
def test_a_manager_frozen_past_its_lease_neither_writes_nor_pays(machine: BucketMachine, script_too: bool) -> None:
    machine.short_leases()
    machine.plant("upscale")
    manager, frozen = machine.start(MANAGER), []

    def freeze() -> None:
        frozen.extend([manager.pid, *(machine.processes("generate_media.py") if script_too else [])])
        machine.freeze(*frozen)

    stopped_at(machine, "upscale", freeze)
    machine.await_free()
    machine.until_over()
    assert_whole(machine)
    assert billed(machine) == {**PAID, "chat": 0, "imagine": 0}
    assert_harmless(machine, *frozen)
    assert manager.wait() in OVER


@where_leases_run_out
def test_a_script_frozen_in_a_call_past_its_dead_managers_lease_goes_no_further(machine: BucketMachine) -> None:
    machine.short_leases()
    machine.plant("runway")
    manager, frozen = machine.start(MANAGER), []

    def freeze() -> None:
        frozen.extend(machine.processes("generate_media.py"))
        machine.freeze(*frozen)
        machine.kill(manager, script_too=False)

    stopped_at(machine, "runway", freeze)
    machine.await_free()
    machine.until_over()
    assert outcomes(machine, assert_whole(machine), "runway") == ["unknown", "accepted"]
    assert_harmless(machine, *frozen)
    assert machine.billed("runway") == 2


@where_leases_run_out
def test_a_script_frozen_before_it_pays_does_not_pay_when_it_wakes(machine: BucketMachine) -> None:
    """The script has saved its intent and asks the store whether its manager still holds the lease. The answer says so,
    but is too old by the time the script wakes."""
    machine.short_leases(12.0)  # all the time that the script has from its first request to its call
    machine.plant("runway")
    frozen: list[int] = []

    def asks_for_the_lease(request: str) -> bool:
        return "leases" in request and "list" in request

    def freeze(request: str) -> None:
        if asks_for_the_lease(request) and not frozen and machine.doc.get("pending_call"):
            frozen.extend(machine.processes("generate_media.py"))
            machine.freeze(*frozen)

    def hold(request: str) -> None:
        """Stop the script at its first request until the manager is dead."""
        if asks_for_the_lease(request) and machine.processes("generate_media.py"):
            begun.set()
            dead.wait(LONG_S)

    begun, dead = threading.Event(), threading.Event()
    machine.before = hold
    manager = machine.start(MANAGER)
    eventually(begun.is_set)
    machine.kill(manager, script_too=False)  # from now on only the script checks the lease
    machine.before = freeze
    dead.set()
    eventually(lambda: (frozen and machine.frozen(frozen[0])) or not machine.processes())
    assert frozen, "the script has ended before it paid"
    machine.before = lambda request: None
    assert machine.billed("runway") == 0
    machine.await_free()
    machine.until_over()
    assert outcomes(machine, assert_whole(machine), "runway") == ["unknown", "accepted"]
    assert_harmless(machine, *frozen)
    assert machine.billed("runway") == 1
