"""Methods of pipelines of your own that hang: each is named with the line, and delays the others only once.

Nothing here sleeps: what hangs waits for an event, which its test sets once everything is checked.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hanging_calls import Hanging
from own_poems import POEM, Poems, guarded
from waiting import LONG_S

from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock
from retake.operations import read_limit, status
from retake.operations.breakers import breaker_states
from retake.operations.foreign_calls import PipelineFault
from retake.operations.guarded_pipeline import GuardedPipeline
from retake.operations.loader import PipelineNotLoaded, load_pipeline
from retake.operations.pipelines import Operations, Terms
from retake.operations.port import ItemOrder, OrderResult, Verb
from retake.paid.caps import Caps
from retake.paid.day_book import Limits
from retake.retrying.time_limit import abandoned
from retake.settings.shared import BreakerSettings

RETRY = ItemOrder(Verb.RETRY, POEM)

hanging = Hanging()


def hangs(*_: object) -> Any:
    hanging.here()
    raise KeyError("late")


class DeadDatabase(Poems):
    """One whose program connects when it is made."""

    def __init__(self, *given: Any) -> None:
        hangs()


@pytest.fixture(autouse=True)
def nothing_goes_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    hanging.begin(monkeypatch)
    yield
    hanging.end()


def test_a_state_that_hangs_is_told_with_its_place_and_the_others_are_still_shown() -> None:
    bucket, clock = MemoryBucket(), FakeClock()
    fine, other = GuardedPipeline(Poems(bucket, clock)), guarded(describe=hangs)
    other.name, other.prefix, other.bucket = "others", "others/", bucket.part("others/")
    terms = Terms(None, BreakerSettings(), 900, 4, 1800, own_pipelines=["poems", "others"])
    operations = Operations([other, fine], bucket, clock, caps=Caps(bucket, clock, Limits(None, None)), terms=terms)
    wrong, right = status.statuses(operations, breaker_states(operations))
    assert (right.state.words, right.needs) == ("rhyming", ())
    assert (wrong.state.words, wrong.state.readable) == ("its state cannot be told", False)
    with pytest.raises(PipelineFault, match=r"^Poems.state has not returned within 0.05 s \(line \d+ of .*_calls.py\)"):
        raise PipelineFault(wrong.needs[0])


READS: dict[str, Callable[[GuardedPipeline], object]] = {
    "present": lambda it: it.present(),
    "evidence": lambda it: it.evidence(POEM),
    "paid_since": lambda it: it.paid_since(""),
    "plan": lambda it: it.plan(RETRY),
}


@pytest.mark.parametrize("method", READS)
def test_each_method_that_reads_has_a_limit(method: str) -> None:
    with pytest.raises(PipelineFault, match=rf"^Poems\.{method} has not returned within 0\.05 s \(line"):
        READS[method](guarded(**{method: hangs}))


def test_a_check_that_hangs_is_a_fault() -> None:
    [found] = guarded(check=hangs).check()
    assert found.found.startswith("Poems.check has not returned within 0.05 s (line")


def test_while_a_call_hangs_no_other_is_made_and_then_it_is_asked_again() -> None:
    it = guarded(present=hangs)
    with pytest.raises(PipelineFault):
        it.present()
    for again in (it, guarded()):  # the next look of --watch loads it anew
        with pytest.raises(PipelineFault, match=r"^Poems.plan was not called: an earlier call has not returned yet \("):
            again.plan(RETRY)
    assert abandoned() == 1
    hanging.end()
    with pytest.raises(PipelineFault, match=r"^Poems.present failed: KeyError: 'late'"):
        it.present()


def test_one_that_hangs_when_it_is_made_cannot_be_loaded() -> None:
    wanted = r"cannot be used: DeadDatabase in .*test_hanging_pipelines.py has not returned within 0.05 s \(line \d+ of"
    with pytest.raises(PipelineNotLoaded, match=wanted):
        load_pipeline("poems", f"{__name__}:DeadDatabase", MemoryBucket(), FakeClock())


def test_an_order_is_waited_for_however_long_it_takes_and_that_is_logged() -> None:
    told: list[str] = []
    logged = threading.Event()

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())
            logged.set()

    def carry_out(order: ItemOrder, agreed: str) -> OrderResult:
        assert logged.wait(LONG_S)
        return OrderResult(order, "the muse sings again")

    log, handler = logging.getLogger(read_limit.__name__), Told()
    log.addHandler(handler)
    try:
        assert guarded(carry_out=carry_out).carry_out(RETRY).what == "the muse sings again"
    finally:
        log.removeHandler(handler)
    assert told[0].startswith("Poems.carry_out has not returned within 0.05 s. It may be changing something")
