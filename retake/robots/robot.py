"""A robot at work: one piece of work under the robot's protocol, and what follows when it comes to nothing.

    work ── error ──▶ the policy ── again ──▶ wait, work …
                          └─────── give up ──▶ a standard error record, and the follow-ups, in their order, to the desk

What a policy file says of repeats, conditions, breaker, creation and batches is carried out by retake.retrying; here it
is put together. Work raises RobotError (or any CodedError) with one of the robot's codes.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from retake.errors import CodedError, RetakeError, Stopped
from retake.retrying import batch, creation
from retake.retrying.breaker import Breaker
from retake.retrying.guard import Call, End, Guard, Tried
from retake.retrying.read_only import ReadOnly
from retake.retrying.register import MemoryRegister
from retake.robots.course import Course, Failure, Ports
from retake.robots.follow_ups import Do
from retake.robots.policies import RobotPolicy
from retake.robots.protocol import batch_policy, creation_policy

T = TypeVar("T")


DONE_BY_BATCHES = frozenset({Do.CONTINUE_WITH_REST, Do.SPLIT_BATCH})
"""What batches do by themselves: nobody else need do it."""


class Result(NamedTuple, Generic[T]):
    """What came of a piece of work."""

    value: T | None  # None where it failed; of a batch always the report
    failures: tuple[Failure, ...]  # none: it is done. Only a batch can have more than one
    attempts: int  # calls that were made

    @property
    def done(self) -> bool:
        return not self.failures


class Robot:
    """The robot that works by `policy`. Several of them that share a breaker need the same register."""

    def __init__(self, policy: RobotPolicy, ports: Ports) -> None:
        self.policy, self._ports = policy, ports
        self._register = ports.register or MemoryRegister()
        self._breaker = policy.breaker and Breaker(
            policy.breaker.name, self._register, policy.breaker.policy, clock=ports.clock, owner=ports.owner
        )

    def run(
        self,
        work: Callable[[Call], T],
        *,
        correlation_id: str,
        input_data: Mapping[str, Any] | None = None,
        validate: Callable[[], None] | None = None,
        partly_done: Callable[[], bool] = lambda: False,
    ) -> Result[T]:
        """Do one piece of work. `validate()` comes before the repeat that the policy says; where that fails, with a
        CodedError, the repeat has failed. `partly_done()` is asked after the last failure: if so, the compensation of
        the policy comes before what follows on the failure.

        Raises Stopped, whatever `work` raises that is no CodedError, and ValueError where the policy says that there is
        a validation and none is given.
        """
        if self.policy.validate_before_repeat and validate is None:
            raise ValueError(
                f"{self.policy.id} validates before repeat {self.policy.validate_before_repeat}: with what?"
            )

        def validated(call: Call) -> T:
            if validate and call.attempt - 1 == self.policy.validate_before_repeat:
                validate()
            return work(call)

        course = self._course(correlation_id, input_data)
        outcome = self._guard(course.observe).outcome(validated)
        if outcome.end is End.STOPPED:
            raise Stopped(f"{self.policy.id} was stopped after {outcome.attempts} attempts") from outcome.error
        if outcome.error is None:
            return Result(outcome.value, (), outcome.attempts)
        compensation = self.policy.compensation.actions if self.policy.compensation and partly_done() else ()
        return Result(None, (course.failed(outcome.error, compensation),), outcome.attempts)

    def create(
        self, parts: creation.Parts[T], data: Mapping[str, Any], *, correlation_id: str
    ) -> Result[creation.Created[T]]:
        """The thing that `data` describe, made once however often it is asked for. After as many failures in a row as
        the policy says nothing is made any more, and the desk is told once.

        Raises Stopped, StorageError, and ValueError for a robot whose policy has no such creation.
        """
        course = self._course(correlation_id, data)
        creator = self.creator(parts, course.observe)
        try:
            return Result(creator.create(data), (), course.attempts)
        except ReadOnly as error:  # it was told of when it began
            return Result(None, (course.failed(error, follows=()),), course.attempts)
        except CodedError as error:
            begins = _failed_in_a_row(creator) == creator.policy.read_only_after
            return Result(None, (course.failed(error, read_only_begins=begins),), course.attempts)

    def creator(
        self, parts: creation.Parts[T], observe: Callable[[Tried], None] = lambda tried: None
    ) -> creation.Creator[T]:
        """What `create` creates with: for an operator who ends the read-only mode (`probe`, `reset`), and for whoever
        undoes now and then what nobody has confirmed in time (`unconfirmed.roll_back_due`). Raises ValueError, as
        `create` does."""
        clock, policy = self._ports.clock, creation_policy(self.policy)
        return creation.Creator(self.policy.id, parts, self._guard(observe), clock, policy, self._register)

    def create_all(
        self, parts: batch.Parts[T], items: Iterable[batch.Item], *, correlation_id: str
    ) -> Result[batch.Report[T]]:
        """Make many things, in batches; what became of each stands in the report. The items that failed of the same
        error are one failure.

        Raises Stopped, and ValueError for a robot whose policy has no batches.
        """
        ports = self._ports
        batches = batch.Batches(parts, batch_policy(self.policy), ports.clock, ports.random, stop=ports.stop)
        report = batches.run(items)
        failed: dict[str, tuple[CodedError, list[str]]] = {}
        for key, ended in report.ended.items():
            if ended.error:
                failed.setdefault(ended.error.code, (ended.error, []))[1].append(key)
        figures = {**report.statistics._asdict(), "tally": report.statistics.tally._asdict()}
        failures = []
        for error, keys in failed.values():
            given, context = {"items": keys}, {"statistics": figures}
            course = Course(self.policy, self._ports, correlation_id, given, context, DONE_BY_BATCHES)
            failures.append(course.failed(error))
        return Result(report, tuple(failures), report.statistics.tally.calls)

    def _guard(self, observe: Callable[[Tried], None]) -> Guard:
        ports, retry = self._ports, self.policy.retry
        return Guard(retry, ports.clock, ports.random, breaker=self._breaker, stop=ports.stop, observe=observe)

    def _course(self, correlation_id: str, input_data: Mapping[str, Any] | None) -> Course:
        return Course(self.policy, self._ports, correlation_id, input_data or {}, {})


def _failed_in_a_row(creator: creation.Creator[Any]) -> int | None:
    """None if that cannot be told now: what the creation failed of counts for more."""
    try:
        return creator.mode().failed_in_a_row
    except RetakeError:
        return None
