"""Carries out, under the lease, what operator_rules.py plans.

Documents are written first, then the ledger. Writes are ordered so that after a crash in between either the next tick
finishes the change, or it has not begun. The next tick also brings the ledger in line.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from retake.bucket import Bucket, Lease
from retake.clock import Clock, stamp
from retake.operations.events import OPERATOR, REMARK
from retake.operations.letters import letter_of, lost_with, no_letter
from retake.operations.port import Refusal, Verb
from retake.paid.spending import Spending
from retake.retrying.dead_letters import DeadLetter, DeadLetters
from retake.story.decision import Act, Action, decide
from retake.story.documents import Documents, MidjourneyDocument, Status
from retake.story.generation import bill_nobodys, dead_letter, note_drop, remove_copies, requeuable_or_why, requeue
from retake.story.operator_rules import GenerationPlan, plan
from retake.story.rollback import keep_rolled_back, plan_rollback
from retake.story.run_mirror import RunMirror, task_of
from retake.story.settings import LEASE, Settings
from retake.story.spending import known
from retake.story.store import DocumentStore, ProcessingFlag
from retake.ticking.tick import Ledgers

_ENDING = Status.TASK_FAILED_MAX_RETRIES


class OperatorActions:
    """Changes the pipeline that is called `pipeline` on the ledger.

    `owner` takes the lease, and `actor` is recorded as the one who acts. `spending`, if given, updates the day's book
    after a crash. All methods that change something raise LeaseHeld while another process holds the lease, Refusal if
    the state no longer allows the change, StateError and StorageError.
    """

    def __init__(
        self,
        settings: Settings,
        bucket: Bucket,
        clock: Clock,
        *,
        owner: str,
        pipeline: str = "story",
        ledgers: Ledgers | None = None,
        actor: str = OPERATOR,
        spending: Spending | None = None,
    ) -> None:
        self._settings, self._bucket, self._clock = settings, bucket, clock
        self._owner, self._pipeline, self._actor = owner, pipeline, actor
        self._spending = spending
        self._ledgers = ledgers or Ledgers(settings.storage.ledger, clock)

    def look(self) -> Documents:
        """Return the documents, without taking the lease."""
        return DocumentStore(self._bucket, self._settings.paths, None, self._clock).read()

    def planned(self, verb: Verb, generation_id: str, step: str | None = None) -> GenerationPlan:
        """Return what `verb` would do to the generation now. `step` is for a rollback. Raises Refusal."""
        return self._plan(verb, generation_id, self.look(), step)

    def carry_out(
        self, verb: Verb, generation_id: str, agreed: str, step: str | None = None
    ) -> tuple[GenerationPlan, Documents]:
        """Carry out `verb`. Return what was done, and the documents after it. `agreed` is the plan's `lost` that the
        operator has agreed to."""
        with self._locked() as (store, lease):
            chosen = self._plan(verb, generation_id, store.documents, step)
            if chosen.lost and chosen.lost != agreed:
                raise Refusal(f"{generation_id} has moved on meanwhile: now it would lose {chosen.lost}. Ask again")
            if chosen.doc == store.documents.midjourney:
                return chosen, store.documents
            mirror = self._mirror(lease)
            self._record_before(mirror, store.documents)
            with _flagged(store):
                if chosen.letter:
                    keep_rolled_back(store, chosen, self._clock.now())
                store.save_midjourney(chosen.doc)
                if chosen.letter:
                    store.read()  # deletes the files that are given up
                self._record_after(mirror, store.documents, verb.value, chosen.done)
                if chosen.ends:  # the end is on record before the documents let go of the generation
                    dead_letter(store, self._clock.now())
            return chosen, store.read()

    def requeuable(self, generation_id: str, store: DocumentStore) -> MidjourneyDocument:
        """Return the document of a generation, or raise Refusal if it cannot be requeued in the state of `store`."""
        kept, why = requeuable_or_why(store, generation_id)
        if kept is None:
            raise Refusal(why)
        return kept

    def requeue(self, generation_id: str) -> Documents:
        """Requeue a failed or cancelled generation at the step where it ended. Return the documents after it."""
        with self._locked() as (store, lease):
            self.requeuable(generation_id, store)
            with _flagged(store):
                requeue(store, generation_id)
                documents = store.read()
                self._record_after(self._mirror(lease), documents, "requeue", "it is requeued from its dead letter")
            return documents

    def drop(self, generation_id: str, agreed: str | None = None) -> DeadLetter:
        """Remove a dead letter, or its remains, for good, and return what it was. `agreed` is the loss that the
        operator has agreed to; None means any."""
        with self._locked() as (store, lease):
            letter = letter_of(self._bucket, self._clock, generation_id)
            if letter is None:
                raise Refusal(no_letter(generation_id))
            if agreed is not None and (lost := lost_with(letter)) not in ("", agreed):
                raise Refusal(
                    f"the dead letter {generation_id} is a different one by now: it would lose {lost}. Ask again"
                )
            documents = store.documents
            if documents.gen.generation_id == generation_id and documents.midjourney.status is _ENDING:
                raise Refusal(
                    f"{generation_id} is just being moved there: its files may be in the letter alone. The next tick "
                    "finishes that; drop it then"
                )
            remove_copies(store, letter)
            bill_nobodys(store, generation_id, self._clock.now())
            note_drop(store, generation_id)
            DeadLetters(store.bucket, self._clock, lease=lease).drop(generation_id)
            self._record_drop(lease, generation_id)
            return letter

    def lower_flag(self) -> bool:
        """Lower a `processing_lock` that a crash left up, and return whether it was up.

        The next tick will not learn of the crash then, so it is recorded here, and the day's book is updated.
        """
        with self._locked() as (store, lease):
            up = store.documents.public.processing_lock
            if up:
                self._record_before(self._mirror(lease), store.documents, interrupted=True)
                if self._spending:
                    self._spending.heal(known(store.documents.midjourney))
                store.public.publish(lambda doc: doc.updated(processing_lock=False))
            return up

    def _mirror(self, lease: Lease) -> RunMirror:
        ledger = self._ledgers.of(self._bucket, lease)
        return RunMirror(ledger, self._pipeline, self._clock, actor=self._actor, worker=self._owner)

    def _record_before(self, mirror: RunMirror, documents: Documents, *, interrupted: bool = False) -> None:
        """Record on the ledger what the documents say before they are changed, such as the error that is about to be
        cleared. A run that a tick would end is not ended, since the operator decides now what happens to it."""
        action = self._decided(documents)
        if action.act in (Act.FAIL, Act.SUBSTITUTE):
            action = Action(Act.WAIT, action.step, action.why, until=self._clock.now())
        elif action.act is Act.FINISH:
            action = Action(Act.WAIT, action.step, action.why)
        mirror.observe(documents, action, interrupted=interrupted)
        mirror.flush()

    def _record_after(self, mirror: RunMirror, documents: Documents, code: str, text: str) -> None:
        mirror.remark(code, text)
        mirror.hand_over(documents, self._decided(documents))
        mirror.flush()

    def _decided(self, documents: Documents) -> Action:
        return decide(documents, self._settings.workflow, self._clock.now())

    def _record_drop(self, lease: Lease, generation_id: str) -> None:
        """Record on the last run of the generation, if there is one, that its dead letter is dropped."""
        ledger = self._ledgers.of(self._bucket, lease)
        runs = ledger.of_task(task_of(self._pipeline, generation_id))
        if runs:
            text = "its dead letter is dropped: it cannot be requeued"
            note = {"code": "drop", "text": text, "at_utc": stamp(self._clock.now())}
            ledger.note(runs[-1], REMARK, note, actor=self._actor)

    def _plan(self, verb: Verb, generation_id: str, documents: Documents, step: str | None) -> GenerationPlan:
        present = documents.gen.generation_id
        if present != generation_id:
            raise Refusal(f"generation {generation_id} is not under way: {present or 'none'} is")
        if verb is Verb.ROLLBACK:
            return plan_rollback(step, documents, self._settings.workflow, self._clock.now())
        return plan(verb, documents, self._settings.workflow, self._clock.now(), self._actor)

    @contextmanager
    def _locked(self) -> Iterator[tuple[DocumentStore, Lease]]:
        """Take the lease, and yield the documents as read under it."""
        lease = self._bucket.lease(LEASE, self._owner)
        try:
            store = DocumentStore(self._bucket, self._settings.paths, lease, self._clock)
            store.read()
            yield store, lease
        finally:
            lease.release()


@contextmanager
def _flagged(store: DocumentStore) -> Iterator[None]:
    """Raise `processing_lock` during the block. If a crash had left it up, it stays up, since the next tick learns of
    the crash from it."""
    if store.documents.public.processing_lock:
        yield
        return
    flag = ProcessingFlag(store)
    flag.raise_()
    try:
        yield
    finally:
        flag.lower()
