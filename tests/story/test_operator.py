"""What an operator may do to a generation: every state of a pipeline against every command."""

import pytest
from operator_states import ID, STATES, TABLE, each_death
from story_ticks import PUBLIC, Scripted
from story_world import World

from retake.bucket import Bucket
from retake.errors import LeaseHeld, StateError
from retake.operations.port import Refusal, Verb
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.run import CHANGED, ERROR, Run
from retake.runs.states import RunStatus
from retake.story.documents import Documents
from retake.story.operator_actions import OperatorActions
from retake.story.operator_rules import GenerationPlan, Situation, situation
from retake.ticking.tick import Orders

VERBS = (Verb.RETRY, Verb.SKIP, Verb.CANCEL)
CASES = [(name, verb, row[number]) for name, row in TABLE.items() for number, verb in enumerate(VERBS)]
ALLOWED = [(name, verb) for name, verb, refusal in CASES if not refusal]


def operator(world: World, bucket: Bucket | None = None) -> OperatorActions:
    return OperatorActions(world.settings, bucket or world.bucket, world.clock, owner="operator@desk")


def carried_out(world: World, verb: Verb) -> tuple[GenerationPlan, Documents]:
    hands = operator(world)
    return hands.carry_out(verb, ID, hands.planned(verb, ID).lost)


def to_its_end(world: World) -> None:
    for _ in range(40):
        if world.generation_id != ID:
            return
        world.tick()
    raise AssertionError(f"no end: {world.doc}")


def test_the_table_knows_every_state() -> None:
    assert set(TABLE) == set(STATES) - {"no generation", "dead_lettered"}
    found = {situation(read(STATES[name]()), STATES[name]().settings.workflow, World().clock.now()) for name in TABLE}
    assert found == set(Situation)


def read(world: Scripted) -> Documents:
    return operator(world).look()


@pytest.mark.parametrize(("name", "verb", "refusal"), CASES)
def test_what_makes_sense_is_done_and_the_rest_is_refused_with_a_way_on(name: str, verb: Verb, refusal: str) -> None:
    world = STATES[name]()
    before = world.everything()
    if refusal:
        with pytest.raises(Refusal, match=refusal):
            carried_out(world, verb)
        assert world.everything() == before, "a refusal changes nothing"
        return
    hands = operator(world)
    planned = hands.planned(verb, ID)
    assert world.everything() == before, "a plan changes nothing"
    done, after = hands.carry_out(verb, ID, planned.lost)
    assert done.done == planned.done
    assert after == operator(world).look()
    assert ID in done.done
    assert not world.json(PUBLIC)["processing_lock"]
    assert not world.bucket.store.holders.get("story")


@pytest.mark.parametrize("name", ["no generation", "pictures failed"])
@pytest.mark.parametrize("verb", Verb)
def test_a_generation_that_is_not_under_way_is_refused(name: str, verb: Verb) -> None:
    world = STATES[name]()
    before = world.everything()
    with pytest.raises(Refusal, match="generation 20200101-0000 is not under way"):
        operator(world).planned(verb, "20200101-0000")
    with pytest.raises(Refusal, match="is not under way"):
        operator(world).carry_out(verb, "20200101-0000", "")
    assert world.everything() == before


@pytest.mark.parametrize(("name", "verb"), ALLOWED)
def test_while_a_tick_is_at_work_nothing_is_done(name: str, verb: Verb) -> None:
    world = STATES[name]()
    lease, before = world.bucket.lease("story", "host-a:17"), world.everything()
    with pytest.raises(LeaseHeld, match="host-a:17"):
        carried_out(world, verb)
    assert world.everything() == before
    lease.release()


@pytest.mark.parametrize(("name", "verb"), ALLOWED)
def test_afterwards_the_pipeline_goes_on_to_an_end(name: str, verb: Verb) -> None:
    world = STATES[name]()
    carried_out(world, verb)
    to_its_end(world)
    whole = [key for key in world.keys_of(f"666/{ID}.") if key]
    kept = world.keys_of(f"dead_letters/{ID}/")
    if verb is Verb.CANCEL:
        assert (whole, world.json(f"dead_letters/{ID}/report.json")["cancelled"]["by"]) == ([], "operator")
    elif name.endswith("held") and verb is Verb.SKIP:
        assert (whole, bool(kept)) == ([], True), "as --resolve skip: as if no attempt were left"
    elif name == "video failed without a text":
        assert kept
    else:
        assert (len(whole), kept) == (3, [])


