"""How a generation begins, ends, and is requeued. Writes are ordered so that a crash in between does no harm."""

from collections.abc import Container
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from retake.bucket import ABSENT, Bucket
from retake.bucket.contract import make_folders
from retake.clock import stamp
from retake.errors import ErrorRecord, StateError
from retake.paid.bills import calls_of
from retake.story import transitions
from retake.story.documents import GROUP, Documents, GenDocument, MidjourneyDocument, Status, Step, safe_id
from retake.story.settings import FilePaths
from retake.story.store import DocumentStore, group_at
from retake.strict_json import encode

if TYPE_CHECKING:
    from retake.retrying.dead_letters import DeadLetter, DeadLetters

DEAD_LETTERS = "dead_letters/"
"""The folder of failed generations, one folder each (`retake.retrying.dead_letters`)."""

NOBODYS = "before-"
"""The prefix of the ids of letters with paid work that belonged to no generation."""

ROLLBACK = "rollback"
"""The kind of letters with what a rollback gave up."""

SPEND = "spend/"
"""The folder of the records of paid calls, one document per generation."""

_FAILURE_KEYS = ("failed_in_a_row", "last_failure")
_ERROR_KEYS = ("error_id", "timestamp", "error_class", "error_code", "message")


def new_id(now: datetime, taken: Container[str]) -> str:
    """Return YYYYMMDD-HHMM of the current minute (UTC), or of the next one that is free."""
    moment = now.astimezone(UTC)
    while (candidate := moment.strftime("%Y%m%d-%H%M")) in taken:
        moment += timedelta(minutes=1)
    return candidate


def prepare(store: DocumentStore) -> None:
    """Make the folders of a generation, if this is the first one in the bucket."""
    gen = store.paths.config_gen
    if store.versions.get(gen, ABSENT) is ABSENT:
        make_folders(store.bucket, [f"{gen.rpartition('/')[0]}/", store.paths.folder_666, SPEND])


def begin(store: DocumentStore, generation_id: str, *, capped: bool) -> None:
    """Begin a generation.

    The cleared document is saved first, then the id: a crash in between leaves nothing that looks like work under way.
    The first intent makes the id durable; before that, nothing would be lost with it. An empty document need not be
    saved, unless spending is `capped`: the day's book needs the document's account before the first reservation.
    """
    doc = _keep_orphaned_work(store, generation_id)
    if doc.raw or capped:
        store.save_midjourney(transitions.begun(doc, generation_id))
    store.save_gen(store.documents.gen.updated(generation_id=generation_id), synced=False)


def _keep_orphaned_work(store: DocumentStore, generation_id: str) -> MidjourneyDocument:
    """Keep paid work that belongs to no generation in a dead letter, since somebody may want it back. Return the
    document with a pending call counted as billed.

    Work that a dead letter has already is not kept again, since it would then be billed twice: work of a failed
    generation, work that an interrupted requeue was bringing back, and work kept by an earlier, interrupted call.
    """
    from hashlib import sha256

    doc = transitions.abandoned(store.documents.midjourney)
    if doc.status is Status.TASK_FAILED_MAX_RETRIES:
        return doc
    calls = _unbilled(store, doc)
    if (calls or not doc.blank) and not _is_kept(store, doc, calls):
        data = doc.updated(paid_calls=calls).encode()
        key = _document_of(store, f"{NOBODYS}{generation_id}")
        if store.bucket.find(key, [""]) and store.bucket.read(key)[0] != data:  # from an earlier requeue
            key = _document_of(store, f"{NOBODYS}{generation_id}-{sha256(data).hexdigest()[:8]}")
        store.save_file(key, data)
    return doc


def _unbilled(store: DocumentStore, doc: MidjourneyDocument) -> list[dict[str, Any]]:
    """Return the paid calls of a document, except those in the record of the generation that was requeued into it."""
    billed = recorded_calls(store, f"{SPEND}{doc.requeued}.json") if doc.requeued else []
    return doc.paid_calls[len(billed) :] if doc.paid_calls[: len(billed)] == billed else doc.paid_calls


