"""`report`: the incident report, derived from the ledger, as valid Markdown whatever a vendor says."""

import json
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from operator_states import ID, STATES
from reading_world import World, ask, clear, context_of, shown
from rich.markdown import Markdown
from test_console_runs import eventful

from retake.clock import FakeClock, stamp
from retake.console import markdown
from retake.console.report import command as report
from retake.errors import Code
from retake.operations.incident import TARGET_S, Outage, incident
from retake.operations.recommendations import _BREAKER, TABLE, recommendations
from retake.operations.timeline import timeline
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.run import ERROR, Run
from retake.runs.sql_ledger import open_sql_ledger
from retake.runs.states import Trigger
from retake.settings.shared import StorageSettings
from retake.story.settings import SECTIONS
from retake.ticking.tick import Orders

HOLDING = context_of(World(on_unknown_outcome="hold")).operations.pipelines[0]


def failure(code: str, step: str = "upscale", message: str = "no") -> dict[str, Any]:
    return {"error_id": f"{code}-{step}-{message}", "error_class": "A", "error_code": code, "message": message} | {
        "robot_id": f"story.{step}"
    }


class Tale:
    """A run built event by event, a minute apart."""

    def __init__(self) -> None:
        self.world = World()
        self.clock: FakeClock = self.world.clock
        self.ledger = BucketLedger(self.world.bucket, self.clock)
        run = self.ledger.create_for_task("20260101-0000", "k#1", actor="cron", pipeline="story")
        self.run: Run = self.ledger.move(run, Trigger.WORKER_CLAIM, actor="cron", worker="w")

    def fails(
        self, code: str = Code.UNAVAILABLE, step: str = "upscale", message: str = "no", minutes: float = 1
    ) -> "Tale":
        self.clock.sleep(60 * minutes)
        due = self.clock.now() + timedelta(seconds=30)
        error = failure(code, step, message)
        self.run = self.ledger.move(self.run, Trigger.RETRYABLE_ERROR, actor="cron", next_retry_at=due, error=error)
        self.clock.sleep(30)
        self.run = self.ledger.move(self.run, Trigger.RETRY_DUE, actor="cron", worker="w")
        return self

    def does(self, step: str, minutes: float = 1) -> "Tale":
        self.clock.sleep(60 * minutes)
        self.ledger.note(self.run, "run.step.done", {"step": step, "text": f"{step} is there"}, actor="cron")
        return self

    def moves(self, trigger: Trigger, actor: str = "cron", **more: Any) -> "Tale":
        self.clock.sleep(60)
        self.run = self.ledger.move(self.run, trigger, actor=actor, **more)
        return self

    def told(self) -> dict[str, Any]:
        return dict(ask(report, self.world, run="20260101-0000").document)

    def text(self) -> str:
        return shown(ask(report, self.world, run="20260101-0000"))


# --- derived figures --------------------------------------------------------------------------------------------------


def test_an_outage_lasts_from_a_steps_first_failure_to_its_next_success() -> None:
    tale = Tale().fails().fails().does("upscale").fails(step="runway").fails(step="runway").does("runway")
    told = tale.told()["outages"]
    assert [(it["step"], it["failures"], it["seconds"]) for it in told] == [("upscale", 2, 180.0), ("runway", 2, 180.0)]
    assert tale.told()["mttr_s"] == 180.0
    assert tale.told()["first_trouble"] == told[0]["began"]


def test_a_step_that_fails_again_later_is_an_outage_of_its_own() -> None:
    told = Tale().fails().does("upscale").fails().does("upscale", minutes=9).told()["outages"]
    assert [it["seconds"] for it in told] == [90.0, 570.0]


def test_the_result_of_a_later_step_says_that_the_one_before_works_again() -> None:
    [outage] = Tale().fails(step="fetch").does("imagine").told()["outages"]
    assert outage["recovered"]


def test_a_mock_in_the_place_of_a_video_is_not_a_recovery_of_the_video() -> None:
    told = Tale().fails(step="runway").does("mock").moves(Trigger.COMPLETED).told()
    assert told["outages"][0]["recovered"] is None
    assert told["mttr_s"] is None
    assert told["recovered"]


