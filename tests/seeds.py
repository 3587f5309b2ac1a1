"""The seeds that a search tries: RETAKE_SEEDS sets how many, RETAKE_SEED=N replays one alone."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

BLOCKS = 20


def wanted(usual: int, share: int = 1) -> Sequence[int]:
    """Return the seeds to try. A search whose worlds take longer than those of others tries one in `share` of them."""
    if "RETAKE_SEED" in os.environ:
        return [int(os.environ["RETAKE_SEED"])]
    return range(int(os.environ.get("RETAKE_SEEDS") or usual) // share)


def in_blocks(seeds: Sequence[int]) -> list[Sequence[int]]:
    """Return the seeds as several parts, each of which is a test."""
    return [block for n in range(BLOCKS) if (block := seeds[n::BLOCKS])]


@contextmanager
def replayable(seed: int) -> Iterator[None]:
    """Have a failure name its seed."""
    try:
        yield
    except BaseException as error:
        raise AssertionError(f"seed {seed} (RETAKE_SEED={seed} plays it again): {error!r}") from error
