"""The real service, killed and restarted, and several services on one database."""

import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPException
from pathlib import Path
from random import Random
from typing import Any

import pytest
from service_process import ServiceProcess
from waiting import LONG_S, eventually

from retake.clock import SystemClock
from retake.music.background import POLLER
from retake.music.database import open_music_database
from retake.music.leases import take_lease
from retake.music.outbox import LEASE
from retake.sandbox import Pace, RecordedCall, Sandbox

PATH = "/api/music/pipeline"


class ObservedSandbox(Sandbox):
    """A sandbox that reports each call to `observe` after carrying it out and before answering."""

    def __init__(self) -> None:
        self.observe: Callable[[RecordedCall], object] = lambda call: None
        super().__init__(pace=Pace(0, 0, 0), quick=True, seed=7, on_call=lambda call: self.observe(call))


@pytest.fixture
def sandbox() -> Iterator[ObservedSandbox]:
    with ObservedSandbox() as sandbox:
        yield sandbox


@pytest.fixture
def service(sandbox: Sandbox, url: str, tmp_path: Path) -> Iterator[ServiceProcess]:
    service = ServiceProcess(tmp_path, sandbox.url, url)
    yield service
    service.end()


def pushed_on(service: ServiceProcess, number: int) -> str:
    """Approve what is pending; return the state."""
    row = service.pipeline(number)
    assert row["state"] != "failed", row["failed_reason"]
    if row["state"].endswith("_pending"):
        service.post(f"{PATH}/{number}/approve", step=row["state"].removesuffix("_pending"))
    return str(row["state"])


def test_killed_at_random_again_and_again_it_publishes_one_video(service: ServiceProcess, sandbox: Sandbox) -> None:
    seed = int(os.environ.get("RETAKE_KILLS_SEED") or time.time_ns() % 1_000_000)
    print(f"RETAKE_KILLS_SEED={seed}")  # noqa: T201  set it to repeat the same choices
    random, kills, died_in = Random(seed), 0, Counter[str]()
    service.start()
    number = service.post(PATH, track_title="Paper Boats", audio="demo.wav").body["id"]
    end = time.monotonic() + random.uniform(0.1, 2)
    while (state := pushed_on(service, number)) != "published":
        # A step that kills four workers is given up. After an approval, the next one may have begun.
        most = 1 if state.endswith("_pending") else 2
        if kills < 6 and died_in[state] < most and time.monotonic() > end:
            service.kill()
            service.start()
            died_in[state] += 1
            kills, end = kills + 1, time.monotonic() + random.uniform(0.1, 4)
        time.sleep(0.1)
    assert service.stop() == 0
    [video] = sandbox.youtube.videos()
    assert (video["thumbnails"] >= 1, video["title"][:11]) == (True, "Paper Boats")
    assert sum(call.carried_out for call in sandbox.calls("imagine")) == 1  # found in the vendor's history


@pytest.mark.parametrize("kind", ["imagine", "chat", "upload.start", "upload.put", "thumbnail"])
def test_killed_while_a_vendor_answers_it_goes_on_from_there(
    sandbox: ObservedSandbox, tmp_path: Path, kind: str
) -> None:
    service = ServiceProcess(tmp_path, sandbox.url, f"sqlite:{tmp_path}/music.sqlite3").start()
    created, killed = threading.Event(), threading.Event()

    def kill(call: RecordedCall) -> None:
        if call.kind == kind and not killed.is_set():
            created.wait(30)  # the first call may come before the answer to the request that began it
            service.kill()
            killed.set()

    sandbox.observe = kill
    number = service.post(PATH, track_title="Paper Boats", audio="demo.wav").body["id"]
    created.set()
    try:
        while True:
            if killed.is_set() and service.process and service.process.poll() is not None:
                service.start()
            try:
                if pushed_on(service, number) == "published":
                    break
            except (OSError, HTTPException):  # it has just been killed
                killed.wait(5)
            time.sleep(0.1)
    finally:
        service.end()
    assert killed.is_set()
    assert len(sandbox.youtube.videos()) == 1
    assert sum(call.carried_out for call in sandbox.calls("imagine")) == 1


@pytest.fixture
def pair(sandbox: Sandbox, tmp_path: Path) -> Iterator[tuple[ServiceProcess, ServiceProcess]]:
    """Yield two processes on one database; neither runs yet."""
    first, second = (ServiceProcess(tmp_path, sandbox.url, f"sqlite:{tmp_path}/music.sqlite3") for _ in range(2))
    yield first, second
    first.end()
    second.end()


class FrozenIn:
    """Freezes a service in a call of its own, once `let` allows it: the vendor has carried the call out, but its answer
    is not on the way yet. `until` says which call."""

    def __init__(self, service: ServiceProcess, until: Callable[[RecordedCall], bool]) -> None:
        self._service, self._until = service, until
        self._let, self._frozen = threading.Event(), threading.Event()

    def __call__(self, call: RecordedCall) -> None:
        if not self._frozen.is_set() and self._until(call):
            assert self._let.wait(LONG_S)  # so that the request that began it has been answered
            self._service.freeze()
            self._frozen.set()

    def wait(self) -> None:
        self._let.set()
        assert self._frozen.wait(LONG_S)


def woken_too_late(first: ServiceProcess, second: ServiceProcess) -> None:
    """Let the first service find out that its step now belongs to another; end both."""
    first.thaw()
    eventually(lambda: "which is not saved" in first.log())
    assert [first.stop(), second.stop()] == [0, 0]


