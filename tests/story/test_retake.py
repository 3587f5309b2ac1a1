"""A failed generation is resumed from its dead letter, at the step that failed."""

import pytest
from mortal import MortalWorld
from operator_states import PAID, each_death
from story_ticks import Scripted, at
from story_world import World

from retake.bucket import ANY, Bucket, NotFound
from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.errors import StateError
from retake.operations.letters import list_letters
from retake.operations.port import Refusal, Verb
from retake.story.operations import open_operations
from retake.story.operator_actions import OperatorActions
from retake.story.runner import StoryRunner
from retake.ticking.tick import Orders


def failed_at(kind: str, outcome: str, world: World) -> str:
    world.vendors.plan(kind, *[outcome] * 99)
    while not world.ended:
        world.tick()
    world.vendors.plans.clear()
    return world.keys_of("dead_letters/")[0].split("/")[1]


CASES = [
    ("write", "refused"),
    ("imagine", "refused"),
    ("imagine", "rejected"),
    ("fetch", "error"),
    ("fetch", "failed"),
    ("upscale", "refused"),
    ("create", "refused"),
    ("poll", "error"),
    ("poll", "running"),
    ("poll", "failed"),
]


@pytest.mark.parametrize(("kind", "outcome"), CASES)
def test_only_the_failed_step_is_taken_again(kind: str, outcome: str) -> None:
    world = World()
    generation_id = failed_at(kind, outcome, world)
    before = world.vendors.billed.copy()
    world.tick(Orders(retake=generation_id))
    while len(world.ended) < 2:
        world.tick()
    assert world.ended == ["failed", "done"]
    assert len(world.keys_of(f"666/{generation_id}.")) == 3
    assert not world.keys_of(f"dead_letters/{generation_id}")
    again = {step for step, billed in world.vendors.billed.items() if billed > before[step]}
    order = ["write", "imagine", "upscale", "create"]
    first = {"fetch": "imagine" if outcome == "failed" else "upscale", "poll": "create"}.get(kind, kind)
    assert not again & set(order[: order.index(first)]), "earlier steps are not paid for again"
    if (kind, outcome) in (("poll", "error"), ("poll", "running")):
        assert "create" not in again, "the paid task is polled again"


@pytest.mark.parametrize(("kind", "outcome"), [("fetch", "error"), ("poll", "running")])
def test_a_paid_task_is_asked_for_however_late_it_is_resumed(kind: str, outcome: str) -> None:
    world = World()
    generation_id = failed_at(kind, outcome, world)
    billed = world.vendors.billed.copy()
    world.later(days=1)
    world.vendors.plan(kind, *["running"] * 99)
    world.tick(Orders(retake=generation_id))
    world.tick()
    assert world.generation_id == generation_id, "it goes on waiting"
    world.vendors.plans.clear()
    while world.generation_id:
        world.tick()
    assert world.bucket.read(f"666/{generation_id}.mp4")[0] != b"MOCK"
    first = "imagine" if kind == "fetch" else "create"
    assert world.vendors.billed[first] == billed[first]


def test_it_has_its_attempts_anew() -> None:
    world = World(max_retries=1)
    generation_id = failed_at("upscale", "refused", world)
    world.vendors.plan("upscale", "refused")
    world.tick(Orders(retake=generation_id))
    assert world.status == "upscale_trigger_failed"
    world.ticks(2)
    assert world.ended == ["failed", "done"]


def test_a_missing_dead_letter_is_reported_and_nothing_changes() -> None:
    world = World()
    with pytest.raises(StateError, match="no dead letter"):
        world.tick(Orders(retake="20200101-0000"))
    assert world.generation_id is None


@pytest.mark.parametrize("present", [None, "20260101-0000"])
def test_neither_of_two_orders_is_carried_out_if_one_is_refused(present: str | None) -> None:
    world = World()
    world.put("config/config_gen.json", {"failed_in_a_row": 3, "generation_id": present})
    with pytest.raises(StateError, match=r"no dead letter|is under way"):
        world.tick(Orders(resume=True, retake="20200101-0000"))
    assert world.documents.gen.failed_in_a_row == 3


