"""The ends of generations, orders of the operator, tidying, leftovers and displays, tick by tick."""

import json
from typing import Any

import pytest
from story_ticks import DOCUMENT, FOUR, GEN, ID, PICTURES, PUBLIC, WHOLE, Scripted, at, fill, group
from story_world import CONTENT, PAID, Heard
from watched_world import WatchedWorld

from retake.bucket import ANY
from retake.bucket.memory import MemoryBucket
from retake.errors import Code, LeaseHeld, Refused, StateError
from retake.keys import Keys
from retake.story.decision import Act
from retake.ticking.tick import Orders

# --- attempts, mocks, ends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PAID)
@pytest.mark.parametrize("max_retries", [0, 1, 3])
def test_a_vendor_that_always_refuses_is_asked_once_a_tick_and_once_more_than_there_are_retries(
    kind: str, max_retries: int
) -> None:
    world = Scripted(max_retries=max_retries)
    world.vendors.plan(kind, *["refused"] * 99)
    asked = 0
    while not world.ended:
        world.tick()
        assert world.vendors.asked[kind] <= asked + 1
        asked = world.vendors.asked[kind]
    assert (world.ended, asked) == (["failed"], max_retries + 1)
    step = {"write": "content", "create": "runway"}.get(kind, kind)
    assert world.json(f"dead_letters/{ID}/report.json")["failed_step"] == step
    assert "lower the flag" not in "\n".join(world.manager().dry_run())


@pytest.mark.parametrize("kind", ["imagine", "upscale", "create"])
def test_where_a_mock_is_wanted_it_stands_in_once_the_attempts_are_used_up(kind: str) -> None:
    world = Scripted(on_exhausted="mock", max_retries=1)
    world.vendors.plan(kind, *["refused"] * 99)
    world.ticks(3)
    assert world.ended == []
    assert world.tick().ended == "done"
    assert world.bucket.read(f"666/{ID}.mp4")[0] == b"MOCK"


def test_a_rejected_prompt_gets_no_mock_and_no_second_attempt() -> None:
    world = Scripted(on_exhausted="mock")
    world.vendors.plan("imagine", "rejected")
    tick = world.tick()
    assert (tick.exit_code, tick.ended, world.vendors.asked["imagine"]) == (69, "failed", 1)


def test_no_mock_stands_in_for_a_text() -> None:
    world = Scripted(on_exhausted="mock", max_retries=0)
    world.vendors.plan("write", *["refused"] * 9)
    world.ticks(2)
    assert world.ended == ["failed"]


@pytest.mark.parametrize("max_retries", [0, 3])
def test_a_mock_that_always_fails_ends_the_generation(max_retries: int) -> None:
    world = at(status="timed_out_mock_needed", workflow={"max_retries": max_retries})
    world.media.broken = True
    while not world.ended:
        assert world.tick().exit_code in (75, 69)
    assert len(world.runs) == max_retries + 1
    assert world.json(f"dead_letters/{ID}/report.json")["failed_step"] == "mock"


def test_a_task_that_is_accepted_and_then_always_fails_is_not_paid_for_without_end() -> None:
    for kind, step in (("fetch", "imagine"), ("poll", "create")):
        world = Scripted()
        world.vendors.plan(kind, *["failed"] * 99)
        while not world.ended:
            world.tick()
        assert world.vendors.billed[step] == 4


def test_a_failure_is_reported_with_its_step_its_attempts_and_its_reason() -> None:
    world = Scripted(max_retries=1)
    world.vendors.plan("upscale", *["refused"] * 99)
    with Heard() as log:
        world.ticks(4)
    assert log.alerts == ["generation_failed"]
    told = next(record for record in log.records if "alert" in vars(record))
    assert told.getMessage().startswith("the generation failed at upscale after 2 attempts: upscale: HTTP 500")
    assert vars(told)["step"] == "upscale"


def test_a_failure_whose_reason_is_a_whole_sentence_is_reported_with_one_full_stop_after_it() -> None:
    world = Scripted(max_retries=0)

    def refuse(*_: object, **__: object) -> str:
        raise Refused(Code.UNAVAILABLE, "PiAPI answered HTTP 500. Look at its status page.")

    world.vendors.imagine = refuse  # type: ignore[method-assign]
    with Heard() as log:
        world.ticks(2)
    told = next(record.getMessage() for record in log.records if "alert" in vars(record))
    assert told.partition(" at imagine ")[2] == (
        "after 1 attempt: PiAPI answered HTTP 500. Look at its status page. Everything is kept in dead_letters/"
    )


# --- too many failures ----------------------------------------------------------------------------------------------


def failing(number: int) -> Scripted:
    world = Scripted()
    world.vendors.plan("imagine", *["rejected"] * number)
    return world


