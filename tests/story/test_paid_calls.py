"""Nothing is paid for twice: intents, lost answers, a bucket that is away at that moment, and the operator."""

from collections import deque
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from story_world import CONTENT, Heard, World

from retake.bucket import Conflict
from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryLease
from retake.errors import Code, LeaseLost, OutcomeUnknown, PollFailed, Refused, StorageError
from retake.story.content import write_content
from retake.story.documents import Status, Step
from retake.story.media import make_media
from retake.story.script import StoryJournal
from retake.testing.vendors import PROMPTS
from retake.ticking.tick import Orders

ID = "20260101-0000"
DOCUMENT = "config/config_midjourney.json"
PICTURES = {"task_id": "imagine-1", "task_type": "imagine", "task_result": {"image_url": "https://cdn/grid.png"}}
UPSCALED = {"task_id": "upscale-1", "task_type": "upscale", "task_result": {"image_url": "https://cdn/full.png"}}

BEFORE: dict[str, dict[str, Any]] = {
    "write": {},
    "imagine": {"generation": True},
    "upscale": {"midjourney_results": PICTURES},
    "create": {"midjourney_results": UPSCALED},
}
STEPS = {"write": Step.CONTENT, "imagine": Step.IMAGINE, "upscale": Step.UPSCALE, "create": Step.RUNWAY}
FINDABLE = ("imagine", "upscale")


def before(kind: str, bucket: Any = None, **workflow: Any) -> World:
    """Return a generation whose next paid call is of that kind."""
    world = World(bucket, **workflow)
    world.put("config/config_gen.json", {"generation_id": ID})
    world.put(DOCUMENT, BEFORE[kind])
    for suffix, data in (("json", CONTENT), ("png", b"PNG")):
        if kind != "write":
            world.put(f"666/{ID}.{suffix}", data)
    world.vendors.plan("fetch", *["running"] * 9)
    world.vendors.plan("poll", *["running"] * 99)
    return world


# --- lost answers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BEFORE)
@pytest.mark.parametrize("outcome", ["unknown", "lost"])
def test_a_call_of_unknown_outcome_is_a_failed_attempt_on_record_as_a_possible_duplicate(
    kind: str, outcome: str
) -> None:
    world = before(kind)
    world.vendors.plan(kind, outcome)
    with Heard() as log:
        tick = world.tick()
    assert tick.exit_code == 75
    assert world.doc.status == f"{STEPS[kind]}_{'failed' if kind == 'write' else 'trigger_failed'}"
    assert world.doc.pending is None
    assert [(call["step"], call["outcome"], call["possible_duplicate"]) for call in world.doc.paid_calls] == [
        (STEPS[kind], "unknown", True)
    ]
    assert log.alerts == ["outcome_unknown"]


@pytest.mark.parametrize("kind", BEFORE)
@pytest.mark.parametrize("outcome", ["unknown", "lost", "dies"])
def test_with_hold_nothing_more_is_asked_until_the_operator_decides(kind: str, outcome: str) -> None:
    world = before(kind, on_unknown_outcome="hold")
    world.vendors.plan(kind, outcome)
    with Heard() as log:
        ticks = world.ticks(4)
    assert [tick.exit_code for tick in ticks] == [75] * 4
    assert world.vendors.asked[kind] == 1
    pending = world.doc.pending
    assert pending is not None
    assert (pending.step, pending.outcome) == (STEPS[kind], "unknown")
    assert world.doc.status is None, "the status stays what it was"
    assert log.alerts.count("outcome_unknown") == 1
    assert ticks[-1].resting


@pytest.mark.parametrize("kind", BEFORE)
def test_the_operator_lets_a_held_call_be_made_again_in_the_same_tick(kind: str) -> None:
    world = before(kind, on_unknown_outcome="hold")
    world.vendors.plan(kind, "unknown")
    world.tick()
    world.tick(Orders(resolve="retry"))
    assert world.vendors.asked[kind] == 2
    assert world.doc.pending is None
    outcomes = [call["outcome"] for call in world.doc.paid_calls if call["step"] == STEPS[kind]]
    assert outcomes == ["unknown", "done" if kind == "write" else "accepted"]
    assert world.doc.retries == {}, "it used up no attempt"


