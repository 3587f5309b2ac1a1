"""Pipelines of your own that PIPELINES names: how they are loaded, what their base class gives, what is told of one
that cannot be loaded."""

import re
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from retake.bucket import ANY, Bucket
from retake.bucket.memory import MemoryBucket
from retake.clock import Clock, FakeClock
from retake.errors import Code, SettingsError, StateError, StorageError
from retake.operations import letters, spend, status
from retake.operations.attempts import StepAttempt
from retake.operations.breakers import breaker_states
from retake.operations.examinations import check_bucket
from retake.operations.finding import Verdict
from retake.operations.loader import load_pipeline, load_pipelines, with_own_ledgers
from retake.operations.orders import carry_out, plan_order, target
from retake.operations.own_pipeline import OwnPipeline
from retake.operations.pipelines import Operations, OwnLedger, Terms
from retake.operations.port import ItemOrder, OperatedPipeline, PipelineState, Refusal, Verb
from retake.operations.store_checks import document_checks
from retake.paid.caps import Caps, Today
from retake.paid.day_book import Limits
from retake.retrying.dead_letters import DeadLetters
from retake.runs.run import Run
from retake.runs.states import RunStatus
from retake.settings.shared import BreakerSettings

NUMBERS = count()

ERROR = {"error_id": "e1", "error_class": "A", "error_code": Code.TIMEOUT, "message": "slow"}

POEMS = """
from retake.operations.own_pipeline import OwnPipeline
from retake.operations.port import PipelineState

class Poems(OwnPipeline):
    def __init__(self, bucket, clock):
        super().__init__("poems", bucket, clock)

    def describe(self, today, vendor_off):
        return PipelineState("waits for a muse")

class Shelf:
    poems = Poems
"""

