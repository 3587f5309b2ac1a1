"""The service dies at each point of each step, once and twice: at most one picture per intent, at most one video, and
nothing stays stuck."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deaths import Fate, MortalBucket, make_mortal, make_once
from rig import FOLLOWING, Rig
from sqlalchemy import insert, select

from retake.bucket import ANY
from retake.clock import FakeClock
from retake.music.operations import open_operations
from retake.music.rows import PipelineRow
from retake.music.states import STEPS
from retake.music.tables import messages, pipelines
from retake.operations.examinations import check_bucket
from retake.testing.vendors import Died

PAIRS = int(os.environ.get("RETAKE_MUSIC_PAIRS") or 12)
"""Pairs of deaths in each step, on each kind of database."""

BEFORE = {step: f"{before}_pending" for before, step in FOLLOWING.items()}
FILES = {"cover_url": "cover-1.png", "video_url": "video-2.mp4", "thumbnail_url": "thumb-3.jpg"}
KINDS = {"cover": "imagine", "meta": "chat", "review": "chat"}


class MortalRig(Rig):
    """A rig whose process can die; each case is a pipeline of its own."""

    def __init__(self, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fate = Fate()
        super().__init__(url, folder, bucket=MortalBucket(self.fate), step_max_retries=6)
        make_mortal(self.database.database, self.fate, monkeypatch)
        make_once(monkeypatch)
        self.checking = url.startswith("sqlite:")  # one database is enough
        self.model = self.approve_until(self.create(), "review_pending")
        self.files = {name: self.bucket.read(f"music/{self.model.id}/{name}")[0] for name in FILES.values()}

    def pipeline_before(self, step: str) -> int:
        """Return a pipeline that waits for approval before `step`, with everything made by then."""
        made: dict[str, Any] = {"state": BEFORE[step], "take": 5, "track_title": "Paper Boats", "audio": "demo.wav"}
        made |= {name: getattr(self.model, name) for name in ("metadata_json", "review_json", *FILES)}
        with self.database.transaction() as cursor:
            row = cursor.row(insert(pipelines).values(made).returning(pipelines.c.id))
        assert row
        for name, data in self.files.items():
            self.bucket.write(f"music/{row[0]}/{name}", data, ANY)
        return int(row[0])

    def live_through(self, step: str, *deaths: int) -> PipelineRow:
        """Begin the step and work until nothing is left to do, dying at these points and restarting. After one death
        the service recovers without help."""
        self.fate.reset()
        key = f"case {time.time_ns()}"
        number = None if step == "cover" else self.pipeline_before(step)
        self.fate.reset(*deaths)
        for _ in range(len(deaths) + 1):
            try:
                if number is None:
                    self.create(idempotency_key=key)
                elif self.get(number).state == BEFORE[step]:
                    self.actions.approve(number)
                self.settle()
            except Died:
                self.begin()
                if self.checking and len(deaths) == 1:
                    self.check_whole()
            else:
                break
        assert self.fate.deaths == len([it for it in deaths if it < self.fate.count])
        self.fate.plan = frozenset()
        return self.create(idempotency_key=key) if number is None else self.get(number)

    def case(self, step: str, *deaths: int) -> None:
        """Live through the step, and check that it ended and was paid for at most once per intent."""
        kind = KINDS.get(step, "imagine")
        billed = self.billed(kind)
        row = self.live_through(step, *deaths)
        where = f"{step}, dying at {deaths}"
        assert row.state == ("published" if step == "publish" else f"{step}_pending"), (where, row.failed_reason)
        jobs = self.actions.jobs(row.id)
        assert [job.status for job in jobs].count("succeeded") == 1, where
        assert "running" not in [job.status for job in jobs], where
        calls = [call for call in self.calls.of_pipeline(row.id) if call.outcome != "refused"]
        assert self.billed(kind) - billed <= len(calls) <= len(deaths) + 1, where
        if step == "cover":  # the vendor's history tells what became of an order
            assert self.billed(kind) - billed == 1, where
        if step == "publish":
            videos = [it for it in self.sandbox.youtube.videos() if it["description"].endswith(row.nonce or "-")]
            assert [it["id"] for it in videos] == [row.youtube_video_id], where
        event = "published" if step == "publish" else "pending"
        told = select(messages.c.id).where(messages.c.pipeline_id == row.id, messages.c.event == event)
        with self.database.reading() as cursor:
            assert len(cursor.rows(told)) == 1, where
        assert {run.status for run in self.database.ledger.of_task(row.task_id)} <= {"succeeded"}, where

    def check_whole(self) -> None:
        """Check that `retake check` finds nothing: rows, files, runs and bills agree."""
        clock = FakeClock(self.clock.now())  # a second look takes time, which the rig does not have
        report = check_bucket(open_operations(self.settings, clock, self.bucket))
        assert report.complete, report.findings
        assert not report.open, report.open
        assert report.looked_at["music_pipelines"] > 1


@pytest.fixture(params=["sqlite", "postgresql"])
def rig(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MortalRig]:
    postgres = request.param == "postgresql"
    url = request.getfixturevalue("database_url") if postgres else f"sqlite:{tmp_path}/music.sqlite3"
    rig = MortalRig(url, tmp_path, monkeypatch)
    yield rig
    rig.close()
    rig.sandbox.close()


@pytest.mark.search
@pytest.mark.parametrize("step", STEPS)
def test_whenever_the_service_dies_the_step_ends_and_nothing_is_paid_twice(rig: MortalRig, step: str) -> None:
    rig.case(step)
    points = rig.fate.count
    assert points > 10
    for number in range(points):
        rig.case(step, number)
    rig.check_whole()


@pytest.mark.search
@pytest.mark.parametrize("step", STEPS)
def test_it_may_die_twice(rig: MortalRig, step: str) -> None:
    seed = int(os.environ.get("RETAKE_MUSIC_SEED") or time.time_ns() % 1_000_000)
    print(f"RETAKE_MUSIC_SEED={seed}")  # noqa: T201  set it to try the same pairs again
    rig.case(step)
    points, random = rig.fate.count, Random(seed)
    for _ in range(PAIRS):
        first = random.randrange(points)
        rig.case(step, first, first + 1 + random.randrange(points))
    rig.check_whole()
