"""config_public.json, which the publisher writes too, at any time and with no lock of its own."""

from __future__ import annotations

from collections.abc import Callable
from logging import getLogger
from typing import TYPE_CHECKING

from retake.bucket import Conflict
from retake.bucket.shared_writes import shared_writes
from retake.document_schema import InvalidDocument
from retake.errors import RetakeError, StateError, StorageError
from retake.story.documents import PublicDocument, parse_public

if TYPE_CHECKING:
    from retake.story.store import DocumentStore

_REREADS = 4  # a publisher that writes in place shows a torn document for a moment
_REREAD_PAUSE_S = 0.05
_PUBLISH_TRIES = 200  # one is lost only if the publisher wrote in that very instant

_log = getLogger(__name__)


class PublicList:
    """The document, and the list of published ids in it."""

    def __init__(self, store: DocumentStore) -> None:
        self._store = store
        self._aside_prefix = f"{store.paths.config_public}.displaced-"

    def read(self) -> PublicDocument:
        """Return the document. One that is torn is read again. Raises StateError."""
        key = self._store.paths.config_public
        for _ in range(_REREADS):
            try:
                data = self._store.read_bytes(key)
                return parse_public(b"{}" if data is None else data)  # an empty file is torn too
            except InvalidDocument:
                self._store.clock.sleep(_REREAD_PAUSE_S)
        return self._store.parsed(key, parse_public)

    def publish(self, change: Callable[[PublicDocument], PublicDocument]) -> None:
        """Change config_public.json, losing nothing that the publisher writes at the same time with no lock of its own.
        `change` may be called several times. Raises LeaseLost, StorageError.

        A write that met another version than it was based on has put that back; the document is read again and the
        change made again. A publisher who read it in the instant between can still write back a list that lacks what
        it had appended before: so ids that a disturbed write has seen are remembered in config_gen.json, and come
        back into the list until they are archived.
        """
        seen = dict.fromkeys(self._store.documents.gen.remembered)
        disturbed = False
        for _ in range(_PUBLISH_TRIES):
            self._store.lease.check()
            asides = self._asides()
            public = self.read()
            for found in (public, *self._displaced(asides)):
                seen.update(dict.fromkeys(found.published))
            lost = [name for name in seen if name not in public.published]
            wanted = change(public.updated(generation_id=[*public.published, *lost]) if lost else public)
            disturbed = disturbed or bool(asides)
            if self._exchanged(public, wanted, asides):
                self._remember(list(seen) if disturbed else self._store.documents.gen.remembered)
                for aside in asides:  # only now: until here they are what a crash would have left to learn from
                    self._store.bucket.delete(aside)
                return
            disturbed = True
        raise StorageError(f"{self._store.paths.config_public}: another program never stops writing it")

    @property
    def ids(self) -> list[str]:
        """The ids to be archived: those in the list, and those that a disturbed write remembered."""
        return list(dict.fromkeys([*self._store.documents.public.published, *self._store.documents.gen.remembered]))

    @property
    def whole(self) -> bool:
        """No append of the publisher's is waiting to be put back into the list."""
        return len(self.ids) == len(set(self._store.documents.public.published)) and not self._asides()

    def _exchanged(self, public: PublicDocument, wanted: PublicDocument, asides: list[str]) -> bool:
        key = self._store.paths.config_public
        if wanted != public:
            taken = {aside.rpartition("-")[2] for aside in asides}
            free = next(str(n) for n in range(len(asides) + 1) if str(n) not in taken)
            try:
                self._store.versions[key] = shared_writes(self._store.bucket).replace(
                    key, wanted.encode(), self._store.versions[key], f"{self._aside_prefix}{free}"
                )
            except Conflict:
                return False
        self._store.documents = self._store.documents._replace(public=wanted)
        return True

    def _asides(self) -> list[str]:
        return [entry.key for entry in self._store.bucket.list(self._aside_prefix)]

    def _displaced(self, asides: list[str]) -> list[PublicDocument]:
        """Return the documents that earlier writes displaced; of one that is invalid a copy is kept."""
        found = []
        for aside in asides:
            try:
                found.append(self._store.parsed(aside, parse_public))
            except StateError as error:
                _log.warning("%s", error)
        return found

    def _remember(self, names: list[str]) -> None:
        kept = [name for name in names if name in self._store.documents.public.published]
        gen = self._store.documents.gen
        self._store.save_gen(gen.updated(remembered=kept) if kept else gen.without("remembered"))


class ProcessingFlag:
    """`processing_lock` in config_public.json during one tick, for people and other programs to see.

    What excludes others is the lease. `was_up`: a tick that did not come to its end left it.
    """

    def __init__(self, store: DocumentStore, *, was_up: bool = False) -> None:
        self.was_up = was_up
        self._public = store.public
        self._raised = False

    def raise_(self) -> None:
        """Raise it, unless it is."""
        if not self._raised:
            self._raised = True
            self._public.publish(lambda doc: doc.updated(processing_lock=True))

    def lower(self) -> None:
        """Lower it if it may be up, and bring back what the publisher's list has lost. Never raises a RetakeError."""
        try:
            if self._raised or self.was_up or not self._public.whole:
                self._public.publish(lambda doc: doc.updated(processing_lock=False))
        except RetakeError as error:
            _log.error("processing_lock stays true until the next tick: %s", error)
