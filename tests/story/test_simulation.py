"""A seeded simulation: one bucket, vendors that fail at will, managers, a publisher without a lock, and an operator.

At every operation on the world something may happen: the machine dies, the store fails before or after the effect, the
publisher writes, a rival manager ticks, a check repairs, time passes. In every other world an operator also gives
random orders. In half of the worlds files move by renaming, as on a directory, and in the others by copying. In some,
settings are edited between ticks, or the clock of a tick is wrong.

A seed determines all of it. A failure names its seed, and `RETAKE_SEED=N` replays that one alone; `RETAKE_SEEDS=N`
tries more (`make soak`).
"""

import json
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from mortal import Chance, MortalWorld
from seeds import in_blocks, replayable, wanted
from story_runs import assert_whole
from story_world import PAID
from test_crash_sweep import STEP_OF_KIND, booked

from retake.bucket import ANY, NotFound
from retake.bucket.failing import Crash
from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock
from retake.degraded.mode import EMERGENCY, FULL, MINIMAL, REDUCED, Mode
from retake.errors import RetakeError
from retake.operations.examinations import check_bucket
from retake.operations.port import Refusal, Verb
from retake.story.documents import GROUP, PAID_STEPS, Step
from retake.story.operations import open_operations
from retake.story.operator_actions import OperatorActions
from retake.story.runner import StoryRunner
from retake.story.spending import prices, story_spending
from retake.ticking.tick import Orders

PUBLIC = "config/config_public.json"
OUTCOMES = {
    **dict.fromkeys(PAID, ("ok", "ok", "ok", "ok", "refused", "unknown", "lost", "rejected", "key")),
    "fetch": ("ok", "ok", "ok", "running", "failed", "error", "failed_b"),
    "poll": ("ok", "ok", "running", "failed", "error", "failed_b"),
    "download": ("ok", "ok", "ok", "error"),
}
EDITED = {
    "max_retries": (0, 1, 3, 6),
    "on_exhausted": ("fail", "mock"),
    "on_unknown_outcome": ("retry", "hold"),
    "runway_polling_timeout": (10.0, 20.0, 60.0),
    "mj_timeout_seconds": (60.0, 200.0, 18000.0),
    "max_tasks_per_run": (1, 2, 3),
    "critical_retry_minutes": (1, 3, 60),
}
"""Edits of the settings that a person may make between two ticks."""
WRONG_BY = tuple(timedelta(days=it) for it in (1 / 24, -1 / 24, 1, -1, 7, -7, 400))
VERBS = (Verb.RETRY, Verb.SKIP, Verb.CANCEL, Verb.ROLLBACK)


