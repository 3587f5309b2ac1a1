"""`dead-letters list|show|requeue|drop`."""

from typing import Any

import pytest
from acting_world import ID, STATES, TABLE, World, act, context_of, failed_run, papers, runs

from retake.bucket import ANY
from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.console.cancel import command as cancel
from retake.console.dead_letters import command as dead_letters
from retake.console.dead_letters import drop_letter, list_letters, requeue_letter, show_letter
from retake.errors import LeaseHeld, RunError
from retake.operations.letters import find_letter
from retake.operations.port import Refusal
from retake.retrying.dead_letters import DeadLetters
from retake.runs.bucket_ledger import BucketLedger


def letters(world: World) -> list[dict[str, Any]]:
    return list(act(list_letters, world, limit=50).document["dead_letters"])


def cancelled(name: str) -> World:
    world = STATES[name]()
    act(cancel, world, run=ID, yes=True)
    return world


def with_others() -> World:
    """Return a world with a failed generation, paid work of nobody, and a letter of another kind."""
    world = STATES["dead_lettered"]()
    world.put("dead_letters/before-20260101-0001/config_midjourney.json", {"midjourney_task": {"task_id": "t"}})
    error = {"error_code": "ERR_TEMPORARY_X", "message": "gone"}
    DeadLetters(world.bucket, world.clock).put("robot-1", "robot item", {"n": 1}, error)
    return world


def test_the_group_has_its_four_commands() -> None:
    assert sorted(dead_letters.commands) == ["drop", "list", "requeue", "show"]  # type: ignore[attr-defined]


def test_a_letter_of_one_of_several_channels_is_named_as_a_run_is() -> None:
    world = STATES["no generation"]()
    world.settings = world.settings._replace(channels=("en", "ru"))
    for channel in ("en", "ru"):
        world.put(f"{channel}/dead_letters/{ID}/report.json", {"generation_id": ID})
    operations = context_of(world).operations
    assert find_letter(operations, f"ru/{ID}").pipeline.channel == "ru"
    with pytest.raises(RunError, match="of several channels: en, ru; name the --channel"):
        find_letter(operations, ID)
    with pytest.raises(Refusal, match=f"there is no dead letter 'de/{ID}'"):
        find_letter(operations, f"de/{ID}")


# --- list -------------------------------------------------------------------------------------------------------------


def test_where_nothing_failed_the_list_is_empty() -> None:
    answer = act(list_letters, STATES["pictures failed"](), limit=50)
    assert (answer.exit_code, answer.document) == (0, {"dead_letters": []})
    assert papers(answer) == "There are no dead letters.\n"


def test_a_list_tells_what_failed_where_and_what_it_cost() -> None:
    world = STATES["dead_lettered"]()
    [letter] = letters(world)
    assert letter == {
        "id": ID,
        "channel": None,
        "kind": "generation",
        "ended": "failed",
        "at": "2026-01-01T00:00:00Z",
        "step": "upscale",
        "error_code": "ERR_TEMPORARY_UNAVAILABLE",
        "message": "HTTP 500",
        "paid_usd": 0.055,
        "files": [f"{ID}.json", "config_midjourney.json"],
        "fault": None,
    }
    head, row = papers(act(list_letters, world, limit=50)).splitlines()
    assert head.split() == ["ID", "ENDED", "AT", "STEP", "ERROR", "PAID", "FILES"]
    assert row.split()[:2] == [ID, "failed"]
    assert "A UNAVAILABLE HTTP 500" in row


def test_what_was_cancelled_and_what_was_nobodys_is_distinguished_from_what_failed() -> None:
    assert [letter["ended"] for letter in letters(cancelled("pictures failed"))] == ["cancelled"]
    assert {letter["id"]: letter["ended"] for letter in letters(with_others())} == {
        ID: "failed",
        "before-20260101-0001": "nobody's",
        "robot-1": "failed",
    }


@pytest.mark.parametrize(
    "report",
    [
        *(b"", b"{", b"[]", b'{"paid_calls": 7, "last_error": 3, "failed_at_utc": "x"}'),
        b'{"failed_step": [1], "last_error": {"message": {"a": 1}}}',
    ],
)
def test_an_invalid_report_does_not_keep_the_list_from_the_others(report: bytes) -> None:
    world = STATES["dead_lettered"]()
    world.put(f"dead_letters/{ID}/report.json", report)
    world.put("dead_letters/other/report.json", {"generation_id": "other", "failed_step": "runway"})
    assert {letter["id"] for letter in letters(world)} == {ID, "other"}
    act(show_letter, world, letter_id=ID)


