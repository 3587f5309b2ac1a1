"""What is examined, and what is found."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from retake.checking.codes import CODES
from retake.checking.finding_code import Severity
from retake.foreign_text import one_line
from retake.logs import masked

if TYPE_CHECKING:
    from retake.checking.view import CheckView


class CheckFinding(NamedTuple):
    """Something that does not fit."""

    code: str  # one of CODES
    level: Severity
    where: str  # the key of an object, the id of a run, a table
    what: str  # a sentence without a full stop
    todo: str  # what a person does about it
    repairable: bool = False
    repaired: bool = False


def found(code: str, where: str, what: str, *, level: Severity | None = None) -> CheckFinding:
    """Return a finding with the advice of its code, and with its level unless another is given. `what` may quote
    documents and errors: secrets and the signatures of links are masked."""
    kind = CODES[code]
    what = str(masked(one_line(what)))
    return CheckFinding(code, level or kind.level, one_line(where), what, kind.todo, kind.repairable)


class Examination(Protocol):
    """One kind of thing that a check looks at: the groups of a pipeline, the runs of a ledger, the books of the days.
    By default nobody is ever at work on it, nothing is repaired, and it is not in the bucket.

    It is stateless: `examine` may be called again for a subject, in any order, with a view of what is there by then.
    All methods but `knows` may raise RetakeError: something could not be looked at. Invalid documents are findings,
    never exceptions.
    """

    title: str  # for people: "groups of story/en"
    apart_s: float = 0.0  # seconds that must lie between two looks: how long a change without a lease may take

    def subjects(self, view: "CheckView") -> Iterator[str]:
        """Yield what there is to examine, by names that `examine` takes. Holds nothing in memory that grows with it."""
        ...

    def examine(self, view: "CheckView", subject: str) -> Iterator[CheckFinding]:
        """Yield what does not fit about one subject; nothing where it is gone by now."""
        ...

    def busy(self, view: "CheckView") -> bool:
        """Return whether somebody is at work on these things now: what does not fit may fit in a moment."""
        return False

    def repair(self, view: "CheckView", subject: str) -> Sequence[str]:
        """Rebuild what can be derived about a subject, and return what was done, in words ("the tally was counted
        again"). Takes the lease or lock that guards it. Never deletes media, documents or records. Raises LeaseHeld.
        """
        return []

    def knows(self, key: str) -> bool:
        """Return whether an object with this key may be there. The key is that in the whole bucket."""
        return False


class LockFree(Examination):
    """What examinations of a service have in common whose changes are one step each, without a lease."""

    apart_s = 1.0  # a file and the row that names it are not written in one step
    outside = ""  # the name in `looked_at` of what is not in the bucket: where there is any, the bucket may be empty
