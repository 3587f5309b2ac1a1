"""A seeded simulation: several payers share one bucket, and so the day's book and its cap.

At every operation on the bucket something may happen: the process dies, the store fails before or after the effect,
another payer has a whole turn, time passes, a clock is set, a person gives an order, somebody looks.

A seed determines all of it. A failure names its seed, and `RETAKE_SEED=N` replays that one alone; `RETAKE_SEEDS=N`
tries more (`make soak`).
"""

from collections.abc import Generator, Sequence
from contextlib import suppress
from datetime import date, timedelta
from random import Random

import pytest
from seeds import in_blocks, replayable, wanted
from shared_day import LEAST_USD, Books, Luck, MachineClock, Process, Shop

from retake.bucket.failing import Crash
from retake.bucket.memory import MemoryStore
from retake.checking import CheckReport
from retake.clock import FakeClock
from retake.errors import CapReached, OutcomeUnknown, Refused, RetakeError, TaskFailed
from retake.operations.examinations import check_bucket
from retake.operations.port import Refusal
from retake.operations.spend import plan_latest_day, spend_report
from retake.paid.guard import DROP, HOLD, RETRY
from retake.paid.paid_calls import UNKNOWN, PaidCalls
from retake.story.operations import open_operations
from retake.story.settings import Settings

TURNS = 40
NAMES = ("posters", "banners", "songs")
OUTCOMES = ("ok", "ok", "ok", "ok", "refused", "wasted", "cut", "never")
NEEDS_A_PERSON = {"paid-call-undecided", "nothing-here"}


class Payer:
    """A user's program, which asks for some keys repeatedly and for others anew. It is restarted after it has died or
    ended."""

    def __init__(self, world: "SharedDay", name: str) -> None:
        random = world.random
        self.world, self.name = world, name
        self.clock = MachineClock(world.clock)
        self.usd = random.choice([0.04, 0.1, 0.15])
        self.shop = Shop(world.books, name, self.usd, random, world.clock)
        self.shop.outcomes = list(random.choice([OUTCOMES, OUTCOMES, ("ok", "ok", "refused")]))
        self.rule = random.choice([HOLD, RETRY, DROP])
        self.findable = random.random() < 0.5
        self.caps = (world.cap if random.random() < 0.8 else None, random.choice([None, None, 0.3]))
        world.books.caps[name] = self.caps
        self.keys: list[str] = []
        self.given: dict[str, object] = {}
        self.process: Process | None = None
        self.program: Generator[None, None, None] | None = None
        self.running = False

    def turn(self) -> None:
        """Let the program do a bit more, in a process of its own."""
        self.running = True
        self.clock.begin(self.world.books)
        try:
            if self.program is None or self.process is None:
                self.process = self.world.process(self.clock)
                self.program = self.run(self.process)
            next(self.program)
        except Crash:
            self.die()
        except (RetakeError, ConnectionError, StopIteration):
            self.program = None  # it is started again later
        finally:
            self.running = False

    def die(self) -> None:
        """Kill the program between two of its turns, or finish it off after its death."""
        if self.process and self.program:
            self.process.die()
            with suppress(Crash):
                self.program.close()
        self.program = None

    def paid(self, process: Process) -> PaidCalls:
        around = process.chance.around
        return PaidCalls(
            process.bucket,
            self.name,
            {"poster": self.usd},
            daily_cap_usd=self.caps[0],
            own_daily_cap_usd=self.caps[1],
            find=(lambda call: around("find", lambda: self.shop.ask(call))) if self.findable else None,
            on_unknown=self.rule,
            clock=self.clock,
        )

    def run(self, process: Process) -> Generator[None, None, None]:
        random = self.world.random
        with self.paid(process) as paid:
            for _ in range(random.choice([1, 3, 8])):
                try:
                    self.call(paid, process, self.choose())
                except OutcomeUnknown:
                    if paid.pending and random.random() < 0.5:
                        self.resolve(paid, random.choice([RETRY, DROP]))
                except (Refused, TaskFailed, CapReached):
                    pass
                except (RetakeError, ConnectionError):
                    if random.random() < 0.3:
                        raise  # otherwise the program continues, in the same process
                yield

    def choose(self) -> str:
        random = self.world.random
        if not self.keys or random.random() < 0.5:
            self.keys.append(f"key-{len(self.keys)}")
            return self.keys[-1]
        return random.choice(self.keys[-4:])

    def call(self, paid: PaidCalls, process: Process, key: str) -> None:
        answer = paid.call(key, "poster", lambda: process.chance.around("pay", lambda: self.shop.carry_out(key)))
        if key in self.given:
            assert answer == self.given[key], f"{key} was {self.given[key]}, and is {answer}"
        assert answer is None or answer in self.shop.answers[key], f"{answer} is no answer for {key} of {self.name}"
        self.given[key] = answer

    def resolve(self, paid: PaidCalls, how: str) -> None:
        if how == RETRY and paid.pending:
            self.shop.again[paid.pending.key] += 1
        paid.resolve(how)

    def decide(self) -> None:
        """Let a person decide about the pending call, in a separate process."""
        process = self.world.process(self.clock)
        try:
            with self.paid(process) as paid:
                if paid.pending:
                    self.resolve(paid, self.world.random.choice([RETRY, DROP]))
        except Crash:
            process.die()