def test_what_a_recovery_has_cost_is_a_sentence_of_its_own() -> None:
    text = Tale().fails().does("upscale").moves(Trigger.COMPLETED).text()
    assert "It recovered: there is a result; only time was lost." in text


def test_what_never_works_again_is_not_recovered() -> None:
    tale = Tale().fails().moves(Trigger.NON_RETRYABLE_ERROR, error=failure(Code.REJECTED))
    assert tale.told()["outages"][0]["recovered"] is None
    assert (tale.told()["mttr_s"], tale.told()["mttr_at_least"]) == (None, False)
    assert "not recovered" in tale.text()
    assert "It did not recover" in tale.told()["summary"]


def test_the_cause_is_the_first_failure_of_the_step_that_failed() -> None:
    tale = Tale().fails(step="imagine", message="first").does("imagine").fails(message="cause").fails(message="later")
    told = tale.moves(Trigger.NON_RETRYABLE_ERROR, error=failure(Code.UNAVAILABLE, message="last")).told()
    assert told["failed_step"] == "upscale"
    assert told["cause"]["message"] == "cause"


def test_the_cause_for_a_recovered_run_is_the_step_that_failed_most() -> None:
    told = Tale().fails(step="imagine").fails(message="cause").fails().moves(Trigger.COMPLETED).told()
    assert (told["failed_step"], told["cause"]["message"]) == ("upscale", "cause")


def test_actions_say_who_did_what_and_how_often() -> None:
    tale = Tale().fails().fails()
    tale.moves(Trigger.PROCESS_RESTART, "recovery").moves(Trigger.RECOVERY_RESUME, "recovery", worker="w")
    tale.ledger.note(tale.run, "run.note", {"text": "skipped the video"}, actor="operator")
    tale.moves(Trigger.CANCEL_COMMAND, "operator")
    told = [(it["who"], it["what"], it["times"]) for it in tale.told()["actions"]]
    assert told == [
        ("cron", "scheduled a retry", 2),
        ("cron", "tried again", 2),
        ("recovery", "found that its worker was gone", 1),
        ("recovery", "resumed", 1),
        ("operator", "skipped the video", 1),
        ("operator", "cancelled it", 1),
    ]


@pytest.mark.parametrize(
    ("robots", "beginning"),
    [
        ([""], "1 failure. "),
        (["story.upscale"], "1 failure at upscale. "),
        (["my robot", "my robot"], "2 failures at my robot. "),
        (["", "story.upscale", ""], "3 failures (no step 2, upscale 1). "),
        ([], "0 failures. "),
    ],
)
def test_the_summary_says_at_which_steps(robots: list[str], beginning: str) -> None:
    tale = Tale()
    for robot in robots:
        tale.clock.sleep(60)
        record = failure(Code.UNAVAILABLE) | {"robot_id": robot}
        tale.ledger.note(tale.run, ERROR, record, actor="cron")
    assert tale.moves(Trigger.CANCEL_COMMAND).told()["summary"].startswith(beginning)


def test_a_transition_from_no_status_at_all_is_reported_as_it_stands() -> None:
    tale = Tale().fails()
    key = f"runs/{tale.run.run_id}.json"
    raw = json.loads(tale.world.bucket.read(key)[0])
    raw["events"][1]["payload"]["previous_status"] = ["queued"]
    tale.world.put(key, raw)
    assert "['queued'] → running" in [it["what"] for it in tale.told()["timeline"]]


def test_both_of_two_failures_at_the_moment_of_a_transition_are_reported() -> None:
    tale = Tale().fails(message="first")
    event = next(it for it in tale.ledger.events(tale.run.run_id) if it.kind == ERROR)
    events = [*tale.ledger.events(tale.run.run_id), event._replace(payload=failure(Code.NETWORK, message="second"))]
    told = [it.error.message for it in timeline(sorted(events, key=lambda it: it.at)) if it.error]
    assert sorted(told) == ["first", "second"]


