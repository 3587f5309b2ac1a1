"""Examinations and their findings."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from retake.checking.codes import CODES
from retake.checking.finding_code import Severity
from retake.foreign_text import one_line
from retake.logs import masked

if TYPE_CHECKING:
    from retake.checking.view import CheckView


class CheckFinding(NamedTuple):
    """An inconsistency."""

    code: str  # one of CODES
    level: Severity
    where: str  # the key of an object, the id of a run, a table
    what: str  # a sentence without a full stop
    todo: str  # what a person should do about it
    repairable: bool = False
    repaired: bool = False


def found(code: str, where: str, what: str, *, level: Severity | None = None) -> CheckFinding:
    """Return a finding with the advice of its code and, unless `level` is given, its level. `what` may quote documents
    and errors: secrets and the signatures of links are masked."""
    kind = CODES[code]
    what = str(masked(one_line(what)))
    return CheckFinding(code, level or kind.level, one_line(where), what, kind.todo, kind.repairable)


class Examination(Protocol):
    """The check of one kind of data: the groups of a pipeline, the runs of a ledger, the day books. By default nobody
    is ever working on it, nothing is repaired, and it has no objects in the bucket.

    It is stateless: `examine` may be called again for a subject, in any order, with a view of its current state. All
    methods raise RetakeError if something could not be looked at. Invalid documents are findings, never exceptions.
    """

    title: str  # for people: "groups of story/en"
    apart_s: float = 0.0  # minimum seconds between two looks: how long a change without a lease may take

    def subjects(self, view: "CheckView") -> Iterator[str]:
        """Yield the names of all subjects for `examine`. Memory use does not grow with their number."""
        ...

    def examine(self, view: "CheckView", subject: str) -> Iterator[CheckFinding]:
        """Yield the findings about one subject; nothing if it no longer exists."""
        ...

    def busy(self, view: "CheckView") -> bool:
        """Return whether somebody is changing this data now, so that findings may be gone in a moment."""
        return False

    def repair(self, view: "CheckView", subject: str) -> Sequence[str]:
        """Rebuild what can be derived about a subject, and return what was done, in words ("the tally was counted
        again"). Takes the lease or lock that guards it. Never deletes media, documents or records. Raises LeaseHeld.
        """
        return []

    def knows(self, key: str) -> bool:
        """Return whether the object `key`, a key of the whole bucket, may belong to this data."""
        return False


class LockFree(Examination):
    """The base of examinations of a service that makes each change in one step, without a lease."""

    apart_s = 1.0  # a file and the row that names it are not written in one step
    outside = ""  # the name in `looked_at` of data outside the bucket; with such data the bucket may be empty
