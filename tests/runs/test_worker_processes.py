"""Workers in real processes that are killed or frozen during their work: one success, one payment."""

import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from subprocess import Popen

import pytest
from worker_processes import hear, payments, started, tell

from retake.bucket.directory import DirectoryBucket
from retake.clock import FakeClock, SystemClock
from retake.runs import Ledger, open_ledger
from retake.runs.recovery import Recovery
from retake.runs.run import CHANGED, Run
from retake.runs.states import RunStatus
from retake.runs.worker import LATE, RESULT

MOMENTS = ["paying", "paid"]


class Place:
    """A ledger on the disk, and a run that waits in it."""

    def __init__(self, url: str | None, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.ledger: Ledger = open_ledger(url, DirectoryBucket(str(folder / "bucket")), SystemClock())
        self.run = self.ledger.create_for_task("night", "night#1", actor="cron")

    def recover(self) -> list[Run]:
        """Return the runs that a recovery marks after an hour."""
        later = FakeClock(SystemClock().now() + timedelta(hours=1))
        return Recovery(open_ledger(self.url, DirectoryBucket(str(self.folder / "bucket")), later), later).sweep()[0]

    def finish(self, process: Popen[str]) -> str:
        """Let it run to its end."""
        while (word := hear(process)) in MOMENTS:
            tell(process)
        return word

    def history(self) -> list[str]:
        events = self.ledger.events(self.run.run_id)
        return [event.payload["status"] if event.kind == CHANGED else event.kind for event in events]


@pytest.fixture(params=["sqlite", "directory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    place = Place(f"sqlite:{tmp_path}/runs.db" if request.param == "sqlite" else None, tmp_path)
    yield place
    if request.param == "sqlite":
        place.ledger.close()  # type: ignore[attr-defined]


def until(process: Popen[str], moment: str) -> None:
    """Let it run to that moment of its job, and no further."""
    while hear(process) != moment:
        tell(process)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_worker_killed_in_its_job_is_made_up_for_by_another(place: Place, moment: str) -> None:
    with started(place.url, place.folder, "first") as first:
        until(first, moment)
        assert place.ledger.get(place.run.run_id).worker == "first"
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert [run.status for run in place.recover()] == [RunStatus.INTERRUPTED]
    with started(place.url, place.folder, "second") as second:
        assert place.finish(second) == "succeeded"
    assert place.history() == ["queued", "running", "interrupted", "run.error", "running", RESULT, "succeeded"]
    assert payments(place.folder) == ["night#1"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_late_end_of_a_worker_that_was_frozen_is_refused(place: Place, moment: str) -> None:
    """It is frozen between two signs of life: during one it would hold the directory's lock."""
    with started(place.url, place.folder, "first", heartbeat_s=3600) as first:
        until(first, moment)
        os.kill(first.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WNOWAIT)
        assert [run.status for run in place.recover()] == [RunStatus.INTERRUPTED]
        with started(place.url, place.folder, "second") as second:
            assert place.finish(second) == "succeeded"
        os.kill(first.pid, signal.SIGCONT)
        tell(first)
        assert place.finish(first) == "succeeded"  # by the second
    assert [event for event in place.history() if event in (LATE, "succeeded")] == ["succeeded", LATE]
    late = place.ledger.events(place.run.run_id)[-1].payload
    assert (late["worker"], late["results"]) == ("first", [{"by": "first"}])
    assert place.ledger.counts()[RunStatus.SUCCEEDED] == 1
    assert payments(place.folder) == ["night#1"]


def test_a_worker_that_is_alive_keeps_its_run(place: Place) -> None:
    with started(place.url, place.folder, "first") as first:
        until(first, "paying")
        began = place.ledger.get(place.run.run_id).heartbeat_at
        assert began
        while place.ledger.get(place.run.run_id).heartbeat_at == began:
            pass  # it gives signs of life by itself
        alive = place.ledger.get(place.run.run_id).heartbeat_at
        assert alive
        assert place.ledger.silent(alive) == []
        tell(first)
        assert place.finish(first) == "succeeded"
