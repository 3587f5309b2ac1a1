"""The acting commands with runs in a database, and with channels."""

from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from acting_world import ID, STATES, World, act, papers
from click import Command
from own_poems import NAMED

from retake.bucket.failing import FailingBucket, Fault
from retake.bucket.wrappers import PrefixedBucket
from retake.clock import FakeClock
from retake.console.cancel import command as cancel
from retake.console.check import command as check
from retake.console.command_context import CommandContext
from retake.console.dead_letters import drop_letter, list_letters, requeue_letter
from retake.console.doctor import command as doctor
from retake.console.retry import command as retry
from retake.console.runs import command as list_runs
from retake.console.show import command as show
from retake.console.status import command as status
from retake.console.unlock import command as unlock
from retake.errors import RunError, SettingsError
from retake.operations.kpi import histories
from retake.operations.port import Refusal
from retake.robots.run_record import RobotRuns
from retake.runs import Ledger, open_ledger, schema
from retake.runs.database import open_database
from retake.runs.ledger import OldTables
from retake.runs.run import UnknownRun
from retake.runs.states import RunStatus, Trigger

ALL = {"statuses": (), "limit": 20, "pipeline": None}
"""The required options of `runs`."""


def on_sqlite(name: str, folder: Path) -> World:
    world = STATES[name]()
    storage = world.settings.storage._replace(ledger=f"sqlite:{folder / 'runs.db'}")
    world.settings = world.settings._replace(storage=storage)
    return world


def ledger(world: World) -> Ledger:
    return open_ledger(world.settings.storage.ledger, world.bucket, world.clock)


def test_with_a_database_the_operators_doings_are_on_record_there(tmp_path: Path) -> None:
    world = on_sqlite("pictures failed", tmp_path)
    world.tick()
    [run] = ledger(world).of_task(ID)
    world.vendors.plan("imagine", "refused")
    world.tick()
    assert act(retry, world, run=run.run_id[:10]).document["run"] == run.run_id
    act(cancel, world, run=ID, yes=True)
    act(requeue_letter, world, letter_id=ID)
    first, second = ledger(world).of_task(ID)
    assert (first.status, second.status) == (RunStatus.CANCELLED, RunStatus.QUEUED)
    assert not world.keys_of("runs/")
    act(cancel, world, run=ID, yes=True)
    act(drop_letter, world, letter_id=ID, yes=True)
    last = ledger(world).events(second.run_id)[-1]
    assert (last.payload["code"], last.payload["actor"]) == ("drop", "operator")


def test_tables_of_an_older_version_need_no_person_while_there_is_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, url = World(), f"sqlite:{tmp_path / 'runs.db'}"
    world.settings = world.settings._replace(storage=world.settings.storage._replace(ledger=url))
    with monkeypatch.context() as older, closing(open_database(url, read_only=False)) as database:
        older.setattr(schema, "REVISIONS", ("0001",))
        schema.bring_up_to_date(database)
    answer = act(status, world)
    [told] = answer.document["pipelines"]
    assert (answer.exit_code, told["needs"]) == (0, [])
    assert "`check --repair` at once" in told["notes"][0]
    found = {
        it["check"]: it["verdict"] for it in act(doctor, world, offline=True, test_request=False).document["checks"]
    }
    assert (found["ledger's tables"], "ledger" in found, "last errors" in found) == ("warn", False, False)
    with pytest.raises(OldTables, match="`check --repair` at once"):
        act(list_runs, world, **ALL)
    act(check, world, media=False, repair=True)
    assert act(list_runs, world, **ALL).exit_code == 0


def with_channels(*names: str) -> World:
    """Return channels, each with a generation of the same id whose pictures failed."""
    world = STATES["pictures failed"]()
    everything = world.everything()
    for key in everything:
        world.bucket.delete(key)
    for name in names:
        for key, data in everything.items():
            world.put(f"{name}/{key}", data)
    world.settings = world.settings._replace(channels=names)
    return world


def of(world: World, channel: str) -> World:
    """Return the part of a world that belongs to a channel."""
    part = World(PrefixedBucket(world.bucket, f"{channel}/"))  # type: ignore[arg-type]
    part.clock = world.clock
    return part


def context(world: World, channel: str | None = None) -> CommandContext:
    return CommandContext({}, channel=channel, clock=world.clock, bucket=world.bucket, settings=world.settings)


def test_a_channel_must_be_named_if_several_have_that_generation() -> None:
    world = with_channels("a", "b")
    work = retry.callback.__wrapped__  # type: ignore[union-attr]
    with pytest.raises(RunError, match="several channels: a, b; name the --channel"):
        work(context(world), run=ID)
    assert work(context(world, "b"), run=ID).document["done"] == "retry"
    assert (of(world, "a").status, of(world, "b").status) == ("imagine_trigger_failed", None)
    [run] = open_ledger(None, of(world, "b").bucket, world.clock).of_task(f"b/{ID}")
    assert (run.pipeline, run.status) == ("story/b", RunStatus.RETRY_SCHEDULED)
    with pytest.raises(Refusal, match="nothing of it has failed"):
        work(context(world), run=run.run_id)  # its id tells whose it is


