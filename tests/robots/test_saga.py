"""Sagas: done, undone, and continued by another process after a death."""

from collections.abc import Callable
from typing import Any

import pytest

from retake.bucket import Conflict
from retake.clock import FakeClock
from retake.errors import Code, CodedError, LeaseLost, OutcomeUnknown, RobotError, StateError, Stopped, StorageError
from retake.retrying.state_store import MemoryStateStore, StateStore
from retake.robots.saga import Saga, SagaUndone, Step

Open = Callable[[], StateStore]
CIRCULAR = "ERR_BUSINESS_CIRCULAR_REFERENCE"
LOCKED = "ERR_TEMPORARY_REFERENCE_INTEGRITY"


class Links:
    """The effects of the steps, and their undoing."""

    def __init__(self, names: str = "abc") -> None:
        self.names = names
        self.log: list[str] = []
        self.there: set[str] = set()
        self.errors: dict[str, list[BaseException]] = {}  # by "do a" or "undo a", one after another

    def _act(self, what: str, effect: Callable[[], object]) -> None:
        self.log.append(what)
        if errors := self.errors.get(what):
            raise errors.pop(0)
        effect()

    @property
    def steps(self) -> list[Step]:
        return [
            Step(
                name,
                lambda name=name: self._act(f"do {name}", lambda: self.there.add(name)),
                lambda name=name: self._act(f"undo {name}", lambda: self.there.discard(name)),
            )
            for name in self.names
        ]

    def take_log(self) -> list[str]:
        log, self.log = self.log, []
        return log


@pytest.fixture
def links() -> Links:
    return Links()


def test_the_steps_are_done_in_their_order_and_once(opened: Open, clock: FakeClock, links: Links) -> None:
    assert Saga(opened(), clock).run("link-7", links.steps) is None
    assert links.take_log() == ["do a", "do b", "do c"]
    Saga(opened(), clock).run("link-7", links.steps)
    assert links.take_log() == []
    Saga(opened(), clock).run("link-8", links.steps)
    assert links.take_log() == ["do a", "do b", "do c"]


@pytest.mark.parametrize("error", [RobotError(CIRCULAR, "a → b → a"), ZeroDivisionError("a bug")])
def test_an_error_undoes_what_was_done_the_last_first_and_is_raised(
    opened: Open, clock: FakeClock, links: Links, error: Exception
) -> None:
    links.errors = {"do c": [error]}
    with pytest.raises(type(error)) as caught:
        Saga(opened(), clock).run("link-7", links.steps)
    assert caught.value is error
    assert links.take_log() == ["do a", "do b", "do c", "undo b", "undo a"]
    assert links.there == set()
    Saga(opened(), clock).run("link-7", links.steps)  # from the beginning
    assert links.take_log() == ["do a", "do b", "do c"]
    assert links.there == {"a", "b", "c"}


def test_an_error_of_the_first_step_leaves_nothing_to_undo(clock: FakeClock, links: Links) -> None:
    links.errors = {"do a": [RobotError(LOCKED, "locked")]}
    with pytest.raises(RobotError, match="locked"):
        Saga(MemoryStateStore(), clock).run("link-7", links.steps)
    assert links.take_log() == ["do a"]


def test_a_step_of_unknown_outcome_is_undone_too(clock: FakeClock, links: Links) -> None:
    links.errors = {"do b": [OutcomeUnknown(Code.TIMEOUT, "no answer")]}
    with pytest.raises(OutcomeUnknown):
        Saga(MemoryStateStore(), clock).run("link-7", links.steps)
    assert links.take_log() == ["do a", "do b", "undo b", "undo a"]


def test_undoing_that_fails_goes_on_there_the_next_time_and_the_first_error_is_raised_then(
    opened: Open, clock: FakeClock, links: Links
) -> None:
    links.errors = {"do c": [RobotError(CIRCULAR, "a → b → a")], "undo b": [RobotError(LOCKED, "locked")] * 2}
    for expected in (["do a", "do b", "do c", "undo b"], ["undo b"]):
        with pytest.raises(RobotError, match="locked") as caught:
            Saga(opened(), clock).run("link-7", links.steps)
        assert caught.value.code == LOCKED
        assert links.take_log() == expected
    with pytest.raises(SagaUndone, match=r"^a → b → a \(the saga link-7 is undone\)$") as undone:
        Saga(opened(), clock).run("link-7", links.steps)
    assert undone.value.code == CIRCULAR
    assert links.take_log() == ["undo b", "undo a"]
    Saga(opened(), clock).run("link-7", links.steps)
    assert links.take_log() == ["do a", "do b", "do c"]


def test_a_bug_that_was_undone_by_another_process_is_reported_as_one(clock: FakeClock, links: Links) -> None:
    states = MemoryStateStore()
    links.errors = {"do b": [ValueError("https://example.org/?signature=1")], "undo a": [KeyboardInterrupt()]}
    with pytest.raises(KeyboardInterrupt):
        Saga(states, clock).run("link-7", links.steps)
    with pytest.raises(SagaUndone, match=r"^ValueError \(the saga") as caught:
        Saga(states, clock).run("link-7", links.steps)
    assert caught.value.code == "ERR_CRITICAL_SAGA_FAILED"
    assert isinstance(caught.value, CodedError)