# --- show -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "report",
    [
        b'{"generation_id": "20260101-0000", "tasks_in_flight": 5}',
        b'{"generation_id": "20260101-0000", "paid_calls": [{"price_usd": 1' + b"0" * 400 + b"}]}",
        b'{"generation_id": "20260101-0000", "paid_calls": [{"price_usd": NaN}]}',
    ],
)
def test_a_report_that_was_edited_badly_is_shown(report: bytes) -> None:
    world = World()
    world.bucket.write("dead_letters/20260101-0000/report.json", report, ANY)
    document = act(show_letter, world, letter_id="20260101-0000").document
    assert document["paid_usd"] == 0
    assert act(list_letters, world, limit=9).document["dead_letters"][0]["paid_usd"] == 0


def test_a_letter_is_shown_with_its_report_its_error_its_files_and_what_requeue_would_do() -> None:
    world = STATES["dead_lettered"]()
    before = world.everything()
    answer = act(show_letter, world, letter_id=ID)
    assert world.everything() == before
    assert answer.document["report"] == world.json(f"dead_letters/{ID}/report.json")
    then = "possible; the next tick: order the upscale (the pictures are ready)"
    assert answer.document["requeue"] == {"possible": True, "then": then}
    text = papers(answer)
    for piece in ("dead letter", "retries", "upscale: 3", "A UNAVAILABLE: HTTP 500", '"error_class": "A"', then):
        assert piece in text
    for name in (f"{ID}.json", "config_midjourney.json", "report.json"):
        assert f"dead_letters/{ID}/{name}" in text


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if not row[2]])
def test_what_it_says_requeue_would_do_is_what_happens(name: str) -> None:
    world = cancelled(name)
    foretold = act(show_letter, world, letter_id=ID).document["requeue"]
    answer = act(requeue_letter, world, letter_id=ID)
    assert foretold == {"possible": True, "then": f"possible; {answer.document['next_tick']}"}


def test_a_cancelled_one_shows_by_whom_and_what_is_in_flight() -> None:
    text = papers(act(show_letter, cancelled("video awaited"), letter_id=ID))
    assert "operator" in text
    assert "create-1" in text


@pytest.mark.parametrize("command", [show_letter, requeue_letter, drop_letter])
@pytest.mark.parametrize("name", ["20200101-0000", "", "..", "a/b", "../config", "x" * 300, "é", "run-1"])
def test_what_is_not_a_dead_letter_is_reported(command: Any, name: str) -> None:
    world = STATES["dead_lettered"]()
    before = world.everything()
    with pytest.raises(Refusal, match=r"no dead letter '.*'; dead-letters list"):
        act(command, world, letter_id=name, **({"yes": True} if command is drop_letter else {}))
    assert world.everything() == before


# --- requeue ----------------------------------------------------------------------------------------------------------


def test_a_generation_is_resumed_at_its_failed_step_with_everything_before_it_kept() -> None:
    world = STATES["dead_lettered"]()
    answer = act(requeue_letter, world, letter_id=ID)
    assert (answer.document["done"], answer.document["run"]) == ("requeue", runs(world)[-1].run_id)
    assert letters(world) == []
    world.tick()
    assert world.ended[-1] == "done"
    assert world.vendors.billed == {"upscale": 1, "create": 1}


@pytest.mark.parametrize(
    ("name", "step"),
    [("text held", "content"), ("pictures held", "imagine"), ("upscale held", "upscale"), ("video held", "runway")],
)
def test_a_call_that_was_held_when_it_was_cancelled_is_made_again_with_a_warning(name: str, step: str) -> None:
    answer = act(requeue_letter, cancelled(name), letter_id=ID)
    again = f"the {step} call of unknown outcome is made again: if it was carried out, it is paid for twice"
    assert answer.document["warning"] == again
    assert again in papers(answer)


@pytest.mark.parametrize("name", ["dead_lettered", "video awaited"])
def test_a_requeue_that_makes_no_such_call_warns_of_nothing(name: str) -> None:
    world = STATES[name]() if name == "dead_lettered" else cancelled(name)
    assert not act(requeue_letter, world, letter_id=ID).document["warning"]