def test_a_call_that_belongs_to_no_generation_is_not_resolved_in_the_one_that_is_requeued() -> None:
    """As when somebody has removed the id of the generation that made the call."""
    world = World()
    generation_id = failed_at("upscale", "refused", world)
    call = {"step": "upscale", "requested_at_utc": "2026-01-01T00:00:00Z", "outcome": "unknown"}
    world.put("config/config_midjourney.json", {"pending_call": call})
    before, orders = world.everything(), Orders(retake=generation_id, resolve="skip")
    for order in (world.tick, world.manager().dry_run):
        with pytest.raises(StateError, match=r"no paid call .* Nothing was changed"):
            order(orders)
        assert world.everything() == before


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut off before its report"])
def test_what_a_rollback_gave_up_is_not_a_generation(cut: bool) -> None:
    """This holds for all who ask, and where a crash left the letter without the report that says what it is."""
    world = World()
    world.vendors.plan("poll", *["running"] * 99)
    world.tick()
    operator = OperatorActions(world.settings, world.bucket, world.clock, owner="operator@desk")
    present = str(world.generation_id)
    operator.carry_out(Verb.ROLLBACK, present, operator.planned(Verb.ROLLBACK, present, "upscale").lost, "upscale")
    operator.carry_out(Verb.CANCEL, present, operator.planned(Verb.CANCEL, present).lost)
    [letter] = {key.split("/")[1] for key in world.keys_of("dead_letters/")} - {present}
    if cut:
        world.bucket.delete(f"dead_letters/{letter}/report.json")
    with pytest.raises(Refusal, match="is what a rollback gave up"):
        operator.requeue(letter)
    with pytest.raises(StateError, match=r"is what a rollback gave up.* Nothing was changed"):
        world.tick(Orders(retake=letter))
    assert world.generation_id is None
    world.tick(Orders(retake=present))
    assert world.generation_id == present


def test_what_is_finished_is_not_made_again_from_the_remains_of_its_letter() -> None:
    """An order to requeue that died before it removed the letter leaves it like this."""
    world = World()
    generation_id = failed_at("upscale", "refused", world)
    kept = {key: data for key, data in world.everything().items() if key.startswith("dead_letters/")}
    world.tick(Orders(retake=generation_id))
    assert world.ended == ["failed", "done"]
    for key, data in kept.items():
        world.bucket.write(key, data, ANY)
    billed = world.vendors.billed.copy()
    with pytest.raises(StateError, match=r"is finished, its files lie in 666/; .* Nothing was changed"):
        world.tick(Orders(retake=generation_id))
    assert world.vendors.billed == billed


def test_a_letter_that_is_not_written_to_its_end_is_not_dropped() -> None:
    """Its text may exist only in the letter; without it, the next tick would write a letter without text."""
    world = World(max_retries=0)
    world.vendors.plan("imagine", "refused")
    store = world.bucket
    moved = Fault(Crash, operation="delete", key="666/20260101-0000.json", after=True)
    world.bucket = dying = FailingBucket(store, moved)  # type: ignore[assignment]
    with pytest.raises(Crash):
        world.ticks(3)
    dying.end_leases()
    world.bucket = store
    present = str(world.generation_id)
    operator = OperatorActions(world.settings, store, world.clock, owner="operator@desk")
    with pytest.raises(Refusal, match="is just being moved there"):
        operator.drop(present)
    world.tick()
    assert f"dead_letters/{present}/{present}.json" in world.keys_of("dead_letters/")
    assert operator.drop(present).id == present


def requeue_dies_after(world: World, name: str, *, operation: str, key: str) -> None:
    dying = FailingBucket(world.bucket, Fault(Crash, operation=operation, key=key, after=True))
    with pytest.raises(Crash):
        OperatorActions(world.settings, dying, world.clock, owner="operator@desk").requeue(name)
    dying.end_leases()