# --- retry ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "step"),
    [("text failed", "content"), ("pictures failed twice", "imagine"), ("poll of the video failed", "runway_poll")],
)
def test_retry_is_the_attempt_that_was_due_later_and_no_more_of_them(name: str, step: str) -> None:
    world = STATES[name]()
    used = world.doc.retries.get(step, 0)
    carried_out(world, Verb.RETRY)
    assert world.doc.retries == {step: used + 1}
    assert world.status not in ("content_failed", "imagine_trigger_failed", "runway_poll_failed")
    assert world.doc.runway_task == STATES[name]().doc.runway_task, "a paid task is polled on"


def test_retry_does_not_wait_until_the_step_is_due() -> None:
    world = STATES["pictures failed and wait"]()
    world.tick()
    assert world.status == "imagine_trigger_failed"
    assert runs(world)[0].next_retry_at is not None
    carried_out(world, Verb.RETRY)
    assert runs(world)[0].next_retry_at == world.clock.now()
    world.tick()
    assert world.vendors.billed["imagine"] == 1


@pytest.mark.parametrize("name", [name for name in TABLE if "for the key" in name])
def test_retry_lifts_the_wait_for_a_person(name: str) -> None:
    world = STATES[name]()
    assert world.tick().exit_code == 78
    carried_out(world, Verb.RETRY)
    assert world.doc.raw.get("last_error") is None
    assert world.tick().exit_code != 78


@pytest.mark.parametrize("name", ["text held", "pictures held", "upscale held", "video held"])
def test_retry_of_a_held_call_warns_that_it_may_be_paid_for_twice(name: str) -> None:
    world = STATES[name]()
    calls = len(world.doc.paid_calls)
    done, _ = carried_out(world, Verb.RETRY)
    assert "paid for twice" in done.warning
    assert world.doc.pending is None
    assert world.doc.paid_calls[calls]["possible_duplicate"]


def test_an_error_that_waits_for_a_person_does_not_hold_up_a_retry() -> None:
    world = STATES["pictures failed"]()
    world.put("config/config_midjourney.json", {**world.doc.raw, "last_error": {"error_class": "C"}})
    carried_out(world, Verb.RETRY)
    assert world.doc.raw.get("last_error") is None


# --- skip -------------------------------------------------------------------------------------------------------------

SKIPPED = [
    name
    for name, (_, refusal, _) in TABLE.items()
    if not refusal and not name.endswith("held") and not name.startswith("text")
]


@pytest.mark.parametrize("name", SKIPPED)
def test_what_is_skipped_becomes_a_mock_and_its_error_stays_on_record(name: str) -> None:
    world = STATES[name]()
    before, billed = world.doc, world.vendors.billed.copy()
    carried_out(world, Verb.SKIP)
    assert world.status == "timed_out_mock_needed"
    [entry] = world.doc.raw["skipped"]
    assert (entry["step"], entry["by"], entry["error"]) == (
        before.present_step,
        "operator",
        before.raw.get("last_error"),
    )
    to_its_end(world)
    assert world.bucket.read(f"666/{ID}.mp4")[0] == b"MOCK"
    assert world.vendors.billed == billed, "no vendor gets any more calls"


@pytest.mark.parametrize(("verb", "ends"), [(Verb.RETRY, "done"), (Verb.SKIP, "failed")])
def test_a_call_that_a_lower_max_retries_holds_is_decided_by_the_operator(verb: Verb, ends: str) -> None:
    """Looking into it had failed twice, which is now too often, so no tick tries again."""
    world = STATES["video held"]()
    call = {**world.doc.raw["pending_call"], "outcome": None, "failed_settles": 2}
    world.put("config/config_midjourney.json", {**world.doc.raw, "pending_call": call})
    world.settings = world.settings._replace(workflow=world.settings.workflow._replace(max_retries=1))
    assert "--resolve" in world.tick().why
    carried_out(world, verb)
    while not world.ended:
        world.tick()
    assert world.ended == [ends]


def test_skipping_names_the_task_that_was_paid_for() -> None:
    done, _ = carried_out(STATES["poll of the video failed"](), Verb.SKIP)
    assert "create-1" in done.warning