@pytest.mark.parametrize("command", [retry, cancel])
def test_a_generation_of_another_channel_than_the_named_one_is_left_alone(tmp_path: Path, command: Command) -> None:
    world = with_channels("a", "b")
    storage = world.settings.storage._replace(ledger=f"sqlite:{tmp_path / 'runs.db'}")
    world.settings = world.settings._replace(storage=storage)
    run = ledger(world).create_for_task(f"b/{ID}", "key", actor="cron", pipeline="story/b")
    if command is retry:
        claimed = ledger(world).claim("w")
        assert claimed
        ledger(world).move(claimed, Trigger.NON_RETRYABLE_ERROR, actor="worker", error_code="ERR_BUSINESS_X")
    before = ledger(world).of_task(f"b/{ID}")
    options = {"yes": True} if command is cancel else {}
    for name in (run.run_id, run.run_id[:12], f"b/{ID}"):
        with pytest.raises(Refusal, match="of story/b, but the channel named is a"):
            command.callback.__wrapped__(context(world, "a"), run=name, **options)  # type: ignore[union-attr]
    assert ledger(world).of_task(f"b/{ID}") == before


def test_dead_letters_of_all_channels_are_in_one_list() -> None:
    world = with_channels("a", "b")
    for channel in ("a", "b"):
        cancel.callback.__wrapped__(context(world, channel), run=ID, yes=True)  # type: ignore[union-attr]
    found = list_letters.callback.__wrapped__(context(world), limit=50).document["dead_letters"]  # type: ignore[union-attr]
    assert {(letter["channel"], letter["id"]) for letter in found} == {("a", ID), ("b", ID)}
    drop = drop_letter.callback.__wrapped__  # type: ignore[union-attr]
    with pytest.raises(RunError, match="several channels: a, b; name the --channel"):
        drop(context(world), letter_id=ID, yes=True)
    drop(context(world, "a"), letter_id=ID, yes=True)
    assert world.keys_of("a/dead_letters/") == []
    requeued = requeue_letter.callback.__wrapped__(context(world), letter_id=ID)  # type: ignore[union-attr]
    assert requeued.document["generation_id"] == ID
    assert of(world, "b").generation_id == ID


def test_a_channel_is_to_be_named_for_what_is_about_one() -> None:
    world = with_channels("a", "b")
    with pytest.raises(SettingsError, match=r"CHANNELS \(a, b\): name it by --channel NAME, or in RETAKE_CHANNEL"):
        unlock.callback.__wrapped__(context(world), yes=True)  # type: ignore[union-attr]
    by_variable = context(world)
    by_variable.environ = {"RETAKE_CHANNEL": "b"}
    assert by_variable.pipeline.channel == "b"
    assert [it.channel for it in by_variable.operations.pipelines] == ["a", "b"]  # what `status` looks at
    world.put("b/config/config_public.json", {"processing_lock": True})
    assert unlock.callback.__wrapped__(context(world, "b"), yes=True).document["pipeline"] == "story/b"  # type: ignore[union-attr]


def test_a_run_of_a_channel_that_the_settings_have_no_more_can_be_cancelled_and_not_retried(tmp_path: Path) -> None:
    world = on_sqlite("no generation", tmp_path)
    world.settings = world.settings._replace(channels=("en",))
    runs, name = ledger(world), "old/20251231-0930"
    run = runs.create_for_task(name, f"{name}#1", actor="cron", pipeline="story/old", worker="host-a:17")
    assert act(cancel, world, run=name, yes=True).document["run"]["status"] is RunStatus.CANCELLED
    run = runs.create_for_task(name, f"{name}#2", actor="cron", pipeline="story/old", worker="host-a:17")
    runs.move(run, Trigger.NON_RETRYABLE_ERROR, actor="cron", error_code="ERR_X")
    with pytest.raises(Refusal, match=r"a run of story/old, which the settings do not have \(CHANNELS\)"):
        act(retry, world, run=name)
    assert [it.status for it in runs.of_task(name)] == [RunStatus.CANCELLED, RunStatus.FAILED]