@pytest.mark.parametrize("place", ["", "555/", "archive/"])
def test_a_dropped_letter_takes_with_it_what_an_order_to_requeue_had_copied_when_it_died(place: str) -> None:
    """Unless a file is further up: then it is a generation that went on, and a tick died while moving its files."""
    world = World()
    name = failed_at("upscale", "refused", world)
    requeue_dies_after(world, name, operation="copy", key=f"666/{name}.json")
    if place:
        world.put(f"{place}{name}.png", b"png")
    OperatorActions(world.settings, world.bucket, world.clock, owner="operator@desk").drop(name)
    assert world.keys_of("dead_letters/") == []
    assert world.keys_of("666/") == [f"666/{name}.json"] * bool(place)


def test_a_dropped_letter_takes_nothing_of_the_generation_under_way() -> None:
    """The order to requeue it had restored it completely, and died before removing the letter."""
    world = World()
    name = failed_at("upscale", "refused", world)
    requeue_dies_after(world, name, operation="write", key="config/config_gen.json")
    dropped(world, world.bucket, name)
    assert world.keys_of("dead_letters/") == []
    assert world.keys_of("666/") == [f"666/{name}.json"]
    assert world.generation_id == name


def test_a_dropped_letter_takes_no_files_with_it_of_which_it_has_no_others() -> None:
    world = World()
    name = failed_at("upscale", "refused", world)
    requeue_dies_after(world, name, operation="copy", key=f"666/{name}.json")
    world.put(f"666/{name}.png", b"png")
    dropped(world, world.bucket, name)
    assert world.keys_of("666/") == [f"666/{name}.json", f"666/{name}.png"]


def test_the_remains_of_a_letter_take_nothing_with_them() -> None:
    """Somebody has removed the id of what was requeued; its files are its own."""
    world = World()
    name = failed_at("upscale", "refused", world)
    requeue_dies_after(world, name, operation="write", key=f"dead_letters/{name}/report.json")
    world.put("config/config_gen.json", {})
    OperatorActions(world.settings, world.bucket, world.clock, owner="operator@desk").drop(name)
    assert world.keys_of("dead_letters/") == []
    assert world.keys_of("666/") == [f"666/{name}.json"]


def test_the_generation_under_way_is_not_pushed_aside() -> None:
    world = World()
    generation_id = failed_at("upscale", "refused", world)
    world.vendors.plan("fetch", *["running"] * 99)
    world.tick()
    with pytest.raises(StateError, match="is under way"):
        world.tick(Orders(retake=generation_id))
    assert world.keys_of(f"dead_letters/{generation_id}")


@pytest.mark.slow
def test_a_death_at_any_point_of_taking_up_loses_nothing() -> None:
    world = MortalWorld(max_retries=0)
    generation_id = failed_at("upscale", "refused", world)
    kept = dict(world.memory.store.objects)
    moment = world.clock.moment
    world.fate.live()
    world.tick(Orders(retake=generation_id))
    operations = len(world.fate.log)
    for due in range(1, operations + 1):
        for after in (False, True):
            world.memory.store.objects.clear()
            world.memory.store.objects.update(kept)
            world.clock.moment = moment
            world.ended.clear()
            world.fate.live(due, after=after)
            try:
                world.tick(Orders(retake=generation_id))
            except Crash:
                world.memory.store.end_leases()
            world.fate.live()
            try:
                text = world.bucket.read(f"dead_letters/{generation_id}/{generation_id}.json")
            except NotFound:
                text = world.bucket.read(f"666/{generation_id}.json")
            assert text


