"""The pipeline of docs/add-a-pipeline.md as written there: a crash at every point, unknown outcomes, cap, breaker."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from retake.bucket import ABSENT, Bucket
from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryLease, MemoryStore
from retake.clock import FakeClock
from retake.errors import Code, OutcomeUnknown, PollFailed, Refused, SettingsError, StateError, Stopped, TaskFailed
from retake.paid.caps import Caps
from retake.paid.day_book import Limits
from retake.paid.guard import HOLD, RETRY
from retake.runs import open_ledger
from retake.runs.run import STEP_DONE
from retake.runs.states import RunStatus
from retake.settings.shared import BreakerSettings
from retake.strict_json import parse
from retake.ticking.process import Process
from retake.ticking.tick import NO_ORDERS, Orders, Tick
from retake.ticking.vendor_breakers import VendorBreakers

PAGE = Path(__file__).parent.parent.parent / "docs" / "add-a-pipeline.md"
CODE = "\n\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def song() -> ModuleType:
    module = ModuleType("song")
    sys.modules["song"] = module
    exec(compile(CODE, str(PAGE), "exec"), vars(module))  # noqa: S102  the page is ours
    return module


class Shop:
    """Both vendors.

    `plan` says how the next calls end: "ok", "refused", "wasted", "cut" (carried out, the answer lost), "dropped" (it
    never arrived, which nobody can know), "empty" (the task ends without a result). A task is running at the first
    `running` polls.
    """

    def __init__(self, *plan: str, findable: bool = True, running: int = 0) -> None:
        self.plan = list(plan)
        self.findable, self.running = findable, running
        self.empty: set[str] = set()
        self.polled: Counter[str] = Counter()
        self.billed: dict[str, list[str]] = {"lyrics": [], "track": []}
        self.asked: Counter[str] = Counter()
        self.dies: Callable[[], None] = lambda: None

    def call(self, step: str, facts: Mapping[str, Any]) -> str:
        self.dies()
        self.asked[step] += 1
        outcome = self.plan.pop(0) if self.plan else "ok"
        if outcome == "refused":
            raise Refused(Code.UNAVAILABLE, "HTTP 503")
        if outcome == "dropped":
            raise OutcomeUnknown(Code.TIMEOUT, "no answer")
        self.billed[step].append(facts["nonce"])
        self.dies()
        if outcome == "wasted":
            raise TaskFailed(Code.BAD_ANSWER, "silence")
        if outcome == "cut":
            raise OutcomeUnknown(Code.NETWORK, "cut")
        if outcome == "empty":
            self.empty.add(facts["nonce"])
        return str(facts["nonce"])

    def poll(self, step: str, task: str) -> str | None:
        self.dies()
        assert task in self.billed[step]
        self.polled[task] += 1
        if self.polled[task] <= self.running:
            return None
        if task in self.empty:
            raise TaskFailed(Code.TASK_FAILED, "silence")
        return f"{step} of {task}"

    def find(self, step: str, facts: Mapping[str, Any]) -> str | None:
        return str(facts["nonce"]) if self.findable and facts["nonce"] in self.billed[step] else None


class Studio:
    """The song on a bucket in memory."""

    def __init__(self, song: ModuleType, shop: Shop, **options: Any) -> None:
        self.song, self.shop, self.options = song, shop, options
        self.store = MemoryStore()
        self.clock = FakeClock()
        self.failures: int | None = None
        self.orders = NO_ORDERS
        self.process = Process(self.clock)

    @property
    def bucket(self) -> MemoryBucket:
        return MemoryBucket(self.store)

    def tick(self, bucket: Bucket | None = None) -> Tick:
        bucket = bucket or self.bucket
        breakers = VendorBreakers(BreakerSettings(self.failures, 3600, 600), bucket, self.clock, "test", 60)
        vendors = self.song.Studio(self.shop.call, self.shop.poll, self.shop.find)
        runner = self.song.song_runner(bucket, self.clock, vendors, breakers, self.process, **self.options)
        tick: Tick = runner.tick(self.orders)
        self.clock.sleep(60)
        return tick

    def to_its_end(self, most: int = 30) -> Tick:
        for _ in range(most):
            if (tick := self.tick()).ended:
                return tick
        raise AssertionError(f"no end after {most} ticks: {tick}")

    @property
    def state(self) -> dict[str, Any]:
        return dict(parse(self.bucket.read("song/song.json")[0]))

    @property
    def booked(self) -> float:
        """What the caps' book says was spent."""
        state = self.song.Document(self.bucket.part("song/"))
        state.read()
        return Caps(self.bucket, self.clock, Limits()).today("song", state.known).book.spent

    @property
    def cost(self) -> float:
        return round(sum(self.song.PRICES[step] * len(calls) for step, calls in self.shop.billed.items()), 6)


