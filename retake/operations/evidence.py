"""What else is on record of a generation: its files, its paid calls, what failed last."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from retake.bucket import Bucket, Entry
from retake.errors import StateError
from retake.story.documents import MidjourneyDocument
from retake.story.generation import DEAD_LETTERS, SPEND
from retake.story.settings import FilePaths
from retake.story.store import DocumentStore

UNSURE = ("unknown", "wasted")
"""Outcomes of a paid call that may have been paid for in vain."""


class Evidence(NamedTuple):
    """What lies in the bucket of one generation."""

    files: list[Entry]  # with their keys in its part of the bucket
    calls: list[dict[str, Any]]  # paid calls, in their order
    doc: MidjourneyDocument | None  # if it is under way


def evidence(store: DocumentStore, generation_id: str) -> Evidence:
    """Raises StorageError. A document that cannot be made sense of is passed over: what there is is told."""
    doc = _present(store, generation_id)
    calls = doc.paid_calls if doc else _calls(store, f"{SPEND}{generation_id}.json")
    return Evidence(list(_files(store.bucket, store.paths, generation_id)), calls, doc)


def total_usd(calls: Iterable[Mapping[str, Any]]) -> float:
    """What the calls cost, in US dollars."""
    return round(sum(price_of(call) for call in calls), 6)


def price_of(call: Mapping[str, Any]) -> float:
    """What a call of the spend record cost, in US dollars."""
    price = call.get("price_usd")
    return float(price) if isinstance(price, (int, float)) and not isinstance(price, bool) else 0.0


def unsure(calls: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The calls that were paid for in vain, or may have been: a duplicate, an answer of no use."""
    return [call for call in calls if call.get("possible_duplicate") or call.get("outcome") in UNSURE]


def _present(store: DocumentStore, generation_id: str) -> MidjourneyDocument | None:
    try:
        documents = store.read()
    except StateError:
        return None
    return documents.midjourney if documents.gen.generation_id == generation_id else None


def _calls(store: DocumentStore, key: str) -> list[dict[str, Any]]:
    try:
        value = store.read_object(key)
    except StateError:
        return []
    calls = (value or {}).get("paid_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _files(bucket: Bucket, paths: FilePaths, generation_id: str) -> Iterable[Entry]:
    for folder in (paths.folder_666, paths.folder_555, paths.folder_444, paths.archive_folder):
        yield from bucket.list(f"{folder}{generation_id}.")
    yield from bucket.list(f"{DEAD_LETTERS}{generation_id}/")
    yield from (entry for entry in bucket.list(f"{SPEND}{generation_id}.json"))
