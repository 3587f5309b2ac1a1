"""What the operator orders on the command line (--resume, --resolve, --retake), carried out before a tick goes on."""

from collections.abc import Iterator
from datetime import datetime

from retake.errors import StateError
from retake.story import transitions
from retake.story.decision import held_until
from retake.story.documents import Step
from retake.story.generation import requeue
from retake.story.public_list import ProcessingFlag
from retake.story.settings import Workflow
from retake.story.store import DocumentStore
from retake.ticking.tick import Orders


def check(orders: Orders, store: DocumentStore) -> None:
    """Raises StateError for orders that make no sense as things stand, before anything is changed."""
    if orders.resolve and store.documents.midjourney.pending is None:
        raise StateError("there is no paid call of unknown outcome to resolve. Nothing was changed")


def carry_out(
    orders: Orders, store: DocumentStore, flag: ProcessingFlag, limits: Workflow, now: datetime
) -> Iterator[tuple[str, str]]:
    """Carry the orders out; yield the code and the words of each that is done, for the ledger."""
    if orders.resume:
        flag.raise_()
        _resume(store, limits, now)
        yield "resume", "resumed by the operator"
    if orders.retake:
        flag.raise_()
        requeue(store, orders.retake)
        store.read()
        yield "retake", f"generation {orders.retake} is requeued from its dead letter"
    if orders.resolve:
        flag.raise_()
        step = _resolve(store, limits, retry=orders.resolve == "retry")
        yield "resolve", f"the operator says: {orders.resolve} the {step} call"


def _resume(store: DocumentStore, limits: Workflow, now: datetime) -> None:
    doc = store.documents.midjourney
    store.save_gen(store.documents.gen.without("failed_in_a_row"))
    if held_until(doc, limits):
        store.save_midjourney(transitions.hold_lifted(doc))
    elif doc.error.retry_at and now < doc.error.retry_at:
        store.save_midjourney(transitions.wait_lifted(doc))


def _resolve(store: DocumentStore, limits: Workflow, *, retry: bool) -> Step:
    doc = store.documents.midjourney
    assert doc.pending is not None
    mock = limits.on_exhausted == "mock" and "json" in store.documents.files
    resolved = transitions.operator_retries(doc) if retry else transitions.operator_skips(doc, mock=mock)
    store.save_midjourney(resolved)
    return doc.pending.step
