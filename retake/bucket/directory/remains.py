"""Remnants of crashed writers in a directory bucket: drafts, which the next writer sweeps after a day.

Kernel locks leave none: a lock file stays, and is free when its holder has ended, however it ended.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress

from retake.bucket.directory.disk import LEFTOVER_S, Tree
from retake.bucket.scanning import DRAFT, Remnant

_DRAFTS = ".retake/tmp/"


def drafts_left(tree: Tree, now: float) -> Iterator[Remnant]:
    """Yield the drafts whose writers are gone at `now`, in seconds since the epoch. Raises OSError."""
    for folder in tree.disks():
        yield from _drafts_of(tree, f"{folder}{_DRAFTS}", now)


def clear_draft(tree: Tree, remnant: Remnant, now: float) -> None:
    """Remove a draft, if it still exists. Raises OSError."""
    folder, _, name = remnant.name.rpartition(_DRAFTS)
    drafts = _drafts_of(tree, f"{folder}{_DRAFTS}", now) if name and "/" not in name else ()
    if any(it.name == remnant.name for it in drafts):
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(tree.root, remnant.name))


def _drafts_of(tree: Tree, folder: str, now: float) -> Iterator[Remnant]:
    path = os.path.join(tree.root, folder).rstrip("/")
    if not os.path.isdir(path) or os.path.islink(path) or os.path.islink(os.path.dirname(path)):
        return
    with os.scandir(path) as items:
        for item in items:
            with suppress(FileNotFoundError):  # its writer is alive
                found = item.stat(follow_symlinks=False)
                if stat.S_ISREG(found.st_mode) and now - found.st_mtime > LEFTOVER_S:
                    yield Remnant(f"{folder}{item.name}", DRAFT, found.st_size, found.st_mtime, removable=True)