def _is_kept(store: DocumentStore, doc: MidjourneyDocument, unbilled: list[dict[str, Any]]) -> bool:
    """Return whether a dead letter, or the record of a dropped one, already has the paid work of a document that
    belongs to no generation."""
    if not unbilled:
        return bool(doc.requeued and store.bucket.find(_document_of(store, doc.requeued), [""]))
    letters = (entry.key for entry in store.bucket.list(f"{DEAD_LETTERS}{NOBODYS}"))
    records = (entry.key for entry in store.bucket.list(f"{SPEND}{NOBODYS}"))
    nobodys = (*(it for it in letters if _name(it) == store.paths.kept_document), *records)
    return any(recorded_calls(store, it) == unbilled for it in nobodys)


def recorded_calls(store: DocumentStore, key: str) -> list[dict[str, Any]]:
    """Return the paid calls of a record or a document, or [] if it is missing or invalid."""
    try:
        return calls_of(store.read_object(key))
    except StateError:
        return []


def finish(store: DocumentStore, now: datetime) -> None:
    """Finish a generation whose files are all there. The id is removed last, so that after a crash in between the next
    tick finishes."""
    generation_id = store.documents.gen.generation_id
    assert generation_id is not None
    _save_spend(store, generation_id, "done", now)
    store.save_midjourney(transitions.clean(store.documents.midjourney), synced=False)  # the id follows, and syncs both
    store.save_gen(store.documents.gen.without(*_FAILURE_KEYS).updated(generation_id=None))


def dead_letter(store: DocumentStore, now: datetime, told: ErrorRecord | None = None) -> int:
    """Move everything of a failed generation to a dead letter. Return how many have now failed in a row; a cancelled
    one does not count. `told` is its last error without quotes from prompts, for alerts."""
    from retake.story.facts import tellable

    gen, doc = store.documents.gen, store.documents.midjourney
    generation_id, told = gen.generation_id, told or tellable(store)
    assert generation_id is not None
    _save_spend(store, generation_id, "cancelled" if doc.cancelled else "failed", now)
    files = {f"{generation_id}.{suffix}": suffix for suffix in GROUP if suffix in store.files(generation_id)}
    copies = {name: store.file_key(generation_id, suffix) for name, suffix in files.items()}
    letters = _letters(store)
    kept = letters.add_files(generation_id, copies, {store.paths.kept_document: doc.encode()})
    report = {
        "generation_id": generation_id,
        "failed_at_utc": stamp(now),
        "failed_step": doc.present_step.value,
        "last_error": doc.error.raw or None,
        "retries": doc.retries,
        "paid_calls": doc.paid_calls,
        "files": [it for it in kept if it.startswith(f"{generation_id}.")],  # an interrupted call may have added some
        **({"cancelled": doc.cancelled, "tasks_in_flight": in_flight(doc)} if doc.cancelled else {}),
    }
    letters.write_report(generation_id, report)
    for key in copies.values():
        store.lease.check()
        store.bucket.delete(key)
    if doc.cancelled:
        store.save_gen(gen.updated(generation_id=None))
        return gen.failed_in_a_row
    error = {key: it for key, it in told.raw.items() if key in _ERROR_KEYS}
    failure = {"generation_id": generation_id, "step": doc.present_step.value, "error": error or None}
    failed = gen.failed_in_a_row + 1
    store.save_gen(gen.updated(generation_id=None, failed_in_a_row=failed, last_failure=failure))
    return failed


def in_flight(doc: MidjourneyDocument) -> list[str]:
    """Return the ids of the tasks that are paid for and not delivered yet."""
    return [task.task_id for task in (doc.task, doc.runway_task) if task]


def requeue(store: DocumentStore, generation_id: str) -> None:
    """Bring a failed generation back from its dead letter, at the step that failed. Raises StateError.

    The files are copied first, then the document and the id are saved, and the letter is removed last, so a crash in
    between leaves it whole. The document names its letter: if a crash leaves the document without an id, that
    distinguishes it from work that is kept nowhere else.
    """
    from retake.retrying.dead_letters import REQUEUED

    kept = requeuable(store, generation_id)
    for entry in store.bucket.list(f"{DEAD_LETTERS}{generation_id}/{generation_id}."):
        store.lease.check()
        store.bucket.copy(entry.key, f"{store.paths.folder_666}{_name(entry.key)}")
    doc = transitions.requeued(kept, _keep_orphaned_work(store, generation_id))
    store.save_midjourney(doc.updated(requeued=generation_id))
    store.save_gen(_gen_after(store.documents.gen, generation_id))
    _letters(store).remove(generation_id, REQUEUED)


