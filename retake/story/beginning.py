"""What a tick does where no generation is under way: tidy up, and begin one if there is room for it."""

from collections.abc import Callable
from datetime import datetime
from logging import getLogger

from retake.exit_codes import ExitCode
from retake.story import tidy
from retake.story.documents import PublicDocument, safe_id
from retake.story.generation import begin, new_id, taken_ids
from retake.story.public_list import ProcessingFlag
from retake.story.store import DocumentStore
from retake.ticking.tick import Tick

_log = getLogger(__name__)


def begin_or_wait(
    store: DocumentStore,
    flag: ProcessingFlag,
    now: datetime,
    check_keys: Callable[[], None],
    over_cap: Callable[[], str],
) -> Tick | None:
    """Tidy up and begin a generation; return the tick's result where there is no room, or no money, for one.

    `check_keys()` raises SettingsError unless all vendors have keys. `over_cap()` returns why the first call
    must not be made now, or "".
    """
    plan = tidy_plan(store)
    if plan.room:
        check_keys()
    _tidy(store, flag, plan)
    if not plan.room:
        _log.info("nothing to do: %s holds a ready group", store.paths.folder_666)
        return Tick(ExitCode.OK, "nothing to do", resting=True)
    if over := over_cap():
        _log.error("%s", over)
        return Tick(ExitCode.TRY_LATER, over, resting=True)
    flag.raise_()
    generation_id = new_id(now, taken_ids(store))
    begin(store, generation_id)
    store.read()
    _log.info("a new generation begins", extra={"generation_id": generation_id})
    return None


def tidy_plan(store: DocumentStore) -> tidy.TidyPlan:
    """Return what tidying up would do."""
    paths, gen = store.paths, store.documents.gen
    folders = tidy.Folders(paths.folder_666, paths.folder_555, paths.folder_444, paths.archive_folder)
    staged = {
        folder: tidy.groups((entry.key for entry in store.bucket.list(folder)), folder) for folder in folders.staged
    }
    published = store.public.ids
    archived: dict[str, frozenset[str]] = {}
    for name in filter(safe_id, published):
        keys = (entry.key for entry in store.bucket.list(f"{folders.archive}{name}."))
        archived.update(tidy.groups(keys, folders.archive))
    return tidy.plan(published, gen.warned, staged, archived, folders)


def _tidy(store: DocumentStore, flag: ProcessingFlag, plan: tidy.TidyPlan) -> None:
    for moves in plan.moves:
        flag.raise_()
        store.lease.check()
        tidy.carry_out(store.bucket, moves)
        _log.info("moved %s", ", ".join(f"{move.source} → {move.target}" for move in moves))
    _warn(store, flag, plan)
    public = store.documents.public
    if plan.archived or list(plan.empty) != (public.empty or []):
        flag.raise_()
        store.public.publish(lambda doc: _tidied(doc, plan))


def _warn(store: DocumentStore, flag: ProcessingFlag, plan: tidy.TidyPlan) -> None:
    """Warn once about each published id that lacks files."""
    lacking = {
        **dict.fromkeys(plan.missing, "has no files at all"),
        **dict.fromkeys(plan.incomplete, "lacks a file"),
    }
    gen = store.documents.gen
    for name in lacking:
        if name not in gen.warned:
            _log.warning("published id %r %s: it stays on the list", name, lacking[name])
    if list(lacking) != gen.warned:
        flag.raise_()
        gen = store.documents.gen  # raising the flag may have remembered an id in it
        store.save_gen(gen.updated(warned=list(lacking)) if lacking else gen.without("warned"))


def _tidied(doc: PublicDocument, plan: tidy.TidyPlan) -> PublicDocument:
    left = [name for name in doc.published if name not in plan.archived]
    return doc.updated(generation_id=left, empty=list(plan.empty))
