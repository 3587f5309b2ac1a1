"""Bugs in a pipeline of your own that PIPELINES names: each is told with its place, and hides nothing of others."""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from own_poems import POEM, Poems, guarded

from retake.bucket import ANY
from retake.bucket.memory import MemoryBucket
from retake.checking import CheckFinding, CheckView, Examination, found
from retake.checking.codes import NOTHING_HERE
from retake.clock import FakeClock
from retake.errors import StateError, StorageError
from retake.exit_codes import ExitCode
from retake.operations import letters, spend, status
from retake.operations.attempts import StepAttempt
from retake.operations.breakers import breaker_states
from retake.operations.examinations import check_bucket
from retake.operations.finding import Verdict
from retake.operations.foreign_calls import PipelineFault
from retake.operations.guarded_pipeline import GuardedPipeline
from retake.operations.orders import plan_order, target
from retake.operations.pipelines import Operations, Terms
from retake.operations.port import ItemOrder, OperatedPipeline, PaidWork, PipelineState, Present, Verb, Waiting
from retake.operations.store_checks import document_checks
from retake.paid.caps import Caps
from retake.paid.day_book import Known, Limits
from retake.retrying.dead_letters import DeadLetters
from retake.runs.run import UnknownRun
from retake.settings.shared import BreakerSettings

RETRY = ItemOrder(Verb.RETRY, POEM)
CALLS: dict[str, Callable[[OperatedPipeline], object]] = {
    "has_setting": lambda it: it.has_setting("WORKFLOW.max_retries"),
    "leasable": lambda it: it.leasable(),
    "present": lambda it: it.present(),
    "evidence": lambda it: it.evidence(POEM),
    "paid_since": lambda it: it.paid_since(""),
    "plan": lambda it: it.plan(RETRY),
    "carry_out": lambda it: it.carry_out(RETRY),
    "lower_flag": lambda it: it.lower_flag(),
}


def bug(*_: object) -> Any:
    raise KeyError("verse")


def leaves(*_: object) -> Any:
    raise SystemExit(3)


def nothing(*_: object) -> Any:
    return None


def beside(other: GuardedPipeline) -> Operations:
    """The poems without a bug, and beside them the `other`."""
    bucket, clock = MemoryBucket(), FakeClock()
    fine = GuardedPipeline(Poems(bucket, clock))
    other.name, other.prefix, other.bucket = "others", "others/", bucket.part("others/")
    terms = Terms(None, BreakerSettings(), 900, 4, 1800, own_pipelines=["poems", "others"])
    return Operations([fine, other], bucket, clock, caps=Caps(bucket, clock, Limits(None, None)), terms=terms)


@pytest.mark.parametrize("method", CALLS)
def test_a_method_that_raises_is_told_with_its_place(method: str) -> None:
    with pytest.raises(PipelineFault, match=rf"^Poems.{method} failed: KeyError: 'verse' \(line \d+ of .*lines.py\)"):
        CALLS[method](guarded(**{method: bug}))
    with pytest.raises(PipelineFault, match="SystemExit: 3"):
        CALLS[method](guarded(**{method: leaves}))


@pytest.mark.parametrize("method", [it for it in CALLS if it != "leasable"])
def test_a_result_of_another_type_is_told(method: str) -> None:
    with pytest.raises(PipelineFault, match=rf"^Poems.{method}: the value is of type NoneType, and must be \w+"):
        CALLS[method](guarded(**{method: nothing}))


def test_errors_that_the_port_allows_are_its_own() -> None:
    def away(*_: object) -> PipelineState:
        raise StorageError("the bucket is away")

    with pytest.raises(StorageError, match="the bucket is away"):
        guarded(state=away).state(None, lambda vendor: "")