class SharedDay:
    """All payers, the people around them, and time."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock = FakeClock()
        self.clock.sleep(self.random.choice([0, 12, 23, 23.9]) * 3600)
        self.store = MemoryStore(self.clock)
        self.calm = False
        self.share = self.random.choice([0.0, 0.004, 0.02])
        self.busy = self.random.choice([0.01, 0.05])
        self.cap = self.random.choice([None, 0.3, 0.6, 1.0])
        self.books = Books(self.store, store_tells_time=self.random.random() < 0.2)
        self.corrects = self.random.random() < 0.5
        self.desk = MachineClock(self.clock)  # where people work
        self.payers = [Payer(self, name) for name in NAMES[: self.random.choice([2, 2, 3])]]

    def process(self, clock: MachineClock) -> Process:
        chance = Luck(self.random, self.share)
        chance.calm = self.calm
        chance.happens = [
            (self.busy, self.somebody),
            (self.busy / 4, self.time_passes),
            (self.busy / 8, self.clock_is_set),
            (self.busy / 8, self.order),
            (self.busy / 8, self.look),
        ]
        return Process(self.books, clock, chance)

    # --- what happens ---

    def somebody(self) -> None:
        """Give a whole turn to a payer who is not at work."""
        free = [it for it in self.payers if not it.running]
        if free:
            payer = self.random.choice(free)
            if self.random.random() < 0.1:
                payer.die()
            payer.turn()

    def time_passes(self) -> None:
        self.clock.sleep(self.random.choice([1, 600, 6 * 3600, 24 * 3600]))
        for payer in self.payers:
            payer.shop.knows = self.random.random() < 0.8

    def clock_is_set(self) -> None:
        """Set the clock of one of the machines, to a wrong time or to the right one."""
        clock = self.random.choice([self.desk, *[it.clock for it in self.payers]])
        clock.ahead = timedelta(hours=self.random.choice([0, 0, 0, -1, 1, -30, 30]))

    def order(self) -> None:
        """Let a person decide about a call, or correct the latest day."""
        free = [it for it in self.payers if not it.running]
        process = self.process(self.desk)
        try:
            if free and (self.random.random() < 0.5 or not self.corrects):
                self.random.choice(free).decide()
            elif self.corrects:
                self.desk.begin(self.books)
                operations = open_operations(Settings(), self.desk, bucket=process.bucket)
                latest = date.fromisoformat(operations.caps.clock_day()) - timedelta(self.random.choice([0, 0, 1]))
                operations.caps.correct(plan_latest_day(operations, latest).day)
        except Crash:
            process.die()
        except (RetakeError, Refusal, ConnectionError):
            pass

    def look(self) -> None:
        """Look with `retake check` or `retake spend`. Whatever is wrong then does not heal by itself."""
        process = self.process(self.desk)
        looked = FakeClock(self.desk.now())  # a second look takes time, which the world does not have
        operations = open_operations(Settings(), looked, bucket=process.bucket)
        try:
            if self.random.random() < 0.5:
                spend_report(operations, 3)
            else:
                wrong = [it for it in check_bucket(operations).open if it.code not in {*NEEDS_A_PERSON, "unreadable"}]
                assert not wrong, wrong
        except Crash:
            process.die()
        except RetakeError:
            pass

    def play(self) -> None:
        for _ in range(TURNS):
            self.somebody()
            for share, happening in ((0.2, self.time_passes), (0.05, self.clock_is_set), (0.1, self.order)):
                if self.random.random() < share:
                    happening()

    # --- the end ---

    def end(self) -> None:
        self.calm = True
        for payer in self.payers:
            payer.die()

    def settle_down(self) -> None:
        """Let nothing fail any more, restart each program, and let a person decide what nobody can tell."""
        for clock in (self.desk, *[it.clock for it in self.payers]):
            clock.ahead = timedelta()
        self.end()
        for payer in self.payers:
            payer.shop.knows, payer.shop.outcomes = True, ["ok"]
        for payer in self.payers:
            process = self.process(payer.clock)
            with payer.paid(process) as paid:
                if paid.pending:
                    payer.resolve(paid, DROP if payer.shop.answers[paid.pending.key] else RETRY)
                for key in payer.given:
                    payer.call(paid, process, key)
        for payer in self.payers:
            with payer.paid(self.process(payer.clock)):
                pass
        if any(book.moved for book in self.books.all()):  # a correction that died, and later days have begun since
            self.check(repair=True)

    def check(self, *, repair: bool = False) -> CheckReport:
        operations = open_operations(Settings(), FakeClock(self.clock.now()), bucket=self.process(self.desk).bucket)
        return check_bucket(operations, repair=repair)


def check(world: SharedDay) -> None:
    books = world.books
    for payer in world.payers:
        calls, shop = books.calls(payer.name), payer.shop
        assert len({call["id"] for call in calls}) == len(calls)
        for key, bills in shop.billed.items():
            on_record = [call for call in calls if call["key"] == key]
            assert bills <= len(on_record), f"{key} of {payer.name} is billed {bills} times, recorded: {on_record}"
            unknown = sum(call["outcome"] == UNKNOWN for call in on_record)
            assert payer.rule == RETRY or unknown <= shop.again[key], f"{key} of {payer.name} is made again unasked"
        paid = sum(call["price_usd"] for call in calls)
        counted = sum(book.of(payer.name).spent for book in books.all())
        assert abs(paid - counted) < LEAST_USD, f"{payer.name}: {paid} are recorded, {counted} are in the books"
    left = {(book.day, name): dict(sums.open) for book in books.all() for name, sums in book.pipelines.items()}
    assert not any(left.values()), f"reservations of nobody: {left}"
    report = world.check()
    assert report.complete
    assert not [it for it in report.findings if it.code != "nothing-here"], report.findings


def play(world: SharedDay) -> None:
    try:
        world.play()
        world.settle_down()
        check(world)
    finally:
        world.end()


@pytest.mark.parametrize("block", in_blocks(wanted(120)))
def test_whatever_happens_each_day_counts_what_was_paid_and_no_cap_is_passed(block: Sequence[int]) -> None:
    for seed in block:
        with replayable(seed):
            play(SharedDay(seed))