def test_a_remark_is_reported_though_the_transitions_before_it_are_gone() -> None:
    tale = Tale()
    seen = tale.clock.now() - timedelta(minutes=5)
    tale.ledger.note(tale.run, "run.note", {"text": "it was late", "seen_at_utc": stamp(seen)}, actor="cron")
    [only] = timeline(tale.ledger.events(tale.run.run_id)[-1:])
    assert (only.at, only.what) == (seen, "it was late")


def test_a_run_whose_events_are_gone_is_reported_as_far_as_it_is_known(tmp_path: Path) -> None:
    world, path = World(), tmp_path / "runs.db"
    world.settings = world.settings._replace(storage=StorageSettings(ledger=f"sqlite:{path}"))
    ledger = open_sql_ledger(f"sqlite:{path}", world.clock)
    run = ledger.create_for_task("20260101-0000", "k#1", actor="cron", pipeline="story")
    ledger.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM events")
    told = ask(report, world, run=run.run_id).document
    assert (told["summary"], told["timeline"]) == ("Nothing has gone wrong so far.", [])


def test_an_interruption_without_a_failure_is_a_cause_too() -> None:
    tale = Tale().moves(Trigger.PROCESS_RESTART, "recovery").moves(Trigger.RECOVERY_RESUME, "recovery", worker="w")
    assert "no step itself failed" in tale.text()
    assert tale.told()["interruptions"] == 1


def test_a_run_of_which_nothing_is_wrong_says_so() -> None:
    tale = Tale().does("content").moves(Trigger.COMPLETED)
    assert tale.told()["summary"] == "Nothing went wrong: the run has succeeded."
    assert tale.told()["recommendations"] == []
    assert "None: the settings in place were enough." in tale.text()


@pytest.mark.parametrize(
    ("trigger", "stands"),
    [(Trigger.RETRYABLE_ERROR, "waits for its retry"), (Trigger.PROCESS_RESTART, "is interrupted")],
)
def test_a_run_that_is_not_over_says_how_it_stands(trigger: Trigger, stands: str) -> None:
    tale = Tale()
    due = tale.clock.now() if trigger is Trigger.RETRYABLE_ERROR else None
    tale.moves(trigger, error=failure(Code.NETWORK) if due else None, next_retry_at=due)
    assert tale.told()["summary"].endswith(f"It is not over: the run {stands}.")


def test_the_advice_is_on_the_failure_that_ended_the_run() -> None:
    tale = Tale().fails(Code.NETWORK).fails(Code.NETWORK).fails(Code.RATE_LIMIT, step="imagine")
    told = tale.moves(Trigger.NON_RETRYABLE_ERROR, error=failure(Code.REJECTED)).told()
    assert (told["failed_step"], told["cause"]["error_code"]) == ("upscale", Code.REJECTED)
    assert told["recommendations"][0].startswith("The prompt was refused")


def test_one_failure_that_ended_a_run_has_its_advice_whatever_its_code() -> None:
    for code in Code:
        told = Tale().moves(Trigger.NON_RETRYABLE_ERROR, error=failure(code)).told()
        assert told["recommendations"], code


def test_one_network_error_is_enough_to_say_something() -> None:
    [told] = Tale().fails(Code.NETWORK).does("upscale").moves(Trigger.COMPLETED).told()["recommendations"]
    assert "this machine's connection" in told


def test_a_failure_that_did_not_recover_counts_in_the_time_to_recovery() -> None:
    tale = Tale().fails(step="imagine").does("imagine").fails(minutes=60)
    tale.moves(Trigger.NON_RETRYABLE_ERROR, error=failure(Code.UNAVAILABLE, message="last"))
    told = tale.told()
    assert [it["seconds"] for it in told["outages"]] == [90.0, None]
    assert told["outages"][1]["lasted_s"] == 90.0
    assert (told["mttr_s"], told["mttr_at_least"]) == (90.0, True)
    assert "at least 1 min 30 s, as upscale did not recover" in tale.text()
    assert "not recovered in 1 min 30 s" in tale.text()