Written = Callable[[str], str]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    """Write a module into the current directory, and return its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [it for it in sys.path if it])
    before = set(sys.modules)

    def write(text: str) -> str:
        name = f"own_module_{next(NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
        return name

    yield write
    for name in set(sys.modules) - before:
        if name.startswith("own_module_"):
            del sys.modules[name]


def loaded(target: str, name: str = "poems") -> OperatedPipeline:
    return load_pipeline(name, target, MemoryBucket(), FakeClock())


class Poem(OwnPipeline):
    """One that implements no more than it must."""

    def __init__(self, whole: Bucket, clock: Clock) -> None:
        super().__init__("poems", whole, clock)
        self.shown: PipelineState | Exception = PipelineState(
            "rhyming", item_id="poem-1", step=StepAttempt("rhyme", 1, 3)
        )

    def describe(self, today: Today | StateError | None, vendor_off: Callable[[str], str]) -> PipelineState:
        if isinstance(self.shown, Exception):
            raise self.shown
        return self.shown


def operated(*pipelines: OperatedPipeline, bucket: Bucket, clock: Clock, url: str | None = None) -> Operations:
    terms = with_own_ledgers(Terms(url, BreakerSettings(), 900, 4, 1800, own_pipelines=["poems", "lost"]), [*pipelines])
    return Operations(pipelines, bucket, clock, caps=Caps(bucket, clock, Limits(None, None)), terms=terms)


# --- loading ----------------------------------------------------------------------------------------------------------


def test_a_module_in_the_current_directory_is_found(written: Written) -> None:
    name = written(POEMS)
    assert loaded(f"{name}:Poems").name == "poems"
    assert loaded(f"{name}:Shelf.poems").prefix == "poems/"


def test_no_file_there_takes_the_place_of_a_library(written: Written, tmp_path: Path) -> None:
    (tmp_path / "colorsys.py").write_text("raise RuntimeError")
    sys.modules.pop("colorsys", None)
    name = written(f"import colorsys\n{POEMS}")
    assert loaded(f"{name}:Poems").name == "poems"


def test_what_it_prints_while_it_is_imported_is_no_part_of_the_answer(
    written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded(f"{written(f'print(1){chr(10)}{POEMS}')}:Poems")
    assert capsys.readouterr() == ("", "1\n")


def test_a_module_that_changes_the_directory_does_not_change_where_the_bucket_is(
    written: Written, tmp_path: Path
) -> None:
    loaded(f"{written(f'import os{chr(10)}os.chdir({str(tmp_path.parent)!r}){chr(10)}{POEMS}')}:Poems")
    assert Path.cwd() == tmp_path


HALF = "class Half:\n    name = 'poems'\n    def __init__(self, bucket, clock): pass\n"
LIAR = f"{POEMS}\ndef make(bucket, clock):\n    it = Poems(bucket, clock)\n    it.%s\n    return it\n"
BROKEN = {
    "no_such_module": ("", "NONE:Poems", "NONE cannot be imported.*ModuleNotFoundError: No module named"),
    "import": ("import nothing_like_it", "MODULE:Poems", "No module named 'nothing_like_it' .line 1 of .*py"),
    "raises": ("\n1 / 0", "MODULE:Poems", "ZeroDivisionError: division by zero .line 2 of .*py"),
    "syntax": ("def", "MODULE:Poems", "SyntaxError: invalid syntax"),
    "exits": ("import sys\nsys.exit(3)", "MODULE:Poems", "SystemExit: 3 .line 2 of"),
    "lines": (
        "raise RuntimeError('a\\nb\\x1b' + 'c' * 9999)",
        "MODULE:Poems",
        "RuntimeError: a b c{200,290}\\S* .line",
    ),
    "attribute": (POEMS, "MODULE:Prose", r"MODULE.py has no such attribute: AttributeError: .*'Prose'"),
    "uncallable": ("Poems = 1", "MODULE:Poems", "Poems in .*MODULE.py cannot be called: it must take the bucket and"),
    "arguments": ("def make(): pass", "MODULE:make", "make in .*MODULE.py failed: TypeError: make.. takes 0"),
    "abstract": ("from retake.operations.own_pipeline import OwnPipeline", "MODULE:OwnPipeline", "failed: TypeError"),
    "nothing": ("def make(*_): pass", "MODULE:make", "NoneType has no bucket, carry_out, .*docs/add-a-pipeline.md"),
    "half": (
        HALF,
        "MODULE:Half",
        "Half has no bucket, carry_out, channel, check, evidence, examinations, has_setting, ",
    ),
    "name": (LIAR % "name = 'prose'", "MODULE:make", "its name is 'prose', and must be 'poems'"),
    "channel": (LIAR % "channel = 'north'", "MODULE:make", "its channel must be None"),
    "prefix": (LIAR % "prefix = ''", "MODULE:make", "its prefix is '', and must be 'poems/'"),
    "method": (LIAR % "state = 1", "MODULE:make", "not a method: state"),
    "ledger": (
        LIAR % "own_ledger = 'sqlite:x'",
        "MODULE:make",
        "own_ledger: the value is of type str, and must be OwnLedger",
    ),
}


@pytest.mark.parametrize(("text", "target", "why"), BROKEN.values(), ids=list(BROKEN))
def test_whatever_is_wrong_is_told_with_the_setting_its_value_and_the_cause(
    written: Written, text: str, target: str, why: str
) -> None:
    name = written(text)
    target, why = target.replace("MODULE", name), why.replace("MODULE", name)
    with pytest.raises(SettingsError, match=why) as caught:
        loaded(target)
    told = str(caught.value)
    assert told.startswith(f'PIPELINES.poems: "{target}" cannot be used: ')
    assert told.endswith(". Correct that, or remove the setting")
    assert len(told.splitlines()) == 1


def test_ctrl_c_ends_the_command_rather_than_the_loading_alone(written: Written) -> None:
    with pytest.raises(KeyboardInterrupt):
        loaded(f"{written('raise KeyboardInterrupt')}:Poems")


# --- one that cannot be loaded ----------------------------------------------------------------------------------------


def lost(bucket: Bucket, clock: Clock) -> Operations:
    """The poems, and beside them a pipeline that cannot be loaded."""
    [it] = load_pipelines({"lost": "no_such_module:Lost"}, bucket, clock)
    return operated(Poem(bucket, clock), it, bucket=bucket, clock=clock)


def test_one_that_cannot_be_loaded_keeps_nothing_from_being_told_about_the_others() -> None:
    bucket, clock = MemoryBucket(), FakeClock()
    operations = lost(bucket, clock)
    poems, it = status.statuses(operations, breaker_states(operations))
    assert (poems.state.words, poems.needs) == ("rhyming", ())
    assert (it.state.words, len(it.needs)) == ("cannot be loaded", 1)
    assert it.needs[0].startswith('PIPELINES.lost: "no_such_module:Lost" cannot be used: ')
    [left_out] = spend.spend_report(operations, 30).unreadable
    assert left_out.startswith("lost is left out: PIPELINES.lost: ")
    [finding, _] = [it for it in document_checks(operations) if it.verdict is not Verdict.OK or it.check == "documents"]
    assert (finding.verdict, finding.exit_code) == (Verdict.FAULT, 78)
    assert target(operations, "poem-1").pipeline.name == "poems"


def test_what_needs_it_fails_with_the_reason() -> None:
    bucket, clock = MemoryBucket(), FakeClock()
    _, it = lost(bucket, clock).pipelines
    order = ItemOrder(Verb.RETRY, "lost-1")
    for needing in (lambda: it.plan(order), lambda: it.carry_out(order), lambda: it.evidence("lost-1")):
        with pytest.raises(SettingsError, match=r"PIPELINES\.lost"):
            needing()
    with pytest.raises(SettingsError, match=r"PIPELINES\.lost"):
        load_pipeline("lost", "no_such_module:Lost", bucket, clock)


def test_a_check_says_that_it_could_not_look_at_it() -> None:
    bucket, clock = MemoryBucket(), FakeClock()
    bucket.write("lost/state.json", b"{}", ANY)
    report = check_bucket(lost(bucket, clock))
    assert (report.exit_code, report.complete) == (75, False)
    [finding] = report.findings
    assert (finding.code, finding.where, "PIPELINES.lost" in finding.what) == ("unreadable", "lost/", True)


# --- the base class ---------------------------------------------------------------------------------------------------


def test_a_description_is_all_that_it_needs() -> None:
    bucket, clock = MemoryBucket(), FakeClock()
    it: OperatedPipeline = Poem(bucket, clock)
    operations = operated(it, bucket=bucket, clock=clock)
    assert [shown.item_id for shown in it.present()] == ["poem-1"]
    assert it.evidence("poem-1") == ([], [], StepAttempt("rhyme", 1, 3), "")
    assert it.evidence("poem-2").step is None
    assert [(found.check, found.verdict) for found in it.check()] == [("poems", Verdict.OK)]
    assert (it.has_setting("RETRYING.strategy"), it.lower_flag(), it.lease_name) == (False, False, "poems")
    assert spend.spend_report(operations, 30).number == 0


@pytest.mark.parametrize("verb", [Verb.RETRY, Verb.SKIP, Verb.CANCEL, Verb.REQUEUE, Verb.ROLLBACK])
def test_an_order_that_it_does_not_know_is_refused(verb: Verb) -> None:
    it = Poem(MemoryBucket(), FakeClock())
    for refused in (it.plan, it.carry_out):
        with pytest.raises(Refusal, match=f"poem-1: poems takes no order to {verb}. Nothing was changed"):
            refused(ItemOrder(verb, "poem-1"))


def test_its_dead_letters_are_listed_and_dropped_under_its_lease() -> None:
    bucket, clock = MemoryBucket(), FakeClock()
    it = Poem(bucket, clock)
    kept = DeadLetters(it.bucket, clock)
    kept.put("poem-0", "poem", {"topic": "rain"}, ERROR)
    operations = operated(it, bucket=bucket, clock=clock)
    [found] = letters.list_letters(operations, 10)
    assert letters.find_letter(operations, "poems/poem-0").letter == found.letter
    with pytest.raises(Refusal, match="has changed: it would lose its report"):
        it.carry_out(ItemOrder(Verb.DROP, "poem-0"), "something else")
    assert found.drop()["what"] == "the dead letter poem-0 is dropped"
    with pytest.raises(Refusal, match="no dead letter 'poem-0'"):
        it.carry_out(ItemOrder(Verb.DROP, "poem-0"))
    assert it.bucket.holder("poems") is None


def test_a_document_that_cannot_be_read_is_told_by_status_doctor_and_check() -> None:
    bucket, clock = MemoryBucket(), FakeClock()
    it = Poem(bucket, clock)
    it.shown = StateError("poem.json: not JSON")
    bucket.write("poems/poem.json", b"{", ANY)
    assert [(found.verdict, found.found) for found in it.check()] == [(Verdict.FAULT, "poem.json: not JSON")]
    operations = operated(it, bucket=bucket, clock=clock)
    report = check_bucket(operations)
    assert [(found.code, found.what) for found in report.findings] == [("unreadable", "poem.json: not JSON")]
    [shown] = status.statuses(operations, breaker_states(operations))
    assert (shown.state.readable, shown.needs, it.evidence("poem-1")) == (
        False,
        ("poem.json: not JSON",),
        ([], [], None, ""),
    )


def test_a_bug_in_its_description_is_told_with_its_place_and_keeps_nothing_from_being_told_about_the_others() -> None:
    bucket, clock = MemoryBucket(), FakeClock()
    it, other = Poem(bucket, clock), Poem(bucket, clock)
    it.shown = KeyError("verse")
    operations = operated(it, other, bucket=bucket, clock=clock)
    shown, fine = status.statuses(operations, breaker_states(operations))
    assert re.fullmatch(
        r"Poem.describe failed: KeyError: 'verse' \(line \d+ of .*test_own_pipelines.py\)", shown.needs[0]
    )
    assert (fine.needs, fine.state.words) == ((), "rhyming")
    it.shown = StorageError("the bucket is away")
    with pytest.raises(StorageError):
        it.state(None, lambda vendor: "")


def test_check_takes_every_key_of_its_part_for_its_own() -> None:
    bucket, clock = MemoryBucket(), FakeClock()
    for key in ("poems/poem.json", "poems/drafts/1.txt", "stray.txt"):
        bucket.write(key, b"{}", ANY)
    report = check_bucket(operated(Poem(bucket, clock), bucket=bucket, clock=clock))
    assert [(found.code, found.where) for found in report.findings] == [("unknown-object", "stray.txt")]


# --- its ledger -------------------------------------------------------------------------------------------------------


def run_of(operations: Operations, it: OperatedPipeline, task: str = "poem-1") -> Run:
    return operations.writable_ledger(it).create_for_task(task, f"{task}#1", actor="cron", pipeline=it.name, worker="w")


def test_its_runs_are_where_those_of_the_others_are_or_in_its_own_part(tmp_path: Path) -> None:
    bucket, clock, url = MemoryBucket(), FakeClock(), f"sqlite:{tmp_path}/runs.db"
    it = Poem(bucket, clock)
    assert operated(it, bucket=bucket, clock=clock, url=url).ledger_url(it) == url
    it.own_ledger = OwnLedger(None, "poems.py")
    operations = operated(it, bucket=bucket, clock=clock, url=url)
    assert operations.ledger_url(it) is None
    run = run_of(operations, it)
    assert [entry.key for entry in bucket.list("poems/runs/run-")] == [f"poems/runs/{run.run_id}.json"]
    assert operations.ledger(it).counts(pipeline="poems")[RunStatus.RUNNING] == 1


def test_an_order_about_a_run_of_another_pipeline_on_the_same_ledger_is_refused(tmp_path: Path) -> None:
    bucket, clock, url = MemoryBucket(), FakeClock(), f"sqlite:{tmp_path}/runs.db"
    it = Poem(bucket, clock)
    operations = operated(it, bucket=bucket, clock=clock, url=url)
    run = run_of(operations, it)
    other = Poem(bucket, clock)
    other.name = "lost"
    with pytest.raises(Refusal, match=f"{run.run_id} is a run of poems, but the channel named is lost"):
        target(operations.of([other], named=True), run.run_id)
    meant = target(operations, run.run_id)
    with pytest.raises(Refusal, match="takes no order to cancel"):
        carry_out(operations, meant, plan_order(meant, Verb.CANCEL))
