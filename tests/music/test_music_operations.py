"""Music through the operators' port: its state, its cost, and its orders."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from rows_world import Rows
from schemas import check

from retake.console.status import spent_today
from retake.music.operations import NEEDS_SHOWN, open_operations
from retake.music.states import MusicStep
from retake.music.store import UnknownPipeline
from retake.operations import spend, status
from retake.operations.breakers import breaker_states
from retake.operations.finding import Finding, Verdict
from retake.operations.kpi import KpiReader
from retake.operations.lookup import find
from retake.operations.port import ItemOrder, Refusal, Verb
from retake.operations.report import as_document, history, incident_report
from retake.operations.runs import RunFilter, list_runs
from retake.runs.states import Trigger


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Rows]:
    world = Rows(f"sqlite:{tmp_path}/music.db")
    yield world
    world.database.close()


def off(vendor: str) -> str:
    return ""


def test_its_state_counts_what_is_at_work_and_what_waits_for_a_person(rows: Rows) -> None:
    rows.create("one")
    rows.succeed()
    rows.create("two")
    rows.fail("PiAPI refused the prompt", "ERR_BUSINESS_REJECTED")
    rows.create("three")
    state = rows.operations.state(None, off)
    assert state.words == "1 at work, 1 waits for your yes, 1 failed"
    assert state.needs == (
        "music-2 failed at cover: PiAPI refused the prompt; retake music retry 2",
        "music-1 waits for your yes to its cover",
    )
    assert (state.idle, state.item_id, state.readable) == (False, None, True)


def test_a_decision_to_make_comes_first_and_names_the_command(rows: Rows) -> None:
    rows.at(rows.create(), MusicStep.PUBLISH)
    rows.await_person("the session is gone")
    state = rows.operations.state(None, off)
    assert state.words == "1 decision to make"
    assert state.needs == (
        "music-1 waits for your decision: the session is gone; retake music resolve 1 VIDEO_ID, or 1 --again",
    )
    assert "the session is gone" in rows.operations.evidence("music-1").held


def test_very_many_that_wait_are_a_bounded_list(sqlite: Rows) -> None:
    for number in range(NEEDS_SHOWN + 5):
        sqlite.create(f"track {number}")
        sqlite.fail("no", "ERR_BUSINESS_REJECTED")
    needs = sqlite.operations.state(None, off).needs
    assert len(needs) == NEEDS_SHOWN + 1
    assert needs[-1] == "5 more wait for you: retake music list"


def test_a_database_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    (tmp_path / "music.db").write_text("no database at all, but long enough to be taken for a header of one")
    rows = Rows(f"sqlite:{tmp_path}/other.db")
    rows.settings = rows.settings._replace(music=rows.settings.music._replace(database=f"sqlite:{tmp_path}/music.db"))
    state = rows.operations.state(None, off)
    assert not state.readable
    assert "its database cannot be read" in state.needs[0]
    report = status.status_report(open_operations(rows.settings, rows.clock, rows.bucket), 5.0)
    assert spent_today(report.pipelines[0]) == "not known: its database cannot be read"
    [told] = report.document()["pipelines"]
    assert told["needs"][0] == state.needs[0]
    assert set(told["spend_today"].values()) == {None}, "the cap of 5 USD is for other pipelines"
    assert [it.verdict for it in rows.operations.check()] == [Verdict.FAULT]


def test_without_a_database_nothing_is_under_way_and_none_is_made(tmp_path: Path) -> None:
    rows = Rows(f"sqlite:{tmp_path}/other.db")
    url = f"sqlite:{tmp_path}/music.db"
    rows.settings = rows.settings._replace(music=rows.settings.music._replace(database=url))
    assert rows.operations.state(None, off).words == "nothing under way"
    assert [it.verdict for it in rows.operations.check()] == [Verdict.OK, Verdict.OK]
    assert not (tmp_path / "music.db").exists()


def test_what_an_item_has_is_its_files_and_its_paid_calls(rows: Rows) -> None:
    pipeline = rows.create()
    attempt = rows.begin()
    rows.pay(attempt, "refused")
    rows.pay(attempt, "lost")
    rows.pay(attempt, "accepted")
    rows.keep(pipeline, "cover-1.png")
    found = rows.operations.evidence("music-1")
    assert [entry.key for entry in found.files] == ["1/cover-1.png"]
    told = [(it["outcome"], it.get("task_id"), it.get("possible_duplicate")) for it in found.calls]
    assert told == [("unknown", None, True), ("accepted", "task-1", None)]
    for call in found.calls:
        check("paid_call", call)
    assert found.step
    assert found.step.words == "cover, attempt 1 of 3"
    assert rows.operations.evidence("music-2") == rows.operations.evidence("a generation")


def test_a_call_that_a_person_has_made_anew_may_have_been_paid_for_twice(rows: Rows) -> None:
    pipeline = rows.create()
    held = rows.begin()
    rows.pay(held, "held")
    rows.attempts.await_person(held, "nobody can tell", "ERR_TEMPORARY_NETWORK")
    assert [it.get("possible_duplicate") for it in rows.operations.evidence("music-1").calls] == [None]
    rows.actions.again(pipeline.id)
    rows.pay(rows.begin(), "accepted")
    told = [(it["outcome"], it.get("possible_duplicate")) for it in rows.operations.evidence("music-1").calls]
    assert told == [("unknown", True), ("accepted", None)]


def test_what_was_paid_counts_in_a_book_of_its_own(rows: Rows) -> None:
    rows.create()
    attempt = rows.begin()
    for outcome, usd in (("refused", 2.0), ("lost", 0.25), ("accepted", 0.5), ("pending", 1.0)):
        rows.pay(attempt, outcome, usd)
    operations = open_operations(rows.settings, rows.clock, rows.bucket)
    document = spend.as_document(spend.spend_report(operations, 30))
    check("answer_spend", document)
    assert document["today"]["cap_usd"] == 5.0
    assert document["today"]["pipelines"] == [
        {"channel": None, "settled_usd": 0.75, "reserved_usd": 1.0, "left_usd": 3.25}
    ]
    assert [(it["generation_id"], it["outcome"], it["usd"]) for it in document["by_generation"]] == [
        ("music-1", "under way", 1.75)
    ]
    rows.clock.moment += timedelta(days=1)
    assert rows.operations.paid_since("2026-11-23").bills == []


def test_its_status_has_a_schema_and_no_lease(rows: Rows) -> None:
    rows.create()
    operations = open_operations(rows.settings, rows.clock, rows.bucket)
    [seen] = status.statuses(operations, breaker_states(operations))
    told = status.as_document(seen, 99.0)
    assert (told["pipeline"], told["channel"], told["lease"]) == ("music", None, None)
    assert told["spend_today"] == {"settled_usd": 0.0, "reserved_usd": 0.0, "cap_usd": 5.0}
    assert told["runs"]["queued"] == 1


def test_each_run_under_way_tells_its_attempt(rows: Rows) -> None:
    rows.create("one")
    rows.begin()
    rows.at(rows.create("two"), MusicStep.PUBLISH)
    operations = open_operations(rows.settings, rows.clock, rows.bucket)
    found = list_runs(operations, RunFilter(), 20)
    steps = {run.task_id: found.steps[run.run_id].words for run in found.runs}
    assert steps == {"music-1": "cover, attempt 1 of 3", "music-2": "publish, attempt 1 of 1"}


def test_the_history_and_the_report_of_an_item(rows: Rows) -> None:
    pipeline = rows.create()
    rows.fail("PiAPI answered 500", "ERR_TEMPORARY_UNAVAILABLE")
    operations = open_operations(rows.settings, rows.clock, rows.bucket)
    report = incident_report(operations, "music-1")
    told = as_document(report)
    check("answer_report", told)
    assert told["failed_step"] == "cover"
    assert "kept as a dead letter" not in told["summary"]
    rows.actions.retry(pipeline.id)
    rows.succeed()
    told = as_document(incident_report(operations, "music-1"))
    assert (told["recovered"], told["outages"][0]["step"]) == (True, "cover")
    check("answer_show", history(operations, find(operations, "music-1").runs[0].run_id).document())


def test_a_step_that_no_worker_has_begun_is_at_its_first_attempt(rows: Rows) -> None:
    row = rows.create()
    attempt = rows.begin()
    rows.attempts.fail(attempt, "no answer", "ERR_TEMPORARY_TIMEOUT", again=True)
    due, error = rows.clock.now(), {"error_code": "ERR_TEMPORARY_TIMEOUT", "message": "no answer"}
    rows.database.ledger.move(attempt.run, Trigger.RETRYABLE_ERROR, actor="worker", next_retry_at=due, error=error)
    [cover] = rows.operations.present()
    assert cover.step.words == "cover, attempt 1 of 3"
    rows.succeed()
    rows.actions.approve(row.id)
    [video] = rows.operations.present()
    assert video.step.words == "video, attempt 1 of 3"
    assert rows.operations.evidence("music-1").step == video.step


def test_figures_count_its_steps(rows: Rows) -> None:
    pipeline = rows.create()
    rows.fail("PiAPI answered 500", "ERR_TEMPORARY_UNAVAILABLE")
    rows.actions.retry(pipeline.id)
    rows.succeed()
    [figures] = KpiReader(open_operations(rows.settings, rows.clock, rows.bucket)).report().figures.pipelines
    [cover] = figures.steps
    assert (figures.pipeline, cover.step, cover.done, cover.failed_tries, cover.given_up) == ("music", "cover", 1, 1, 1)


def test_what_the_cap_puts_off_has_not_failed(rows: Rows) -> None:
    rows.create()
    attempt = rows.begin()
    due = rows.clock.now() + timedelta(hours=1)
    rows.database.ledger.move(attempt.run, Trigger.RETRYABLE_ERROR, actor="worker", next_retry_at=due)
    entries = history(open_operations(rows.settings, rows.clock, rows.bucket), "music-1").entries
    assert [it.description for it in entries] == ["created", "work began", "postponed, to be resumed later"]


# --- orders -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "follows"),
    [
        ("", ""),
        ("refused", ""),
        ("accepted", "; task task-1 of the cover call (0.045 USD) is paid for, and its result is not fetched"),
        ("pending", ", unless the cover call (0.045 USD) was carried out: its outcome is not known"),
        ("lost", ", unless the cover call (0.045 USD) was carried out: its outcome is not known"),
    ],
)
def test_whoever_cancels_is_told_of_a_call_whose_result_is_given_up(sqlite: Rows, outcome: str, follows: str) -> None:
    sqlite.create()
    if outcome:
        sqlite.pay(sqlite.begin(), outcome)
    done = sqlite.operations.carry_out(ItemOrder(Verb.CANCEL, "music-1"))
    assert done.next_tick == f"nothing more is paid for{follows}"


def test_whoever_cancels_what_has_its_result_gives_up_no_call(sqlite: Rows) -> None:
    sqlite.create()
    attempt = sqlite.begin()
    sqlite.pay(attempt, "accepted")
    sqlite.attempts.succeed(attempt, {})
    done = sqlite.operations.carry_out(ItemOrder(Verb.CANCEL, "music-1"))
    assert done.next_tick == "nothing more is paid for"


def test_what_failed_is_retried_and_what_is_under_way_cancelled(rows: Rows) -> None:
    rows.create()
    rows.fail("no", "ERR_BUSINESS_REJECTED")
    operations = rows.operations
    done = operations.carry_out(operations.plan(ItemOrder(Verb.RETRY, "music-1")).order)
    assert (done.status, done.what) == ("cover_running", "music-1 does cover again")
    with pytest.raises(Refusal, match="only a failed pipeline"):
        rows.operations.plan(ItemOrder(Verb.RETRY, "music-1"))
    done = rows.operations.carry_out(ItemOrder(Verb.CANCEL, "music-1"))
    assert (done.status, rows.actions.get(1).state) == ("cancelled", "cancelled")


@pytest.mark.parametrize("verb", [Verb.SKIP, Verb.ROLLBACK, Verb.REQUEUE, Verb.DROP])
def test_other_orders_are_refused_in_words(sqlite: Rows, verb: Verb) -> None:
    sqlite.create()
    with pytest.raises(Refusal, match="it can be retried or cancelled"):
        sqlite.operations.plan(ItemOrder(verb, "music-1"))


def test_an_order_for_none_of_its_items_is_refused(sqlite: Rows) -> None:
    for name in ("music-9", "20260101-0930", "music-99999999999999999999"):
        with pytest.raises(UnknownPipeline):
            sqlite.operations.carry_out(ItemOrder(Verb.RETRY, name))


# --- checks -----------------------------------------------------------------------------------------------------------


def named(findings: Iterator[Finding], check: str) -> Finding:
    [found] = [it for it in findings if it.check == check]
    return found


def test_a_step_that_nobody_works_on_is_found(rows: Rows) -> None:
    rows.create()
    assert named(rows.operations.check(), "music service").verdict is Verdict.OK
    rows.clock.sleep(66)
    found = named(rows.operations.check(), "music service")
    assert (found.verdict, found.facts) == (Verdict.WARN, {"stuck": ["music-1"]})
    rows.begin()
    assert named(rows.operations.check(), "music service").verdict is Verdict.OK
    assert named(rows.operations.check(), "music database").found.endswith("the newest; 1 cover_running")


def test_a_step_that_waits_while_all_workers_are_busy_is_not_stuck(rows: Rows) -> None:
    rows.create()
    busy = rows.begin().run
    rows.create()
    for _ in range(3):
        rows.clock.sleep(60)
        busy = rows.database.ledger.heartbeat(busy)
    assert named(rows.operations.check(), "music service").verdict is Verdict.OK
    rows.clock.sleep(66)
    assert named(rows.operations.check(), "music service").facts == {"stuck": ["music-2", "music-1"]}


def test_a_step_whose_worker_lives_or_whose_time_has_not_come_has_its_worker(rows: Rows) -> None:
    rows.create()
    attempt = rows.begin()
    run = attempt.run
    for _ in range(3):
        rows.clock.sleep(60)
        run = rows.database.ledger.heartbeat(run)
    rows.clock.sleep(60)
    assert named(rows.operations.check(), "music service").verdict is Verdict.OK
    rows.attempts.interrupt(attempt)
    due = rows.clock.now() + timedelta(hours=12)
    rows.database.ledger.move(run, Trigger.RETRYABLE_ERROR, actor="worker", next_retry_at=due)
    rows.clock.sleep(12 * 3600 + 60)
    assert named(rows.operations.check(), "music service").verdict is Verdict.OK
    rows.clock.sleep(6)
    assert named(rows.operations.check(), "music service").facts == {"stuck": ["music-1"]}