def test_a_failure_of_no_step_counts_too() -> None:
    tale = Tale()
    error = {"error_id": "x", "error_class": "A", "error_code": Code.SCRIPT_DIED, "message": "no"}
    due = tale.clock.now() + timedelta(minutes=1)
    tale.moves(Trigger.RETRYABLE_ERROR, error=error, next_retry_at=due)
    tale.moves(Trigger.RETRY_DUE, worker="w").moves(Trigger.COMPLETED)
    assert [(it["step"], it["seconds"]) for it in tale.told()["outages"]] == [("the run", 120.0)]


def test_an_unknown_outcome_has_its_advice() -> None:
    tale = Tale()
    it = incident([tale.run], timeline(tale.ledger.events(tale.run.run_id)), {})
    [told] = recommendations(it, [{"step": "imagine", "outcome": "unknown"}], {}, HOLDING)
    assert told.startswith("The outcome of 1 paid call is unknown (imagine): look in the vendor's account")


def test_a_held_call_is_what_is_advised_on_first() -> None:
    world = STATES["video held"]()
    world.tick()
    [first, *_] = ask(report, world, run=ID).document["recommendations"]
    assert first.startswith("Nobody can tell whether the runway call was carried out")
    assert f"`retry {ID}`" in first
    assert f"then `retry {ID}` (it is made again) or `skip {ID}`" in shown(ask(report, world, run=ID))


# --- recommendations --------------------------------------------------------------------------------------------------


def test_every_code_of_a_vendor_has_its_advice() -> None:
    why = "retake/operations/recommendations.py: TABLE has the advice for each code of retake/errors.py, in its order"
    assert [advice.code for advice in TABLE] == [*Code], why


def test_the_settings_that_advice_names_are_settings() -> None:
    named = {name for advice in TABLE for name in advice.settings}
    known = {f"{path}.{name}" for path, section in SECTIONS.items() for name in section.fields}
    assert named | {*_BREAKER} <= known


@pytest.mark.parametrize("advice", TABLE, ids=lambda advice: advice.code)
def test_advice_is_given_when_its_code_came_often_enough(advice: Any) -> None:
    tale = Tale()
    for _ in range(advice.times - 1):
        tale.fails(advice.code)
    assert not any(it.startswith(advice.text) for it in tale.told()["recommendations"])
    tale.fails(advice.code)
    assert any(it.startswith(advice.text) for it in tale.told()["recommendations"])


def test_a_recovery_that_took_too_long_is_noted() -> None:
    assert not any("until it worked again" in it for it in Tale().fails().does("upscale", 29).told()["recommendations"])
    tale = Tale().fails().does("upscale", 31)
    assert tale.told()["mttr_s"] > TARGET_S
    [told] = [it for it in tale.told()["recommendations"] if "until it worked again" in it]
    assert "upscale 31 min 30 s" in told
    assert "31 min 30 s, too long" in tale.text()


def test_the_same_trouble_in_other_runs_is_the_vendors() -> None:
    tale = Tale().fails()
    for number in range(3):
        run = tale.ledger.create_for_task(f"other-{number}", f"other-{number}", actor="cron", pipeline="story")
        run = tale.ledger.move(run, Trigger.WORKER_CLAIM, actor="cron", worker="w")
        tale.ledger.move(run, Trigger.NON_RETRYABLE_ERROR, actor="cron", error=failure(Code.UNAVAILABLE))
    [told] = [it for it in tale.told()["recommendations"] if "other runs too" in it]
    assert told.startswith("ERR_TEMPORARY_UNAVAILABLE was the last error of 3 other runs too")


def test_what_may_be_paid_twice_is_reported_with_its_price() -> None:
    world = eventful()
    answer = ask(report, world, run="20260101-0000")
    assert answer.document["unsure_usd"] == pytest.approx(0.045)
    assert answer.document["paid_usd"] == pytest.approx(0.61)
    assert any("may have been paid for twice" in it for it in answer.document["recommendations"])
    assert any("WORKFLOW.on_unknown_outcome" in it for it in answer.document["recommendations"])
    assert "| 2026-01-01T00:02:00Z | imagine | unknown | yes | 0.045 |" in shown(answer)


