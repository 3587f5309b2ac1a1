"""Leftovers of crashes: expired leases, drafts, objects that probed the store."""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from retake.bucket import Entry
from retake.bucket.scanning import CLAIM, STRANGER, Remnant, clear, remains
from retake.checking.examination import CheckFinding, Examination, found
from retake.checking.view import CheckView
from retake.clock import stamp
from retake.plural import count

_SCRATCH = "doctor-"
_DOCTORS = re.compile(rf"(?:.*/)?{_SCRATCH}[0-9a-f]{{16}}", re.DOTALL)
_OLD_S = 3600.0  # `doctor` deletes its scratch object within seconds

_CODES = {CLAIM: "lease-ran-out", STRANGER: "claim-foreign"}


class LeftoverExamination(Examination):
    """The leftovers in those places of a bucket that may have claims of their own: the whole bucket, and each
    pipeline's part. `places` are their prefixes."""

    title = "leases and leftovers"

    def __init__(self, places: Iterable[str]) -> None:
        self._places = sorted({"", *places})

    def subjects(self, view: CheckView) -> Iterator[str]:
        yield from self._places

    def examine(self, view: CheckView, subject: str) -> Iterator[CheckFinding]:
        part, others = view.below(subject), list[Remnant]()
        for it in self._remains(part, subject):
            if code := _CODES.get(it.kind):
                yield found(code, part.where(it.name), f"since {_stamp(it.modified)}")
            else:
                others.append(it)
        for kind in sorted({it.kind for it in others}):
            those = [Entry(it.name, it.size, it.modified) for it in others if it.kind == kind]
            yield _left(part, f"{kind}-left", those)
        if scratch := [*_scratch(part)]:
            yield _left(part, "scratch-left", scratch)

    def repair(self, view: CheckView, subject: str) -> Sequence[str]:
        """Remove what nobody can be using. An expired lease is taken and released."""
        part = view.below(subject)
        done = 0
        for it in [*self._remains(part, subject)]:
            if it.removable:
                clear(part.bucket, it)
                done += 1
        for entry in [*_scratch(part)]:
            part.bucket.delete(entry.key)
            done += 1
        return [f"removed {count(done, 'leftover')} of crashes{f' below {subject}' if subject else ''}"] if done else []

    def _remains(self, part: CheckView, subject: str) -> Iterator[Remnant]:
        """Yield the leftovers in a place, but not in the places below it."""
        below = tuple(it.removeprefix(subject) for it in self._places if it != subject and it.startswith(subject))
        return (it for it in remains(part.bucket) if not it.name.startswith(below))

    def knows(self, key: str) -> bool:
        return _DOCTORS.fullmatch(key) is not None and key.rpartition(_SCRATCH)[0] in self._places


def _scratch(part: CheckView) -> Iterator[Entry]:
    """Yield the doctor's scratch objects that were never deleted."""
    before = part.scope.clock.now().timestamp() - _OLD_S
    return (it for it in part.entries(_SCRATCH) if _DOCTORS.fullmatch(it.key) and it.modified < before)


def _left(part: CheckView, code: str, left: Sequence[Entry]) -> CheckFinding:
    """Return one finding for all leftovers of a kind in one place."""
    first = min(left, key=lambda it: (it.modified, it.key))
    number, size = len(left), sum(it.size for it in left)
    what = f"{count(number, 'object')} with {size} bytes, the first from {_stamp(first.modified)}"
    return found(code, part.where(first.key), what)


def _stamp(moment: float) -> str:
    return stamp(datetime.fromtimestamp(moment, UTC))