def test_the_page_imports_nothing_of_the_story() -> None:
    assert "retake.story" not in re.sub(r"#.*", "", CODE)


def test_a_song_is_made_and_each_step_is_paid_for_once(song: ModuleType) -> None:
    studio = Studio(song, Shop())
    assert studio.tick().ended == "done"
    assert {step: len(calls) for step, calls in studio.shop.billed.items()} == {"lyrics": 1, "track": 1}
    assert studio.booked == studio.cost == 0.26


def test_the_page_saved_as_a_program_makes_the_song_and_pays_no_more_when_it_runs_again(tmp_path: Path) -> None:
    (tmp_path / "song.py").write_text(CODE, "utf-8")
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PAGE.parent.parent)}
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "song.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60
        )
        assert (ran.returncode, ran.stdout) == (0, "")
        (line,) = ran.stderr.splitlines()
        assert json.loads(line)["message"] == "lyrics and track are there"
    kept = parse((tmp_path / "bucket" / "song" / "song.json").read_bytes())
    assert kept["results"] == {"lyrics": "a lyrics", "track": "a track"}
    assert len(kept["paid_calls"]) == 2


def operations(song: ModuleType, *plan: str) -> int:
    studio = Studio(song, Shop(*plan))
    counted = FailingBucket(studio.bucket)
    for _ in range(20):
        if studio.tick(counted).ended:
            return len(counted.operations)
    raise AssertionError("no end")


