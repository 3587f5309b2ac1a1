"""An operator's hand in a pipeline: what operator.py plans, carried out under the lease.

Documents first, then the ledger. Each order of writes is one whose crash in between the next tick finishes, or that is
as if it had not begun; a ledger that was not brought in line any more is at the next tick.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import getLogger

from retake.bucket import Bucket, Lease
from retake.clock import Clock
from retake.errors import RetakeError
from retake.settings import Settings
from retake.story.documents import Documents, safe_id
from retake.story.generation import DEAD_LETTERS, bury, take_up
from retake.story.operator import Plan, Refusal, Verb, plan
from retake.story.shell import LEASE
from retake.story.store import DocumentStore

_log = getLogger(__name__)

Align = Callable[[DocumentStore, Lease, str], None]
"""Brings the ledger in line with the documents under the lease; the text is what the operator did, for the record."""


class Intervention:
    """What an operator does to one pipeline. `owner` says who takes the lease, for people.

    Everything that changes something raises LeaseHeld while a tick or somebody else is at work, Refusal where it makes
    no sense as things stand by then, StateError, StorageError.
    """

    def __init__(self, settings: Settings, bucket: Bucket, clock: Clock, owner: str, align: Align) -> None:
        self._settings, self._bucket, self._clock, self._owner, self._align = settings, bucket, clock, owner, align

    def look(self) -> Documents:
        """The documents, without a lease: nothing is changed."""
        return DocumentStore(self._bucket, self._settings.paths, None, self._clock).read()

    def planned(self, verb: Verb, generation_id: str) -> Plan:
        """What `verb` would do to the generation, as things stand. Raises Refusal."""
        return self._plan(verb, generation_id, self.look())

    def carry_out(self, verb: Verb, generation_id: str, agreed: str) -> tuple[Plan, Documents]:
        """Do it; what was done, and the documents after it. `agreed` is what may get lost (`Plan.lost`)."""
        with self._alone() as (store, lease):
            chosen = self._plan(verb, generation_id, store.documents)
            if chosen.lost and chosen.lost != agreed:
                raise Refusal(f"{generation_id} has moved on meanwhile: it would now lose {chosen.lost}. Ask again")
            with _flagged(store):
                store.save_midjourney(chosen.doc)
                if chosen.ends:
                    bury(store, self._clock.now())
            self._align(store, lease, chosen.done)
            return chosen, store.read()

    def check_requeue(self, generation_id: str, documents: Documents) -> None:
        """Raises Refusal if the generation cannot be taken up again now."""
        present = documents.gen.generation_id
        if present == generation_id:
            raise Refusal(f"{generation_id} is under way: it need not be taken up again")
        if present:
            raise Refusal(
                f"generation {present} is under way, one at a time; requeue {generation_id} when it has ended, or "
                f"cancel {present} first"
            )
        if generation_id.startswith("before-"):
            raise Refusal(
                f"{generation_id} is paid work that belonged to no generation: there is nothing to go on with. Look at "
                f"it (dead-letters show {generation_id}), save what you need, and drop it"
            )
        if not self._grave(generation_id):
            raise Refusal(
                f"there is no dead letter {generation_id}: it was requeued or dropped, or never was there; see "
                "dead-letters list"
            )

    def requeue(self, generation_id: str) -> Documents:
        """Take a failed or cancelled generation up again at the step where it ended; the documents after it."""
        with self._alone() as (store, lease):
            self.check_requeue(generation_id, store.documents)
            with _flagged(store):
                take_up(store, generation_id)
            store.read()
            self._align(store, lease, f"{generation_id} is taken up again from its dead letter")
            return store.documents

    def drop(self, generation_id: str) -> list[str]:
        """Remove a dead letter for good; the keys that are gone."""
        with self._alone() as (store, lease):
            keys = self._grave(generation_id)
            if not keys:
                raise Refusal(f"there is no dead letter {generation_id}; see dead-letters list")
            for key in keys:
                lease.check()
                store.bucket.delete(key)
            return keys

    def lower_flag(self) -> bool:
        """Lower a `processing_lock` that a crash left; whether it was up."""
        with self._alone() as (store, _):
            up = store.documents.public.processing_lock
            if up:
                store.publish(lambda doc: doc.updated(processing_lock=False))
            return up

    def _grave(self, generation_id: str) -> list[str]:
        if not safe_id(generation_id):
            return []
        return [entry.key for entry in self._bucket.list(f"{DEAD_LETTERS}{generation_id}/")]

    def _plan(self, verb: Verb, generation_id: str, documents: Documents) -> Plan:
        present = documents.gen.generation_id
        if present != generation_id:
            raise Refusal(f"generation {generation_id} is not under way: {present or 'none'} is")
        return plan(verb, documents, self._settings.workflow, self._clock.now())

    @contextmanager
    def _alone(self) -> Iterator[tuple[DocumentStore, Lease]]:
        """The documents, read under the lease."""
        lease = self._bucket.lease(LEASE, self._owner)
        try:
            store = DocumentStore(self._bucket, self._settings.paths, lease, self._clock)
            store.read()
            yield store, lease
        finally:
            lease.release()


@contextmanager
def _flagged(store: DocumentStore) -> Iterator[None]:
    """`processing_lock` is up meanwhile, for people and other programs. One that a crash left stays up: the next tick
    learns of the crash by it."""
    if store.documents.public.processing_lock:
        yield
        return
    store.publish(lambda doc: doc.updated(processing_lock=True))
    try:
        yield
    finally:
        try:
            store.publish(lambda doc: doc.updated(processing_lock=False))
        except RetakeError as error:
            _log.error("processing_lock stays true until the next tick: %s", error)
