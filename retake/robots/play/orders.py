"""The failures ordered for a play, as people type them: "ERR_TEMPORARY_API_TIMEOUTx3"."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from retake.errors import ErrorClass, class_of
from retake.foreign_text import plain
from retake.robots.policies import RobotPolicy
from retake.settings.schema import closest, did_you_mean

MAX_FAILURES = 1000
"""Maximum number of failures in a play."""

_ORDER = re.compile(r"(?P<code>\w{1,100}?)(?:@(?P<place>[a-z]{1,20}))?(?:x(?P<times>\d{1,9}))?", re.ASCII)

FINISH, ITEM = "finish", "item"
"""The places in the work where a failure can be ordered, besides the beginning of an attempt."""


class OrderedFailure(NamedTuple):
    """A failure of one attempt."""

    code: str
    place: str | None = None  # None: the beginning of the attempt; FINISH: after creation; ITEM: one item of a batch


class FailureQueue:
    """The failures that have not occurred yet, the next one first."""

    def __init__(self, failures: Iterable[OrderedFailure]) -> None:
        self._left = list(reversed(list(failures)))

    def __len__(self) -> int:
        return len(self._left)

    def take(self, *places: str | None) -> OrderedFailure | None:
        """Remove and return the next failure if it is ordered for one of these places; without places, for an
        attempt."""
        return self._left.pop() if self._left and self._left[-1].place in (places or (None,)) else None


def read_failures(texts: Sequence[str], policy: RobotPolicy) -> list[OrderedFailure]:
    """Return the failures that `CODE`, `CODExN`, `CODE@PLACE` or `CODE@PLACExN` order, one for each attempt.

    A code may be given without its prefix. In a batch an error of class B is about one item. Raises ValueError, in one
    line, for a code that is not the robot's, a place that its work does not have, and more than 1000 failures in all.
    """
    found: list[OrderedFailure] = []
    for text in texts:
        code, place, times = _read(text, policy)
        if not 1 <= times <= MAX_FAILURES - len(found):
            raise ValueError(f"{plain(text)}: a play has 1 to {MAX_FAILURES} failures in all; order fewer")
        found += [OrderedFailure(code, place)] * times
    return found


def _read(text: str, policy: RobotPolicy) -> tuple[str, str | None, int]:
    match = _ORDER.fullmatch(text)
    code = match and _code(match["code"], policy)
    if match is None or code is None:
        meant = did_you_mean(closest(text, list(policy.errors)))
        raise ValueError(
            f"{plain(text)}: {policy.id} has no such error; use CODE or CODExN with one of its codes: "
            f"{', '.join(policy.errors)}{meant}"
        )
    places = places_of(policy)
    if match["place"] and match["place"] not in places:
        allowed = f"{policy.id} has {', '.join(f'@{it}' for it in places)}" if places else f"{policy.id} has none"
        raise ValueError(f"{plain(text)}: no such place in the work; {allowed}")
    about_an_item = policy.batch is not None and class_of(code) is ErrorClass.BUSINESS
    return code, match["place"] or (ITEM if about_an_item else None), int(match["times"] or 1)


def _code(name: str, policy: RobotPolicy) -> str | None:
    """Return the robot's code with this name, with or without its prefix."""
    if name in policy.errors:
        return name
    short = [code for code in policy.errors if code.split("_", 2)[2:] == [name]]
    return short[0] if len(short) == 1 else None


def places_of(policy: RobotPolicy) -> tuple[str, ...]:
    """Return the places in the robot's work where a failure can be ordered."""
    if policy.batch:
        return (ITEM,)
    creates = policy.idempotency is not None and policy.idempotency.check_before_create
    return (FINISH,) if creates and policy.compensation else ()
