"""Every two of several choices together, in few combinations."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, cycle
from random import Random


def all_pairs(
    dimensions: Mapping[str, Mapping[str, object]], each: Mapping[str, object], random: Random
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield combinations of a choice of each dimension, found greedily, until any two choices of two dimensions were
    together in one. Beside each stands one of `each`, in a random order; all of these are used."""
    pairs = [((a, x), (b, y)) for a, b in combinations(dimensions, 2) for x in dimensions[a] for y in dimensions[b]]
    left = {frozenset(pair) for pair in pairs}
    beside = random.sample([*each], len(each))
    for number, one in enumerate(cycle(beside)):
        if not left and number >= len(beside):
            return
        chosen = dict(random.choice([it for it in pairs if frozenset(it) in left] or pairs))
        for name in random.sample([*dimensions], len(dimensions)):
            if name not in chosen:
                chosen[name] = _most_new(name, [*dimensions[name]], chosen, left, random)
        left -= {frozenset(pair) for pair in combinations(chosen.items(), 2)}
        yield one, {name: chosen[name] for name in dimensions}


def _most_new(
    name: str, choices: Sequence[str], chosen: Mapping[str, str], left: set[frozenset[tuple[str, str]]], random: Random
) -> str:
    """Return the choice of a dimension that makes the most pairs that are left."""
    new = {it: sum(frozenset({(name, it), other}) in left for other in chosen.items()) for it in choices}
    return max(choices, key=lambda it: (new[it], random.random()))
