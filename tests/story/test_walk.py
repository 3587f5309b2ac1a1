"""An exhaustive walk: from an empty bucket, over every sequence of vendor outcomes, without a limit on its length.

The manager and the steps are real; the vendors answer each call in every possible way. States that differ only in ids
and in the time of day are one state, so the tree of all sequences folds into a finite graph. The walk shows that the
graph has no cycle (no path goes on for ever) and that each of its ends is a generation that is done or failed for good
(none gets stuck), and finds the longest path: in ticks, and in paid calls of each kind.
"""

import json
import math
import re
from collections import Counter
from datetime import datetime
from typing import Any, NamedTuple

import pytest
from story_runs import assert_whole
from story_world import PAID, World

from retake.clock import parse_stamp
from retake.ticking.tick import Orders, Tick

INTERVAL_S = 60.0
MJ_TIMEOUT_S = 150.0  # a task is polled at most three times
RUNWAY_TIMEOUT_S = 200.0

OUTCOMES = {
    "write": ("ok", "refused", "unknown", "wasted", "rejected", "dies"),
    "imagine": ("ok", "refused", "unknown", "lost", "rejected", "dies"),
    "upscale": ("ok", "refused", "unknown", "lost", "rejected", "dies"),
    "create": ("ok", "refused", "unknown", "lost", "rejected", "dies"),
    "fetch": ("ok", "running", "failed", "failed_b", "error"),
    "poll": ("ok", "running", "failed", "failed_b", "error"),
    "download": ("ok", "error", "expired"),
}


_ACCOUNTS = ("last_error", "paid_calls", "spend")
"""Keys about the past: no decision depends on them here (there is no cap, and no error of class C)."""


class Longest(NamedTuple):
    """The most that can still follow a state: ticks, and billed calls by kind."""

    ticks: int = 0
    billed: Counter[str] = Counter()  # noqa: RUF012 (never changed: `+` and `|` make new ones)

    def after(self, billed: Counter[str]) -> "Longest":
        return Longest(self.ticks + 1, self.billed + billed)

    def __or__(self, other: "Longest") -> "Longest":
        return Longest(max(self.ticks, other.ticks), self.billed | other.billed)