@pytest.mark.parametrize("request_", [Stopped("asked to"), LeaseLost("taken over"), KeyboardInterrupt()])
def test_a_request_to_stop_undoes_nothing_and_the_saga_goes_on_with_that_step(
    opened: Open, clock: FakeClock, links: Links, request_: BaseException
) -> None:
    links.errors = {"do b": [request_]}
    with pytest.raises(type(request_)):
        Saga(opened(), clock).run("link-7", links.steps)
    Saga(opened(), clock).run("link-7", links.steps)
    assert links.take_log() == ["do a", "do b", "do b", "do c"]


def test_a_step_that_was_under_way_at_a_death_and_fails_then_is_undone_too(clock: FakeClock, links: Links) -> None:
    states = MemoryStateStore()
    links.errors = {"do b": [KeyboardInterrupt(), RobotError(CIRCULAR, "there already")]}
    with pytest.raises(KeyboardInterrupt):
        Saga(states, clock).run("link-7", links.steps)
    links.there.add("b")  # it had been carried out
    with pytest.raises(RobotError, match="there already"):
        Saga(states, clock).run("link-7", links.steps)
    assert links.take_log() == ["do a", "do b", "do b", "undo b", "undo a"]
    assert links.there == set()


def test_a_step_that_was_under_way_is_undone_also_where_a_new_version_has_one_before_it(
    clock: FakeClock, links: Links
) -> None:
    store = MemoryStateStore()
    links.errors = {"do b": [KeyboardInterrupt()]}
    with pytest.raises(KeyboardInterrupt):
        Saga(store, clock).run("link-7", links.steps)
    links.names, links.there = "axbc", {"a", "b"}  # b took effect
    links.errors = {"do x": [RobotError(CIRCULAR, "a → b → a")]}
    with pytest.raises(RobotError, match="a → b → a"):
        Saga(store, clock).run("link-7", links.steps)
    assert links.take_log() == ["do a", "do b", "do b", "do x", "undo b", "undo a"]
    assert links.there == set()


def test_a_store_that_is_away_undoes_nothing(clock: FakeClock, links: Links) -> None:
    class Away(MemoryStateStore):
        changes = 0

        def change(self, name: str, change: Any) -> Any:
            self.changes += 1
            if self.changes == 3:
                raise StorageError("away")
            return super().change(name, change)

    states = Away()
    with pytest.raises(StorageError):
        Saga(states, clock).run("link-7", links.steps)
    Saga(states, clock).run("link-7", links.steps)
    assert links.take_log() == ["do a", "do a", "do b", "do c"]


def test_the_earlier_of_two_processes_stops_before_its_next_step(opened: Open, clock: FakeClock, links: Links) -> None:
    other = Links()
    first, *rest = links.steps

    def interrupted() -> None:
        first.do()
        Saga(opened(), clock).run("link-7", other.steps)

    with pytest.raises(Conflict, match="another process has taken over the saga link-7"):
        Saga(opened(), clock).run("link-7", [first._replace(do=interrupted), *rest])
    assert links.take_log() == ["do a"]
    assert other.take_log() == ["do a", "do b", "do c"]


def test_steps_that_do_not_fit_what_is_on_record_are_refused(clock: FakeClock, links: Links) -> None:
    states = MemoryStateStore()
    with pytest.raises(ValueError, match="two steps of the same name: a, a"):
        Saga(states, clock).run("link-7", Links("aa").steps)
    links.errors = {"do b": [Stopped("asked to")]}
    with pytest.raises(Stopped):
        Saga(states, clock).run("link-7", links.steps)
    with pytest.raises(ValueError, match="has begun steps that it is not given: a, b"):
        Saga(states, clock).run("link-7", Links("xyz").steps)
    Saga(states, clock).run("link-7", Links("abcd").steps)  # one that comes after them
    states.change(
        "saga.link-8", lambda _: ({**(states.read("saga.link-7") or {}), "phase": "undoing", "done": [""]}, 0)
    )
    with pytest.raises(ValueError, match="has begun steps that it is not given: "):
        Saga(states, clock).run("link-8", links.steps)


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"phase": "asleep", "done": [], "under_way": None, "code": None, "message": None},
        {"phase": "undoing", "done": ["a"], "under_way": None, "code": "wrong", "message": None},
        {"phase": "doing", "done": None, "under_way": None, "code": None, "message": None},
        {"phase": "doing", "done": {}, "under_way": None, "code": None, "message": None},
        {"phase": "doing", "done": "", "under_way": None, "code": None, "message": None},
        {"phase": "undoing", "done": ["a", "a"], "under_way": None, "code": None, "message": None},
    ],
)
def test_progress_that_makes_no_sense_is_reported_and_left_as_it_is(clock: FakeClock, links: Links, raw: Any) -> None:
    states = MemoryStateStore()
    states.change("saga.link-7", lambda _: (raw, None))
    with pytest.raises(StateError, match="left as it is"):
        Saga(states, clock).run("link-7", links.steps)
    assert (states.read("saga.link-7"), links.log) == (raw, [])
