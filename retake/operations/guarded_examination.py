"""An examination of a pipeline of your own as `retake check` calls it: a bug in it does not end the check."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from retake.checking import CheckFinding
from retake.checking.engine import MAX_FINDINGS
from retake.checking.examination import Examination, LockFree
from retake.operations.foreign_calls import asked

if TYPE_CHECKING:
    from retake.checking import CheckView

_T = TypeVar("_T")

_END = object()


class GuardedExamination(LockFree):  # `outside` of that may be set
    """Wraps the examination `made`. Its methods raise PipelineFault for a bug, which the check reports with its place.

    There is no time limit, because an examination may read everything that a pipeline keeps. Attributes are read once.
    Raises PipelineFault for one that cannot be read or has the wrong type.
    """

    def __init__(self, made: Examination) -> None:
        self.made = made
        self.title = self._asked("title", str, lambda: made.title)
        self.apart_s = float(self._asked("apart_s", float | int, lambda: getattr(made, "apart_s", 0.0)))
        self.outside = self._asked("outside", str, lambda: getattr(made, "outside", ""))

    def subjects(self, view: "CheckView") -> Iterator[str]:
        return self._each("subjects", str, lambda: self.made.subjects(view))

    def examine(self, view: "CheckView", subject: str) -> Iterator[CheckFinding]:
        found = self._each("examine", CheckFinding, lambda: self.made.examine(view, subject))
        return islice(found, MAX_FINDINGS)

    def busy(self, view: "CheckView") -> bool:
        return self._asked("busy", bool, lambda: self.made.busy(view))

    def repair(self, view: "CheckView", subject: str) -> Sequence[str]:
        return self._asked("repair", Sequence[str], lambda: self.made.repair(view, subject))

    def knows(self, key: str) -> bool:
        return self._asked("knows", bool, lambda: self.made.knows(key))

    def _each(self, method: str, wanted: type[_T], call: Callable[[], Iterator[_T]]) -> Iterator[_T]:
        """Yield what the iterator that `call` returns yields."""
        found = self._asked(method, Any, lambda: iter(call()))
        while (it := self._asked(method, Any, lambda: next(found, _END))) is not _END:
            yield self._asked(method, wanted, lambda it=it: it)  # type: ignore[misc]

    def _asked(self, method: str, wanted: Any, call: Callable[[], _T]) -> _T:
        return asked(self.made, method, wanted, call)