def test_a_robots_run_is_not_retried_and_a_robot_at_work_is_not_reported_as_stopping(tmp_path: Path) -> None:
    world = on_sqlite("no generation", tmp_path)
    runs = ledger(world)
    of_robot = RobotRuns(runs, "NR.NSI.2", world.clock, owner="host-a:17", resumable_s=3600)
    record = of_robot.begin("order-17")
    [run] = runs.runs()
    answer = act(cancel, world, run=run.run_id, yes=True)
    assert "If host-a:17 is still working, it continues: this only ends the record." in papers(answer)
    record.done()
    assert [it.status for it in runs.runs()] == [RunStatus.CANCELLED]
    of_robot.begin("order-17").failed({"error_code": "ERR_X", "error_class": "B"})
    failed = runs.runs(status=[RunStatus.FAILED])[0]
    with pytest.raises(Refusal, match=r"a run of robot/NR\.NSI\.2, which only records what a program did"):
        act(retry, world, run=failed.run_id)
    assert len(runs.runs()) == 2


def test_a_run_that_names_no_pipeline_is_a_workers_unless_the_pipeline_has_something_of_it(tmp_path: Path) -> None:
    world = on_sqlite("pictures failed", tmp_path)
    runs = ledger(world)
    run = runs.create_for_task("posters/aurora", "posters/aurora#1", actor="shop", worker="host-a:17")
    with pytest.raises(Refusal, match="of no pipeline is running: it is being worked on"):
        act(retry, world, run=run.run_id)
    runs.move(run, Trigger.NON_RETRYABLE_ERROR, actor="worker", error_code="ERR_X")
    answer = act(retry, world, run="posters/aurora")
    assert "A worker of no pipeline claims it." in papers(answer)
    act(cancel, world, run=answer.document["run"]["run_id"], yes=True)
    assert [it.status for it in runs.of_task("posters/aurora")] == [RunStatus.FAILED, RunStatus.CANCELLED]
    runs.create_for_task(ID, f"{ID}#1", actor="cron")  # written by an old version
    assert act(retry, world, run=ID).document["generation_id"] == ID


def test_with_channels_the_runs_of_robots_at_the_root_of_the_bucket_are_shown_and_cancelled() -> None:
    world = with_channels("a", "b")
    runs = open_ledger(None, world.bucket, world.clock)
    early = FakeClock(world.clock.now() - timedelta(days=1))
    of_robot = RobotRuns(open_ledger(None, world.bucket, early), "NR.NSI.2", early, owner="host-a:17", resumable_s=3600)
    of_robot.begin("order-17")
    [run] = runs.runs()
    assert [it["run_id"] for it in act(list_runs, world, **ALL).document["runs"]] == [run.run_id]
    assert act(list_runs, world, **{**ALL, "pipeline": "robot/NR.NSI.2"}).document["runs"] != []
    for name in (run.run_id, run.run_id[:12], run.task_id, run.task_id[:11]):
        told = act(show, world, run=name)
        assert papers(told).startswith(f"robot/NR.NSI.2 {run.task_id}\n")
    checks = act(doctor, world, offline=True, test_request=False).document["checks"]
    [left] = [it["found"] for it in checks if it["check"] == "robots"]
    assert left == f"1 run whose process is dead or silent: {run.run_id} ({run.task_id})"
    assert act(cancel, world, run=run.run_id, yes=True).document["run"]["status"] is RunStatus.CANCELLED
    assert runs.get(run.run_id).status is RunStatus.CANCELLED
    with pytest.raises(UnknownRun):
        show.callback.__wrapped__(context(world, "a"), run=run.run_id)  # type: ignore[union-attr]


@pytest.mark.parametrize("channels", [("poems", "b"), ()], ids=["robots'", "the story's"])
def test_a_ledger_at_the_root_that_cannot_be_read_hides_none_of_those_in_parts(channels: tuple[str, ...]) -> None:
    world = World()
    world.settings = world.settings._replace(channels=channels, pipelines={} if channels else NAMED)
    part = open_ledger(None, world.bucket.part("poems/"), world.clock)
    run = part.create_for_task("poem-1", "poem-1#1", actor="cron", pipeline="poems")
    away = FailingBucket(world.bucket, Fault(operation="list", key="runs/index/open/", times=99))
    about = CommandContext({}, clock=world.clock, bucket=away, settings=world.settings)
    found = list_runs.callback.__wrapped__(about, **ALL).document  # type: ignore[union-attr]
    assert [it["run_id"] for it in found["runs"]] == [run.run_id]
    [left_out] = found["unreadable"]
    assert left_out.startswith(f"the ledger of {'the bucket' if channels else 'story'}")


def test_with_channels_and_a_pipeline_of_its_own_the_ledger_at_the_root_is_counted_too() -> None:
    world = with_channels("a", "b")
    world.settings = world.settings._replace(pipelines=NAMED)
    names = [name for name, _ in histories(context(world).operations)]
    assert (len(names), names[-1]) == (4, "root")
    assert "root" not in [name for name, _ in histories(context(world, "poems").operations)]
