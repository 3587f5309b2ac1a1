"""Random histories: calls fail and tasks never end, the service dies or freezes while another process takes over,
uploads expire, people give sensible and absurd orders. In the end every pipeline is published or cancelled, every
payment is recorded, and no video is published twice.

RETAKE_SEEDS sets how many worlds the searches try; one of these takes the time of forty of the story's. RETAKE_SEED
replays one.
"""

import json
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deaths import Fate, MortalBucket, make_mortal, make_once
from rig import START, Rig
from seeds import wanted

from retake.clock import FakeClock
from retake.errors import RetakeError
from retake.music import states
from retake.music.operations import open_operations
from retake.music.rows import PipelineRow
from retake.music.store import cancel_run
from retake.operations.examinations import check_bucket
from retake.operations.port import Refusal
from retake.sandbox import Pace, Sandbox
from retake.sandbox.database import RecordedCall
from retake.testing.vendors import Died

TURNS = 20
MOST_PIPELINES = 2

FAULTS = {
    "imagine": "cut-before cut-after 500 429 401 task-failed task-rejected never-ends not-json no-id quota 502-html",
    "fetch": "500 cut-before not-json 404",
    "download": "404 500 cut-before",
    "histories": "500 cut-before",
    "chat": "500 cut-after cut-before not-json 429 quota",
    "token": "400 500",
    "upload.start": "500 cut-after cut-before 403-quotaExceeded",
    "upload.put": "cut-midway cut-after cut-before 503",
    "upload.ask": "500 cut-before",
    "youtube": "403-quotaExceeded 500",
    "thumbnail": "500 403 cut-after",
}
"""By kind of call, what can happen to it."""

ORDERS = ("approve", "publish", "feedback", "retry", "retry_again", "cancel", "again", "resolve", "cancel_run")
DEATH, HAPPENING = 0.015, 0.05
"""The chance of each at every point where a process can die."""


class Chance(Fate):
    """Lets a process die, or something happen, at random; nothing while it is calm."""

    def __init__(self, random: Random, happen: Callable[[], None]) -> None:
        super().__init__()
        self._random, self._happen = random, happen
        self.calm = True

    def point(self, *, inside: bool = False) -> None:
        if self.calm:
            return
        drawn = self._random.random()
        if drawn < DEATH:
            raise Died
        if drawn > 1 - HAPPENING and not inside:  # within a transaction nobody else could write
            self.calm = True
            self._happen()
            self.calm = False