# --- cancel -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if not row[2]])
def test_what_is_cancelled_is_kept_whole_and_does_not_count_as_failed(name: str) -> None:
    world = STATES[name]()
    world.put("config/config_gen.json", {"generation_id": ID, "failed_in_a_row": 2, "theirs": 1})
    before, files = world.doc, world.keys_of(f"666/{ID}.")
    carried_out(world, Verb.CANCEL)
    assert world.json("config/config_gen.json") == {"generation_id": None, "failed_in_a_row": 2, "theirs": 1}
    letter_folder = f"dead_letters/{ID}/"
    kept = [key.replace("666/", letter_folder) for key in files]
    assert world.keys_of(letter_folder) == [
        *kept,
        f"{letter_folder}config_midjourney.json",
        f"{letter_folder}report.json",
    ]
    report = world.json(f"{letter_folder}report.json")
    assert report["cancelled"]["by"] == "operator"
    flight = [task.task_id for task in (before.task, before.runway_task) if task]
    assert report["tasks_in_flight"] == flight
    assert world.keys_of("666/") == []
    if before.paid_calls or before.pending:
        assert world.json(f"spend/{ID}.json")["outcome"] == "cancelled"


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if not row[2]])
def test_whoever_cancels_something_paid_must_agree_to_lose_it(name: str) -> None:
    world = STATES[name]()
    lost = operator(world).planned(Verb.CANCEL, ID).lost
    doc, before = world.doc, world.everything()
    assert bool(lost) == bool(doc.paid_calls or doc.pending)
    for task in (doc.task, doc.runway_task):
        assert task is None or task.task_id in lost
    if lost:
        with pytest.raises(Refusal, match="has moved on meanwhile"):
            operator(world).carry_out(Verb.CANCEL, ID, "something else")
        assert world.everything() == before


@pytest.mark.parametrize("name", ["pictures unasked", "video held"])
def test_a_call_under_way_counts_as_billed_when_its_generation_is_cancelled(name: str) -> None:
    world = STATES[name]()
    lost = operator(world).planned(Verb.CANCEL, ID).lost
    carried_out(world, Verb.CANCEL)
    doc = world.json(f"dead_letters/{ID}/config_midjourney.json")
    assert f"({sum(call['price_usd'] for call in doc['paid_calls']):.3f} USD)" in lost
    assert doc["paid_calls"][-1]["outcome"] == "unknown"
    assert "pending_call" not in doc
    assert (doc["spend"]["reserved_usd"], doc["spend"]["settled_usd"]) == (0.0, 0.5)


def test_the_next_tick_after_a_cancel_begins_anew() -> None:
    world = STATES["pictures failed"]()
    carried_out(world, Verb.CANCEL)
    world.tick()
    assert world.ended == ["done"]


# --- taking up again --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if not row[2]])
def test_what_was_cancelled_can_be_resumed_where_it_was(name: str) -> None:
    world = STATES[name]()
    before = world.doc
    carried_out(world, Verb.CANCEL)
    operator(world).requeue(ID)
    assert world.generation_id == ID
    assert world.doc.cancelled is None
    for now, then in ((world.doc.task, before.task), (world.doc.runway_task, before.runway_task)):
        assert now == (then and then._replace(requested_at=None)), "its age is counted from the next poll"
    assert world.doc.results == before.results
    assert not world.keys_of("dead_letters/")
    to_its_end(world)
    assert not any(world.vendors.billed[kind] for kind in ("imagine",) if before.task or before.results)


def test_one_generation_at_a_time_is_resumed() -> None:
    world = STATES["dead_lettered"]()
    world.put("config/config_gen.json", {"generation_id": "20260102-0000"})
    before = world.everything()
    with pytest.raises(Refusal, match=r"20260102-0000 is under way.*requeue .* when it has ended, or cancel 2026"):
        operator(world).requeue(ID)
    with pytest.raises(Refusal, match="need not be requeued"):
        operator(world).requeue("20260102-0000")
    assert world.everything() == before


@pytest.mark.parametrize("name", ["20200101-0000", "../x", "", "before-20260101-0000"])
def test_what_is_not_a_dead_letter_is_neither_requeued_nor_dropped(name: str) -> None:
    world = STATES["no generation"]()
    before = world.everything()
    with pytest.raises(Refusal):
        operator(world).requeue(name)
    with pytest.raises(Refusal, match="no dead letter"):
        operator(world).drop(name)
    assert world.everything() == before


