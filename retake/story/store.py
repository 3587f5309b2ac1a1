"""Reads and saves the documents of one pipeline in its bucket, under its lease."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from logging import getLogger
from typing import Any, BinaryIO, TypeVar

from retake.bucket import ABSENT, ANY, Bucket, Conflict, Expect, Lease, NotFound, Room
from retake.bucket.contract import Sight, look, shared_writes, write_file, write_unsynced
from retake.clock import Clock
from retake.document_schema import WHOLE, InvalidDocument
from retake.errors import RetakeError, StateError, StorageError
from retake.story.documents import (
    GROUP,
    Documents,
    GenDocument,
    MidjourneyDocument,
    PublicDocument,
    parse_gen,
    parse_midjourney,
    parse_public,
)
from retake.story.settings import FilePaths
from retake.story.transitions import answered_by
from retake.strict_json import encode, parse, what_is_wrong

_log = getLogger(__name__)


_REREADS = 4  # while a publisher writes in place, the document is torn for a moment
_REREAD_PAUSE_S = 0.05
_MAX_PUBLISH_TRIES = 200  # a try fails only if the publisher writes at that very moment


def aside_prefix(paths: FilePaths) -> str:
    """Return the prefix of the keys of displaced versions of config_public.json."""
    return f"{paths.config_public}.displaced-"


class PublicList:
    """config_public.json, and the list of published ids in it."""

    def __init__(self, store: DocumentStore) -> None:
        self._store = store
        self.aside_prefix = aside_prefix(store.paths)

    def read(self) -> PublicDocument:
        """Return the document, reading it again if it is torn. Raises StateError."""
        key = self._store.paths.config_public
        for _ in range(_REREADS):
            try:
                data = self._store.read_bytes(key)
                return parse_public(b"{}" if data is None else data)  # an empty file is torn too
            except InvalidDocument:
                self._store.view = self._store.bucket
                self._store.clock.sleep(_REREAD_PAUSE_S)
        return self._store.parsed(key, parse_public)

    def publish(self, change: Callable[[PublicDocument], PublicDocument]) -> None:
        """Change config_public.json without losing what the publisher, which uses no lock, writes at the same time.
        `change` may be called several times. Raises LeaseLost, StorageError.

        If a write finds another version than it was based on, that version is put back, and the document is read and
        changed again. A publisher that reads the document in between can still write back a list without its own
        earlier append. So ids that were seen during a disturbed write are remembered in config_gen.json, and put back
        into the list until they are archived.
        """
        seen = dict.fromkeys(self._store.documents.gen.remembered)
        disturbed = False
        for _ in range(_MAX_PUBLISH_TRIES):
            self._store.lease.check()
            asides = self._asides()
            public = self.read()
            for found in (public, *self._displaced(asides)):
                seen.update(dict.fromkeys(found.published))
            listed = set(public.published)
            lost = [name for name in seen if name not in listed]
            wanted = change(public.updated(generation_id=[*public.published, *lost]) if lost else public)
            disturbed = disturbed or bool(asides)
            if self._exchange(public, wanted, asides):
                self._remember(list(seen) if disturbed else self._store.documents.gen.remembered)
                for aside in asides:  # only now, since after a crash they are still needed
                    self._store.bucket.delete(aside)
                return
            disturbed = True
        raise StorageError(f"{self._store.paths.config_public}: another program never stops writing it")

    @property
    def ids(self) -> list[str]:
        """The ids to be archived: those in the list, and those remembered from a disturbed write."""
        return list(dict.fromkeys([*self._store.documents.public.published, *self._store.documents.gen.remembered]))

    @property
    def whole(self) -> bool:
        """Whether no append of the publisher waits to be put back into the list."""
        return len(self.ids) == len(set(self._store.documents.public.published)) and not self._asides()

    def _exchange(self, public: PublicDocument, wanted: PublicDocument, asides: list[str]) -> bool:
        key = self._store.paths.config_public
        if wanted != public:
            self._store.view = self._store.bucket
            taken = {aside.rpartition("-")[2] for aside in asides}
            free = next(str(n) for n in range(len(asides) + 1) if str(n) not in taken)
            try:
                self._store.versions[key] = shared_writes(self._store.bucket).replace(
                    key, wanted.encode(), self._store.versions[key], f"{self.aside_prefix}{free}"
                )
            except Conflict:
                return False
        self._store.documents = self._store.documents._replace(public=wanted)
        return True

    def _asides(self) -> list[str]:
        return [entry.key for entry in self._store.view.list(self.aside_prefix)]

    def _displaced(self, asides: list[str]) -> list[PublicDocument]:
        """Return the documents that earlier writes displaced. Invalid ones are logged, and a copy is kept."""
        found = []
        for aside in asides:
            try:
                found.append(self._store.parsed(aside, parse_public))
            except StateError as error:
                _log.warning("%s", error)
        return found

    def _remember(self, names: list[str]) -> None:
        listed = set(self._store.documents.public.published)
        kept = [name for name in names if name in listed]
        gen = self._store.documents.gen
        self._store.save_gen(gen.updated(remembered=kept) if kept else gen.without("remembered"))


class ProcessingFlag:
    """`processing_lock` in config_public.json during one tick. It only informs people and other programs: what excludes
    other processes is the lease."""

    def __init__(self, store: DocumentStore) -> None:
        self.was_up = False
        """Whether an interrupted tick has left it up."""
        self._public = store.public
        self._raised = False

    def raise_(self) -> None:
        """Raise the flag, unless that is already done."""
        if not self._raised:
            self.raise_with(lambda doc: doc)

    def raise_with(self, change: Callable[[PublicDocument], PublicDocument]) -> None:
        """Change the document and raise the flag in the same write, so that nobody sees one without the other."""
        self._raised = True
        self._public.publish(lambda doc: change(doc).updated(processing_lock=True))

    def lower(self) -> None:
        """Lower the flag if it may be up, and put back what the publisher's list has lost. Never raises a
        RetakeError."""
        try:
            if self._raised or self.was_up or not self._public.whole:
                self._public.publish(lambda doc: doc.updated(processing_lock=False))
        except RetakeError as error:
            _log.error("processing_lock stays true until the next tick: %s", error)


UNREADABLE = "unreadable/"
"""The folder of copies of unreadable documents, named after the document and a digest of its content."""


_ANSWER_BYTES = 256 * 1024
"""Bytes set aside in the document for a vendor's answer to a paid call, which is a task's id or some texts."""

_D = TypeVar("_D", PublicDocument, GenDocument, MidjourneyDocument)


class DocumentStore:
    """The documents as last read or saved. A store without a lease can only read, as in a dry run. `taken` is what was
    seen when the lease was taken, for the first `read`.

    Only the holder of the lease writes config_gen.json and config_midjourney.json. If they have another version than
    the one last seen, that is a Conflict. The publisher, which uses no lease, also writes config_public.json: see
    `PublicList.publish`.
    """

    def __init__(
        self, bucket: Bucket, paths: FilePaths, lease: Lease | None, clock: Clock, taken: Sight | None = None
    ) -> None:
        self.bucket = bucket
        self.view: Sight = bucket
        """What the last `read` has seen, until the store changes something."""
        self._taken = taken
        self.paths = paths
        self.documents = Documents(PublicDocument({}), GenDocument({}), MidjourneyDocument({}))
        self.clock = clock
        self._lease = lease
        self._kept_in = bucket if lease else None  # for copies of invalid documents, which need a lease
        self.versions: dict[str, str | Expect] = {}  # as last read or written, by key
        self.public = PublicList(self)
        self._saved = self.documents.midjourney  # as stored in the bucket

    # --- reading ------------------------------------------------------------------------------------------------

    def read(self) -> Documents:
        """Read and check all documents. Raises StateError for an invalid one, of which a copy is kept.

        A pending call whose answer is in an existing file counts as answered, which the next save records. Files that a
        rollback gave up count as gone; under a lease they are deleted if a crash has left them.
        """
        self.view, self._taken = self._taken or _look(self), None
        public = self.public.read()
        gen = self.parsed(self.paths.config_gen, parse_gen)
        self._saved = midjourney = self.parsed(self.paths.config_midjourney, parse_midjourney)
        files = self.files(gen.generation_id) - midjourney.discard
        self.documents = Documents(public, gen, answered_by(midjourney, files), files)
        if self._lease and midjourney.discard:
            _delete_discarded(self)
        return self.documents

    def files(self, generation_id: str | None) -> frozenset[str]:
        """Return the suffixes of the generation's files."""
        if generation_id is None:
            return frozenset()
        return group_at(self.view, self.file_key(generation_id, ""))

    def file_key(self, generation_id: str, suffix: str) -> str:
        return f"{self.paths.folder_666}{generation_id}.{suffix}"

    def read_midjourney(self, key: str) -> MidjourneyDocument | None:
        """Return a copy of config_midjourney.json that is kept elsewhere, or None. Raises StateError."""
        doc = self.parsed(key, parse_midjourney)
        return None if self.versions[key] is ABSENT else doc

    def read_object(self, key: str) -> dict[str, Any] | None:
        """Return another JSON object of the pipeline, or None if it does not exist. Raises StateError."""
        data = self.read_bytes(key)
        if data is None:
            return None
        try:
            value = parse(data)
        except ValueError as error:
            raise _unreadable(self._kept_in, key, data, InvalidDocument(WHOLE, what_is_wrong(error))) from error
        if not isinstance(value, dict):
            raise _unreadable(self._kept_in, key, data, InvalidDocument(WHOLE, "is not an object"))
        return value

    def read_bytes(self, key: str) -> bytes | None:
        """Return the content of the object at `key`, or None."""
        try:
            data, self.versions[key] = self.view.read(key)
        except NotFound:
            self.versions[key] = ABSENT
            return None
        return data

    def parsed(self, key: str, parse: Callable[[bytes], _D]) -> _D:
        """Return the document at `key`, or an empty one if it does not exist. Raises StateError."""
        data = self.read_bytes(key)
        try:
            return parse(b"{}" if data is None else data)
        except InvalidDocument as error:
            raise _unreadable(self._kept_in, key, data or b"", error) from error

    # --- saving -------------------------------------------------------------------------------------------------

    @property
    def lease(self) -> Lease:
        """The lease under which the store writes."""
        if self._lease is None:
            raise RuntimeError("a store that was opened for reading was asked to write")
        return self._lease

    def set_aside(self) -> Room:
        """Set aside room for config_midjourney.json including a vendor's answer. Raises LeaseLost, StorageError."""
        self.lease.check()
        size = len(self.documents.midjourney.encode()) + _ANSWER_BYTES
        return self.bucket.set_aside(self.paths.config_midjourney, size)

    def save_midjourney(
        self, doc: MidjourneyDocument, room: Room | None = None, *, synced: bool = True
    ) -> MidjourneyDocument:
        """Save the document, unless the bucket already has it. `room` is the space set aside for it, if any.

        Unless `synced`, the write may be lost in a power cut (see retake.bucket.contract). Raises LeaseLost, Conflict,
        StorageError.
        """
        if doc != self._saved:
            self._save(self.paths.config_midjourney, doc.encode(), room, synced=synced)
            self._saved = doc
        self.documents = self.documents._replace(midjourney=doc)
        return doc

    def save_gen(self, doc: GenDocument, *, synced: bool = True) -> GenDocument:
        """Save the document, as `save_midjourney` does. Raises LeaseLost, Conflict, StorageError."""
        if doc != self.documents.gen:
            self._save(self.paths.config_gen, doc.encode(), synced=synced)
            self.documents = self.documents._replace(gen=doc)
        return doc

    def save_object(self, key: str, value: dict[str, Any]) -> None:
        """Save an object that `read_object` has read. It may be lost in a power cut. Raises LeaseLost, Conflict,
        StorageError."""
        self._save(key, encode(value), synced=False)

    def save_file(self, key: str, data: bytes | BinaryIO) -> None:
        """Write a file of a generation, replacing any other. An open file is streamed. Raises LeaseLost,
        StorageError."""
        self.lease.check()
        self.view = self.bucket
        if isinstance(data, bytes):
            self.bucket.write(key, data, ANY)
        else:
            write_file(self.bucket, key, data, ANY)

    def _save(self, key: str, data: bytes, room: Room | None = None, *, synced: bool) -> None:
        self.lease.check()
        self.view = self.bucket
        expect = self.versions.get(key, ABSENT)
        try:
            if room:
                self.versions[key] = room.write(data, expect)
            else:
                write = self.bucket.write if synced else partial(write_unsynced, self.bucket)
                self.versions[key] = write(key, data, expect)
        except Conflict:
            version = _version_of(self.bucket, key, data)
            if version is None:
                raise
            self.versions[key] = version  # an earlier try succeeded, but its answer was lost


