"""PiAPI's history of tasks, read to find a task whose id never arrived. Pure.

The vendor documents how to ask for the history («User history query») but not what an item looks like, so an item is
read liberally: the order as an object or as a text that holds one, moments as ISO 8601 or as seconds, anything missing.
"""

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from retake.clock import parse_stamp
from retake.vendors.answers import as_dict
from retake.vendors.numbers import count, number

_SEED = re.compile(r"--seed[\s=]+(\d+)")
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


def listing(body: object) -> dict[str, Any] | None:
    """The page of a listing, {data: [task…], page, size, total}, in an envelope or not; None if there is none."""
    fields = as_dict(body)
    for place in (as_dict(fields.get("data")), fields):
        if isinstance(place.get("data"), list):
            return place
    return None


def is_last(page: Mapping[str, Any], seen: int, is_short: bool) -> bool:
    """Whether no page follows, `seen` tasks after the first; a short page is the last where no total is given."""
    total = count(page.get("total"))
    return seen >= total if total is not None and total > 0 else is_short


def newest_match(
    tasks: Iterable[dict[str, Any]], asked: Mapping[str, Any], start: datetime, end: datetime
) -> dict[str, Any] | None:
    """The newest of `tasks` that is what `asked` (see `Midjourney.find`) describes, and was made between the two."""
    matches = [task for task in tasks if _is_it(task, asked) and _created_in(task, start, end)]
    # `max` keeps the first of equals, and the vendor lists the newest first.
    return max(matches, key=lambda task: _created(task) or _LONG_AGO, default=None)


def _is_it(task: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    step, order = asked.get("step"), _order(task)
    if step not in ("imagine", "upscale") or step not in str(task.get("task_type") or step).lower():
        return False
    if step == "imagine":
        seeds = _SEED.findall(str(order.get("prompt") or task.get("prompt") or ""))
        return str(asked.get("nonce")) in seeds
    wanted = (asked.get("origin_task_id"), asked.get("index"))
    has = (order.get("origin_task_id"), order.get("index"))
    return None not in wanted and tuple(map(str, has)) == tuple(map(str, wanted))


def _order(task: Mapping[str, Any]) -> dict[str, Any]:
    """What a task was made from."""
    order = task.get("input")
    if isinstance(order, str):
        try:
            order = json.loads(order)
        except (ValueError, RecursionError):
            return {"prompt": order}
    return as_dict(order)


def _created(task: Mapping[str, Any]) -> datetime | None:
    """When the vendor made the task; None where it does not say."""
    moment = as_dict(task.get("meta")).get("created_at") or task.get("created_at")
    seconds = None if isinstance(moment, str) else number(moment)
    try:
        created = parse_stamp(str(moment)) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return created if created.year > 1970 else None  # a zero of some sort: 0001-01-01, 1970-01-01


def _created_in(task: Mapping[str, Any], start: datetime, end: datetime) -> bool:
    created = _created(task)
    return created is None or start <= created <= end
