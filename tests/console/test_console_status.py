"""`status`: how things stand, and whether a person is needed, at the same cost whatever is recorded."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from operator_states import STATES
from reading_world import World, ask, clear, context_of, shown

from retake.bucket import ANY
from retake.bucket.directory import DirectoryBucket
from retake.bucket.failing import FailingBucket, Fault
from retake.bucket.wrappers import CountingBucket
from retake.clock import stamp
from retake.console.status import command as status
from retake.errors import StorageError
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.states import Trigger
from retake.story.documents import Status
from retake.story.operator_view import WORDS


def test_an_empty_bucket_is_well_and_says_what_comes_next() -> None:
    answer = ask(status, World())
    assert answer.exit_code == 0
    assert answer.document["healthy"]
    assert shown(answer).startswith("No generation is under way\n")
    assert "begin a new generation" in shown(answer)


def test_a_bucket_that_does_not_exist_is_distinguished_from_an_empty_one(tmp_path: Path) -> None:
    world = World()
    answer = ask(status, context_of(world, DirectoryBucket(f"{tmp_path}/bucket")))
    assert answer.exit_code == 0
    assert f"file:{tmp_path}/bucket does not exist" in shown(answer)
    assert "does not exist" not in shown(ask(status, context_of(world, DirectoryBucket(str(tmp_path)))))


def test_a_generation_under_way_is_reported_with_its_step_its_attempt_and_what_it_waits_for() -> None:
    world = World()
    world.vendors.plan("fetch", *["running"] * 9)
    world.ticks(3)
    [told] = ask(status, world).document["pipelines"]
    assert told["generation_id"] == world.generation_id
    assert (told["step"], told["attempt"], told["max_attempts"]) == ("fetch", 1, 4)
    assert told["waiting_for"]["whom"] == "Midjourney"
    assert told["waiting_for"]["since"] == stamp(world.clock.now() - timedelta(minutes=3))
    text = shown(ask(status, world))
    assert "four pictures are ordered; waiting for Midjourney" in text
    assert "3 min ago" in text


def test_a_failed_step_is_reported_with_its_error_and_its_next_attempt() -> None:
    world = World()
    world.vendors.plan("imagine", "refused")
    world.tick()
    answer = ask(status, world)
    [told] = answer.document["pipelines"]
    assert answer.exit_code == 0
    assert told["status"] == "imagine_trigger_failed"
    assert told["last_error"]["error_code"] == "ERR_TEMPORARY_UNAVAILABLE"
    assert told["next_act"] == "retry"
    assert "A UNAVAILABLE: imagine: HTTP 500 (1 min ago)" in shown(answer)


def test_what_ended_is_among_the_dead_letters_and_was_paid_is_reported() -> None:
    world = World(daily_cap_usd=5.0)
    world.vendors.plan("imagine", "rejected")
    world.ticks(2)
    world.put("dead_letters/20260101-0009/config_midjourney.json", {})  # no report: a tick is moving it, or died
    [told] = ask(status, world).document["pipelines"]
    assert told["dead_letters"] == 1
    assert told["runs"]["failed"] == 1
    assert [it["error_code"] for it in told["last_ended"]] == [None, "ERR_BUSINESS_REJECTED"]
    assert told["spend_today"] == {"settled_usd": 0.575, "reserved_usd": 0.0, "cap_usd": 5.0}
    assert "0.575 of 5.000 USD" in shown(ask(status, world))


NEEDS = {
    "pictures held": "nobody can tell whether the imagine call",
    "text refused for the key": "the key is refused",
    "poll of the pictures refused for the key": "the key is refused",
}


@pytest.mark.parametrize("state", STATES)
def test_a_person_is_needed_for_what_only_a_person_can_decide(state: str) -> None:
    answer = ask(status, STATES[state]())
    held = state.endswith(("held", "refused for the key"))
    assert answer.exit_code == (69 if held else 0), shown(answer)
    [told] = answer.document["pipelines"]
    assert bool(told["needs"]) == held
    if state in NEEDS:
        assert NEEDS[state] in told["needs"][0]


def test_too_many_failures_in_a_row_need_a_person() -> None:
    world = World(max_failed_in_a_row=2)
    for _ in range(2):
        world.vendors.plan("imagine", "rejected")
        world.tick()
    answer = ask(status, world)
    assert answer.exit_code == 69
    assert "the last 2 generations all failed" in shown(answer)


def test_an_unreadable_document_needs_a_person_and_everything_else_is_reported() -> None:
    world = World()
    world.put("config/config_midjourney.json", b"{")
    answer = ask(status, world)
    assert answer.exit_code == 69
    assert "config_midjourney.json" in answer.document["pipelines"][0]["needs"][0]
    assert answer.document["pipelines"][0]["status_in_words"] == "unreadable"
    assert world.keys_of() == ["config/config_midjourney.json"]  # nothing was written, not even a copy


def test_alerts_that_cannot_be_read_need_a_person() -> None:
    world = World()
    world.put("alerts/state.json", b"{")
    answer = ask(status, world)
    assert answer.exit_code == 69
    assert "no alert is raised or sent: alerts/state.json: not JSON" in answer.document["pipelines"][0]["needs"][0]


def test_a_lease_that_is_held_is_reported_and_not_disturbed() -> None:
    world = World()
    lease = world.bucket.lease("story", "host-a:17")
    answer = ask(status, world)
    assert answer.document["pipelines"][0]["lease"]["owner"] == "host-a:17"
    assert "held by host-a:17" in shown(answer)
    lease.check()


def test_a_lease_that_is_held_for_long_is_noted() -> None:
    world = World()
    world.bucket.store._clock = world.clock
    world.bucket.lease("story", "host-a:17")
    world.later(hours=2)
    answer = ask(status, world)
    assert "check whether host-a:17 is still at work" in answer.document["pipelines"][0]["notes"][0]
    assert answer.exit_code == 0


def test_a_ledger_that_cannot_be_read_leaves_the_rest_readable() -> None:
    world = World()
    world.ticks(2)
    away = FailingBucket(
        world.bucket,
        Fault(lambda: StorageError("the disk is gone"), times=99, operation="list", key="runs/index/open/"),
    )
    answer = ask(status, context_of(world, away))
    assert answer.exit_code == 69
    assert "the ledger cannot be read: the disk is gone" in answer.document["pipelines"][0]["needs"][0]


def test_a_bucket_that_is_away_is_an_error_to_try_again() -> None:
    world = World()
    away = FailingBucket(world.bucket, Fault(lambda: StorageError("no route"), times=99))
    with pytest.raises(StorageError, match="no route"):
        ask(status, context_of(world, away))


def test_an_open_breaker_is_reported() -> None:
    world = World()
    until = stamp(world.clock.now() + timedelta(minutes=1))
    world.put("breakers/piapi.json", {"open_until": until, "opened_at": stamp(world.clock.now()), "code": "ERR_X"})
    world.put("breakers/runway.json", {"failures": []})
    world.put("breakers/chat.json", b"[]")
    told = ask(status, world).document["breakers"]
    assert [(it["name"], it["phase"]) for it in told] == [("chat", "unreadable"), ("piapi", "open")]
    assert f"breaker piapi is open, since {stamp(world.clock.now())}: ERR_X" in shown(ask(status, world))
    assert "breaker chat is unreadable: breakers/chat.json" in shown(ask(status, world))
    world.put("breakers/piapi.json", {"open_until": until})
    assert "breaker piapi is open\n" in shown(ask(status, world))


def test_the_open_alerts_of_a_pipeline_are_reported() -> None:
    world = World()
    at = "2026-01-01T00:00:00Z"
    alert = {"key": "k", "code": "bug", "level": "critical", "occurrences": 1, "first_at": at, "last_at": at}
    own = {**alert, "id": "a1", "title": "A tick ended with a bug", "seen": {"story": "x"}}
    other = {**alert, "id": "a2", "key": "o", "title": "Elsewhere", "seen": {"story/north": "x"}}
    over = {**own, "id": "a3", "key": "e", "state": "resolved"}
    world.bucket.write("alerts/state.json", json.dumps({"alerts": [own, other, over]}).encode(), ANY)
    [told] = ask(status, world).document["pipelines"]
    assert [it for it in told["notes"] if "alert" in it] == ["alert a1 is open (critical): A tick ended with a bug"]


@pytest.mark.parametrize("key", ["refused/settings", "bug", "state_unreadable"])
def test_what_only_a_tick_can_know_needs_a_person_until_a_tick_is_well(key: str) -> None:
    world = World()
    at = "2026-01-01T00:00:00Z"
    alert = {"id": "a1", "key": key, "code": key.partition("/")[0], "level": "critical", "title": "A key is missing"}
    seen = {"occurrences": 1, "first_at": at, "last_at": at, "seen": {"story": at}, "message": "OPENAI_API_KEY"}
    world.put("alerts/state.json", {"alerts": [{**alert, **seen}]})
    answer = ask(status, world)
    assert answer.exit_code == 69
    [told] = answer.document["pipelines"]
    assert told["needs"] == ["A key is missing: OPENAI_API_KEY; alerts show a1"]
    assert told["notes"] == [], "it is named once"
    world.put("config/config_gen.json", b"{")
    needs = ask(status, world).document["pipelines"][0]["needs"]
    assert ("OPENAI_API_KEY" in needs[-1]) == (key != "state_unreadable")  # status names the document itself
    world.put("config/config_gen.json", {})
    world.put("alerts/state.json", {"alerts": [{**alert, **seen, "state": "resolved"}]})
    assert ask(status, world).exit_code == 0


def test_what_the_next_tick_does_knows_of_an_open_breaker() -> None:
    world = World()
    world.settings = world.settings._replace(breaker=world.settings.breaker._replace(failures=3))
    world.vendors.plan("fetch", *["running"] * 9)
    world.ticks(3)
    until = stamp(world.clock.now() + timedelta(seconds=world.settings.breaker.open_seconds))
    world.put("breakers/midjourney.json", {"open_until": until, "opened_at": stamp(world.clock.now())})
    [told] = ask(status, world).document["pipelines"]
    assert told["next_tick"].startswith("waits: midjourney has failed too often: open until")
    assert world.tick().exit_code == 75
    world.put("breakers/midjourney.json", {"open_until": until, "probe_ordered": True})
    assert ask(status, world).document["pipelines"][0]["next_tick"].startswith("ask Midjourney")


def test_a_breaker_that_is_turned_off_holds_nothing_back() -> None:
    world = World()
    world.put("breakers/openai.json", {"open_until": stamp(world.clock.now() + timedelta(minutes=5))})
    assert "waits" not in ask(status, world).document["pipelines"][0]["next_tick"]


def test_a_tick_that_died_is_reported_and_one_that_is_at_work_has_not() -> None:
    world = World()
    died = "the last tick did not finish; the next one continues from what is on record"
    assert died not in ask(status, world).document["pipelines"][0]["notes"]
    world.put("config/config_public.json", {"processing_lock": True})
    assert died in ask(status, world).document["pipelines"][0]["notes"]
    world.bucket.lease("story", "host-a:17")
    assert died not in ask(status, world).document["pipelines"][0]["notes"]


def test_published_generations_that_lack_files_are_noted() -> None:
    world = World()
    world.put("config/config_gen.json", {"generation_id": None, "warned": ["20260101-0001"]})
    [told] = ask(status, world).document["pipelines"]
    assert "published, and lacking files: 20260101-0001" in told["notes"]


def test_what_the_next_tick_does_knows_of_a_manager_at_work() -> None:
    world = World()
    world.bucket.lease("story", "host-a:17")
    told = ask(status, world).document["pipelines"][0]["next_tick"]
    assert told == "leaves it to host-a:17, who is at work; after that, as things stand, begin a new generation"


def test_what_today_has_cost_is_not_known_while_a_document_cannot_be_read() -> None:
    world = World(daily_cap_usd=5.0)
    world.ticks(2)
    world.put("config/config_midjourney.json", b"{")
    answer = ask(status, world)
    assert "spent today  not known: the pipeline's document cannot be read" in shown(answer)
    assert answer.document["pipelines"][0]["spend_today"]["settled_usd"] is None


def test_looking_changes_nothing() -> None:
    world = World()
    world.vendors.plan("imagine", "refused", "rejected")
    world.ticks(3)
    before = world.everything()
    ask(status, world)
    assert world.everything() == before


def operations(world: World) -> dict[str, int]:
    counted = CountingBucket(world.bucket)
    ask(status, context_of(world, counted))
    return dict(counted.counts)


def test_it_does_not_read_every_run() -> None:
    world = World()
    clear(world)

    def ended(number: int) -> None:
        ledger = BucketLedger(world.bucket, world.clock, lease=world.bucket.lease("story", "test"))
        for index in range(number):
            task = f"{len(world.bucket.store.objects)}-{index}"
            run = ledger.create_for_task(task, f"{task}#1", actor="cron", pipeline="story")
            run = ledger.move(run, Trigger.WORKER_CLAIM, actor="cron", worker="w")
            ledger.move(run, Trigger.COMPLETED, actor="cron")
        world.bucket.store.end_leases()

    ended(10)
    world.later(days=1)
    ended(10)
    few = operations(world)
    ended(200)
    world.later(days=1)
    ended(200)
    assert operations(world) == few
    assert sum(few.values()) < 40


def channels(world: World, number: int) -> list[str]:
    names = [f"channel-{index:04d}" for index in range(number)]
    world.settings = world.settings._replace(channels=tuple(names))
    return names


def test_each_of_many_channels_has_a_row() -> None:
    world = World()
    names = channels(world, 3)
    world.put(f"{names[1]}/config/config_gen.json", {"generation_id": "20260101-0930"})
    world.put(f"{names[2]}/config/config_public.json", b"[]")
    answer = ask(status, world)
    assert answer.exit_code == 69
    assert [it["channel"] for it in answer.document["pipelines"]] == names
    lines = shown(answer).splitlines()
    assert lines[0] == "3 channels: 1 with a generation under way, 0 at work now, 1 needs a person"
    assert any(line.startswith(f"{names[1]}  20260101-0930  content 1/4  continues") for line in lines)
    assert any(line.split() == [names[2], "unreadable"] for line in lines)
    assert any(line.startswith(f"{names[2]}: config/config_public.json") for line in lines)


def test_what_a_person_is_to_type_names_the_channel() -> None:
    world = World(on_unknown_outcome="hold")
    first, second = channels(world, 2)
    held = {"pending_call": {"step": "imagine", "outcome": "unknown"}}
    world.put(f"{first}/config/config_gen.json", {"generation_id": "20260101-0930"})
    world.put(f"{first}/config/config_midjourney.json", held)
    world.put(f"{second}/config/config_gen.json", {"failed_in_a_row": 3})
    text = shown(ask(status, world))
    assert f"then retry {first}/20260101-0930 (make it again) or skip {first}/20260101-0930" in text
    assert f"run the manager with --resume --channel {second}" in text


def test_one_channel_can_be_looked_at_alone() -> None:
    world = World()
    names = channels(world, 3)
    answer = ask(status, context_of(world, channel=names[1]))
    assert [it["channel"] for it in answer.document["pipelines"]] == [names[1]]


@pytest.mark.slow
def test_a_thousand_channels_cost_a_few_operations_each() -> None:
    world = World()
    channels(world, 1000)
    counted = CountingBucket(world.bucket)
    answer = ask(status, context_of(world, counted))
    assert len(answer.document["pipelines"]) == 1000
    assert sum(counted.counts.values()) < 16 * 1000
    assert not {"write", "delete", "lease", "copy", "replace"} & counted.counts.keys()


def test_every_status_has_its_words() -> None:
    assert set(WORDS) == {None, *Status}