@pytest.mark.parametrize("kind", BEFORE)
@pytest.mark.parametrize("on_exhausted", ["fail", "mock"])
def test_the_operator_skips_a_held_call_and_it_is_never_made_again(kind: str, on_exhausted: str) -> None:
    world = before(kind, on_unknown_outcome="hold", on_exhausted=on_exhausted)
    world.vendors.plan(kind, "unknown")
    world.tick()
    tick = world.tick(Orders(resolve="skip"))
    mock = on_exhausted == "mock" and kind != "write"
    assert tick.ended == ("done" if mock else "failed")
    assert world.vendors.asked[kind] == 1
    if mock:
        assert world.bucket.read(f"666/{ID}.mp4")[0] == b"MOCK"
    else:
        assert world.json(f"dead_letters/{ID}/report.json")["failed_step"] == STEPS[kind]


def test_a_held_call_is_made_again_where_the_rule_was_changed_to_retry() -> None:
    world = before("imagine", on_unknown_outcome="hold")
    world.vendors.plan("imagine", "unknown")
    world.ticks(2)
    world.settings = world.settings._replace(workflow=world.settings.workflow._replace(on_unknown_outcome="retry"))
    world.ticks(3)
    assert world.vendors.asked["imagine"] == 2
    assert world.status == "waiting_for_imagine"


# --- a vendor that can tell -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize("kind", FINDABLE)
@pytest.mark.parametrize("outcome", ["unknown", "dies"])
def test_a_task_that_the_vendor_knows_is_taken_over_and_not_ordered_again(kind: str, outcome: str, hold: bool) -> None:
    world = before(kind, on_unknown_outcome="hold" if hold else "retry")
    world.vendors.plan(kind, outcome)
    world.vendors.findable[kind] = f"{kind}-found"
    with Heard() as log:
        world.ticks(2)
    task = world.doc.task
    assert task is not None
    assert (task.task_id, task.task_type) == (f"{kind}-found", kind)
    assert world.status == f"waiting_for_{kind}"
    assert (world.vendors.asked[kind], world.doc.retries) == (1, {})
    assert [(call["outcome"], call["task_id"]) for call in world.doc.paid_calls] == [("accepted", f"{kind}-found")]
    assert log.alerts == []


def test_the_vendor_is_asked_with_everything_that_was_on_record() -> None:
    world = before("upscale")
    asked: list[dict[str, Any]] = []
    world.vendors.find = lambda wanted: asked.append(dict(wanted))
    world.vendors.plan("upscale", "unknown")
    world.tick()
    wanted = {"step": "upscale", "attempt": 1, "requested_at_utc": "2026-01-01T00:00:00Z"}
    assert [{**known, **wanted, "origin_task_id": "imagine-1", "index": 1} for known in asked] == asked != []


def test_a_task_of_an_earlier_attempt_is_not_taken_for_a_call_that_was_lost() -> None:
    """The vendor also searches tasks of the minute before, and the same upscale had been ordered then."""
    world = before("upscale", on_unknown_outcome="retry")
    world.interval_s = 1
    world.vendors.plan("upscale", "ok", "lost")
    world.vendors.plans["fetch"] = deque(["failed", *["running"] * 9])
    world.vendors.find = lambda asked: "upscale-1"
    world.ticks(6)
    assert [(call["outcome"], call.get("task_id")) for call in world.doc.paid_calls] == [
        ("accepted", "upscale-1"),
        ("unknown", None),
        ("accepted", "upscale-2"),
    ]


@pytest.mark.parametrize("kind", ["write", "create"])
def test_no_vendor_can_look_up_texts_and_films(kind: str) -> None:
    world = before(kind)
    world.vendors.find = lambda wanted: pytest.fail("asked")
    world.vendors.plan(kind, "unknown")
    world.tick()
    assert world.doc.pending is None


