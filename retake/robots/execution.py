"""One piece of work by a robot: its error records, and the actions that follow its failures."""

from collections.abc import Callable, Collection, Mapping
from logging import getLogger
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from retake.clock import Clock
from retake.degraded.mode import FULL
from retake.errors import CodedError, ErrorClass, RetakeError, error_record, retry_in
from retake.retrying.guard import Tried
from retake.retrying.policy import Retry
from retake.retrying.state_store import StateStore
from retake.robots.action_sink import ActionSink, Record
from retake.robots.deferred import Deferrals
from retake.robots.follow_ups import Do, FollowUp
from retake.robots.policies import RobotPolicy
from retake.robots.recovery import follow_ups_of, steps_after
from retake.robots.run_record import RobotRun

if TYPE_CHECKING:
    from retake.runs import Ledger

_log = getLogger(__name__)


Correction = Callable[[Mapping[str, Any]], None]
"""A script that fixes the cause of an error (docs/protocol.md, section "Automatic recovery"), given the robot's input.
If it raises, the cause is not fixed."""


class Ports(NamedTuple):
    """What a robot needs from its surroundings.

    >>> from random import random
    >>> from retake.clock import SystemClock
    >>> from retake.robots.action_sink import RecordingSink
    >>> Ports(SystemClock(), random, RecordingSink()).owner
    'robot'
    """

    clock: Clock
    random: Callable[[], float]  # 0 … 1, for the jitter
    sink: ActionSink
    states: StateStore | None = None  # of breakers, modes, deferred work, cached results; None: in this robot's memory
    owner: str = "robot"  # the caller as shown to people ("host:pid")
    stop: Callable[[], bool] | None = None  # asked before each attempt and every second of a wait
    noted: Callable[[Record], None] = lambda record: None  # called for each failed attempt that is retried
    corrections: Mapping[str, Correction] = MappingProxyType({})  # by the class B error code that each fixes
    mode: Callable[[], int] = lambda: FULL  # returns the degraded mode, 0 to 3 (degraded.py)
    ledger: "Ledger | None" = None  # records each piece of work as a run of the pipeline "robot/ID"


class Failure(NamedTuple):
    """An error that remained after all retries."""

    error: CodedError
    record: Record
    follow_ups: tuple[FollowUp, ...]  # as handed to the sink