@pytest.mark.parametrize("order", ["requeue", "retake"])
def test_a_letter_without_its_document_cannot_be_requeued_and_the_document_is_named(order: str) -> None:
    world = STATES["dead_lettered"]()
    world.bucket.delete(f"dead_letters/{ID}/config_midjourney.json")
    before = world.everything()
    with pytest.raises((Refusal, StateError), match=f"dead_letters/{ID}/config_midjourney.json is not there"):
        world.tick(Orders(retake=ID)) if order == "retake" else operator(world).requeue(ID)
    assert world.everything() == before


def test_a_dropped_dead_letter_is_gone_and_its_spend_record_stays() -> None:
    world = STATES["dead_lettered"]()
    gone = operator(world).drop(ID)
    assert gone.files == (f"{ID}.json", "config_midjourney.json")
    assert world.keys_of("dead_letters/") == []
    assert world.keys_of("spend/") == [f"spend/{ID}.json"]


# --- the ledger -------------------------------------------------------------------------------------------------------


def runs(world: World) -> list[Run]:
    return BucketLedger(world.bucket, world.clock).of_task(ID)


def transitions(world: World, run: Run) -> list[tuple[str, str]]:
    """Return each state that the run reached, and who moved it there."""
    events = BucketLedger(world.bucket, world.clock).events(run.run_id)
    return [(event.payload["status"], event.payload["actor"]) for event in events if event.kind == CHANGED]


def remarks(world: World, run: Run) -> list[str]:
    events = BucketLedger(world.bucket, world.clock).events(run.run_id)
    return [event.payload["code"] for event in events if event.kind == "run.note"]


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if not row[2]])
def test_a_cancelled_generation_is_one_cancelled_run(name: str) -> None:
    world = STATES[name]()
    world.tick()
    if world.generation_id != ID or world.doc.status == "task_failed_max_retries":
        return  # that tick ended it
    carried_out(world, Verb.CANCEL)
    [run] = runs(world)
    assert run.status is RunStatus.CANCELLED
    assert transitions(world, run)[-1] == ("cancelled", "operator")
    assert "cancel" in remarks(world, run)


@pytest.mark.parametrize(("name", "verb"), [(name, verb) for name, verb in ALLOWED if verb is not Verb.CANCEL])
def test_what_is_retried_or_skipped_goes_on_as_the_same_run(name: str, verb: Verb) -> None:
    world = STATES[name]()
    carried_out(world, verb)
    [run] = runs(world)
    assert verb.value in remarks(world, run)
    if name.endswith("held") and verb is Verb.SKIP:
        assert run.status is RunStatus.FAILED
        return
    assert (run.worker, run.status in WAITING) == (None, True), "nobody holds it before the next tick"
    if not name.endswith("held"):
        due = run.next_retry_at
        assert due is not None
        assert due <= world.clock.now()
        errors = [event for event in BucketLedger(world.bucket, world.clock).events(run.run_id) if event.kind == ERROR]
        assert [event.payload["error_code"] for event in errors] == [STATES[name]().doc.raw["last_error"]["error_code"]]
    world.tick()
    [run] = runs(world)
    assert run.status not in WAITING or run.error_code, "a manager claims it at its next tick"


WAITING = (RunStatus.QUEUED, RunStatus.RETRY_SCHEDULED)


def test_what_is_resumed_is_a_run_of_its_own_with_the_next_attempt() -> None:
    world = STATES["dead_lettered"]()
    operator(world).requeue(ID)
    first, second = runs(world)
    assert (first.status, second.status, second.worker) == (RunStatus.FAILED, RunStatus.QUEUED, None)
    assert second.attempt == first.attempt + 1
    assert transitions(world, second) == [("queued", "operator")]
    assert "requeue" in remarks(world, second)
    world.tick()
    assert transitions(world, second)[1] == ("running", "cron"), "the next tick claims it"


def test_a_generation_resumed_and_cancelled_at_once_was_never_running() -> None:
    world = STATES["dead_lettered"]()
    operator(world).requeue(ID)
    carried_out(world, Verb.CANCEL)
    _, second = runs(world)
    assert transitions(world, second) == [("queued", "operator"), ("cancelled", "operator")]


# --- the flag ---------------------------------------------------------------------------------------------------------