# --- a crash between asking and saving --------------------------------------------------------------------------------


def test_after_a_text_that_a_vendor_could_look_up_the_next_call_has_an_intent_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, intents = before("write"), list[str | None]()
    prompts = [PROMPTS[0]._replace(name=name) for name in ("first", "second")]

    def asked(kind: str) -> str:
        intents.append(world.doc.pending.raw["call"] if world.doc.pending else None)
        return "unknown" if len(intents) == 1 else "ok"

    world.vendors.choose_next = asked
    monkeypatch.setattr(StoryJournal, "find", lambda journal: CONTENT)
    world.by_hand(lambda context: write_content(context, ID, prompts))
    assert intents == ["first", "second"]


@pytest.mark.parametrize("kind", BEFORE)
def test_a_script_that_dies_in_a_paid_call_is_looked_into_before_anything_is_asked_again(kind: str) -> None:
    world = before(kind)
    world.vendors.plan(kind, "dies")
    died = world.tick()
    assert died.exit_code == 75
    assert world.doc.pending is not None
    assert world.doc.retries == {}
    with Heard() as log:
        world.tick()
    assert (world.vendors.asked[kind], log.alerts) == (1, ["outcome_unknown"])
    assert world.doc.pending is None
    reset = world.tick()
    assert reset.why.startswith("attempt 1/3")
    world.tick()
    assert world.vendors.asked[kind] == 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["imagine", "upscale", "create"])
def test_a_death_at_any_touch_of_the_bucket_pays_at_most_once_unseen(kind: str) -> None:
    """After the crash ticks go on; whatever was billed twice is recorded as a possible duplicate."""

    def make(world: World) -> None:
        world.by_hand(lambda context: make_media(context, ID))

    counted = FailingBucket(MemoryBucket())
    with suppress(PollFailed):  # the film is not ready in time, which does not matter here
        make(before(kind, counted))
    setup = len(before(kind, FailingBucket(MemoryBucket())).bucket.operations)
    for number in range(setup + 1, len(counted.operations) + 1):
        for after in (False, True):
            bucket = MemoryBucket()
            world = before(kind, FailingBucket(bucket, Fault(Crash, number=number, after=after)))
            with pytest.raises(Crash):
                make(world)
            bucket.store.end_leases()
            world.bucket = bucket
            world.vendors.plans.clear()
            world.vendors.plan("fetch", *["running"] * 9)
            world.ticks(3)
            spent = f"spend/{ID}.json"  # exists once the generation has ended
            paid = world.json(spent)["paid_calls"] if spent in world.keys_of() else world.doc.paid_calls
            calls = [call for call in paid if call["step"] == STEPS[kind]]
            assert len(calls) >= world.vendors.billed[kind] >= 1, (number, after)
            assert world.vendors.billed[kind] == 1 or any(call.get("possible_duplicate") for call in calls)


# --- a bucket that is away just after the payment ---------------------------------------------------------------------


class Outage:
    """Fails `times` saves, starting when the vendor has answered."""

    def __init__(self, kind: str, times: int, *, after: bool = False) -> None:
        self.world = before(kind)
        self.left = 0
        bucket, outage = self.world.bucket, self

        class Failing(MemoryBucket):
            def write(self, key: str, data: bytes, expect: Any) -> str:
                if not outage.left:
                    return super().write(key, data, expect)
                outage.left -= 1
                if after:
                    super().write(key, data, expect)
                raise StorageError("the bucket is away")

        self.world.bucket = Failing(bucket.store)
        pay = self.world.vendors.pay

        def paid(what: str) -> str:
            answer = pay(what)
            self.left = times if what == kind else 0
            return answer

        self.world.vendors.pay = paid