def end_requeue(store: DocumentStore) -> None:
    """Remove what an interrupted requeue left of the letter of the generation under way. All of the letter was brought
    back, and what was given up since then must not be brought back again."""
    from retake.retrying.dead_letters import REQUEUED

    generation_id = store.documents.gen.generation_id
    if generation_id and store.documents.midjourney.requeued == generation_id:
        _letters(store).remove(generation_id, REQUEUED)


def remove_copies(store: DocumentStore, letter: "DeadLetter") -> None:
    """Delete the files that an interrupted requeue has copied from a letter: without the letter nobody could tell what
    they are.

    The files belong to a generation that went on, and are not deleted, if only remains of the letter are left, if the
    letter lacks one of them, or if there are files in the folders further up.
    """
    paths, name = store.paths, letter.id
    copies = [entry.key for entry in store.bucket.list(f"{paths.folder_666}{name}.")]
    above = paths.folders[1:]
    present = name == store.documents.gen.generation_id
    went_on = present or letter.ended or any(store.bucket.list(f"{it}{name}.") for it in above)
    if not went_on and {_name(it) for it in copies}.issubset(letter.files):
        for key in copies:
            store.lease.check()
            store.bucket.delete(key)


def note_drop(store: DocumentStore, generation_id: str) -> None:
    """Note with the last failure that the dead letter of its generation is about to be dropped. Otherwise an alert
    would advise requeuing it."""
    gen = store.documents.gen
    if gen.last_failure.get("generation_id") == generation_id:
        store.save_gen(gen.updated(last_failure={**gen.last_failure, "dropped": True}))


def nobodys_calls(store: DocumentStore, letter_id: str) -> list[dict[str, Any]]:
    """Return the paid calls in a letter with work that belonged to no generation, or [] for any other letter."""
    return recorded_calls(store, _document_of(store, letter_id)) if letter_id.startswith(NOBODYS) else []


def bill_nobodys(store: DocumentStore, letter_id: str, now: datetime) -> None:
    """Record what was paid for work that belonged to no generation, before the letter with the only record of it is
    dropped."""
    _save_bill(store, letter_id, "failed", nobodys_calls(store, letter_id), now)


def after_requeue(store: DocumentStore, generation_id: str, kept: MidjourneyDocument) -> Documents:
    """Return the documents as `requeue` would leave them. `kept` is what `requeuable` returned."""
    present, files = store.documents, group_at(store.bucket, f"{DEAD_LETTERS}{generation_id}/{generation_id}.")
    doc = transitions.requeued(kept, present.midjourney)
    return Documents(present.public, _gen_after(present.gen, generation_id), doc, files)


def _gen_after(gen: GenDocument, generation_id: str) -> GenDocument:
    return gen.without(*_FAILURE_KEYS).updated(generation_id=generation_id)


def requeuable(store: DocumentStore, generation_id: str) -> MidjourneyDocument:
    """Return the document in the dead letter of a generation. Raises StateError if it cannot be requeued now."""
    kept, why = requeuable_or_why(store, generation_id)
    if kept is None:
        raise StateError(f"{why}. Nothing was changed")
    return kept


def requeuable_or_why(store: DocumentStore, generation_id: str) -> tuple[MidjourneyDocument | None, str]:
    """Return what `requeuable` returns, or None and why the generation cannot be requeued now. Raises StorageError, and
    StateError for an unreadable dead letter.

    That another generation is under way is checked last, so that nobody ends it for one that cannot be requeued anyway.
    """
    if why := _why_never_requeued(store, generation_id):
        return None, why
    kept, present = kept_document(store, generation_id), store.documents.gen.generation_id
    if kept is None:
        key = _document_of(store, generation_id)
        return None, f"{key} is not there, and nothing else says how far {generation_id} had come"
    if present:
        how = f"requeue {generation_id} when it has ended, or cancel {present} first"
        return None, f"generation {present} is under way, one at a time; {how}"
    return kept, ""