def test_what_the_day_has_cost_is_not_forgotten() -> None:
    world = World()
    generation_id = failed_at("upscale", "refused", world)
    world.later(days=1)
    world.vendors.plan("fetch", "running")
    world.tick()
    world.vendors.plan("upscale", "rejected")
    while len(world.ended) < 2:
        world.tick()
    spent = world.doc.spend
    world.vendors.plan("upscale", "refused")
    world.tick(Orders(retake=generation_id))
    assert world.doc.spend == spent


def test_what_belonged_to_nobody_is_kept_beside_what_did_when_the_same_one_was_requeued_before() -> None:
    world = World()
    generation_id = failed_at("upscale", "rejected", world)
    asked = ["2026-01-01T00:01:00Z", "2026-01-01T00:02:00Z"]
    for moment in asked:
        call = {**PAID, "requested_at_utc": moment}
        world.put("config/config_midjourney.json", {"paid_calls": [call], "generation": False})
        hands = OperatorActions(world.settings, world.bucket, world.clock, owner="operator@desk")
        hands.requeue(generation_id)
        hands.carry_out(Verb.CANCEL, generation_id, hands.planned(Verb.CANCEL, generation_id).lost)
    bills = (
        open_operations(world.settings, world.clock, bucket=world.bucket).pipelines[0].paid_since("2026-01-01").bills
    )
    calls = [call for it in bills if it.outcome == "nobody's" for call in it.calls]
    assert sorted(str(call["requested_at_utc"]) for call in calls) == asked


def with_work_of_nobody() -> Scripted:
    """Return a generation under way whose id somebody removed; what it had paid for is kept when the next one began."""
    call = {**PAID, "requested_at_utc": "2026-01-01T00:00:30Z"}
    world = at(gen={"generation_id": None}, paid_calls=[call])
    world.tick()
    return world


def paid_of(world: World) -> list[tuple[str, float]]:
    """Return the cost of each item."""
    bills = (
        open_operations(world.settings, world.clock, bucket=world.bucket).pipelines[0].paid_since("2026-01-01").bills
    )
    return sorted((it.item_id, sum(call["price_usd"] for call in it.calls)) for it in bills)


def test_what_nobodys_work_cost_is_shown_and_stays_on_record_when_its_letter_is_dropped() -> None:
    whole = with_work_of_nobody()
    [view] = list_letters(open_operations(whole.settings, whole.clock, bucket=whole.bucket), 10)
    assert (view.how, view.paid_usd) == ("nobody's", PAID["price_usd"])
    name, paid = view.letter.id, paid_of(whole)
    assert (name, PAID["price_usd"]) in paid
    for where, world in each_death(with_work_of_nobody, lambda world, bucket: dropped(world, bucket, name)):
        assert paid_of(world) == paid, where
        if world.keys_of(f"dead_letters/{name}/"):
            dropped(world, world.bucket, name)
        assert (world.keys_of(f"dead_letters/{name}/"), paid_of(world)) == ([], paid), where


def test_nobodys_work_whose_letter_is_dropped_before_the_next_generation_begins_is_billed_once() -> None:
    def orphaned() -> Scripted:
        return at(gen={"generation_id": None}, paid_calls=[{**PAID, "requested_at_utc": "2026-01-01T00:00:30Z"}])

    def ticked(world: Scripted, bucket: Bucket) -> None:
        StoryRunner(world.settings, bucket, world, world.keys, world.clock, owner="host-a:17").tick()

    left = 0
    for where, world in each_death(orphaned, ticked):
        name = next((key.split("/")[1] for key in world.keys_of("dead_letters/before-")), "")
        if not name or world.generation_id:
            continue
        left += bool(world.doc.paid_calls)
        dropped(world, world.bucket, name)
        world.later(minutes=5)
        world.tick()
        nobodys = [paid for item, paid in paid_of(world) if item.startswith("before-")]
        assert nobodys == [PAID["price_usd"]], where
    assert left


def dropped(world: World, bucket: Bucket, name: str) -> None:
    OperatorActions(world.settings, bucket, world.clock, owner="operator@desk").drop(name)
