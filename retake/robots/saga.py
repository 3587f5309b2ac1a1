"""Sagas: steps that are done one after another, and undone if one of them fails (docs/protocol.md, section "NR.NSI.8").

    saga = Saga(store, clock)
    saga.run("link-7", [Step("reserve", reserve, release), Step("link", link, unlink)])

Each step is recorded before it begins, so after a crash `run` continues where it was. It is then unknown whether the
step that was in progress took effect: it is done again, and if it fails this time it is undone too. So `do` and `undo`
must be repeatable, and `undo` must accept that there is nothing to undo.
"""

import os
from collections.abc import Callable, Sequence
from enum import StrEnum
from logging import getLogger
from typing import Any, NamedTuple

from retake.bucket import Conflict
from retake.clock import Clock, exact_stamp
from retake.errors import CodedError, LeaseLost, OutcomeUnknown, RobotError, Stopped, class_of, in_words
from retake.retrying.state_store import Raw, StateCell, StateStore, state_name

_log = getLogger(__name__)

FAILED = "ERR_CRITICAL_SAGA_FAILED"
"""The code of a saga whose step raised an error without a code: a bug, which a person has to see."""


class SagaStep(NamedTuple):
    """A step. Both functions may be called more than once."""

    name: str  # unique within the saga, and the same after a restart
    do: Callable[[], object]
    undo: Callable[[], object]


Step = SagaStep
"""Short name for callers that import the module: `saga.Step`."""


class SagaUndone(RobotError):
    """A step failed before this process took over the saga, which is now undone. It has the code of that error."""


class SagaPhase(StrEnum):
    """How far a saga has got."""

    NEW = "new"
    DOING = "doing"
    UNDOING = "undoing"
    DONE = "done"
    UNDONE = "undone"  # running it again starts over


class SagaState(NamedTuple):
    """The progress of a saga."""

    phase: SagaPhase = SagaPhase.NEW
    done: tuple[str, ...] = ()  # the steps done, in order; while undoing, those still to be undone
    under_way: str | None = None  # the step that has begun
    code: str | None = None  # of the error that led to undoing
    message: str | None = None
    by: str = ""  # fencing token of the call of `run` that owns the saga; a call that takes over has another


class Saga:
    """Sagas whose progress is in `store`."""

    def __init__(self, store: StateStore, clock: Clock) -> None:
        self._store, self._clock = store, clock

    def run(self, saga_id: str, steps: Sequence[SagaStep]) -> None:
        """Do the steps that are not done yet, in order.

        If a step raises an error, what was done is undone, last step first, and the error is raised; when the saga is
        run again, it starts over. A saga that is done does nothing. After a crash it continues; if it was being undone,
        it raises SagaUndone at the end. An error of `undo` is raised at once; the next run continues with that step.
        Stopped and LeaseLost undo nothing, and the next run continues. A later version of the program may add steps,
        even before the one that was in progress, which is then done first.

        Raises ValueError for steps that do not fit the record, Conflict if another process has taken over the saga,
        StateError and StorageError.
        """
        names = [step.name for step in steps]
        if len(set(names)) < len(names):
            raise ValueError(f"the saga {saga_id} has two steps of the same name: {', '.join(names)}")
        _SagaRun(self._store, self._clock, saga_id, {step.name: step for step in steps}).run()


class _SagaRun:
    """One call of `Saga.run`."""

    def __init__(self, store: StateStore, clock: Clock, saga_id: str, steps: dict[str, SagaStep]) -> None:
        self._id, self._steps, self._clock = saga_id, steps, clock
        self._cell = StateCell(store, state_name("saga", saga_id), _decoded, self._encoded)
        self._me = os.urandom(8).hex()
        self._state = SagaState()

    def run(self) -> None:
        self._state = state = self._cell.update(self._taken_over)
        if state.phase is SagaPhase.DOING:
            self._do(in_doubt=state.under_way)
        elif state.phase is SagaPhase.UNDOING:
            self._undo()
            code = state.code or FAILED
            raise SagaUndone(code, f"{state.message or code} (the saga {self._id} is undone)")

    def _taken_over(self, state: SagaState) -> SagaState:
        """Return the state from which this process continues; the previous owner stops before its next step."""
        begun = state.done if state.under_way is None else (*state.done, state.under_way)
        if strangers := sorted({*begun} - {*self._steps}):
            raise ValueError(f"the saga {self._id} has begun steps that it is not given: {', '.join(strangers)}")
        if state.phase in (SagaPhase.NEW, SagaPhase.UNDONE):
            state = SagaState(SagaPhase.DOING)
        if state.phase is not SagaPhase.DONE:
            state = state._replace(by=self._me)
        return state

    def _do(self, in_doubt: str | None) -> None:
        # The step in doubt comes first: a new version may have others before it.
        steps = sorted(self._steps.items(), key=lambda it: it[0] != in_doubt)
        for name, step in steps:
            if name in self._state.done:
                continue
            if self._state.under_way != name:
                self._save(under_way=name)
            try:
                step.do()
            except (Stopped, LeaseLost):
                raise
            except Exception as error:
                self._failed(name, error, in_doubt=name == in_doubt or isinstance(error, OutcomeUnknown))
                raise
            self._state = self._state._replace(done=(*self._state.done, name), under_way=None)
        self._save(phase=SagaPhase.DONE)

    def _failed(self, name: str, error: Exception, *, in_doubt: bool) -> None:
        """Undo what was done, including a step that may have been done."""
        code = str(error.code) if isinstance(error, CodedError) else FAILED
        done = (*self._state.done, name) if in_doubt else self._state.done
        _log.warning("the saga %s is undone, since %s failed: %s", self._id, name, in_words(error))
        self._save(phase=SagaPhase.UNDOING, done=done, under_way=None, code=code, message=in_words(error))
        self._undo()

    def _undo(self) -> None:
        while self._state.done:
            *rest, last = self._state.done
            self._steps[last].undo()
            if rest:
                self._save(done=tuple(rest))
            else:
                self._state = self._state._replace(done=())
        self._save(phase=SagaPhase.UNDONE)

    def _save(self, **changes: Any) -> None:
        """Save the progress. Raises Conflict if another process has taken over the saga."""
        self._state = new = self._state._replace(**changes)

        def step(now: SagaState) -> SagaState:
            if now.by != self._me:
                raise Conflict(f"another process has taken over the saga {self._id}; run it again to see how it ended")
            return new

        self._cell.update(step)

    def _encoded(self, state: SagaState) -> Raw:
        return {"id": self._id, **state._asdict(), "done": list(state.done), "at": exact_stamp(self._clock.now())}


def _decoded(raw: Raw | None) -> SagaState:
    if raw is None:
        return SagaState()
    try:
        phase, done = SagaPhase(raw["phase"]), raw["done"]
        under_way, code, message = (
            None if raw[it] is None else str(raw[it]) for it in ("under_way", "code", "message")
        )
        class_of(code or FAILED)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"is not the progress of a saga ({error})") from error
    if not isinstance(done, list) or not all(isinstance(it, str) for it in done) or len({*done}) < len(done):
        raise ValueError("done: is not a list of different names")
    return SagaState(phase, tuple(done), under_way, code, message, str(raw.get("by", "")))
