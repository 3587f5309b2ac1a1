"""Tidies up before new work: first plans, as a pure function, which files move where, then moves them.

Published ids go to the archive. Ready groups (.json, .png, .mp4 of one id) move up from 666/ through 555/ to 444/: at
most one group from each folder to the next, and only into a folder without a ready group.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import accumulate
from logging import getLogger
from typing import NamedTuple

from retake.bucket import Bucket, NotFound
from retake.bucket.moves import move, not_the_same, same_content
from retake.errors import StorageError
from retake.story.documents import GROUP, PublicDocument, safe_id
from retake.story.settings import Folders
from retake.story.store import DocumentStore, ProcessingFlag

_log = getLogger(__name__)


class FileMove(NamedTuple):
    source: str  # key
    target: str  # key
    onto: bool = False  # whether the target exists already: a crash left both files, and they are equal


class TwinsDiffer(StorageError):
    """The same file of one id is in two folders, with different contents. Nothing was moved or deleted."""


class TidyPlan(NamedTuple):
    """What tidying up would do."""

    moves: tuple[tuple[FileMove, ...], ...]  # one inner tuple for the files of one id: they move together
    archived: tuple[str, ...]  # ids whose whole group is in the archive after the moves
    missing: tuple[str, ...]  # published ids with no file anywhere
    incomplete: tuple[str, ...]  # published ids that lack a file
    empty: tuple[str, ...]  # folders without a ready group after the moves
    room: bool  # whether the entrance has no ready group after the moves
    staged: frozenset[str] = frozenset()  # ids with any file in the entrance, the middle or the exit, before the moves


Groups = Mapping[str, frozenset[str]]  # id -> suffixes of its files


def groups(keys: Iterable[str], folder: str) -> dict[str, frozenset[str]]:
    """Return the files in `folder` by id: {"20260101-0930": {"json", "png"}}, leaving out files of no group."""
    found: dict[str, set[str]] = {}
    for key in keys:
        name, dot, suffix = key.removeprefix(folder).rpartition(".")
        if dot and suffix in GROUP and safe_id(name) and key.startswith(folder):
            found.setdefault(name, set()).add(suffix)
    return {name: frozenset(suffixes) for name, suffixes in found.items()}


def plan(
    published: Iterable[str], known: Iterable[str], staged: Mapping[str, Groups], archive: Groups, folders: Folders
) -> TidyPlan:
    """Return the plan. `staged` and `archive` say which files are in which folder. `known` are the published ids that
    have been warned about already: an incomplete group is moved only after a warning."""
    published = list(dict.fromkeys(published))
    archiving = _archiving(published, set(known), staged, archive, folders)
    kept = {folder: dict(found) for folder, found in staged.items()}
    for name in published:
        for found in kept.values():
            found.pop(name, None)
    moves = [*archiving.moves, *_reunited(kept, folders)]
    for source, target in ((folders.middle, folders.exit), (folders.entrance, folders.middle)):
        ready = _ready(kept[source])
        if ready and not _ready(kept[target]):
            moves.append(tuple(_move(source, target, ready[0], suffix) for suffix in GROUP))
            kept[target][ready[0]] = kept[source].pop(ready[0])
    empty = tuple(folder for folder in folders.staged if not _ready(kept[folder]))
    return archiving._replace(moves=tuple(moves), empty=empty, room=folders.entrance in empty)


def carry_out(bucket: Bucket, moves: Iterable[FileMove]) -> None:
    """Move files together, within the store (see `retake.bucket.moves.Moves`).

    A crash leaves each file whole in at least one of its two folders, and the next `plan` reunites a split group.
    Raises TwinsDiffer, StorageError.
    """
    moves = list(moves)
    chosen = {it.target: it.target if it.onto else it.source for it in reversed(moves)}
    twins = [it for it in moves if it.source != chosen[it.target]]  # files that a crash left in two folders
    try:
        for twin in twins:
            if not same_content(bucket, chosen[twin.target], twin.source):
                raise TwinsDiffer(*not_the_same(chosen[twin.target], twin.source).args)
        move(bucket, [it[:2] for it in moves if it not in twins])
    except NotFound as error:  # listed a moment ago
        raise StorageError(f"{error.args[0]} was removed by another program while its group was moved") from None
    for twin in twins:
        bucket.delete(twin.source)


def _archiving(
    published: list[str], known: set[str], staged: Mapping[str, Groups], archive: Groups, folders: Folders
) -> TidyPlan:
    moves: list[tuple[FileMove, ...]] = []
    archived: list[str] = []
    missing: list[str] = []
    incomplete: list[str] = []
    for name in published:
        where = [(folder, suffix) for folder in folders.staged for suffix in sorted(staged[folder].get(name, ()))]
        there = archive.get(name, frozenset())
        whole = there.union(suffix for _, suffix in where).issuperset(GROUP)
        if where and (whole or name in known):
            moves.append(tuple(_move(folder, folders.archive, name, suffix, there) for folder, suffix in where))
        if whole:
            archived.append(name)
        else:
            (incomplete if where or there else missing).append(name)
    return TidyPlan(tuple(moves), tuple(archived), tuple(missing), tuple(incomplete), (), room=False)


def _reunited(staged: dict[str, dict[str, frozenset[str]]], folders: Folders) -> list[tuple[FileMove, ...]]:
    """Return the moves that finish what a crash interrupted: a group in two folders is reunited in the upper one.
    Updates `staged`."""
    moves = []
    for name in sorted({name for found in staged.values() for name in found}):
        holding = [folder for folder in folders.staged if name in staged[folder]]
        union = frozenset().union(*(staged[folder][name] for folder in holding))
        if len(holding) < 2 or not union.issuperset(GROUP):
            continue
        target, *rest = holding
        there = staged[target][name]
        lower = [(folder, suffix) for folder in rest for suffix in sorted(staged[folder].pop(name))]
        moves.append(tuple(_move(folder, target, name, suffix, there) for folder, suffix in lower))
        staged[target][name] = union
    return moves


def _ready(folder: Groups) -> list[str]:
    """Return the ids of whole groups, the oldest first."""
    return sorted(name for name, suffixes in folder.items() if suffixes.issuperset(GROUP))


def _move(source: str, target: str, generation_id: str, suffix: str, there: Container[str] = ()) -> FileMove:
    """Return the move of a file. `there` are the suffixes of the files that the target has already."""
    return FileMove(f"{source}{generation_id}.{suffix}", f"{target}{generation_id}.{suffix}", suffix in there)


def tidy_plan(store: DocumentStore) -> TidyPlan:
    """Return what tidying up would do."""
    gen, folders = store.documents.gen, store.paths.folders
    listed = {folder: [entry.key for entry in store.view.list(folder)] for folder in folders.staged}
    staged = {folder: groups(keys, folder) for folder, keys in listed.items()}
    published = store.public.ids
    archived: dict[str, frozenset[str]] = {}
    for name in filter(safe_id, published):  # not a listing: the archive only grows
        keys = [entry.key for entry in store.bucket.find(f"{folders.archive}{name}.", GROUP)]
        archived.update(groups(keys, folders.archive))
    found = plan(published, gen.warned, staged, archived, folders)
    return found._replace(staged=frozenset(_ids(listed)))


def _ids(listed: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """Yield each id that a file may belong to, even if it is in no group: for "666/20260101-0930.part.json" these are
    20260101-0930 and 20260101-0930.part."""
    for folder, keys in listed.items():
        for key in keys:
            first, *rest = key.removeprefix(folder).partition("/")[0].split(".")
            yield from accumulate([first, *rest[:-1]], "{}.{}".format)


def tidy(store: DocumentStore, flag: ProcessingFlag, found: TidyPlan) -> TidyPlan:
    """Carry out the plan, under the lease, and return it as carried out. Raises LeaseLost, StorageError.

    An id with different versions of a file in two folders stays where it is, and on the list if it is published. Others
    are moved nevertheless.
    """
    twins: set[str] = set()
    for together in _batches(found.moves):
        flag.raise_()
        store.lease.check()
        twins.update(_move_groups(store.bucket, together))
    if twins:
        empty = _without_ready(store)
        archived = tuple(it for it in found.archived if it not in twins)
        found = found._replace(archived=archived, empty=empty, room=store.paths.folder_666 in empty)
    _warn(store, flag, found)
    public = store.documents.public
    if found.archived or list(found.empty) != (public.empty or []):
        flag.raise_with(lambda doc: _tidied(doc, found))
    return found


def _without_ready(store: DocumentStore) -> tuple[str, ...]:
    """Return the folders that have no ready group now."""
    listed = {it: [entry.key for entry in store.bucket.list(it)] for it in store.paths.folders.staged}
    return tuple(folder for folder, keys in listed.items() if not _ready(groups(keys, folder)))


def _move_groups(bucket: Bucket, together: list[tuple[FileMove, ...]]) -> Iterator[str]:
    """Move groups together. Yield the ids of those that cannot be moved because two versions of a file differ."""
    try:
        carry_out(bucket, (it for moves in together for it in moves))
    except TwinsDiffer as error:
        if len(together) > 1:  # nothing was moved yet: move each separately
            for moves in together:
                yield from _move_groups(bucket, [moves])
            return
        [moves] = together
        _log.warning("%s. It stays where it is until one of them is removed", error)
        yield moves[0].target.rpartition("/")[2].rpartition(".")[0]
        return
    for moves in together:
        _log.info("moved %s", ", ".join(f"{it.source} → {it.target}" for it in moves))


def _batches(groups: Iterable[tuple[FileMove, ...]]) -> Iterator[list[tuple[FileMove, ...]]]:
    """Yield batches of groups that may move at once: no group in a batch moves to or from the keys of another."""
    batch: list[tuple[FileMove, ...]] = []
    keys: set[str] = set()
    for moves in groups:
        own = {key for it in moves for key in it[:2]}
        if keys & own:
            yield batch
            batch, keys = [], set()
        batch.append(moves)
        keys |= own
    if batch:
        yield batch


def _warn(store: DocumentStore, flag: ProcessingFlag, found: TidyPlan) -> None:
    """Warn once about each published id that lacks files."""
    lacking = {
        **dict.fromkeys(found.missing, "has no files at all"),
        **dict.fromkeys(found.incomplete, "lacks a file"),
    }
    gen = store.documents.gen
    warned = set(gen.warned)
    for name in lacking:
        if name not in warned:
            _log.warning("published id %r %s: it stays on the list", name, lacking[name])
    if list(lacking) != gen.warned:
        flag.raise_()
        gen = store.documents.gen  # raising the flag may have changed `remembered` in it
        store.save_gen(gen.updated(warned=list(lacking)) if lacking else gen.without("warned"))


def _tidied(doc: PublicDocument, found: TidyPlan) -> PublicDocument:
    archived = set(found.archived)
    left = [name for name in doc.published if name not in archived]
    return doc.updated(generation_id=left, empty=list(found.empty))
