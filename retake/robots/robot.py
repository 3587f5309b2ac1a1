"""Robots: they do a piece of work under their protocol, and hand in the actions that follow a failure.

    work ── error ──▶ the policy ── retry ──▶ wait, work …
                          └───── give up ──▶ a standard error record; then the sink gets the follow-ups, in order

Work raises RobotError (or any CodedError) with one of the robot's codes. Deferred work is kept until it is due and
`run_due` is called.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from logging import getLogger
from typing import Any, Generic, NamedTuple, TypeVar

from retake.errors import CodedError, ErrorClass, RetakeError, RobotError, Stopped, in_words
from retake.retrying.breaker import Breaker
from retake.retrying.guard import Call, End, Guard, GuardResult, Tried
from retake.retrying.state_store import MemoryStateStore
from retake.robots import batch, creation, step_validation
from retake.robots.action_sink import tell_recovery
from retake.robots.cache import Cache
from retake.robots.deferred import Deferrals, Deferred, TakenOver
from retake.robots.degraded import RobotDegraded, may_run
from retake.robots.execution import Execution, Failure, Ports
from retake.robots.follow_ups import Do
from retake.robots.policies import RobotPolicy
from retake.robots.protocol import batch_policy, creation_policy, keyed, longest_deferral_s, longest_lease_s
from retake.robots.read_only import ReadOnly
from retake.robots.run_record import RobotRun, RobotRuns
from retake.robots.sections import CACHED_BY_DEFAULT

_log = getLogger(__name__)
T = TypeVar("T")

DONE_BY_BATCHES = frozenset({Do.CONTINUE_WITH_REST, Do.SPLIT_BATCH})
"""The actions that `Batches` performs itself."""


class Result(NamedTuple, Generic[T]):
    """The result of a piece of work."""

    value: T | None  # None if it failed and nothing is cached; of a batch always the report
    failures: tuple[Failure, ...]  # empty if it succeeded; only a batch can have more than one
    attempts: int  # the number of calls made
    cached_age_s: float | None = None  # set if the value is an earlier, cached one, which is read-only

    @property
    def done(self) -> bool:
        return not self.failures

    @property
    def fails_fast(self) -> bool:
        """Whether the robots after this one may not run (see `retake.robots.chain`)."""
        return any(action.do is Do.FAIL_FAST for failure in self.failures for action in failure.follow_ups)


class Robot:
    """The robot that works by `policy`. Robots that share a breaker need the same `ports.states`.

    Every method that starts work raises RobotDegraded (ERR_TEMPORARY_DEGRADED), before any call, if the robot may not
    run in the mode that `ports.mode()` returns, and ValueError for a `correlation_id` or `cache_key` that is not text.

    >>> from random import random
    >>> from retake.clock import FakeClock
    >>> from retake.robots.action_sink import RecordingSink
    >>> from retake.robots.policies import load_policies
    >>> robot = Robot(load_policies()["NR.NSI.1"], Ports(FakeClock(), random, RecordingSink()))
    >>> robot.policy.name
    'detect_new_scrap_need'
    """

    def __init__(self, policy: RobotPolicy, ports: Ports) -> None:
        self.policy, self._ports = policy, ports
        self._states = ports.states or MemoryStateStore()
        lease_s = longest_lease_s(policy)
        self.deferrals = Deferrals(self._states, policy.id, ports.clock, longest_deferral_s(policy), lease_s)
        # Deferred work that a dead process has taken is due again after `lease_s`, and then resumes its run.
        self._runs = RobotRuns(ports.ledger, policy.id, ports.clock, owner=ports.owner, resumable_s=2 * lease_s)
        self._breaker = policy.breaker and Breaker(
            policy.breaker.name, self._states, policy.breaker.policy, clock=ports.clock, owner=ports.owner
        )

    def run(
        self,
        work: Callable[[Call], T],
        *,
        correlation_id: str,
        input_data: Mapping[str, Any] | None = None,
        validate: Callable[[], None] | None = None,
        partly_done: Callable[[], bool] = lambda: False,
        cache_key: str | None = None,
    ) -> Result[T]:
        """Do one piece of work, with the retries that the policy allows, and return its result.

        With a `cache_key` the value (JSON) is cached under it, for all robots with the same states. If the work later
        fails with an error of a class in the policy's [cache] (without that table: class A, for 24 hours), the result
        has the failure, the cached value, and its age in `cached_age_s`.

        `validate()` is called before the retry that the policy names; a CodedError from it is a failure of that retry.
        `partly_done()` is called after the last failure; if it returns true, or raises, the policy's compensation comes
        before the other actions. Raises Stopped, any exception of `work` that is not a CodedError, and ValueError if
        the policy requires a validation and none is given.

        >>> from random import random
        >>> from retake.clock import FakeClock
        >>> from retake.robots.action_sink import RecordingSink
        >>> from retake.robots.policies import load_policies
        >>> sink = RecordingSink()
        >>> robot = Robot(load_policies()["NR.NSI.2"], Ports(FakeClock(), random, sink))
        >>> robot.run(lambda call: {"length": 12}, correlation_id="document-7").value
        {'length': 12}
        >>> def missing(call: Call) -> None:
        ...     raise RobotError("ERR_BUSINESS_TECH_DOC_NOT_FOUND", "there is no document 8")
        >>> result = robot.run(missing, correlation_id="document-8")
        >>> result.done, result.attempts, [action.value for action in sink.done]
        (False, 1, ['deferred_retry', 'journal', 'incident'])
        """
        _check_given(self.policy, validate, cache_key)

        def validated(call: Call) -> T:
            if validate and call.attempt - 1 == self.policy.validate_before_repeat:
                validate()
            return work(call)

        self._check_mode()
        execution = self._execution(correlation_id, input_data)
        with execution.run.ending():
            result = self._ended(execution, self._guard(execution.observe).outcome(validated), partly_done)
        return result if cache_key is None else self._cached(cache_key, result)

    def _cached(self, key: str, result: Result[T]) -> Result[T]:
        """Cache the value of a success, or add a cached value to a failure. An error of the cache is only logged."""
        rules = self.policy.cache or CACHED_BY_DEFAULT
        cache = Cache(self._states, self._ports.clock, rules.ttl_s)
        try:
            if result.done:
                cache.put(key, result.value)
            elif result.failures[0].error.error_class in rules.classes and (found := cache.get(key)):
                return result._replace(value=found[0], cached_age_s=found[1])
        except (RetakeError, ValueError) as error:
            _log.error("%s: the cached value of %s is not used or not renewed: %s", self.policy.id, key, error)
        return result

    def _ended(
        self, execution: Execution, outcome: GuardResult[T], partly_done: Callable[[], bool] = lambda: False
    ) -> Result[T]:
        if outcome.end is End.STOPPED:
            raise Stopped(f"{self.policy.id} was stopped after {outcome.attempts} attempts") from outcome.error
        if outcome.error is None:
            execution.run.done()
            tell_recovery(self._ports.sink, self.policy.id)
            return Result(outcome.value, (), outcome.attempts)
        rules = self.policy.compensation
        compensation = rules.actions if rules and _is_partly_done(self.policy.id, partly_done) else ()
        return Result(None, (execution.failed(outcome.error, compensation),), outcome.attempts)

    def due(self, now: datetime | None = None) -> list[Deferred]:
        """Return the deferred work that is due at `now`, earliest first. Raises StateError, StorageError."""
        return self.deferrals.due(now or self._ports.clock.now())

    def run_due(
        self, work: Callable[[Deferred, Call], T], *, validate: Callable[[Deferred], None] | None = None
    ) -> list[tuple[Deferred, Result[T]]]:
        """Do each piece of deferred work that is due now, once, as `run` does, and return the results.

        A piece is removed when it has ended, unless the policy defers it again. Of several callers only one gets each
        piece. If this process dies, or takes more than an hour for one attempt, the work is due again, so `work` may be
        started a second time; a process that was too slow makes no further attempt, and returns no result of it. Raises
        what `run` raises, StateError and StorageError; work that was not done stays due.
        """
        self._check_mode()
        ended = []
        for taken in (self.deferrals.take(it.key) for it in self.due()):  # lazily: each is taken just before it is done
            if taken:
                try:
                    ended.append((taken, self._run_again(taken, work, validate)))
                except TakenOver as error:
                    _log.warning("%s: %s", self.policy.id, error)
        return ended

    def _run_again(
        self, taken: Deferred, work: Callable[[Deferred, Call], T], validate: Callable[[Deferred], None] | None
    ) -> Result[T]:
        def kept(call: Call) -> T:
            nonlocal taken
            if call.attempt > 1:
                taken = self.deferrals.renew(taken)
            return work(taken, call)

        try:
            result = self.run(
                kept,
                correlation_id=taken.correlation_id,
                input_data=taken.input_data,
                validate=partial(validate, taken) if validate else None,
            )
        except BaseException:
            self.deferrals.give_back(taken)
            raise
        self.deferrals.done(taken)
        return result

    def validate(
        self,
        measure: Callable[[Call], step_validation.Number],
        allowed: step_validation.Grid,
        *,
        correlation_id: str,
        input_data: Mapping[str, Any] | None = None,
    ) -> Result[step_validation.StepVerdict]:
        """Validate the number that `measure` returns by the policy's [validation].

        Measuring is retried as the policy says. A refused number is a failure, whose record contains the suggested
        value. Raises Stopped, any exception of `measure` that is not a CodedError, and ValueError for a robot whose
        policy has no [validation].
        """
        if (rules := self.policy.validation) is None:
            raise ValueError(f"{self.policy.id} validates nothing: its policy has no [validation]")
        self._check_mode()
        execution = self._execution(correlation_id, input_data)

        def judged(call: Call) -> step_validation.StepVerdict:
            value = measure(call)
            try:
                verdict = step_validation.validate(value, allowed, rules)
            except (ValueError, ArithmeticError) as error:
                raise RobotError(step_validation.OUT_OF_RANGE, f"{value!r:.60} is not a number on any grid") from error
            execution.add_context(value=str(verdict.value), nearest=str(verdict.nearest))
            verdict.passed()
            return verdict

        with execution.run.ending():
            result = self._ended(execution, self._guard(execution.observe).outcome(judged))
        if (verdict := result.value) and (wrong := verdict.wrong):
            _log.warning("%s: %s (%s)", self.policy.id, wrong, verdict.finding)
            if verdict.finding is step_validation.StepFinding.CORRECTED:
                execution.corrected(wrong)
        return result

    def create(
        self, parts: creation.CreationParts[T], data: Mapping[str, Any], *, correlation_id: str, key: str | None = None
    ) -> Result[creation.Created[T]]:
        """Return the item that `data` describe, created once no matter how often it is requested.

        After the number of failures in a row that the policy names, nothing more is created, and the sink is told once.
        `key` is the item's idempotency key if the policy has `key_from = "item"`; otherwise the key is made from the
        data. Raises Stopped, StorageError, and ValueError for a robot whose policy has no such creation, or takes its
        key from elsewhere.
        """
        self._check_mode()
        execution = self._execution(correlation_id, data)
        with execution.run.ending():
            creator = self.creator(parts, execution.observe)
            try:
                created = creator.create(data, key)
            except ReadOnly as error:  # the sink was told when read-only mode began
                return Result(None, (execution.failed(error, follows=()),), execution.attempts)
            except CodedError as error:
                begins = creator.read_only_began
                return Result(None, (execution.failed(error, read_only_begins=begins),), execution.attempts)
            execution.run.done()
        if created.how is not creation.How.FOUND:  # finding an existing item does not show that creating works
            tell_recovery(self._ports.sink, self.policy.id)
        return Result(created, (), execution.attempts)

    def creator(
        self, parts: creation.CreationParts[T], observe: Callable[[Tried], None] = lambda tried: None
    ) -> creation.Creator[T]:
        """Return the creator that `create` uses.

        An operator uses it to end read-only mode (`probe`, `reset`), and a program to roll back what was not confirmed
        in time (`unconfirmed.roll_back_due`). Raises ValueError, as `create` does.
        """
        clock, policy = self._ports.clock, creation_policy(self.policy)
        return creation.Creator(self.policy.id, parts, self._guard(observe), clock, policy, self._states)

    def create_all(
        self, parts: batch.BatchParts[T], items: Iterable[batch.BatchItem], *, correlation_id: str
    ) -> Result[batch.BatchReport[T]]:
        """Create many items in batches; the report has the result of each.

        Items that failed with the same error are one failure. Raises Stopped, and ValueError for a robot whose policy
        has no batches.
        """
        self._check_mode()
        ports = self._ports
        policy, breaker = batch_policy(self.policy), self._breaker
        batches = batch.Batches(parts, policy, ports.clock, ports.random, stop=ports.stop, breaker=breaker)
        run = self._runs.begin(correlation_id)
        with run.ending():
            report = batches.run(keyed(self.policy, items))
            failures = self._batch_failures(report, correlation_id, run)
            run.done()
        if report.statistics.created and not failures:
            tell_recovery(self._ports.sink, self.policy.id)
        return Result(report, failures, report.statistics.tally.calls)

    def _batch_failures(self, report: batch.BatchReport[T], correlation_id: str, run: RobotRun) -> tuple[Failure, ...]:
        """Hand in the actions that follow the failures of items, which are one failure for each error code."""
        failed: dict[str, tuple[CodedError, list[str]]] = {}
        for key, ended in report.ended.items():
            if ended.error:
                failed.setdefault(ended.error.code, (ended.error, []))[1].append(key)
        figures = {**report.statistics._asdict(), "tally": report.statistics.tally._asdict()}
        failures = []
        # Critical errors first: the run ends with the first failure, and the metrics count class C.
        for error, keys in sorted(failed.values(), key=lambda it: it[0].error_class is not ErrorClass.CRITICAL):
            given, context = {"items": keys}, {"statistics": figures}
            execution = self._execution(correlation_id, given, context, done_already=DONE_BY_BATCHES, run=run)
            execution.attempts = 1 + max(report.ended[key].retries for key in keys)
            failures.append(execution.failed(error))
        return tuple(failures)

    def _check_mode(self) -> None:
        """Raise RobotDegraded if the robot may not run in the current mode."""
        mode = self._ports.mode()
        if not may_run(self.policy.id, mode):
            raise RobotDegraded(self.policy.id, mode)

    def _guard(self, observe: Callable[[Tried], None]) -> Guard:
        ports, retry = self._ports, self.policy.retry
        return Guard(retry, ports.clock, ports.random, breaker=self._breaker, stop=ports.stop, observe=observe)

    def _execution(
        self,
        correlation_id: str,
        input_data: Mapping[str, Any] | None,
        context: Mapping[str, Any] | None = None,
        *,
        done_already: frozenset[Do] = frozenset(),
        run: RobotRun | None = None,
    ) -> Execution:
        return Execution(
            policy=self.policy,
            ports=self._ports,
            correlation_id=correlation_id,
            input_data=input_data or {},
            context=context or {},
            done_already=done_already,
            deferrals=self.deferrals,
            run=run or self._runs.begin(correlation_id),
        )


def _is_partly_done(robot_id: str, partly_done: Callable[[], bool]) -> bool:
    try:
        return partly_done()
    except Exception as error:  # noqa: BLE001  it may ask the system that has just failed
        _log.error("%s: the work counts as partly done, since that cannot be found out: %s", robot_id, in_words(error))
        return True


def _check_given(policy: RobotPolicy, validate: Callable[[], None] | None, cache_key: str | None) -> None:
    """Raise ValueError for arguments of `Robot.run` that would fail only after the work, and so lose its result."""
    if policy.validate_before_repeat and validate is None:
        raise ValueError(f"{policy.id} validates before retry {policy.validate_before_repeat}: with what?")
    if not isinstance(cache_key, str | None):
        raise ValueError(f"cache_key: {cache_key!r} is not text")  # noqa: TRY004  as for correlation_id
