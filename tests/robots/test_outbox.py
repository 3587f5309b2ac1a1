"""The outbox: each message in order, at least once even after deaths, and by one deliverer at a time."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from retake.bucket import Conflict
from retake.bucket.claims.lease import LeaseClock
from retake.bucket.directory import DirectoryBucket
from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock, SystemClock, exact_stamp
from retake.errors import RobotError, StateError, Stopped
from retake.retrying.state_store import BucketStateStore, MemoryStateStore, StateStore
from retake.robots import outbox as outbox_module
from retake.robots.outbox import CLAIM_S, Outbox

Open = Callable[[], StateStore]


def nothing(message: object) -> None:
    pytest.fail(f"{message} was sent")  # an AssertionError would be logged as a failed delivery


def test_messages_are_delivered_once_in_the_order_in_which_they_were_put(opened: Open, clock: FakeClock) -> None:
    outbox, sent = Outbox(opened(), clock), list[object]()
    for number in (3, 1, 2):
        assert outbox.put(f"link-{number}", {"link": number})
    assert Outbox(opened(), clock).deliver(sent.append) == 3
    assert sent == [{"link": 3}, {"link": 1}, {"link": 2}]
    assert outbox.deliver(nothing) == 0
    assert not opened().read("outbox-claim"), "another machine need not wait for its end"


def test_each_id_is_one_message_also_after_it_was_delivered(opened: Open, clock: FakeClock) -> None:
    outbox, sent = Outbox(opened(), clock), list[object]()
    assert [outbox.put("a", "first"), outbox.put("a", "second")] == [True, False]
    assert outbox.deliver(sent.append) == 1
    clock.sleep(365 * 24 * 3600)
    assert not Outbox(opened(), clock).put("a", "third")
    assert outbox.deliver(nothing) == 0
    assert sent == ["first"]


def test_it_stops_at_a_failure_and_goes_on_there_the_next_time(opened: Open, clock: FakeClock) -> None:
    outbox, sent, failing = Outbox(opened(), clock), list[object](), {"b"}

    def send(message: object) -> None:
        if message in failing:
            raise RobotError("ERR_TEMPORARY_NETWORK", "cut")
        sent.append(message)

    for name in "abc":
        outbox.put(name, name)
    assert outbox.deliver(send) == 1
    assert outbox.deliver(send) == 0
    failing.clear()
    outbox.put("d", "d")
    assert outbox.deliver(send) == 3
    assert sent == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError("https://example.org/hooks/T0/secret"), "OSError"),  # other libraries quote URLs
        (RobotError("ERR_TEMPORARY_NETWORK", "the link was cut"), "the link was cut"),
    ],
)
def test_a_failure_of_any_kind_is_logged_without_secrets(logged: list[str], error: Exception, words: str) -> None:
    outbox = Outbox(MemoryStateStore(), FakeClock())
    outbox.put("a", "a")

    def send(message: object) -> None:
        raise error

    assert outbox.deliver(send) == 0
    assert logged == [f"outbox: a was not delivered and waits: {words}"]


@pytest.mark.parametrize("error", [Stopped("asked to"), KeyboardInterrupt(), Crash()])
def test_a_request_to_stop_is_raised_and_the_message_waits(clock: FakeClock, error: BaseException) -> None:
    outbox, sent = Outbox(MemoryStateStore(), clock), list[object]()
    outbox.put("a", "a")

    def send(message: object) -> None:
        raise error

    with pytest.raises(type(error)):
        outbox.deliver(send)
    assert outbox.deliver(sent.append) == 1
    assert sent == ["a"]


def test_a_message_is_what_it_was_when_it_was_put(opened: Open, clock: FakeClock) -> None:
    outbox, sent, message = Outbox(opened(), clock), list[object](), {"links": [1]}
    outbox.put("a", message)
    message["links"].append(2)
    with pytest.raises(ValueError, match="not JSON"):
        outbox.put("b", object())
    outbox.deliver(sent.append)
    assert sent == [{"links": [1]}]


def test_any_text_is_an_id(opened: Open, clock: FakeClock) -> None:
    outbox, sent = Outbox(opened(), clock), list[object]()
    ids = ["", "a/b", "a\\b", "..", "~", "ё" * 300, "\ud800", "waiting"]
    for number, name in enumerate(ids):
        assert outbox.put(name, number)
        assert not outbox.put(name, -1)
    assert outbox.deliver(sent.append) == len(ids)
    assert sent == list(range(len(ids)))


def test_what_makes_no_sense_is_reported_and_left_as_it_is(clock: FakeClock) -> None:
    for name, raw in (
        ("outbox", {"waiting": {"a": "first"}}),
        ("outbox", {}),
        ("outbox.a", {"version": 1}),
        ("outbox.a", {"version": "1", "at": "2026-01-01T00:00:00Z", "waiting": True, "value": "a"}),
        ("outbox.a", {"version": 1, "at": "2026-01-01T00:00:00Z", "waiting": True}),
        ("outbox-claim", {"by": "here", "until": "noon"}),
    ):
        states = MemoryStateStore()
        Outbox(states, clock).put("a", "a")
        states.change(name, lambda _, raw=raw: (raw, None))
        with pytest.raises(StateError, match="left as it is"):
            Outbox(states, clock).deliver(nothing)
        assert states.read(name) == raw


def test_no_document_grows_with_what_was_delivered_long_ago(clock: FakeClock) -> None:
    states, sent = MemoryStateStore(), list[object]()
    for number in range(200):
        Outbox(states, clock).put(str(number), "x" * 1000)
        Outbox(states, clock).deliver(sent.append)
    assert len(sent) == 200
    assert max(len(repr(states.read(name))) for name in states.names()) < 300


# --- two at the same time -------------------------------------------------------------------------------------------


def test_while_one_delivers_another_does_not(opened: Open, clock: FakeClock) -> None:
    outbox, sent, others = Outbox(opened(), clock), list[object](), list[int]()

    def send(message: object) -> None:
        others.append(Outbox(opened(), clock).deliver(nothing))
        sent.append(message)

    outbox.put("a", "a")
    outbox.put("b", "b")
    assert outbox.deliver(send) == 2
    assert (sent, others) == (["a", "b"], [0, 0])


def test_a_claim_that_was_stored_though_the_store_did_not_say_so_is_ones_own(clock: FakeClock) -> None:
    fault = Fault(Conflict, operation="write", key="robots/outbox-claim.json", number=1, after=True)
    states, sent = BucketStateStore(FailingBucket(MemoryBucket(), fault), "robots/", clock), list[object]()
    outbox = Outbox(states, clock)
    outbox.put("a", "a")
    assert outbox.deliver(sent.append) == 1


def claimed(states: StateStore, clock: FakeClock, who: str) -> None:
    """Claim that another delivery is under way."""
    until = exact_stamp(clock.now() + timedelta(seconds=CLAIM_S))
    states.change("outbox-claim", lambda _: ({"by": who, "until": until}, None))


def test_one_that_died_on_another_machine_blocks_for_a_minute(opened: Open, clock: FakeClock) -> None:
    outbox, sent = Outbox(opened(), clock), list[object]()
    outbox.put("a", "a")
    claimed(opened(), clock, "elsewhere:1#0")
    assert outbox.deliver(nothing) == 0
    clock.sleep(59)
    assert outbox.deliver(nothing) == 0
    clock.sleep(1)
    assert outbox.deliver(sent.append) == 1


def test_one_whose_clock_was_far_ahead_blocks_nobody(clock: FakeClock) -> None:
    states, ahead, sent = MemoryStateStore(), FakeClock(), list[object]()
    Outbox(states, clock).put("a", "a")
    ahead.sleep(3600)
    claimed(states, ahead, "elsewhere:1#0")
    assert Outbox(states, clock).deliver(sent.append) == 1


def test_one_that_died_on_this_machine_blocks_nobody(clock: FakeClock) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for process in (ended.pid, os.getpid()):  # no delivery is under way in this process
        states, sent = MemoryStateStore(), list[object]()
        outbox = Outbox(states, clock)
        outbox.put("a", "a")
        claimed(states, clock, f"{os.uname().nodename}:{process}#0")
        assert outbox.deliver(sent.append) == 1


@pytest.mark.parametrize("process", [1, os.getppid(), 10**30, "no process"])
def test_one_that_may_be_alive_is_let_deliver(clock: FakeClock, process: object) -> None:
    states = MemoryStateStore()
    outbox = Outbox(states, clock)
    outbox.put("a", "a")
    claimed(states, clock, f"{os.uname().nodename}:{process}#0")
    assert outbox.deliver(nothing) == 0


def test_a_delivery_that_takes_longer_keeps_its_claim_and_one_that_has_lost_it_sends_nothing_more(
    opened: Open, clock: FakeClock
) -> None:
    outbox, sent, names = Outbox(opened(), clock), list[object](), count(1)
    for name in "abcd":
        outbox.put(name, name)

    def slowly(message: object) -> None:
        sent.append(message)
        untils.append(str((opened().read("outbox-claim") or {})["until"]))
        clock.sleep(CLAIM_S * 0.75)
        if next(names) == 3:
            claimed(opened(), clock, "elsewhere:1#0")

    began, untils = clock.now(), list[str]()
    assert outbox.deliver(slowly) == 3
    assert untils == [exact_stamp(began + timedelta(seconds=CLAIM_S * (1 + 0.75 * number))) for number in range(3)]
    assert sent == ["a", "b", "c"]
    assert outbox.deliver(nothing) == 0  # the other one's is not released
    clock.sleep(CLAIM_S)
    assert outbox.deliver(sent.append) == 1
    assert sent == ["a", "b", "c", "d"]


def test_a_delivery_whose_clock_is_set_back_does_not_go_on_beside_one_that_took_over(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "LeaseClock", partial(LeaseClock, monotonic=lambda: clock.now().timestamp()))
    states, here, sent = MemoryStateStore(), FakeClock(), list[object]()
    for name in "abc":
        Outbox(states, clock).put(name, name)

    def send(message: object) -> None:
        sent.append(message)
        clock.sleep(CLAIM_S)
        claimed(states, clock, "elsewhere:1#0")
        here.moment -= timedelta(hours=1)

    assert Outbox(states, here).deliver(send) == 1
    assert sent == ["a"]
    assert Outbox(states, clock).deliver(nothing) == 0  # the other one's claim is left alone


def test_two_threads_deliver_everything_once(opened: Open) -> None:
    clock, sent = SystemClock(), list[object]()
    for number in range(8):
        Outbox(opened(), clock).put(str(number), number)
    threads = [threading.Thread(target=lambda: Outbox(opened(), clock).deliver(sent.append)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    Outbox(opened(), clock).deliver(sent.append)
    assert sent == list(range(8))


CHILD = """
import os, sys
from retake.bucket.directory import DirectoryBucket
from retake.clock import SystemClock
from retake.retrying.state_store import BucketStateStore
from retake.robots.outbox import Outbox
outbox = Outbox(BucketStateStore(DirectoryBucket(sys.argv[1]), "robots/", SystemClock()), SystemClock())
def send(message):
    with open(sys.argv[1] + ".sent", "a") as file:
        file.write(message + "\\n")
    if message == sys.argv[2]:
        os._exit(9)
print("ready", flush=True)
sys.stdin.readline()
outbox.deliver(send)
"""


def deliverers(root: str, count: int, dies_at: str) -> list[int]:
    command = [sys.executable, "-c", CHILD, root, dies_at]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
        for _ in range(count)
    ]
    for process in started:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in started:
        process.communicate("\n", timeout=60)
    return [process.returncode for process in started]


def test_two_processes_deliver_everything_once_and_another_goes_on_after_one_that_was_killed(tmp_path: Path) -> None:
    root = str(tmp_path / "bucket")
    outbox = Outbox(BucketStateStore(DirectoryBucket(root), "robots/", SystemClock()), SystemClock())
    for name in "abcdef":
        outbox.put(name, name)
    assert deliverers(root, 1, "c") == [9]
    assert deliverers(root, 2, "none") == [0, 0]
    sent = (tmp_path / "bucket.sent").read_text().split()
    assert sent == ["a", "b", "c", "c", "d", "e", "f"]