@pytest.mark.parametrize("kind", BEFORE)
@pytest.mark.parametrize("times", [1, 5])
def test_an_answer_is_saved_once_the_bucket_is_back(kind: str, times: int) -> None:
    outage = Outage(kind, times)
    began = outage.world.clock.now()
    outage.world.tick()
    assert outage.world.doc.pending is None
    assert outage.world.vendors.billed[kind] == 1
    assert [call["outcome"] for call in outage.world.doc.paid_calls if call["step"] == STEPS[kind]] == [
        "done" if kind == "write" else "accepted"
    ]
    assert (outage.world.clock.now() - began).total_seconds() >= 60 + (1 if times == 1 else 30)


@pytest.mark.parametrize("kind", BEFORE)
def test_where_the_bucket_stays_away_the_answer_is_logged_and_the_call_is_pending(kind: str) -> None:
    outage = Outage(kind, 6)
    with Heard() as log:
        tick = outage.world.tick()
    assert tick.exit_code == 75
    assert outage.world.doc.pending is not None
    wanted = CONTENT["topic"] if kind == "write" else f"{kind}-1"
    assert sum(wanted in record.getMessage() for record in log.records if record.levelname == "ERROR") == 5
    outage.world.tick()
    assert outage.world.vendors.billed[kind] == 1, "its outcome is looked up first"