def test_where_calls_are_held_already_that_is_not_recommended() -> None:
    tale = Tale()
    it = incident([tale.run], timeline(tale.ledger.events(tale.run.run_id)), {})
    call = {"step": "imagine", "possible_duplicate": True}
    [told] = recommendations(it, [call], {}, HOLDING)
    assert "on_unknown_outcome" not in told


# --- Markdown ---------------------------------------------------------------------------------------------------------


def tokens_of(text: str) -> list[Any]:
    """Return the tokens that a parser of CommonMark with tables finds."""
    return list(Markdown(text).parsed)


def words_of(text: str) -> list[tuple[str, str]]:
    """Return what a reader of the Markdown sees, as pairs of type and text."""
    return [(child.type, child.content) for token in tokens_of(text) for child in token.children or []]


@given(st.text())
@example("| a | b |\n|---|---|\n| `x` | <script> | \\| \\\\| ``` |")
@example("# not a heading\n- nor a list\n[a](http://x) ![b](y) **c** _d_ &lt; ~~e~~ $f$")
def test_a_text_is_read_as_what_it_is(text: str) -> None:
    seen = words_of(f"before {markdown.text(text)} after")
    assert {kind for kind, _ in seen} <= {"text", "text_special", "entity"}
    plain = "".join(words for _, words in seen)
    assert plain.split() == f"before {markdown.line(text)} after".split()


@given(st.text())
@example("``` ` ``")
@example("`")
def test_code_is_read_as_what_it_is(text: str) -> None:
    seen = words_of(f"- message: {markdown.code(text)}")
    assert [kind for kind, _ in seen] == ["text", "code_inline"]
    assert seen[1][1].strip() == markdown.line(text)


@given(st.lists(st.text(), min_size=2, max_size=2))
@example(["a|b\\", "\\|"])
@example(["`a | b`", "\\\\|"])
def test_a_cell_stays_a_cell(cells: list[str]) -> None:
    lines = markdown.table(("one", "two"), [[markdown.text(cell) for cell in cells]])
    tokens = tokens_of("\n".join(lines))
    assert sum(token.type == "td_open" for token in tokens) == 2
    assert sum(token.type == "tr_open" for token in tokens) == 2


@given(st.text(), st.text())
@example("| x |\n## Cause\n```", "`code` <b>")
def test_whatever_a_vendor_says_the_report_keeps_its_shape(message: str, step: str) -> None:
    tale = Tale().fails(step=step, message=message).fails(step=step, message=message)
    tokens = tokens_of(tale.text())
    headings = [tokens[number + 1].content for number, it in enumerate(tokens) if it.type == "heading_open"]
    assert headings[1:] == ["Timeline", "Cause", "Time to recovery", "Actions taken", "Paid", "Recommendations"]
    assert not [it for it in tokens if it.type in ("html_block", "fence", "code_block")]
    cells = sum(it.type == "td_open" for it in tokens)
    assert cells == 8 * 2 + 6 * 5 + (4 if tale.told()["outages"] else 0)


def test_the_report_has_every_part_that_the_seed_asks_for() -> None:
    text = Tale().fails().fails().does("upscale").moves(Trigger.COMPLETED).text()
    for part in ("# Incident report: story 20260101-0000", "## Timeline", "## Cause", "## Time to recovery"):
        assert part in text
    assert "the target is less than 30 min" in text
    assert "code `ERR_TEMPORARY_UNAVAILABLE`" in text


def test_a_resumed_generation_is_one_incident() -> None:
    world = World()
    world.vendors.plan("upscale", "rejected")
    world.tick()
    clear(world)
    world.tick(Orders(retake="20260101-0000"))
    while world.generation_id:
        world.tick()
    document = ask(report, context_of(world), run="20260101-0000").document
    assert document["recovered"]
    assert len(document["runs"]) == 2
    assert document["outages"][0]["recovered"]


def test_an_outage_without_an_end_has_no_length() -> None:
    assert Outage("x", FakeClock().now(), None, 1).seconds is None
