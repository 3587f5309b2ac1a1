"""Any pipeline behind the port is shown and operated like the story: here one with a single step, which makes songs."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from retake.bucket import Bucket
from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock, stamp
from retake.errors import Code, ErrorRecord, StateError
from retake.operations import letters, runs, spend, status
from retake.operations.attempts import StepAttempt
from retake.operations.breakers import breaker_states
from retake.operations.events import STEP_DONE
from retake.operations.finding import Finding, ok
from retake.operations.orders import carry_out, plan_order, target
from retake.operations.pipelines import Operations, Terms
from retake.operations.port import (
    Bill,
    Evidence,
    ItemOrder,
    OperatedPipeline,
    OrderPlan,
    OrderResult,
    PaidWork,
    PipelineState,
    Present,
    Refusal,
    Verb,
)
from retake.operations.report import as_document, history, incident_report
from retake.operations.runs import RunFilter
from retake.operations.store_checks import document_checks, error_checks, holder_check, ledger_checks
from retake.paid.caps import Caps, Today
from retake.paid.day_book import Known, Limits
from retake.retrying.dead_letters import DeadLetters
from retake.runs.run import Run, UnknownRun
from retake.runs.states import RunStatus, Trigger
from retake.settings.shared import BreakerSettings

AT = StepAttempt("compose", 2, 4)
ERROR = {"error_id": "e1", "error_class": "A", "error_code": Code.TIMEOUT, "message": "slow", "robot_id": "compose"}


class Songs:
    """A pipeline that keeps nothing but the song under way."""

    name, channel, prefix = "songs", None, ""
    lease_name: str | None = "songs"
    recovered_by: Mapping[str, frozenset[str]] = {}
    vendors: Mapping[str, str] = {"compose": "Suno"}
    holds_unknown = False

    def __init__(self, bucket: Bucket, clock: FakeClock) -> None:
        self.bucket, self.clock = bucket, clock
        self.song: str | None = "song-1"
        self.done: list[ItemOrder] = []

    def has_setting(self, name: str) -> bool:
        return name == "RETRYING.strategy"

    def leasable(self) -> Bucket:
        return self.bucket

    def state(self, today: Today | StateError | None, vendor_off: Callable[[str], str]) -> PipelineState:
        off = vendor_off("Suno")
        seen = today.seen_by(self.name, Known()) if isinstance(today, Today) else None
        return PipelineState(
            "composing",
            item_id=self.song,
            step=AT,
            error=ErrorRecord(ERROR),
            next_tick=off or "poll the song",
            today=seen,
        )

    def present(self) -> list[Present]:
        return [Present(self.song, AT)] if self.song else []

    def evidence(self, item_id: str) -> Evidence:
        return Evidence([*self.bucket.list(f"songs/{item_id}")], self._calls(), AT if item_id == self.song else None)

    def paid_since(self, day: str) -> PaidWork:
        return PaidWork([Bill("song-1", "under way", self._calls())], Known())

    def check(self) -> Iterator[Finding]:
        yield ok("songs", "all are there")

    def plan(self, order: ItemOrder) -> OrderPlan:
        if order.verb is Verb.SKIP:
            raise Refusal("a song has one step, which cannot be skipped")
        return OrderPlan(order, lost="the song" if order.verb is Verb.CANCEL else "", then="the next tick composes it")

    def carry_out(self, order: ItemOrder, agreed: str = "") -> OrderResult:
        if order.verb is Verb.CANCEL and agreed != "the song":
            raise Refusal("that loses the song")
        self.done.append(order)
        return OrderResult(order, f"{order.verb} of {order.item_id}", "the next tick composes it")

    def lower_flag(self) -> bool:
        return False

    def _calls(self) -> list[dict[str, Any]]:
        at = stamp(self.clock.now())
        return [{"step": "compose", "price_usd": 0.25, "outcome": "unknown", "requested_at_utc": at}]


def operated() -> tuple[Operations, Songs]:
    clock, bucket = FakeClock(), MemoryBucket()
    songs = Songs(bucket, clock)
    pipelines: list[OperatedPipeline] = [songs]
    terms = Terms(None, BreakerSettings(), 900, 4, 1800)
    return Operations(pipelines, bucket, clock, caps=Caps(bucket, clock, Limits(None, None)), terms=terms), songs


def recorded(operations: Operations, songs: Songs) -> Run:
    """Record a run of the song that failed once and then had its result."""
    ledger, clock = operations.writable_ledger(songs), songs.clock
    run = ledger.create_for_task("song-1", "song-1#1", actor="cron", pipeline="songs")
    run = ledger.move(run, Trigger.WORKER_CLAIM, actor="cron", worker="w")
    clock.sleep(60)
    run = ledger.move(run, Trigger.RETRYABLE_ERROR, actor="cron", next_retry_at=clock.now(), error=ERROR)
    run = ledger.move(run, Trigger.RETRY_DUE, actor="cron", worker="w")
    clock.sleep(60)
    ledger.note(run, STEP_DONE, {"step": "compose"}, actor="cron")
    return run


def test_its_state_is_shown_with_what_the_bucket_and_the_ledger_add() -> None:
    operations, songs = operated()
    recorded(operations, songs)
    [it] = status.statuses(operations, breaker_states(operations))
    told = status.as_document(it, None)
    assert (told["generation_id"], told["step"], told["attempt"], told["next_tick"]) == (
        "song-1", "compose", 2, "poll the song",
    )  # fmt: skip
    assert (told["runs"]["running"], told["dead_letters"], told["last_error"]) == (1, 0, ERROR)


def test_its_runs_say_at_which_attempt_the_item_is() -> None:
    operations, songs = operated()
    run = recorded(operations, songs)
    found = runs.list_runs(operations, RunFilter([RunStatus.RUNNING]), 20)
    assert found.steps == {run.run_id: AT}
    assert runs.list_runs(operations, RunFilter(code="timeout"), 20).runs == [run]
    assert runs.list_runs(operations, RunFilter(code="RATE_LIMIT"), 20).runs == []


def test_its_history_and_its_incident_are_reported() -> None:
    operations, songs = operated()
    recorded(operations, songs)
    assert history(operations, "song-1").document()["paid_usd"] == 0.25
    report = incident_report(operations, "song-1")
    [outage] = as_document(report)["outages"]
    assert (outage["step"], outage["seconds"]) == ("compose", 60)
    assert report.advice[0].startswith("The outcome of 1 paid call is unknown (compose)")


def test_what_it_paid_is_summed_up() -> None:
    operations, _ = operated()
    document = spend.as_document(spend.spend_report(operations, 30))
    assert document["total"]["usd"] == 0.25
    assert [row["generation_id"] for row in document["by_generation"]] == ["song-1"]


def test_orders_go_through_it_and_a_loss_must_be_agreed_to() -> None:
    operations, songs = operated()
    recorded(operations, songs)
    meant = target(operations, "song-1")
    plan = plan_order(meant, Verb.CANCEL)
    assert plan.lost == "the song"
    with pytest.raises(Refusal, match="loses the song"):
        carry_out(operations, meant, plan._replace(lost=""))
    told = carry_out(operations, meant, plan).document
    assert (told["done"], told["next_tick"]) == ("cancel", "the next tick composes it")
    with pytest.raises(Refusal, match="cannot be skipped"):
        plan_order(meant, Verb.SKIP)
    assert [order.verb for order in songs.done] == [Verb.CANCEL]


def test_an_item_that_no_ledger_knows_is_found_by_the_port() -> None:
    operations, _ = operated()
    assert target(operations, "song-1").run is None
    with pytest.raises(UnknownRun):
        target(operations, "song-2")


def test_its_dead_letters_are_listed_and_requeued() -> None:
    operations, songs = operated()
    DeadLetters(songs.bucket, songs.clock).put("song-0", "song", {"topic": "rain"}, ERROR)
    [it] = letters.requeuable(operations)
    assert (it.letter.id, it.how, it.message) == ("song-0", "failed", "slow")
    assert it.requeue() == ("possible; the next tick composes it", True)
    assert target(operations, "song-0").item_id == "song-0"


def test_the_doctor_checks_it() -> None:
    operations, songs = operated()
    recorded(operations, songs)
    checks = [*document_checks(operations), *ledger_checks(operations), *error_checks(operations)]
    assert [it.check for it in checks] == ["songs", "ledger", "last errors", "failed runs"]
    assert "TIMEOUT at compose (Suno)" in checks[2].found
    assert holder_check(operations, songs).found == "nobody: the lease is free"