class Walk:
    """A depth-first walk over the graph of states, visiting each once."""

    def __init__(self, **workflow: Any) -> None:
        self.workflow = {
            "mj_timeout_seconds": MJ_TIMEOUT_S,
            "runway_timeout_seconds": RUNWAY_TIMEOUT_S,
            "runway_polling_timeout": 20.0,  # two polls
            "runway_polling_interval": 15.0,
            "max_failed_in_a_row": 10,
            **workflow,
        }
        self.world = World(**self.workflow)
        self.world.interval_s = INTERVAL_S
        self.known: dict[str, Longest] = {}
        self.path: set[str] = set()
        self.ends: Counter[str] = Counter()
        self.steps = 0

    def longest(self) -> Longest:
        """Return the longest path from the present state. Raise AssertionError if a path is endless or stuck."""
        state = self.state()
        if state in self.known:
            return self.known[state]
        assert state not in self.path, f"a path goes on for ever through {state}"
        self.path.add(state)
        kept = (dict(self.world.bucket.store.objects), self.world.clock.moment)
        found = Longest()
        choices: list[tuple[int, int]] | None = []
        while choices is not None:
            tick, billed, choices = self.tick(choices)
            assert tick.exit_code in (0, 69, 75), tick
            if tick.resting:
                tick = self.skip_held_call()
            if tick.ended:
                assert_whole(self.world)
                self.ends[tick.ended if tick.ended == "failed" else self.kind_of_end()] += 1
                found |= Longest().after(billed)
            else:
                found |= self.longest().after(billed)
            self.world.bucket.store.objects.clear()
            self.world.bucket.store.objects.update(kept[0])
            self.world.clock.moment = kept[1]
        self.path.remove(state)
        self.known[state] = found
        return found

    def tick(self, choices: list[tuple[int, int]]) -> tuple[Tick, Counter[str], list[tuple[int, int]] | None]:
        """Tick while the vendors answer with `choices` (outcome, of how many), and then with the first outcome. Return
        the next choices, too, or None if these were the last."""
        vendors, taken = self.world.vendors, list(choices)
        made = iter(range(1_000_000))

        def choose(kind: str) -> str:
            number = next(made)
            if number == len(taken):
                taken.append((0, len(OUTCOMES[kind])))
            return OUTCOMES[kind][taken[number][0]]

        vendors.choose_next, before = choose, Counter(vendors.billed)
        tick = self.world.tick()
        self.steps += 1
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        following = [*taken[:-1], (taken[-1][0] + 1, taken[-1][1])] if taken else None
        return tick, vendors.billed - before, following

    def skip_held_call(self) -> Tick:
        """Skip a held call, the only place where a path may rest. It stays held, unpaid, until the operator says
        skip."""
        assert self.workflow.get("on_unknown_outcome") == "hold", "stuck"
        before, billed = self.world.doc, Counter(self.world.vendors.billed)
        assert self.world.tick().resting
        assert self.world.doc == before
        assert self.world.vendors.billed == billed
        self.ends["held"] += 1
        self.world.vendors.choose_next = None  # a mock may follow, and nothing else
        return self.world.tick(Orders(resolve="skip"))

    def kind_of_end(self) -> str:
        film = next(entry.key for entry in self.world.bucket.list("666/") if entry.key.endswith(".mp4"))
        return "mock" if self.world.bucket.read(film)[0] == b"MOCK" else "done"

    def state(self) -> str:
        """Return the bucket, with ids without their numbers and times as ages."""
        files = sorted(re.sub(r"\d{8}-\d{4}", "ID", key) for key in self.world.keys_of("666/"))
        documents = [self.world._data(f"config/config_{name}.json") for name in ("gen", "midjourney", "public")]
        return json.dumps([self.plain(json.loads(data)) for data in documents] + files, sort_keys=True)

    def plain(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self.plain(item) for key, item in value.items() if key not in _ACCOUNTS}
        if isinstance(value, list):
            return [self.plain(item) for item in value]
        if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\dT.*Z", value):
            return age(parse_stamp(value), self.world.clock.moment)
        return re.sub(r"\d{8}-\d{4}|-\d+$", "", value) if isinstance(value, str) else value


def age(then: datetime, now: datetime) -> float:
    return (now - then).total_seconds()


def bound_on_ticks(max_retries: int) -> int:
    """Return what the limits allow: each of the four ordered steps runs max_retries + 1 times. An order and its reset
    take a tick each, looking into a lost call another, and what was ordered is polled until its time is up, at worst
    with a reset between any two polls."""
    orders = max_retries + 1
    in_flight = math.ceil(max(MJ_TIMEOUT_S, RUNWAY_TIMEOUT_S) / INTERVAL_S) + 2 * (max_retries + 1)
    return 4 * orders * 3 + 3 * orders * in_flight + 2


@pytest.mark.parametrize("on_exhausted", ["fail", "mock"])
@pytest.mark.parametrize("max_retries", [0, 1, 2, 3])
def test_every_path_ends_within_the_bounds_of_max_retries(max_retries: int, on_exhausted: str) -> None:
    walk = Walk(max_retries=max_retries, on_exhausted=on_exhausted)
    longest = walk.longest()
    assert set(walk.ends) == {"done", "failed", "mock"}
    assert longest.ticks <= bound_on_ticks(max_retries)
    assert {kind: longest.billed[kind] for kind in PAID} == dict.fromkeys(PAID, max_retries + 1)


@pytest.mark.parametrize("on_exhausted", ["fail", "mock"])
def test_a_held_call_is_never_repeated_and_every_path_ends_once_the_operator_skips_it(on_exhausted: str) -> None:
    walk = Walk(max_retries=1, on_exhausted=on_exhausted, on_unknown_outcome="hold")
    longest = walk.longest()
    assert set(walk.ends) == {"done", "failed", "mock", "held"}
    assert longest.ticks <= bound_on_ticks(1)
    assert {kind: longest.billed[kind] for kind in PAID} == dict.fromkeys(PAID, 2)