NAIVE = datetime(2026, 1, 1)
WRONG = {
    "None": (None, "the value is of type NoneType, and must be PipelineState"),
    "words": (PipelineState(None), "words is of type NoneType, and must be str"),  # type: ignore[arg-type]
    "needs": (PipelineState("", needs="one"), r"needs is of type str, and must be tuple\[str, ...\]"),  # type: ignore[arg-type]
    "need": (PipelineState("", needs=("one", 2)), r"needs\[1\] is of type int, and must be str"),  # type: ignore[arg-type]
    "step": (PipelineState("", step="rhyme"), "step is of type str, and must be StepAttempt"),  # type: ignore[arg-type]
    "since": (PipelineState("", waiting=Waiting("muse", "a rhyme", NAIVE)), "waiting.since has no time zone"),
}  # fmt: skip


@pytest.mark.parametrize(("found", "why"), WRONG.values(), ids=list(WRONG))
@pytest.mark.parametrize("method", ["describe", "state"])
def test_a_state_of_another_type_is_told_and_keeps_nothing_from_being_told_about_the_others(
    method: str, found: Any, why: str
) -> None:
    operations = beside(guarded(**{method: lambda *_: found}))
    fine, wrong = status.statuses(operations, breaker_states(operations))
    assert (fine.state.words, fine.needs) == ("rhyming", ())
    assert (wrong.state.words, wrong.state.readable) == ("its state cannot be told", False)
    with pytest.raises(PipelineFault, match=f"^Poems.{method}: {why}$"):
        raise PipelineFault(wrong.needs[0])


def test_a_state_has_no_more_text_than_fits_a_page() -> None:
    state = PipelineState("w" * 9999, next_tick="n" * 9999, needs=("x" * 9999,) * 9999)
    found = guarded(describe=lambda *_: state).state(None, lambda vendor: "")
    assert (len(found.words), len(found.next_tick), len(found.needs), len(found.needs[0])) == (1000, 1000, 100, 1000)
    many = [Present(f"poem-{n}", StepAttempt("rhyme", 1, 3)) for n in range(9999)]
    assert len(guarded(present=lambda: many).present()) == 1000


def test_commands_about_all_say_what_is_wrong_with_one_and_go_on() -> None:
    operations = beside(guarded(paid_since=bug, check=bug, examinations=bug, evidence=bug, plan=bug, vendors={}))
    report = spend.spend_report(operations, 30)
    assert report.number == 1
    assert report.unreadable[0].startswith("others is left out: Poems.paid_since failed: KeyError: 'verse'")
    [finding, _] = [*document_checks(operations)]
    assert (finding.verdict, finding.check, finding.found.startswith("Poems.check failed: ")) == (
        Verdict.FAULT, "others", True,
    )  # fmt: skip
    told = [found.what for found in check_bucket(operations).findings if found.where == "others/"]
    assert [it.partition(" (line")[0] for it in told] == ["Poems.examinations failed: KeyError: 'verse'"]
    DeadLetters(operations.pipelines[1].bucket, operations.clock).put("poem-0", "poem", {}, {"message": "no rhyme"})
    [letter] = letters.list_letters(operations, 10)
    assert letter.requeue()[0].startswith("not now: Poems.plan failed: ")


def test_an_order_to_one_with_a_bug_fails_with_its_place() -> None:
    operations = beside(guarded(present=lambda: [Present("poem-2", StepAttempt("rhyme", 1, 3))], plan=bug))
    with pytest.raises(PipelineFault, match=r"Poems.plan failed: KeyError: 'verse' \(line"):
        plan_order(target(operations, "poem-2"), Verb.RETRY)
    with pytest.raises(PipelineFault, match=r"must be OrderResult. Look whether poem-1 was changed all the same$"):
        guarded(carry_out=nothing).carry_out(RETRY)


