"""The lease algorithm apart from its code: all states of small worlds, and seven weakenings, each of which is caught.

The larger worlds take minutes, and run when RETAKE_SEEDS is 1000 or more.
"""

import os

import pytest
from lease_model import run

SOAK = int(os.environ.get("RETAKE_SEEDS", "100")) >= 1000

THE_RULE = {
    "one try, exact clocks": {"n": 2, "ttl": 1, "horizon": 3, "skew": 0, "renew": 0, "attempts": 1},
    "one try, clocks off by 1": {"n": 2, "ttl": 1, "horizon": 3, "skew": 1, "renew": 0, "attempts": 1},
}
THE_RULE_AT_LENGTH = {
    "two tries, exact clocks": {"n": 2, "ttl": 1, "horizon": 3, "skew": 0, "renew": 0, "limit": 14_000_000},
    "renewals": {"n": 2, "ttl": 3, "horizon": 7, "skew": 0, "attempts": 1},
    "clocks off by 1": {"n": 2, "ttl": 2, "horizon": 6, "skew": 1, "attempts": 1, "renew": 0},
    "uploads doubled": {"n": 2, "ttl": 2, "horizon": 4, "skew": 0, "attempts": 1, "renew": 0, "dup": True},
    "three": {"n": 3, "ttl": 2, "horizon": 4, "skew": 0, "attempts": 1, "renew": 0},
}
WEAKENED = {
    "no-recheck": {"ttl": 3, "horizon": 5, "skew": 0, "attempts": 1, "only_i1": True},
    "earliest-wins": {"ttl": 3, "horizon": 5, "skew": 0, "attempts": 1, "only_i1": True},
    "deadline-from-response": {"ttl": 2, "horizon": 7, "skew": 0, "attempts": 1, "renew": 0, "only_i1": True},
}
WEAKENED_AT_LENGTH = {
    "delete-on-release": {"ttl": 2, "horizon": 5, "skew": 0, "renew": 0},
    "no-token-check": {"ttl": 2, "horizon": 5, "skew": 0, "renew": 0},
    "no-skew-margin": {"ttl": 3, "horizon": 8, "skew": 1, "attempts": 1, "renew": 0, "only_i1": True},
    "late-renew": {"ttl": 3, "horizon": 7, "skew": 0, "attempts": 1, "only_i1": True},
}


@pytest.mark.parametrize("world", THE_RULE)
def test_the_rule_holds_in_every_state(world: str) -> None:
    verdict, states, grants = run(**THE_RULE[world])
    assert (verdict, states > 1000, grants > 10) == ("ok", True, True)


@pytest.mark.skipif(not SOAK, reason="takes minutes; RETAKE_SEEDS=1000 runs it")
@pytest.mark.parametrize("world", THE_RULE_AT_LENGTH)
def test_the_rule_holds_in_every_state_of_larger_worlds(world: str) -> None:
    verdict, _, grants = run(**THE_RULE_AT_LENGTH[world])
    assert (verdict, grants > 1000) == ("ok", True)


@pytest.mark.parametrize("bug", WEAKENED)
def test_each_weakening_is_caught(bug: str) -> None:
    assert " broken: " in run(n=2, bug=bug, **WEAKENED[bug])[0]


@pytest.mark.skipif(not SOAK, reason="takes a while; RETAKE_SEEDS=1000 runs it")
@pytest.mark.parametrize("bug", WEAKENED_AT_LENGTH)
def test_each_weakening_is_caught_in_larger_worlds(bug: str) -> None:
    assert " broken: " in run(n=2, bug=bug, **WEAKENED_AT_LENGTH[bug])[0]