def test_after_three_failed_generations_none_is_begun_until_the_operator_says_go_on() -> None:
    world = failing(3)
    with Heard() as log:
        assert [tick.exit_code for tick in world.ticks(5)] == [69] * 5
    assert (world.vendors.asked["imagine"], world.vendors.asked["write"]) == (3, 3)
    assert log.alerts == ["generation_failed"] * 3 + ["stopped"], "reported once, not at every tick"
    tick = world.tick(Orders(resume=True))
    assert (tick.exit_code, tick.ended) == (0, "done")
    assert world.documents.gen.failed_in_a_row == 0


def test_a_limit_that_was_lowered_while_the_last_generation_was_under_way_is_reported_too() -> None:
    world = failing(2)
    world.ticks(2)
    world.vendors.plan("fetch", "running", "failed_b")
    world.tick()
    world.settings = world.settings._replace(workflow=world.settings.workflow._replace(max_failed_in_a_row=1))
    with Heard() as log:
        world.ticks(2)
    assert world.documents.gen.failed_in_a_row == 3
    assert log.alerts == ["generation_failed", "stopped"]


def test_a_generation_that_ends_well_starts_the_count_anew() -> None:
    world = failing(2)
    world.ticks(2)
    assert world.documents.gen.failed_in_a_row == 2
    world.tick()
    assert world.ended == ["failed", "failed", "done"]
    assert world.documents.gen.failed_in_a_row == 0


def test_failures_of_one_generation_do_not_count_before_it_ends() -> None:
    world = Scripted()
    world.vendors.plan("imagine", "refused", "refused")
    world.ticks(5)
    assert world.documents.gen.failed_in_a_row == 0


# --- the operator ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orders", [Orders(resume=True), Orders(resolve="skip"), Orders(retake=ID)])
def test_an_order_while_another_tick_is_at_work_is_reported_as_not_done(orders: Orders) -> None:
    world = WatchedWorld()
    world.put(GEN, {"failed_in_a_row": 3})
    lease = world.bucket.lease("story", "host-a:17")
    before = world.everything()
    with pytest.raises(LeaseHeld, match=r"host-a:17.*give the order again") as error:
        world.tick(orders)
    assert error.value.exit_code == 75
    assert world.everything() == before
    assert not world.alerts(), "nothing is wrong"
    lease.release()


def test_to_resume_where_nothing_is_held_is_just_a_tick() -> None:
    assert Scripted().tick(Orders(resume=True)).ended == "done"


@pytest.mark.parametrize("resolve", ["retry", "skip"])
def test_to_resolve_where_nothing_is_pending_is_refused_and_changes_nothing(resolve: str) -> None:
    for world in (at(generation=True), Scripted()):
        before = world.everything()
        with pytest.raises(StateError, match="Nothing was changed"):
            world.tick(Orders(resolve=resolve))
        assert world.everything() == before


@pytest.mark.parametrize("name", ["20990101-0000", "../config", "a b", "/etc"])
def test_requeueing_what_is_not_a_dead_letter_is_refused_and_changes_nothing(name: str) -> None:
    world = Scripted()
    world.put("dead_letters/x/report.json", {})
    before = {key: data for key, data in world.everything().items() if key != PUBLIC}
    with pytest.raises(StateError):
        world.tick(Orders(retake=name))
    assert {key: data for key, data in world.everything().items() if key != PUBLIC} == before


def put(bucket: MemoryBucket, public: dict[str, Any]) -> None:
    bucket.write(PUBLIC, json.dumps(public).encode(), ANY)


def test_resuming_forgets_no_append_that_a_disturbed_write_has_just_seen() -> None:
    """The publisher may disturb raising the flag; what it saw then is remembered in the document that the order to
    resume changes, too."""
    store = MemoryBucket().store
    theirs = MemoryBucket(store)
    pending = ["b"]

    def append(step: str, key: str) -> None:
        if step == "exchange" and pending:
            put(theirs, {"generation_id": [pending.pop()]})

    world = Scripted(MemoryBucket(store, meanwhile=append))
    world.put(PUBLIC, {"generation_id": []})
    world.put(GEN, {"failed_in_a_row": 3})
    fill(world)
    world.tick(Orders(resume=True))
    assert pending == []
    assert world.documents.gen.remembered == ["b"]


def test_warning_forgets_no_append_that_a_disturbed_write_has_just_seen() -> None:
    store = MemoryBucket().store
    theirs = MemoryBucket(store)
    pending = ["b"]

    def append(step: str, key: str) -> None:
        if step == "exchange" and pending:
            put(theirs, {"generation_id": ["gone", pending.pop()]})

    world = Scripted(MemoryBucket(store, meanwhile=append))
    world.put(PUBLIC, {"generation_id": ["gone"], "empty": []})
    fill(world)
    world.tick()
    assert pending == []
    assert world.documents.gen.warned == ["gone"]
    assert world.documents.gen.remembered == ["gone", "b"]