def test_frozen_in_a_paid_call_it_finds_the_step_done_by_another_and_orders_nothing(
    pair: tuple[ServiceProcess, ServiceProcess], sandbox: ObservedSandbox, tmp_path: Path
) -> None:
    first, second = pair
    first.start()
    sandbox.observe = frozen = FrozenIn(first, lambda call: call.kind == "imagine")
    number = first.post(PATH, track_title="Paper Boats", audio="demo.wav").body["id"]
    frozen.wait()
    second.start()
    eventually(lambda: second.pipeline(number)["state"] == "cover_pending")
    found = second.pipeline(number)
    woken_too_late(first, second)
    assert [(job["attempt"], job["status"]) for job in found["jobs"]] == [(1, "interrupted"), (1, "succeeded")]
    assert len(sandbox.calls("imagine")) == 1
    with closing(sqlite3.connect(tmp_path / "music.sqlite3")) as database:
        assert database.execute("SELECT outcome FROM paid_calls").fetchall() == [("accepted",)]
        assert database.execute("SELECT state, updated_at FROM pipelines").fetchall() == [
            ("cover_pending", found["updated_at"])
        ]


@pytest.mark.parametrize("kind", ["upload.start", "upload.put"])
def test_frozen_in_an_upload_it_finds_the_video_published_by_another_and_sends_nothing(
    pair: tuple[ServiceProcess, ServiceProcess], sandbox: ObservedSandbox, kind: str
) -> None:
    """It is frozen before its session is recorded, and after all of the video, which is one chunk, has reached
    YouTube."""
    first, second = pair
    first.start()
    number = first.post(PATH, track_title="Paper Boats", audio="demo.wav").body["id"]
    eventually(lambda: pushed_on(first, number) == "meta_pending")
    eventually(lambda: first.pipeline(number)["state"] == "review_pending")
    sandbox.observe = frozen = FrozenIn(first, lambda call: call.kind == kind)
    first.post(f"{PATH}/{number}/approve", step="review")
    frozen.wait()
    second.start()
    eventually(lambda: second.pipeline(number)["state"] == "published")
    found = second.pipeline(number)
    woken_too_late(first, second)
    [video] = sandbox.youtube.videos()
    assert (found["youtube_video_id"], found["warning"], video["thumbnails"]) == (video["id"], None, 1)
    assert len(sandbox.calls("upload.put")) == 1


def test_a_step_whose_service_died_continues_as_the_same_attempt(service: ServiceProcess, sandbox: Sandbox) -> None:
    sandbox.order("imagine#1=hang-after")
    service.start()
    number = service.post(PATH, track_title="Paper Boats", audio="demo.wav").body["id"]
    eventually(lambda: sandbox.calls("imagine"))
    service.kill()
    service.start()
    eventually(lambda: service.pipeline(number)["state"] == "cover_pending")
    jobs = [(job["step"], job["attempt"], job["status"]) for job in service.pipeline(number)["jobs"]]
    assert jobs == [("cover", 1, "interrupted"), ("cover", 1, "succeeded")]


TELEGRAM: dict[str, Any] = {"telegram": "poll", "telegram_chat_id": 1, "telegram_allowed_users": [1]}


def test_after_an_orderly_end_another_process_talks_to_telegram_at_once(
    sandbox: Sandbox, url: str, tmp_path: Path
) -> None:
    service = ServiceProcess(tmp_path, sandbox.url, url, **TELEGRAM).start()
    try:
        service.post(PATH, track_title="Paper Boats", audio="demo.wav")
        eventually(sandbox.telegram.messages)
        eventually(lambda: sandbox.calls("updates"))  # takes 25 s, for which the process does not wait
        assert service.stop() == 0
    finally:
        service.end()
    opened = open_music_database(url, SystemClock())
    try:
        assert all(take_lease(opened, name, "another:1", 30) for name in (LEASE, POLLER))
    finally:
        opened.close()


def test_one_of_twenty_simultaneous_taps_over_two_processes_counts(sandbox: Sandbox, url: str, tmp_path: Path) -> None:
    telegram = {**TELEGRAM, "telegram_poll_seconds": 1}
    sandbox.order("imagine#1-21=400")
    services = [ServiceProcess(tmp_path, sandbox.url, url, stuck_seconds=60, **telegram).start() for _ in range(2)]
    try:
        number = services[0].post(PATH, track_title="Paper Boats", audio="demo.wav").body["id"]
        eventually(lambda: services[0].pipeline(number)["state"] == "failed")
        sandbox.withdraw_orders()
        eventually(sandbox.telegram.messages)

        def tap(n: int) -> int:
            if n % 2:
                sandbox.telegram.tap(f"ytpub_retry_{number}")
                return 0
            return services[n // 2 % 2].post(f"{PATH}/{number}/retry").status

        with ThreadPoolExecutor(20) as pool:
            statuses = list(pool.map(tap, range(20)))

        def answered() -> dict[str, str]:  # by tap: one whose answer was not recorded in time is answered again
            return {it["callback_query_id"]: it["text"] for it in sandbox.telegram.answers()}

        eventually(lambda: len(answered()) == 10)
        answers = list(answered().values())
        begun = statuses.count(200) + sum("cover begins" in text for text in answers)
        assert begun == 1, (statuses, answers)
        assert statuses.count(409) + statuses.count(200) == 10
        eventually(lambda: services[1].pipeline(number)["state"] == "cover_pending")
        jobs = [job["status"] for job in services[0].pipeline(number)["jobs"]]
        assert jobs == ["failed", "succeeded"]
        assert [service.stop() for service in services] == [0, 0]
    finally:
        for service in services:
            service.end()