class Execution:
    """The execution of one piece of work: its input, and what is recorded about it."""

    def __init__(
        self,
        *,
        policy: RobotPolicy,
        ports: Ports,
        correlation_id: str,
        input_data: Mapping[str, Any],
        context: Mapping[str, Any],
        done_already: Collection[Do],
        deferrals: Deferrals,
        run: RobotRun,
    ) -> None:
        self._policy, self._ports, self._deferrals = policy, ports, deferrals
        self._correlation_id, self._input_data, self._context = correlation_id, input_data, dict(context)
        self._done_already = done_already  # actions that the work itself performs, so that the sink need not
        self.run = run
        self._first_follow_ups: tuple[FollowUp, ...] | None = None  # of the first failure, with unlimited retries
        self.attempts = 0

    def add_context(self, **context: Any) -> None:
        """Add `context` to the system context of later records."""
        self._context.update(context)

    def corrected(self, error: CodedError) -> None:
        """Hand in the actions for a value that was corrected."""
        follows = tuple(
            it for it in self._policy.last_failure.actions if it.do is Do.AUTO_CORRECT and it.when.holds_for(error)
        )
        self._hand_in(follows, self._record(error, [action.as_recovery_action() for action in follows]))

    def observe(self, tried: Tried) -> None:
        """Record an attempt. With unlimited retries there is no last failure: its actions follow the first one."""
        self.attempts = tried.attempt
        if tried.error is None or not isinstance(tried.decision, Retry):
            return
        endless = self._policy.retry.max_retries is None and self._first_follow_ups is None
        found = self._follow_ups(tried.error, read_only_begins=False) if endless else ()
        follows = tuple(it for it in found if it.do is not Do.DEFERRED_RETRY)  # the retries go on, here and now
        actions = [retry_in(round(tried.decision.after_s, 3)), *(it.as_recovery_action() for it in follows)]
        record = self._record(tried.error, actions)
        self._ports.noted(record)
        self.run.tried(record)
        self._hand_in(follows, record)
        if endless:
            self._first_follow_ups = follows

    def failed(
        self,
        error: CodedError,
        first: tuple[FollowUp, ...] = (),
        *,
        follows: tuple[FollowUp, ...] | None = None,
        read_only_begins: bool = False,
    ) -> Failure:
        """Hand in `first`, then the actions that follow the last failure, and return the failure.

        `follows` replaces the actions of the policy. `read_only_begins`: this failure began read-only mode.
        """
        if follows is None:
            found = self._follow_ups(error, read_only_begins=read_only_begins)
            follows = tuple(action for action in found if action not in (self._first_follow_ups or ()))
        follows = (*first, *follows)
        record = self._record(error, [action.as_recovery_action() for action in follows])
        self.run.failed(record)
        self._hand_in(follows, record)
        return Failure(error, record, follows)

    def _follow_ups(self, error: CodedError, *, read_only_begins: bool) -> tuple[FollowUp, ...]:
        validation = self._policy.validation
        now = {Do.AUTO_CORRECT: validation is not None and validation.auto_correct, Do.READ_ONLY: read_only_begins}
        actions = [action for action in self._policy.last_failure.actions if now.get(action.do, True)]
        follows = follow_ups_of(error, actions, corrected=self._correct(error))
        return tuple(action for action in follows if action.do not in self._done_already)

    def _correct(self, error: CodedError) -> bool:
        """Run the correction script for this error, if any, and return whether its cause is fixed."""
        script = self._ports.corrections.get(error.code) if error.error_class is ErrorClass.BUSINESS else None
        if script is None:
            return False
        try:
            script(self._input_data)
        except RetakeError as trouble:
            _log.error("%s: %s could not be corrected: %s", self._policy.id, error.code, trouble)
            return False
        except Exception:  # noqa: BLE001  a bug in the script must not lose the actions that follow
            _log.exception("%s: %s could not be corrected, because of a bug", self._policy.id, error.code)
            return False
        return True

    def _record(self, error: CodedError, actions: list[dict[str, Any]]) -> Record:
        recovery = self._policy.recovery
        steps = [step.step.value for step in steps_after(error, recovery.steps if recovery else ())]
        return error_record(
            error,
            now=self._ports.clock.now(),
            robot_id=self._policy.id,
            correlation_id=self._correlation_id,
            retry_count=max(0, self.attempts - 1),
            input_data=self._input_data,
            system_context={**self._context, **({"recovery": steps} if steps else {})},
            recovery_actions=actions,
        )

    def _hand_in(self, follows: tuple[FollowUp, ...], record: Record) -> None:
        """Hand the actions to the sink, after keeping deferred work.

        An action that the sink cannot carry out does not stop the others.
        """
        if waits := [action.after_s for action in follows if action.do is Do.DEFERRED_RETRY]:
            self._defer(min(waits), str(record["error_code"]))
        for action in follows:
            try:
                self._ports.sink.carry_out(action, record)
            except RetakeError as error:
                _log.error("%s: %s was not carried out: %s", self._policy.id, action.do, error)
            except Exception:  # noqa: BLE001  a sink is the caller's code, and a dead letter may come after this
                _log.exception("%s: %s was not carried out, because of a bug", self._policy.id, action.do)

    def _defer(self, after_s: float, code: str) -> None:
        try:
            self._deferrals.put(self._correlation_id, self._input_data, after_s, code)
        except (RetakeError, ValueError) as error:
            _log.error("%s: %s is not tried again later: %s", self._policy.id, self._correlation_id, error)