# --- tidying up -----------------------------------------------------------------------------------------------------


def test_published_generations_are_archived_and_taken_off_the_list() -> None:
    world = Scripted()
    group(world, "444", "a")
    group(world, "555", "b")
    world.put(PUBLIC, {"generation_id": ["a", "gone", "a"], "theirs": 1})
    with Heard() as log:
        world.ticks(3)
    assert {key.rpartition("/")[2] for key in world.keys_of("archive/")} == {f"a.{suffix}" for suffix in WHOLE}
    assert world.json(PUBLIC)["generation_id"] == ["gone"]
    assert world.json(PUBLIC)["theirs"] == 1
    assert len([warning for warning in log.warnings if "'gone'" in warning]) == 1, "one warning"
    assert world.documents.gen.warned == ["gone"]
    assert f"444/b.{WHOLE[0]}" in world.keys_of()


def test_a_warning_is_forgotten_with_its_reason() -> None:
    world = Scripted()
    world.put(PUBLIC, {"generation_id": ["late"]})
    world.tick()
    assert world.documents.gen.warned == ["late"]
    group(world, "444", "late")
    world.tick()
    assert world.documents.gen.warned == []
    assert world.json(PUBLIC)["generation_id"] == []


def test_an_incomplete_published_group_is_warned_of_first_and_moved_next_time() -> None:
    world = Scripted()
    world.put("444/a.json", {})
    world.put(PUBLIC, {"generation_id": ["a"]})
    world.tick()
    assert world.keys_of("archive/") == []
    world.tick()
    assert world.keys_of("archive/") == ["archive/a.json"]
    assert world.json(PUBLIC)["generation_id"] == ["a"]


def test_empty_names_the_folders_without_a_ready_group() -> None:
    world = Scripted()
    world.tick()
    assert world.json(PUBLIC)["empty"] == ["444/", "555/", "666/"]
    world.tick()
    assert world.json(PUBLIC)["empty"] == ["444/", "666/"]


def test_nothing_is_tidied_up_while_a_generation_is_under_way() -> None:
    world = at(generation=True)
    group(world, "444", "a")
    world.put(PUBLIC, {"generation_id": ["a"]})
    world.vendors.plan("fetch", "running")
    world.tick()
    assert world.keys_of("archive/") == []


# --- leftovers ------------------------------------------------------------------------------------------------------


def test_a_flag_without_a_generation_is_lowered_and_the_tick_goes_on() -> None:
    world = Scripted()
    world.put(DOCUMENT, {"generation": True})
    with Heard() as log:
        assert world.tick().ended == "done"
    assert any("no generation is under way" in warning for warning in log.warnings)


def test_an_id_without_a_text_gets_its_text_and_one_with_a_text_its_pictures() -> None:
    world = at("")
    world.vendors.plan("fetch", "running")
    world.tick()
    assert world.runs[0][0] == "generate_content"
    world = at("json")
    world.vendors.plan("fetch", "running")
    world.tick()
    assert (world.runs[0][0], world.vendors.billed) == ("generate_media", {"imagine": 1})


def test_paid_work_without_a_generation_is_kept_before_a_new_one_begins() -> None:
    world = Scripted()
    world.put(
        DOCUMENT, {"midjourney_task": {"task_id": "paid", "task_type": "imagine"}, "status": "waiting_for_imagine"}
    )
    assert world.tick().ended == "done"
    assert world.json(f"dead_letters/before-{ID}/config_midjourney.json")["midjourney_task"]["task_id"] == "paid"
    assert world.vendors.asked["fetch"] == 2, "nobody asked for the old task"


def test_the_documents_of_an_earlier_program_are_continued() -> None:
    world = Scripted()
    world.put(GEN, {"generation_id": ID})
    world.put(PUBLIC, {"processing_lock": False, "generation_id": [], "empty": []})
    world.put(f"666/{ID}.json", CONTENT)
    world.put(
        DOCUMENT,
        {
            "midjourney_task": None,
            "midjourney_results": {"task_id": "i", "task_result": FOUR},
            "generation": False,
            "status": "upscale_trigger_failed",
            "retry_count": 2,
        },
    )
    assert world.tick().why == "attempt 3/3 for status upscale_trigger_failed"
    assert world.tick().ended == "done"


def test_an_earlier_programs_public_list_of_one_text_is_named_and_left_alone() -> None:
    world = Scripted()
    world.put(PUBLIC, {"generation_id": "20250101-0000"})
    with pytest.raises(StateError, match="generation_id"):
        world.tick()
    assert world.json(PUBLIC) == {"generation_id": "20250101-0000"}


# --- a dry run ------------------------------------------------------------------------------------------------------


HELD_UPSCALE = {"step": "upscale", "outcome": "unknown", "price_usd": 0.01}