class Simulation:
    """Two processes of the service on one database and bucket: `one` dies and freezes, `two` keeps running."""

    def __init__(self, seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.random = random = Random(seed)
        self.clock = FakeClock(START)
        self.sandbox = Sandbox(pace=Pace(0, 0, 0), quick=True, seed=seed, clock=self.clock).__enter__()
        self.chance = Chance(random, self.meanwhile)
        shared: dict[str, Any] = {
            "sandbox": self.sandbox,
            "bucket": MortalBucket(self.chance),
            "clock": self.clock,
            "provider": random.choice(["piapi", "piapi", "legnext"]),
            "workflow": {"on_unknown_outcome": random.choice(["retry", "hold"])},
            "step_max_retries": random.choice([0, 1, 3]),
            "daily_cap_usd": random.choice([None, None, 0.12]),
            "uploads_per_day": random.choice([None, 6]),
            "image_timeout_seconds": 60.0,
            "publish_look_seconds": 30.0,
        }
        url = f"sqlite:{folder / 'music.sqlite3'}"
        self.one, self.two = Rig(url, folder, **shared), Rig(url, folder, **shared)
        make_mortal(self.one.database.database, self.chance, monkeypatch)
        make_once(monkeypatch)
        self.made_again: Counter[int] = Counter()  # uploads that a person ordered again, by pipeline

    # --- what happens ---------------------------------------------------------------------------------------------

    def meanwhile(self) -> None:
        """Freeze the process: time passes, and others act."""
        match self.random.choice(["time", "time", "order", "order", "other", "other", "other", "fault"]):
            case "time":
                self.clock.sleep(self.random.choice([1, 10, self.stuck_s]))
            case "order":
                self.give_order(self.two)
            case "other":
                self.clock.sleep(self.random.choice([0, self.stuck_s]))
                with suppress(RetakeError):
                    self.two.upkeep.look()
                    self.two.worker.work_once()
            case "fault":
                self.order_fault()

    @property
    def stuck_s(self) -> float:
        return self.two.settings.music.stuck_seconds + 1

    def order_fault(self) -> None:
        if self.random.random() < 0.25:
            self.sandbox.youtube.expire_sessions()
            return
        kind = self.random.choice(list(FAULTS))
        which, fault = self.random.choice(["#1", "#1", "#2", "#1-2", "#1-4"]), self.random.choice(FAULTS[kind].split())
        self.sandbox.order(f"{kind}{which}={fault}")

    def give_order(self, rig: Rig) -> None:
        """Give the usual next order, or else any order about a pipeline, sensible or not."""
        rows = self.rows()
        if not rows or (len(rows) < MOST_PIPELINES and self.random.random() < 0.3):
            rig.create(idempotency_key=f"request-{len(rows)}")  # after a death, the same request comes again
            return
        row, order = self.random.choice(rows), self.random.choice(ORDERS)
        with suppress(Refusal):
            if self.random.random() < 0.8:
                self.help_on(row, rig)
                return
            match order:
                case "feedback":
                    rig.actions.feedback(row.id, "more blue")
                case "resolve":
                    for video_id in self.videos_of(row)[:1]:
                        rig.actions.resolve(row.id, video_id)
                case "retry_again":
                    rig.actions.retry(row.id, again=True)
                case "again":
                    self.make_again(row, rig)
                case "cancel_run":  # as somebody with access to the ledger may
                    cancel_run(rig.database, row)
                case _:
                    getattr(rig.actions, order)(row.id)

    def make_again(self, row: PipelineRow, rig: Rig) -> None:
        rig.actions.again(row.id)
        self.made_again[row.id] += 1

    # --- time -----------------------------------------------------------------------------------------------------

    def play(self) -> None:
        for _ in range(TURNS):
            if self.random.random() < 0.35:
                self.order_fault()
            self.chance.calm = False
            try:
                self.give_order(self.one)
                for _ in range(self.random.choice([1, 1, 2, 3])):
                    self.one.upkeep.look()
                    self.one.work()
                    self.clock.sleep(self.random.choice([1, 10, 60, 600]))
            except Died:
                self.chance.calm = True
                self.one.begin()
                self.clock.sleep(self.random.choice([1, self.stuck_s]))
            except RetakeError:
                pass  # the service reports it, and tries again
            finally:
                self.chance.calm = True

    def settle(self) -> None:
        """Let nothing fail any more; approve until every pipeline is published or cancelled."""
        self.sandbox.withdraw_orders()
        two = self.two
        unlimited = two.settings.music._replace(daily_cap_usd=None, uploads_per_day=None)
        two.settings = two.settings._replace(music=unlimited)
        two.begin()
        two.later(days=1)
        for _ in range(30):
            two.settle(hours=30)
            under_way = [row for row in self.rows() if row.state not in states.ENDED]
            for row in under_way:
                self.help_on(row, self.two)
            if not under_way:
                return
        raise AssertionError(f"they do not come to their end: {[(it.state, it.failed_reason) for it in under_way]}")

    def help_on(self, row: PipelineRow, rig: Rig) -> None:
        actions, reason = rig.actions, row.failed_reason or ""
        if row.state == states.AWAITING_MANUAL:
            videos = self.videos_of(row)
            actions.resolve(row.id, videos[0]) if videos else self.make_again(row, rig)
        elif row.state == states.FAILED:
            actions.retry(row.id, again="polls it again" in reason)  # a task that never ends is given up
        else:
            actions.approve(row.id)

    # --- what must hold -------------------------------------------------------------------------------------------

    def check(self) -> None:
        rows = self.rows()
        self.check_bills(rows)
        for row in rows:
            videos = self.videos_of(row)
            assert row.state == states.CANCELLED or row.youtube_video_id in videos, (row, videos)
            assert len(videos) <= 1 + self.made_again[row.id], (row, videos)
            assert "running" not in [job.status for job in self.two.actions.jobs(row.id)], row
            assert all(run.ended for run in self.two.database.ledger.of_task(row.task_id)), row
        report = check_bucket(open_operations(self.two.settings, FakeClock(self.clock.now()), self.two.bucket))
        assert report.complete, report.findings
        assert not report.open, report.open

    def check_bills(self, rows: list[PipelineRow]) -> None:
        """Check that each call a vendor has carried out is recorded, and none is repeated whose answer was recorded."""
        calls = [call for row in rows for call in self.two.calls.of_pipeline(row.id) if call.outcome != "refused"]
        nonces = Counter(json.loads(call.facts)["nonce"] for call in calls if call.step == "cover")
        ordered = Counter(nonce_of(call) for call in self.sandbox.calls("imagine") if call.carried_out)
        assert ordered <= nonces, (ordered, nonces)
        assert max(ordered.values(), default=0) <= 1, ordered
        assert self.two.billed("chat") <= sum(call.step != "cover" for call in calls)
        tasks = [call.answer for call in calls if call.step == "cover" and call.answer]
        assert len(tasks) == len(set(tasks)), "one task stands for two calls"
        answered: dict[tuple[int, str, int], datetime] = {}
        for call in calls:
            before = answered.get(of := (call.pipeline_id, call.step, call.take))
            assert before is None or call.requested_at <= before, f"{call} is made although its answer was on record"
            if call.outcome == "accepted" and call.settled_at:
                answered[of] = call.settled_at

    def rows(self) -> list[PipelineRow]:
        return self.two.actions.listing(states.STATES)

    def videos_of(self, row: PipelineRow) -> list[str]:
        """Return the videos that the pipeline's uploads have created."""
        made = self.sandbox.youtube.videos() if row.nonce else []
        return [str(it["id"]) for it in made if it["description"].endswith(row.nonce)]

    def close(self) -> None:
        self.one.close()
        self.two.close()
        self.sandbox.close()


def nonce_of(imagine: RecordedCall) -> int:
    """Return the number that tells an order from others, as the vendor received it."""
    found = re.search(r"--seed (\d+)", json.dumps(imagine.request))
    assert found, imagine.request
    return int(found[1])


@pytest.mark.search
@pytest.mark.parametrize("seed", wanted(600, 40))
def test_whatever_happens_nothing_is_lost_and_nothing_is_paid_for_twice(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Simulation(seed, tmp_path, monkeypatch)
    try:
        world.play()
        world.settle()
        world.check()
    finally:
        world.close()
