"""Every possible shape of a generation's documents: what is in flight, at hand, pending, reported as wrong."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from hypothesis import strategies as st

from retake.story.documents import (
    Documents,
    GenDocument,
    MidjourneyDocument,
    PublicDocument,
    Status,
    Step,
)

NOON = "2026-01-01T12:00:00Z"

STATUSES = [None, *(status.value for status in Status)]
TASKS: list[dict[str, Any] | None] = [
    None,
    {"task_id": "t", "task_type": "imagine", "requested_at_utc": NOON},
    {"task_id": "t", "task_type": "upscale", "requested_at_utc": NOON},
    {"task_id": "t"},
]
RUNWAY_TASKS: list[dict[str, Any] | None] = [None, {"task_id": "r", "requested_at_utc": NOON}, {"task_id": "r"}]
RESULTS: list[dict[str, Any]] = [
    {},
    {"task_id": "i", "task_type": "imagine", "task_result": {"image_url": "u", "temporary_image_urls": []}},
    {"task_id": "u", "task_type": "upscale", "task_result": {"image_url": "u"}},
]
PENDING: list[dict[str, Any] | None] = [
    None,
    *({"step": step, "attempt": 1, "requested_at_utc": NOON} for step in ("content", "imagine", "upscale", "runway")),
    {"step": "imagine", "outcome": "unknown"},
]
FILES = [frozenset(found.split()) for found in ("", "json", "json png", "json png mp4", "png mp4")]


def documents_of_every_shape() -> Iterator[dict[str, Any]]:
    """Yield config_midjourney.json with all combinations of its keys, possible and impossible."""
    for status, task, runway, results, pending, generation in product(
        STATUSES, TASKS, RUNWAY_TASKS, RESULTS, PENDING, (False, True)
    ):
        yield {
            "midjourney_task": task,
            "runway_task": runway,
            "midjourney_results": results,
            "pending_call": pending,
            "generation": generation,
            "status": status,
        }


SHAPES = list(documents_of_every_shape())

COUNTERS = st.dictionaries(st.sampled_from([step.value for step in Step]), st.integers(0, 4), max_size=4)
UNKNOWN_KEYS = st.dictionaries(
    st.text(min_size=1, max_size=5).map(lambda name: f"other {name}"),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=4,
    ),
    max_size=3,
)


def shaped(files: frozenset[str] = frozenset(), generation_id: str | None = "a", **keys: Any) -> Documents:
    """Return documents with these keys in config_midjourney.json."""
    gen = GenDocument({"generation_id": generation_id})
    return Documents(PublicDocument({}), gen, MidjourneyDocument(keys), files)
