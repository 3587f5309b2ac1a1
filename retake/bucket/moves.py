"""Moves objects: within the store if it can, else by copies that are compared before a source is deleted."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Protocol, runtime_checkable

from retake.bucket import Bucket, check_key
from retake.bucket.contract import CHUNK_SIZE
from retake.bucket.ranged_reads import read_range
from retake.errors import StorageError


@runtime_checkable
class Moves(Protocol):
    """An optional capability of a bucket: moving files without sending their content through the program.

    move(bucket, [("666/a.json", "555/a.json"), ("666/a.mp4", "555/a.mp4")])
    """

    def move(self, moves: Sequence[tuple[str, str]]) -> None:
        """Give each object a new key, replacing what is there: `moves` are pairs of source and target.

        A directory renames each file. B2 and S3 copy all objects within the store, compare all by the digests that the
        store keeps, and only then delete the sources. A crash leaves each object whole under its source, its target, or
        both; moving what is left at the sources completes the move.

        Raises NotFound (a source), ValueError for a key that occurs twice, and StorageError with no source deleted if
        a copy is not the same.
        """
        ...


def move(bucket: Bucket, moves: Sequence[tuple[str, str]]) -> None:
    """Move objects (see `Moves`). In a bucket without moves they are copied, compared and then deleted."""
    if isinstance(bucket, Moves):
        bucket.move(moves)
    else:
        copy_and_delete(bucket, moves)


def copy_and_delete(bucket: Bucket, moves: Sequence[tuple[str, str]]) -> None:
    """Copy all, compare all, then delete: a crash leaves two copies of a group, never half of one."""
    check_moves(moves)
    for source, target in moves:
        bucket.copy(source, target)
    for source, target in moves:
        if not same_content(bucket, source, target):
            raise not_the_same(source, target)
    for source, _ in moves:
        bucket.delete(source)


def check_moves(moves: Sequence[tuple[str, str]]) -> None:
    """Raise ValueError unless every key in `moves` is valid and occurs once."""
    keys = [check_key(key) for each in moves for key in each]
    if len(keys) != len(set(keys)):
        raise ValueError(f"the same key twice: {', '.join(keys)}")


def same_content(bucket: Bucket, one: str, other: str) -> bool:
    """Return whether two objects hold the same bytes, by reading both a piece at a time. Raises NotFound."""
    return all(ours == theirs for ours, theirs in zip_longest(_pieces(bucket, one), _pieces(bucket, other)))


def _pieces(bucket: Bucket, key: str) -> Iterator[bytes]:
    first, piece = 0, b""
    while first == 0 or len(piece) == CHUNK_SIZE:
        piece = read_range(bucket, key, first, first + CHUNK_SIZE - 1)
        first += CHUNK_SIZE
        yield piece


def not_the_same(source: str, target: str) -> StorageError:
    """Return the error for a copy that differs from its source."""
    return StorageError(f"the copy of {source} at {target} is not the same; nothing was deleted")