PLANS = [(), ("refused",), ("cut",), ("ok", "cut"), ("wasted",), ("empty",), ("ok", "refused", "cut")]


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_death_at_any_operation_pays_for_nothing_twice(song: ModuleType, plan: tuple[str, ...]) -> None:
    for number in range(1, operations(song, *plan) + 1):
        for after in (False, True):
            studio = Studio(song, Shop(*plan), on_unknown=RETRY)
            dying = FailingBucket(studio.bucket, Fault(Crash, number=number, after=after))
            with suppress(Crash):
                while not studio.tick(dying).ended:
                    pass
            dying.end_leases()
            assert studio.to_its_end().ended == "done", (plan, number, after)
            check_bill(studio, plan, (number, after))


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_death_around_any_vendor_call_pays_for_nothing_twice(song: ModuleType, plan: tuple[str, ...]) -> None:
    for moment in range(1, 9):
        studio = Studio(song, Shop(*plan), on_unknown=RETRY)
        left = [moment]

        def die(left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Crash("the machine died")

        studio.shop.dies = die
        with suppress(Crash):
            studio.to_its_end()
        studio.store.end_leases()
        assert studio.to_its_end().ended == "done", (plan, moment)
        check_bill(studio, plan, moment)


def check_bill(studio: Studio, plan: tuple[str, ...], where: object) -> None:
    """Check that each step has one result that was paid for once, and only failures were paid for besides.

    The book agrees with the document and is no less than the bill; it is more only for a call that the machine's death
    may have cut off.
    """
    billed = {step: len(calls) for step, calls in studio.shop.billed.items()}
    twice = "wasted" in plan or "empty" in plan
    assert all(1 <= number <= 1 + twice for number in billed.values()), (plan, where, billed)
    assert sorted(studio.state["results"]) == ["lyrics", "track"]
    doubtful = sum(call["price_usd"] for call in studio.state["paid_calls"] if call.get("possible_duplicate"))
    assert studio.booked == round(sum(call["price_usd"] for call in studio.state["paid_calls"]), 6), (plan, where)
    assert studio.cost <= studio.booked <= round(studio.cost + doubtful, 6), (plan, where)
    ledger = open_ledger(None, studio.bucket.part("song/"), studio.clock, read_only=True)
    [run] = ledger.of_task("song-1")
    done = [it.payload["step"] for it in ledger.events(run.run_id) if it.kind == STEP_DONE]
    assert (run.status, done) == (RunStatus.SUCCEEDED, ["lyrics", "track"]), (plan, where)


def test_a_call_of_unknown_outcome_is_held_for_the_operator(song: ModuleType) -> None:
    studio = Studio(song, Shop("dropped", findable=False), on_unknown=HOLD)
    for _ in range(5):
        assert studio.tick().exit_code == 75
    assert studio.shop.asked == {"lyrics": 1}
    assert studio.state["pending"]["held"] is True
    assert "--resolve retry" in studio.tick().why
    studio.orders = Orders(resolve="retry")
    assert studio.tick().ended == "done"
    assert [call.get("possible_duplicate") for call in studio.state["paid_calls"]] == [True, None, None]
    with pytest.raises(StateError, match="nothing is held"):
        studio.tick()


@pytest.mark.parametrize("answer", [None, "", 0, b"task"])
def test_an_order_that_returns_no_id_of_a_task_is_paid_for_once(song: ModuleType, answer: Any) -> None:
    class Careless(Shop):
        def call(self, step: str, facts: Mapping[str, Any]) -> Any:
            super().call(step, facts)
            return answer

        def poll(self, step: str, task: str) -> str | None:
            assert task == str(answer)
            return None

    studio = Studio(song, Careless(), cap_usd=1.0)
    assert [studio.tick().why for _ in range(3)] == ["lyrics is not ready yet"] * 3
    assert studio.shop.asked == {"lyrics": 1}


def test_a_track_that_takes_several_ticks_is_paid_for_once(song: ModuleType) -> None:
    studio = Studio(song, Shop(running=3))
    ticks = [studio.tick() for _ in range(7)]
    assert [(it.exit_code, it.ended) for it in ticks] == [*[(0, None)] * 6, (0, "done")]
    assert studio.shop.asked == {"lyrics": 1, "track": 1}


def test_a_task_without_a_result_is_ordered_again_as_often_as_the_policy_says(song: ModuleType) -> None:
    studio = Studio(song, Shop(*["empty"] * 99))
    assert studio.to_its_end().ended == "failed"
    assert studio.shop.asked == {"lyrics": 1 + song.POLICY.max_retries}
    assert studio.booked == studio.cost


def test_a_refused_key_waits_for_a_person_and_costs_no_finished_step(song: ModuleType) -> None:
    studio = Studio(song, Shop("ok"))
    call = studio.shop.call
    studio.shop.call = lambda step, facts: call(step, facts) if step == "lyrics" else refuse()  # type: ignore[method-assign]

    def refuse() -> str:
        raise Refused(Code.UNAUTHORIZED, "HTTP 401")

    tick = studio.to_its_end()
    assert (tick.exit_code, "--resume" in tick.why) == (69, True)
    studio.shop.call = call  # type: ignore[method-assign]
    assert studio.tick().ended == "failed"
    studio.orders = Orders(resume=True)
    assert studio.tick().ended == "done"
    assert studio.shop.asked == {"lyrics": 1, "track": 1}


def test_a_tick_that_is_asked_to_stop_saves_the_answer_that_it_waits_for_and_pays_no_more(song: ModuleType) -> None:
    studio = Studio(song, Shop())
    studio.process = Process(studio.clock, stopping=lambda: bool(studio.shop.asked))
    with pytest.raises(Stopped):
        studio.tick()
    assert studio.shop.asked == {"lyrics": 1}
    assert studio.state["results"] == {"lyrics": "lyrics of lyrics-0"}
    assert studio.state["pending"] is None


def test_a_program_that_is_asked_to_stop_ends_once_the_call_is_answered(song: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "song.py").write_text(CODE, "utf-8")
    (tmp_path / "slow.py").write_text(SLOW)
    with subprocess.Popen(
        [sys.executable, "slow.py"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PAGE.parent.parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as running:
        assert running.stdin
        assert running.stdout
        assert running.stdout.readline() == b"asked\n"
        running.send_signal(signal.SIGTERM)
        running.stdin.write(b"answer\n")
        running.stdin.close()
        assert running.wait(60) == 75
    assert parse((tmp_path / "bucket/song/song.json").read_bytes())["results"] == {"lyrics": "answer"}


SLOW = """
import sys
from song import Studio, main

def call(step, facts):
    print("asked", flush=True)
    return sys.stdin.readline().strip()

sys.exit(main(Studio(call, lambda step, task: task, lambda step, facts: None)))
"""


def test_the_vendors_of_the_page_speak_http(song: ModuleType) -> None:
    """Each kind of answer, from a server on this machine."""
    answers: list[tuple[int, bytes]] = []

    class Answering(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def do_GET(self) -> None:
            status, body = answers.pop(0)
            if status:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        studio = song.studio_at(f"http://127.0.0.1:{server.server_address[1]}", "a-key-of-the-studio")
        answers += [(200, b'{"task": "t1"}'), (200, b'{"status": "running"}')]
        assert studio.call("track", {"nonce": "n"}) == "t1"
        assert studio.poll("track", "t1") is None
        answers += [(200, b'{"status": "done", "result": "la la"}'), (404, b'{"error": "no such order"}')]
        assert studio.poll("track", "t1") == "la la"
        assert studio.find("track", {"nonce": "n"}) is None
        for status, body, kind in (
            (429, b'{"error": "slow down"}', Refused),
            (500, b'{"error": "sorry"}', Refused),
            (500, b"<html>", OutcomeUnknown),
            (200, b"{}", OutcomeUnknown),
            (0, b"", OutcomeUnknown),
        ):
            answers.append((status, body))
            with pytest.raises(kind):
                studio.call("track", {"nonce": "n"})
        answers += [(200, b'{"status": "failed"}'), (200, b'{"status": "done"}')]
        for failure in (TaskFailed, PollFailed):
            with pytest.raises(failure):
                studio.poll("track", "t1")
        server.shutdown()


def test_a_call_of_unknown_outcome_is_repeated_and_marked(song: ModuleType) -> None:
    studio = Studio(song, Shop("cut", findable=False), on_unknown=RETRY)
    assert studio.to_its_end().ended == "done"
    assert [call.get("possible_duplicate") for call in studio.state["paid_calls"]] == [True, None, None]
    assert studio.booked == studio.cost


def test_retries_are_bounded_and_wait_as_the_policy_says(song: ModuleType) -> None:
    studio = Studio(song, Shop(*["refused"] * 99))
    tick = studio.to_its_end()
    assert (tick.ended, tick.exit_code) == ("failed", 69)
    assert studio.shop.asked == {"lyrics": 1 + song.POLICY.max_retries}
    assert studio.booked == 0


def test_the_cap_holds_back_what_would_exceed_it(song: ModuleType) -> None:
    studio = Studio(song, Shop(), cap_usd=0.2)
    tick = studio.tick()
    assert (tick.exit_code, studio.shop.asked) == (75, {"lyrics": 1})
    assert "cap" in tick.why
    studio.clock.sleep(24 * 3600)
    studio.options["cap_usd"] = 0.25
    assert studio.to_its_end().ended == "done", "another day"


def test_a_vendor_that_keeps_failing_is_left_alone(song: ModuleType) -> None:
    studio = Studio(song, Shop(*["refused"] * 2))
    studio.failures = 2
    while studio.shop.asked["lyrics"] < 2:
        studio.tick()
    assert "open" in studio.tick().why
    assert studio.shop.asked == {"lyrics": 2}
    studio.clock.sleep(600)
    assert studio.to_its_end().ended == "done"


def test_a_document_that_was_damaged_is_reported_and_left_as_it_is(song: ModuleType) -> None:
    studio = Studio(song, Shop())
    studio.bucket.write("song/song.json", b'{"results": ', ABSENT)
    with pytest.raises(StateError, match=r"song.json: .* Mend it"):
        studio.tick()
    assert studio.bucket.read("song/song.json")[0] == b'{"results": '


def test_two_ticks_at_once_do_no_harm(song: ModuleType) -> None:
    studio = Studio(song, Shop())
    lease = studio.bucket.part("song/").lease("song", "somebody")
    assert "held" in studio.tick().why
    assert not studio.shop.asked
    lease.release()
    assert studio.tick().ended == "done"


def test_calls_that_take_longer_than_the_lease_lasts_are_refused_before_anything_is_recorded(
    song: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    studio = Studio(song, Shop())
    began = studio.clock.now()

    def left(lease: MemoryLease) -> float:
        """Return the time left of a term of 75 s, renewed after each third of it."""
        since = (studio.clock.now() - began).total_seconds()
        assert since < 3600, "it waits for ever"
        return 75.0 - since % 25

    monkeypatch.setattr(MemoryLease, "left", left)
    with pytest.raises(SettingsError, match=r"a paid call may take 90 s, .*`lease_terms` of open_bucket"):
        studio.tick()
    assert not studio.shop.asked
    assert studio.state.get("pending") is None
    assert studio.booked == 0