def group_at(bucket: Sight, stem: str) -> frozenset[str]:
    """Return the suffixes of the files of the group whose keys begin with `stem`."""
    return frozenset(entry.key.removeprefix(stem) for entry in bucket.list(stem)).intersection(GROUP)


def _look(store: DocumentStore) -> Sight:
    generation_id = store.documents.gen.generation_id
    files = [store.file_key(generation_id, "")] if generation_id else []
    return look(store.bucket, store.paths.documents, [store.public.aside_prefix, *files])


def _delete_discarded(store: DocumentStore) -> None:
    """Delete the files that a rollback gave up. Their copies are in its dead letter."""
    doc, generation_id = store.documents.midjourney, store.documents.gen.generation_id
    for suffix in sorted(doc.discard) if generation_id else ():
        store.lease.check()
        store.bucket.delete(store.file_key(str(generation_id), suffix))
    store.save_midjourney(doc.without("discard"))


def _unreadable(bucket: Bucket | None, key: str, data: bytes, invalid: InvalidDocument) -> StateError:
    """Return the error that names the document and the field. If `bucket` is given, keep a copy of the document
    there."""
    message = (
        f"{key}: {invalid}. It is left as it is; fix it by hand, or put its last version back. Do not remove it, nor "
        "put an older one back: what was paid for since could be paid for again"
    )
    if bucket is None:
        return StateError(message)
    from hashlib import sha256

    copy = f"{UNREADABLE}{key.rpartition('/')[2]}.{sha256(data).hexdigest()[:16]}"
    try:
        bucket.write(copy, data, ABSENT)
    except Conflict:
        pass  # this content was kept before
    except StorageError as error:
        return StateError(f"{message} (no copy could be kept: {error})")
    return StateError(f"{message}. A copy is kept in {copy}")


def _version_of(bucket: Bucket, key: str, data: bytes) -> str | None:
    """Return the version of the object at `key` if its content is `data`, else None."""
    try:
        found, version = bucket.read(key)
    except NotFound:
        return None
    return version if found == data else None
