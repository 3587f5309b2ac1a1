"""Every state of a pipeline, with the name an operator would give it: the starting points of operator tests.

world = STATES["upscale failed"]()
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from story_ticks import FOUR, ID, ORDERED, PICTURES, UPSCALED, Scripted, at

from retake.bucket import Bucket
from retake.bucket.failing import Crash, FailingBucket, Fault

PAID = {"step": "content", "attempt": 1, "price_usd": 0.01, "outcome": "done"}
IMAGINED = {"step": "imagine", "attempt": 1, "price_usd": 0.045, "outcome": "accepted", "task_id": "imagine-1"}
CALLS = [PAID, IMAGINED]
PICTURE_TASK = {"task_id": "imagine-1", "task_type": "imagine", "requested_at_utc": ORDERED}
UPSCALE_TASK = {"task_id": "upscale-1", "task_type": "upscale", "requested_at_utc": ORDERED}
VIDEO_TASK = {"task_id": "create-1", "requested_at_utc": ORDERED}


def error(error_class: str = "A", code: str = "ERR_TEMPORARY_UNAVAILABLE", message: str = "HTTP 500") -> dict[str, Any]:
    return {"error_class": error_class, "error_code": code, "message": message, "timestamp": ORDERED}


def critical() -> dict[str, Any]:
    return error("C", "ERR_CRITICAL_UNAUTHORIZED", "HTTP 401: the key is refused")


def waiting() -> dict[str, Any]:
    """Return the keys of an error that is retried in an hour, and not before."""
    return {**error(), "recovery_actions": [{"action": "RETRY", "delay_seconds": 3600}]}


def pending(step: str, outcome: str | None = None) -> dict[str, Any]:
    call = {"step": step, "attempt": 1, "requested_at_utc": ORDERED, "price_usd": 0.5}
    return {**call, "outcome": outcome} if outcome else call


def state(files: str = "json", workflow: dict[str, Any] | None = None, **doc: Any) -> Callable[[], Scripted]:
    return lambda: at(files, workflow=workflow, **doc)


def failed(status: str, step: str, used: int = 0, **doc: Any) -> dict[str, Any]:
    retries = {"retries": {step: used}, "retry_count": used} if used else {}
    return {"status": status, "last_error": error(), "paid_calls": CALLS, **retries, **doc}


def held(step: str, **doc: Any) -> dict[str, Any]:
    return {"pending_call": pending(step, "unknown"), "last_error": error(), "paid_calls": CALLS, **doc}


def nothing_under_way() -> Scripted:
    world = at("", gen={"generation_id": None})
    world.put("666/20250101-0000.json", {})
    return world


def dead_lettered() -> Scripted:
    world = STATES["failed for good"]()
    world.tick()
    return world


HOLD = {"on_unknown_outcome": "hold"}

STATES: dict[str, Callable[[], Scripted]] = {
    "no generation": nothing_under_way,
    "text next": state(""),
    "text unasked": state("", pending_call=pending("content")),
    "text held": state("", HOLD, **held("content")),
    "text failed": state("", **failed("content_failed", "content")),
    "text exhausted": state("", **failed("content_failed", "content", 3)),
    "text refused for the key": state("", last_error=critical()),
    "pictures next": state(generation=True, paid_calls=[PAID]),
    "pictures unasked": state(generation=True, pending_call=pending("imagine"), paid_calls=[PAID]),
    "pictures held": state("json", HOLD, **held("imagine", generation=True)),
    "pictures failed": state(**failed("imagine_trigger_failed", "imagine")),
    "pictures failed and wait": state(**failed("imagine_trigger_failed", "imagine", last_error=waiting())),
    "pictures failed twice": state(**failed("imagine_trigger_failed", "imagine", 2)),
    "pictures exhausted": state(**failed("imagine_trigger_failed", "imagine", 3)),
    "pictures exhausted, mock wanted": state(
        "json", {"on_exhausted": "mock"}, **failed("imagine_trigger_failed", "imagine", 3)
    ),
    "pictures refused for the key": state(generation=True, last_error=critical(), paid_calls=[PAID]),
    "pictures unasked, and refused for the key": state(
        generation=True, last_error=critical(), pending_call=pending("imagine"), paid_calls=[PAID]
    ),
    "pictures exhausted, key refused": state(**failed("imagine_trigger_failed", "imagine", 3, last_error=critical())),
    "pictures awaited": state(midjourney_task=PICTURE_TASK, status="waiting_for_imagine", paid_calls=CALLS),
    "poll of the pictures failed": state(midjourney_task=PICTURE_TASK, **failed("mj_fetch_failed", "fetch", 1)),
    "poll of the pictures refused for the key": state(
        midjourney_task=PICTURE_TASK, status="waiting_for_imagine", last_error=critical(), paid_calls=CALLS
    ),
    "pictures there": state(midjourney_results=PICTURES, paid_calls=CALLS),
    "upscale held": state("json", HOLD, **held("upscale", midjourney_results=PICTURES)),
    "upscale failed": state(midjourney_results=PICTURES, **failed("upscale_trigger_failed", "upscale")),
    "upscale exhausted": state(midjourney_results=PICTURES, **failed("upscale_trigger_failed", "upscale", 3)),
    "upscale awaited": state(
        midjourney_results=PICTURES, midjourney_task=UPSCALE_TASK, status="waiting_for_upscale", paid_calls=CALLS
    ),
    "upscale there": state(midjourney_results=UPSCALED, paid_calls=CALLS),
    "video held": state("json png", HOLD, **held("runway", midjourney_results=UPSCALED)),
    "video failed": state("json png", midjourney_results=UPSCALED, **failed("runway_trigger_failed", "runway")),
    "video failed without a text": state(
        "png", midjourney_results=UPSCALED, **failed("runway_trigger_failed", "runway")
    ),
    "video awaited": state(
        "json png",
        midjourney_results=UPSCALED,
        runway_task=VIDEO_TASK,
        status="waiting_for_runway",
        paid_calls=CALLS,
    ),
    "poll of the video failed": state(
        "json png", midjourney_results=UPSCALED, runway_task=VIDEO_TASK, **failed("runway_poll_failed", "runway_poll")
    ),
    "video takes too long": state(
        "json png", midjourney_results=UPSCALED, runway_task=VIDEO_TASK, **failed("runway_poll_timeout", "runway_poll")
    ),
    "mock next": state(status="timed_out_mock_needed", paid_calls=CALLS),
    "mock failed": state(status="timed_out_mock_needed", retries={"mock": 2}, paid_calls=CALLS),
    "all files there": state("json png mp4", paid_calls=CALLS),
    "finished, but for its id": state("json png mp4"),
    "failed for good": state(
        midjourney_results=PICTURES,
        failed_step="upscale",
        **failed("task_failed_max_retries", "upscale", 3),
    ),
    "cancelled, not dead_lettered": state(
        status="task_failed_max_retries",
        failed_step="upscale",
        cancelled={"by": "operator", "at_utc": ORDERED},
        last_error=critical(),
        midjourney_results=PICTURES,
        paid_calls=CALLS,
    ),
    "dead_lettered": dead_lettered,
}
"""By name; each call creates the world anew. All but the first concern generation `ID`, which in the last is over."""

__all__ = ["FOUR", "ID", "STATES"]

WAITS = r"continues by itself\. Wait for it, or cancel"
ASKS = r"not known yet; the next tick finds out\. Wait for it, or cancel"
MOCKS = r"the next tick makes the mock\. Wait for it, or cancel"
DEAD_LETTERS_IT = r"the next tick moves it to the dead letters; after that, dead-letters requeue"
FINISHED = r"is finished and what it cost is on record; the next tick lets go of it"
NO_TEXT = r"the text cannot be done without"
USED = r"no attempt is left .* retries used\)"

ALLOWED = ""

TABLE: dict[str, tuple[str, str, str]] = {
    # state: the results of retry, skip and cancel; a refusal is given as its message
    "text next": (WAITS, WAITS, ALLOWED),
    "text unasked": (ASKS, ASKS, ALLOWED),
    "text held": (ALLOWED, ALLOWED, ALLOWED),
    "text failed": (ALLOWED, f"{NO_TEXT}.*retry {ID}, or cancel {ID}", ALLOWED),
    "text exhausted": (f"{USED}.*requeue.*cancel {ID}", f"{NO_TEXT}.*cancel {ID}", ALLOWED),
    "text refused for the key": (ALLOWED, f"{NO_TEXT}.*retry {ID}, or cancel {ID}", ALLOWED),
    "pictures next": (WAITS, WAITS, ALLOWED),
    "pictures unasked": (ASKS, ASKS, ALLOWED),
    "pictures held": (ALLOWED, ALLOWED, ALLOWED),
    "pictures failed": (ALLOWED, ALLOWED, ALLOWED),
    "pictures failed and wait": (ALLOWED, ALLOWED, ALLOWED),
    "pictures failed twice": (ALLOWED, ALLOWED, ALLOWED),
    "pictures exhausted": (f"{USED}.*requeue.*skip {ID}, or cancel {ID}", ALLOWED, ALLOWED),
    "pictures exhausted, mock wanted": (f"{USED}.*mock.*skip {ID}, or cancel {ID}", ALLOWED, ALLOWED),
    "pictures refused for the key": (ALLOWED, ALLOWED, ALLOWED),
    "pictures unasked, and refused for the key": (ALLOWED, f"not known yet; fix .* then retry {ID}", ALLOWED),
    "pictures exhausted, key refused": (f"{USED}.*requeue.*skip {ID}, or cancel {ID}", ALLOWED, ALLOWED),
    "pictures awaited": (WAITS, WAITS, ALLOWED),
    "poll of the pictures failed": (ALLOWED, ALLOWED, ALLOWED),
    "poll of the pictures refused for the key": (ALLOWED, ALLOWED, ALLOWED),
    "pictures there": (WAITS, WAITS, ALLOWED),
    "upscale held": (ALLOWED, ALLOWED, ALLOWED),
    "upscale failed": (ALLOWED, ALLOWED, ALLOWED),
    "upscale exhausted": (f"{USED}.*skip {ID}", ALLOWED, ALLOWED),
    "upscale awaited": (WAITS, WAITS, ALLOWED),
    "upscale there": (WAITS, WAITS, ALLOWED),
    "video held": (ALLOWED, ALLOWED, ALLOWED),
    "video failed": (ALLOWED, ALLOWED, ALLOWED),
    "video failed without a text": (ALLOWED, f"{NO_TEXT}.*cancel {ID}", ALLOWED),
    "video awaited": (WAITS, WAITS, ALLOWED),
    "poll of the video failed": (ALLOWED, ALLOWED, ALLOWED),
    "video takes too long": (ALLOWED, ALLOWED, ALLOWED),
    "mock next": (MOCKS, MOCKS, ALLOWED),
    "mock failed": (MOCKS, MOCKS, ALLOWED),
    "all files there": (WAITS, WAITS, ALLOWED),
    "finished, but for its id": (FINISHED,) * 3,
    "failed for good": (DEAD_LETTERS_IT, DEAD_LETTERS_IT, DEAD_LETTERS_IT),
    "cancelled, not dead_lettered": (DEAD_LETTERS_IT, DEAD_LETTERS_IT, DEAD_LETTERS_IT),
}


def each_death(
    made: Callable[[], Scripted], act: Callable[[Scripted, Bucket], object]
) -> Iterator[tuple[str, Scripted]]:
    """Yield the world after the operator's process died before or after each of its accesses to the bucket.

    Of deaths that leave the same, as before and after a read, the first stands for all.
    """
    counted = FailingBucket((world := made()).bucket)
    act(world, counted)
    known: list[object] = []
    for number, operation in enumerate(counted.operations, 1):
        for after in (False, True):
            world = made()
            with suppress(Crash):
                act(world, FailingBucket(world.bucket, Fault(Crash, number=number, after=after)))
            world.bucket.store.end_leases()
            objects = world.bucket.store.objects.items()
            data = {key: re.sub(rb"trace-run-[\w-]+", b"", it.data) for key, it in objects}  # new in each world
            left = data, world.clock.moment, dict(world.vendors.asked), [*world.runs]
            if left not in known:
                known.append(left)
                yield f"{'after' if after else 'before'} {' '.join(operation)}", world