@pytest.mark.parametrize("kind", BEFORE)
def test_where_the_lease_runs_out_an_answer_is_tried_to_be_saved_for_as_long_as_it_lasts(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage(kind, 12)
    began = outage.world.clock.now()
    end = began + timedelta(seconds=10_000)
    monkeypatch.setattr(MemoryLease, "left", lambda lease: (end - outage.world.clock.now()).total_seconds())
    outage.world.tick()
    assert outage.world.doc.pending is None
    assert outage.world.vendors.billed[kind] == 1
    assert not [call for call in outage.world.doc.paid_calls if call.get("possible_duplicate")]
    assert (outage.world.clock.now() - began).total_seconds() >= 30 + 6 * 15, "longer than half a minute"


@pytest.mark.parametrize("kind", BEFORE)
def test_a_save_that_went_through_though_its_answer_was_lost_is_not_a_failed_attempt(kind: str) -> None:
    outage = Outage(kind, 1, after=True)
    tick = outage.world.tick()
    doc = outage.world.doc
    assert (doc.pending, doc.retries, doc.raw.get("last_error") and doc.raw.get("last_error")["error_code"]) == (
        None,
        {},
        "ERR_TEMPORARY_POLL_TIMEOUT" if kind == "create" else None,
    )
    assert tick.exit_code == (75 if kind == "create" else 0)
    assert outage.world.vendors.billed[kind] == 1


@pytest.mark.parametrize("kind", BEFORE)
def test_where_the_intent_cannot_be_saved_nothing_is_asked(kind: str) -> None:
    world = before(kind)
    world.bucket = FailingBucket(world.bucket, Fault(operation="write", key=DOCUMENT, times=99))
    tick = world.tick()
    assert tick.exit_code == 75
    assert world.vendors.asked[kind] == 0
    assert world.doc.retries == {}
    assert world.status is None, "a bucket that is away is no failed attempt"


@pytest.mark.parametrize("kind", BEFORE)
def test_where_somebody_else_wrote_the_document_nothing_is_asked(kind: str) -> None:
    world = before(kind)

    def work(context: Any) -> None:
        world.put(DOCUMENT, {**BEFORE[kind], "theirs": 1})
        make_media(context, ID)

    if kind != "write":
        with pytest.raises(Conflict):
            world.by_hand(work)
        assert world.vendors.asked[kind] == 0


@pytest.mark.parametrize("kind", ["imagine", "upscale", "create"])
def test_a_lease_that_is_lost_between_intent_and_call_stops_the_payment(kind: str) -> None:
    world = before(kind)
    bucket = world.bucket

    class Losing(MemoryBucket):
        def write(self, key: str, data: bytes, expect: Any) -> str:
            version = super().write(key, data, expect)
            if b"pending_call" in data:
                bucket.store.end_leases()
            return version

    world.bucket = Losing(bucket.store)
    with pytest.raises(LeaseLost):
        world.by_hand(lambda context: make_media(context, ID))
    assert world.vendors.asked[kind] == 0


# --- what needs a person ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BEFORE)
def test_a_refused_key_is_reported_once_and_asked_again_once_an_hour(kind: str) -> None:
    world = before(kind)
    world.vendors.plan(kind, *["key"] * 99)
    with Heard() as log:
        ticks = world.ticks(121)
    assert {tick.exit_code for tick in ticks} == {78}
    assert world.vendors.asked[kind] == 3, "at 0:00, 1:00 and 2:00"
    assert log.alerts == ["ERR_CRITICAL_UNAUTHORIZED"]
    assert (world.doc.status, world.doc.retries, world.doc.pending) == (None, {}, None)
    assert world.doc.raw.get("last_error") is not None
    assert "--resume" in world.doc.raw.get("last_error")["recovery_actions"][0]["what"]


def test_another_reason_to_call_a_person_is_told_too() -> None:
    world = before("imagine")
    codes = iter([Code.UNAUTHORIZED, Code.OUT_OF_CREDIT, Code.OUT_OF_CREDIT])
    world.vendors.imagine = lambda prompt, nonce: (_ for _ in ()).throw(Refused(next(codes), "no"))
    with Heard() as log:
        for _ in range(3):
            world.tick()
            world.later(hours=1)
    assert log.alerts == ["ERR_CRITICAL_UNAUTHORIZED", "ERR_CRITICAL_OUT_OF_CREDIT"]


@pytest.mark.parametrize("kind", BEFORE)
def test_when_the_key_is_mended_the_operator_need_not_wait(kind: str) -> None:
    world = before(kind)
    world.vendors.plan(kind, "key")
    assert world.tick().exit_code == 78
    assert world.tick().exit_code == 78
    world.tick(Orders(resume=True))
    assert world.vendors.billed[kind] == 1
    assert world.doc.raw.get("last_error") is None or world.doc.raw.get("last_error")["error_class"] != "C"


def test_an_alert_names_the_step_and_what_to_do() -> None:
    world = before("imagine", on_unknown_outcome="hold")
    world.vendors.plan("imagine", "unknown")
    with Heard() as log:
        world.tick()
    alert = next(record for record in log.records if "alert" in vars(record))
    assert vars(alert)["step"] == "imagine"
    assert "--resolve retry" in alert.getMessage()


def test_an_error_on_record_says_what_happened_where_and_what_follows() -> None:
    world = before("upscale")
    world.vendors.plan("upscale", "refused")
    with pytest.raises(Refused):
        world.by_hand(lambda context: make_media(context, ID))
    error = world.doc.raw.get("last_error")
    assert error is not None
    assert (error["robot_id"], error["correlation_id"], error["error_class"]) == ("story.upscale", ID, "A")
    assert error["message"] == "upscale: HTTP 500"
    assert error["details"]["retry_count"] == 0


def test_settling_by_hand_says_that_nobody_knows() -> None:
    world = before("create")
    world.put(DOCUMENT, {**BEFORE["create"], "pending_call": {"step": "runway"}})
    with pytest.raises(OutcomeUnknown, match="not on record"):
        world.by_hand(lambda context: make_media(context, ID))
    assert world.doc.status is Status.RUNWAY_TRIGGER_FAILED
    assert world.vendors.asked["create"] == 0


def test_a_held_call_in_whose_place_a_mock_is_made_by_hand_counts_as_billed() -> None:
    world = World(on_unknown_outcome="hold", daily_cap_usd=0.6)
    world.vendors.plan("create", "unknown")
    world.tick()
    assert world.doc.pending
    world.by_hand(lambda context: make_media(context, ID, use_mock=True))
    assert not world.doc.pending
    assert world.doc.spend.reserved == 0
    world.ticks(2)
    assert world.ended[0] == "done"
    [bill] = [world.json(f"spend/{ID}.json")["paid_calls"][-1]]
    assert (bill["step"], bill["outcome"], bill["price_usd"]) == ("runway", "unknown", 0.5)
    assert world.json("caps/2026-01-01.json")["spent_usd"] >= 0.565, "a possible bill counts against the cap"
