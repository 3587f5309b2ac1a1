"""`retake work` with real processes and a real RabbitMQ: channels are shared, and nothing is paid for twice."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cron_buckets import BucketMachine, bucket_machine, places_in_clouds
from cron_machine import CHECKOUT, KEYS, Machine, Vendors
from rabbit_server import RabbitServer
from waiting import eventually

from retake.rabbit.broker import Broker
from retake.sandbox import RecordedCall
from retake.story.work import EXCHANGE, KEY, QUEUE, TOPOLOGY


@pytest.fixture
def machine(
    request: pytest.FixtureRequest, tmp_path: Path, quick_vendors: Vendors, monkeypatch: pytest.MonkeyPatch
) -> Iterator[BucketMachine]:
    """Yield a machine whose bucket is a folder, or of the kind that a test names."""
    kind = getattr(request, "param", "directory")
    with places_in_clouds() as place, bucket_machine(kind, tmp_path, quick_vendors, place, monkeypatch) as machine:
        yield machine


@pytest.fixture
def rabbit(shared_rabbit: RabbitServer) -> RabbitServer:
    """Return the running server."""
    shared_rabbit.start()
    return shared_rabbit


@pytest.fixture
def broker(rabbit: RabbitServer, machine: Machine) -> Iterator[Broker]:
    """Open a connection for the test, without messages of other tests."""
    machine.env["RABBITMQ_URL"] = rabbit.url
    broker = Broker(rabbit.url, TOPOLOGY, name="test", timeout_s=30.0)
    broker.start()
    broker.connect(30)
    broker.pull(QUEUE, lambda body: True, 10_000)
    yield broker
    broker.close()


def channels(machine: Machine, *names: str) -> None:
    settings = json.loads(machine.settings_file.read_text())
    machine.settings_file.write_text(json.dumps({**settings, "CHANNELS": list(names)}))


class Work:
    """A process of `retake work`."""

    def __init__(self, machine: Machine, *arguments: str, every: int = 1) -> None:
        self._log = machine.folder / f"{os.urandom(4).hex()}.log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "retake", "work", "--every", str(every), *arguments],
                cwd=machine.folder,
                env={**machine.env, "PYTHONPATH": str(CHECKOUT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The complete lines logged so far, all of them JSON, without keys and tracebacks."""
        text = self._log.read_text("utf-8")
        assert "Traceback" not in text
        assert not [key for key in KEYS.values() if key in text]
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def said(self, text: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if text in line["message"]]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """End it as a service manager does."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(120) == 0, self.lines


@pytest.fixture
def begin(machine: Machine) -> Iterator[Callable[..., Work]]:
    begun: list[Work] = []

    def start(*arguments: str, **options: Any) -> Work:
        begun.append(Work(machine, *arguments, **options))
        return begun[-1]

    yield start
    for it in begun:
        if it.process.poll() is None:
            it.kill()
    machine.end()


def with_room_for_one(machine: Machine, *names: str) -> None:
    """Fill the two folders before the first one, so that each channel makes only one generation."""
    for name in names:
        for folder, number in (("444", 1), ("555", 2)):
            for suffix in ("json", "png", "mp4"):
                machine.put(str(Path(name, folder, f"20260101-000{number}.{suffix}")), b"{}")


def full(machine: Machine, *names: str) -> bool:
    """Return whether each channel has finished its one generation."""
    folders = [machine.bucket / name / "666" for name in names]
    return all(sorted(it.suffix for it in folder.glob("*")) == [".json", ".mp4", ".png"] for folder in folders)


def paid(machine: Machine) -> dict[str, int]:
    return {kind: machine.billed(kind) for kind in ("imagine", "upscale", "runway")}


def test_two_workers_share_two_channels_and_pay_each_step_once(
    machine: Machine, broker: Broker, begin: Callable[..., Work]
) -> None:
    channels(machine, "north", "south")
    with_room_for_one(machine, "north", "south")
    machine.order("upscale#1=500", "imagine#2=500")
    workers = [begin("--name", "one"), begin("--name", "two")]
    eventually(lambda: full(machine, "north", "south"))
    for worker in workers:
        eventually(lambda it=worker: it.said("the tick ended with"))  # there is one tick per channel and second
        worker.end()
    assert paid(machine) == {"imagine": 2, "upscale": 2, "runway": 2}
    ticks = [line for worker in workers for line in worker.said("the tick ended with")]
    assert {line["channel"] for line in ticks} == {"north", "south"}
    assert {line["worker"] for line in ticks} == {"one", "two"}
    assert {line["exit_code"] for line in ticks} <= {0, 75}


@pytest.mark.parametrize("kind", ["download", "imagine"])  # before it pays for a video, and after it has paid
@pytest.mark.parametrize("script_too", [False, True])
def test_a_worker_that_is_killed_in_a_call_is_replaced_by_another(
    machine: Machine, broker: Broker, begin: Callable[..., Work], *, kind: str, script_too: bool
) -> None:
    channels(machine, "north")
    with_room_for_one(machine, "north")
    first = begin()
    dead = threading.Event()

    def kill(call: RecordedCall) -> None:
        if call.kind == kind and first.process.poll() is None:
            first.kill()
            for orphan in machine.processes() if script_too else []:
                with suppress(ProcessLookupError):
                    os.kill(orphan, signal.SIGKILL)
            dead.set()

    machine.vendors.on_call = kill
    eventually(dead.is_set)  # before the second begins, which would be taken for an orphan of the first
    machine.vendors.on_call = lambda call: None
    second = begin()
    eventually(lambda: full(machine, "north") and second.said("the tick ended with"))
    second.end()
    machine.await_end()  # an orphaned script may have made the video
    assert paid(machine) == {"imagine": 1, "upscale": 1, "runway": 1}


@pytest.mark.parametrize("kind", ["download", "runway"])  # before it pays, and before the payment is recorded
def test_a_worker_that_is_frozen_in_a_call_keeps_others_out_and_ends_its_tick_when_it_wakes(
    machine: BucketMachine, broker: Broker, begin: Callable[..., Work], kind: str
) -> None:
    with_room_for_one(machine, ".")
    machine.plant("download")
    first = begin()
    frozen = frozen_in(machine, kind, first)
    second = begin()
    eventually(lambda: second.said(f"is held by {os.uname().nodename}:{first.process.pid} "))
    assert machine.billed("runway") == (kind == "runway")
    machine.thaw(*frozen)
    eventually(lambda: full(machine, "."))
    for worker in (first, second):
        eventually(lambda it=worker: it.said("the tick ended with"))
        worker.end()
    assert paid(machine) == {"imagine": 0, "upscale": 0, "runway": 1}


@pytest.mark.parametrize("machine", ["b2"], indirect=True)  # where leases expire
def test_a_worker_that_is_frozen_past_its_lease_pays_for_nothing_and_works_on(
    machine: BucketMachine, broker: Broker, begin: Callable[..., Work]
) -> None:
    machine.short_leases()
    with_room_for_one(machine, ".")
    machine.plant("download")
    first = begin()
    frozen = frozen_in(machine, "download", first)
    second = begin()
    eventually(lambda: machine.files("spend"))
    second.end()
    machine.thaw(*frozen)
    eventually(lambda: len(first.said("the tick ended with")) > 1)
    first.end()
    codes = [line["exit_code"] for line in first.said("the tick ended with")]
    assert codes[0] == 75  # its lease is lost
    assert {*codes} <= {0, 75}
    assert paid(machine) == {"imagine": 0, "upscale": 0, "runway": 1}


def frozen_in(machine: BucketMachine, kind: str, worker: Work) -> list[int]:
    """Freeze a worker and its script in its first call of the kind; return their process ids. The vendor has carried
    the call out, and its answer is on the way."""
    pids, done = list[int](), threading.Event()

    def freeze(call: RecordedCall) -> None:
        if call.kind == kind and not pids:
            pids.extend([worker.process.pid, *machine.processes("generate_media.py")])
            machine.freeze(*pids)
            done.set()

    machine.vendors.on_call = freeze
    eventually(done.is_set)
    machine.vendors.on_call = lambda call: None
    return pids


def test_without_channels_the_one_pipeline_is_ticked(
    machine: Machine, broker: Broker, begin: Callable[..., Work]
) -> None:
    with_room_for_one(machine, ".")
    worker = begin()
    eventually(lambda: full(machine, "."))
    worker.end()
    assert paid(machine) == {"imagine": 1, "upscale": 1, "runway": 1}
    assert f":{worker.process.pid}" in worker.said("the tick ended with")[0]["worker"]


def test_a_stop_in_a_tick_ends_it_as_crons_and_pays_nothing_twice(
    machine: Machine, broker: Broker, begin: Callable[..., Work]
) -> None:
    with_room_for_one(machine, ".")
    worker = begin()

    def stop(call: RecordedCall) -> None:
        if call.kind == "imagine":
            worker.process.send_signal(signal.SIGTERM)

    machine.vendors.on_call = stop
    assert worker.process.wait(120) == 0
    assert len(worker.said("the tick ended with")) == 1
    machine.vendors.on_call = lambda call: None
    assert machine.doc["midjourney_task"]["task_type"] == "imagine"  # its id was saved
    eventually(lambda: broker.depth(QUEUE) == 0)  # unacknowledged messages are too old by now
    assert machine.tick().exit_code == 0
    assert paid(machine) == {"imagine": 1, "upscale": 1, "runway": 1}


def test_what_makes_no_sense_is_dropped_and_the_rest_is_done(
    machine: Machine, broker: Broker, begin: Callable[..., Work]
) -> None:
    channels(machine, "north")
    for body in (b"\xff", b"[1]", b"[" * 100_000, b"{}", b'{"channel": 3}', b'{"channel": "east"}', b'{"channel": ""}'):
        broker.publish(EXCHANGE, KEY, body)
    with_room_for_one(machine, "north")
    worker = begin()
    eventually(lambda: len(worker.said(f"a message in {QUEUE} is dropped")) == 7)
    eventually(lambda: full(machine, "north"))
    worker.end()


def test_a_tick_that_fails_does_not_end_the_worker(
    machine: Machine, broker: Broker, begin: Callable[..., Work]
) -> None:
    del machine.env["OPENAI_API_KEY"]
    worker = begin()
    eventually(lambda: len(worker.said("the tick ended with 78")) >= 2)
    worker.end()


def test_a_server_that_is_away_is_reported_once_and_waited_for(
    machine: Machine, broker: Broker, rabbit: RabbitServer, begin: Callable[..., Work]
) -> None:
    rabbit.wait_for_queue(QUEUE)
    rabbit.kill()
    worker = begin()
    eventually(lambda: worker.said("Connection refused"))
    rabbit.start()
    eventually(lambda: worker.said("the tick ended with"))
    worker.end()
    assert len(worker.said("Connection refused")) == 1


def test_the_url_may_be_in_a_file_and_its_password_is_never_shown(machine: Machine, begin: Callable[..., Work]) -> None:
    del machine.env["OPENAI_API_KEY"]
    (machine.folder / ".env").write_text(
        "RABBITMQ_URL=amqp://ann:open-sesame@127.0.0.1:1/\nOPENAI_API_KEY=sesame-two\n"
    )
    worker = begin()
    eventually(lambda: worker.said("Connection refused"))
    worker.end()
    assert "sesame" not in json.dumps(worker.lines)


@pytest.mark.parametrize(
    ("url", "words"), [("", "RABBITMQ_URL is not set"), ("http://ann:open-sesame@host", "cannot be used")]
)
def test_without_a_url_it_does_not_begin(machine: Machine, begin: Callable[..., Work], url: str, words: str) -> None:
    machine.env["RABBITMQ_URL"] = url
    worker = begin()
    assert worker.process.wait(120) == 78
    assert worker.said(words)
    assert "sesame" not in json.dumps(worker.lines)