def _why_never_requeued(store: DocumentStore, generation_id: str) -> str:
    """Return why a generation cannot be requeued, whatever its document says and whatever else is under way, or ""."""
    from retake.operations.letters import letter_of, no_letter

    letter = letter_of(store.bucket, store.clock, generation_id)
    if letter and of_a_rollback(letter):
        return why_not_requeuable(letter)
    if store.documents.gen.generation_id == generation_id:
        return f"{generation_id} is under way: it need not be requeued"
    if letter is None:
        return f"{no_letter(generation_id)}. It may have been requeued or dropped"
    return why_not_requeuable(letter) or why_finished(store.bucket, store.paths, generation_id)


def why_not_requeuable(letter: "DeadLetter") -> str:
    """Return why a dead letter can never be requeued, whatever is under way, or "" for that of a generation."""
    name = letter.id
    if of_a_rollback(letter):
        return (
            f"{name} is what a rollback gave up, and no generation: it cannot be requeued. Save what you need of "
            f"{DEAD_LETTERS}{name}/, and drop it"
        )
    if name.startswith(NOBODYS):
        return f"{name} is paid work that belonged to no generation: there is nothing to continue with; {_look(name)}"
    if letter.kind not in ("", "generation"):
        return f"{name} is a letter of kind {letter.kind}, which is not a generation; {_look(name)}"
    return f"{name} was {letter.ended} before, and these are the remains; {_look(name)}" if letter.ended else ""


def why_finished(bucket: Bucket, paths: FilePaths, generation_id: str) -> str:
    """Return a message that a generation with a leftover dead letter is finished, and where its files are, or ""."""
    for folder in paths.folders:
        if group_at(bucket, f"{folder}{generation_id}.").issuperset(GROUP):
            place = f"{generation_id} is finished, its files lie in {folder}"
            return f"{place}; these are the remains: {_look(generation_id)}"
    return ""


def of_a_rollback(letter: "DeadLetter") -> bool:
    """Return whether a letter is that of a rollback. If a crash has left it without a report, its id decides."""
    if letter.report:
        return letter.kind == ROLLBACK
    head, _, digest = letter.id.rpartition("-")
    generation_id, _, step = head.rpartition("-")
    return bool(generation_id) and step in list(Step) and len(digest) == 8 and set(digest) <= set("0123456789abcdef")


def _look(name: str) -> str:
    return f"look at it (dead-letters show {name}), save what you need, and drop it"


def kept_document(store: DocumentStore, generation_id: str) -> MidjourneyDocument | None:
    """Return the document in the dead letter of a generation, or None. Raises StateError."""
    return store.read_midjourney(_document_of(store, generation_id)) if safe_id(generation_id) else None


def _document_of(store: DocumentStore, letter_id: str) -> str:
    return f"{DEAD_LETTERS}{letter_id}/{store.paths.kept_document}"


class TakenIds:
    """The ids that were used before and have left a trace: a file, a dead letter, or a spend record, which outlasts
    files that are moved away or renamed by hand.

    `staged` are the ids with files in the folders that tidying up lists (`TidyPlan.staged`). The archive, the dead
    letters and the records only grow, so ids are looked up there by name.
    """

    def __init__(self, store: DocumentStore, staged: Container[str]) -> None:
        self._store, self._staged = store, staged

    def __contains__(self, generation_id: object) -> bool:
        name, bucket = str(generation_id), self._store.bucket
        return (
            name in self._staged
            or bool(bucket.find(f"{self._store.paths.archive_folder}{name}.", GROUP))
            or bool(bucket.list(f"{DEAD_LETTERS}{name}/"))
            or bool(bucket.find(f"{SPEND}{name}.json", [""]))
        )


def _letters(store: DocumentStore) -> "DeadLetters":
    from retake.retrying.dead_letters import DeadLetters

    return DeadLetters(store.bucket, store.clock, lease=store.lease)


def _save_spend(store: DocumentStore, generation_id: str, outcome: str, now: datetime) -> None:
    _save_bill(store, generation_id, outcome, store.documents.midjourney.paid_calls, now)


def _save_bill(store: DocumentStore, name: str, outcome: str, calls: list[dict[str, Any]], now: datetime) -> None:
    if not calls:
        return
    value = {"generation_id": name, "outcome": outcome, "ended_at_utc": stamp(now), "paid_calls": calls}
    from retake.retrying.kept_counts import mark_changes

    mark_changes(store.bucket, store.clock, SPEND, [name])
    store.save_file(f"{SPEND}{name}.json", encode(value))


def _name(key: str) -> str:
    return key.rpartition("/")[2]