@pytest.mark.parametrize("method", ["present", "describe"])
def test_an_order_waits_until_each_pipeline_can_say_whether_the_id_is_its_own_or_one_is_named(method: str) -> None:
    operations = beside(guarded(**{method: bug}))
    for text in (POEM, "poem-9"):  # the poems have the first one; the others may have both
        why = rf"\). So whether {text} is one of others is not known: mend that, or name the --channel$"
        with pytest.raises(StateError, match=rf"^Poems.{method} failed: KeyError: 'verse' \(line \d+ of .*{why}"):
            target(operations, text)
    named = operations.of([operations.pipelines[0]], named=True)
    assert target(named, POEM).item_id == POEM
    with pytest.raises(UnknownRun, match="there is no run and no generation 'poem-9' on record"):
        target(named, "poem-9")
    with pytest.raises(StateError, match=rf"^Poems.{method} failed: KeyError: 'verse' \(line \d+ of [^ ]*\)$"):
        target(operations.of([operations.pipelines[1]], named=True), POEM)


def test_an_attribute_of_another_type_is_told_when_it_is_loaded() -> None:
    with pytest.raises(PipelineFault, match=r"^Poems\.vendors: the value is of type NoneType, and must be Mapping$"):
        guarded(vendors=None)


def test_the_bills_of_a_month_are_read_with_care() -> None:
    from retake.operations.port import PaidMonth

    month = PaidMonth(1, {"2026-01-01": {}}, {}, bug)  # type: ignore[dict-item]
    [found] = guarded(paid_since=lambda day: PaidWork([], Known(), months=[month])).paid_since("").months
    with pytest.raises(PipelineFault, match=r"^Poems.paid_since failed: KeyError"):
        found.bills()


class Verses(Examination):
    """An examination of a pipeline's own: each verse must rhyme."""

    title = "verses"

    def subjects(self, view: CheckView) -> Iterator[str]:
        yield from ("others/1", "others/2")

    def examine(self, view: CheckView, subject: str) -> Iterator[CheckFinding]:
        yield found(NOTHING_HERE, subject, "it does not rhyme")

    def repair(self, view: CheckView, subject: str) -> list[str]:
        return ["it rhymes"]

    def knows(self, key: str) -> bool:
        return key.startswith("others/")


def verses_and_a_bug(**methods: Any) -> Operations:
    wrong = Verses()
    wrong.title = "verses with a bug"
    for name, it in methods.items():
        setattr(wrong, name, it)
    return beside(guarded(examinations=lambda: [wrong, Verses()]))


def raises_late(*_: object) -> Iterator[Any]:
    yield found(NOTHING_HERE, "others/1", "it does not rhyme")
    raise KeyError("verse")


@pytest.mark.parametrize("method", ["subjects", "examine", "busy", "knows"])
@pytest.mark.parametrize("it", [bug, raises_late, lambda *_: [3]], ids=["raises", "raises late", "another type"])
def test_a_bug_of_an_examination_is_a_finding_and_the_others_go_on(method: str, it: Any) -> None:
    operations = verses_and_a_bug(**{method: it})
    operations.bucket.write("others/1", b"", ANY)
    report = check_bucket(operations)
    assert (report.exit_code, report.complete) == (ExitCode.TRY_LATER, False)
    told = {it.where: it.what for it in report.findings if it.what.startswith(f"Verses.{method}")}
    assert told, report.findings
    assert set(told) <= {"verses with a bug", "others/1", "others/2"}
    assert all("failed: KeyError: 'verse' (line" in it or "is of type" in it for it in told.values())
    assert [it.where for it in report.findings if it.what == "it does not rhyme"][-2:] == ["others/1", "others/2"]


def test_a_bug_of_a_repair_is_told_with_what_is_left() -> None:
    one = found(NOTHING_HERE, "others/1", "it does not rhyme")._replace(repairable=True)
    operations = verses_and_a_bug(repair=bug, examine=lambda *_: [one])
    told = [it.todo for it in check_bucket(operations, repair=True).findings if it.repairable]
    assert told[0].startswith("not repaired: Verses.repair failed: KeyError: 'verse' (line")


def test_an_examination_without_a_title_is_a_finding() -> None:
    found = check_bucket(verses_and_a_bug(title=None)).findings
    assert "Verses.title: the value is of type NoneType, and must be str" in [it.what for it in found]