class Simulation(MortalWorld):
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        super().__init__(
            max_retries=self.random.choice([0, 1, 3]),
            on_exhausted=self.random.choice(["fail", "mock"]),
            on_unknown_outcome=self.random.choice(["retry", "retry", "hold"]),
            runway_polling_timeout=20.0,
            mj_timeout_seconds=self.random.choice([200.0, 18000.0]),
            critical_retry_minutes=3,
            max_tasks_per_run=self.random.choice([1, 1, 2]),
            daily_cap_usd=self.random.choice([None, 0.7, 3.0]),
        )
        chance = Chance(self.random)
        chance.happens = [
            (0.01, self.publish),
            (0.005, self.rival),
            (0.001, self.repair),
            (0.01, lambda: self.clock.sleep(7)),
        ]
        self.fate = self.vendors._fate = self.bucket._fate = chance  # type: ignore[attr-defined]
        self.chance = chance
        if seed % 4 > 1:
            self.rename_on_moves()
        self.ordered = seed % 2 == 1  # in every other world an operator gives random orders
        self.edited, self.jumping = seed % 5 == 3, seed % 5 == 4
        self.mode = Mode()
        self.settings = self.settings._replace(modes=self.settings.modes._replace(video_mock=seed % 8 > 3))
        self.vendors.choose_next = lambda kind: self.random.choice(OUTCOMES[kind])
        self.appended: list[str] = []

    def manager(self, **given: Any) -> StoryRunner:
        return super().manager(mode=lambda: self.mode, **given)

    # --- actors ---

    def publish(self) -> None:
        """Read, change, replace, without a lock: an id whose group is in 444/ if there is one, else any."""
        try:
            document: dict[str, Any] = json.loads(self.memory.read(PUBLIC)[0])
        except NotFound:
            return
        ready = [entry.key[4:-5] for entry in self.memory.list("444/") if entry.key.endswith(".json")]
        name = self.random.choice(ready) if ready and self.random.random() < 0.7 else f"none-{len(self.appended)}"
        if name not in self.appended:
            self.appended.append(name)
        document["generation_id"] = [*(document.get("generation_id") or []), name]
        self.memory.write(PUBLIC, json.dumps(document).encode(), ANY)

    def rival(self) -> None:
        """Tick as another machine's cron: while one is at work, it must find the lease held."""
        held = bool(self.memory.store.holders.get("story"))
        tick = self.manager().tick()
        assert not held or "is held by" in tick.why, f"two managers at work: {tick}"

    def repair(self) -> None:
        """Run `retake check --repair` from another machine: it leaves alone what the manager holds."""
        looked = FakeClock(self.clock.now())  # a second look takes time, which the world does not have
        check_bucket(open_operations(self.settings, looked, bucket=MemoryBucket(self.memory.store)), repair=True)

    def operate(self) -> Orders:
        pending = self.doc.pending
        if pending and pending.outcome:
            return Orders(resolve=self.random.choice(["retry", "skip"]))
        return Orders(resume=self.random.random() < 0.2)

    def give_orders(self) -> None:
        """Give any order of the console, sensible or not; the machine may die of that, too."""
        spending = story_spending(self.settings, self.bucket, self.clock)
        desk = OperatorActions(self.settings, self.bucket, self.clock, owner="operator@desk", spending=spending)
        letters = sorted({key.split("/")[1] for key in self.keys_of("dead_letters/")})
        order = self.random.choice(
            ["nothing", "nothing", *VERBS, *VERBS, "requeue", "requeue", "drop", "unlock", "mode", "repair"]
        )
        if order in VERBS and (present := self.generation_id):
            step = self.random.choice(PAID_STEPS) if order is Verb.ROLLBACK else None
            desk.carry_out(order, present, desk.planned(order, present, step).lost, step)
        elif order == "requeue" and letters:
            desk.requeue(self.random.choice(letters))
        elif order == "drop" and letters and self.random.random() < 0.3:
            desk.drop(self.random.choice(letters))
        elif order == "unlock":
            desk.lower_flag()
        elif order == "repair":
            check_bucket(open_operations(self.settings, self.clock, bucket=self.bucket), repair=True)
        elif order == "mode":
            self.mode = Mode(self.random.choice([FULL, FULL, REDUCED, MINIMAL, EMERGENCY]))

    # --- time ---

    def play(self, ticks: int) -> None:
        for _ in range(ticks):
            try:
                if self.ordered and self.random.random() < 0.5:
                    self.give_orders()
            except Crash:
                self.memory.store.end_leases()
                self.fate.dead = False
            except (RetakeError, Refusal):
                pass
            self.clock.sleep(1)  # no step is repeated in the second in which it was rolled back
            if self.edited and self.random.random() < 0.3:
                self.edit_settings()
            wrong_by = self.random.choice(WRONG_BY) if self.jumping and self.random.random() < 0.3 else timedelta(0)
            self.clock.moment += wrong_by
            try:
                self.tick(self.operate())
            except Crash:
                self.memory.store.end_leases()
                self.fate.dead = False
            except RetakeError:
                pass  # the tick ended with an exit code; cron starts the next
            if self.random.random() < 0.7:  # otherwise the time stays: the clock was wrong before
                self.clock.moment -= wrong_by
            self.clock.sleep(self.random.choice([1, 60, 600]))

    def edit_settings(self) -> None:
        name, values = self.random.choice([*EDITED.items()])
        changed = {name: self.random.choice(values)}
        self.settings = self.settings._replace(workflow=self.settings.workflow._replace(**changed))

    def settle_down(self) -> None:
        """Let nothing fail any more, until whatever is under way has ended and everything is tidied up."""
        self.chance.calm, self.mode = True, Mode()
        self.vendors.choose_next = None
        check_cap(self)
        self.settings = self.settings._replace(workflow=self.settings.workflow._replace(daily_cap_usd=None))
        self.later(days=1)
        for _ in range(60):
            pending = self.doc.pending
            tick = self.tick(Orders(resume=True, resolve="skip" if pending and pending.outcome else None))
            self.later(hours=2)
            if self.generation_id is None and tick.resting:
                return None
            if tick.ended and not self.ordered and self.random.random() < 0.3:
                return self.rest()
        raise AssertionError(f"it does not come to rest: {tick}, {self.documents}")

    def rest(self) -> None:
        """Run a last tick that restores what a disturbed write has seen."""
        while self.generation_id:
            self.tick(Orders(resume=True))


def check(world: Simulation) -> None:
    documents = world.documents
    assert_whole(world)
    assert not documents.public.processing_lock
    assert not documents.midjourney.spend.reserved, "reservations are settled or released"
    assert not [key for key in world.keys_of("config/") if "displaced" in key]
    places: dict[str, list[str]] = {}
    for folder in ("444/", "555/", "666/", "archive/"):
        for key in world.keys_of(folder):
            places.setdefault(key.removeprefix(folder).split(".")[0], []).append(key)
    for name, keys in places.items():
        if world.ordered and world.keys_of(f"dead_letters/{name}/"):
            continue  # an order to requeue it died half-way: its letter is complete, and can be requeued again
        assert len(keys) == len(GROUP), f"{name}: {keys}"
        assert len({key.split("/")[0] for key in keys}) == 1, f"{name} is in two places: {keys}"
    archived = {key.removeprefix("archive/").split(".")[0] for key in world.keys_of("archive/")}
    lost = [name for name in world.appended if name not in documents.public.published and name not in archived]
    assert not lost, f"appends of the publisher are lost: {lost}"
    check_books(world)
    calls = [call for key in world.keys_of("spend/") for call in world.json(key)["paid_calls"]]
    for kind, step in STEP_OF_KIND.items():
        on_record = sum(call["step"] == step for call in calls)
        assert world.vendors.billed[kind] <= on_record, f"{kind}: more is billed than recorded"


def check_books(world: Simulation) -> None:
    """Check that the books contain at least what was billed."""
    price = prices(world.settings)
    billed = sum(world.vendors.billed[kind] * price[Step(step)] for kind, step in STEP_OF_KIND.items())
    spent = booked(world)
    assert sum(spent) + 1e-6 >= billed, f"{spent} are on the books, {billed} are billed"


def check_cap(world: Simulation) -> None:
    """Check that no day has cost more than it may."""
    cap = world.settings.workflow.daily_cap_usd
    spent = [json.loads(world.memory.read(entry.key)[0])["spent_usd"] for entry in world.memory.list("caps/")]
    assert cap is None or max(spent, default=0) <= cap


@pytest.mark.parametrize("block", in_blocks(wanted(600)))
def test_whatever_happens_nothing_is_lost_and_nothing_stays_stuck(block: Sequence[int]) -> None:
    for seed in block:
        with replayable(seed):
            world = Simulation(seed)
            world.play(ticks=25)
            world.settle_down()
            check(world)
