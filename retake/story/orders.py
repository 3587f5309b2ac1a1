"""The orders on the command line of a tick (--resume, --resolve, --retake), carried out before its first action."""

from collections.abc import Iterator
from datetime import datetime

from retake.errors import StateError
from retake.settings.shared import Workflow
from retake.story import transitions
from retake.story.decision import held_until, mock_follows, undecided
from retake.story.documents import Documents, MidjourneyDocument
from retake.story.generation import after_requeue, requeuable, requeue
from retake.story.operator_rules import not_looked_up
from retake.story.store import DocumentStore, ProcessingFlag
from retake.ticking.tick import Orders


def check(orders: Orders, store: DocumentStore, limits: Workflow) -> None:
    """Raise StateError, before anything is changed, for orders that the state does not allow."""
    if orders.resolve:
        call = store.documents.midjourney.pending if store.documents.gen.generation_id else None
        if orders.retake or call is None:  # a requeued generation has no pending call
            raise StateError("there is no paid call of unknown outcome to resolve. Nothing was changed")
        if not undecided(call, limits):
            raise StateError(f"{not_looked_up(store.documents)}. Nothing was changed")
    if orders.retake:
        requeuable(store, orders.retake)


def documents_after(orders: Orders, store: DocumentStore, limits: Workflow, now: datetime) -> Documents:
    """Return the documents as the orders, which must have been checked, would leave them."""
    public, gen, doc, files = store.documents
    if orders.resume:
        gen, doc = gen.without("failed_in_a_row"), resumed(doc, limits, now)
    if orders.retake:
        _, gen, doc, files = after_requeue(store, orders.retake, requeuable(store, orders.retake))
    documents = Documents(public, gen, doc, files)
    if orders.resolve:
        return documents._replace(midjourney=resolved(documents, limits, retry=orders.resolve == "retry"))
    return documents


def carry_out(
    orders: Orders, store: DocumentStore, flag: ProcessingFlag, limits: Workflow, now: datetime
) -> Iterator[tuple[str, str]]:
    """Carry out the orders. Yield, for the ledger, the code and text of each once it is done."""
    if orders.resume:
        flag.raise_()
        store.save_gen(store.documents.gen.without("failed_in_a_row"))
        store.save_midjourney(resumed(store.documents.midjourney, limits, now))
        yield "resume", "resumed by the operator"
    if orders.retake:
        flag.raise_()
        requeue(store, orders.retake)
        store.read()
        yield "retake", f"generation {orders.retake} is requeued from its dead letter"
    if orders.resolve:
        flag.raise_()
        call = store.documents.midjourney.pending
        store.save_midjourney(resolved(store.documents, limits, retry=orders.resolve == "retry"))
        yield "resolve", f"the operator says: {orders.resolve} the {call and call.step} call"


def resumed(doc: MidjourneyDocument, limits: Workflow, now: datetime) -> MidjourneyDocument:
    """Return the document after --resume."""
    if held_until(doc, limits):
        return transitions.hold_lifted(doc)
    return transitions.wait_lifted(doc) if doc.error.retry_at and now < doc.error.retry_at else doc


def resolved(documents: Documents, limits: Workflow, *, retry: bool) -> MidjourneyDocument:
    """Return the document, which has a pending call, after --resolve."""
    doc = documents.midjourney
    if retry:
        return transitions.operator_retries(doc)
    return transitions.operator_skips(doc, mock=mock_follows(documents, limits))