DRY = [
    ({}, "json", {"generation": True}, "order the pictures"),
    ({}, "json", {"status": "upscale_trigger_failed", "midjourney_results": PICTURES}, "grant one more attempt"),
    ({}, "json", {"status": "task_failed_max_retries"}, "dead letters"),
    ({}, "json png mp4", {}, "finish"),
    ({}, "json", {"pending_call": {"step": "imagine"}}, "find out"),
    ({"generation_id": None}, "", {}, "would begin 20260101-0000"),
    ({"generation_id": None, "failed_in_a_row": 3}, "", {}, "--resume"),
    ({"generation_id": None}, "", {"generation": True}, "lower the flag"),
]


@pytest.mark.parametrize(("gen", "files", "doc", "says"), DRY, ids=str)
def test_a_dry_run_says_what_a_tick_would_do_and_changes_nothing(
    gen: dict[str, Any], files: str, doc: dict[str, Any], says: str
) -> None:
    world = at(files, gen, **doc)
    before = world.everything()
    lease = world.bucket.lease("story", "somebody at work")
    told = world.manager().dry_run()
    assert says in "\n".join(told)
    assert told[0].startswith(f"{gen.get('generation_id', ID) or 'no generation'}: would ")
    assert world.everything() == before
    lease.release()


ORDERED_DRY: list[tuple[Orders, dict[str, Any], dict[str, Any], str]] = [
    (Orders(resume=True), {"generation_id": None, "failed_in_a_row": 3}, {}, "would begin 20260101-0001"),
    (Orders(resolve="retry"), {}, {"pending_call": HELD_UPSCALE, "midjourney_results": PICTURES}, "order the upscale"),
    (Orders(resolve="skip"), {}, {"pending_call": HELD_UPSCALE, "midjourney_results": PICTURES}, "dead letters"),
]


@pytest.mark.parametrize(("orders", "gen", "doc", "says"), ORDERED_DRY, ids=str)
def test_a_dry_run_of_an_order_says_what_the_tick_would_do_after_it(
    orders: Orders, gen: dict[str, Any], doc: dict[str, Any], says: str
) -> None:
    world = at("json", gen, {"on_unknown_outcome": "hold"}, **doc)
    before = world.everything()
    assert says in "\n".join(world.manager().dry_run(orders))
    assert world.everything() == before


def test_a_dry_run_of_a_retake_says_what_is_taken_again() -> None:
    world = at("json", workflow={"max_retries": 0}, midjourney_results=PICTURES, status="upscale_trigger_failed")
    assert world.tick().ended == "failed"
    before = world.everything()
    assert f"{ID}: would order the upscale" in world.manager().dry_run(Orders(retake=ID))[0]
    for nonsense in (Orders(retake="nobody"), Orders(resolve="skip")):
        with pytest.raises(StateError, match="Nothing was changed"):
            world.manager().dry_run(nonsense)
    assert world.everything() == before


def test_a_dry_run_names_the_moves_and_the_next_tick_makes_them() -> None:
    world = Scripted()
    group(world, "444", "a")
    group(world, "555", "b")
    group(world, "666", "c")
    world.put(PUBLIC, {"generation_id": ["a"]})
    before = world.everything()
    lines = world.manager().dry_run()
    assert world.everything() == before
    told = [line.split()[2::2] for line in lines if line.startswith("would move")]
    assert len(told) == 9
    world.tick()
    after = world.everything()
    for source, target in told:
        assert source not in after
        assert after[target] == before[source]
    assert lines[-1] == f"would begin {ID}"
    assert f"666/{ID}.mp4" in after


def test_a_dry_run_says_that_there_is_no_room() -> None:
    world = Scripted()
    fill(world)
    assert world.manager().dry_run()[-1] == "666/ holds a ready group: would begin nothing"


def test_a_dry_run_names_an_invalid_document_and_copies_nothing() -> None:
    world = Scripted()
    world.put(GEN, b"{")
    before = world.everything()
    with pytest.raises(StateError, match=GEN):
        world.manager().dry_run()
    assert world.everything() == before


def test_a_dry_run_needs_no_keys() -> None:
    world = Scripted()
    world.keys = Keys()
    assert world.manager().dry_run()[-1] == f"would begin {ID}"


# --- the display ------------------------------------------------------------------------------------------------------


def test_each_decision_is_shown_before_it_is_carried_out() -> None:
    world = Scripted()
    seen: list[Act] = []
    world.manager(observe=lambda documents, action: seen.append(action.act)).tick()
    assert seen == [
        *(Act.BEGIN, Act.WRITE, Act.ORDER_IMAGINE, Act.FETCH, Act.ORDER_UPSCALE, Act.FETCH, Act.ORDER_VIDEO, Act.FINISH)
    ]
