"""The real lease code in many worlds (claim_sim), and the proof that weakening any rule would be noticed.

RETAKE_SEEDS sets the number of random schedules per world; from 1000 on, the exhaustive runs go further, too.
"""

import logging
import os
from collections.abc import Iterator

import pytest
from claim_mutations import MUTATIONS, Mutation
from claim_sim import Bounds, Broken, Schedule, World, exhaust, explore

SEEDS = int(os.environ.get("RETAKE_SEEDS", "100"))

WORLDS = {
    "two, exact clocks": Bounds(),
    "two, clocks that differ": Bounds(skew=1, horizon=25),
    "two, clocks that differ a lot, long": Bounds(ttl=4, skew=2, horizon=30, renewals=2),
    "three": Bounds(actors=3, attempts=1),
    "two and a script": Bounds(scripts=True),
    "two and a script, clocks that differ": Bounds(scripts=True, skew=1, horizon=25),
    "numbered, two": Bounds(conditional=True),
    "numbered, three, clocks that differ": Bounds(conditional=True, actors=3, skew=1, horizon=25),
    "numbered, two and a script": Bounds(conditional=True, scripts=True, skew=1, horizon=25),
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("bounds", WORLDS.values(), ids=WORLDS)
def test_one_holder_and_rising_tokens_whatever_happens(bounds: Bounds) -> None:
    seen = explore(bounds, range(SEEDS))
    wanted = {"granted", "renewed", "lost the lease", "crash", "lost", "given up", "doubled", "land"}
    assert wanted <= set(seen)
    assert seen["granted"] > SEEDS / 2


@pytest.mark.parametrize("conditional", [False, True])
def test_every_schedule_with_few_deviations_keeps_the_promises(conditional: bool) -> None:
    bounds = Bounds(conditional=conditional, attempts=1, ttl=2)
    seen = exhaust(bounds, deviations=2 if SEEDS >= 1000 else 1)
    assert seen["schedules"] > 200
    assert seen["granted"] > seen["schedules"]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_each_weakened_rule_is_noticed(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch)
    with pytest.raises(Broken):
        explore(MUTATIONS[mutation], range(6000))


def test_a_schedule_can_be_repeated() -> None:
    first, again = Schedule(7), Schedule(7)
    assert World(first, Bounds()).run() == World(again, Bounds()).run()
    assert first.made == again.made
    scripted = Schedule(choices=tuple(first.made))
    World(scripted, Bounds()).run()
    assert scripted.made == first.made