def test_a_flag_that_a_crash_left_stays_up_until_it_is_lowered_on_purpose() -> None:
    world = STATES["pictures failed"]()
    world.put(PUBLIC, {"processing_lock": True, "generation_id": ["x"]})
    carried_out(world, Verb.RETRY)
    assert world.json(PUBLIC)["processing_lock"]
    assert operator(world).lower_flag()
    assert world.json(PUBLIC) == {"processing_lock": False, "generation_id": ["x"]}
    assert not operator(world).lower_flag()


def test_a_flag_that_is_lowered_on_purpose_leaves_the_interruption_on_record() -> None:
    world = STATES["pictures awaited"]()
    world.vendors.plan("fetch", "running")
    world.tick()
    world.put(PUBLIC, {"processing_lock": True})
    assert operator(world).lower_flag()
    [run] = runs(world)
    assert transitions(world, run)[-1] == ("interrupted", "recovery")
    world.vendors.plan("fetch", "running")
    world.tick()
    assert transitions(world, run)[-2:] == [("interrupted", "recovery"), ("running", "recovery")]
    assert runs(world)[0].resumes == 1, "the next tick does not count it as a second crash"


# --- crashes ----------------------------------------------------------------------------------------------------------


SWEPT = {
    *("text next", "text held", "text failed", "pictures failed", "pictures refused for the key", "pictures unasked"),
    *("upscale exhausted", "poll of the video failed", "video held", "mock next", "all files there"),
}
"""The states whose commands die at every point: in flight, at hand, pending and reported as wrong, each once."""


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if not row[2] and name in SWEPT])
def test_a_cancel_that_died_is_finished_by_the_next_tick_or_was_never_begun(name: str) -> None:
    whole = STATES[name]()
    lost = operator(whole).planned(Verb.CANCEL, ID).lost
    files = {key.rpartition("/")[2] for key in whole.keys_of("666/")}
    for where, world in each_death(STATES[name], lambda *there: operator(*there).carry_out(Verb.CANCEL, ID, lost)):
        if world.generation_id == ID and not world.doc.cancelled:
            assert world.doc == whole.doc, where
            assert {key.rpartition("/")[2] for key in world.keys_of("666/")} == files, where
            continue
        if world.generation_id == ID:
            tick = world.tick()
            assert (tick.exit_code, tick.ended) == (0, "cancelled"), where
        assert world.generation_id is None, where
        assert world.documents.gen.failed_in_a_row == 0, where
        letter_folder = f"dead_letters/{ID}/"
        kept = {key.removeprefix(letter_folder) for key in world.keys_of(letter_folder)}
        assert kept == {*files, "config_midjourney.json", "report.json"}, where
        assert world.json(f"{letter_folder}report.json")["cancelled"], where
        assert not world.keys_of("666/"), where
        [run] = runs(world)
        assert run.status is RunStatus.CANCELLED, where


@pytest.mark.parametrize(
    ("name", "verb"), [(name, verb) for name, verb in ALLOWED if verb is not Verb.CANCEL and name in SWEPT]
)
def test_a_retry_or_skip_that_died_is_done_or_was_never_begun(name: str, verb: Verb) -> None:
    before, done = STATES[name](), STATES[name]()
    carried_out(done, verb)
    for where, world in each_death(STATES[name], lambda *there: operator(*there).carry_out(verb, ID, "")):
        assert world.doc in (before.doc, done.doc), where
        assert world.generation_id == ID, where
        if world.doc == before.doc:
            world.tick()  # what waited for a person still does
        else:
            to_its_end(world)
        assert not world.documents.public.processing_lock, where


def test_a_requeue_that_died_loses_nothing_and_can_be_asked_for_again() -> None:
    for where, world in each_death(STATES["dead_lettered"], lambda *there: operator(*there).requeue(ID)):
        if world.generation_id != ID:
            operator(world).requeue(ID)
        assert world.doc.results is not None, where
        to_its_end(world)
        assert len(world.keys_of(f"666/{ID}.")) == 3, where


def test_a_drop_that_died_leaves_a_dead_letter_that_can_be_dropped() -> None:
    for where, world in each_death(STATES["dead_lettered"], lambda *there: operator(*there).drop(ID)):
        left = world.keys_of("dead_letters/")
        assert not left or f"dead_letters/{ID}/report.json" in left, where
        if left:
            operator(world).drop(ID)
        assert not world.keys_of("dead_letters/"), where