REFUSED = {
    "before-20260101-0001": "belonged to no generation: there is nothing to continue with; look at it",
    "robot-1": "of kind robot item, which is not a generation; look at it",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_a_generation_is_not_requeued(name: str) -> None:
    world = with_others()
    before = world.everything()
    with pytest.raises(Refusal, match=REFUSED[name]):
        act(requeue_letter, world, letter_id=name)
    assert world.everything() == before
    assert act(show_letter, world, letter_id=name).document["requeue"]["possible"] is False


def test_one_generation_at_a_time() -> None:
    world = STATES["dead_lettered"]()
    world.vendors.plan("fetch", "running")
    world.tick()
    before = world.everything()
    with pytest.raises(Refusal, match=f"generation {world.generation_id} is under way, one at a time"):
        act(requeue_letter, world, letter_id=ID)
    assert world.everything() == before
    assert "not now: generation" in papers(act(show_letter, world, letter_id=ID))


def test_the_remains_of_one_that_was_finished_are_not_resumed() -> None:
    world = STATES["dead_lettered"]()
    for suffix in ("json", "png", "mp4"):
        world.put(f"444/{ID}.{suffix}", b"x")
    with pytest.raises(Refusal, match="is finished, its files lie in 444/; these are the remains"):
        act(requeue_letter, world, letter_id=ID)


# --- drop -------------------------------------------------------------------------------------------------------------


def test_nothing_is_dropped_without_a_yes_and_what_is_lost_is_named() -> None:
    world = STATES["dead_lettered"]()
    before = world.everything()
    with pytest.raises(Refusal, match=r"results of 2 paid calls \(0.055 USD\)\. Pass --yes"):
        act(drop_letter, world, letter_id=ID, yes=False)
    assert world.everything() == before


def test_what_is_dropped_is_gone_and_the_ledger_says_by_whom() -> None:
    world = cancelled("pictures failed")
    answer = act(drop_letter, world, letter_id=ID, yes=True)
    assert letters(world) == []
    assert world.keys_of("dead_letters/") == []
    assert answer.document["files"] == [f"{ID}.json", "config_midjourney.json", "report.json"]
    last = BucketLedger(world.bucket, world.clock).events(runs(world)[-1].run_id)[-1]
    assert (last.payload["code"], last.payload["actor"]) == ("drop", "operator")
    assert world.keys_of("spend/") == [f"spend/{ID}.json"]


@pytest.mark.parametrize("name", ["before-20260101-0001", "robot-1"])
def test_letters_of_any_kind_can_be_dropped(name: str) -> None:
    world = with_others()
    act(drop_letter, world, letter_id=name, yes=True)
    assert name not in [letter["id"] for letter in letters(world)]


def test_one_call_and_one_file_are_reported_as_one() -> None:
    world = World()
    call = {"step": "content", "price_usd": 0.005, "outcome": "done"}
    world.put(f"dead_letters/{ID}/report.json", {"generation_id": ID, "paid_calls": [call]})
    letter = find_letter(context_of(world).operations, ID)
    assert letter.loss.endswith("its report, results of 1 paid call (0.005 USD)")
    assert "1 call, 0.005 USD" in papers(act(show_letter, world, letter_id=ID))
    assert letter.drop()["what"] == f"the dead letter {ID} is dropped, 1 file"


def test_what_has_grown_since_it_was_shown_is_not_dropped() -> None:
    world = STATES["dead_lettered"]()
    letter = find_letter(context_of(world).operations, ID)
    world.put(f"dead_letters/{ID}/{ID}.mp4", "the video")  # requeued, and failed once more
    with pytest.raises(Refusal, match=rf"a different one by now: it would lose .*{ID}\.mp4.*Ask again"):
        letter.drop()
    assert f"{ID}.mp4" in letters(world)[0]["files"]
    find_letter(context_of(world).operations, ID).drop()
    assert letters(world) == []


def test_a_drop_that_died_is_reported_by_the_list_and_can_be_dropped_without_a_yes() -> None:
    world = STATES["dead_lettered"]()
    dying = FailingBucket(world.bucket, Fault(Crash, operation="delete", number=1, after=True))
    callback: Any = drop_letter.callback
    with pytest.raises(Crash):
        callback.__wrapped__(context_of(world, dying), letter_id=ID, yes=True)
    world.bucket.store.end_leases()
    [letter] = letters(world)
    assert letter["ended"] == "dropped (remains)"
    with pytest.raises(Refusal, match="was dropped before, and these are the remains"):
        act(requeue_letter, world, letter_id=ID)
    act(drop_letter, world, letter_id=ID, yes=False)
    assert letters(world) == []


@pytest.mark.parametrize("command", [requeue_letter, drop_letter])
def test_while_a_tick_is_at_work_nothing_is_done(command: Any) -> None:
    world = STATES["dead_lettered"]()
    lease = world.bucket.lease("story", "host-a:17")
    before = world.everything()
    with pytest.raises(LeaseHeld, match="host-a:17"):
        act(command, world, letter_id=ID, **({"yes": True} if command is drop_letter else {}))
    assert world.everything() == before
    lease.release()


def test_a_run_of_another_pipeline_is_not_a_dead_letter() -> None:
    world = STATES["no generation"]()
    run = failed_run(world)
    with pytest.raises(Refusal, match="no dead letter"):
        act(requeue_letter, world, letter_id=run.run_id)
